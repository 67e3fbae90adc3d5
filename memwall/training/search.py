"""The fastest layouts of a training step on so many GPUs, exact (:mod:`memwall.core.best_first`).

The last bound of a layout is its simulated step (:func:`memwall.training.step.training_step`). A rank is traced when
its turn comes, and deep models as three of their layers where a whole trace shows that the layers between are alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Unpack

from memwall.core.best_first import best_first
from memwall.core.errors import MemwallError, UsageError
from memwall.core.files import uncollected
from memwall.core.progress import heard, tell
from memwall.core.question import filled, signature_of
from memwall.core.units import counted
from memwall.core.views import ShownResult
from memwall.frontend.targets.seeds import seeded
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.hardware.links import Cluster
from memwall.hardware.prices import prices_among
from memwall.perfmodel.roofline import least_compute_s
from memwall.record.profile import Profile
from memwall.simulate.memory import reserved_bytes
from memwall.simulate.pipeline import in_flight
from memwall.subjects import workload_of
from memwall.training.blocks import Block, Blocks, BlockWork
from memwall.training.candidates import LayoutCandidate, check_among, layouts, no_layout, wanted
from memwall.training.layout import Parallelism
from memwall.training.question import LayoutSearch
from memwall.training.rank import blocks_of, light_blocks_of, shortened, split_of, trace_rank
from memwall.training.states import STATES
from memwall.training.step import TrainingStep, least_step_s, step_memory, training_step

#: models with more layers are traced as three of them
_FEW = 8
_FULL = "the activations do not fit with the rest"
#: a bound is lowered by so much: sums are rounded, and a scalar does not grow with the samples
_ROUNDED = 1 - 1e-4


@dataclass(frozen=True, kw_only=True)
class LayoutChoice:
    """A layout that fits, and its step; ``peak_bytes`` of its fullest GPU, with what is assumed for context and
    allocator; ``usd_per_million``: cost of a million tokens."""

    layout: Parallelism
    batch: int
    step: TrainingStep
    peak_bytes: int
    tokens_per_s_per_gpu: float | None
    usd_per_million: float | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Layouts(ShownResult):
    """The outcome: the fastest layouts in ``order``, of how many, and why others were not simulated; ``ranks``: how
    many ranks were traced."""

    name: str
    cluster: Cluster
    gpus: int
    global_batch: int
    order: tuple[LayoutChoice, ...]
    count: int
    simulated: int
    ranks: int
    pruned: Mapping[str, int]


@heard
@signature_of(LayoutSearch)
@seeded()
def search_layouts(
    target: str,
    *,
    gpus: int,
    global_batch: int,
    among: Mapping[str, Sequence[str]] | None = None,
    top: int = 10,
    price: Mapping[str, float] | None = None,
    progress: Callable[[str], None] | None = None,
    **job: Unpack[LayoutSearch],
) -> Layouts:
    """The fastest ways to train a model on so many GPUs: tp, sp, pp, dp, fsdp, the microbatch, schedule and recompute;
    cp and ep where ``among`` names them.

    Args:
        target: as :func:`memwall.profile` takes it, with a batch: a file, or ``hf:``.
        gpus: all of them are used.
        global_batch: samples of a step.
        among: key of a layout, or ``batch``, the samples of a microbatch → the values to try, as a layout has them;
            ``sp`` has yes and no. All that divide where it does not say.
        top: how many layouts are wanted.
        price: USD per hour of the cluster's GPU, by name.
        progress: is told what is being done.
        seq, dtype, autocast, host, state, overlap, policy, cluster: as :func:`memwall.parallel`.

    Raises:
        UsageError: as :func:`memwall.parallel`; or no layout is possible, or fits.
    """
    check_among(among or {})
    said = filled(LayoutSearch, job)
    joined = load_cluster(said.cluster)
    joined.groups(gpus)
    name = hardware_of(joined).name
    usd = prices_among(price, [name]).get(name)
    ranks = _Ranks(target, joined, said)
    search = _Search(ranks, joined, {"state": said.state, "overlap": said.overlap}, usd)
    shared = [sorted({1, *map(int, (among or {}).get(key, ()))}) for key in ("cp", "ep")]
    every = layouts(gpus, global_batch, len(ranks.whole.layers), *shared)
    found = [each for each in every if wanted(each, among or {})]
    if not found:
        raise UsageError(no_layout(gpus, global_batch, among or {}))
    done = best_first(found, [(why, partial(bound, search)) for why, bound in _BOUNDS], top)
    if not done.chosen:
        reasons = "; ".join(f"{count:,}: {why}" for why, count in done.pruned.items())
        raise UsageError(f"none of {counted(len(found), 'layout')} can run: {reasons}")
    return Layouts(
        name=ranks.profile.workload.name,
        cluster=joined,
        gpus=gpus,
        global_batch=global_batch,
        order=tuple(map(search.chosen, done.chosen)),
        count=len(found),
        simulated=done.evaluated,
        ranks=ranks.traced,
        pruned=done.pruned,
    )


# -- what a rank does --------------------------------------------------------------------------------------------------


class _Rank(NamedTuple):
    """The blocks of a rank, and these at the speed of light (:func:`memwall.training.block_reader.light_blocks`)."""

    blocks: Blocks
    light: Blocks


class _Ranks:
    """The ranks of layouts, traced when they are asked for."""

    def __init__(self, target: str, cluster: Cluster, said: Any) -> None:
        """``said`` has each option of :class:`LayoutSearch`."""
        self.target, self.cluster, self.policy = target, cluster, said.policy
        self.sizes, self.cast = {"seq": said.seq}, {"dtype": said.dtype, "autocast": said.autocast}
        self.gpu = hardware_of(cluster, said.host)
        self._short: Any = None
        self._split: Any = None
        #: what a trace depends on but for the microbatch → samples of this → the rank, or why it cannot run
        self._known: dict[Parallelism, dict[int, _Rank | str]] = {}
        tell(f"tracing {target}")
        self.profile = self._trace(Parallelism(), 1)
        self.whole = blocks_of(self.profile, cluster, self.policy, gpu=self.gpu)
        if len(self.whole.layers) > _FEW:
            self._shorten()

    @property
    def traced(self) -> int:
        """How many ranks were traced, with the whole model."""
        return 1 + sum(isinstance(each, _Rank) for known in self._known.values() for each in known.values())

    def known(self, each: LayoutCandidate) -> dict[int, _Rank | str]:
        """What is traced of the rank of a layout, by the samples of a microbatch."""
        return self._known.setdefault(each.layout.traced, {})

    def of(self, each: LayoutCandidate) -> _Rank | str:
        """The rank of a layout; a text says why it cannot run. One that fails at the first microbatch that is traced is
        not tried with others."""
        known = self.known(each)
        if each.batch not in known:
            failed = next(iter(known.values()), None)
            known[each.batch] = failed if isinstance(failed, str) else self._made(each)
        return known[each.batch]

    def _made(self, each: LayoutCandidate) -> _Rank | str:
        tell(f"tracing rank {self.traced} of {self.target}: tp={each.layout.tp}, {counted(each.batch, 'sample')}")
        try:
            made = self._read(self._trace(each.layout, each.batch))
        except MemwallError as error:
            return str(error).partition(": running")[0]
        return made

    def _trace(self, layout: Parallelism, batch: int) -> Profile:
        from memwall.frontend.torch import TraceOptions

        gpu, sizes = self.gpu, {"batch": batch, **self.sizes}
        workload = workload_of(self.target, {**sizes, "mode": "training"}, gpu)
        if self._short is not None:
            workload = replace(workload, model=self._short)
        options = TraceOptions("training", **self.cast, gpu=gpu)
        with uncollected():
            if layout.tp > 1 and self._split is None:
                self._split = split_of(workload, options)
            return trace_rank(workload, layout, options, self._split if layout.tp > 1 else None, tell)

    def _read(self, profile: Profile) -> _Rank:
        """Of the whole model."""
        made = (read(profile, self.cluster, self.policy, gpu=self.gpu) for read in (blocks_of, light_blocks_of))
        return _Rank(*(each if self._short is None else each.stretched(len(self.whole.layers)) for each in made))

    def _shorten(self) -> None:
        """Trace three layers from now on, where they say what all do, but for what the host does between layers."""
        try:
            workload = workload_of(self.target, {**self.sizes, "mode": "training"}, self.gpu)
            self._short = shortened(workload)
            stretched = self._read(self._trace(Parallelism(), 1)).blocks
        except (MemwallError, ValueError):
            self._short = None
            return
        pairs = zip(stretched.every, self.whole.every, strict=True)
        if stretched.tied != self.whole.tied or not all(_is_alike(*pair) for pair in pairs):
            self._short = None


def _is_alike(one: Block, other: Block) -> bool:
    """Whether two blocks are equal on the GPU, and the CPU issues them in nearly the same time."""
    works = ("forward", "backward", "weight", "core")
    pairs = [(getattr(one, name), getattr(other, name)) for name in works]
    issued = all(math.isclose(a.issue_s, b.issue_s, rel_tol=0.02) for a, b in pairs)
    blind = [
        replace(each, **{name: replace(getattr(each, name), issue_s=0.0) for name in works}) for each in (one, other)
    ]
    return issued and blind[0] == blind[1]


# -- bounds ------------------------------------------------------------------------------------------------------------


@dataclass
class _Search:
    """The bounds of candidates."""

    ranks: _Ranks
    cluster: Cluster
    options: dict[str, Any]
    usd_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        info = self.ranks.profile.workload
        self.options["state"] = self.options["state"] or ("float32" if info.dtype == "float32" else "mixed")
        self.gpu = hardware_of(self.cluster)
        self._steps: dict[LayoutCandidate, TrainingStep] = {}
        self._totals: dict[tuple[int, str], tuple[BlockWork, BlockWork]] = {}
        self._kept_bytes: dict[tuple[int, str], int] = {}

    def chosen(self, each: LayoutCandidate) -> LayoutChoice:
        """What the step of a candidate has."""
        step, info = self._steps[each], self.ranks.profile.workload
        tokens = None if info.tokens is None else info.tokens * each.batch * each.layout.microbatches * each.layout.dp
        rate = None if tokens is None else tokens / step.time_s / each.layout.world
        usd = None if rate is None or self.usd_per_gpu_hour is None else self.usd_per_gpu_hour / 3600 / rate * 1e6
        return LayoutChoice(
            layout=each.layout,
            batch=each.batch,
            step=step,
            tokens_per_s_per_gpu=rate,
            usd_per_million=usd,
            peak_bytes=self._held(max(memory.total for memory in step.memory)),
        )

    def _held(self, nbytes: int) -> int:
        """With what is reserved."""
        return nbytes + reserved_bytes(self.gpu, nbytes)

    # The bounds of a candidate, each a number of seconds that its step does not stay below, or why it is out.

    def light_s(self, each: LayoutCandidate) -> float | str:
        """Without a trace of its rank: all matmuls at the peaks of all GPUs, in the pipeline; and weights that fit."""
        if self._least_bytes(each) > self.gpu.dram_bytes:
            return "weights, gradients and the optimizer's state alone do not fit"
        whole, weight = self._total(self.ranks.whole, each.layout.recompute)
        unit_s = each.batch / (self._rate * each.layout.tp * each.layout.cp)
        return _divided_s(whole.flops * unit_s, weight.flops * unit_s, each.layout)

    @cached_property
    def _rate(self) -> float:
        """FLOP/s of the fastest op at the speed of light."""
        costs = [cost for cost in self.ranks.profile.costs[0] if cost.flops]
        return max(cost.total_flops / least_compute_s(cost, self.gpu.fastest()) for cost in costs)

    def _total(self, blocks: Blocks, recompute: str) -> tuple[BlockWork, BlockWork]:
        """What a microbatch does in all blocks, and what of it makes gradients of weights."""
        key = id(blocks), recompute
        if key not in self._totals:
            again = {
                "none": BlockWork(),
                "selective": _sum(blocks.layers, "core"),
                "full": _sum(blocks.layers, "forward"),
            }
            every = blocks.every
            whole = _sum(every, "forward") + _sum(every, "backward") + again[recompute]
            self._totals[key] = whole, _sum(every, "weight")
        return self._totals[key]

    def rank_s(self, each: LayoutCandidate) -> float | str:
        """As :meth:`light_s` with all that its rank does, by a trace of it with a smaller microbatch: with more samples
        that grows at least in proportion, and no less is held."""
        known = self.ranks.known(each)
        for batch in sorted(n for n in known if n <= each.batch) or [each.batch]:
            rank = self.ranks.of(each._replace(batch=batch))
            if isinstance(rank, str):
                return rank
            if self._least_bytes(each, rank.blocks) > self.gpu.dram_bytes:
                return _FULL
            samples = each.batch / batch
        assert isinstance(rank, _Rank)
        return self._blocks_s(rank.light, each.layout, samples)

    def _blocks_s(self, blocks: Blocks, layout: Parallelism, samples: float = 1.0) -> float:
        """Blocks one after another, as evenly divided among the stages as can be, times so many samples."""
        whole, weight = self._total(blocks, layout.recompute)
        hidden = 1 - 1 / layout.tp if layout.async_tp else 0.0
        total_s = max(whole.busy_s - hidden * whole.tensor_s, whole.issue_s)
        return _divided_s(total_s * samples, weight.busy_s * samples, layout)

    def _least_bytes(self, each: LayoutCandidate, blocks: Blocks | None = None) -> int:
        """What the first rank holds at least; with blocks of its microbatch, or of a smaller one, their activations."""
        layout, state = each.layout, STATES[self.options["state"]]
        layers = len(self.ranks.whole.layers) // (layout.pp * layout.chunks)
        own, trained = (before + layers * layout.chunks * least for before, least in self._least_parameters)
        gradients, optimizer, weights = (
            layout.replicas if layout.fsdp in kinds else 1
            for kinds in (("grad", "full"), ("optimizer", "grad", "full"), ("full",))
        )
        nbytes = trained * (state.gradient / gradients + state.optimizer / optimizer) + own * state.weight / weights
        held = nbytes / (layout.tp * layout.ep)
        if blocks is not None:
            count = in_flight(layout.pp, layout.chunks, layout.microbatches, layout.schedule)[0]
            held += count * layers * self._least_kept_bytes(blocks, layout.recompute)
        return self._held(math.floor(held))

    @cached_property
    def _least_parameters(self) -> tuple[tuple[int, int], ...]:
        """Numbers of what stands before the layers, and of the smallest layer: all of them, and the trained ones."""
        every = self.ranks.whole.every
        kinds = (every, [block.trained for block in every])
        return tuple((kind[0].parameters, min(block.parameters for block in kind[1:-1])) for kind in kinds)

    def _least_kept_bytes(self, blocks: Blocks, recompute: str) -> int:
        """What a microbatch leaves in memory of the layer that keeps the least."""
        key = id(blocks), recompute
        if key not in self._kept_bytes:
            self._kept_bytes[key] = min(block.kept_bytes(recompute) for block in blocks.layers)
        return self._kept_bytes[key]

    def blocks_s(self, each: LayoutCandidate) -> float | str:
        """Its blocks one after another, as evenly divided among the stages as can be; and activations that fit."""
        rank = self.ranks.of(each)
        if isinstance(rank, str):
            return rank
        if self._least_bytes(each, rank.blocks) > self.gpu.dram_bytes:
            return _FULL
        return self._blocks_s(rank.blocks, each.layout)

    def _blocks(self, each: LayoutCandidate) -> Blocks:
        rank = self.ranks.of(each)
        assert isinstance(rank, _Rank)  # what cannot run is out already
        return rank.blocks

    def stages_s(self, each: LayoutCandidate) -> float | str:
        """The slowest rank of its pipeline, with what comes before and after it; and memory that fits."""
        blocks = self._blocks(each)
        try:
            memory = step_memory(blocks, each.layout, self.cluster, **self.options)
            if self._held(max(rank.total for rank in memory)) > self.gpu.dram_bytes:
                return _FULL
            return least_step_s(blocks, each.layout, self.cluster, **self.options) * _ROUNDED
        except UsageError as error:
            return str(error)

    def step_s(self, each: LayoutCandidate) -> float | str:
        """Its step."""
        tell(f"simulating {each.layout}")
        self._steps[each] = step = training_step(self._blocks(each), each.layout, self.cluster, **self.options)
        return step.time_s


def _sum(blocks: Sequence[Block], direction: str) -> BlockWork:
    return sum((getattr(block, direction) for block in blocks), BlockWork())


def _divided_s(whole_s: float, weight_s: float, layout: Parallelism) -> float:
    """The least time of a step whose microbatch takes ``whole_s`` in all stages together, ``weight_s`` of them for
    gradients of weights, however these divide it.

    The slowest rank takes no less than the mean, and a microbatch passes one stage after another; ``zb`` puts the
    gradients of weights off. Where a rank has one stage and puts nothing off, rank r is done after ``c_1 + ... +
    c_(r-1) + m c_r`` at the earliest, and the division that makes these equal is the best.
    """
    microbatches, ranks = layout.microbatches, layout.pp
    if layout.schedule == "zb" or layout.chunks > 1:
        passed_s = whole_s - weight_s if layout.schedule == "zb" else whole_s
        return max(whole_s * microbatches / ranks, passed_s) * _ROUNDED
    return whole_s / (1 - (1 - 1 / microbatches) ** ranks) * _ROUNDED


#: what is said of the candidates that a bound is enough for, and the bound; the last is the step itself
_BOUNDS: tuple[tuple[str, Callable[[_Search, LayoutCandidate], float | str]], ...] = (
    ("slower than the layouts found, by the speed of light of the model's matmuls", _Search.light_s),
    ("slower than the layouts found, by the speed of light of what a rank computes and sends", _Search.rank_s),
    ("slower than the layouts found, by their blocks, divided as evenly as can be", _Search.blocks_s),
    ("slower than the layouts found, by the slowest rank of their pipeline", _Search.stages_s),
    ("simulated", _Search.step_s),
)
