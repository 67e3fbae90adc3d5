"""A model's nodes in order → what a :class:`memwall.frontend.writing.GraphWriter` holds.

- Each node's shapes are what ONNX infers from the sizes and numbers known by then (``infer_node_outputs``), or of
  com.microsoft's ops, which have no inference, what :mod:`.contrib` says.
- What shapes are computed from (Shape, Gather, Concat, Range of known numbers) is folded by ONNX's reference evaluator,
  up to :data:`FOLDED` elements; runtimes fold constants before a run too.
- What weights alone make is computed before the step, as ONNX Runtime and TensorRT do, except for weights that are
  stored in fewer bits (DequantizeLinear).
- A node whose row is missing is kept under its own name and charged its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memwall.core.errors import MALFORMED, UsageError
from memwall.core.graph import Graph
from memwall.frontend.onnx.control import CONTROL
from memwall.frontend.onnx.node import Node, OnnxTensor, Scope, called, placed
from memwall.frontend.onnx.reading import DTYPES, ELEMENT_TYPES, OnnxModel, domain_of
from memwall.frontend.onnx.table import ROWS, SHAPES, VIEWS
from memwall.frontend.writing import GraphWriter
from memwall.hardware.chips import Chip

#: most elements of a constant that is computed here, and of an initializer whose numbers are read; of one that is
#: floating, in which only factors of axes say shapes, as many as there are axes
FOLDED, _FACTORS = 8192, 8
#: ops of weights alone that run in every step all the same: products read what is stored, and others draw numbers
_RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli")
_EVERY_STEP = frozenset(("microsoft.DequantizeLinear", *(f"onnx.{name}" for name in ("DequantizeLinear", *_RANDOM))))
#: prefixes of inputs that hold keys and values of earlier steps, as exporters of language models name them
_CACHES = ("past_key_values", "past_", "past.", "cache_", "key_cache", "value_cache")


class Importer:
    """Writes a graph's nodes; ``notes`` are lines for every page of the profile."""

    def __init__(self, model: OnnxModel, source: str, max_ops: int, chip: Chip) -> None:
        self.model, self.source, self.chip = model, source, chip
        self.writer = GraphWriter(max_ops)
        self.notes: dict[str, None] = {}
        self._imports = {item.domain: item.version for item in model.proto.opset_import}

    def inputs(self) -> Scope:
        """The model's inputs, in device memory before the step."""
        scope = {}
        for name, (shape, dtype) in self.model.inputs.items():
            role = "kv_cache" if name.startswith(_CACHES) else "input"
            scope[name] = OnnxTensor(shape, dtype, role=role, name=name)
        return scope

    def placed(self, tensor: OnnxTensor) -> int:
        """The id of a tensor's value in the graph."""
        return placed(self.writer, tensor)

    def graph(self, graph: Any, scope: Scope) -> list[OnnxTensor]:
        """Write the nodes of a graph or of a branch; its outputs. ``scope`` is what its nodes can name."""
        for item in graph.initializer:
            scope[item.name] = _initializer(item)
        for item in graph.sparse_initializer:
            raise UsageError(f"{self.source}: the sparse initializer {item.values.name!r} is not modeled")
        hints = {item.name: item.type for item in (*graph.value_info, *graph.output)}
        for proto in graph.node:
            self._node(proto, scope, hints)
        if missing := [item.name for item in graph.output if item.name not in scope]:
            raise UsageError(f"{self.source}: no node makes the output {missing[0]!r}")
        return [scope[item.name] for item in graph.output]

    def _node(self, proto: Any, scope: Scope, hints: Mapping[str, Any]) -> None:
        try:
            operands = [scope[name] if name else None for name in proto.input]
        except KeyError as error:
            raise UsageError(f"{self.source}: no node makes {error.args[0]!r}, which {called(proto)} reads") from None
        try:
            if proto.op_type in CONTROL and domain_of(proto) == "onnx":
                made = CONTROL[proto.op_type](self, proto, operands, scope)
            else:
                made = self._made(proto, operands, hints)
        except MALFORMED as error:
            raise UsageError(
                f"{self.source}: {called(proto)} is not as ONNX defines it ({' '.join(str(error).split())})"
            ) from error
        for name, tensor in zip(proto.output, made, strict=False):
            if name:
                tensor.name = tensor.name or name
                scope[name] = tensor

    def _made(
        self, proto: Any, operands: Sequence[OnnxTensor | None], hints: Mapping[str, Any]
    ) -> Sequence[OnnxTensor]:
        """The outputs of a node, known or written."""
        if proto.op_type in ("Constant", "Shape", "Size"):
            numbers = _constant(proto, operands)
            if numbers is not None:  # the sizes of symbols are a run's
                return [replace(_known(numbers, proto.op_type == "Constant" or self.model.is_static), role="parameter")]
        op = f"{domain_of(proto)}.{proto.op_type}"
        if op not in ROWS and (body := self._body(proto, operands)) is not None:
            return self._expanded(body, proto, operands)
        attributes = {item.name: helper.get_attribute_value(item) for item in proto.attribute}
        node = Node(op, proto.name, operands, (), attributes, self.writer, self.chip, self.notes)
        node.made = self._shapes(proto, node, hints)
        if (folded := self._folded(proto, node)) is not None:
            return folded
        self.writer.module, self.writer.source = module_of(proto), called(proto)
        row, fixed = ROWS.get(op), all(t is None or t.fixed for t in operands) and op not in _EVERY_STEP
        if fixed and operands and op not in VIEWS:
            return [_weight(*one) if one else OnnxTensor((), "bool") for one in node.made]
        if row is not None:
            return [replace(tensor, fixed=fixed) for tensor in row(node)] if fixed else row(node)
        given = [i for i in range(len(operands)) if node.has(i)]
        plain = {name: value for name, value in attributes.items() if isinstance(value, (int, float))}
        outputs = node.news()
        node.run(op, [node.id(i) for i in given], [f"input{i}" for i in given], plain, outputs)
        return _in_places(node.made, node.made_of(outputs))

    def finished(self, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
        """The graph. Weights of which others were made before the step, and that nothing reads, hold nothing."""
        writer = self.writer
        touched = {i for op in writer.ops for i in (*op.inputs, *op.outputs)} | {*inputs, *outputs}
        used = {writer.values[i].storage for i in touched}
        writer.storages = [one if one.id in used else replace(one, nbytes=0) for one in writer.storages]
        weights: dict[int, int] = {}
        for i in sorted(touched):
            storage = writer.values[i].storage
            if writer.storages[storage].role == "parameter":
                weights.setdefault(storage, i)
        return writer.graph(inputs, tuple(weights.values()), outputs)

    def _body(self, proto: Any, operands: Sequence[OnnxTensor | None]) -> Any:
        """The function that ONNX defines an op by; None where it defines it by words alone."""
        try:
            schema = self._schema(proto)
        except onnx.defs.SchemaError:
            return None
        if schema.has_function:
            return schema.function_body
        if not schema.has_context_dependent_function:
            return None
        types = [b"" if t is None else _proto_type(t).SerializeToString() for t in operands]
        text = schema.get_context_dependent_function(proto.SerializeToString(), types)
        return onnx.FunctionProto.FromString(text) if text else None

    def _expanded(self, body: Any, proto: Any, operands: Sequence[OnnxTensor | None]) -> Sequence[OnnxTensor]:
        """The outputs of a node that is written as its function's nodes."""
        defaults = (item.default_value for item in self._schema(proto).attributes.values())
        given = {item.name: item for item in (*defaults, *body.attribute_proto, *proto.attribute) if item.name}
        scope = {name: t for name, t in zip(body.input, operands, strict=False) if t is not None}
        before, own = self._imports, {item.domain: item.version for item in body.opset_import}
        self._imports = {**before, **own}  # a function may be written in an older opset
        for inner in body.node:
            node = onnx.NodeProto.FromString(inner.SerializeToString())
            del node.attribute[:]
            for item in inner.attribute:
                if not item.ref_attr_name:
                    node.attribute.append(item)
                elif item.ref_attr_name in given:
                    node.attribute.add().CopyFrom(given[item.ref_attr_name])
                    node.attribute[-1].name = item.name
            node.input[:] = [name if name in scope else "" for name in node.input]
            node.name = proto.name
            self._node(node, scope, {})
        self._imports = before
        return [scope.get(name, OnnxTensor((), "bool")) for name in body.output]

    # -- shapes and numbers -------------------------------------------------------------------------------------------

    def _shapes(self, proto: Any, node: Node, hints: Mapping[str, Any]) -> list[tuple[tuple[int, ...], str] | None]:
        """Shape and dtype of each output, None of one that is unused."""
        own = SHAPES.get(node.op)
        if own is not None:
            known = own(node)
            return [known[i] if name and i < len(known) else None for i, name in enumerate(proto.output)]
        types = self._inferred(proto, node.inputs)
        found: list[tuple[tuple[int, ...], str] | None] = []
        for name in proto.output:
            shape = _shape_of(types.get(name)) or _shape_of(hints.get(name))
            if name and shape is None and (kind := _no_tensor(types.get(name))):
                raise node.wrong(f"its output {name!r} is {kind} of tensors, which is not modeled")
            if name and shape is None:
                raise node.wrong(
                    f"the shape of its output {name!r} depends on data, or is one that ONNX does not infer"
                )
            found.append(shape if name else None)
        return found

    def _schema(self, proto: Any) -> Any:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        return onnx.defs.get_schema(proto.op_type, self._imports.get(domain, 1), domain)

    def _inferred(self, proto: Any, operands: Sequence[OnnxTensor | None]) -> Mapping[str, Any]:
        try:
            schema = self._schema(proto)
        except onnx.defs.SchemaError:
            return {}
        known = {name: t for name, t in zip(proto.input, operands, strict=True) if t is not None}
        types = {name: _proto_type(t) for name, t in known.items()}
        numbers = {name: numpy_helper.from_array(t.numbers) for name, t in known.items() if t.numbers is not None}
        imports = [helper.make_opsetid(name, version) for name, version in self._imports.items()]
        try:
            return onnx.shape_inference.infer_node_outputs(schema, proto, types, numbers, opset_imports=imports)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, UnicodeDecodeError) as error:
            why = str(error).strip().splitlines()[-1]
            raise UsageError(f"{self.source}: shapes do not fit at {called(proto)}: {why}") from error

    def _folded(self, proto: Any, node: Node) -> list[OnnxTensor] | None:
        """The outputs of a node of known numbers, where they are few."""
        if node.op in _EVERY_STEP or proto.domain not in ("", "ai.onnx"):
            return None
        if any(t is not None and t.numbers is None for t in node.inputs):
            return None
        if any(made is not None and (prod(made[0]) > FOLDED or made[1] not in _FOLDING) for made in node.made):
            return None
        given = {name: t.numbers for name, t in zip(proto.input, node.inputs, strict=True) if t is not None}
        outputs = [name for name in proto.output if name]
        imports = [helper.make_opsetid("", self._imports.get("", self.model.opset))]
        alone = helper.make_function("memwall", "alone", list(given), outputs, [proto], imports)
        try:
            made = ReferenceEvaluator(alone).run(None, given, attributes={})
        except Exception:  # the evaluator lacks ops and forms of them; the node then runs as others do
            return None
        fixed = all(t is None or t.fixed for t in node.inputs)
        return _in_places(node.made, [_known(numbers, fixed) for numbers in made])


