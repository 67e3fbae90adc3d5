"""What is asked of a server → its loads: who asks, how long prompts and answers are, and what they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from memwall.core.errors import UsageError
from memwall.serving.model import Model
from memwall.serving.simulation.fleet import Autoscale, Fleet
from memwall.serving.simulation.lengths import Lengths, RequestLengths, parse_lengths
from memwall.serving.simulation.trace_files import read_trace
from memwall.serving.simulation.workload import LONGEST_S, RequestLoad

#: tokens of a prompt where none are given, and of a decoder's whose encoder reads something else
PROMPT, DECODER_PROMPT = 1024, 4

#: option → what it needs, where that is asked for: without it the option has no effect
_NEEDS = {
    "burst": ("rate", "--rate: clients ask when they have an answer"),
    "think": ("turns", "--turns of 2 or more, between which it passes"),
    "trace_scale": ("trace", "--trace"),
    "startup": ("autoscale", "--autoscale, by which replicas start"),
}
#: values of an option that ask for nothing
_NOTHING: Mapping[str, tuple[int | None, ...]] = {"turns": (None, 1)}
#: option → options that say the same otherwise, or that it cannot go with, and why
_APART = {
    "trace": (("rate", "burst", "turns", "system_prompt"), "a trace has the requests and when they come"),
    **dict.fromkeys(("images", "frames", "audio"), (("trace", "prefix_hit", "turns", "system_prompt"),
                    "which requests have such, or which of them are cached, is not known")),
}  # fmt: skip


class AskedLoads(NamedTuple):
    """The loads, each of which a server is run under, and what to know of them in a line, if anything."""

    loads: list[RequestLoad]
    note: str = ""


def check_load(said: Any) -> None:
    """Check the options of a load, and which servers share it. Raises UsageError: one has no effect, or two contradict
    each other."""
    for name, (needed, what) in _NEEDS.items():
        if getattr(said, name, None) is not None and getattr(said, needed) in _NOTHING.get(needed, (None,)):
            raise UsageError(f"{_flag(name)} has no effect without {what}")
    for name, (others, why) in _APART.items():
        for other in others if getattr(said, name) else ():
            if getattr(said, other):
                raise UsageError(f"{_flag(name)} with {_flag(other)}: {why}")
    if said.client is not None and not 0 <= said.client <= LONGEST_S:
        raise UsageError(f"{said.client:g} ms of the client's own; want 0 to {LONGEST_S:g}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not None: the defaults of the others stand where they are read."""
    return {name: value for name, value in options.items() if value is not None}


def loads_of(said: Any, lengths: RequestLengths | None = None) -> AskedLoads:
    """The loads of a question, of requests of other ``lengths`` than it says where they are given. Raises UsageError:
    a number is wrong, there is no load, or as :func:`read_trace` and :func:`parse_lengths`."""
    requests = lengths or parse_lengths(said.prompt or PROMPT, said.generate, said.lengths)
    common: dict[str, Any] = {
        "prompt": requests.prompt, "generate": requests.generate, "pairs": requests.pairs,
        "prefix_hit": said.prefix_hit, "requests": said.requests,
    }  # fmt: skip
    if said.trace is not None:
        trace = read_trace(said.trace, **_given(times_as_fast=said.trace_scale))
        return AskedLoads([RequestLoad(**common, trace=trace.requests)], trace.note)
    common |= _given(turns=said.turns, think_s=said.think, system_prompt=said.system_prompt, burst=said.burst)
    if said.rate is not None:
        return AskedLoads([RequestLoad(**common, rate_per_s=said.rate)])
    asked: int | Iterable[int] | None = said.concurrency
    numbers = [asked] if isinstance(asked, int) else list(asked or ())
    if not numbers:
        raise UsageError("no load given: name concurrency, or a rate")
    return AskedLoads([RequestLoad(**common, concurrency=number) for number in numbers])


def loads_of_model(model: Model, said: Any, asked: AskedLoads) -> AskedLoads:
    """The loads, with the tokens of what stands in front of prompts, or of what an encoder reads. Raises UsageError:
    the model takes no such requests."""
    if model.media is not None:
        lengths = parse_lengths(said.prompt or PROMPT, said.generate, said.lengths)
        if lengths.pairs:
            raise UsageError("of pairs of lengths no tokens are images or sound: leave out --images, --frames, --audio")
        asked = loads_of(said, lengths._replace(prompt=replace(lengths.prompt, fixed=model.media.tokens)))
    if model.encoder is not None:
        if wrong := next((name for name in ("trace", "turns", "system_prompt") if getattr(said, name)), ""):
            raise UsageError(
                f"the encoder of {model.name} is traced with one prompt: give clients or --rate, no {_flag(wrong)}"
            )
        answer = parse_lengths(PROMPT, said.generate, said.lengths).generate
        prompt = Lengths(1 if model.encoder else said.prompt or DECODER_PROMPT)
        asked = loads_of(said, RequestLengths(prompt, answer))
    return asked


def fleet_of(said: Any) -> Fleet:
    """How many engines share a load, and which takes a request. Raises UsageError: no such number, route, or rule."""
    if said.failed and said.disaggregate is not None:
        raise UsageError("--failed with --disaggregate: give the numbers of engines that are left")
    if said.autoscale is None:
        return Fleet(replicas=said.replicas, route=said.route, failed=said.failed)
    least, most, requests = said.autoscale
    scale = Autoscale(least=least, most=most, requests=requests, **_given(startup_s=said.startup))
    return Fleet(replicas=said.replicas, route=said.route, autoscale=scale, failed=said.failed)
