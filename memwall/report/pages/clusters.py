"""Cluster → Document: the clusters, one with the sources of its numbers, and collectives by size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import memwall.report.columns as col
from memwall.analysis.communication import CollectiveTimes
from memwall.core.structure import write
from memwall.core.units import bandwidth, counted, duration
from memwall.hardware.links import Cluster, Link
from memwall.report.document import Document, Section, Table, known_facts
from memwall.report.kinds import Report


@dataclass(frozen=True, slots=True)
class ClustersReport(Report):
    """All clusters in one table."""

    noun = "the clusters"
    kinds = ("text", "json")
    clusters: Sequence[Cluster]

    def document(self, kind: str) -> Document:
        rows = [
            (each.name, each.gpu, each.gpus_per_node, ", ".join(map(_level, each.link.values())))
            for each in self.clusters
        ]
        table = col.listing("", rows, "name: 0, GPU: 1, a node: 2 count, links: 3 prose", _CLUSTERS_NOTE)
        return Document("Clusters", (Section("", (table,)),))

    def record(self) -> str:
        return json.dumps([write(each) for each in self.clusters], indent=2)


_CLUSTERS_NOTE = (
    "a node: GPUs; links: the innermost first, with the GPUs that each joins and its rate one way, of a GPU or of all "
    "adapters of a node (of an NVL72, of its domain); one cluster with its sources: memwall clusters NAME"
)


def _level(link: Link) -> str:
    return f"{link.kind}{f' of {link.gpus}' if link.gpus else ''} {bandwidth(link.bytes_per_s * link.rails)}"


@dataclass(frozen=True, slots=True)
class ClusterReport(Report):
    """One cluster: its links, each number with its source, and what libraries reach over each."""

    noun = "a cluster"
    kinds = ("text", "json")
    cluster: Cluster

    def document(self, kind: str) -> Document:
        found = self.cluster
        facts = known_facts(("name", found.name), ("GPU", found.gpu), ("GPUs of a node", str(found.gpus_per_node)))
        return Document(found.full_name or found.name, (Section("", (facts, _links(found), _protocols(found))),))

    def record(self) -> str:
        return json.dumps(write(self.cluster), indent=2)


def _links(cluster: Cluster) -> Table:
    rows = [
        (
            name,
            link.kind,
            str(link.gpus or "any"),
            bandwidth(link.bytes_per_s),
            str(link.rails),
            cluster.sources.get(f"link.{name}.bytes_per_s", col.NOTHING),
        )
        for name, link in cluster.link.items()
    ]
    specs = "link: 0, kind: 1, joins@GPUs: 2 right, one way: 3 right, rails: 4 right, source of the rate: 5 prose"
    return col.listing("Links", rows, specs, "rails: paths out of a group of GPUs, of which each GPU can use one")


def _protocols(cluster: Cluster) -> Table:
    rows = []
    for name, link in cluster.link.items():
        for protocol, how in link.protocols.items():
            taken = cluster.taken_from.get(f"{name}.{protocol}")
            note = cluster.sources.get(f"link.{name}.protocols.{protocol}", col.NOTHING)
            rows.append(
                (
                    name,
                    protocol,
                    duration(how.start_s),
                    duration(how.step_s),
                    duration(how.fill_s),
                    how.share,
                    f"as in {taken}" if taken else note,
                )
            )
    specs = "link: 0, protocol: 1, start: 2 right, a step: 3 right, fill: 4 right, of the rate: 5 %, source: 6 prose"
    return col.listing("Protocols", rows, specs, "as in: the most similar link that was fitted")


@dataclass(frozen=True, slots=True)
class CommReport(Report):
    """Collectives by size."""

    noun = "a table of collectives"
    kinds = ("text", "md", "html", "csv", "json")
    found: CollectiveTimes

    def document(self, kind: str) -> Document:
        sections = [Section(op, (self._table(op),)) for op in dict.fromkeys(row.op for row in self.found.rows)]
        workers = self.found.rows[0].workers
        return Document(f"Collectives between {counted(workers, 'GPU')} of {self.found.cluster.name}", tuple(sections))

    def _table(self, op: str) -> Table:
        rows = [row for row in self.found.rows if row.op == op]
        columns = [
            col.plain("size", [row.nbytes for row in rows], unit="B"),
            col.fixed("time", "us", [row.time_s for row in rows], 1e-6, 2),
            col.fixed("algbw", "GB/s", [row.algorithm_bytes_per_s for row in rows], 1e9, 2),
            col.fixed("busbw", "GB/s", [row.bus_bytes_per_s for row in rows], 1e9, 2),
            col.percent("of the link", [row.link_share for row in rows]),
            col.text("taken", [row.way for row in rows]),
        ]
        return col.table("", columns, _COMM_NOTE)

    def record(self) -> str:
        columns, rows = self.rows()
        return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2)

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        return _COLUMNS, (
            (
                self.found.cluster.name,
                row.op,
                row.workers,
                row.nbytes,
                row.time_s,
                row.found.wire_s,
                row.found.bound_s,
                row.algorithm_bytes_per_s,
                row.bus_bytes_per_s,
                row.link_share,
                row.found.algorithm,
                row.found.protocol,
            )
            for row in self.found.rows
        )


_COLUMNS = (
    "cluster", "op", "gpus", "nbytes", "time_s", "wire_s", "bound_s", "algorithm_bytes_per_s", "bus_bytes_per_s",
    "link_share", "algorithm", "protocol",
)  # fmt: skip
_COMM_NOTE = (
    "size: as nccl-tests define it; algbw: size over time; busbw: that times what the op sends of it; "
    "of the link: the bytes of a ring, or of an all-to-all, at the nominal rate of the slowest link, over the time"
)
