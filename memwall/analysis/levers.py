"""What would make a step faster, each change simulated again, the largest first; what no compiler reaches comes last.
Pages have the changes that can be made in software first (:func:`by_kind`).

A lever is an option of ``memwall profile``: with it the command takes the time that stands here, to the last digit.
What a number of the GPU or of the host saves tells what the step is bound by (:func:`bound_by`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Annotated, NamedTuple, Protocol, TypeVar

from memwall.analysis.dtypes import dtype_of
from memwall.analysis.pipes import main_pipe
from memwall.analysis.whatif import outcome, parse_change
from memwall.core.errors import MissingError, UsageError
from memwall.core.graph import Pipe
from memwall.core.progress import counting
from memwall.core.structure import finite
from memwall.core.units import listed
from memwall.fusion import REWRITING
from memwall.fusion.policies import COMPILING
from memwall.hardware.lookup import Gpu
from memwall.ops.registry import is_recurrent
from memwall.perfmodel.roofline import LINK
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.schedule import Schedule

#: what binds beside the walls of :mod:`memwall.perfmodel.roofline`: the CPU, which issues the kernels
HOST = "host"
#: the option that takes the CPU out of a step
REPLAYED = "--cuda-graph"
#: the option of perfect fusion, which no compiler reaches
UNREACHED = "--policy ideal"
#: what tables of levers say of it
#: kinds of levers, what can be done first -> what a table says of them
KINDS = {
    "software": "what you can change", "hardware": "another GPU, host or link, or more GPUs",
    "bound": "what no compiler beats",
}  # fmt: skip
KIND_NOTE = "kind: " + ", ".join(f"{kind} is {told}" for kind, told in KINDS.items())
#: of the time, the least that a lever saves to be worth naming
NOTABLE = 0.01


@dataclass(frozen=True, slots=True)
class Number:
    """A what-if on one number: what it does, how ``--what-if`` writes it, and the wall whose number it is. ``stated``:
    the field of a GPU that is 0 where it has none, or it is not known."""

    name: str
    change: str
    wall: str
    stated: str = ""

    @property
    def options(self) -> str:
        return f"--what-if '{self.change}'" if "*" in self.change else f"--what-if {self.change}"


#: the numbers of the host, the GPU and its links that a step may be bound by
NUMBERS = (
    Number("twice the host's speed", "dispatch_s/=2", HOST),
    Number("twice the bandwidth", "dram_bytes_per_s*=2", "bandwidth"),
    Number("twice the L2's bandwidth", "l2_bytes_per_s*=2", "bandwidth", "l2_bytes"),
    Number("twice the FLOP/s", "peak_flop_per_s*=2", "compute"),
    Number("half the latency", "latency_s/=2", "latency"),
    Number("twice the links' rate", "link_bytes_per_s*=2", LINK),
    Number("twice the power limit", "tdp_w*=2", "compute", "tdp_w"),
)


@dataclass(frozen=True, slots=True)
class Lever:
    """A change: what it does, the option that shows it, the wall whose number it changes (``host`` among them; empty
    for another way to run the step) and the seconds of the step with it."""

    name: str
    options: str
    wall: str
    time_s: float
    saved_s: Annotated[float, finite]

    @property
    def share(self) -> float:
        """Of the step as it is."""
        return self.saved_s / (self.time_s + self.saved_s) if self.saved_s else 0.0

    @property
    def kind(self) -> str:
        """As :func:`kind_of` its options."""
        return kind_of(self.options)


def levers(profile: Profile, schedule: Schedule) -> tuple[Lever, ...]:
    """The levers of a schedule as :func:`ranked`; none of a saved schedule whose plan only a compiler can make again,
    or that this memwall would model otherwise."""
    if schedule.plan is None:
        if schedule.policy not in CHEAP:
            return ()
        saved_s = schedule.totals.time_s
        schedule = profile.schedule(schedule.gpu, schedule.policy, graph=schedule.graph, launch=schedule.launch)
        if not isclose(schedule.totals.time_s, saved_s, rel_tol=1e-6):
            return ()
    return ranked((*_ways(profile, schedule), *_numbers(profile, schedule)), schedule.totals.time_s)


def ranked(made: Iterable[MadeLever], now_s: float) -> tuple[Lever, ...]:
    """The levers of what takes ``now_s``, the largest first, and bounds after all that can be done."""
    found = [Lever(name, options, wall, time_s, now_s - time_s) for name, options, wall, time_s in made]
    # what a full queue hides is equal but for the last bits of its sums
    return tuple(sorted(found, key=lambda lever: (lever.kind == "bound", -round(lever.saved_s / (now_s or 1.0), 9))))


#: how the options of a lever begin that changes a number of the machine, or takes more GPUs, but for the dtype of the
#: products
_MACHINE, _DTYPE = ("--what-if", "--tp "), "--what-if dtype="


def kind_of(options: str) -> str:
    """The kind of a lever, one of :data:`KINDS`, by the options that show it."""
    if options == UNREACHED:
        return "bound"
    return "hardware" if options.startswith(_MACHINE) and not options.startswith(_DTYPE) else "software"


class _HasOptions(Protocol):
    @property
    def options(self) -> str: ...


_Shown = TypeVar("_Shown", bound=_HasOptions)


def by_kind(made: Iterable[_Shown]) -> list[_Shown]:
    """Levers, or other changes that options show, by kind as :data:`KINDS` has them, each kind in the order given."""
    order = tuple(KINDS)
    return sorted(made, key=lambda each: order.index(kind_of(each.options)))


def bound_by(found: Sequence[Lever], shares: Mapping[str, float], time_s: float) -> Lever | None:
    """The lever among the numbers of the GPU and the host that saves most of ``time_s``, and so says what binds; of
    equal ones the lever of the wall with the larger of the ``shares``. None where none saves anything."""
    numbers = [lever for lever in found if lever.wall and lever.saved_s > 1e-6 * time_s]
    return max(numbers, key=lambda lever: (round(lever.saved_s / time_s, 6), shares.get(lever.wall, 0.0)), default=None)


def as_would(name: str, times_s: Mapping[str, float]) -> str:
    """``, as twice the bandwidth would``: the changes after which a step takes as long as after the one named, since
    all of them leave what holds it then; empty where none is."""
    alike = [
        other for other, time_s in times_s.items() if other != name and isclose(time_s, times_s[name], rel_tol=1e-6)
    ]
    return f", as {listed(alike)} would" if alike else ""


class MadeLever(NamedTuple):
    """A lever's name, options, wall and seconds."""

    name: str
    options: str
    wall: str
    time_s: float


