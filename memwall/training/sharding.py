"""The module of one rank of any module. Tensor parallelism: which of its linear layers are split by columns and which
by rows is found in a trace.

The split is Megatron-LM's (Shoeybi et al., 2019; Korthikanti et al., 2022). A layer is split by columns where its
result passes through element-wise ops and attention, head by head, to another linear layer. That one is split by rows
and sums the ranks' results. With sequence parallelism everything between such groups is split along the sequence. The
embedding of tokens and the head are split along the vocabulary, and so is a cross-entropy loss of the model's own. All
other layers, and heads over something else (classes of sequences), are whole on each rank, and each computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Op
from memwall.training.exchanges import become, join
from memwall.training.experts import share_experts
from memwall.training.layout import Parallelism
from memwall.training.ring import share_sequences

#: class of a linear layer -> the axes of its weight that its columns and its rows are
_AXES: Mapping[str, tuple[int, int]] = {"Linear": (0, 1), "Conv1D": (1, 0)}
#: attributes in which layers keep their width
_COLUMN_COUNTS, _ROW_COUNTS = ("out_features", "nf"), ("in_features", "nx")
#: classes of ops that work on each element, or each head, of what a layer split by columns makes
_SPLITTABLE = ("elementwise", "movement", "attention", "contraction")
#: the ops of a cross-entropy loss, which may have a share of each row
_NORMALISED, _LOSS = "aten._log_softmax", "aten.nll_loss"
#: attribute of a parameter that is a rank's share
_IS_SHARE = "_memwall_share"
#: attributes in which the modules of a group keep what each rank has a share of, as in PyTorch's tutorial on tensor
#: parallelism (``n_heads //= tp``)
_SHARED_COUNTS = (
    "num_heads", "num_kv_heads", "num_attention_heads", "num_key_value_heads", "n_heads", "n_head", "n_kv_heads",
    "n_kv_head", "nhead", "split_size", "all_head_size", "inner_dim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """The paths of the modules that are split: layers by columns, with the layer by rows that each group of them leads
    to; heads, whose results stay split, and heads with a loss in the model; embeddings of tokens. ``entry``:
    the module from whose input on sequences can be split."""

    groups: tuple[tuple[tuple[str, ...], str], ...]
    heads: tuple[str, ...] = ()
    with_loss: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    entry: str = ""


# -- finding -----------------------------------------------------------------------------------------------------------


def find_split(graph: Graph) -> Split:
    """What tensor parallelism splits in a model whose forward pass was traced."""
    walk = _SplitWalk(graph)
    for op in graph.ops:
        walk.step(op)
    return walk.split()


#: what is derived of weights, with the layers by columns whose results it has a share of; absent: inputs and constants
_Sources = frozenset[str]


@dataclass
class _SplitWalk:
    """A walk along the data of a forward pass."""

    graph: Graph
    state: dict[int, _Sources] = field(default_factory=dict)
    #: path → elements and width of its result
    made: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, _Sources] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    with_loss: set[str] = field(default_factory=set)
    #: path → rows of an embedding of tokens
    embeddings: dict[str, int] = field(default_factory=dict)
    entry: str = ""

    def step(self, op: Op) -> None:
        """Note what an op does to what is split."""
        values, storages = self.graph.values, self.graph.storages
        read = [values[i] for i in op.inputs if storages[values[i].storage].role not in ("parameter", "buffer")]
        known = [self.state[value.storage] - self.whole for value in read if value.storage in self.state]
        sources = frozenset[str]().union(*known)
        weight = self._weight(op)
        if weight and op.op_class == "contraction":
            sources = self._linear(op, weight, sources)
        elif weight and op.name.startswith("aten.embedding"):
            if any(value.storage in self._inputs for value in read):
                self.embeddings[weight] = self.graph.values[op.inputs[0]].spec.shape[0]
        elif sources and self._is_loss(op, sources):
            self.with_loss |= sources
        elif sources and (frozenset() in known or self._mixes(op, sources)):
            self.whole |= sources
            sources = frozenset()
        if known and not self.entry and op.module in self._leaves - self.embeddings.keys():
            self.entry = op.module
        if known or weight:
            self.state |= dict.fromkeys((values[i].storage for i in op.outputs), sources)

    @cached_property
    def _leaves(self) -> set[str]:
        """Modules without parts."""
        modules = {op.module for op in self.graph.ops}
        return modules - {module.rpartition(".")[0] for module in modules}

    @cached_property
    def _inputs(self) -> set[int]:
        return {self.graph.values[i].storage for i in self.graph.inputs}

    def _weight(self, op: Op) -> str:
        """The module whose matrix an op multiplies or looks up; empty: none."""
        for value in (self.graph.values[i] for i in op.inputs):
            storage = self.graph.storages[value.storage]
            if storage.role == "parameter" and len(value.spec.shape) == 2 and storage.name.endswith(".weight"):
                return op.module  # a tied weight has another's name
        return ""

    def _linear(self, op: Op, path: str, sources: _Sources) -> _Sources:
        spec = self.graph.values[op.outputs[0]].spec
        if path in self.made or path in self.rows:  # called more than once
            self.whole |= {path, *sources, *self.rows.pop(path, ())}
            return frozenset()
        if sources & self.with_loss:  # it reads probabilities
            self.whole |= sources
            sources = frozenset()
        if sources:
            self.rows[path] = sources
            return frozenset()
        self.made[path] = spec.numel, spec.shape[-1]
        return frozenset((path,))

    def _is_loss(self, op: Op, sources: _Sources) -> bool:
        """Whether an op is a part of a cross-entropy loss over the vocabulary."""
        axes = len(self.graph.values[op.inputs[0]].spec.shape)
        is_last = op.name.startswith(_NORMALISED) and op.attributes.get("dim") in (-1, axes - 1)
        return (is_last or op.name.startswith(_LOSS)) and all(map(self._is_over_vocabulary, sources))

    def _is_over_vocabulary(self, path: str) -> bool:
        """Whether a layer makes a number for each row of an embedding of tokens."""
        return self.made[path][1] in self.embeddings.values()

    def _mixes(self, op: Op, sources: _Sources) -> bool:
        """Whether an op needs whole rows of what a layer made."""
        if op.op_class in _SPLITTABLE:
            return False
        specs = self.graph.specs(op.inputs)
        return any(
            (spec.numel, spec.shape[-1:]) == (self.made[path][0], (self.made[path][1],))
            for spec in specs
            for path in sources
        )

    def split(self) -> Split:
        """The groups that nothing stands against."""
        rows = {row: columns for row, columns in self.rows.items() if not self._is_of_some(row, columns)}
        while broken := [row for row, columns in rows.items() if columns & self.whole]:
            for row in broken:
                self.whole |= rows.pop(row)
        given = [self.state.get(self.graph.values[i].storage, frozenset()) for i in self.graph.outputs]
        led = frozenset[str]().union(*rows.values())
        ends = (path for sources in given for path in sources - led - self.whole)
        heads = dict.fromkeys(filter(self._is_over_vocabulary, ends))
        losses = tuple(path for path in heads if path in self.with_loss)
        return Split(
            tuple((tuple(sorted(columns)), row) for row, columns in rows.items()),
            tuple(heads),
            losses,
            tuple(self.embeddings),
            _of_block(self.entry),
        )

    def _is_of_some(self, row: str, columns: _Sources) -> bool:
        """Whether a group outside the repeated blocks reads fewer tokens than others: a pooler with its classes."""
        most = max(numel // width for numel, width in self.made.values())
        return _number(row) < 0 and any(self.made[path][0] // self.made[path][1] < most for path in columns)


# -- splitting ---------------------------------------------------------------------------------------------------------


def split_module(module: nn.Module, split: Split, layout: Parallelism) -> nn.Module:
    """The module of one rank, changed in place; its process groups are made anew, so that a trace of it has fake ones.

    Raises:
        UsageError: the model has nothing to split, or what the layout does not divide; names the layer.
    """
    if layout.traced == Parallelism():
        return module
    if layout.tp > 1 and not split.groups:
        raise UsageError(
            f"tp={layout.tp}: no linear layer of {type(module).__name__} leads to another by element-wise ops or"
            " attention alone, so there is nothing to split: use dp, fsdp or pp"
        )
    join(layout)
    if layout.ep > 1:
        share_experts(module, layout.ep)
    if layout.tp > 1:
        _split_products(module, split, layout.tp, layout.sp)
    if layout.cp > 1:
        share_sequences(module)
    return module


def _split_products(module: nn.Module, split: Split, tp: int, sequence: bool) -> None:
    narrow = _Narrow(tp)
    for columns, row in split.groups:
        region = _region(columns)
        gathers = sequence and region is not None
        for path in columns:
            narrow.columns(module, path, "" if gathers else "gather" if sequence else "copy")
        narrow.rows(module, row, "scatter" if sequence else "reduce")
        _share_counts(module.get_submodule(_common((*columns, row))), tp)
        if gathers and region is not None:
            become(module.get_submodule(region), "region")
    for path in split.heads:
        layer: Any = module.get_submodule(path)
        classes = layer.weight.shape[_axes(layer, path)[0]]
        gathers = sequence and path not in split.with_loss
        narrow.columns(module, path, "gather" if gathers else "copy", pads=True)
        if path in split.with_loss:
            become(layer, "loss")
            _share_classes(module, classes, tp)
    for path in split.embeddings:
        narrow.vocabulary(module, path)
    if sequence:
        become(module.get_submodule(split.entry), "entry")
        if set(split.heads) <= set(split.with_loss):  # what a model with a loss does between is of whole sequences
            become(module.get_submodule(_of_block(max((row for _, row in split.groups), key=_number))), "exit")


def heads_of(module: nn.Module) -> dict[str, int]:
    """What a model's configuration says of its heads, by name."""
    config: Any = getattr(module, "config", None)
    config = getattr(config, "text_config", config)
    counts = {name: getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    return {name: count for name, count in counts.items() if type(count) is int}


def shares_of(module: nn.Module) -> list[str]:
    """The names of the parameters of which a rank's module has a share."""
    named = module.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if getattr(parameter, _IS_SHARE, False)]


