"""What a group launches: its matrix kernels with the bytes that are left to them, else one kernel that streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from memwall.ops import Cost
from memwall.ops.launches import Attention, Convolution, Gemm, Stream, Work

#: Kinds of work that stay what they are when others join them.
MATRIX = (Gemm, Convolution, Attention)


def with_works(cost: Cost, eager: Iterable[Work]) -> Cost:
    """The cost of a group with its launches, given those of its ops as eager kernels.

    Products keep their shape and share the group's bytes as they did before; what else is in the group rides along.
    Without any the group is one generated kernel over its bytes. Of ops whose launches nobody knows neither are the
    group's.
    """
    known = tuple(eager)
    if not known:
        return replace(cost, works=())
    matrix = [work for work in known if isinstance(work, MATRIX)]
    return replace(cost, works=_shared(cost, matrix) if matrix else (_stream(cost),))


def _shared(cost: Cost, matrix: Sequence[Work]) -> tuple[Work, ...]:
    before = sum(work.bytes for work in matrix)
    read_left, write_left = cost.read_bytes + cost.extra_bytes, cost.write_bytes
    shared: list[Work] = []
    for work in matrix[1:]:
        share = work.bytes / before if before else 0.0
        read_bytes, write_bytes = (int((cost.read_bytes + cost.extra_bytes) * share), int(cost.write_bytes * share))
        shared.append(replace(work, read_bytes=read_bytes, write_bytes=write_bytes))
        read_left, write_left = read_left - read_bytes, write_left - write_bytes
    return (replace(matrix[0], read_bytes=read_left, write_bytes=write_left), *shared)


def _stream(cost: Cost) -> Stream:
    pipe = max(cost.flops, key=lambda p: cost.flops[p], default=None)
    return Stream(
        kind="generated", read_bytes=cost.read_bytes + cost.extra_bytes, write_bytes=cost.write_bytes,
        flops=cost.total_flops + cost.extra_flops, pipe=pipe, programs=cost.programs,
    )  # fmt: skip
