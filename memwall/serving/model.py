"""A target → a model as servers run it, from one traced decode step."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from memwall.core.errors import TooManyOps, UsageError, unknown
from memwall.frontend.facts import ServingFacts
from memwall.frontend.hf.quantized import StoredWeights
from memwall.frontend.targets import resolve
from memwall.frontend.targets.target import is_saved
from memwall.pipeline import profile
from memwall.record.profile import Profile
from memwall.serving.steps import ServedKernels, served
from memwall.serving.tower import Media, read_media

#: ``--weights`` -> scheme of :mod:`memwall.ops.quantised`
WEIGHTS = {
    "model": "", "fp8": "fp8", "fp8-block": "fp8_block", "int8": "int8_wo", "int4": "int4_wo", "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
}  # fmt: skip
#: ``--kv`` -> dtype of the cache
CACHES = {"model": "", "fp8": "float8_e4m3fn"}
#: in notes of a traced step that the page of a server says itself
_SAID = ("quantised", "new token", "tower not run", "linear attention and scans run")
#: tokens in the cache of the traced step, the first that can be traced: windows of no more are seen
_CONTEXTS = (16_383, 2047)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model as servers run it: its kernels, how its weights and its cache (a dtype, empty for the model's) are
    stored, and the most tokens of a sequence; ``encoder`` are the tokens that an encoder reads, 0 if it reads something
    else, None without one; ``guesses`` are tokens that modules of its own guess (MTP);
    ``media`` are the images, frames and sounds that stand in front of each prompt."""

    name: str
    served: ServedKernels
    scheme: str = ""
    cache: str = ""
    max_context: int | None = None
    encoder: int | None = None
    guesses: int = 0
    fronts: tuple[str, ...] = ()
    media: Media | None = None
    notes: tuple[str, ...] = ()


def read_model(
    target: str | Path | Profile,
    *,
    weights: str = "model",
    dtype: str | None = None,
    tokens: int | None = None,
    prompt: int | None = None,
    media: Sequence[tuple[str, Any]] = (),
) -> Model:
    """Trace one decode step of a target, or take one that was profiled, and read what a server runs.

    Args:
        weights: a key of :data:`WEIGHTS`.
        dtype: cast the model to this first.
        tokens: the most of a sequence that will be asked, where the model does not say how many it takes.
        prompt: tokens that an encoder of text reads.
        media: what stands in front of each prompt (:func:`memwall.serving.tower.media_of`).

    Raises:
        UsageError: as :func:`memwall.profile`; the model keeps no cache, or weights are stored in an unknown format.
    """
    if weights not in WEIGHTS:
        raise unknown("scheme of weights", weights, WEIGHTS)
    made, first, context = (
        (target, None, None) if isinstance(target, Profile) else _steps(target, dtype, tokens, prompt)
    )
    if made.workload.mode != "decode":
        raise UsageError(f"{made.workload.name} is a profile of {made.workload.mode}; one of --mode decode is served")
    if all(storage.role != "kv_cache" for storage in made.graph.storages):
        raise UsageError(
            f"{made.workload.name} is given no cache: decode_inputs() hands it to forward under a name that says so"
            " (cache, past_key_values)"
        )
    stated = made.traced.serving or ServingFacts()
    if weights == "model" and stated.refused:
        raise UsageError(stated.refused)
    stored = StoredWeights(listed=stated.kept or (), mixed=stated.mixed, experts=stated.experts)
    of = stored.of if weights == "model" else StoredWeights().of
    kernels = served(made.graph, of, stated.context, None if first is None else first.graph)
    cache, most, encoder = stated.cache, stated.most_tokens, stated.encoder
    notes = [note for note in made.notes if not any(part in note for part in _SAID)]
    notes += _doubts(stated, stored if weights == "model" else StoredWeights(), context, tokens)
    if encoder is not None and first is None:
        notes.append("the encoder is not in a saved decode step: prompts take no time for it")
    front = read_media(target, media, dtype) if media else None
    notes += front.notes if front else ()
    scheme = (stated.weights or "") if weights == "model" else WEIGHTS[weights]
    return Model(
        name=made.workload.name,
        served=front.beside(kernels) if front else kernels,
        scheme=scheme,
        cache=CACHES.get(cache, ""),
        max_context=most,
        encoder=encoder,
        guesses=stated.guesses,
        fronts=tuple(each for each in stated.fronts if front is None or each not in front.fronts),
        media=front,
        notes=tuple(notes),
    )


def _doubts(stated: ServingFacts, stored: StoredWeights, context: int | None, tokens: int | None) -> list[str]:
    """What a server of the model has that is not modeled as it is."""
    most, cache, found = stated.most_tokens, stated.cache, []
    if most and context and context < min(most - 1, tokens or most):
        found.append(f"one step with {context:,} tokens in the cache was traced: longer windows count as none")
    if cache and cache not in CACHES:
        found.append(f"the checkpoint's cache, {cache}, is not modeled: it counts in the model's dtype")
    if stored.mixed:
        counts = Counter(stored.mixed.values()).most_common()
        listed = ", ".join(f"{name} in {n:,} modules" for name, n in counts)
        found.append(f"weights are {listed}, the others as they are")
    return found


def _steps(
    target: str | Path, dtype: str | None, tokens: int | None, prompt: int | None
) -> tuple[Profile, Profile | None, int | None]:
    """A saved decode step, or one with as many tokens in the cache as can be traced: a model may loop over them; the
    step of a prompt of a model with an encoder; and the tokens in the cache."""
    if is_saved(str(target)):
        if dtype is not None:
            raise UsageError(f"{target} is already traced: leave --dtype out")
        return Profile.load(target), None, None
    named = resolve(str(target), mode="decode")
    trace: Callable[..., Profile] = partial(profile, target, batch=2, dtype=dtype)
    first, source = None, {"prompt": prompt} if named.encoder and prompt else {}
    if named.encoder is not None:
        first = trace(mode="prefill", **source)
    most = named.most_tokens or tokens or _CONTEXTS[-1] + 1
    *longer, shortest = sorted({min(context, most - 1) for context in _CONTEXTS}, reverse=True)
    for context in longer:
        with contextlib.suppress(TooManyOps):
            return trace(mode="decode", context=context, **source), first, context
    return trace(mode="decode", context=shortest, **source), first, shortest
