"""Scaled dot-product attention: one traced op, whose kernels are chosen per GPU.

A trace records each call as ``aten.scaled_dot_product_attention`` (and ``..._backward``), and for each kind of call
what every backend launches that some GPU would take. :class:`AttentionGraph` has both; :meth:`AttentionGraph.lower`
gives the graph of one choice, without torch.

The choice is that of torch's ``ATen/native/transformers/cuda/sdp_utils.cpp``: the first backend, in the order of the
version of torch on the chip or in the one that the model set (``sdpa_kernel``, ``enable_flash_sdp``), that takes the
call there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value
from memwall.hardware.chips import CHIPS, Chip
from memwall.hardware.torch_versions import BACKENDS, TorchVersion

FORWARD, BACKWARD = "aten.scaled_dot_product_attention", "aten.scaled_dot_product_attention_backward"
#: torch's order, which a trace finds where the model sets none; a call that was made under another one, or with some of
#: them alone, has that as its attribute ``order``
ORDER = ("flash", "efficient", "math", "cudnn")
#: a chip of each generation by the backend that it prefers, for traces of no particular GPU
GENERATIONS: Mapping[str, Chip] = {
    "cudnn": CHIPS["sm_90"], "flash": CHIPS["sm_80"], "efficient": CHIPS["sm_70"], "math": CHIPS["gfx908"],
}  # fmt: skip


def runs_on(chip: Chip) -> tuple[str, ...]:
    """The attention kernels that torch has on a chip."""
    fused = {"flash": ("flash", "efficient"), "efficient": ("efficient",), "math": ()}[chip.attention]
    return (*("cudnn",) * (chip.attention == "flash" and chip.warp_size == 32), *fused, "math")


class Backends(NamedTuple):
    """What decides between backends besides the call: the chip, the version of torch, and the backend that the user
    names for every GPU, empty: none."""

    chip: Chip
    torch: TorchVersion
    preferred: str = ""

    @property
    def order(self) -> tuple[str, ...]:
        """The backends that torch tries, in order."""
        return BACKENDS if self.torch.prefers_cudnn and self.chip.cudnn_first else ORDER

    @property
    def label(self) -> str:
        """What a graph of these kernels is called: the backend that comes first."""
        return self.preferred or next(name for name in self.order if name in runs_on(self.chip))

    def ordered(self, given: Sequence[str]) -> list[str]:
        """The backends that a call tries, of those that its model allows; the user's backend and what comes after it
        where the model allows any of these."""
        default = tuple(name for name in ORDER if name in given) == tuple(given)
        names = [name for name in self.order if name in given] if default else list(given)
        if not self.preferred:
            return names
        kept = BACKENDS[BACKENDS.index(self.preferred) :]
        return sorted((name for name in names if name in kept), key=kept.index) or names


_HALF = ("float16", "bfloat16")
#: chips on which flash attention has no backward for heads of 193 to 224, nor above with dropout
_SMALL_SHARED = (CHIPS["sm_86"], CHIPS["sm_89"], CHIPS["sm_120"])


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call: its tensors by argument, and what else decides: ``dropout_p``, ``is_causal``, ``enable_gqa``,
    ``gradients`` (the inputs that require one), ``order``."""

    tensors: Mapping[str, TensorSpec]
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, graph: Graph, op: Op) -> AttentionCall:
        """The call that a traced op is."""
        return cls(dict(zip(op.arguments, graph.specs(op.inputs), strict=True)), op.attributes)

    def backend(self, backends: Backends) -> str:
        """The backend that the call runs in.

        Raises:
            UsageError: the model allows none that runs there.
        """
        given, chip = self.attributes.get("order", ORDER), backends.chip
        found = next((n for n in backends.ordered(given) if n == "math" or _TAKES[n](self, backends)), None)
        if found is None:
            raise UsageError(
                f"the model allows only {', '.join(given) or 'no'} attention (sdpa_kernel or enable_*_sdp), and "
                f"{chip.architecture or 'this GPU'} has no such kernel for its call; allow math too"
            )
        return found

    def backends(self, torch: TorchVersion, preferred: str = "") -> tuple[str, ...]:
        """What some chip takes, each once."""
        found = {}
        for chip in CHIPS.values():
            try:
                found[self.backend(Backends(chip, torch, preferred))] = True
            except UsageError:
                continue
        return tuple(found)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        query, key, value = (self.tensors[name].shape[-1] for name in ("query", "key", "value"))
        return query, key, value

    @property
    def _is_plain(self) -> bool:
        """Dense [batch, heads, length, size] of one dtype, of any length but 0, the last axis contiguous."""
        query, key, value = (self.tensors[name] for name in ("query", "key", "value"))
        return (
            all(len(t.shape) == 4 and (t.strides[-1] == 1 or t.shape[-1] == 1) for t in (query, key, value))
            and query.shape[2] * key.shape[2] > 0
            and query.dtype == key.dtype == value.dtype
            and query.shape[0] == key.shape[0] == value.shape[0]
        )

    @property
    def _has_equal_heads(self) -> bool:
        return self.tensors["query"].shape[1] == self.tensors["key"].shape[1] == self.tensors["value"].shape[1]

    def _flash(self, backends: Backends) -> bool:
        chip = backends.chip
        query, key, value = self._sizes
        causal, dropped = self.attributes.get("is_causal"), self.attributes.get("dropout_p", 0) > 0
        lengths = (self.tensors["query"].shape[-2], self.tensors["key"].shape[-2])
        no_backward = chip in _SMALL_SHARED and (192 < query <= 224 or (query > 224 and dropped))
        return (
            chip.attention == "flash"
            and self._is_plain
            and self.tensors["query"].dtype in _HALF
            and "attn_bias" not in self.tensors
            and query == key == value <= _flash_limit(chip)
            and (self._has_equal_heads or bool(self.attributes.get("enable_gqa")))
            and not (causal and lengths[0] != lengths[1])
            and not (no_backward and bool(self.attributes.get("gradients")))
        )

    def _efficient(self, backends: Backends) -> bool:
        chip = backends.chip
        query, key, value = self._sizes
        dtype, unit = self.tensors["query"].dtype, _alignment(self.tensors["query"].dtype, chip)
        return (
            chip.attention != "math"
            and self._is_plain
            and self._has_equal_heads
            and dtype in ("float16", "float32", *(["bfloat16"] if chip.attention == "flash" else ()))
            and query == key
            and query % unit == value % unit == 0
        )

    def _cudnn(self, backends: Backends) -> bool:
        lengths, dropout_p = [self.tensors[name].shape[-2] for name in ("query", "key")], self.attributes["dropout_p"]
        drops = dropout_p * 16 == int(dropout_p * 16) and lengths[0] != 1
        drops = drops and not (9, 11, 0) < backends.torch.cudnn < (9, 14, 0)
        return (
            "cudnn" in runs_on(backends.chip)
            and self._is_plain
            and self.tensors["query"].dtype in _HALF
            and self._cudnn_takes_heads(backends)
            and lengths[1] != 1
            and (drops or not dropout_p)
            and (self._has_equal_heads or bool(self.attributes.get("enable_gqa")))
        )

    def _cudnn_takes_heads(self, backends: Backends) -> bool:
        """Heads of up to 128; on compute capability 9.0 and 10.x also of 192 with values of 128, and with the latest
        up to 256, in training these sizes alone (``check_cudnn_tensor_shapes``, ``check_cudnn_d256_bprop_head_dim``).
        """
        query, _, value = sizes = self._sizes
        cudnn, wide = backends.torch.cudnn, backends.chip.cudnn_first
        most = 128
        if wide and cudnn > (9, 22, 0):
            most = 256
        elif wide and cudnn >= (9, 11, 0) and (query, value) == (192, 128):
            most = 192
        trained = max(sizes) <= 128 or (query, value) in ((192, 128), (256, 256))
        return (
            max(sizes) <= most and not any(s % 8 for s in sizes) and (trained or not self.attributes.get("gradients"))
        )


