"""Kernels of LLM servers that no PyTorch op names: vLLM's fused norm, gated activation, rotary embedding, token lookup.

Instructions per element are those that make the rates of these kernels on an A100, an H100 and an A40 (Vidur's
profiles) alike per clock and multiprocessor; each kernel goes element by element, not by whole vectors.
"""

from __future__ import annotations

from memwall.work.rows import Rows
from memwall.work.stream import Stream

#: per result of SiLU x gate: 57 on an A100, 50 on an H100; an A40 is limited by its memory
_GATED = 52
#: per result of a GELU in float16: 27 on an A100, 23 on an H100
_GELU = 26
#: per rotated element: 42 on an A100, 39 on an H100, 32 on an A40
_ROTARY = 40
#: per element fetched by index, as memwall.cost.movement has it for PyTorch: 119, 103 and 91 here
_LOOKUP = 116
#: an index or a position is read before what lies there
_DEPENDENT = 2


def fused_norm(tokens: int, width: int, itemsize: int) -> Rows:
    """RMS or layer norm of [tokens, width], a block of up to 1024 threads for each token."""
    size = tokens * width * itemsize
    return Rows(
        kind="block_norm", rows=tokens, columns=width, itemsize=itemsize, read_bytes=size, write_bytes=size,
        rows_per_sm=2,
    )  # fmt: skip


def gated_activation(tokens: int, width: int, itemsize: int) -> Stream:
    """``act(x[:, :width]) * x[:, width:]``."""
    results = tokens * width
    return Stream(
        read_bytes=2 * results * itemsize, write_bytes=results * itemsize, elements=results,
        instructions=_GATED * results, round_trips=1,
    )  # fmt: skip


def plain_activation(tokens: int, width: int, itemsize: int) -> Stream:
    """``gelu(x)`` of [tokens, width]."""
    size = tokens * width * itemsize
    return Stream(
        kind="gelu",
        read_bytes=size,
        write_bytes=size,
        elements=tokens * width,
        instructions=_GELU * tokens * width,
    )


def rotary(tokens: int, heads: int, head_size: int, itemsize: int) -> Stream:
    """Queries and keys, ``heads`` of them together, rotated in place; a token's angles are a head's size."""
    elements = tokens * heads * head_size
    read = (elements + tokens * head_size) * itemsize + 8 * tokens
    return Stream(
        read_bytes=read, write_bytes=elements * itemsize, elements=elements, instructions=_ROTARY * elements,
        round_trips=_DEPENDENT,
    )  # fmt: skip


def lookup(tokens: int, width: int, itemsize: int) -> Stream:
    """Rows of a table at 8-byte indices."""
    elements = tokens * width
    return Stream(
        read_bytes=elements * itemsize + 8 * tokens, write_bytes=elements * itemsize, elements=elements,
        instructions=_LOOKUP * elements, round_trips=_DEPENDENT,
    )  # fmt: skip
