"""Fused library ops: how long a workload would take with the other implementations that torch ships.

Four families. Attention (``scaled_dot_product_attention`` as flash, memory-efficient or plain kernels) and the
optimizer (one tensor after another, ``foreach``, ``fused``) are traced again, so they need the model. Norms that the
model decomposes, and a linear layer followed by a cross entropy, are found in the graph and replaced there by the
library's kernel and by torch's chunked loss. Every form is the whole step, so all figures compare with the model as it
is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from memwall.core.graph import Graph
from memwall.core.units import size
from memwall.fusing.rewrites.losses import default_rows, linear_losses, with_chunked_loss
from memwall.fusing.rewrites.norms import decomposed_norms, with_fused_norms
from memwall.fusing.rewrites.rewrite import Priced
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.ops.sdpa import runs_on
from memwall.record.profile import Profile
from memwall.record.schedules import Schedules

#: traces the workload again with other options: ``attention=...`` and ``gpu=...``, or ``optimizer=...``
Retrace = Callable[..., Profile]

ATTENTION_FORMS = ("flash", "efficient", "math")
OPTIMIZER_FORMS = ("loop", "foreach", "fused")
#: optimizers that have a name on the command line, by their class
OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}
#: chunk sizes tried: torch's choice times these
CHUNK_FACTORS = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class Form:
    """The whole step with one family in one form."""

    name: str
    time_s: float
    dram_bytes: int
    peak_memory_bytes: int
    kernels: int
    note: str = ""


@dataclass(frozen=True)
class Family:
    """The forms of one family on one GPU. ``now`` is what the model uses."""

    name: str
    gpu: str
    now: Form
    others: tuple[Form, ...]


def alternatives(profile: Profile, gpus: Sequence[Gpu], retrace: Retrace | None = None) -> tuple[Family, ...]:
    """What the workload would take in each other form, GPU by GPU, in eager mode. ``retrace``: traces the workload
    again, with ``attention`` or ``optimizer`` given by keyword; None leaves out the families that need the model.
    Raises as the retracing."""
    traced = list(_retraced(profile, gpus, retrace)) if retrace else []
    families: list[Family] = []
    for gpu in gpus:
        number = profile.graph_for(gpu)
        step = _PresentStep(gpu, (profile.graphs[number], profile.costs[number]))
        families += [*_traced_families(step, traced), *_norms(step), *_losses(step)]
    return tuple(family for family in families if family.others)


@dataclass(frozen=True)
class _PresentStep:
    """The step as it is now, on one GPU."""

    gpu: Gpu
    model: Priced

    def form(self, name: str, model: Priced, note: str = "") -> Form:
        """The totals of a changed step."""
        graph, costs = model
        t = Schedules([graph], [costs]).schedule(self.gpu).totals
        return Form(name, t.time_s, t.dram_bytes, t.peak_memory_bytes, t.kernels, note)

    @cached_property
    def now(self) -> Form:
        return self.form("", self.model)

    def family(self, name: str, called: str, others: Sequence[Form]) -> Family:
        return Family(name, self.gpu.name, replace(self.now, name=called), tuple(others))


def _retraced(profile: Profile, gpus: Sequence[Gpu], retrace: Retrace) -> Iterator[tuple[str, str, Profile]]:
    """Family, form and profile of each, on the GPUs that have it."""
    if any(op.op_class == "attention" or "softmax" in op.name for graph in profile.graphs for op in graph.ops):
        for form in ATTENTION_FORMS:
            if having := [gpu for gpu in gpus if _has(gpu, form)]:
                yield "attention", form, retrace(attention=form, gpu=having)
    name = OPTIMIZERS.get(profile.workload.optimizer or "")
    if name and any(op.phase == "optimizer" for op in profile.graph.ops):
        for form in OPTIMIZER_FORMS:
            yield "optimizer", form, retrace(optimizer=f"{name}:{form}")


def _has(gpu: Gpu, attention: str) -> bool:
    """Whether torch has a kernel of that form for the GPU."""
    return attention in runs_on(chip_of(gpu))


def attention_form(graph: Graph) -> str:
    """The fused attention kernels that a graph calls: ``flash``, ``efficient``, both, or else ``math``."""
    names = {op.name for op in graph.ops if op.op_class == "attention"}
    fused = [form for form in ATTENTION_FORMS if any(f"_{form}_attention" in name for name in names)]
    return " and ".join(fused) or "math"


def optimizer_form(graph: Graph) -> str:
    """How the optimizer of a graph iterates over its tensors."""
    names = [op.name for op in graph.ops if op.phase == "optimizer"]
    for form, mark in (("fused", "aten._fused_"), ("foreach", "aten._foreach_")):
        if any(name.startswith(mark) for name in names):
            return form
    return "loop"


_FORM_OF: dict[str, Callable[[Graph], str]] = {"attention": attention_form, "optimizer": optimizer_form}


def _traced_families(step: _PresentStep, traced: Sequence[tuple[str, str, Profile]]) -> Iterator[Family]:
    """Forms that a GPU or a call does not support (flash before Ampere, or in float32) are left out."""
    for family in dict.fromkeys(family for family, _, _ in traced):
        form_of = _FORM_OF[family]
        called, others = form_of(step.model[0]), []
        for name, profile in ((name, profile) for of, name, profile in traced if of == family):
            if name == called or (family == "attention" and not _has(step.gpu, name)):
                continue
            number = profile.graph_for(step.gpu) if family == "optimizer" else 0
            if form_of(profile.graphs[number]) == name:
                others.append(step.form(name, (profile.graphs[number], profile.costs[number])))
        yield step.family(family, called, others)


def _norms(step: _PresentStep) -> Iterator[Family]:
    if norms := decomposed_norms(step.model[0]):
        name = "F.layer_norm" if norms[0].is_centered else "F.rms_norm"
        note = f"in place of {len(norms):,} that are decomposed"
        yield step.family("norm", "op by op", [step.form(name, with_fused_norms(*step.model, norms), note)])


def _losses(step: _PresentStep) -> Iterator[Family]:
    graph, costs = step.model
    for loss in linear_losses(graph):
        rows, features = graph.values[loss.x].spec.shape
        least = default_rows(rows, graph.values[loss.weight].spec.shape[1], features)
        others = []
        for chunk in dict.fromkeys(min(least * factor, rows) for factor in CHUNK_FACTORS):
            chunked = with_chunked_loss(graph, costs, loss, chunk)
            won = _allocated_bytes(graph) - _allocated_bytes(chunked[0])
            choice = ", torch's choice" if chunk == least else ""
            note = f"chunks of {chunk:,} of {rows:,} rows{choice}; {size(won)} never stored"
            others.append(step.form("F.linear_cross_entropy", chunked, note))
        yield step.family("loss", "linear, cross_entropy", others)


def _allocated_bytes(graph: Graph) -> int:
    """Bytes of all activations and gradients that the ops of a graph write."""
    written = {graph.values[v].storage for op in graph.ops for v in op.outputs}
    return sum(graph.storages[s].nbytes for s in written if graph.storages[s].role in ("activation", "gradient"))
