"""Kernels of whole models whose time is not their bytes: few long rows, scans, moments of groups."""

import math
from functools import partial

import pytest

from memwall.hardware.lookup import load_gpu
from memwall.ops import Call
from memwall.ops.launches import Rows, Stream
from memwall.ops.registry import cost_of
from memwall.perfmodel.families import explain, predict
from memwall.perfmodel.roofline import launches_of, predict_cost
from memwall.perfmodel.stream import round_trip_s, steps_s
from tests.unit import cost_calls
from tests.unit.cost_calls import call

H100, L40S, A100 = load_gpu("h100-sxm"), load_gpu("l40s"), load_gpu("a100-80gb-sxm")
EVERY = [H100, L40S, A100, *map(load_gpu, ("v100-sxm2-32gb", "t4", "b200", "mi300x", "rtx-4090", "p4"))]


spec = partial(cost_calls.spec, dtype="float32")


def layer_norm(shape: tuple[int, ...], normalized: int) -> Call:
    """Over the last ``normalized`` axes, with weight and bias."""
    data, row = spec(*shape), spec(*shape[-normalized:])
    rows = spec(*shape[:-normalized])
    return call("aten.native_layer_norm", {"input": data, "weight": row, "bias": row}, (data, rows, rows),
                normalized_shape=list(shape[-normalized:]), eps=1e-5)  # fmt: skip


def scan(*shape: int, dim: int) -> Call:
    return call("aten.cumsum", {"self": spec(*shape)}, (spec(*shape),), dim=dim)


def test_a_row_of_a_layer_norm_is_all_normalized_axes():
    (work,) = cost_of(layer_norm((16, 64, 256, 256), 3)).launches
    assert isinstance(work, Rows)
    assert (work.rows, work.columns) == (16, 64 * 256 * 256)
    (work,) = cost_of(layer_norm((32, 512, 768), 1)).launches
    assert isinstance(work, Rows)
    assert (work.rows, work.columns) == (32 * 512, 768)


def test_a_lone_block_waits_for_each_vector_of_its_row():
    """Blocks of 128 threads, four float32 each: 2**20 columns are 2048 turns, twice, since the row is read twice; those
    of the first pass, which updates the moments, take half as long again."""
    (work,) = cost_of(layer_norm((8, 2**20), 1)).launches
    assert predict(work, H100).latency_s == pytest.approx(2.5 * 2048 * round_trip_s(H100), rel=1e-2)


def test_layer_norm_of_sixteen_images_on_an_l40s():
    """torch.nn.LayerNorm of [16, 64, 256, 256] on an L40S: 4.84 times what a kernel takes that reads and writes each
    byte about once (Ouyang et al., CRFM, May 2025: 484.4 %), so 3 ms at the datasheet's bandwidth, and more."""
    found = predict_cost(cost_of(layer_norm((16, 64, 256, 256), 3)), L40S)
    least_s = 4.84 * 2 * 4 * 16 * 64 * 256 * 256 / 864e9
    assert 0.9 * least_s < found.time_s < 2 * least_s


def test_many_rows_do_not_wait():
    """8192 rows of 1024 fill every multiprocessor: bytes and clocks say what they take, not the lone loop."""
    (work,) = cost_of(layer_norm((8192, 1024), 1)).launches
    for gpu in EVERY:
        terms = predict(work, gpu)
        assert terms.facts["lone_s"] < terms.time_s
        assert "too few" not in explain(work, gpu, terms)


def test_more_rows_never_take_less():
    for gpu in EVERY:
        times = [
            predict(cost_of(layer_norm((n, 65536), 1)).launches[0], gpu).time_s for n in (1, 2, 16, 100, 133, 2000)
        ]
        assert times == sorted(times)


def test_blocks_go_in_waves_of_four_a_multiprocessor():
    """132 multiprocessors hold 528 blocks of 512 threads."""
    turn_s = round_trip_s(H100)
    assert steps_s(H100, 528, 10) == pytest.approx(10 * turn_s)
    assert steps_s(H100, 529, 10) == pytest.approx(20 * turn_s)
    assert steps_s(H100, 0, 0) == 0


def test_the_sentence_names_the_waits():
    work = Stream(read_bytes=4096, write_bytes=4096, elements=1024, steps=1000, blocks=2)
    assert "2 blocks of 512 threads on 108 SMs, 1,000 loads in a row each" in explain(work, A100, predict(work, A100))


def test_a_scan_down_the_first_axis_takes_a_load_a_row():
    """torch.cumsum(x, 0) of [2**20, 32] takes 338 ms (PyTorch issue 122170, GPU not named): one thread a column."""
    work, terms = launches_of(cost_of(scan(2**20, 32, dim=0)), A100)[0]
    assert isinstance(work, Stream)
    assert (work.steps, work.blocks) == (2**20, 1)
    assert 0.338 / 2 < terms.time_s < 0.338 * 2