_TAKES = {
    "flash": AttentionCall._flash,
    "efficient": AttentionCall._efficient,
    "cudnn": AttentionCall._cudnn,
    "overrideable": lambda *_: False,
}


def _flash_limit(chip: Chip) -> int:
    """The widest head; AOTriton's on AMD."""
    return 256 if chip.warp_size == 32 else 512


def _alignment(dtype: str, chip: Chip) -> int:
    """What the memory-efficient kernel wants the head sizes to be a multiple of (``minimum_gemm_alignment``)."""
    half, ampere = dtype in _HALF, chip.attention == "flash"
    has_tensor_cores = chip.architecture != "pascal"
    return (8 if has_tensor_cores else 1) if half else (4 if ampere else 1)


def not_run_by(graph: Graph, chip: Chip) -> tuple[str, ...]:
    """The attention kernels of a graph that a chip has not, as ``flash`` or ``efficient``."""
    wanted = dict.fromkeys(
        name for op in graph.ops if op.op_class == "attention" for name in ORDER if f"_{name}_attention" in op.name
    )
    return tuple(name for name in wanted if name not in runs_on(chip))


# -- the choice, lowered -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionKind:
    """Calls that are alike: the first forward op and its backward op in the traced graph, and what each backend
    launches: a graph from the call's inputs and its gradient to its result and the gradients of its inputs."""

    op: int
    backward: int | None
    forms: Mapping[str, Graph]


