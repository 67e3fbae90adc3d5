"""Kernels of small random programs in Triton's interpreter: right, or refused for one of a few reasons."""

import pytest

from tests.unit import interpreted

pytestmark = interpreted.needs_triton

#: with --whole; else a few of them whose kernels the interpreter runs in less than a second
SEEDS, QUICK = range(60), (0, 1, 3, 4, 6, 7, 9, 11, 15, 17, 18, 19)
REFUSED = {
    "a later launch reads what an earlier one has overwritten",
    "a tensor is written over that is also read at other places",
    "a tensor is read again after it was written over",
    "a row's result is used at another row",
}


@pytest.fixture(scope="module")
def results(request, tmp_path_factory, forks):
    seeds = SEEDS if request.config.getoption("--whole") else QUICK
    ran, _ = interpreted.lines(forks, tmp_path_factory.mktemp("random"), *seeds, module="random_programs")
    lines = {int(line["name"]): line for line in ran}
    assert [*lines] == [*seeds]
    return lines


def test_no_kernel_of_a_random_program_is_wrong(results):
    assert [r for r in results.values() if r["status"] not in ("ok", "not generated")] == []


def test_most_of_them_are_generated_by_every_path(results):
    refused = [r["message"] for r in results.values() if r["status"] == "not generated"]
    assert {*refused} <= REFUSED
    assert len(refused) <= len(results) // 10
    taken = " + ".join(r["schedule"] for r in results.values())
    assert all(path in taken for path in ("pointwise", "persistent", "looped", "split"))
