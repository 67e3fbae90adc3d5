"""Layouts of convolutions: cuDNN's kernels for tensor cores take NHWC (``channels_last``) and convert anything else."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.analysis.table import group_by
from memwall.analysis.whole_profile import nchw_tensors
from memwall.core.graph import Graph
from memwall.gate.diff import Cause, together
from memwall.record.kernels import collapse


def layouts(graph: Graph) -> str:
    """``3 of 12 convolutions read or write NCHW``."""
    found = [nchw_tensors(graph, op) for op in graph.ops]
    rows = [tensors for tensors in found if tensors is not None]
    return f"{sum(map(bool, rows)):,} of {len(rows):,} convolutions read or write NCHW"


def given_up(base: Graph, head: Graph, pairs: Mapping[int, int]) -> tuple[Cause, ...]:
    """The convolutions of the head that pass more bytes in NCHW than their counterparts of the base (``pairs``: head op
    id → base op id), as :func:`memwall.gate.diff.explain` lists causes; ``dram_bytes`` are bytes in NCHW."""
    causes = []
    for op in head.ops:
        now = nchw_tensors(head, op) or []
        before = nchw_tensors(base, base.ops[pairs[op.id]]) or [] if op.id in pairs else []
        more = sum(spec.nbytes for spec in now) - sum(spec.nbytes for spec in before)
        if more > 0:
            was = "NCHW where channels_last was" if len(now) > len(before) else "more bytes in NCHW"
            what = was if op.id in pairs else "a new convolution in NCHW"
            name = op.name.removeprefix("aten.")
            causes.append(Cause("grew", name, op.module, op.phase, op.source, 1, 0, 0, more, 0.0, what))
    keys = [(cause.op, collapse(cause.module), cause.phase, cause.source, cause.detail) for cause in causes]
    return tuple(sorted(map(together, group_by(causes, keys).values()), key=lambda cause: -cause.dram_bytes))
