"""Layouts of convolutions: cuDNN's kernels for tensor cores take NHWC (``channels_last``) and convert anything else."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.analysis.diff import Cause, together
from memwall.analysis.quantities import nchw_bytes_of
from memwall.analysis.table import group_by
from memwall.core.graph import Graph
from memwall.record.kernels import collapse


def layouts(graph: Graph) -> str:
    """``3 of 12 convolutions run in NCHW``."""
    found = [nchw_bytes_of(graph, op) for op in graph.ops]
    rows = [count for count in found if count is not None]
    return f"{sum(map(bool, rows)):,} of {len(rows):,} convolutions read or write NCHW"


def given_up(base: Graph, head: Graph, pairs: Mapping[int, int]) -> tuple[Cause, ...]:
    """The convolutions of the head that pass more bytes in NCHW than their counterparts of the base (``pairs``: head op
    id → base op id), as :func:`memwall.analysis.diff.explain` lists causes; ``dram_bytes`` are those in NCHW."""
    causes = []
    for op in head.ops:
        more = (nchw_bytes_of(head, op) or 0) - _before(base, pairs.get(op.id))
        if more > 0:
            name = op.name.removeprefix("aten.")
            what = "a new convolution in NCHW" if op.id not in pairs else "NCHW where channels_last was"
            causes.append(Cause("grew", name, op.module, op.phase, op.source, 1, 0, 0, more, 0.0, what))
    keys = [(cause.op, collapse(cause.module), cause.phase, cause.source, cause.detail) for cause in causes]
    return tuple(sorted(map(together, group_by(causes, keys).values()), key=lambda cause: -cause.dram_bytes))


def _before(graph: Graph, op: int | None) -> int:
    return 0 if op is None else nchw_bytes_of(graph, graph.ops[op]) or 0
