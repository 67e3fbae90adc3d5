"""What a group launches: its matrix kernels with the bytes that are left to them, else one kernel that streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from memwall.ops import Cost
from memwall.ops.launches import Attention, Convolution, Gemm, Launch, Plain, Stream

#: Kinds of work that stay what they are when others join them.
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

    Products keep their shape and share the group's bytes as they did before; what else is in the group rides along.
    Without any the group is one generated kernel over its bytes. Of ops whose launches nobody knows neither are the
    group's.

    Args:
        kernels: how many of them there are.
        extra_bytes, extra_flops: what they read and compute beyond the group's compulsory bytes and FLOPs.
        thread_blocks: into how many the group falls at most.
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
