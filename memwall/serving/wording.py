"""A server's load in words, as the page and the record have them."""

from __future__ import annotations

from collections.abc import Iterable

from memwall.core.units import counted, duration, listed, size
from memwall.serving.answer import Point, Serving
from memwall.serving.model import Model
from memwall.serving.simulation.workload import RequestLoad

#: walls in words
WAITED = {
    "compute": "arithmetic", "bandwidth": "memory bandwidth", "host": "the engine's CPU", "link": "other GPUs",
}  # fmt: skip


def requests_text(point: Point, model: Model) -> str:
    """What requests are: their tokens, how these spread, and what they share."""
    load = point.workload
    if load.trace or load.pairs:
        usual = load.usual
        each = f"{load.count:,} of a trace" if load.trace else f"{load.count:,} of {counted(len(load.pairs), 'pair')}"
        shared = ", what they begin with alike is kept" if load.trace and load.reuses else _sessions(load)
        return f"{each}, {usual.prompt_tokens:,} tokens in and {usual.generated_tokens:,} out in the mean{shared}"
    encoder = model.encoder
    if encoder:
        return f"{encoder:,} tokens to the encoder, {load.generate.nominal:,} out"
    after = " after the encoder" if encoder is not None else ""
    hit = f", {load.prefix_hit:.0%} of a prompt cached" if load.prefix_hit else ""
    media = model.media
    front = "" if media is None else f" and {media.said} in front"
    text = f"{load.prompt.nominal:,} tokens in{front}{after}{hit}, {load.generate.nominal:,} out"
    text += load.prompt.spread and f", {load.prompt.spread}"
    text += _sessions(load)
    fronts = " and ".join(model.fronts)
    return f"{text}, all of text: {fronts} and what encodes them are not billed" if fronts else text


def held_text(dram_bytes: int, weights_bytes: int, free_bytes: int) -> str:
    """``85.02 GB weights take 16.06 GB and the cache may take 57.97 GB``."""
    return f"{size(dram_bytes)} weights take {size(weights_bytes)} and the cache may take {size(free_bytes)}"


def capacity_text(capacity_bytes: int, dram_bytes: int, weights_bytes: int, free_bytes: int) -> str:
    """``76.52 GB of 85.02 GB are the server's: weights 3.00 GB, cache 70.97 GB``."""
    parts = f"weights {size(weights_bytes)}, cache {size(free_bytes)}"
    return f"{size(capacity_bytes)} of {size(dram_bytes)} are the server's: {parts}"


def priced_text(usd_per_million: Iterable[float | None]) -> str:
    """``, at 0.048 and 1.406 USD per million tokens``; empty where no price is known."""
    known = [f"{usd:,.3f}" for usd in usd_per_million if usd is not None]
    return f", at {listed(known)} USD per million tokens" if known else ""


def _sessions(load: RequestLoad) -> str:
    """What requests begin with, whether they are turns of a session, and how they come."""
    told = [f"behind {counted(load.system_prompt, 'token')} that all begin with"] if load.system_prompt else []
    if load.turns > 1:
        told.append(f"each one of {load.turns} turns of a session")
    if load.think_s:
        told.append(f"{duration(load.think_s)} between two turns in the mean")
    if load.burst != 1:
        told.append(f"times between them of a coefficient of variation of {load.burst:g}")
    return "".join(f", {each}" for each in told)


def media_text(found: Serving) -> str:
    """What towers take for what stands in front of one prompt, on each GPU."""
    media = found.model.media
    if media is None:
        return ""
    steps = {point.gpu.name: point.steps for point in found.points}
    times = (f"{duration(each.tower_s)} on {name}" for name, each in steps.items())
    return f"{media.said} for each request; the tower takes {', '.join(times)}"
