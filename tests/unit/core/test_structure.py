"""One reader and writer for every saved record: the fields' types are the checks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pytest

from memwall.core.graph import Pipe
from memwall.core.structure import BadRecord, at_least_1, one_of, read, write


@dataclass(frozen=True)
class Inner:
    OMIT_DEFAULTS: ClassVar[bool] = True
    low: float
    high: float
    note: str = ""

    def check(self) -> None:
        if self.low > self.high:
            raise BadRecord(": low is above high")


@dataclass(frozen=True)
class Outer:
    op_class: Annotated[str, one_of(("norm", "matmul"))] = field(metadata={"key": "class"})
    parts: tuple[Inner, ...]
    flops: Mapping[Pipe, int]
    repeats: Annotated[int, at_least_1] = 1
    is_modeled: bool = True
    note: str | None = None
    further: Mapping[str, Any] = field(default_factory=dict)


PARTS = [{"low": 1.5, "high": 2.0}, {"low": 0.0, "high": 0.5, "note": "n"}]
RECORD = {
    "class": "norm", "parts": PARTS, "flops": {"tensor.float16": 7}, "repeats": 2, "is_modeled": False, "note": None,
    "further": {"a": [1, {"b": None}]},
}  # fmt: skip


def test_a_record_comes_back_as_it_was():
    outer = read(Outer, RECORD)
    assert outer.parts == (Inner(1.5, 2.0), Inner(0.0, 0.5, "n"))
    assert outer.flops == {Pipe("tensor", "float16"): 7}
    assert write(outer) == RECORD and list(write(outer)) == list(RECORD)


def test_what_is_missing_has_its_default_and_what_is_unknown_is_ignored():
    outer = read(Outer, {"class": "matmul", "parts": [], "flops": {}, "of a later version": 1})
    assert (outer.repeats, outer.is_modeled, outer.note, outer.further) == (1, True, None, {})


@pytest.mark.parametrize(("change", "message"), [
    ({"class": "magic"}, "r.class is 'magic'; want one of norm, matmul"),
    ({"parts": 3}, "r.parts is not a list"),
    ({"parts": [PARTS[0], 3]}, "r.parts[1] is not an object"),
    ({"parts": [{"low": 1}]}, "r.parts[0] has no 'high'"),
    ({"parts": [{"low": 1, "high": "x" * 99}]}, "r.parts[0].high must be a number that is not negative, not 'xxx"),
    ({"parts": [{"low": 1, "high": float("nan")}]}, "r.parts[0].high must be a number"),
    ({"parts": [{"low": 3, "high": 2}]}, "r.parts[0]: low is above high"),
    ({"flops": {"tensor.float16": True}}, "r.flops.tensor.float16 must be a whole number that is not negative, not"),
    ({"flops": {"warp": 1}}, "r.flops.warp: not a pipe: 'warp'"),
    ({"repeats": 0}, "r.repeats must be at least 1"),
    ({"repeats": 10**40}, "r.repeats must be a whole number"),
    ({"is_modeled": 1}, "r.is_modeled is neither true nor false"),
    ({"note": 1}, "r.note is not text"),
])  # fmt: skip
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(BadRecord) as caught:
        read(Outer, {**RECORD, **change}, "r")
    assert str(caught.value).startswith(message) and len(str(caught.value)) < 200


def test_a_complaint_about_the_whole_has_no_path():
    with pytest.raises(BadRecord) as caught:
        read(Outer, {}, "")
    assert str(caught.value) == "has no 'class'"
