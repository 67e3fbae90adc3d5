"""Which pipes do the products, and what MFU is relative to: by hand, and on every GPU."""

from dataclasses import replace

import pytest

from memwall.analysis.dtypes import emulations
from memwall.analysis.pipes import is_emulated, mfu_base, mfu_note, mfu_peaks
from memwall.core.graph import Pipe
from memwall.hardware.lookup import all_gpus, load_gpu
from memwall.record.profile import Profile
from tests.unit.report_fixture import make_profile


@pytest.fixture(scope="module")
def profile() -> Profile:
    """A transformer block in float16."""
    return make_profile()


@pytest.mark.parametrize(("gpu", "pipe", "emulated"), [
    ("v100", "tensor.bfloat16", True), ("v100", "tensor.float16", False), ("v100", "tensor.tf32", True),
    ("v100", "tensor.float32", False), ("v100", "tensor.float64", False), ("a100", "tensor.fp8", True),
    ("p100", "tensor.float16", True), ("h100", "tensor.fp8", False), ("v100", "tensor.int8", True),
    ("mi300x", "tensor.float32", False), ("tpu-v4", "tensor.float64", True),
])  # fmt: skip
def test_what_a_gpu_emulates(gpu, pipe, emulated):
    assert is_emulated(load_gpu(gpu), Pipe.parse(pipe)) is emulated


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_mfu_is_a_share_of_the_peaks_that_are_named(profile, gpu):
    schedule = replace(profile, simulations=()).schedule(gpu)
    (peak,) = mfu_peaks(profile, schedule).values()
    # all products of the block are float16: 10,737,418,240 FLOP
    assert schedule.totals.mfu == pytest.approx(10_737_418_240 / peak / schedule.totals.time_s)
    assert 0 < schedule.totals.mfu <= 1
    has_tensor_cores = Pipe("tensor", "float16") in gpu.peak_flop_per_s
    assert bool(emulations(profile, schedule)) is not has_tensor_cores


def test_peaks_are_named_once_and_with_their_gpus(profile):
    old, new = profile.simulations
    bases = [(s.gpu.name, mfu_base(profile, s)) for s in (old, new)]
    assert mfu_note(bases[:1]) == "MFU: of 100.00 TFLOP/s tensor.float16"
    assert mfu_note(bases) == "MFU: of 100.00 TFLOP/s tensor.float16 on old, of 1.00 PFLOP/s tensor.float16 on new"
    assert mfu_note([("cpu", "")]) == ""


def test_a_record_without_the_newer_kinds_of_memory_loads(profile):
    record = profile.to_dict()
    for simulation in record["simulations"]:
        memory = simulation["memory"]
        memory["activations"] += memory.pop("temporaries") + memory.pop("inputs")
        del memory["buffers"], memory["kernel"]
    old = Profile.from_dict(record)
    assert [s.memory.total for s in old.simulations] == [s.memory.total for s in profile.simulations]
    assert old.simulations[0].memory.kernel is None
