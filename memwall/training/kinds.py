"""Training steps under a layout as points of a sweep; layouts whose ranks compute the same share a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.question import options_of, part_of
from memwall.hardware.cluster import cluster_of, hardware_of, load_cluster
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import load_gpu
from memwall.perfmodel.power import drawn_j, mean_w
from memwall.points import Options, PointKind, Row, Task, tried
from memwall.record.kernels import wall_shares
from memwall.record.profile import Profile
from memwall.trace_cache import Traces
from memwall.training.blocks import Blocks
from memwall.training.layout import FLAGS, SETTINGS, TRACED, Parallelism
from memwall.training.question import DEFAULT_CLUSTER, Job, Microbatch, StateOptions
from memwall.training.rank import blocks_of
from memwall.training.run import Training, rank_of, trained
from memwall.training.states import STATES

#: option of a sweep → the key of a layout
LAYOUT: Mapping[str, str] = {f"parallel.{key}": key for key in SETTINGS}
_ANSWERS = {"yes": True, "no": False, "true": True, "false": False}
OPTIONS = ("gpu", *options_of(Job), *LAYOUT)
#: what the trace of a rank depends on, but for its layout
_INPUTS = options_of(Microbatch)
#: options that change no op of a rank
NUMBERS = tuple(name for name in OPTIONS if name not in _INPUTS and LAYOUT.get(name) not in TRACED)


@dataclass(frozen=True)
class Rank:
    """What a rank computes on a cluster: its blocks, and the share of each wall in the time of its kernels."""

    cluster: Cluster
    profile: Profile
    blocks: Blocks
    walls: Mapping[str, float]
    host: Any = None


@dataclass(frozen=True)
class Trained:
    """A step under a layout. ``walls``: shares of the time of a rank's kernels."""

    found: Training
    walls: Mapping[str, float]
    usd_per_gpu_hour: float | None = None

    @property
    def time_s(self) -> float:
        return self.found.step.time_s

    @property
    def low_s(self) -> float:
        return self.found.step.interval_s[0]

    @property
    def high_s(self) -> float:
        return self.found.step.interval_s[1]

    @property
    def gpus(self) -> int:
        return self.found.layout.world

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return self.found.tokens_per_s_per_gpu

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.found.tokens is None else self.found.tokens / self.time_s

    @property
    def samples_per_s(self) -> float | None:
        return None if self.found.samples is None else self.found.samples / self.time_s

    @property
    def mfu(self) -> float:
        return self.found.mfu

    @property
    def hfu(self) -> float:
        return self.found.hfu

    @property
    def peak_bytes(self) -> int:
        """Of the fullest GPU."""
        return max(memory.total for memory in self.found.step.memory)

    @property
    def fits(self) -> bool:
        return self.found.fits()

    @property
    def bubble_s(self) -> float:
        return self.found.step.bubble_s

    @property
    def link_s(self) -> float:
        """Seconds of communication that nothing hides, within layers and between replicas."""
        return self.found.step.tensor_s + self.found.step.exposed_s

    @property
    def wall(self) -> str:
        """What takes the most seconds of the slowest rank: kernels under a wall, the optimizer counted as bandwidth;
        ``link``, or the ``bubble`` of the pipeline."""
        seconds = self._wall_s
        seconds |= {"link": seconds.get("link", 0.0) + self.link_s, "bubble": self.bubble_s}
        return max(seconds, key=seconds.__getitem__)

    @property
    def _wall_s(self) -> dict[str, float]:
        """Seconds of the slowest rank's kernels by wall, the optimizer's as bandwidth."""
        step = self.found.step
        kernels_s = step.time_s - self.link_s - step.bubble_s - step.optimizer_s
        seconds = {name: share * kernels_s for name, share in self.walls.items()}
        seconds["bandwidth"] = seconds.get("bandwidth", 0.0) + step.optimizer_s
        return seconds

    @property
    def energy_j(self) -> float | None:
        """Of a step on all GPUs, whose kernels keep busy what their walls say; None where the power limit is not
        known."""
        busy = self._wall_s
        drawn = drawn_j(busy.get("compute", 0.0), busy["bandwidth"], self.time_s, self.found.gpu)
        watts = mean_w(drawn, self.time_s, self.found.gpu)
        return None if watts is None else watts * self.gpus * self.time_s

    @property
    def usd_per_step(self) -> float | None:
        """On all GPUs; None without a price."""
        return None if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour / 3600 * self.gpus * self.time_s

    @property
    def usd_per_million(self) -> float | None:
        """USD of all GPUs for a million tokens."""
        if self.usd_per_gpu_hour is None or self.tokens_per_s_per_gpu is None:
            return None
        return self.usd_per_gpu_hour / 3600 / self.tokens_per_s_per_gpu * 1e6