def _ways(profile: Profile, schedule: Schedule) -> Iterator[MadeLever]:
    """Other ways to run the step: fused by each policy that the profile has, by memwall's planner and by ``ideal``,
    which no compiler reaches where recurrent layers are left to a library; and as a CUDA graph."""
    gpu, (graph, launch) = schedule.gpu, profile.beside(schedule)
    asked = [s.policy for s in profile.simulations if s.gpu == gpu and profile.beside(s) == (graph, launch)]
    policies = [*asked, *(("memwall",) if schedule.policy == "eager" else ()), "ideal"]
    is_looped = any(is_recurrent(op.name) for op in profile.graphs[graph].ops)
    without = {"eager", schedule.policy, *REWRITING, *(("ideal",) if is_looped else ())}
    if schedule.policy in ("ideal", *REWRITING) or profile.is_share(schedule):
        policies = []
    for policy in dict.fromkeys(policies):
        if policy not in without:
            known = (s for s in profile.simulations if policy in COMPILING and (s.gpu, s.policy) == (gpu, policy))
            fused = next(known, None) or profile.schedule(gpu, policy, graph=graph, launch=launch)
            what = "fusion" if len(fused.kernels) < len(schedule.kernels) else "generated kernels"
            name = f"perfect {what}" if policy == "ideal" else f"{what} by {policy}"
            yield MadeLever(name, f"--policy {policy}", "", fused.totals.time_s)
    if schedule.launch == "eager" and gpu.cpu is None:
        replayed = profile.schedule(gpu, graph=graph, launch="graph", plan=schedule.plan)
        yield MadeLever("a CUDA graph", REPLAYED, "", replayed.totals.time_s)


def _numbers(profile: Profile, schedule: Schedule) -> Iterator[MadeLever]:
    """One number of the GPU or the host, or the dtype of the products, changed as ``--what-if`` does."""
    gpu = schedule.gpu
    is_issued = schedule.launch == "eager" or any(kernel.issue_s for kernel in schedule.kernels)
    known = numbers_of(
        gpu, is_issued and gpu.cpu is None, any(cost.link_bytes for cost in profile.costs[schedule.graph])
    )
    dtypes = [Number(f"matmuls in {dtype}", f"dtype={dtype}", "") for dtype in _dtypes(profile, schedule)]
    for number in counting((*known, *dtypes), "simulating changes"):
        try:
            told = outcome(profile, schedule, [parse_change(number.change)])
        except (MissingError, UsageError):  # no torch, or no attention that the model allows in that dtype
            continue
        yield MadeLever(number.name, number.options, number.wall, told.after.time_s)


def numbers_of(gpu: Gpu, is_hosted: bool, is_linked: bool) -> list[Number]:
    """The numbers that a step may be bound by on a GPU, one that the CPU launches, one that sends messages."""
    without = {wall for wall, applies in ((HOST, is_hosted), (LINK, is_linked)) if not applies}
    return [n for n in NUMBERS if n.wall not in without and (not n.stated or getattr(gpu, n.stated))]


def _dtypes(profile: Profile, schedule: Schedule) -> Iterable[str]:
    """The dtypes of fewer bits, or with tensor cores of their own, that products could have on a GPU."""
    gpu, pipe = schedule.gpu, main_pipe(profile, schedule)
    if pipe is None or gpu.cpu is not None or schedule.policy not in CHEAP:
        return
    now, dtype = gpu.peak(pipe), dtype_of(profile, schedule)
    offered = {"float32": ("tf32", "bfloat16", "float16"), "bfloat16": ("float16",), "float16": ("bfloat16",)}
    for other in offered.get(dtype, ()):
        if gpu.peak_flop_per_s.get(Pipe("tensor", other), 0.0) > now:
            yield other
            if other != "tf32":
                return
