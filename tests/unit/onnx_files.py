"""ONNX files written by hand: nodes in a line, weights by shape, which are outside of the file."""

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx", reason="needs the package onnx")
from onnx import TensorProto, helper  # noqa: E402

HALF, FLOAT, INT64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64


def weight(name, shape, dtype=HALF):
    """A weight whose numbers are in another file, which is not there."""
    made = TensorProto(name=name, dims=shape, data_type=dtype, data_location=TensorProto.EXTERNAL)
    made.external_data.add(key="location", value="absent.bin")
    return made


def numbers(name, *values, shape=None, dtype=INT64):
    """A constant in the file."""
    return helper.make_tensor(name, dtype, [len(values)] if shape is None else shape, values)


def given(name, *shape, dtype=HALF):
    """An input, or an output, whose sizes may be symbols."""
    return helper.make_tensor_value_info(name, dtype, shape)


def result(name, dtype=HALF):
    """An output of any shape."""
    return helper.make_tensor_value_info(name, dtype, None)


def node(text, name="", domain="", **attributes):
    """A node of ``y, z = Op(a, b)``; an operand that is left out is written ``_``."""
    made, _, called = text.partition(" = ")
    op, _, operands = called.rstrip(")").partition("(")
    inputs, outputs = (["" if n == "_" else n for n in part.split(", ") if n] for part in (operands, made))
    return helper.make_node(op, inputs, outputs, name=name, domain=domain, **attributes)


def save(path, nodes, inputs, outputs, weights=(), opset=20, functions=()):
    """The file of such a model."""
    graph = helper.make_graph(list(nodes), "main", list(inputs), list(outputs), list(weights))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)
    Path(path).write_bytes(model.SerializeToString())
    return str(path)
