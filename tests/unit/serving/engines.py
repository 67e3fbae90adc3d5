"""Toy engines whose times are known by hand."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Affine:
    """Seconds: a constant, and so much for each decoding sequence, token in a cache, and new token of a prompt or of a
    draft. Bytes: one for each token."""

    base_s: float = 5e-3
    decode_s: float = 2e-5
    context_s: float = 1e-8
    prompt_s: float = 2e-5
    weights_bytes: int = 0
    reserved_bytes: int = 0
    capacity_bytes: int = 10**9
    max_context: int | None = None

    def step_s(self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]] = (), verified=1) -> float:
        prompts = sum(new for new, _ in prefills) + decodes * verified * (verified > 1)
        cached = context_tokens + sum(before for _, before in prefills)
        return self.base_s + self.decode_s * decodes + self.context_s * cached + self.prompt_s * prompts

    def kv_bytes(self, tokens: int) -> int:
        return tokens


class Saturating(Affine):
    """A step costs its weights' read until its arithmetic takes longer; attention is quadratic in the prompt."""

    def step_s(self, decodes: int, context_tokens: int, prefills: Sequence[tuple[int, int]] = (), verified=1) -> float:
        prompts = sum(new for new, _ in prefills) + decodes * verified * (verified > 1)
        attention = sum(new * (before + new / 2) for new, before in prefills) * 5e-10
        return max(self.base_s, self.prompt_s * (decodes + prompts)) + self.context_s * context_tokens + attention


class Windowed(Affine):
    """Half of the layers cache no more than 128 tokens."""

    def kv_bytes(self, tokens: int) -> int:
        return tokens + min(tokens, 128)
