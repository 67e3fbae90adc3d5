"""Which layouts a training step on so many GPUs may have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from memwall.core.errors import UsageError, unknown
from memwall.core.units import counted
from memwall.training.layout import RECOMPUTES, SCHEDULES, SHARDS, Parallelism


class LayoutCandidate(NamedTuple):
    """A layout with the samples of a microbatch."""

    layout: Parallelism
    batch: int


def layouts(
    gpus: int, global_batch: int, layers: int, cps: Sequence[int] = (1,), eps: Sequence[int] = (1,)
) -> Iterator[LayoutCandidate]:
    """All layouts of a model on all of ``gpus``: what differs in name alone is left out, such as the schedule of one
    stage; the interleaved schedule has chunks of equally many layers."""
    for pp, tp, cp in itertools.product(_divisors(gpus), _divisors(gpus), cps):
        dp = gpus // (tp * pp * cp)
        if dp * tp * pp * cp == gpus and pp <= layers and global_batch % dp == 0:
            for batch in _divisors(global_batch // dp):
                plain = Parallelism(tp=tp, pp=pp, cp=cp, dp=dp, microbatches=global_batch // (dp * batch))
                yield from (LayoutCandidate(layout, batch) for layout in _varied(plain, layers, eps))


def _varied(plain: Parallelism, layers: int, eps: Sequence[int]) -> Iterator[Parallelism]:
    """A layout with everything that divides no GPUs."""
    exchanges = [
        (sp, ep)
        for sp in (False, True)
        if sp <= (plain.tp > 1)
        for ep in eps
        if (plain.tp * plain.replicas) % ep == 0 and (ep == 1 or plain.tp == 1 or sp)
    ]
    shards = SHARDS if plain.replicas > 1 else ("none",)
    varied = itertools.product(_schedules(plain, layers), exchanges, shards, RECOMPUTES)
    for (schedule, chunks), (sp, ep), fsdp, recompute in varied:
        yield replace(plain, schedule=schedule, chunks=chunks, sp=sp, ep=ep, fsdp=fsdp, recompute=recompute)


def _schedules(plain: Parallelism, layers: int) -> Iterator[tuple[str, int]]:
    for schedule in SCHEDULES if plain.pp > 1 else ("1f1b",):
        if schedule != "interleaved":
            yield schedule, 1
        elif plain.microbatches % plain.pp == 0 and layers % plain.pp == 0:
            yield from ((schedule, chunks) for chunks in _divisors(layers // plain.pp) if chunks > 1)


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


_COUNTS = ("tp", "pp", "dp", "cp", "ep", "microbatches", "batch")
_WORDS: Mapping[str, Sequence[str]] = {"sp": ("yes", "no"), "fsdp": SHARDS, "recompute": RECOMPUTES}


def _said(each: LayoutCandidate, key: str) -> tuple[str, ...]:
    """What a layout says of a key, in each way that it may be written."""
    layout = each.layout
    if key == "schedule":
        return layout.schedule, f"{layout.schedule}:{layout.chunks}"
    if key == "sp":
        return ("yes" if layout.sp else "no",)
    return (str(each.batch if key == "batch" else getattr(layout, key)),)


def check_among(among: Mapping[str, Sequence[str]]) -> None:
    """Refuse keys and values that no layout has. Raises ``UsageError``: names the nearest."""
    for key, values in among.items():
        if key not in (known := (*_COUNTS, *_WORDS, "schedule")):
            raise unknown("key of a layout", key, known)
        for value in values:
            if key == "schedule":
                Parallelism.parse(f"schedule={value}" if ":" in value or value != "interleaved" else "tp=1")
            elif key in _WORDS and value not in _WORDS[key]:
                raise unknown(key, value, _WORDS[key])
            elif key in _COUNTS and not (value.isdecimal() and int(value)):
                raise UsageError(f"{key} of a layout is a whole number above 0, not {value[:40]!r}")


def wanted(each: LayoutCandidate, among: Mapping[str, Sequence[str]]) -> bool:
    """Whether a layout has the values to be tried."""
    return all(any(text in values for text in _said(each, key)) for key, values in among.items())


def no_layout(gpus: int, global_batch: int, among: Mapping[str, Sequence[str]]) -> str:
    """Why no layout can be tried."""
    asked = " ".join(f"{key}={','.join(values)}" for key, values in among.items())
    return (
        f"no layout of {counted(gpus, 'GPU')} divides a global batch of {global_batch:,}{' among ' * bool(asked)}"
        f"{asked}: the replicas are {gpus:,} / (tp * pp), and their microbatches divide the rest"
    )
