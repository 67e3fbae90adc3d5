"""The two types that every formula uses: the :class:`Call` it is given and the :class:`Cost` it returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops.launches import Launch, Plain

#: represents launches that were not given
_ONE: Any = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call must do, and how its kernels do it. Costs add up with ``+``.

    FLOPs and bytes are the model's work and bound any kernel from below. The launches may do more (second passes,
    recomputation), which enters ``time_s`` only; every count of that is a sum over them.
    """

    #: multiply and add count one FLOP each, by the pipe that executes them
    flops: Mapping[Pipe, int] = field(default_factory=dict, hash=False)
    #: distinct bytes read from and written to device memory, each once
    read_bytes: int = 0
    write_bytes: int = 0
    #: False: the op has no formula; its bytes are charged, its FLOPs are unknown
    modeled: bool = True
    #: attention only: FLOPs as other tools count them, without the causal mask
    dense_flops: int | None = None
    #: bytes that cross the link to other GPUs or to the host, the one way that takes more
    link_bytes: float = 0.0
    #: of them, bytes that a switch which does the sums would spare
    spared_link_bytes: float = 0.0
    #: one after another; none given: one that moves the bytes and does the FLOPs
    launches: tuple[Launch, ...] = _ONE
    #: what would remain of it if a compiler's template, which timing may choose, did it or the matmul before it
    template: Cost | None = None
    #: of ``read_bytes``, bytes that are expected and that a run may spare: of experts that no token chose
    spared_read_bytes: int = 0

    def __post_init__(self) -> None:
        if self.launches is _ONE:
            plain = Plain(read_bytes=self.read_bytes, write_bytes=self.write_bytes, flops=self.flops)
            object.__setattr__(self, "launches", (plain,))

    @property
    def total_flops(self) -> int:
        """FLOPs over all pipes."""
        return sum(self.flops.values())

    @property
    def bytes(self) -> int:
        """Compulsory DRAM bytes, read and written."""
        return self.read_bytes + self.write_bytes

    @property
    def least_read_bytes(self) -> int:
        """Bytes that any run reads; they bound the time."""
        return max(self.read_bytes - self.spared_read_bytes, 0)

    @property
    def least_bytes(self) -> int:
        """Bytes that any run reads and writes."""
        return self.least_read_bytes + self.write_bytes

    @property
    def kernels(self) -> int:
        """Kernels that the call launches."""
        return sum([launch.count for launch in self.launches])

    @property
    def latencies(self) -> int:
        """Launch latencies that follow one another: latencies of its kernels, but for kernels that overlap."""
        return sum([launch.latencies for launch in self.launches])

    @property
    def extra_bytes(self) -> int:
        """DRAM traffic of the launches beyond the compulsory bytes."""
        return max(sum([launch.bytes for launch in self.launches]) - self.bytes, 0)

    @property
    def extra_flops(self) -> int:
        """FLOPs of the launches beyond the model's (recomputation); kernels that memory holds may state none."""
        return max(sum([sum(launch.pipe_flops.values()) for launch in self.launches]) - self.total_flops, 0)

    @property
    def least_flops(self) -> int | None:
        """FLOPs of the fastest algorithm known, where it needs fewer (Winograd, Fourier transforms)."""
        spared = sum([launch.spared_flops for launch in self.launches])
        return self.total_flops - spared if spared else None

    def __add__(self, other: Cost) -> Cost:
        flops = dict(self.flops)
        for pipe, count in other.flops.items():
            flops[pipe] = flops.get(pipe, 0) + count
        dense = None  # all FLOPs where one of the two states none
        if self.dense_flops is not None or other.dense_flops is not None:
            dense = sum(c.total_flops if c.dense_flops is None else c.dense_flops for c in (self, other))
        return Cost(
            flops,
            self.read_bytes + other.read_bytes,
            self.write_bytes + other.write_bytes,
            self.modeled and other.modeled,
            dense,
            self.link_bytes + other.link_bytes,
            self.spared_link_bytes + other.spared_link_bytes,
            self.launches + other.launches,
            spared_read_bytes=self.spared_read_bytes + other.spared_read_bytes,
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One op as a formula sees it: specs instead of tensors.

    ``inputs`` are flattened in schema order; ``arguments[i]`` names the schema argument of ``inputs[i]`` (the items of
    a list argument share its name). ``read_bytes`` and ``write_bytes`` are the distinct bytes of all inputs and of all
    outputs: what an op moves unless its formula knows better.
    """

    name: str
    inputs: tuple[TensorSpec, ...]
    arguments: tuple[str, ...]
    outputs: tuple[TensorSpec, ...]
    attributes: Mapping[str, Any]
    read_bytes: int
    write_bytes: int

    def arg(self, name: str) -> TensorSpec | None:
        """The tensor passed as schema argument ``name``, or None when it was not given."""
        for argument, spec in zip(self.arguments, self.inputs, strict=True):
            if argument == name:
                return spec
        return None

    def need(self, name: str) -> TensorSpec:
        """Like :meth:`arg`; raises ``KeyError`` when it is missing."""
        spec = self.arg(name)
        if spec is None:
            raise KeyError(f"{self.name} has no tensor argument {name!r}; it has {self.arguments}")
        return spec

    def args(self, name: str) -> tuple[TensorSpec, ...]:
        """All tensors passed as list argument ``name``."""
        return tuple(s for a, s in zip(self.arguments, self.inputs, strict=True) if a == name)

    def bytes_except(self, *names: str) -> int:
        """Bytes of the inputs that are not passed as one of these arguments."""
        return sum(s.nbytes for a, s in zip(self.arguments, self.inputs, strict=True) if a not in names)

    def cost(
        self,
        flops: Mapping[Pipe, int] | None = None,
        *,
        read_bytes: int | None = None,
        write_bytes: int | None = None,
        extra_bytes: int = 0,
        kernels: int = 1,
        dense_flops: int | None = None,
        spared_read_bytes: int = 0,
        launches: tuple[Launch, ...] | None = None,
    ) -> Cost:
        """A :class:`Cost` with this call's compulsory bytes unless they are given.

        Without ``launches`` it is ``kernels`` of them that together read ``extra_bytes`` more.
        """
        counts = {pipe: int(n) for pipe, n in (flops or {}).items() if n}
        read = self.read_bytes if read_bytes is None else int(read_bytes)
        write = self.write_bytes if write_bytes is None else int(write_bytes)
        if launches is None:
            moved = {"read_bytes": read + extra_bytes, "write_bytes": write}
            launches = (Plain(flops=counts, count=kernels, **moved),)
        return Cost(
            counts, read, write, dense_flops=dense_flops, spared_read_bytes=spared_read_bytes, launches=launches
        )


def fetched_bytes(source: TensorSpec, elements: int) -> int:
    """Bytes of the source that so many fetched elements can touch."""
    return min(elements * source.itemsize, source.nbytes)


def touched_bytes(
    data: TensorSpec,
    window: Sequence[int],
    positions: Sequence[int],
    stride: Sequence[int] | int,
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
) -> int:
    """Bytes of ``data`` that windows over its last axes touch: a stride longer than the window skips positions.

    Args:
        window, positions: the window's size and the number of windows, per axis.
        stride, padding, dilation: per axis, or one number for all of them.
    """
    rank = len(window)
    sizes = data.shape[len(data.shape) - rank :]
    axes = (window, positions, *(per_axis(value, rank) for value in (stride, padding, dilation)), sizes)
    met = math.prod(_met(*axis) for axis in zip(*axes, strict=True))
    whole = math.prod(sizes)
    return data.nbytes * met // whole if whole else 0


def per_axis(value: Sequence[int] | int, rank: int) -> list[int]:
    """A number for each axis, where a call gives one for all."""
    values = [value] if isinstance(value, int) else list(value)
    return values if len(values) == rank else values[:1] * rank


def _met(length: int, count: int, stride: int, padding: int, dilation: int, size: int) -> int:
    """How many of the ``size`` positions of one axis are in some of ``count`` windows."""
    if (dilation == 1 and stride <= length) or (stride == 1 and dilation <= count):
        last = (count - 1) * stride + (length - 1) * dilation - padding
        return max(min(last, size - 1) - max(-padding, 0) + 1, 0)
    places = {o * stride + k * dilation - padding for o in range(count) for k in range(length)}
    return sum(0 <= place < size for place in places)
