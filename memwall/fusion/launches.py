"""The launches of a group: its matrix kernels with their remaining bytes, else one streaming kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from memwall.ops import Cost
from memwall.ops.launches import Attention, Convolution, Gemm, Launch, Plain, Stream

#: Kinds of launches that keep their kind when others join them.
MATRIX = (Gemm, Convolution, Attention)


def with_launches(
    cost: Cost,
    eager: Iterable[Launch],
    *,
    kernels: int = 1,
    extra_bytes: int = 0,
    extra_flops: int = 0,
    thread_blocks: int | None = None,
) -> Cost:
    """The cost of a group with its launches, given those of its ops as eager kernels.

    Products keep their shape and their share of the group's bytes; other ops add no launch. Without products the group
    is one generated kernel over its bytes. If the launches of an op are unknown, the group's are too.

    Args:
        kernels: the number of launches.
        extra_bytes, extra_flops: bytes and FLOPs beyond the group's compulsory ones.
        thread_blocks: the most thread blocks of the group.
    """
    moved = {"read_bytes": cost.read_bytes + extra_bytes, "write_bytes": cost.write_bytes}
    known = [launch for launch in eager if not isinstance(launch, Plain)]
    matrix = [launch for launch in known if isinstance(launch, MATRIX)]
    launches: tuple[Launch, ...]
    if matrix:
        launches = _shared(matrix, **moved, kernels=kernels, thread_blocks=thread_blocks)
    elif known:
        pipe = max(cost.flops, key=lambda p: cost.flops[p], default=None)
        flops = cost.total_flops + extra_flops
        launches = (
            Stream(kind="generated", **moved, flops=flops, pipe=pipe, count=kernels, thread_blocks=thread_blocks),
        )
    else:
        launches = (Plain(**moved, flops=cost.flops, count=kernels, thread_blocks=thread_blocks),)
    return replace(cost, launches=launches)


def _shared(
    matrix: Sequence[Launch], read_bytes: int, write_bytes: int, kernels: int, thread_blocks: int | None
) -> tuple[Launch, ...]:
    before = sum(launch.bytes for launch in matrix)
    read_left, write_left, left = read_bytes, write_bytes, kernels
    shared: list[Launch] = []
    for launch in matrix[1:]:
        share = launch.bytes / before if before else 0.0
        read, write, count = int(read_bytes * share), int(write_bytes * share), min(left - 1, 1)
        shared.append(replace(launch, read_bytes=read, write_bytes=write, count=count))
        read_left, write_left, left = read_left - read, write_left - write, left - count
    first = replace(matrix[0], read_bytes=read_left, write_bytes=write_left, count=left, thread_blocks=thread_blocks)
    return (first, *shared)
