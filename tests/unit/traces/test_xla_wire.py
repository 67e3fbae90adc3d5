"""Protobuf's wire format: the examples of its documentation, and what is cut off."""

import struct

import pytest

from memwall.traces.xla.wire import Damaged, double, fields, signed, text


def read(message: bytes) -> list[tuple[int, int | bytes]]:
    return [(place, value if isinstance(value, int) else bytes(value)) for place, value in fields(memoryview(message))]


def test_a_number() -> None:
    assert read(bytes([0x08, 0x96, 0x01])) == [(1, 150)]


def test_a_text_behind_a_number() -> None:
    assert read(b"\x08\x01\x12\x07testing") == [(1, 1), (2, b"testing")]


def test_fixed_numbers() -> None:
    half = struct.pack("<d", 0.5)
    assert read(b"\x11" + half + b"\x1d" + b"abcd") == [(2, half), (3, b"abcd")]
    assert double(memoryview(half)) == 0.5


def test_a_field_of_a_large_number() -> None:
    assert read(bytes([0x80, 0x01, 0x07])) == [(16, 7)]


def test_a_negative_number_takes_all_its_bytes() -> None:
    ((_, value),) = fields(memoryview(b"\x08" + b"\xff" * 9 + b"\x01"))
    assert signed(value) == -1


def test_text_that_is_none_is_replaced() -> None:
    assert text(memoryview(b"a\xff")) == "a\ufffd"


@pytest.mark.parametrize(
    "message", [b"\x08", b"\x08\x96", b"\x12\x07test", b"\x11abc", b"\x0b", b"\x08" + b"\xff" * 12]
)
def test_what_is_cut_off_or_none_is_damaged(message: bytes) -> None:
    with pytest.raises(Damaged):
        read(message)
