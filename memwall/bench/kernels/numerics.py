"""The numerics check's arithmetic: how far a result may be from float64, and the masks that dropouts draw.

The tolerance of an element that should be ``e`` is

    unit(dtype) · |e|  +  3 · spread  +  16 · 2⁻²⁴ · max |e|

The first term is the rounding to the output's dtype. ``spread`` is how far the output moves, at most, in some runs in
float64 whose ops read rounded numbers: each number that an op reads is multiplied by 1 + u · a, u uniform in ±1. For a
number that the group itself made, a is the unit of the dtype that the graph gives it (a kernel may round it, as eager
does, or keep it in float32). The loss of float32 arithmetic is added: 2⁻²⁴ · √n for an op that adds up n numbers, the
error of a sum of n terms in any order; and 2⁻¹¹ for the float32 operands of an op that may round them to TF32. The
last term is for elementary functions in float32. No term grows with the error of a wrong mask, a wrong neighbour or a
sum in 16 bits. Groups that only move numbers, and integers and booleans, are compared
exactly. NaN and infinities must be where they should be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from memwall.core.graph import TensorSpec
from memwall.ops.evaluate import dtype_of

#: tolerance in units of the spread, and in float32 roundings of the largest element
SPREADS, ROUNDINGS = 3.0, 16.0
#: largest relative error of rounding to a dtype
UNIT_FLOAT32, UNIT_TF32 = 2.0**-24, 2.0**-11
#: floating dtype → the largest relative error of rounding to it
FLOATS: Mapping[str, float] = {
    "float64": 2.0**-53, "float32": UNIT_FLOAT32, "float16": 2.0**-11, "bfloat16": 2.0**-8,
}  # fmt: skip


@dataclass(frozen=True)
class NumericsCheck:
    """Whether a kernel did what it should. ``error`` is the worst deviation in units of the tolerance (up to 1
    passes; infinite for errors without a degree), ``where`` the value and the element, ``message`` what is wrong in one
    line."""

    passed: bool
    error: float = 0.0
    where: str = ""
    message: str = ""


PASSED = NumericsCheck(True)


def wrong(where: str, message: str) -> NumericsCheck:
    """What is wrong, and no matter of degree."""
    return NumericsCheck(False, math.inf, where, message)


def compare(
    value_id: int, spec: TensorSpec, got: Tensor, expected: Tensor, spread: float, *, exact: bool = False
) -> NumericsCheck:
    """Compare one result with float64's. ``exact``: the group only moves numbers."""
    if got.dtype != dtype_of(spec.dtype) or tuple(got.shape) != spec.shape:
        return wrong(f"value {value_id}", f"{got.dtype}{[*got.shape]}, not {spec.dtype}{[*spec.shape]}")
    if not expected.is_floating_point():
        different = got.to(expected.dtype) != expected
        return first(value_id, different, got, expected, "differs")
    wanted = expected.to(got.dtype)
    odd = ~torch.isfinite(wanted) | ~torch.isfinite(got)
    agree = (torch.isnan(wanted) & torch.isnan(got)) | (wanted == got)
    if bool((odd & ~agree & ~_at_the_edge(expected, got)).any()):
        return first(value_id, odd & ~agree, got, expected, "NaN or infinity out of place")
    if exact:
        different = ~agree | (~odd & (wanted.signbit() != got.signbit()))
        return first(value_id, different, got, expected, "moved wrong")
    return _graded(value_id, spec.dtype, got, expected, odd, spread)


def _graded(value_id: int, dtype: str, got: Tensor, expected: Tensor, odd: Tensor, spread: float) -> NumericsCheck:
    e = torch.where(odd, 0.0, expected)
    deviation = (torch.where(odd, 0.0, got.to(torch.float64)) - e).abs()
    largest = float(e.abs().max()) if e.numel() else 0.0
    unit = FLOATS.get(dtype, 0.0)
    smallest = torch.finfo(got.dtype).smallest_normal * unit * 2
    tolerance = unit * e.abs() + SPREADS * spread + ROUNDINGS * UNIT_FLOAT32 * largest + smallest
    ratio = deviation / tolerance
    error = float(ratio.max()) if ratio.numel() else 0.0
    if error <= 1.0:
        return NumericsCheck(True, error, f"value {value_id}")
    place = _place(ratio, int(ratio.argmax()))
    allowed = float(tolerance[place])
    message = f"{float(got[place]):.7g}, not {float(expected[place]):.7g} ± {allowed:.2g}"
    message += f"; {int((ratio > 1).sum()):,} of {ratio.numel():,} elements are off"
    return NumericsCheck(False, error, f"value {value_id} {[*place]}", message)


