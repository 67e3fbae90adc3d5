"""A cluster: GPUs, the links that join them, level by level, and what a collective library reaches over each.

``hardware_specs/clusters`` has a TOML file for each cluster that memwall knows, with a source next to each number; a
file of a user's own has the same keys. It needs ``schema``, ``name``, ``gpu``, ``gpus_per_node`` and a ``[link.NAME]``
for each level, the innermost first. ``protocols`` of a link, and the seconds of eager calls, may be left out:
:func:`with_nearest_protocols` takes those of the most similar link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from memwall.core.errors import UsageError, unknown
from memwall.core.files import read_text, read_toml
from memwall.core.structure import BadRecord, at_least_1, count, one_line, one_of, read, shown
from memwall.hardware.gpu import Gpu, Line, NotNegative, Positive, fraction
from memwall.hardware.gpu_spec import places_of
from memwall.hardware.host import packaged
from memwall.hardware.lookup import distance, load_gpu

SCHEMA = "memwall.cluster/1"

#: kind of link -> its medium, and the sort of it: links of one sort resemble each other most, then those of one medium
KINDS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("nvlink", "nvswitch", "nvls", "xgmi"), ("nvlink", "")), "pcie": ("pcie", ""),
    **{kind: ("network", kind) for kind in ("infiniband", "efa", "ethernet")},
}  # fmt: skip
#: protocol -> the kinds of links that can run it
PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("ll", "ll128", "simple", "direct_ll", "direct", "send"), tuple(KINDS)),
    **dict.fromkeys(("one_shot", "two_shot", "trtllm_one_shot", "trtllm_two_shot"), tuple(KINDS)[:5]),
    "nvls": ("nvls",),
}
LIBRARIES = ("nccl", "custom", "trtllm")


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a library's kernels use a link. Seconds: ``start_s``, ``step_s`` for each step of the algorithm, and the
    bytes of the link at a ``share`` of its rate. A message is sent in pieces, of which the first must pass before the
    pipeline is full: of W seconds of bytes that takes ``2 sqrt(W fill_s)`` with the best number of pieces."""

    start_s: NotNegative
    step_s: NotNegative
    fill_s: NotNegative
    share: Annotated[float, fraction]
    #: parts of the message, one for each GPU, that take as long as on the link because the GPU copies its own
    own_parts: NotNegative = 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """One level: what joins GPUs, or the groups that the level below joins."""

    kind: Annotated[str, one_of(KINDS)]
    #: most GPUs that it joins; 0: any number
    gpus: Annotated[int, count]
    #: one way, of one GPU; between groups, of one of the ``rails``
    bytes_per_s: Positive
    #: paths from a group; each of its GPUs can use one
    rails: Annotated[int, at_least_1] = 1
    #: links that the rings use among 2, 3, ... GPUs, where no switch makes all equal; the last is all of them
    rings: tuple[int, ...] = ()
    #: whether other links may take its protocols: not if it is known to be unlike its kind
    lends: bool = True
    #: name of :data:`PROTOCOLS` -> how it uses the link
    protocols: Mapping[str, Protocol] = field(default_factory=dict)

    def rate(self, gpus: int, groups: int) -> float:
        """Bytes/s one way out of a group of ``gpus`` to the other ``groups``."""
        if self.rings and groups > 1:
            return self.bytes_per_s * self.rings[min(groups, len(self.rings) + 1) - 2] / self.rings[-1]
        return self.bytes_per_s * min(gpus, self.rails)

    def check(self) -> None:
        if self.rings and (0 in self.rings or self.gpus != len(self.rings) + 1):
            raise BadRecord(": rings has a number above 0 for each of 2, 3, ... GPUs that the link joins")
        for name in self.protocols:
            if name not in PROTOCOLS or self.kind not in PROTOCOLS[name]:
                known = [each for each, kinds in PROTOCOLS.items() if self.kind in kinds]
                raise BadRecord(f": {unknown(f'protocol of {self.kind}', name[:40], known)}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes. A collective of few GPUs runs inside the innermost link that joins them."""

    name: Line
    gpu: Line
    gpus_per_node: Annotated[int, at_least_1]
    #: the innermost first
    link: Mapping[str, Link]
    full_name: str = ""
    #: library -> seconds between two calls from Python that the host takes, whatever the message
    eager_s: Mapping[str, NotNegative] = field(default_factory=dict)
    #: dotted key of the file -> the comment next to the number
    sources: Mapping[str, str] = field(default_factory=dict)
    #: "nvlink.simple" -> the cluster from which it is taken
    taken_from: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        reach = [link.gpus or math.inf for link in self.link.values()]
        if not reach or sorted(set(reach)) != reach:
            raise BadRecord(": each link joins more GPUs than the one before, the last any number where gpus is 0")
        for library in self.eager_s:
            if library not in LIBRARIES:
                raise BadRecord(f": {unknown('library', library[:40], LIBRARIES)}")

    @property
    def hardware(self) -> Gpu:
        return load_gpu(self.gpu)

    @property
    def most_gpus(self) -> int | None:
        """GPUs that its links join; None: any number."""
        return list(self.link.values())[-1].gpus or None

    def groups(self, workers: int, per_node: int | None = None) -> tuple[int, ...]:
        """How many GPUs, or groups of the level below, each link joins: equal groups, as few as fit.

        Raises:
            UsageError: no such number of GPUs, or not equally many on each node.
        """
        self._check_workers(workers, per_node)
        sizes, links = list[int](), list(self.link.values())
        for lower in reversed([None, *links[:-1]]):
            most = self._most(lower, per_node) if lower else 1
            inside = next(size for size in range(min(most, workers), 0, -1) if workers % size == 0)
            sizes.append(workers // inside)
            workers = inside
        return tuple(reversed(sizes))

    def _most(self, link: Link, per_node: int | None) -> int:
        """GPUs of a job that a link can join; one that is wider than a node joins nodes."""
        return min(link.gpus, per_node) if per_node and link.gpus <= self.gpus_per_node else link.gpus

    def _check_workers(self, workers: int, per_node: int | None) -> None:
        most = self.most_gpus
        if workers < 1 or (most and workers > most):
            raise UsageError(f"{self.name} joins {f'1 to {most}' if most else '1 or more'} GPUs, not {workers}")
        if per_node is not None and not 1 <= per_node <= self.gpus_per_node:
            raise UsageError(f"a node of {self.name} has 1 to {self.gpus_per_node} GPUs, not {per_node}")
        inside = per_node or max((link.gpus for link in list(self.link.values())[:-1]), default=workers)
        nodes = math.ceil(workers / inside)
        if workers % nodes or (per_node and workers % min(per_node, workers)):
            raise UsageError(f"{workers} GPUs are not equally many on each of {nodes} nodes of {inside}")


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters that memwall knows."""
    return tuple(_files())


def load_cluster(name_or_path: str | Path | Cluster) -> Cluster:
    """The cluster of that name, or of that TOML file.

    Raises:
        UsageError: no cluster has that name, or the file is wrong; one line, with the nearest name.
    """
    if isinstance(name_or_path, Cluster):
        return name_or_path
    if str(name_or_path).lower() in _files():
        return _packaged(str(name_or_path).lower())
    if isinstance(name_or_path, Path) or "/" in name_or_path or name_or_path.lower().endswith(".toml"):
        return with_nearest_protocols(read_cluster(name_or_path), stated_clusters())
    raise unknown("cluster named", name_or_path, _files())


@cache
def _files() -> Mapping[str, Path]:
    return packaged("hardware_specs/clusters")


@cache
def _packaged(name: str) -> Cluster:
    return with_nearest_protocols(_own(name), stated_clusters())


@cache
def _own(name: str) -> Cluster:
    return read_cluster(_files()[name])


def stated_clusters() -> list[Cluster]:
    """All clusters with the protocols that their own files state."""
    return [_own(name) for name in _files()]


def with_nearest_protocols(cluster: Cluster, others: Iterable[Cluster]) -> Cluster:
    """The cluster with each protocol that a link lacks from the links of ``others`` that state it: those of the same
    sort (:data:`KINDS`), else of the same medium, else any. Of these the one of the nearest GPU
    (:func:`memwall.hardware.lookup.distance`) if it has the same compute capability, else the geometric mean of the
    nearest of each architecture, as latencies follow no trend from one to the next. Shares of the rate and seconds
    carry over as they are. ``eager_s`` is that of the nearest GPU."""
    near = sorted(others, key=lambda other: distance(cluster.hardware, other.hardware))
    links, taken = {}, dict(cluster.taken_from)
    for name, link in cluster.link.items():
        found = dict(link.protocols)
        for protocol, kinds in PROTOCOLS.items():
            if protocol not in found and link.kind in kinds and (donors := _donors(cluster, link, protocol, near)):
                found[protocol] = _mean([how for _, how in donors])
                taken[f"{name}.{protocol}"] = ", ".join(source for source, _ in donors)
        links[name] = replace(link, protocols=found)
    eager_s = dict(cluster.eager_s)
    for other in near:
        eager_s = {**other.eager_s, **eager_s}
    return replace(cluster, link=links, eager_s=eager_s, taken_from=taken)


def _donors(cluster: Cluster, link: Link, protocol: str, near: Iterable[Cluster]) -> list[tuple[str, Protocol]]:
    """The clusters from which a link takes a protocol, and how it runs there."""
    stated = [(_unlike(known, link), other, known.protocols[protocol]) for other in near
              for known in other.link.values() if known.lends and protocol in known.protocols]  # fmt: skip
    best = min((unlike for unlike, _, _ in stated), default=None)
    nearest: dict[str, tuple[str, Protocol]] = {}
    for unlike, other, how in stated:
        gpu = other.hardware
        if unlike == best:
            nearest.setdefault(gpu.architecture, (other.name, how))
            if gpu.compute_capability == cluster.hardware.compute_capability:
                return [(other.name, how)]
    return list(nearest.values())


def _mean(hows: Sequence[Protocol]) -> Protocol:
    """The geometric mean of each number; 0 where one is 0."""
    if len(hows) == 1:
        return hows[0]
    numbers = {item.name: [getattr(how, item.name) for how in hows] for item in fields(Protocol)}
    return Protocol(**{name: math.prod(values) ** (1 / len(values)) for name, values in numbers.items()})


def _unlike(link: Link, other: Link) -> tuple[bool, bool]:
    """Sorts links by how they resemble another: of another medium, of another sort."""
    (medium, sort), (others_medium, others_sort) = KINDS[link.kind], KINDS[other.kind]
    return medium != others_medium, sort != others_sort


def read_cluster(path: str | Path) -> Cluster:
    """The cluster that a TOML file describes, without what it takes from others.

    Raises:
        UsageError: the file cannot be read or is wrong; names the file and the key.
    """
    found, label = read_toml(path), one_line(path)
    if (schema := found.pop("schema", None)) != SCHEMA:
        raise UsageError(f"{label}: schema is {shown(schema)}; want {SCHEMA!r}, as in a file of clusters")
    try:
        _check_keys(Cluster, found, label)
        cluster = read(Cluster, found, label)
        load_gpu(cluster.gpu)
    except BadRecord as error:
        raise UsageError(str(error)) from None
    notes = {key: note for key, (_, note) in places_of(read_text(path)).items() if note}
    return replace(cluster, sources=notes)


def _check_keys(kind: type, record: Any, where: str) -> None:
    """Refuse keys that a file cannot have, at any depth."""
    below = {Cluster: ("link", Link), Link: ("protocols", Protocol)}.get(kind)
    known = [item.name for item in fields(kind) if item.name not in ("sources", "taken_from")]
    for key in record if isinstance(record, dict) else ():
        if key not in known:
            raise unknown("key named", one_line(key), ["schema", *known], where=where)
        if below and key == below[0] and isinstance(record[key], dict):
            for name, value in record[key].items():
                _check_keys(below[1], value, f"{where}.{key}.{one_line(name)}")


def cluster_of(gpu: Gpu) -> Cluster:
    """The cluster that memwall knows with a GPU, the first by name; else the one whose innermost link has the most
    similar rate, of the same architecture if several do."""
    known = [load_cluster(name) for name in cluster_names()]

    def away(cluster: Cluster) -> tuple[bool, float, bool]:
        rate = next(iter(cluster.link.values())).bytes_per_s
        far = abs(math.log(rate / (gpu.link_bytes_per_s / 2 or rate)))
        return cluster.gpu != gpu.name, round(far, 3), cluster.hardware.architecture != gpu.architecture

    return min(known, key=away)