def trained_at(
    target: str, point: Mapping[str, Any], traces: Traces, known: dict[Any, Rank], prices: Mapping[str, float]
) -> Trained:
    """The step of a point; ``known`` has the ranks of points before it. Errors as of :func:`memwall.parallel`."""
    layout = layout_of(point)
    said = {name: value for name, value in point.items() if value is not None}
    options = part_of(Microbatch, said)
    policy = point.get("policy") or "eager"
    key = (layout.traced, *options.items(), point.get("gpu"), str(point.get("cluster")), str(point.get("host")), policy)
    if key not in known:
        known[key] = _rank(target, point, layout, traces, options, policy)
    rank, gpu = known[key], hardware_of(known[key].cluster)
    found = trained(rank.profile, rank.blocks, layout, rank.cluster, policy, rank.host, **part_of(StateOptions, said))
    return Trained(found, rank.walls, prices.get(gpu.name))


def _rank(
    target: str, point: Mapping[str, Any], layout: Parallelism, traces: Traces, options: Mapping[str, Any], policy: str
) -> Rank:
    cluster = joined_at(point)
    made = lambda: rank_of(target, None, layout, load_gpu(cluster.gpu), **options)  # noqa: E731
    said = {**options, "layout": str(layout.traced)}
    profile = traces.of_any_gpu("rank", target, cluster.gpu, said, made)
    host = point.get("host")
    gpu = hardware_of(cluster, host)
    walls = wall_shares(profile.on([gpu]).schedule(gpu, policy))
    return Rank(cluster, profile, blocks_of(profile, cluster, policy, gpu=gpu), walls, host)


def joined_at(point: Mapping[str, Any]) -> Cluster:
    """The cluster of a point: the one that is named, with the GPU that is; else that of :func:`memwall.parallel`, or of
    another GPU the one that is known with it."""
    named, gpu = point.get("cluster"), point.get("gpu")
    found = load_cluster(named or DEFAULT_CLUSTER)
    if gpu is None or load_gpu(gpu) == hardware_of(found):
        return found
    found = found if named else cluster_of(load_gpu(gpu))
    return found if load_gpu(gpu) == hardware_of(found) else replace(found, gpu=str(gpu))


def layout_of(point: Mapping[str, Any]) -> Parallelism:
    """The layout of a point; as many replicas as fill its ``world`` where it does not say. Raises ``UsageError``: no
    job can have it."""
    said = {key: point[name] for name, key in LAYOUT.items() if point.get(name) not in (None, False)}
    world = point.get("world")
    if world is not None and "dp" not in said:
        replica = Parallelism.parse(",".join(f"{key}={said[key]}" for key in ("tp", "cp", "pp") if key in said)).world
        said["dp"] = max(world // replica, 1)
    asked = Parallelism.parse(",".join(key if value is True else f"{key}={value}" for key, value in said.items()))
    asked.check(world=world)
    return asked


def _alone(point: Options, price: Sequence[str]) -> tuple[str, Options] | None:
    """``memwall profile --parallel`` of a point's layout, which says no cost; None: of a GPU with which no cluster is
    known by name."""
    joined = joined_at(point)
    if joined != load_cluster(joined.name):
        return None
    said = {name: value for name, value in point.items() if name not in LAYOUT and name not in ("gpu", "world")}
    asked = {"mode": "training", "parallel": str(layout_of(point)), "cluster": joined.name}
    return "profile", {**said, **asked, **({"cluster": point["cluster"]} if point.get("cluster") else {})}


def _rows(task: Task, traces: Traces) -> list[Row]:
    """A step at each point; points on the same GPUs share the blocks of their rank."""
    readers = [quantity.readers["training"] for quantity in TRAINING.quantities]
    known: dict[Any, Rank] = {}

    def made(point: Mapping[str, Any]) -> Row:
        found = trained_at(task.target, point, traces, known, task.prices)
        return tuple(read(found) for read in readers)

    return [tried(lambda: made(point)) for point in task.points]  # noqa: B023  called here


def _setting(key: str, text: str) -> Any:
    """The value of a key of a layout, checked: a number, whether it is on, or a text as the layout has it."""
    if key in FLAGS:
        return _answer(f"parallel.{key}", text)
    read = SETTINGS[key](key, text)[key]
    return read if isinstance(read, int) else text


def _answer(name: str, text: str) -> bool:
    if text.lower() not in _ANSWERS:
        raise UsageError(f"--vary {name}: {text[:40]!r} is neither yes nor no")
    return _ANSWERS[text.lower()]


TRAINING = PointKind(
    name="training", title="a training step on many GPUs, as memwall profile --parallel has it",
    rows=_rows, alone=_alone, options=OPTIONS, numbers=NUMBERS, inner=NUMBERS, most=64,
    best=("tokens_per_s_per_gpu", "mfu"), front=("tokens_per_s", "tokens_per_s_per_gpu"),
    across=("batch", "seq", "parallel.microbatches", "parallel.dp", "world"),
    readers={**{name: partial(_setting, key) for name, key in LAYOUT.items()},
             **{name: partial(_answer, name) if bool in said.types else str
                for name, said in options_of(StateOptions).items()}},
    listed={"state": ("state of parameters", STATES)},
)  # fmt: skip