def _proto_type(tensor: OnnxTensor) -> Any:
    return helper.make_tensor_type_proto(ELEMENT_TYPES[tensor.dtype], tensor.shape)


#: dtypes that numpy has
_FOLDING = frozenset(("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"))


def _in_places(made: Sequence[object], tensors: Iterable[OnnxTensor]) -> list[OnnxTensor]:
    """Tensors of the outputs that are used, each in its place."""
    rest = iter(tensors)
    return [OnnxTensor((), "bool") if one is None else next(rest) for one in made]


def _constant(proto: Any, operands: Sequence[OnnxTensor | None]) -> Any:
    """The numbers that Constant, Shape and Size give; None where a constant's are not read."""
    import numpy as np

    if proto.op_type == "Constant":
        (item,) = proto.attribute
        value = helper.get_attribute_value(item)
        return numpy_helper.to_array(value) if item.name == "value" else np.array(value)
    (data,) = operands
    assert data is not None
    if proto.op_type == "Size":
        return np.array(prod(data.shape), dtype=np.int64)
    bounds = {item.name: item.i for item in proto.attribute}
    return np.array(data.shape[slice(bounds.get("start", 0), bounds.get("end"))], dtype=np.int64)


def _known(numbers: Any, fixed: bool) -> OnnxTensor:
    import numpy as np

    numbers = np.asarray(numbers)
    dtype = DTYPES.get(helper.np_dtype_to_tensor_dtype(numbers.dtype))
    if dtype is None:
        raise UsageError("a constant of the file is text, which is not modeled")
    return OnnxTensor(tuple(numbers.shape), dtype, numbers=numbers, fixed=fixed)


