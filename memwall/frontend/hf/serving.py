"""Steps with a cache, as a server runs them: a prompt that fills it, or one more token for each sample.

What the cache holds before the step is what the model itself leaves there after a first call with so many tokens: any
kind of cache, of keys and values, of latents, of windows or of states. Nothing is padded, and no prefix is shared.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.core.units import counted
from memwall.frontend.hf.asked import POSITIONS, AskedModel, number
from memwall.frontend.hf.caches import cache_classes, cache_parameter, handed_back
from memwall.frontend.hf.config import loading
from memwall.frontend.hf.makers import MAKERS

if TYPE_CHECKING:
    from torch import Tensor

    Made = Callable[[AskedModel], Mapping[str, Tensor]]

#: tokens of a prompt, and in the cache of a decode step, where the user gives none and the model has as many positions
TOKENS = 1024
#: tokens with which the decoder of a model of sound begins: Whisper's start, language, task and no timestamps
_STARTED = 4


class CachedStep:
    """A step with a cache: its inputs, or the inputs of the call before it and what follows from its output.

    The prompt of a model with an encoder of text is what the encoder reads, from which the decoder begins with one
    token; where the encoder reads sound, the prompt is the decoder's.
    """

    def __init__(self, asked: AskedModel, mode: str, make: Made, static: int | None = None) -> None:
        """``make`` gives the inputs that the processor would; ``static``: the cache is a buffer of at least so many
        tokens, None: it grows.

        Raises:
            UsageError: no cache of the model is found, or it takes no tokens, or has too few positions.
        """
        self.asked, self.make, self.static = asked, make, static
        self.tokens = "decoder_input_ids" if asked.config.is_encoder_decoder else "input_ids"
        found = cache_parameter(asked.model.forward)
        if found is None or not asked.takes(self.tokens):
            raise UsageError(
                f"no {'cache' if found is None else self.tokens} is found among what forward of {asked.model.__name__}"
                f" takes, so memwall knows no {mode} step of it; profile --mode inference"
            )
        #: what forward calls its cache, and how its output calls what is left there
        self.cache = found.name
        self._kinds = cache_classes(found)
        back = handed_back(asked.model.forward)
        #: whether forward changes the cache that it is given, and hands none back
        self._in_place = bool(back) and self.cache not in back
        #: tokens of images or sounds that the inputs have in front of the text
        self.front = 0
        self.most = most = number(asked.text, *POSITIONS)
        #: tokens that the encoder reads
        self.source = self._prompt(TOKENS) if self._encodes and asked.takes("input_ids") else 0
        decodes = mode == "decode"
        if decodes and not self.source and "prompt" in asked.sizes:
            raise UsageError("a decode step reads one token for each sample; --context says how many are in the cache")
        if self.source and not decodes and "context" in asked.sizes:
            raise UsageError(
                f"the prompt of {asked.model.__name__} is read by its encoder, which keeps no cache;"
                " leave out --context"
            )
        started = 1 if self.source else self._prompt(_STARTED if self._encodes else TOKENS)
        self.new = 1 if decodes else started
        default = min(TOKENS, most - 1) if most else TOKENS
        self.before = int(asked.sizes.get("context", default if decodes else 0))
        if most and max(self.new + self.before, self.source) > most:
            self._refuse(most, decodes)

    @property
    def _encodes(self) -> bool:
        return bool(self.asked.config.is_encoder_decoder)

    def _prompt(self, default: int) -> int:
        return int(
            self.asked.sizes.get("prompt", min(default, self.most - (not self._encodes)) if self.most else default)
        )

    def _refuse(self, most: int, decodes: bool) -> None:
        name = self.asked.model.__name__
        if self.source > most:
            raise UsageError(
                f"{counted(self.source, 'token')} are beyond the {most:,} positions of the encoder of {name};"
                f" --prompt {most} is the most"
            )
        fitting = f"--context {most - 1}" if decodes or self.before >= most else f"--prompt {most - self.before}"
        raise UsageError(
            f"{counted(self.before, 'token')} in the cache and {self.new:,} more are beyond the {most:,} positions"
            f" of {name}; {fitting} is the most"
        )

    def note(self) -> str:
        """What the step is, for the pages of its profile, once its inputs are made."""
        samples = counted(self.asked.batch, "sample")
        front = f" and {counted(self.front, 'token')} of images or sounds in front" if self.front else ""
        cached = f"{counted(self.before, 'token')}{front} each in the cache" if self.before else "an empty cache"
        if self.static is not None:
            cached += f", a buffer of {counted(self._buffer, 'token')}, all of which attention reads"
        logits = "; logits of the last position alone" if self.new > 1 and self._keeps else ""
        reads = "; the encoder has read" if self.before else "; the encoder reads"
        encoder = f"{reads} {counted(self.source, 'token') if self.source else 'its input'}" if self._encodes else ""
        new = counted(self.new, "new token") + ("" if self.before else front)
        return f"{new} for each of {samples}, {cached}{encoder}{logits}"

    @property
    def _keeps(self) -> bool:
        return self.asked.takes("logits_to_keep")

    def inputs(self) -> dict[str, Any]:
        """The inputs of the step, or of the call before it."""
        tokens = self.before or self.new
        made = dict(self.make(self._of(self.source or tokens)))
        if not self._encodes:
            self.front = int(made[self.tokens].shape[-1]) - tokens
        if self.static is not None:
            made[self.cache] = self._static_cache()
        elif self._in_place:
            made[self.cache] = self._empty_cache()
        if self._encodes:
            del made[self.tokens]
        return self._with_cache({self.tokens: self._ids(tokens), **made} if self._encodes else made)

    @property
    def advance(self) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]] | None:
        """From the output of the call before the step to the step's inputs; None where the step is the first."""
        return self._next if self.before else None

    def _next(self, output: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        kept = given.get(self.cache) if self._in_place else getattr(output, self.cache, None)
        if kept is None:
            raise UsageError(f"{self.asked.model.__name__} leaves no {self.cache} in its output")
        encoded = {"encoder_outputs": (output.encoder_last_hidden_state,)} if self._encodes else {}
        return self._with_cache({self.tokens: self._ids(self.new), self.cache: kept, **encoded})

    @property
    def _buffer(self) -> int:
        return max(self.static or 0, self.front + self.before + self.new)

    def _static_cache(self) -> Any:
        with loading("StaticCache"):
            from transformers import StaticCache
        cache = StaticCache(config=self.asked.config, max_cache_len=self._buffer)
        # a model with a class of its own, or whose layers hold states alone, has no buffer of tokens
        taken = not self._kinds or isinstance(cache, tuple(self._kinds))
        if self._encodes or not taken or not any(hasattr(layer, "max_cache_len") for layer in cache.layers):
            raise UsageError(
                f"the static cache of {self.asked.model.__name__} is not modeled; leave out cache_implementation"
            )
        return cache

    def _empty_cache(self) -> Any:
        with loading("DynamicCache"):
            from transformers import DynamicCache

        if not issubclass(DynamicCache, tuple(self._kinds)):
            raise UsageError(
                f"{self.asked.model.__name__} hands no {self.cache} back, and takes one of a class of its"
                " own; profile --mode inference"
            )
        return DynamicCache(config=self.asked.config)

    def _ids(self, tokens: int) -> Tensor:
        return MAKERS[self.tokens](self._of(tokens))

    def _of(self, tokens: int) -> AskedModel:
        return replace(self.asked, sizes={**self.asked.sizes, "seq": tokens})

    def _with_cache(self, made: Mapping[str, Any]) -> dict[str, Any]:
        extra: dict[str, Any] = {"use_cache": True} if self._takes("use_cache") else {}
        return {**made, **extra, **({"logits_to_keep": 1} if self._keeps else {})}

    def _takes(self, name: str) -> bool:
        many = (p.kind is inspect.Parameter.VAR_KEYWORD for p in self.asked.parameters.values())
        return self.asked.takes(name) or any(many)
