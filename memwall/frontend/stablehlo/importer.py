"""A module of StableHLO → what a :class:`memwall.frontend.writing.GraphWriter` holds.

- Calls are entered. ``while`` is written out for as many trips as its counter has, which is followed as a number; one
  whose condition depends on data is written once. ``case`` and ``if`` take the branch that is known, else the one with
  most work.
- Splat constants and what is computed from them alone are numbers in the program, not arrays; others are weights.
- In a loop ``dynamic_update_slice`` writes into its operand, as XLA's buffer assignment lets it.
- A custom call is kept under its target's name and charged its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxlib.mlir import ir

from memwall.core.errors import MALFORMED, UsageError
from memwall.core.graph import Graph
from memwall.core.ranks import ranks_text
from memwall.frontend.hlo.names import known_call
from memwall.frontend.hlo.rules import MESSAGES
from memwall.frontend.hlo.scalars import folded
from memwall.frontend.jax.jaxprs import OPERANDS
from memwall.frontend.jax.views import VIEWS, View, sliced
from memwall.frontend.stablehlo import attributes as tables
from memwall.frontend.stablehlo.places import Places
from memwall.frontend.writing import GraphWriter


@dataclass(slots=True)
class Held:
    """A value of the program: its id in the graph, None where it is a number (or the same number everywhere), and that
    number where it is known."""

    value: int | None
    number: float | None = None


class StablehloImporter:
    """Writes a module's main function; ``notes`` are lines for every page of the profile."""

    def __init__(self, module: Any, source: str, max_ops: int) -> None:
        self.source = source
        self.writer = GraphWriter(max_ops)
        self.notes: dict[str, None] = {}
        self.places = Places()
        self.parameters: list[int] = []
        self._module = module  # which keeps alive what its operations refer to
        self._functions = {
            tables.said(each.operation, "sym_name"): each.operation
            for each in module.body.operations
            if "sym_name" in each.operation.attributes
        }
        self._entered: list[str] = []  # functions around an operation
        self._loops = 0

    def graph(self) -> Graph:
        """The graph of the main function. Raises ``UsageError``: no main function, or unknown sizes."""
        main = self._functions.get("main") or next((f for f in self._functions.values() if f.name == "func.func"), None)
        if main is None or not main.regions[0].blocks:
            raise UsageError(f"{self.source} has no function")
        given, inputs = list[Held](), list[int]()
        arguments, said = main.regions[0].blocks[0].arguments, main.attributes.get("arg_attrs") or ()
        of_export = {i for i, each in enumerate(said) if "jax.global_constant" in each}  # which of its platforms runs
        names = [self.places.name(argument.location) for argument in arguments]
        devices = tables.said(self._module.operation, "mhlo.num_partitions", 1)
        if devices > 1:
            self.notes[f"the module is for {devices} devices: arrays that a compiler would divide are whole here"] = (
                None
            )
        first = next((name for i, name in enumerate(names) if i not in of_export), "")
        tree = first.partition("[")[0].partition(".")[0] if {*"[."} & {*first} else None
        for i, (name, argument) in enumerate(zip(names, arguments, strict=True)):
            if i in of_export:
                given.append(Held(None, 0.0))
                continue
            of_weights = tree is not None and name.startswith((f"{tree}[", f"{tree}."))
            value = self.writer.array(*self._type(argument.type), "parameter" if of_weights else "input", name)
            (self.parameters if of_weights else inputs).append(value)
            given.append(Held(value))
        made = self._region(main.regions[0], given, {})
        outputs = [self._placed(one, *self._type(kind)) for one, kind in zip(made, self._results(main), strict=True)]
        return self.writer.graph(inputs, tuple(self.parameters), tuple(dict.fromkeys(outputs)), one_program=True)

    @staticmethod
    def _results(function: Any) -> Sequence[Any]:
        found: Sequence[Any] = ir.FunctionType(function.attributes["function_type"].value).results
        return found

    def _type(self, kind: Any) -> tuple[tuple[int, ...], str]:
        if not isinstance(kind, ir.RankedTensorType):
            return (0,), "bool"  # a token
        shape = tuple(kind.shape)
        dtype = tables.DTYPES.get(str(kind.element_type))
        if not kind.has_static_shape:
            raise UsageError(f"{self.source} has sizes that depend on its inputs ({kind}); export it for their shapes")
        if dtype is None:
            raise UsageError(f"{self.source}: the element type {kind.element_type} is not modeled")
        return shape, dtype

    # -- values -------------------------------------------------------------------------------------------------------

    def _placed(self, held: Held, shape: tuple[int, ...], dtype: str) -> int:
        """The value's id; a number that a kernel or the caller takes as an array is written first."""
        if held.value is None:
            held.value = self.writer.array(shape, dtype)
            self.writer.op("lax.full", (), (held.value,), attributes={"shape": list(shape)})
        return held.value

    def _new(self, kind: Any) -> Held:
        return Held(self.writer.array(*self._type(kind)))

    # -- regions and calls --------------------------------------------------------------------------------------------

    def _region(self, region: Any, given: Sequence[Held], outside: Mapping[Any, Held]) -> list[Held]:
        """What a region returns for some arguments."""
        if len(region.blocks) != 1:
            raise UsageError(f"{self.source} jumps between blocks, which is not modeled: StableHLO has while and case")
        (block,) = region.blocks
        values = {**outside, **dict(zip(block.arguments, given, strict=True))}
        for each in block.operations:
            op = each.operation
            if op.name.endswith(".return"):
                return [values[operand] for operand in op.operands]
            operands = [values[operand] for operand in op.operands]
            try:
                with self.places.at(self.writer, op.location):
                    made = self._operation(op, operands, values)
            except MALFORMED as error:
                raise UsageError(
                    f"{self.source}: {op.name} is not as StableHLO defines it ({' '.join(str(error).split())})"
                ) from error
            values.update(zip(op.results, made, strict=True))
        return []

    def _operation(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        dialect, _, name = op.name.partition(".")
        if dialect not in _DIALECTS:
            return self._op(op.name, op, operands, {})
        if special := _SPECIAL.get(name):
            return special(self, op, operands, values)
        if name in tables.COLLECTIVES:
            return self._message(name, op, operands)
        if name in tables.FREE:
            self.writer.free(f"lax.{name}")
            return [*operands, *(Held(None) for _ in op.results)][: len(op.results)]
        known = tables.OPERATIONS.get(name)
        if known is None:
            return self._op(f"{dialect}.{name}", op, operands, {})
        primitive, parameters = known
        return self._primitive(primitive, op, operands, parameters(op))

    def _primitive(self, primitive: str, op: Any, operands: list[Held], said: dict[str, Any]) -> list[Held]:
        """A primitive: a number, a view or an op."""
        shape = self._type(op.results[0].type)[0]
        if operands and all(each.value is None for each in operands) and len(op.results) == 1:
            numbers = [each.number for each in operands]
            return [Held(None, numbers[0] if primitive in _PASSED else folded(primitive, numbers))]
        if operands and (see := VIEWS.get(primitive)) is not None and operands[0].value is not None:
            if primitive == "broadcast_in_dim" and prod(shape) == 1:
                see = VIEWS["reshape"]
            view = see(self.writer.spec(operands[0].value), said, shape)
            if view is not None:
                return [self._view(primitive, operands[0].value, view)]
        return self._op(f"lax.{primitive}", op, operands, said)

    def _view(self, primitive: str, source: int, view: View) -> Held:
        said = {"view": list(view.shape)}
        self.writer.op(f"lax.{primitive}", (source,), (), arguments=("operand",), attributes=said)
        return Held(self.writer.view(source, *view))

    def _op(self, name: str, op: Any, operands: Sequence[Held], said: dict[str, Any], used: bool = False) -> list[Held]:
        """An op on the operands that are arrays, into new ones of all results, or of the ``used`` ones."""
        primitive = name.partition(".")[2]
        if primitive in _ON_ARRAYS:
            for each, operand in zip(operands, op.operands, strict=False):
                self._placed(each, *self._type(operand.type))
        names = OPERANDS.get(primitive, ())
        given = [(i, each.value) for i, each in enumerate(operands) if each.value is not None]
        arguments = [names[i] if i < len(names) else "xyz"[i] if i < 3 else f"x{i}" for i, _ in given]
        made = [Held(None) if used and not any(result.uses) else self._new(result.type) for result in op.results]
        outputs = [each.value for each in made if each.value is not None]
        self.writer.op(name, [value for _, value in given], outputs, arguments=arguments, attributes=said)
        return made

    # -- operations with a rule of their own --------------------------------------------------------------------------

    def _constant(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        shape, dtype = self._type(op.results[0].type)
        if prod(shape) <= 1 or _is_splat(op):
            return [Held(None, _number(op) if "complex" not in dtype else None)]
        role = "parameter" if "float" in dtype else "buffer"
        value = self.writer.array(shape, dtype, role, f"constant.{len(self.writer.storages)}")
        if role == "parameter":
            self.parameters.append(value)
        return [Held(value)]

    def _call(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        name = tables.said(op, "callee") or tables.said(op, "decomposition")
        if name in self._entered:
            raise UsageError(f"{self.source}: the function {name} calls itself")
        self._entered.append(name)
        self.writer.trip()
        made = self._region(self._functions[name].regions[0], operands, {})
        self._entered.pop()
        return made

    def _composite(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        """A call with a name: of an operation that is known under it, else of what it is made of."""
        name = tables.said(op, "name").rpartition(".")[2]
        if name == "top_k":
            held = op.attributes["composite_attributes"]
            return self._op("lax.top_k", op, operands, {"k": held["k"].value})
        if name in tables.OPERATIONS and len(op.operands) <= 2:
            return self._primitive(tables.OPERATIONS[name][0], op, operands, {})
        return self._call(op, operands, values)

    def _compare(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        return self._primitive(tables.said(op, "comparison_direction").lower(), op, operands, {})

    def _reduce(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        primitive, said = tables.reduction_of(op), {"axes": tables.said(op, "dimensions")}
        arrays = operands[: len(op.results)]
        if all(each.value is None for each in arrays):
            return [Held(None) for _ in op.results]
        if primitive in ("argmax", "argmin"):  # of the second operand, which counts places, a kernel reads nothing
            arrays = arrays[:1]
        return self._op(f"lax.{primitive}", op, arrays, said, used=len(op.results) > 1)

    def _window(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        primitive, said = tables.window_of(op)
        return self._op(f"lax.{primitive}", op, operands[: len(op.results)], said)

    def _scatter(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        return self._op(f"lax.{tables.scatter_of(op)}", op, operands, {})

    def _select_and_scatter(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        return self._op("lax.select_and_scatter_add", op, [operands[1], operands[0]], {})

    def _message(self, name: str, op: Any, operands: list[Held]) -> list[Held]:
        """A collective, of the ranks of the first group."""
        groups = tables.said(op, "replica_groups") or tables.said(op, "source_target_pairs") or [[0]]
        said = {"ranks": len(groups[0]), "group": ranks_text(groups[0])}
        given = [
            self._placed(each, *self._type(operand.type)) for each, operand in zip(operands, op.operands, strict=True)
        ]
        made = [self._new(result.type) for result in op.results]
        outputs = [each.value for each in made if each.value is not None]
        self.writer.op(MESSAGES[name], given, outputs, arguments=["input"] * len(given), attributes=said)
        return made

    def _manual(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        """``sdy.manual_computation`` (``shard_map``): one device's part of each operand, and of each result."""
        (block,) = op.regions[0].blocks
        parts = []
        for held, argument in zip(operands, block.arguments, strict=True):
            shape = self._type(argument.type)[0]
            if held.value is None or self.writer.spec(held.value).shape == shape:
                parts.append(held)
            else:
                parts.append(Held(self.writer.view(held.value, shape, self.writer.spec(held.value).strides)))
        return self._region(op.regions[0], parts, values)

    def _custom(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        target = tables.said(op, "call_target_name")
        if target in tables.FREE_CALLS:
            self.writer.free(f"lax.{target}")
            return operands[: len(op.results)]
        if primitive := known_call(target):
            return self._op(f"lax.{primitive}", op, operands, {})
        return self._op(f"custom_call.{target.replace('.', '_')}", op, operands, {})

    def _take(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        """``dynamic_slice``: from the places that are numbers; the first part stands for one that is not known."""
        source, *starts = operands
        sizes = tables.said(op, "slice_sizes")
        if source.value is None:
            return [Held(None)]
        view = self._part(self.writer.spec(source.value).shape, sizes, starts)
        return [self._view("dynamic_slice", source.value, sliced(self.writer.spec(source.value), *view))]

    @staticmethod
    def _part(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Held]) -> tuple[list[int], list[int]]:
        """Starts and limits of a part, clamped as XLA clamps them."""
        begins = [
            min(max(int(held.number or 0), 0), whole - size)
            for held, whole, size in zip(starts, shape, sizes, strict=True)
        ]
        return begins, [begin + size for begin, size in zip(begins, sizes, strict=True)]

    def _put(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        """``dynamic_update_slice``: in a loop in place, once its operand is no array from before the step."""
        whole, update, *starts = operands
        shape, dtype = self._type(op.results[0].type)
        if not self._loops or (whole.value is not None and self._is_persistent(whole.value)):
            return self._op("lax.dynamic_update_slice", op, operands[:2], {})
        if whole.value is None:
            whole = Held(self.writer.array(shape, dtype))
        assert whole.value is not None
        spec, size = self.writer.spec(whole.value), self._type(op.operands[1].type)[0]
        place = self.writer.view(whole.value, *sliced(spec, *self._part(shape, size, starts)))
        if update.value is None:
            self.writer.op("lax.full", (), [place], attributes={"shape": list(size)})
        else:
            self.writer.op("lax.dynamic_update_slice", [update.value], [place], arguments=["update"])
        return [whole]

    def _is_persistent(self, value: int) -> bool:
        return self.writer.storages[self.writer.values[value].storage].is_persistent

    # -- loops and branches -------------------------------------------------------------------------------------------

    def _while(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        test, body = op.regions
        carried, trip = operands, 0
        self._loops += 1
        while True:
            (going,) = self._region(test, carried, values)
            if going.number is None:
                self.notes["a while loop whose trips depend on data is counted once"] = None
            elif not going.number:
                break
            self.writer.trip()
            with self.places.trip(trip):
                carried = self._region(body, carried, values)
            trip += 1
            if going.number is None:
                break
        self._loops -= 1
        return carried

    def _case(self, op: Any, operands: list[Held], values: Mapping[Any, Held]) -> list[Held]:
        index = operands[0].number
        if index is None:
            chosen = max(op.regions, key=_work_in)
            self.notes["of a conditional that depends on data the branch with most work runs"] = None
        else:
            number = int(not index) if op.name.endswith(".if") else int(index)
            chosen = op.regions[min(max(number, 0), len(op.regions) - 1)]
        return self._region(chosen, (), values)


def _work_in(region: Any) -> int:
    """Elements that the operations of a region make, also within them, with the elements that products sum over."""
    total = 0
    for each in (each.operation for block in region.blocks for each in block.operations):
        made = sum(prod(result.type.shape) for result in each.results if isinstance(result.type, ir.RankedTensorType))
        if each.name == "stablehlo.dot_general":
            (summed, _), _ = tables.OPERATIONS["dot_general"][1](each)["dimension_numbers"]
            made *= prod(each.operands[0].type.shape[axis] for axis in summed)
        total += made + sum(map(_work_in, each.regions))
    return total


def _is_splat(op: Any) -> bool:
    """Whether a constant is one number everywhere."""
    try:
        return bool(op.attributes["value"].is_splat)
    except TypeError:  # of complex numbers, whose attribute the bindings have no class for
        return "dense<(" in str(op)


def _number(op: Any) -> float | None:
    """The number of a constant that is one everywhere."""
    content = op.attributes["value"]
    if not isinstance(content, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr) or not len(content):
        return None
    item = content.get_splat_value()
    return float(item.value) if isinstance(item, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr) else None


#: dialects whose operations are known; operations of others are kept under their names
_DIALECTS = frozenset(("stablehlo", "chlo", "func", "sdy"))
#: primitives that pass a number on
_PASSED = frozenset(("reshape", "broadcast_in_dim", "slice", "transpose"))
#: primitives whose formulas need all their operands
_ON_ARRAYS = frozenset(("dot_general", "conv_general_dilated", "dynamic_update_slice", "gather", "scatter",
                        "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "sort", "top_k"))  # fmt: skip
_SPECIAL: Mapping[str, Callable[[StablehloImporter, Any, list[Held], Mapping[Any, Held]], list[Held]]] = {
    "constant": StablehloImporter._constant, "call": StablehloImporter._call,
    "composite": StablehloImporter._composite, "compare": StablehloImporter._compare,
    "reduce": StablehloImporter._reduce, "reduce_window": StablehloImporter._window,
    "scatter": StablehloImporter._scatter, "select_and_scatter": StablehloImporter._select_and_scatter,
    "custom_call": StablehloImporter._custom, "dynamic_slice": StablehloImporter._take,
    "dynamic_update_slice": StablehloImporter._put, "while": StablehloImporter._while,
    "manual_computation": StablehloImporter._manual, "case": StablehloImporter._case, "if": StablehloImporter._case,
}  # fmt: skip
