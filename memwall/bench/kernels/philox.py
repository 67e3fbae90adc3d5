"""Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), as ``tl.rand`` draws from it.

The counter is the offset of an element, the key the seed. Of the four words that come out the first is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
#: the two multipliers of a round, and what is added to the two words of the key after each
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF
#: word → [0, 1): a little below 2 ** -31, so that the largest gives less than 1
SCALE = 4.6566127342e-10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four random words of each counter.

    Args:
        counter: four 32-bit words each, as int64 tensors of one shape.
        key: two 32-bit words.
    """
    words: tuple[Tensor, ...] = counter
    low, high = key
    for _ in range(ROUNDS):
        high0, low0 = _product(words[0], MULTIPLIERS[0])
        high2, low2 = _product(words[2], MULTIPLIERS[1])
        words = high2 ^ words[1] ^ low, low2, high0 ^ words[3] ^ high, low0
        low, high = (low + KEY_STEPS[0]) & WORD, (high + KEY_STEPS[1]) & WORD
    return words


def uniform(seed: int, offsets: Tensor) -> Tensor:
    """float32 in [0, 1), bit for bit what ``tl.rand(seed, offset)`` gives.

    Args:
        seed: 64 bits; the low word is the first of the key.
        offsets: int64, not negative; of any shape.
    """
    counter = offsets & WORD, (offsets >> 32) & WORD, torch.zeros_like(offsets), torch.zeros_like(offsets)
    word = philox(counter, (seed & WORD, (seed >> 32) & WORD))[0]
    signed = torch.where(word > WORD // 2, word - (WORD + 1), word)
    positive = torch.where(signed < 0, -signed - 1, signed)
    return positive.to(torch.float32) * torch.tensor(SCALE, dtype=torch.float32, device=word.device)


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 64-bit product, in halves that int64 holds."""
    low = word * (factor & 0xFFFF)
    middle = word * (factor >> 16) + (low >> 16)
    return middle >> 16, ((middle << 16) | (low & 0xFFFF)) & WORD
