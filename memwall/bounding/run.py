"""A target → its bound and what kernels reach of it, on each GPU: the public function of the wing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from memwall.analysis.explanation import explanations
from memwall.analysis.levers import NOTABLE, by_kind, levers
from memwall.analysis.whole_profile import limited_by
from memwall.bounding.answer import BoundRun, BoundWall, KernelBound, KernelBounds, OtherBound
from memwall.bounding.judging import judged
from memwall.bounding.needed import of_needed
from memwall.bounding.own_kernels import own_kernels
from memwall.bounding.question import BASELINES, BoundOptions, BoundStep, at_clock, seconds_of
from memwall.bounding.stored import SPLIT, in_parts, in_stored_dtypes
from memwall.core.errors import MissingError, UsageError
from memwall.core.graph import Graph
from memwall.core.progress import heard
from memwall.core.question import completed, part_of, signature_of
from memwall.core.units import duration, percent
from memwall.fusion.ideal import one_kernel
from memwall.fusion.plan import Group
from memwall.fusion.policies import COMPILED, COMPILING
from memwall.hardware.chips import chip_of
from memwall.hardware.cluster import gpu_of, joined
from memwall.hardware.lookup import Gpu
from memwall.hardware.torch_versions import FLASH
from memwall.ops import Cost
from memwall.ops.sdpa import runs_on
from memwall.perfmodel.collectives import sent_s
from memwall.perfmodel.roofline import bound_s, engine_s
from memwall.pipeline import Names, asked_gpus, policy_names, profile, resimulate
from memwall.record.profile import Profile
from memwall.simulate.schedule import Schedule, as_launched
from memwall.step import Step

#: runs that are predicted where no policy is named: libraries' kernels, a compiler's, and memwall's own
RUNS = ("eager", "inductor", "memwall")
#: levers that an answer names
_MOST_LEVERS = 3


@heard
@signature_of(BoundOptions, Step)
def bound(
    target: Any,
    inputs: Any = None,
    *,
    gpu: Names | None = None,
    policy: str | Iterable[str] | None = None,
    loss: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **asked: Unpack[BoundStep],
) -> KernelBounds:
    """The speed of light of a kernel on one or more GPUs, and what libraries and compilers reach of it.

    Args:
        target: an expression such as ``"mm(bf16[4096,8192], bf16[8192,4096])"``, or what :func:`memwall.profile`
            takes: a module or a function with its ``inputs``, a file, a saved profile (``.json``) or a ``Profile``.
        inputs: as for :func:`memwall.profile`.
        gpu: names, specs or paths to specs; one or a list. None: the cluster's, else ``h100-sxm``.
        policy: the runs to predict; None: ``eager``, ``memwall``, and ``inductor`` where Triton is installed.
        loss: as for :func:`memwall.profile`.
        progress: called with one-line messages.

    Returns:
        An answer for each GPU. Seconds, bytes and FLOPs are in base units.

    Raises:
        UsageError: the target, its inputs or an option is wrong.
        MissingError: a policy that was named needs a dependency that is not installed.
    """
    question = completed(BoundOptions, part_of(BoundOptions, asked))
    step: Any = part_of(Step, asked)
    if step.pop("cuda_graph", False):
        raise UsageError("cuda_graph says how the host issues kernels, and a bound is of the GPU alone")
    named = asked_gpus(gpu or gpu_of(step.get("cluster")), step.get("host"))
    gpus = [at_clock(each, question["clock"]) for each in joined(named, step.get("cluster"), step.get("world"))]
    made = profiled(target, gpus, step, inputs=inputs, loss=loss)
    wanted = None if policy is None else policy_names(policy)
    answers = bounds(made, wanted, question["baseline"], question["kernel"], question["measured"])
    shown = str(target) if isinstance(target, str) else made.workload.target or made.workload.name
    return KernelBounds(target=shown, name=made.workload.name, answers=answers)


def profiled(target: Any, gpus: Sequence[Gpu], step: Any, *, inputs: Any = None, loss: Any = None) -> Profile:
    """The profile of a target on some GPUs, traced or read; arguments and errors as of :func:`bound`."""
    from memwall.frontend.targets.target import is_saved

    if isinstance(target, (str, Path)) and is_saved(str(target)):
        target = Profile.load(target)
    if isinstance(target, Profile):
        if step:
            raise UsageError(f"{next(iter(step))} says how to trace, and {target.workload.name} is traced already")
        return resimulate(target, gpus)
    return profile(target, inputs, gpu=gpus, loss=loss, **step)


def bounds(
    made: Profile,
    wanted: Sequence[str] | None,
    baseline: str,
    kernel: str | None = None,
    measured: float | str | None = None,
    *,
    brief: bool = False,
) -> tuple[KernelBound, ...]:
    """The answers for a profile on its GPUs.

    Args:
        wanted: policies that were named; None: the policies of :data:`RUNS` that there are.
        baseline: one of :data:`memwall.bounding.question.BASELINES`, which is not left out.
        kernel: one of the profile's kernels, in place of the step.
        measured: a measured time.
        brief: figures, without what explains them.
    """
    mine = all(op.name.startswith("triton.") for op in made.graph.ops)  # no other run does anything else
    policies = dict.fromkeys((BASELINES[baseline], *(wanted or (RUNS[:1] if mine else RUNS))))
    able = [each for each in policies if made.of_torch or each not in COMPILED]
    asked = _Asked(made, able, frozenset(wanted or ()), kernel, seconds_of(measured), brief)
    return tuple(map(asked.answer, made.gpus))


class _Asked(NamedTuple):
    """What is asked of a profile; of ``policies`` the ``wanted`` ones are not left out."""

    made: Profile
    policies: Sequence[str]
    wanted: frozenset[str]
    kernel: str | None
    measured_s: float | None
    brief: bool

    def answer(self, gpu: Gpu) -> KernelBound:
        """What is said of a GPU."""
        if gpu.cpu is not None:
            raise UsageError(f"{gpu.name} is a CPU, whose kernels have no bound here; name a GPU")
        if self.kernel is not None:
            return self._of_kernel(gpu, self.kernel)
        variants = [*_variants(self.made, gpu)]
        written, cost, parts = _least_costs(gpu, variants)
        found, notes = self._runs(gpu, variants)
        best = min(found, key=lambda run: run.run.time_s)
        answered = replace(
            _answered(gpu, cost, [each.run for each in found]), others=tuple(_others(cost, written, parts, gpu))
        )
        return self._judged(answered, cost, gpu, best, (*self.made.notes, *notes))

    def _of_kernel(self, gpu: Gpu, wanted: str) -> KernelBound:
        """One kernel of the first policy that was named."""
        policy = next((each for each in self.policies if each in self.wanted), "eager")
        schedule = self.made.schedule(as_launched(gpu, "graph"), policy)
        (first, *others) = explanations(self.made, schedule, wanted)
        if others:
            listed = ", ".join(f"{each.kernel.id} ({each.kernel.name})" for each in (first, *others[:3]))
            raise UsageError(f"--kernel {wanted} names {1 + len(others)} different kernels: {listed}; name one")
        kernel, plan = first.kernel, self.made.plan(schedule)
        assert plan is not None  # explanations refuses a schedule without one
        seconds = (kernel.time_s, kernel.low_s, kernel.high_s)
        run = BoundRun(policy, kernel.launches, kernel.bytes, *seconds, kernel.limited_by, kernel.time_s)
        graph, costs = self.made.graphs[schedule.graph], self.made.costs[schedule.graph]
        found = (_of_group(plan.groups[kernel.id], costs, each) for each in _counted(graph, costs, gpu))
        written, cost, parts = found
        answered = replace(
            _answered(gpu, cost, [run]), why=" ".join(first.launches), others=tuple(_others(cost, written, parts, gpu))
        )
        return self._judged(answered, cost, gpu, None, self.made.notes)

    def _runs(self, gpu: Gpu, variants: Sequence[tuple[str, Profile]]) -> tuple[list[_Ran], list[str]]:
        """The runs of the policies, and what is missing and why. Where libraries have several kernels of attention,
        the fastest stands under ``eager``."""
        found, notes = [], []
        for policy in self.policies:
            tried = variants if policy == "eager" else variants[:1]
            try:
                ran = [_ran(made, gpu, policy, backend) for backend, made in tried]
            except (MissingError, UsageError) as error:
                if policy in self.wanted:
                    raise
                notes.append(f"no {policy}: {error}")
                continue
            found.append(min(ran, key=lambda each: each.run.time_s))
        return found, notes

    def _judged(
        self, answer: KernelBound, cost: Cost, gpu: Gpu, best: _Ran | None, notes: Sequence[str]
    ) -> KernelBound:
        """The answer with what explains it, and what there is to say of a measured time."""
        if best is not None and not self.brief:
            answer = replace(answer, why=_why(best), levers=tuple(_levers(best)))
        if self.measured_s is not None:
            answer = replace(answer, measured=judged(self.measured_s, cost, gpu, answer.runs))
        if best is not None and not self.brief:
            own, missing = own_kernels(best.made.graphs[best.schedule.graph], gpu)
            answer, notes = replace(answer, own=own), (*notes, *missing)
        return replace(answer, notes=tuple(dict.fromkeys(notes)))


class _Ran(NamedTuple):
    """A run, with the schedule that it is of."""

    run: BoundRun
    made: Profile
    schedule: Schedule


def _variants(made: Profile, gpu: Gpu) -> Iterator[tuple[str, Profile]]:
    """The profile, and as it would be with each other kernel of attention that torch has on a GPU, by its name."""
    yield "", made
    chip, attention = chip_of(gpu), made.attention
    if attention is None or attention.preferred:
        return
    ours = attention.backends(chip)
    for backend in runs_on(chip):
        if backend in FLASH and attention.torch.number < FLASH[backend][1]:
            continue
        other = replace(attention, preferred=backend)
        try:
            if other.backends(chip) != ours:
                yield backend, replace(made, simulations=(), attention=other).on([gpu])
        except UsageError:  # the model allows others alone
            continue


def _ran(made: Profile, gpu: Gpu, policy: str, backend: str = "") -> _Ran:
    """A policy without the host, and as a call from Python that finds the GPU idle."""
    if policy in COMPILING and (policy, gpu.name) not in made.own_plans:
        made = resimulate(made, gpu, policy)
    schedule = made.schedule(as_launched(gpu, "graph"), policy)
    called = made.schedule(gpu, policy, graph=schedule.graph, launch="call", plan=schedule.plan)
    totals, wall = schedule.totals, limited_by(made, schedule)
    seconds = (totals.time_s, totals.low_s, totals.high_s)
    run = BoundRun(policy, totals.kernels, totals.dram_bytes, *seconds, wall, called.totals.time_s, backend)
    return _Ran(run, made, schedule)


def _answered(gpu: Gpu, cost: Cost, runs: Sequence[BoundRun]) -> KernelBound:
    """The answer as far as it is figures."""
    walls, best = _walls(cost, gpu), min(runs, key=lambda run: run.time_s)
    return KernelBound(
        gpu=gpu.name,
        flops=cost.total_flops,
        dram_bytes=cost.bytes,
        bound_s=bound_s(cost, gpu),
        time_s=best.time_s,
        low_s=best.low_s,
        high_s=best.high_s,
        limited_by=best.limited_by,
        bound_by=max(walls, key=lambda wall: wall.time_s).name if walls else "",
        walls=walls,
        runs=tuple(runs),
    )


def _walls(cost: Cost, gpu: Gpu) -> tuple[BoundWall, ...]:
    """What each resource alone needs at its peak, as :func:`memwall.perfmodel.roofline.bound_s` counts it."""
    gpu = gpu.fastest()
    walls = []
    for engine, seconds in engine_s(cost, gpu).items():
        pipes = [pipe for pipe in cost.flops if gpu.ceiling_pipe(pipe).engine == engine]
        rate = sum(cost.flops[pipe] for pipe in pipes) / sum(cost.flops[pipe] / gpu.peak(pipe) for pipe in pipes)
        name = {"tensor": "tensor cores", "vector": "vector units"}[engine]
        dtypes = ", ".join(dict.fromkeys(gpu.ceiling_pipe(pipe).dtype for pipe in pipes))
        walls.append(BoundWall(f"{name}, {dtypes}", "FLOP", rate * seconds, rate, seconds))
    fits = cost.least_bytes <= gpu.l2_bytes
    rate = gpu.l2_bytes_per_s if fits else gpu.dram_bytes_per_s
    walls.append(BoundWall("L2" if fits else "DRAM", "B", cost.least_bytes, rate, cost.least_bytes / rate))
    if cost.link_bytes:
        sent = sent_s(cost, gpu)[1]
        walls.append(BoundWall("link", "B", cost.link_bytes, cost.link_bytes / sent if sent else 0.0, sent))
    return tuple(wall for wall in walls if wall.amount)


def _least_costs(gpu: Gpu, variants: Sequence[tuple[str, Profile]]) -> tuple[Cost, Cost, Cost]:
    """What a single kernel that does a step costs: as the step is written, with products in the dtype that operands are
    stored in, and with products of float32 in parts; of the kernels of attention, the one with fewest FLOPs."""
    found = []
    for _, made in variants:
        graph = made.graphs[made.graph_for(gpu)]
        counted = _counted(graph, made.costs[made.graph_for(gpu)], gpu)
        found.append(tuple(one_kernel(graph, each) for each in counted))
    written, cost, parts = min(found, key=lambda costs: (costs[0].total_flops, costs[0].bytes))
    return written, cost, parts


def _counted(graph: Graph, costs: Sequence[Cost], gpu: Gpu) -> Iterator[Sequence[Cost]]:
    """What the ops of a graph need: as they are written, with products in the dtype that operands are stored in, and
    with products of float32 in parts."""
    needed = of_needed(graph, costs)
    narrow = in_stored_dtypes(graph, needed, gpu)
    return iter((needed, narrow, in_parts(graph, narrow, gpu)))


def _of_group(group: Group, costs: Sequence[Cost], needed: Sequence[Cost]) -> Cost:
    """The cost of a kernel, each of its ops with the FLOPs that it needs."""
    flops = Counter(group.cost.flops)
    for number in (*group.op_ids, *group.recomputes):
        flops.update(needed[number].flops)
        flops.subtract(costs[number].flops)
    return replace(group.cost, flops={pipe: count for pipe, count in flops.items() if count > 0})


def _others(cost: Cost, written: Cost, parts: Cost, gpu: Gpu) -> Iterator[OtherBound]:
    """The bound as others may count it: with products in the dtype that is written, or of float32 in parts, and with
    every byte from DRAM where L2 holds all."""
    least_s, written_s = bound_s(cost, gpu), bound_s(written, gpu)
    if written_s > least_s:
        pipe = max(written.flops, key=lambda pipe: written.flops[pipe])
        yield OtherBound(f"products in {pipe.dtype}, to which stored operands are cast", written_s)
    if (parts_s := bound_s(parts, gpu)) < least_s:
        yield OtherBound(f"each product of float32 as the sum of {SPLIT} of tf32, which is as accurate", parts_s)
    memory_s = cost.least_bytes / gpu.fastest().dram_bytes_per_s
    if memory_s > least_s:
        yield OtherBound("every byte from DRAM", memory_s)


def _why(ran: _Ran) -> str:
    """Why the kernel that takes longest takes its time."""
    kernels = ran.schedule.kernels
    if not kernels:
        return ""
    longest = max(kernels, key=lambda kernel: kernel.time_s)
    told = explanations(ran.made, ran.schedule, str(longest.id))[0]
    share = longest.time_s / (ran.run.time_s or 1.0)
    of = "" if len(kernels) == 1 else f"{longest.name} takes {percent(share, 0)} of it. "
    floor_s = longest.overhead_s - longest.wait_s
    floor = f" The minimum time of a kernel, its launch included, is {duration(floor_s)} more." if floor_s > 0 else ""
    return of + " ".join(told.launches) + floor


def _levers(ran: _Ran) -> Iterator[str]:
    """What would make a run faster, by kind and the largest first, each with the option of ``memwall profile`` that
    shows it."""
    found = [each for each in by_kind(levers(ran.made, ran.schedule)) if each.share >= NOTABLE]
    for each in found[:_MOST_LEVERS]:
        shown = f"{each.kind}, memwall profile {each.options}"
        less = f"{percent(each.share, 0)} less than {duration(each.time_s + each.saved_s)}"
        yield f"{each.name}: {duration(each.time_s)}, {less} ({shown})"
