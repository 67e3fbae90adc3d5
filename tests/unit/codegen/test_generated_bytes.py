"""The planner's bytes of a generated kernel, against those that the reader of Triton kernels finds in its code."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

import memwall
from memwall_lab.generated_bytes import counted
from tests.unit.places import ROOT


@pytest.mark.slow
def test_the_planner_states_the_bytes_that_the_code_moves():
    profile = memwall.profile(ROOT / "profiles" / "bert_layer" / "model.py", gpu="h100", policy="memwall")
    kernels = [kernel for kernel in counted(profile, "h100") if kernel.launches == 1]
    assert len(kernels) > 2
    assert [kernel.name for kernel in kernels if not kernel.agree] == []