@dataclass(frozen=True)
class AttentionGraph:
    """A traced graph with attention ops, and the kinds of them. ``torch`` is the version whose kernels run;
    ``preferred`` is the backend that the user chose for every GPU, empty where each GPU takes its own."""

    traced: Graph
    kinds: tuple[AttentionKind, ...]
    torch: TorchVersion
    preferred: str = ""

    def on(self, chip: Chip) -> Backends:
        """What decides on a chip."""
        return Backends(chip, self.torch, self.preferred)

    def backends(self, chip: Chip) -> tuple[str, ...]:
        """The backend of each kind on a chip; a UsageError as :meth:`AttentionCall.backend`."""
        found = [AttentionCall.of(self.traced, self.traced.ops[kind.op]).backend(self.on(chip)) for kind in self.kinds]
        return tuple(
            # a record of an older memwall holds no other form of it
            name if name in kind.forms else next(each for each in ORDER[::-1] if each in kind.forms)
            for name, kind in zip(found, self.kinds, strict=True)
        )

    @cached_property
    def calls(self) -> Mapping[int, tuple[int, int]]:
        """Attention op → the number of its kind, and its forward op."""
        graph = self.traced
        forward_of = _forward_of(graph)
        first = {of: op for op, of in reversed(forward_of.items()) if op != of}
        number_of = {_key(graph, kind.op, kind.backward): number for number, kind in enumerate(self.kinds)}
        return {op: (number_of[_key(graph, of, first.get(of))], of) for op, of in forward_of.items()}

    def lower(self, backends: Sequence[str], label: str) -> Graph:
        """The graph with the kernels of one choice; values and storages of the traced graph keep their numbers.

        Args:
            backends: that of each kind.
            label: what the choice is called, in :attr:`Graph.attention`.
        """
        key = tuple(backends), label
        if key not in self._lowered:
            self._lowered[key] = _Lowered(self, backends).graph(label)
        return self._lowered[key]

    @cached_property
    def _lowered(self) -> dict[tuple[tuple[str, ...], str], Graph]:
        return {}

    def spans(self, graph: Graph) -> Iterator[tuple[Op, int, int]]:
        """Each attention op, and the ops (from, to) that it is in a lowered graph."""
        shift = 0
        for op in self.traced.ops:
            if op.id in self.calls:
                kind = self.calls[op.id][0]
                length = len(_part(self.kinds[kind].forms[graph.backends[kind]], op.name))
                yield op, op.id + shift, op.id + shift + length
                shift += length - 1


def _forward_of(graph: Graph) -> dict[int, int]:
    """Attention op → its forward op: a backward op reads its result; of one that a hook on saved tensors has replaced,
    the last forward op that has none yet."""
    found: dict[int, int] = {}
    made: dict[int, int] = {}
    for op in graph.ops:
        if op.name == FORWARD:
            found[op.id] = made[graph.values[op.outputs[0]].storage] = op.id
        elif op.name == BACKWARD:
            out = graph.values[op.inputs[op.arguments.index("out")]].storage
            found[op.id] = made[out] if out in made else _last_without_backward(found)
    return found


def _last_without_backward(forward_of: Mapping[int, int]) -> int:
    done = {of for op, of in forward_of.items() if op != of}
    return max(of for of in forward_of.values() if of not in done)


def _key(graph: Graph, *ops: int | None) -> tuple[Any, ...]:
    """What calls of one kind share: arguments, attributes and the specs of their tensors."""
    called = [graph.ops[number] for number in ops if number is not None]
    return tuple([(o.arguments, repr(o.attributes), graph.specs(o.inputs), graph.specs(o.outputs)) for o in called])