class _Narrow:
    """Gives modules their rank's share of each weight; tied ones stay tied."""

    def __init__(self, tp: int) -> None:
        self.tp = tp
        #: whole weight and axis -> the share, with the whole one, so that no other gets its id
        self._shares: dict[tuple[int, int], tuple[nn.Parameter, nn.Parameter]] = {}

    def columns(self, root: nn.Module, path: str, way: str, pads: bool = False) -> None:
        layer = root.get_submodule(path)
        axis = _axes(layer, path)[0]
        self._share(layer, "weight", axis, path, pads)
        _count(layer, _COLUMN_COUNTS, layer.weight.shape[axis])  # type: ignore[index]
        if getattr(layer, "bias", None) is not None:
            self._share(layer, "bias", 0, path, pads)
        become(layer, way)

    def rows(self, root: nn.Module, path: str, way: str) -> None:
        layer = root.get_submodule(path)
        axis = _axes(layer, path)[1]
        self._share(layer, "weight", axis, path)
        _count(layer, _ROW_COUNTS, layer.weight.shape[axis])  # type: ignore[index]
        become(layer, way)

    def vocabulary(self, root: nn.Module, path: str) -> None:
        layer = root.get_submodule(path)
        shared = [part for part in root.modules() if part is not layer and getattr(part, "weight", 0) is layer.weight]
        if all((id(layer.weight), 0) in self._shares for _ in shared):  # else a whole layer has the same weight
            self._share(layer, "weight", 0, path, pads=True)
            become(layer, "look up")

    def _share(self, layer: nn.Module, name: str, axis: int, path: str, pads: bool = False) -> None:
        """``pads``: the last rank's share is filled up, as Megatron-LM does with vocabularies."""
        whole: Any = getattr(layer, name)
        if (id(whole), axis) not in self._shares:
            if whole.shape[axis] % self.tp and not pads:
                raise UsageError(f"tp={self.tp} does not divide the {whole.shape[axis]:,} of {path}.{name}")
            part = whole.detach().narrow(axis, 0, -(-whole.shape[axis] // self.tp)).clone()
            share = nn.Parameter(part, whole.requires_grad)
            setattr(share, _IS_SHARE, True)
            self._shares[id(whole), axis] = share, whole
        setattr(layer, name, self._shares[id(whole), axis][0])


def _share_classes(module: nn.Module, classes: int, tp: int) -> None:
    """Divide what configurations count of the vocabulary, by which a loss flattens its logits; they may be others' too,
    and are copied."""
    #: with the whole one, so that no other gets its id
    known: dict[int, tuple[Any, Any]] = {}

    def shared(config: Any) -> Any:
        if id(config) not in known:
            made = copy(config)
            known[id(config)] = config, made
            if getattr(made, "vocab_size", None) == classes:
                made.vocab_size = -(-classes // tp)
            if hasattr(made, "text_config"):
                made.text_config = shared(made.text_config)
        return known[id(config)][1]

    part: Any
    for part in module.modules():
        if "config" in part.__dict__:
            part.config = shared(part.config)
        if part.__dict__.get("vocab_size") == classes:
            part.vocab_size = -(-classes // tp)


def _count(layer: nn.Module, names: Iterable[str], size: Any) -> None:
    for name in names:
        if name in layer.__dict__:
            setattr(layer, name, int(size))


def _axes(layer: nn.Module, path: str) -> tuple[int, int]:
    for kind in type(layer).__mro__:
        if kind.__name__ in _AXES:
            return _AXES[kind.__name__]
    raise UsageError(f"tensor parallelism splits linear layers, and {path} is a {type(layer).__name__}")


def _common(paths: Iterable[str]) -> str:
    """The innermost module that has all of these."""
    parts = [path.split(".")[:-1] for path in paths]
    same = next((i for i, names in enumerate(zip(*parts, strict=False)) if len(set(names)) > 1), min(map(len, parts)))
    return ".".join(parts[0][:same])


def _region(paths: tuple[str, ...]) -> str | None:
    """The module whose input a group's columns read as it is, to be gathered there; None: a block that does more."""
    common = _common(paths)
    return None if not common or common.rpartition(".")[2].isdecimal() else common


def _of_block(path: str) -> str:
    """The repeated block that a module is in, else the module itself."""
    parts = path.split(".")
    at = next((i for i, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join(parts[: at + 1])


def _number(path: str) -> int:
    return next((int(part) for part in path.split(".") if part.isdecimal()), -1)


def _share_counts(group: nn.Module, tp: int) -> None:
    """Divide what the modules of a group count, once each."""
    for part in group.modules():
        for name in _SHARED_COUNTS:
            count = part.__dict__.get(name)
            if type(count) is int and count % tp == 0 and f"_whole_{name}" not in part.__dict__:
                part.__dict__[f"_whole_{name}"] = count
                setattr(part, name, count // tp)
            elif type(count) is int and f"_whole_{name}" not in part.__dict__:
                raise UsageError(f"tp={tp} does not divide {name}={count} of {type(part).__name__}")