def _initializer(item: Any) -> OnnxTensor:
    """A weight; its numbers only where they are few and in the file."""
    shape, dtype = tuple(item.dims), DTYPES.get(item.data_type, "")
    if not dtype:
        raise UsageError(f"the initializer {item.name!r} has no dtype that is modeled")
    inside = item.data_location != onnx.TensorProto.EXTERNAL
    few = inside and dtype in _FOLDING and prod(shape) <= (_FACTORS if "float" in dtype else FOLDED)
    try:
        numbers = numpy_helper.to_array(item) if few else None
    except ValueError:  # weights that were stripped from the file
        numbers = None
    return replace(_weight(shape, dtype), name=item.name, numbers=numbers)


def _weight(shape: tuple[int, ...], dtype: str) -> OnnxTensor:
    return OnnxTensor(shape, dtype, role="parameter", fixed=True)


def _shape_of(kind: Any) -> tuple[tuple[int, ...], str] | None:
    """Shape and dtype of a type whose sizes are all known."""
    if kind is None or not kind.tensor_type.HasField("shape") or kind.tensor_type.elem_type not in DTYPES:
        return None
    axes = kind.tensor_type.shape.dim
    if any(axis.WhichOneof("value") != "dim_value" for axis in axes):
        return None
    return tuple(axis.dim_value for axis in axes), DTYPES[kind.tensor_type.elem_type]


def _no_tensor(kind: Any) -> str:
    """What a type is that holds tensors; empty of a tensor's own."""
    said = "" if kind is None else kind.WhichOneof("value") or ""
    return {"sequence_type": "a sequence", "optional_type": "an optional", "map_type": "a map"}.get(said, "")


def module_of(proto: Any) -> str:
    """The module that a node's name or its exporter's notes say: ``/layers.0/attn/MatMul`` is of ``layers.0.attn``."""
    for item in proto.metadata_props:
        if item.key == "pkg.torch.onnx.name_scopes":  # "['', 'layers.0', 'layers.0.attn', 'linear']"
            scopes = [part.strip().strip("'\"") for part in item.value.strip("[]").split(",")]
            return scopes[-2] if len(scopes) > 1 else ""
    place, slash, _ = proto.name.rpartition("/")
    return place.strip("/").replace("/", ".") if slash else ""
