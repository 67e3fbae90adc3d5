"""Text that TensorFlow returns of a compiled function."""

import pytest

import memwall
from tests.unit.places import ROOT


@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_optimized"])
def test_the_text_of_tensorflows_compiler_is_a_target(name):
    """Products of 16 x 64 x 128 and of 16 x 128 x 32; x and the weights are read, and the result is written."""
    made = memwall.profile(ROOT / "tests/data/hlo" / f"{name}.txt", gpu="h100-sxm", policy="ideal")
    assert made.model_flops == 2 * 16 * 64 * 128 + 2 * 16 * 128 * 32
    assert made.coverage.unmodeled == ()
    given = 4 * (16 * 64 + 64 * 128 + 128 * 32)
    assert made.simulations[0].totals.dram_bytes == given + 4 * 2 * 16 * 128 + 4 * 16 * 32