def test_a_scan_along_rows_counts_its_network():
    """As many rows as columns: 16 threads share a row and take 32 elements a turn; 20 + 5 x 8 instructions each. A turn
    is a load and 5 additions of a quarter of its latency."""
    (work,) = cost_of(scan(32768, 32768, dim=1)).launches
    assert isinstance(work, Stream)
    assert work.instructions == 60 * 32768**2
    assert (work.steps, work.blocks) == (1024 * 2.25, 32768 * 16 // 512)


def test_long_rows_have_more_threads():
    """128 rows of 4000: 2^((9 + 12 - 7) / 2) = 128 threads a row, 256 elements a turn."""
    (work,) = cost_of(scan(128, 4000, dim=-1)).launches
    assert isinstance(work, Stream)
    assert work.steps == math.ceil(4000 / 256) * 3  # a load, and 8 additions
    (work,) = cost_of(scan(4, 2**24, dim=1)).launches
    assert isinstance(work, Stream)
    assert work.steps == 2**24 // 1024 * 3.5  # 512 threads at most
    assert work.blocks == 4


def test_a_scan_of_one_axis_streams():
    (work,) = cost_of(scan(2**24, dim=0)).launches
    assert isinstance(work, Stream)
    assert work.steps == work.instructions == 0


def test_a_scan_is_never_faster_than_its_bytes():
    for gpu in EVERY:
        for shape, dim in (((32768, 32768), 1), ((32768, 32768), 0), ((2, 64, 3, 5), 2), ((1, 1), 0), ((0, 4), 1)):
            found = predict_cost(cost_of(scan(*shape, dim=dim)), gpu)
            assert found.time_s >= found.bound_s


def depthwise(images: int, channels: int, size: int, kernel: int = 3) -> Call:
    """Square images, padded so that as many places come out."""
    data = spec(images, channels, size, size)
    return call("aten.convolution", {"input": data, "weight": spec(channels, 1, kernel, kernel)}, (data,),
                stride=[1, 1], padding=[kernel // 2] * 2, dilation=[1, 1], transposed=False,
                groups=channels)  # fmt: skip


@pytest.mark.parametrize(("channels", "size", "measured_s"), [(32, 112, 2.85e-4), (144, 56, 3.25e-4)])
def test_depthwise_3x3_on_an_rtx_2080_ti(channels: int, size: int, measured_s: float):
    """Ten calls of torch's kernel on [16, channels, size, size] (PyTorch issue 18631): far from the bandwidth."""
    found = predict_cost(cost_of(depthwise(16, channels, size)), load_gpu("rtx-2080-ti"))
    assert found.time_s == pytest.approx(measured_s, rel=0.25)
    assert found.bound_s < measured_s / 2


def test_a_thread_of_a_depthwise_kernel_goes_over_its_window():
    """2048 threads of 132 multiprocessors: 590 clocks for each tap. Wider windows take longer by their taps."""
    small, wide = (cost_of(depthwise(16, 128, 256, k)).launches[0] for k in (3, 5))
    assert predict(small, H100).latency_s == pytest.approx(
        16 * 128 * 256 * 256 * 9 * 590 / (2048 * 132 * H100.boost_clock_hz)
    )
    assert predict(wide, H100).latency_s == pytest.approx(predict(small, H100).latency_s * 25 / 9)
    assert "3x3: a thread takes 590 clocks for a tap" in explain(small, H100, predict(small, H100))


def test_tiles_of_the_memory_efficient_kernel():
    """64 x 64 for heads of 64, 32 x 128 for wider ones: 100 queries are two blocks a head, or four."""
    for head, rows, columns, blocks in ((64, 64, 64, 2), (128, 32, 128, 4)):
        query = spec(1, 10, 100, head)
        attention = call("aten._scaled_dot_product_efficient_attention", {"query": query, "key": query, "value": query},
                         (query, spec(1, 10, 0)), compute_log_sumexp=False)  # fmt: skip
        (work,) = cost_of(attention).launches
        tiles = predict(work, H100).facts["tiles"]
        assert (tiles.rows, tiles.columns, tiles.blocks) == (rows, columns, 10 * blocks)


def test_a_group_has_one_block_for_its_moments():
    """16 groups of 2**20 elements in blocks of 512 threads: 2048 loads in a row, whatever the bandwidth, each with an
    update of the moments that takes half as long; ten more updates join the threads."""
    data, moments = spec(2, 64, 128, 1024), spec(2, 8)
    norm = call("aten.native_group_norm", {"input": data, "weight": spec(64), "bias": spec(64)},
                (data, moments, moments), N=2, C=64, HxW=128 * 1024, group=8, eps=1e-5)  # fmt: skip
    first = cost_of(norm).launches[0]
    assert isinstance(first, Stream)
    assert (first.blocks, first.steps) == (16, 1.5 * 2048 + 5)
    assert predict(first, H100).time_s == pytest.approx((1.5 * 2048 + 5) * round_trip_s(H100), rel=1e-2)
