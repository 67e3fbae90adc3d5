"""A fault planted in a kernel is caught: wrong masks, races, outputs that nobody writes, sums in too few bits."""

from __future__ import annotations

import pytest

from tests.unit import interpreted
from tests.unit.mutants import MUTANTS

pytestmark = interpreted.needs_triton


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutants")
    sound = sorted({mutant.case for mutant in MUTANTS.values()})
    return interpreted.by_name("cases", sound, folder), interpreted.by_name("planted", list(MUTANTS), folder)


@pytest.mark.parametrize("name", MUTANTS)
def test_the_fault_is_caught_and_the_kernel_without_it_is_right(name, found):
    cases, planted = found
    assert [result["status"] for result in cases[MUTANTS[name].case]] == ["ok"]
    (result,) = planted[name]
    assert result["status"] == "wrong", result
    assert MUTANTS[name].said in result["message"]
    assert result["error"] > 1.5  # by a margin, not by a hair
