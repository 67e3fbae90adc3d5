"""How a training job is laid out over GPUs: ``tp=8,sp,pp=4,dp=16,fsdp=full,microbatches=32,schedule=interleaved:2``.

Ranks are numbered as Megatron does it: ranks that share tensors are next to each other, then ranks that share a
context, then the replicas, then the stages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from memwall.core.errors import UsageError, unknown
from memwall.core.question import Option, options_of

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
    """A layout of training. Each field but ``chunks``, which ``schedule=interleaved:N`` says, is a key of a layout."""

    tp: Annotated[int, Option(help="GPUs that share each matmul.")] = 1
    sp: Annotated[
        bool, Option(help="What lies between matmuls is shared among the GPUs of tp, along the sequence.")
    ] = False
    pp: Annotated[int, Option(help="Stages of layers.")] = 1
    dp: Annotated[int, Option(help="Replicas.")] = 1
    fsdp: Annotated[str, Option(help="What each replica holds a share of.", choices=SHARDS)] = "none"
    cp: Annotated[int, Option(help="GPUs that share each sequence.")] = 1
    ep: Annotated[int, Option(help="GPUs of the replicas that share the experts.")] = 1
    microbatches: Annotated[int, Option(help="Microbatches of a step for each replica.")] = 1
    schedule: Annotated[
        str, Option(help="gpipe, 1f1b, interleaved:N with N chunks of layers for each stage, or zb.")
    ] = "1f1b"
    chunks: Annotated[int, Option(internal=True)] = 1
    recompute: Annotated[
        str,
        Option(
            help="Activations that are dropped and computed again in backward: of attention's"
            " core, or all but the inputs of blocks.",
            choices=RECOMPUTES,
        ),
    ] = "none"
    async_tp: Annotated[
        bool,
        Option(
            help="GPUs of tp exchange parts of a tensor while others are multiplied, so that"
            " only the first part is waited for.",
            flag="async",
        ),
    ] = False
    dispatcher: Annotated[str, Option(help="What brings tokens to the experts of other GPUs.", choices=DISPATCHERS)] = (
        "alltoall"
    )
    a2a_overlap: Annotated[
        bool, Option(help="The dispatcher runs while another microbatch is computed in the other direction.")
    ] = False
    shards: Annotated[
        int, Option(help="GPUs that hold a share each, of which other replicas have copies (HSDP). [default: all]")
    ] = 0

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
    def sharers(self) -> int:
        """Of these, replicas that hold a share each."""
        return self.shards or self.replicas

    @property
    def sums_each(self) -> bool:
        """Whether the gradients of each microbatch are summed over the replicas, and added up in shares."""
        return self.fsdp == "full" or (self.fsdp == "grad" and self.microbatches > 1)

    @property
    def traced(self) -> Parallelism:
        """What of it a rank's graph depends on."""
        return Parallelism(**{name: getattr(self, name) for name in TRACED})

    def check(self, *, world: int | None = None, layers: int | None = None, heads: int | None = None) -> None:
        """Refuse a layout that no job can have, or that does not divide so many GPUs, layers or heads.

        Raises:
            UsageError: says which, and what would do.
        """
        replica, virtual, wanted = self.tp * self.cp * self.pp, self.pp * self.chunks, world or self.world
        hint = f": dp={wanted // replica} would" if wanted % replica == 0 else ""
        rules = (
            (self.shards and self.fsdp == "none", "shards are of what fsdp shares: give fsdp=full, grad or optimizer"),
            (self.replicas % self.sharers, f"shards={self.shards} does not divide the {self.replicas} replicas"),
            (
                self.shards and self.ep > 1,
                "shards next to experts that GPUs share (ep) are not modeled: leave them out",
            ),
            (self.async_tp and self.tp == 1, "async is of the GPUs of tp: give tp=2 or more"),
            (self.sp and self.tp == 1, "sp shares the sequence among the GPUs of tp: give tp=2 or more"),
            (self.schedule == "interleaved" and self.chunks < 2, "schedule=interleaved:N needs 2 or more chunks"),
            (
                self.chunks > 1 and self.microbatches % self.pp,
                "the interleaved schedule needs microbatches that pp divides,"
                f" not {self.microbatches} with pp={self.pp}",
            ),
            (
                self.ep > 1 and self.tp > 1 and not self.sp,
                "ep shares experts among GPUs that have tokens of their own: with tp, give sp",
            ),
            (
                (self.dp * self.cp * self.tp) % self.ep,
                f"ep={self.ep} does not divide the {self.dp * self.cp * self.tp} GPUs of a stage",
            ),
            (
                self.ep == 1 and self.dispatcher != "alltoall",
                f"dispatcher={self.dispatcher} brings tokens to experts of other GPUs: give ep=2 or more",
            ),
            (
                self.ep == 1 and self.a2a_overlap,
                "a2a_overlap hides messages to experts of other GPUs: give ep=2 or more",
            ),
            (
                self.a2a_overlap and self.schedule not in PAIRED,
                "a2a_overlap runs a microbatch forward next to another"
                f" one backward, which schedule={self.schedule} does not: give {' or '.join(PAIRED.values())}",
            ),
            (
                self.a2a_overlap and self.sums_each,
                f"a2a_overlap next to messages of fsdp={self.fsdp} in each microbatch"
                " is not modeled: give fsdp=optimizer or none",
            ),
            (wanted != self.world, f"{self} needs {self.world:,} GPUs, not {wanted:,}{hint}"),
            (
                layers is not None and virtual > layers,
                f"{virtual} stages of layers, and the model has {layers} equal layers",
            ),
            (heads is not None and heads % self.tp, f"tp={self.tp} does not divide the {heads} heads of attention"),
        )
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


def _flag(key: str, value: str) -> bool:
    if value:
        raise UsageError(f"{key} of a layout takes no value; leave it out or write {key} alone")
    return True


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


def _reader(said: Option) -> Callable[[str, str], Mapping[str, Any]]:
    """What reads the value of a key of a layout: key, text → fields of :class:`Parallelism`."""
    if said.name == "schedule":
        return _schedule
    if bool in said.types:
        return lambda key, value: {said.name: _flag(key, value)}
    return _one_of(said.choices) if said.choices else _count


#: key of a layout → what is said of it
KEYS: Mapping[str, Option] = {
    said.flag or name: said for name, said in options_of(Parallelism).items() if not said.internal
}
SETTINGS: Mapping[str, Callable[[str, str], Mapping[str, Any]]] = {key: _reader(said) for key, said in KEYS.items()}
#: keys that are given or left out
FLAGS = tuple(key for key, said in KEYS.items() if bool in said.types)
#: fields that the graph of a rank depends on
TRACED = ("tp", "sp", "cp", "ep")
