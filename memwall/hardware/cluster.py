"""A cluster: GPUs, the links that join them, level by level, and what a collective library reaches over each.

Slices of TPUs are made by their names (:mod:`memwall.hardware.slices`).
``hardware_specs/clusters`` has a TOML file for each cluster that memwall knows, with a source next to each number; a
file of a user's own has the same keys. It needs ``schema``, ``name``, ``gpu``, ``gpus_per_node`` and a ``[link.NAME]``
for each level, the innermost first. ``protocols`` of a link, and the seconds of eager calls, may be left out:
:func:`with_nearest_protocols` takes them from the most similar link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, unknown
from memwall.core.files import read_text
from memwall.core.structure import BadRecord, one_line, read
from memwall.hardware.files import packaged, read_stated
from memwall.hardware.gpu import Gpu
from memwall.hardware.gpu_spec import places_of
from memwall.hardware.host import Host, load_host
from memwall.hardware.links import KINDS, PROTOCOLS, Cluster, Link, Protocol
from memwall.hardware.lookup import DEFAULT_GPU, all_gpus, distance, load_gpu
from memwall.hardware.slices import slice_names, slice_of, usual_slice

SCHEMA = "memwall.cluster/1"


def hardware_of(cluster: Cluster, host: str | Path | Host | None = None) -> Gpu:
    """The GPU that a cluster is made of; on another host than its own if one is named."""
    gpu = load_gpu(cluster.gpu)
    return gpu if host is None else replace(gpu, host=load_host(host))


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters that memwall has a file of."""
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
    if isinstance(name_or_path, str) and (made := slice_of(name_or_path)):
        return made
    if isinstance(name_or_path, Path) or "/" in name_or_path or name_or_path.lower().endswith(".toml"):
        return with_nearest_protocols(read_cluster(name_or_path), stated_clusters())
    raise unknown("cluster named", name_or_path, (*_files(), *slice_names()))


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
    """The cluster with each protocol that a link lacks from the links of ``others`` that state it: links of the same
    sort (:data:`KINDS`), else of the same medium, else any. Of these the one of the nearest GPU
    (:func:`memwall.hardware.lookup.distance`) if it has the same compute capability, else the geometric mean of the
    nearest of each architecture, as latencies follow no trend from one to the next. Shares of the rate and seconds
    carry over as they are. ``eager_s`` is the nearest GPU's."""
    near = sorted(others, key=lambda other: distance(hardware_of(cluster), hardware_of(other)))
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
    stated = [
        (_unlike(known, link), other, known.protocols[protocol])
        for other in near
        for known in other.link.values()
        if known.lends and protocol in known.protocols
    ]
    best = min((unlike for unlike, _, _ in stated), default=None)
    nearest: dict[str, tuple[str, Protocol]] = {}
    for unlike, other, how in stated:
        gpu = hardware_of(other)
        if unlike == best:
            nearest.setdefault(gpu.architecture, (other.name, how))
            if gpu.compute_capability == hardware_of(cluster).compute_capability:
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
    found, label = read_stated(path, SCHEMA, "clusters"), one_line(path)
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


def gpu_of(cluster: str | Path | Cluster | None) -> str:
    """The GPU of a cluster; without one that which memwall assumes."""
    return DEFAULT_GPU if cluster is None else load_cluster(cluster).gpu


def joined(gpus: Sequence[Gpu], cluster: str | Path | Cluster | None, world: int | None = None) -> list[Gpu]:
    """GPUs joined as a cluster says; for a ``world`` of several ranks, without one, as memwall knows them joined.

    Raises:
        UsageError: the cluster does not join so many ranks, or they do not fill its nodes; TPUs are joined as GPUs are,
            or GPUs as TPUs are.
    """
    if cluster is None and world is None:
        return list(gpus)
    found = []
    for gpu in gpus:
        links = cluster_of(gpu) if cluster is None else load_cluster(cluster)
        _check_filled(links, world or 1)
        if bool(hardware_of(links).tpu) != bool(gpu.tpu):
            raise UsageError(f"{links.name} joins {links.gpu}, whose links are of another kind than {gpu.name} has")
        found.append(replace(gpu, cluster=replace(links, sources={}, taken_from={})))
    return found


def _check_filled(cluster: Cluster, world: int) -> None:
    """Raise a UsageError where ranks do not fill nodes."""
    node = cluster.gpus_per_node
    if world > node and world % node:
        fewer = world // node * node
        raise UsageError(
            f"{world} ranks do not fill the nodes of {cluster.name}, which have {node} GPUs: start it with --world"
            f" {fewer} or {fewer + node}"
        )
    cluster.groups(world)


def cluster_of(gpu: Gpu) -> Cluster:
    """The cluster that memwall knows with a GPU, the first by name; else the one whose innermost link has the most
    similar rate, of the same architecture if several do. Of a TPU its usual slice."""
    if gpu.name in (each.name for each in all_gpus() if each.tpu):
        return usual_slice(gpu)
    known = [load_cluster(name) for name in cluster_names()]

    def away(cluster: Cluster) -> tuple[bool, float, bool]:
        rate = next(iter(cluster.link.values())).bytes_per_s
        far = abs(math.log(rate / (gpu.link_bytes_per_s / 2 or rate)))
        return cluster.gpu != gpu.name, round(far, 3), hardware_of(cluster).architecture != gpu.architecture

    return min(known, key=away)


def all_at_once(cluster: Cluster) -> Cluster:
    """The cluster for groups of GPUs that all communicate at once: each GPU has its part of a node's adapters."""
    links, gpus = dict(cluster.link), cluster.gpus_per_node
    for name, link in links.items():
        if KINDS[link.kind][0] == "network" and link.rails < gpus:
            links[name] = replace(link, rails=gpus, bytes_per_s=link.bytes_per_s * link.rails / gpus)
    return replace(cluster, link=links)
