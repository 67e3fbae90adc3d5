"""Kernels of small random programs in Triton's interpreter: right, or refused for one of a few reasons."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.unit import interpreted

pytestmark = interpreted.needs_triton

SEEDS = range(60)
REFUSED = {
    "a later launch reads what an earlier one has overwritten",
    "a tensor is written over that is also read at other places",
    "a tensor is read again after it was written over",
    "a row's result is used at another row",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.unit.random_programs", str(tmp_path_factory.mktemp("random")),
         *map(str, SEEDS)],
        cwd=interpreted.ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(interpreted.ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return {int(line["name"]): line for line in map(json.loads, done.stdout.splitlines())}


def test_no_kernel_of_a_random_program_is_wrong(results):
    assert [*results] == [*SEEDS]
    assert [r for r in results.values() if r["status"] not in ("ok", "not generated")] == []


def test_most_of_them_are_generated_by_every_path(results):
    refused = [r["message"] for r in results.values() if r["status"] == "not generated"]
    assert {*refused} <= REFUSED
    assert len(refused) <= len(SEEDS) // 10
    taken = " + ".join(r["schedule"] for r in results.values())
    assert all(path in taken for path in ("pointwise", "persistent", "looped", "split"))
