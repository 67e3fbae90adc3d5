"""Rows to fit and rows to score: by a hash of the shape, and by leaving a GPU out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from memwall.analysis.accuracy.samples import Sample
from memwall.hardware.lookup import Gpu, inherit, stated


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
def stranger(gpu: Gpu) -> Gpu:
    """The board as if no kernel had been measured on it: with the constants of the most similar of the others. The
    host's way around an eager call, which is no property of a GPU, stays."""
    host = {key: n for key, n in gpu.utilization.items() if key.startswith("launch.call.")}
    others = [board for board in stated() if board.name != gpu.name]
    return inherit(replace(gpu, utilization=host, fitted_on={}), others)


def left_out(samples: Iterable[Sample]) -> list[Sample]:
    """The samples on boards as if there were no data of them."""
    return [replace(sample, gpu=stranger(sample.gpu)) for sample in samples]
