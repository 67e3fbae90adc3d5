"""ONNX's own cases, a model of one node each: what memwall writes has the shapes and dtypes that the cases state."""

import warnings
from collections import Counter

import pytest

onnx = pytest.importorskip("onnx", reason="needs the package onnx")

from memwall.core.errors import UsageError  # noqa: E402
from memwall.frontend.onnx import OnnxProgram  # noqa: E402
from memwall.frontend.onnx.reading import DTYPES, OLDEST_OPSET  # noqa: E402
from memwall.frontend.program import TraceOptions  # noqa: E402
from memwall.ops import graph_costs  # noqa: E402

#: nodes whose results are as long as their data say: counted as long as they can be
BY_DATA = ("compress", "nonzero", "unique", "range")


def cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their expected numbers, infinities among them
        from onnx.backend.test.case.node import collect_testcases

        return [case for case in collect_testcases(None) if case.model is not None]


def tensors(model):
    return all(item.type.WhichOneof("value") == "tensor_type" for item in (*model.graph.input, *model.graph.output))


@pytest.mark.whole
def test_the_results_of_each_case_have_their_shapes(tmp_path):
    wrong, unmodeled, read = [], Counter(), 0
    for case in cases():
        version = next((item.version for item in case.model.opset_import if item.domain == ""), 0)
        if version < OLDEST_OPSET or not tensors(case.model):
            continue
        path = tmp_path / f"{case.name}.onnx"
        onnx.save(case.model, path)
        try:
            graph = OnnxProgram(case.name, case.name, path).traced(TraceOptions()).graph
        except UsageError as error:  # axes and sizes are inputs of many cases, and of no model
            if "depends on data" not in str(error) and "is no tensor of numbers" not in str(error):
                wrong.append(f"{case.name}: {error}")
            continue
        read += 1
        unmodeled.update(op.name for op, cost in zip(graph.ops, graph_costs(graph), strict=True) if not cost.modeled)
        for item, value in zip(case.model.graph.output, graph.outputs, strict=True):
            kind, spec = item.type.tensor_type, graph.values[value].spec
            said = tuple(axis.dim_value for axis in kind.shape.dim), DTYPES[kind.elem_type]
            if said != (spec.shape, spec.dtype) and not any(word in case.name for word in BY_DATA):
                wrong.append(f"{case.name}: {item.name} is {said}, not {spec.shape} of {spec.dtype}")
    assert wrong == []
    assert read > 1400
    assert sum(unmodeled.values()) < 60, unmodeled
