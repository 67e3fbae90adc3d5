"""A step of an engine, and how the engine holds the model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class EngineStep:
    """One step of an engine: ``decodes`` sequences make a token each, with ``context_tokens`` in their caches in all;
    each prefill is (new tokens, tokens before them in the cache). ``verified``: tokens of each decoding sequence, more
    than one where drafts are verified."""

    decodes: int
    context_tokens: int
    prefills: tuple[tuple[int, int], ...] = ()
    verified: int = 1

    @cached_property
    def tokens(self) -> int:
        """Tokens that pass through the model."""
        return self.decodes * self.verified + sum(new for new, _ in self.prefills)

    @property
    def sequences(self) -> int:
        """Sequences of which it has tokens."""
        return self.decodes + len(self.prefills)

    @property
    def outputs(self) -> int:
        """Rows of logits: of each token that decodes, and of the last one of a prompt."""
        return self.decodes * self.verified + len(self.prefills)

    def fullest(self, parts: int) -> EngineStep:
        """What the fullest of so many parts does: decodes are dealt evenly, and prompts the longest first, each to the
        part with the fewest tokens of prompts."""
        if parts == 1:
            return self
        decodes = -(-self.decodes // parts)
        context_tokens = round(self.context_tokens * decodes / self.decodes) if decodes else 0
        dealt: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        tokens = [0] * parts
        for prefill in sorted(self.prefills, reverse=True):
            part = tokens.index(min(tokens))
            dealt[part].append(prefill)
            tokens[part] += prefill[0]
        return EngineStep(decodes, context_tokens, tuple(dealt[tokens.index(max(tokens))]), self.verified)


@dataclass(frozen=True, slots=True)
class Layout:
    """How an engine holds the model: ``tp`` GPUs share each matmul; ``dp`` such groups attend to sequences of their
    own, and all their GPUs share the experts, whole ones among ``ep`` of them and columns of each among the others;
    ``pp`` stages of such GPUs have the layers one after another. ``weights`` and ``experts`` name schemes of
    :mod:`memwall.ops.quantised` (empty: the model's own dtype, and as the other weights), ``kv`` the dtype of the
    cache; ``engine`` is the one whose kernels run, ``experts_engine`` that of experts (empty: the same)."""

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    weights: str = ""
    experts: str = ""
    kv: str = ""
    engine: str = "vllm"
    experts_engine: str = ""

    @property
    def stage_gpus(self) -> int:
        """GPUs that have the same layers."""
        return self.tp * self.dp

    @property
    def gpus(self) -> int:
        return self.stage_gpus * self.pp