def kinds_of(graph: Graph) -> list[tuple[int, int | None]]:
    """The first forward op of each kind, and its first backward op if it has one."""
    forward_of = _forward_of(graph)
    first = {of: op for op, of in reversed(forward_of.items()) if op != of}
    found: dict[tuple[Any, ...], tuple[int, int | None]] = {}
    for of in dict.fromkeys(forward_of.values()):
        found.setdefault(_key(graph, of, first.get(of)), (of, first.get(of)))
    return list(found.values())


def _part(form: Graph, name: str) -> list[Op]:
    phase = "forward" if name == FORWARD else "backward"
    return [op for op in form.ops if op.phase == phase]


class _Lowered:
    """A graph while its attention ops are replaced."""

    def __init__(self, attention: AttentionGraph, backends: Sequence[str]) -> None:
        self.attention, self.backends, self.traced = attention, tuple(backends), attention.traced
        self.forms = [kind.forms[name] for kind, name in zip(attention.kinds, backends, strict=True)]
        self.parts = {(i, n): _part(form, n) for i, form in enumerate(self.forms) for n in (FORWARD, BACKWARD)}
        self.values, self.storages = list(self.traced.values), list(self.traced.storages)
        calls = [self.traced.ops[number] for number in attention.calls]
        touched = {self.values[i].storage for op in calls for i in (*op.inputs, *op.outputs)}
        self.numbers = {(v.storage, v.offset, v.spec): v.id for v in self.values if v.storage in touched}
        self.ops: list[Op] = []
        #: forward op → storage of its form → (storage, elements from there to here)
        self.bound: dict[int, dict[int, tuple[int, int]]] = {}

    def graph(self, label: str) -> Graph:
        free_calls = Counter(self.traced.free_calls)
        ends: list[int] = []  # the last op here of each traced one
        for op in self.traced.ops:
            kind, of = self.attention.calls.get(op.id, (None, op.id))
            waits = tuple([ends[number] for number in op.waits])
            if kind is None:
                same = op.id == len(self.ops) and op.waits == waits
                self.ops.append(op if same else replace(op, id=len(self.ops), waits=waits))
            else:
                if op.id == of:
                    free_calls.update(self.forms[kind].free_calls)
                self._splice(replace(op, waits=waits), of, self.forms[kind], self.parts[kind, op.name])
            ends.append(len(self.ops) - 1)
        return replace(
            self.traced,
            values=tuple(self.values),
            storages=tuple(self.storages),
            ops=tuple(self.ops),
            free_calls=dict(free_calls),
            attention=label,
            backends=self.backends,
        )

    def _splice(self, op: Op, of: int, form: Graph, part: Sequence[Op]) -> None:
        bound = self.bound.setdefault(of, {})
        given = len(self.traced.ops[of].inputs)
        if op.name == FORWARD:
            pairs = [*zip(form.inputs[:given], op.inputs, strict=True), (form.outputs[0], op.outputs[0])]
        else:  # a hook on saved tensors may hand back others than forward had
            kept = dict(zip(op.arguments, op.inputs, strict=True))
            names = self.traced.ops[of].arguments
            pairs = [(form.inputs[i], kept[name]) for i, name in enumerate(names) if name in kept]
            pairs += [(form.inputs[given], kept["grad_out"]), (form.outputs[0], kept["out"])]
            pairs += zip(form.outputs[1:], op.outputs, strict=True)
        for inner, outer in pairs:
            value = self.traced.values[outer]
            bound[form.values[inner].storage] = value.storage, value.offset - form.values[inner].offset
        for step in part:
            self.ops.append(
                Op(
                    len(self.ops),
                    step.name,
                    step.op_class,
                    op.phase,
                    op.module,
                    tuple([self._value(form, i, bound) for i in step.inputs]),
                    tuple([self._value(form, i, bound) for i in step.outputs]),
                    step.arguments,
                    step.attributes,
                    op.source,
                    op.stream,
                    op.waits if step is part[0] else (),
                    op.again,
                )
            )

    def _value(self, form: Graph, number: int, bound: dict[int, tuple[int, int]]) -> int:
        value = form.values[number]
        if value.storage not in bound:
            bound[value.storage] = len(self.storages), 0
            self.storages.append(Storage(len(self.storages), form.storages[value.storage].nbytes, "activation"))
        storage, shift = bound[value.storage]
        key = (storage, value.offset + shift, value.spec)
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.values)
            self.values.append(Value(known, value.spec, storage, value.offset + shift))
        return known
