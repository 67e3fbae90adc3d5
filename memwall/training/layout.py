"""How a training job is laid out over GPUs: ``tp=8,sp,pp=4,dp=16,fsdp=full,microbatches=32,schedule=interleaved:2``.

Ranks are numbered as Megatron does it: those that share tensors are next to each other, then those that share a
context, then the replicas, then the stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from memwall.core.errors import UsageError, unknown

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb")
#: schedules in which a forward pass is followed by a backward pass → as a layout says them
PAIRED = {"1f1b": "1f1b", "interleaved": "interleaved:N"}
#: what each replica holds a share of: ``optimizer`` of the optimizer's state (ZeRO-1, Megatron-LM's distributed
#: optimizer: whole gradients are kept, and summed once a step), ``grad`` of gradients too (ZeRO-2, FSDP's
#: ``SHARD_GRAD_OP``: each microbatch's are summed into the shares), ``full`` of weights too (ZeRO-3)
SHARDS = ("none", "optimizer", "grad", "full")
RECOMPUTES = ("none", "selective", "full")
#: how tokens get to experts of other GPUs (:mod:`memwall.training.dispatch`)
DISPATCHERS = ("alltoall", "hybridep")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """A layout of training. ``tp`` GPUs share each product (``sp``: and what lies between products, along the
    sequence), ``cp`` each sequence, ``ep`` the experts (of the replicas' GPUs); ``pp`` stages of layers; ``dp``
    replicas. A step has ``microbatches`` for each replica; ``chunks`` of layers for each stage are of the interleaved
    schedule. ``recompute`` drops activations of attention's core, or all but the inputs of blocks, and computes them
    again in backward. With ``async_tp`` the GPUs of ``tp`` exchange parts of a tensor while others are multiplied, so
    that only the first part is waited for. ``dispatcher`` brings tokens to the experts of other GPUs; with
    ``a2a_overlap`` it does while another microbatch is computed in the other direction."""

    tp: int = 1
    sp: bool = False
    pp: int = 1
    dp: int = 1
    fsdp: str = "none"
    cp: int = 1
    ep: int = 1
    microbatches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1
    recompute: str = "none"
    async_tp: bool = False
    dispatcher: str = "alltoall"
    a2a_overlap: bool = False

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """The layout that a text such as ``tp=8,sp,pp=4,recompute=full`` says; what it does not say is 1, or none.

        Raises:
            UsageError: an unknown key (names the nearest), one given twice, or a value that it cannot have.
        """
        given: dict[str, Any] = {}
        for part in filter(None, re.split(r"[,\s]+", text.strip())):
            key, equals, value = part.partition("=")
            if key not in SETTINGS:
                raise unknown("key of a layout", key[:40], SETTINGS)
            if key in given:
                raise UsageError(f"the layout says {key} twice: {text[:80]!r}")
            given |= SETTINGS[key](key, value if equals else "")
        found = cls(**given)
        found.check()
        return found

    @property
    def world(self) -> int:
        """GPUs of the job."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def replicas(self) -> int:
        """GPUs that have the same weights, between which gradients are summed."""
        return self.dp * self.cp

    @property
    def sums_each(self) -> bool:
        """Whether the gradients of each microbatch are summed over the replicas, and added up in shares."""
        return self.fsdp == "full" or (self.fsdp == "grad" and self.microbatches > 1)

    @property
    def traced(self) -> Parallelism:
        """What of it a rank's graph depends on."""
        return Parallelism(tp=self.tp, sp=self.sp, cp=self.cp, ep=self.ep)

    def check(self, *, world: int | None = None, layers: int | None = None, heads: int | None = None) -> None:
        """Refuse a layout that no job can have, or that does not divide so many GPUs, layers or heads.

        Raises:
            UsageError: says which, and what would do.
        """
        replica, virtual, wanted = self.tp * self.cp * self.pp, self.pp * self.chunks, world or self.world
        hint = f": dp={wanted // replica} would" if wanted % replica == 0 else ""
        rules = (
            (self.async_tp and self.tp == 1, "async is of the GPUs of tp: give tp=2 or more"),
            (self.sp and self.tp == 1, "sp shares the sequence among the GPUs of tp: give tp=2 or more"),
            (self.schedule == "interleaved" and self.chunks < 2, "schedule=interleaved:N needs 2 or more chunks"),
            (self.chunks > 1 and self.microbatches % self.pp,
             f"the interleaved schedule needs microbatches that pp divides, not {self.microbatches} with pp={self.pp}"),
            (self.ep > 1 and self.tp > 1 and not self.sp,
             "ep shares experts among GPUs that have tokens of their own: with tp, give sp"),
            ((self.dp * self.cp * self.tp) % self.ep, f"ep={self.ep} does not divide the {self.dp * self.cp * self.tp}"
             " GPUs of a stage"),
            (self.ep == 1 and self.dispatcher != "alltoall", f"dispatcher={self.dispatcher} brings tokens to experts of"
             " other GPUs: give ep=2 or more"),
            (self.ep == 1 and self.a2a_overlap, "a2a_overlap hides messages to experts of other GPUs: give ep=2 or"
             " more"),
            (self.a2a_overlap and self.schedule not in PAIRED, "a2a_overlap runs a microbatch forward next to another"
             f" one backward, which schedule={self.schedule} does not: give {' or '.join(PAIRED.values())}"),
            (self.a2a_overlap and self.sums_each, f"a2a_overlap next to messages of fsdp={self.fsdp} in each microbatch"
             " is not modeled: give fsdp=optimizer or none"),
            (wanted != self.world, f"{self} needs {self.world:,} GPUs, not {wanted:,}{hint}"),
            (layers is not None and virtual > layers,
             f"{virtual} stages of layers, and the model has {layers} equal layers"),
            (heads is not None and heads % self.tp, f"tp={self.tp} does not divide the {heads} heads of attention"),
        )  # fmt: skip
        for is_wrong, why in rules:
            if is_wrong:
                raise UsageError(why)

    def __str__(self) -> str:
        """The text that :meth:`parse` reads, without what is 1 or none."""
        said = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "schedule" and value == "interleaved":
                said.append(f"schedule=interleaved:{self.chunks}")
            elif value != item.default and item.name != "chunks":
                said.append(item.name.removesuffix("_tp") if value is True else f"{item.name}={value}")
        return ",".join(said) or "tp=1"


def _count(key: str, value: str) -> dict[str, int]:
    if not value.isascii() or not value.isdecimal() or not 0 < int(value) < 1 << 20:
        raise UsageError(f"{key} of a layout is a whole number above 0, as in {key}=8, not {value[:40]!r}")
    return {key: int(value)}


def _flag(key: str, value: str) -> dict[str, bool]:
    if value:
        raise UsageError(f"{key} of a layout takes no value; leave it out or write {key} alone")
    return {key: True}


def _schedule(key: str, value: str) -> dict[str, Any]:
    name, colon, chunks = value.partition(":")
    if name not in SCHEDULES or (colon and name != "interleaved"):
        raise unknown("schedule", value[:40], ("gpipe", "1f1b", "interleaved:2", "zb"))
    return {key: name, **(_count("chunks", chunks) if colon else {})}


def _one_of(known: tuple[str, ...]) -> Callable[[str, str], dict[str, str]]:
    def read(key: str, value: str) -> dict[str, str]:
        if value not in known:
            raise unknown(key, value[:40], known)
        return {key: value}

    return read


#: key of a layout → what reads its value: key, text → fields of :class:`Parallelism`
SETTINGS: Mapping[str, Callable[[str, str], Mapping[str, Any]]] = {
    **dict.fromkeys(("tp", "pp", "dp", "cp", "ep", "microbatches"), _count), "sp": _flag, "schedule": _schedule,
    "async": lambda key, value: {"async_tp": _flag(key, value)[key]},
    "fsdp": _one_of(SHARDS), "recompute": _one_of(RECOMPUTES), "dispatcher": _one_of(DISPATCHERS), "a2a_overlap": _flag,
}  # fmt: skip
#: those that are given or left out
FLAGS = ("sp", "async", "a2a_overlap")
