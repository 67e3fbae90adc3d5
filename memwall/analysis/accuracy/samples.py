"""One measured row as the model sees it: what ran, on which GPU, how it was timed, how long it took; and the parts of a
data set to fit to and to score: by a hash of the shape, and by leaving a GPU out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from memwall.hardware.lookup import Gpu, inherit, stated
from memwall.ops import Cost


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured launch, or the launches of one op.

    ``launch`` names the way of timing (:class:`memwall.hardware.constants.LaunchConstants`): ``graph``, ``kernel`` or
    ``call``. ``resident_bytes`` of what it reads were in L2 before it began. ``shape`` identifies its shape, for the
    split into rows to fit and rows to score.
    """

    dataset: str
    #: the data set's name, and the GPU it refers to
    label: str
    gpu: Gpu
    op_class: str
    dtype: str
    shape: str
    cost: Cost
    launch: str
    resident_bytes: int
    measured_s: float
    #: seconds to which the data are rounded
    resolution_s: float = 0.0
    #: the key of the half that it belongs to; empty: its shape
    split: str = ""

    @property
    def split_by(self) -> str:
        """The key of the half that it belongs to: rows of one shape, on any GPU, are in one half."""
        return self.split or self.shape


# -- parts of a data set -----------------------------------------------------------------------------------------------


def in_fit_half(shape: str) -> bool:
    """Whether the constants may see a shape: the parity of its SHA-256, the same on every GPU."""
    return hashlib.sha256(shape.encode()).digest()[-1] % 2 == 0


def halves(samples: Iterable[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The samples to fit, and those to score; equal shapes are in one half."""
    parts: tuple[list[Sample], list[Sample]] = ([], [])
    for sample in samples:
        parts[not in_fit_half(sample.split_by)].append(sample)
    return parts


@lru_cache(maxsize=64)
def held_out_gpu(gpu: Gpu) -> Gpu:
    """The GPU as if no kernel had been measured on it: with the constants of the most similar other GPU. The host
    overhead of an eager call is kept: it is not a property of the GPU."""
    host = {key: n for key, n in gpu.utilization.items() if key.startswith("launch.call.")}
    others = [other for other in stated() if other.name != gpu.name]
    return inherit(replace(gpu, utilization=host, fitted_on={}), others)


def left_out(samples: Iterable[Sample]) -> list[Sample]:
    """The samples on GPUs as if no data of them existed."""
    return [replace(sample, gpu=held_out_gpu(sample.gpu)) for sample in samples]
