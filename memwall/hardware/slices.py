"""Slices of TPU pods as clusters: ``tpu-v5e-16x16``, ``tpu-v4-4x4x8`` and any other size that a pod has.

Chips of a slice are joined by links along the axes of a torus (ICI), and slices by the networks of their hosts (DCN).
An axis is a ring where its length is a multiple of ``ici_ring`` of the TPU, else it is a line. Three axes are rings
only where all can be, since optical switches close rings of whole cubes (JAX scaling book, "How to think about TPUs").
A slice counts as a node. How well XLA's collectives use a link is one protocol, ``torus``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from memwall.core.errors import UsageError
from memwall.core.units import counted
from memwall.hardware.gpu import Gpu, Tpu
from memwall.hardware.links import Cluster, Link, Protocol
from memwall.hardware.lookup import all_gpus

_NAME = re.compile(r"(tpu-\w+)-([1-9]\d{0,3}(?:x[1-9]\d{0,3})+)")
#: seconds before the first byte: small all-gathers over four chips of a v5e take 8 us where three hops ask for 3
#: (JAX scaling book, sharding.md, pop quiz 2)
START_S = 5e-6
#: share of the links' rate that collectives reach: one of 33.6 MB takes 680 us there, 672 without the start and the
#: hops, of which three quarters of it over a link of 50 GB/s are 503; the network's is taken to be as much
REACHED = 503 / 672


class _Shapes(NamedTuple):
    holds: Callable[[Sequence[int]], bool]
    said: str


#: axes → which shapes slices have (Google Cloud TPU documentation, supported topologies of v5e, and of v4)
_SHAPES: Mapping[int, _Shapes] = {
    2: _Shapes(
        lambda shape: {*shape} <= {2, 4, 8, 16} and max(shape) <= 2 * min(shape),
        "of 2, 4, 8 or 16, and one at most twice the other, as in 4x8",
    ),
    3: _Shapes(
        lambda shape: all(n % 4 == 0 for n in shape) or ({*shape} <= {1, 2, 4} and sorted(shape)[1] > 1),
        "multiples of 4, or a part of one cube, as in 2x2x4",
    ),
}


def slice_names() -> tuple[str, ...]:
    """A slice of each TPU, of slices that need no other: a pod of two axes, a cube of three."""
    return tuple(_usual(gpu) for gpu in all_gpus() if gpu.tpu)


def usual_slice(gpu: Gpu) -> Cluster:
    """The slice that is meant where none is named."""
    found = slice_of(_usual(gpu))
    assert found is not None
    return found


def _usual(gpu: Gpu) -> str:
    assert gpu.tpu is not None
    return f"{gpu.name}-{'x'.join([str(gpu.tpu.ici_ring)] * gpu.tpu.ici_axes)}"


def slice_of(name: str) -> Cluster | None:
    """The slice of a name; None where it names none.

    Raises:
        UsageError: a TPU has no slice of that size.
    """
    found = _NAME.fullmatch(name.lower())
    gpu = next((each for each in all_gpus() if found and each.tpu and each.name == found[1]), None)
    if found is None or gpu is None or gpu.tpu is None:
        return None
    shape = tuple(map(int, found[2].split("x")))
    _check(name, shape, gpu.tpu)
    chips = math.prod(shape)
    torus = Protocol(start_s=START_S, step_s=gpu.tpu.ici_hop_s, fill_s=0.0, share=REACHED)
    hosts = -(-chips // gpu.tpu.host_chips)
    return Cluster(
        name=f"{gpu.name}-{found[2]}",
        gpu=gpu.name,
        gpus_per_node=chips,
        link={
            "ici": Link("ici", chips, gpu.tpu.ici_bytes_per_s, torus=shape, rings=_rings(shape, gpu.tpu),
                        protocols={"torus": torus}),
            "dcn": Link("dcn", 0, gpu.tpu.dcn_bytes_per_s, hosts, protocols={"torus": torus}),
        },
        full_name=f"{gpu.full_name.partition(' (')[0]}, slice of {found[2]}, {counted(hosts, 'host')}",
        sources=_sources(gpu.sources),
    )  # fmt: skip


def _check(name: str, shape: tuple[int, ...], tpu: Tpu) -> None:
    if len(shape) != tpu.ici_axes or max(shape) > tpu.ici_most or not _SHAPES[tpu.ici_axes].holds(shape):
        raise UsageError(
            f"no slice named {name[:60]!r}: a slice has {tpu.ici_axes} axes of up to {tpu.ici_most} chips each,"
            f" {_SHAPES[tpu.ici_axes].said}"
        )


def _rings(shape: tuple[int, ...], tpu: Tpu) -> tuple[int, ...]:
    """For each axis 1 where it is a ring, else 0."""
    closed = [length % tpu.ici_ring == 0 for length in shape]
    return tuple(int(each and (tpu.ici_axes == 2 or all(closed))) for each in closed)


def _sources(known: Mapping[str, str]) -> dict[str, str]:
    """The sources of the links' numbers, from the TPU's sources."""
    reached = "JAX scaling book, sharding.md, pop quiz 2: an all-gather of a v5e takes 680 us, its bytes 503"
    return {
        "link.ici.bytes_per_s": known.get("tpu.ici_bytes_per_s", ""),
        "link.dcn.bytes_per_s": known.get("tpu.dcn_bytes_per_s", ""),
        "link.ici.protocols.torus": reached,
        "link.dcn.protocols.torus": "as of ICI: no rows of this network",
    }
