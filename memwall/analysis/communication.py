"""Collectives of several sizes → rows of time and bandwidth, as nccl-tests define them; and the collectives of a
rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from memwall.core.errors import UsageError
from memwall.core.question import signature_of
from memwall.core.ranks import ranks_text
from memwall.core.views import ShownResult
from memwall.hardware.cluster import load_cluster
from memwall.hardware.links import Cluster
from memwall.ops.collective import receives
from memwall.ops.launches import Message
from memwall.perfmodel.collective_algorithms import OPS
from memwall.perfmodel.collectives import (
    CollectiveOptions,
    CollectiveTime,
    collective_s,
    levels_of,
    link_of,
    message_time,
    placed,
)
from memwall.record.job import place_of
from memwall.record.profile import Profile
from memwall.record.traced import RankFigures
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class CommRow:
    """One collective of ``nbytes``. Bandwidths in bytes/s: ``nbytes / time_s``, and times the factor of the op, which
    makes it comparable with the rate of a link (nccl-tests, PERFORMANCE.md)."""

    op: str
    nbytes: int
    workers: int
    found: CollectiveTime

    @property
    def time_s(self) -> float:
        return self.found.time_s

    @property
    def algorithm_bytes_per_s(self) -> float:
        return self.nbytes / self.time_s if self.time_s else 0.0

    @property
    def bus_bytes_per_s(self) -> float:
        return OPS[self.op].bus_factor(self.workers) * self.algorithm_bytes_per_s

    @property
    def link_share(self) -> float:
        """Seconds of a ring's bytes at the nominal rate, over the time: on one link bus bandwidth over its rate."""
        return self.found.wire_s / self.time_s if self.time_s else 0.0

    @property
    def way(self) -> str:
        return f"{self.found.algorithm} {self.found.protocol}".strip()


@dataclass(frozen=True, repr=False)
class CollectiveTimes(ShownResult):
    """Collectives between GPUs of a cluster, by op and size."""

    cluster: Cluster
    rows: tuple[CommRow, ...]


@signature_of(CollectiveOptions)
def comm(
    cluster: str | Path | Cluster,
    op: str | Iterable[str] = "all_reduce",
    *,
    gpus: int | None = None,
    least: int = 1 << 10,
    most: int = 1 << 30,
    **how: Unpack[CollectiveOptions],
) -> CollectiveTimes:
    """How long collectives take between the GPUs of a cluster, with messages of ``least`` bytes, and twice as many up
    to ``most``.

    Args:
        cluster: its name or the path of a TOML file.
        op: one or several of ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast`` and
            ``send_recv``.
        gpus: how many GPUs take part; None: the GPUs of a node.
        least, most: bytes, as nccl-tests define sizes.
        per_node, library, launch: as :func:`memwall.perfmodel.collectives.collective_s`.

    Raises:
        UsageError: as :func:`memwall.perfmodel.collectives.collective_s`, or no size is asked for.
    """
    joined = load_cluster(cluster)
    workers = joined.gpus_per_node if gpus is None else gpus
    ops = (op,) if isinstance(op, str) else op
    if least > most:
        raise UsageError(f"the smallest message, {least:,} bytes, is larger than the largest, {most:,} bytes")
    sizes = [least << i for i in range((most // max(least, 1)).bit_length())]
    rows = [
        CommRow(name, nbytes, workers, collective_s(name, nbytes, workers, joined, **how))
        for name in dict.fromkeys(ops)
        for nbytes in sizes
    ]
    return CollectiveTimes(joined, tuple(rows))


def sent_bytes(profile: Profile, schedule: Schedule) -> float:
    """Bytes that the traced rank sends to others in a step, not the bytes that it receives of transfers."""
    pairs = zip(profile.graphs[schedule.graph].ops, profile.costs[schedule.graph], strict=True)
    return sum(cost.link_bytes for op, cost in pairs if not receives(op.name))


def exposed_s(profile: Profile, schedule: Schedule) -> float:
    """Seconds in which collectives run and nothing else does, and by which kernels next to them take longer."""
    return sum((row.exposed_s for row in message_rows(profile, schedule)), 0.0)


def with_figures(made: Profile, profiles: Mapping[int, Profile]) -> Profile:
    """The profile of a rank with the figures of the others that were traced (:func:`memwall.programs.profile_ranks`),
    so that a limit holds for all."""
    rows = []
    for rank, profile in traced_ranks(profiles).items():
        alike = ranks_text([other for other, each in profiles.items() if each is profile and other != rank])
        for schedule in profile.simulations if profile is not made else ():
            sent, exposed = sent_bytes(profile, schedule), exposed_s(profile, schedule)
            peak = schedule.totals.peak_memory_bytes
            rows.append(RankFigures(rank, alike, *place_of(schedule), peak, sent, exposed))
    return made.with_facts(ranks=tuple(rows)) if rows else made


def traced_ranks(profiles: Mapping[int, Profile]) -> dict[int, Profile]:
    """The ranks of a pipeline that were traced: the first with each profile."""
    first: dict[int, int] = {}
    return {rank: each for rank, each in profiles.items() if first.setdefault(id(each), rank) == rank}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """Collectives of a step that are alike. Seconds are of all of them: ``whole_s`` while they run, ``exposed_s`` of
    that while the GPU computes nothing, or as much longer as kernels next to them take. ``sent_bytes``: link → bytes
    of each that leave a GPU one way; of a group with a link of its own inside, a GPU's part."""

    name: str
    group: str
    link: str
    nbytes: int
    count: int
    whole_s: float
    exposed_s: float
    taken: str
    sent_bytes: Mapping[str, float]


def message_rows(profile: Profile, schedule: Schedule) -> list[MessageRow]:
    """The collectives of a simulation, the longest first; none of ops without a formula."""
    costs, cluster = profile.costs[schedule.graph], schedule.gpu.cluster
    alike: dict[tuple[str, Message], list[float]] = {}
    links: dict[Message, str] = {}
    for kernel in schedule.kernels:
        cost = costs[kernel.op_ids[0]]
        for message in (launch for launch in cost.launches if isinstance(launch, Message)):
            sums = alike.setdefault((kernel.name, message), [0, 0.0, 0.0])
            exposed_s = kernel.time_s - kernel.wait_s
            for i, each in enumerate((1, exposed_s + kernel.hidden_s, exposed_s)):
                sums[i] += each
            links[message] = link_of(cost, schedule.gpu)
    found = []
    for (name, message), (count, whole_s, exposed_s) in alike.items():
        taken, sent = "", {}
        if cluster:
            time = message_time(message, cluster)
            taken, sent = f"{time.algorithm} {time.protocol}".strip(), _of_a_gpu(message, time, cluster)
        found.append(
            MessageRow(name, message.group, links[message], message.nbytes, int(count), whole_s, exposed_s, taken, sent)
        )
    return sorted(found, key=lambda row: -row.whole_s)


def _of_a_gpu(message: Message, time: CollectiveTime, cluster: Cluster) -> dict[str, float]:
    """Link → a GPU's part of what leaves its group."""
    levels = levels_of(cluster, *placed(message, cluster))
    return {level.name: time.sent_bytes[level.name] / level.gpus for level in levels if level.name in time.sent_bytes}
