"""Protobuf's wire format, field by field: what an XSpace needs, without its classes.

A field that is not asked for is skipped by its length, so that of a large file only the lanes that count are decoded.
The encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

#: a piece of a message: a view of the file
Piece = memoryview
#: what a field holds: a number, or a piece (a text, bytes, a message)
Value = int | Piece

_VARINT, _FIXED64, _PIECE, _FIXED32 = 0, 1, 2, 5
_SIGNED = 1 << 63
#: bytes of a number at most
_LONGEST = 10


class Damaged(ValueError):
    """The bytes are no message, or end within one."""


def fields(message: Piece) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message, in order; fixed numbers are pieces of their bytes.

    Raises:
        Damaged: it ends within a field, or has one of no known kind.
    """
    at, end = 0, len(message)
    while at < end:
        key, at = message[at], at + 1
        if key > 127:
            key, at = _number(message, at - 1, end)
        kind = key & 7
        length = 8
        if kind in (_VARINT, _PIECE):
            if at < end and message[at] < 128:
                length, at = message[at], at + 1
            else:
                length, at = _number(message, at, end)
            if kind == _VARINT:
                yield key >> 3, length
                continue
        elif kind == _FIXED32:
            length = 4
        elif kind != _FIXED64:
            raise Damaged("it has a field of no known kind")
        at += length
        if at > end:
            raise Damaged("it ends within a field")
        yield key >> 3, message[at - length : at]


def _number(message: Piece, at: int, end: int) -> tuple[int, int]:
    """The number of variable length that begins there, and where it ends."""
    found = shift = 0
    for place in range(at, min(end, at + _LONGEST)):
        byte = message[place]
        found |= (byte & 127) << shift
        if byte < 128:
            return found, place + 1
        shift += 7
    raise Damaged("it ends within a number" if end - at < _LONGEST else "it has a number without an end")


def signed(number: Value) -> int:
    """A number as one of 64 bits with a sign; 0 for a piece."""
    if not isinstance(number, int):
        return 0
    return number - (1 << 64) if number >= _SIGNED else number


def text(value: Value) -> str:
    """A text; empty for a number."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


def double(value: Value) -> float:
    """A double; NaN for a value that is not eight bytes."""
    return struct.unpack("<d", value)[0] if not isinstance(value, int) and len(value) == 8 else float("nan")
