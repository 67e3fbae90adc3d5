"""What no peak helps stays as it is under what-ifs on the peaks; what they help is called by their names."""

from dataclasses import replace

import pytest

from memwall.core.graph import Pipe
from memwall.hardware.lookup import load_gpu
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Convolution, Gemm
from memwall.perfmodel.families import predict

GPUS = ("p100-sxm2-16gb", "v100-sxm2-32gb", "t4", "a100-80gb-sxm", "h100-sxm", "mi300x", "b200")
FLOAT32 = Pipe("vector", "float32")


def faster(gpu, field):
    if field == "dram_bytes_per_s":
        return replace(gpu, dram_bytes_per_s=2 * gpu.dram_bytes_per_s)
    return replace(gpu, peak_flop_per_s={pipe: 2 * rate for pipe, rate in gpu.peak_flop_per_s.items()})


@pytest.mark.parametrize("name", GPUS)
def test_few_thread_blocks_are_not_faster_on_faster_memory(name):
    """4 blocks move 64 MB on 4 multiprocessors, each at its share of the bandwidth that the GPU was built with."""
    gpu = load_gpu(name)
    few = Stream(kind="generated", read_bytes=32 * 10**6, write_bytes=32 * 10**6, thread_blocks=4)
    terms = predict(few, gpu)
    assert terms.wall == "latency"
    assert terms.latency_s == pytest.approx(terms.memory_s * gpu.sm_count / 4, rel=0.05)
    for field in ("dram_bytes_per_s", "peak_flop_per_s"):
        assert predict(few, faster(gpu, field)).latency_s == pytest.approx(terms.latency_s)
    more = replace(gpu, sm_count=2 * gpu.sm_count)  # the others have nothing to do, as before
    assert predict(few, more).latency_s == pytest.approx(terms.latency_s)


@pytest.mark.parametrize("name", ["p100-sxm2-16gb", "v100-sxm2-32gb", "t4"])
def test_a_convolution_of_few_small_tiles_is_arithmetic(name):
    """49 places and 64 channels of 3 x 3 windows over 512: one tile of 64 x 64, k = 4608. Idle lanes cost as much as
    busy ones, so that twice the peak halves it: arithmetic, not latency."""
    gpu = load_gpu(name)
    small = Convolution(
        pipe=FLOAT32, role="forward", itemsize=4, stride=(2, 2), images=1, groups=1, channels_in=512, channels_out=64,
        places_in=(14, 14), places_out=(7, 7), kernel=(3, 3), read_bytes=4 * (49 * 512 + 4608 * 64),
        write_bytes=4 * 49 * 64,
    )  # fmt: skip
    before, after = (predict(small, each) for each in (gpu, faster(gpu, "peak_flop_per_s")))
    assert before.wall == "compute"
    assert after.compute_s == pytest.approx(before.compute_s / 2)
    assert after.latency_s == pytest.approx(before.latency_s)


@pytest.mark.parametrize("name", GPUS)
def test_storing_results_is_no_traffic(name):
    """16 times 512 x 512 x 32: results leave the multiprocessors at some bytes a clock, however fast the memory is."""
    gpu = load_gpu(name)
    shape = {"batch": 16, "m": 512, "n": 512, "k": 32, "itemsize": 2}
    flat = Gemm(pipe=Pipe("tensor", "float16"), read_bytes=2 * 2 * 16 * 512 * 32, write_bytes=2 * 16 * 512**2, **shape)
    before, after = (predict(flat, each) for each in (gpu, faster(gpu, "dram_bytes_per_s")))
    assert after.memory_s == pytest.approx(before.memory_s / 2)
    assert before.memory_s >= flat.read_bytes / gpu.dram_bytes_per_s
