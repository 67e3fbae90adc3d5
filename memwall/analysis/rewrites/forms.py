"""Fused library ops: how long a workload would take with the other implementations that torch ships.

Four families. Attention (``scaled_dot_product_attention`` as flash, memory-efficient or plain kernels) and the
optimizer (one tensor after another, ``foreach``, ``fused``) are traced again, so they need the model. Norms that the
model decomposes, and a linear layer followed by a cross entropy, are found in the graph and replaced there by the
library's kernel and by torch's chunked loss. Every form is the whole step, so all figures compare with the model as it
is now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memwall.analysis.rewrites.losses import default_rows, linear_losses, with_chunked_loss
from memwall.analysis.rewrites.norms import decomposed_norms, with_fused_norms
from memwall.analysis.rewrites.rewrite import Priced
from memwall.core.graph import Graph
from memwall.core.units import size
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile
from memwall.record.schedules import Schedules, attention_backend
from memwall.simulate.schedule import Schedule

#: traces the workload again with other options: ``attention=...`` or ``optimizer=...``
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


def alternatives(
    profile: Profile, gpus: Sequence[Gpu], retrace: Retrace | None = None, *, policy: str = "eager"
) -> tuple[Family, ...]:
    """What the workload would take in each other form, GPU by GPU, under one policy.

    Args:
        retrace: traces the workload again, with ``attention`` or ``optimizer`` given by keyword; None leaves out the
            families that need the model.

    Raises:
        UsageError: no such policy, or as the retracing.
    """
    forms = list(_retraced(profile, retrace)) if retrace else []
    families = []
    for gpu in gpus:
        run = _Runner(gpu, policy)
        number = profile.graph_for(gpu)
        model = profile.graphs[number], profile.costs[number]
        now = run.form("", model)
        found = [*_traced_families(run, model[0], now, forms), *_norms(run, model, now)]
        found += _losses(run, model, now)
        families += [family for family in found if family.others]
    return tuple(families)


@dataclass(frozen=True)
class _Runner:
    gpu: Gpu
    policy: str

    def form(self, name: str, model: Priced, note: str = "") -> Form:
        graph, costs = model
        return as_form(name, Schedules((graph,), (costs,)).schedule(self.gpu, self.policy), note)

    def family(self, name: str, now: Form, called: str, others: Sequence[Form]) -> Family:
        step = Form(called, now.time_s, now.dram_bytes, now.peak_memory_bytes, now.kernels)
        return Family(name, self.gpu.name, step, tuple(others))


def as_form(name: str, schedule: Schedule, note: str = "") -> Form:
    """The totals of a schedule."""
    totals = schedule.totals
    return Form(name, totals.time_s, totals.dram_bytes, totals.peak_memory_bytes, totals.kernels, note)


def allocated_bytes(graph: Graph) -> int:
    """Bytes of all activations and gradients that the ops of a graph write."""
    written = {graph.values[v].storage for op in graph.ops for v in op.outputs}
    return sum(graph.storages[s].nbytes for s in written if graph.storages[s].role in ("activation", "gradient"))


# -- forms that are traced again ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Traced:
    family: str
    name: str
    profile: Profile


def _retraced(profile: Profile, retrace: Retrace) -> Iterator[_Traced]:
    if any(map(_may_attend, profile.graphs)):
        for form in ATTENTION_FORMS:
            yield _Traced("attention", form, retrace(attention=form))
    name = OPTIMIZERS.get(profile.workload.optimizer or "")
    if name and any(op.phase == "optimizer" for op in profile.graph.ops):
        for form in OPTIMIZER_FORMS:
            yield _Traced("optimizer", form, retrace(optimizer=f"{name}:{form}"))


def attention_form(graph: Graph) -> str:
    """The fused attention kernels that a graph calls: ``flash``, ``efficient``, both, or else ``math``."""
    names = {op.name for op in graph.ops if op.op_class == "attention"}
    fused = [form for form in ATTENTION_FORMS if any(f"_{form}_attention" in name for name in names)]
    return " and ".join(fused) or "math"


def _may_attend(graph: Graph) -> bool:
    return any(op.op_class == "attention" or "softmax" in op.name for op in graph.ops)


def optimizer_form(graph: Graph) -> str:
    """How the optimizer of a graph iterates over its tensors."""
    names = [op.name for op in graph.ops if op.phase == "optimizer"]
    for form, mark in (("fused", "aten._fused_"), ("foreach", "aten._foreach_")):
        if any(name.startswith(mark) for name in names):
            return form
    return "loop"


_FORM_OF: dict[str, Callable[[Graph], str]] = {"attention": attention_form, "optimizer": optimizer_form}


def _traced_families(run: _Runner, graph: Graph, now: Form, forms: Sequence[_Traced]) -> Iterator[Family]:
    """Forms that a GPU or a call does not support (flash before Ampere, or in float32) are left out."""
    for family in dict.fromkeys(form.family for form in forms):
        called = _FORM_OF[family](graph)
        others = []
        for traced in (form for form in forms if form.family == family and form.name != called):
            if traced.name == "flash" and attention_backend(run.gpu) != "flash":
                continue
            number = traced.profile.graph_for(run.gpu) if family == "optimizer" else 0
            other = traced.profile.graphs[number], traced.profile.costs[number]
            if _FORM_OF[family](other[0]) == traced.name:
                others.append(run.form(traced.name, other))
        yield run.family(family, now, called, others)


# -- forms that replace ops of the graph -------------------------------------------------------------------------------


def _norms(run: _Runner, model: Priced, now: Form) -> Iterator[Family]:
    norms = decomposed_norms(model[0])
    if norms:
        name = "F.layer_norm" if norms[0].is_centered else "F.rms_norm"
        note = f"in place of {len(norms):,} that are decomposed"
        fused = run.form(name, with_fused_norms(*model, norms), note)
        yield run.family("norm", now, "op by op", [fused])


def _losses(run: _Runner, model: Priced, now: Form) -> Iterator[Family]:
    graph, costs = model
    for loss in linear_losses(graph):
        rows, features = graph.values[loss.x].spec.shape
        least = default_rows(rows, graph.values[loss.weight].spec.shape[1], features)
        others = []
        for chunk in dict.fromkeys(min(least * factor, rows) for factor in CHUNK_FACTORS):
            chunked = with_chunked_loss(graph, costs, loss, chunk)
            won = allocated_bytes(graph) - allocated_bytes(chunked[0])
            choice = ", torch's choice" if chunk == least else ""
            note = f"chunks of {chunk:,} of {rows:,} rows{choice}; {size(won)} never stored"
            others.append(run.form("F.linear_cross_entropy", chunked, note))
        yield run.family("loss", now, "linear, cross_entropy", others)