def first(value_id: int, off: Tensor, got: Tensor, expected: Tensor, what: str) -> NumericsCheck:
    count = int(off.sum())
    if not count:
        return NumericsCheck(True, 0.0, f"value {value_id}")
    place = _place(off, int(off.to(torch.uint8).argmax()))
    text = f"{what}: {got[place].item()}, not {expected[place].item()}; {count:,} of {off.numel():,} elements"
    return wrong(f"value {value_id} {[*place]}", text)


def same(one: Mapping[int, Tensor], second: Mapping[int, Tensor]) -> NumericsCheck:
    """Whether two runs gave the same bits; NaN is NaN."""
    for value_id, tensor in one.items():
        other = second[value_id]
        if tensor.shape != other.shape:
            return wrong(f"value {value_id}", "differs in shape from run to run")
        nan = torch.isnan(tensor) & torch.isnan(other) if tensor.is_floating_point() else tensor != tensor
        different = (tensor != other) & ~nan
        if bool(different.any()):
            what = "differs from run to run, as unwritten memory, races and reads out of bounds do"
            return first(value_id, different, tensor, other, what)
    return PASSED


def distance(tensor: Tensor, expected: Tensor) -> float:
    """The largest difference of two tensors where both are finite."""
    apart = (tensor.to(torch.float64) - expected).abs()
    apart = apart[torch.isfinite(apart)]
    return float(apart.max()) if apart.numel() else 0.0


def _at_the_edge(expected: Tensor, got: Tensor) -> Tensor:
    """Finite numbers so near the end of the dtype's range that rounding decides whether they are infinite."""
    limit = 0.99 * torch.finfo(got.dtype).max
    return torch.isfinite(expected) & (expected.abs() > limit) & (got.abs() > limit)  # NaN is not above it


def _place(tensor: Tensor, flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), tuple(tensor.shape)))


# -- Philox 4x32-10 ----------------------------------------------------------------------------------------------------
#
# Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, as ``tl.rand`` draws from it. The counter is
# the offset of an element, the key the seed. Of the four words that come out the first is used.

PHILOX_ROUNDS = 10
#: the two multipliers of a round, and what is added to the two words of the key after each
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF
#: word → [0, 1): a little below 2 ** -31, so that the largest gives less than 1
SCALE = 4.6566127342e-10


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four random words of each counter, which is four 32-bit words as int64 tensors of one shape; the key is two
    32-bit words."""
    words: tuple[Tensor, ...] = counter
    low, high = key
    for _ in range(PHILOX_ROUNDS):
        high0, low0 = _product(words[0], MULTIPLIERS[0])
        high2, low2 = _product(words[2], MULTIPLIERS[1])
        words = high2 ^ words[1] ^ low, low2, high0 ^ words[3] ^ high, low0
        low, high = (low + KEY_STEPS[0]) & WORD, (high + KEY_STEPS[1]) & WORD
    return words


def uniform(seed: int, offsets: Tensor) -> Tensor:
    """float32 in [0, 1), bit for bit word ``offset % 4`` of what ``tl.rand4x(seed, offset // 4)`` gives: ``seed`` has
    64 bits, the low word is the first of the key; ``offsets`` are int64, not negative, of any shape."""
    quads, nothing = offsets // 4, torch.zeros_like(offsets)
    words = philox((quads & WORD, (quads >> 32) & WORD, nothing, nothing), (seed & WORD, (seed >> 32) & WORD))
    word = torch.stack(words).gather(0, (offsets % 4)[None])[0]
    signed = torch.where(word > WORD // 2, word - (WORD + 1), word)
    positive = torch.where(signed < 0, -signed - 1, signed)
    return positive.to(torch.float32) * torch.tensor(SCALE, dtype=torch.float32, device=word.device)


def _product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low words of a 64-bit product, in halves that int64 holds."""
    low = word * (factor & 0xFFFF)
    middle = word * (factor >> 16) + (low >> 16)
    return middle >> 16, ((middle << 16) | (low & 0xFFFF)) & WORD
