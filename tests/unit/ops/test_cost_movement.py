"""Copies, gathers, scatters, reductions. Expected values are worked out beside the assertions."""

import pytest

from memwall.core.graph import Graph, Op, Storage, TensorSpec, Value, contiguous
from memwall.hardware.lookup import load_gpu
from memwall.ops.base import touched_bytes
from memwall.ops.passes import sector_bytes
from memwall.ops.registry import classify, graph_costs
from memwall.perfmodel.roofline import predict_cost
from tests.unit.cost_calls import VECTOR, cost, expanded, spec


def test_embedding_reads_its_rows_and_not_the_table():
    result = cost("aten.embedding",
                  [("weight", spec(50000, 1024, dtype="float32")), ("indices", spec(128, dtype="int64"))],
                  spec(128, 1024, dtype="float32"))  # fmt: skip
    assert result.read_bytes == 525_312  # 128 * 1024 * 4 + 128 * 8
    assert result.write_bytes == 524_288
    assert result.flops == {}


def test_embedding_reads_at_most_the_table():
    result = cost("aten.embedding", [("weight", spec(10, 64)), ("indices", spec(1000, dtype="int64"))], spec(1000, 64))
    assert result.read_bytes == 9_280  # 10*64*2 + 1000*8


def test_embedding_backward_writes_the_whole_table():
    inputs = [("grad_output", spec(128, 64)), ("indices", spec(128, dtype="int64"))]
    result = cost("aten.embedding_dense_backward", inputs, spec(50000, 64))
    assert result.write_bytes == 6_400_000  # 50,000 * 64 * 2
    assert result.read_bytes == 17_408  # 128*64*2 + 128*8
    assert result.flops == {VECTOR: 8_192}  # one add per element of the gradient
    assert result.kernels == 2
    long = [("grad_output", spec(8192, 64)), ("indices", spec(8192, dtype="int64"))]
    sorted_first = cost("aten.embedding_dense_backward", long, spec(50000, 64))
    assert (sorted_first.kernels, sorted_first.launches[-1].round_trips) == (15, 300)
    # again: 8192 * 64 * 2 of the gradient's rows; 8192 + 819 segments of 64 sums of 4 B, written and read
    assert sorted_first.extra_bytes == 1_048_576 + 2 * 9_011 * 256
    assert sorted_first.launches[-1].instructions == 80 * 2 * 9_011 * 64


def test_rows_are_fetched_element_by_element():
    a100, h100 = load_gpu("a100-80gb-sxm"), load_gpu("h100-sxm")
    ids, table = spec(16384, dtype="int64"), spec(8192, 4096, dtype="float32")
    rows = cost("aten.embedding", [("weight", table), ("indices", ids)], spec(16384, 4096, dtype="float32"))
    assert predict_cost(rows, a100).time_s == pytest.approx(0.854e-3, rel=0.1)  # measured by Liger: 0.854 ms
    # pytorch issue 151612: 4096 rows of 5120 bfloat16 on an H100 in 136 us, 36 us by gather
    picked, ids = spec(4096, 5120), spec(4096, dtype="int64")
    select = cost("aten.index_select", [("self", picked), ("index", ids)], picked, dim=0)
    assert predict_cost(select, h100).time_s == pytest.approx(136e-6, rel=0.1)
    gather = cost("aten.gather", [("self", picked), ("index", spec(4096, 5120, dtype="int64"))], picked, dim=0)
    assert gather.launches[0].instructions == 0


def test_atomic_adds_are_slower_than_their_bytes():
    target, source, index = (
        spec(1024, 64, dtype="float32"),
        spec(4096, 64, dtype="float32"),
        spec(4096, dtype="int64"),
    )
    inputs = [("self", target), ("index", index), ("source", source)]
    added = cost("aten.index_add_", inputs, target, dim=0)
    assert added.bytes + added.extra_bytes == 48 * 262_144  # as long as 48 bytes for each of the 4096 * 64
    assert cost("aten.index_copy_", inputs, target, dim=0).extra_bytes == 0


def test_casts_and_copies_with_gaps_compute_their_places():
    wide, narrow = spec(1024, 512, dtype="float32"), spec(1024, 512)
    assert cost("aten._to_copy", [("self", wide)], narrow).launches[0].instructions == 53 * 524_288
    assert cost("aten.clone", [("self", narrow)], narrow).launches[0].instructions == 0
    flipped = expanded((1024, 512), (1, 1024))
    assert cost("aten.clone", [("self", flipped)], narrow).launches[0].instructions == 36 * 524_288  # two axes
    half = expanded((1024, 512), (1024, 1))  # the left half of 1024 columns
    joined = cost("aten.cat", [("tensors", [half, narrow])], spec(2048, 512))
    assert joined.launches[0].instructions == 36 * 524_288  # of the first only


def test_expand_is_not_billed():
    wide = expanded((1024, 4096), (1, 0))
    result = cost("aten.clone", [("self", wide)], spec(1024, 4096))
    assert result.read_bytes == 2_048  # 1024 * 2
    assert result.write_bytes == 8_388_608


def test_writing_a_token_into_a_cache_touches_the_token():
    # cache [1, 8, 4096, 128] bf16, one position of it written by copy_
    cache = contiguous((1, 8, 4096, 128), "bfloat16")
    slot = Value(0, expanded((1, 8, 1, 128), cache.strides), 0, 100 * 128)
    token = Value(1, spec(1, 8, 1, 128), 1, 0)
    storages = (Storage(0, cache.nbytes, "activation"), Storage(1, 2048, "activation"))
    op = Op(0, "aten.copy_", "movement", "forward", "", (1,), (0,), ("src",))
    (result,) = graph_costs(Graph((slot, token), storages, (op,)))
    assert (result.read_bytes, result.write_bytes) == (2_048, 2_048)  # 8 * 128 * 2


def test_gather_and_index():
    table, rows = spec(1000, 64), spec(10, dtype="int64")
    index = cost("aten.index.Tensor", [("self", table), ("indices", [rows])], spec(10, 64))
    assert index.read_bytes == 1_360  # 10*64*2 + 80
    gather = cost("aten.gather", [("self", table), ("index", spec(1000, 1, dtype="int64"))], spec(1000, 1), dim=1)
    assert gather.read_bytes == 10_000  # 1000*2 + 1000*8


def test_scatter_add_in_place_touches_what_it_adds_to():
    inputs = [("self", spec(1000, 64)), ("index", spec(10, 64, dtype="int64")), ("src", spec(10, 64))]
    result = cost("aten.scatter_add_", inputs, spec(1000, 64), dim=0)
    assert result.read_bytes == 7_680  # index 640*8, src 640*2, target 640*2
    assert result.write_bytes == 1_280
    assert result.total_flops == 640
    functional = cost("aten.scatter_add", inputs, spec(1000, 64), dim=0)
    assert functional.read_bytes == 134_400  # index and src 6,400, and all of self: 128,000
    assert functional.write_bytes == 128_000
    assert functional.kernels == 2


def test_index_put_of_rows_and_of_a_number():
    target, rows = spec(1000, 64), spec(10, dtype="int64")
    written = cost("aten.index_put_", [("self", target), ("indices", [rows]), ("values", spec(10, 64))], target,
                   accumulate=False)  # fmt: skip
    assert (written.read_bytes, written.write_bytes) == (1_360, 1_280)
    number = cost("aten.index_put_", [("self", target), ("indices", [rows])], target, accumulate=False)
    assert (number.read_bytes, number.write_bytes) == (80, 1_280)
    added = cost("aten.index_put_", [("self", target), ("indices", [rows]), ("values", spec(10, 64))], target,
                 accumulate=True)  # fmt: skip
    assert (added.read_bytes, added.total_flops) == (2_640, 640)


def test_index_add_and_index_copy():
    inputs = [("self", spec(1000, 64)), ("index", spec(10, dtype="int64")), ("source", spec(10, 64))]
    added = cost("aten.index_add_", inputs, spec(1000, 64), dim=0)
    assert (added.read_bytes, added.write_bytes, added.total_flops) == (2_640, 1_280, 640)
    copied = cost("aten.index_copy_", inputs, spec(1000, 64), dim=0)
    assert (copied.read_bytes, copied.write_bytes, copied.total_flops) == (1_360, 1_280, 0)


def test_slice_backward_fills_and_copies():
    result = cost("aten.slice_backward", [("grad_output", spec(10, 64))], spec(100, 64))
    assert (result.read_bytes, result.write_bytes) == (1_280, 12_800)
    assert (result.extra_bytes, result.kernels) == (1_280, 2)


def test_cat_launches_128_tensors_at_a_time():
    result = cost("aten.cat", [("tensors", [spec(16)] * 300)], spec(4800))
    assert (result.read_bytes, result.write_bytes, result.kernels) == (9_600, 9_600, 3)


def test_fill_only_writes():
    assert cost("aten.zeros", [], spec(1000)).bytes == 2_000


def test_long_rows_are_sorted_in_radix_passes():
    outputs = [spec(4, 100), spec(4, 100, dtype="int64")]
    assert cost("aten.sort", [("self", spec(4, 100))], outputs, dim=-1).extra_bytes == 0
    result = cost("aten.sort", [("self", spec(100_000))], [spec(100_000), spec(100_000, dtype="int64")], dim=-1)
    assert result.extra_bytes == 2_000_000  # one pass more than two: both ways, 100,000 * (2 + 8)


def test_fft():
    result = cost("aten._fft_c2c", [("self", spec(4, 1024, dtype="complex64"))], spec(4, 1024, dtype="complex64"),
                  dim=(1,))  # fmt: skip
    assert result.total_flops == 204_800  # 4 * 5 * 1024 * 10


# Reductions


@pytest.mark.parametrize(("name", "attributes", "flops"), [
    ("aten.sum.dim_IntList", {"dim": (1,)}, 1_000),
    ("aten.mean.dim", {"dim": (1,)}, 1_000),
    ("aten.amax", {}, 0),
    ("aten.argmax", {}, 0),
    ("aten.var_mean.correction", {}, 4_000),
    ("aten.linalg_vector_norm", {"ord": 2}, 2_000),
    ("aten.linalg_vector_norm", {"ord": "inf"}, 0),
    ("aten.linalg_vector_norm", {"ord": 1}, 1_000),
])  # fmt: skip
def test_reductions(name, attributes, flops):
    result = cost(name, [("self", spec(10, 100))], spec(10), **attributes)
    assert result.total_flops == flops
    assert (result.read_bytes, result.write_bytes) == (2_000, 20)
    assert classify(name) == "reduction"


def test_cumsum_writes_as_much_as_it_reads():
    result = cost("aten.cumsum", [("self", spec(10, 100))], spec(10, 100), dim=1)
    assert (result.total_flops, result.bytes) == (1_000, 4_000)


def test_pooling():
    data, out = spec(1, 8, 16, 16), spec(1, 8, 8, 8)
    average = cost("aten.avg_pool2d", [("self", data)], out, kernel_size=(2, 2))
    assert average.total_flops == 2_048  # 512 * 4
    assert cost("aten.avg_pool2d", [("self", data)], out, kernel_size=(3,)).total_flops == 4_608  # 512 * 9
    indices = spec(1, 8, 8, 8, dtype="int64")
    assert cost("aten.max_pool2d_with_indices", [("self", data)], [out, indices]).flops == {}
    backward = cost("aten.max_pool2d_with_indices_backward",
                    [("grad_output", out), ("self", data), ("indices", indices)], data)  # fmt: skip
    assert backward.read_bytes == 5_120  # 512 * 2 + 512 * 8: the pooled tensor itself is not read
    assert backward.total_flops == 512


def test_mse_loss_stores_its_squares():
    data = spec(1000)
    result = cost("aten.mse_loss", [("self", data), ("target", data)], spec(), reduction=1)
    assert result.total_flops == 3_000  # subtract, square, sum
    assert (result.read_bytes, result.extra_bytes, result.kernels) == (4_000, 4_000, 2)


def test_a_stride_longer_than_the_window_skips_what_lies_between():
    data, weight = spec(4, 16, 32, 32), spec(32, 16, 1, 1)
    attributes = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    result = cost("aten.convolution", [("input", data), ("weight", weight)], spec(4, 32, 16, 16), **attributes)
    assert result.read_bytes == 33_792  # a quarter of 4*16*32*32*2, and 32*16*2
    inputs = [("grad_output", spec(4, 32, 16, 16)), ("input", data), ("weight", weight)]
    back = cost("aten.convolution_backward", inputs, [data, weight], output_mask=(True, True, False), **attributes)
    assert back.read_bytes == 99_328  # 4*32*16*16*2 + 32*16*2 + a quarter of the input
    pooled = [spec(4, 16, 16, 16), spec(4, 16, 16, 16, dtype="int64")]
    gaps = cost("aten.max_pool2d_with_indices", [("self", data)], pooled, kernel_size=(1, 1), stride=(2, 2))
    assert gaps.read_bytes == 32_768
    dilated = {**attributes, "stride": (2, 1), "dilation": (2, 1)}  # rows 0, 2, ... 30 and every column
    wide = cost("aten.convolution", [("input", data), ("weight", spec(32, 16, 3, 3))], spec(4, 32, 14, 30), **dilated)
    assert wide.read_bytes == 74_752  # half of 131,072, and 32*16*9*2


@pytest.mark.parametrize(("length", "stride", "padding", "dilation"), [
    (3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (7, 2, 3, 1), (1, 2, 0, 1), (3, 1, 2, 2), (3, 4, 0, 1), (3, 3, 1, 2),
])  # fmt: skip
def test_places_that_windows_meet_against_counting(length, stride, padding, dilation):
    for size in (11, 16):
        count = (size + 2 * padding - dilation * (length - 1) - 1) // stride + 1
        met = {o * stride + k * dilation - padding for o in range(count) for k in range(length)} & set(range(size))
        touched = touched_bytes(spec(2, size), (length,), (count,), stride, padding, dilation)
        assert touched == 2 * 2 * len(met)


def test_shrinking_by_nearest_neighbour_reads_what_it_keeps():
    result = cost("aten.upsample_nearest2d", [("self", spec(4, 16, 8, 8))], spec(4, 16, 2, 2))
    assert (result.read_bytes, result.write_bytes) == (512, 512)
    grown = cost("aten.upsample_bilinear2d", [("self", spec(4, 16, 8, 8))], spec(4, 16, 16, 16))
    assert grown.read_bytes == 8_192


def test_a_negative_pad_is_a_cut():
    result = cost("aten.constant_pad_nd", [("self", spec(8, 8))], spec(8, 6), pad=(-1, -1))
    assert (result.read_bytes, result.write_bytes, result.extra_bytes, result.kernels) == (96, 96, 0, 1)
    both = cost("aten.constant_pad_nd", [("self", spec(8, 8))], spec(8, 9), pad=(-1, 2))
    assert (both.read_bytes, both.write_bytes, both.extra_bytes) == (112, 144, 112)  # 8*7*2 of 8*8*2


def test_index_put_writes_all_that_is_indexed_however_small_the_values():
    table, rows = spec(1000, 64, dtype="float32"), spec(10, dtype="int64")
    for values, read in ((spec(64, dtype="float32"), 336), (spec(10, 64, dtype="float32"), 2_640)):
        inputs = [("indices", [rows]), ("values", values)]
        result = cost("aten.index_put_", inputs, table)
        assert (result.read_bytes, result.write_bytes) == (read, 2_560)  # 80 + values; 10*64*4
    wide, values = spec(8, 1000, dtype="float32"), spec(10, dtype="float32")
    column = cost("aten.index_put_", [("indices", [rows]), ("values", values)], wide, indices_given=(False, True))
    assert (column.read_bytes, column.write_bytes) == (120, 320)  # 8*10*4
    pair = cost("aten.index_put_", [("indices", [spec(5, 1, dtype="int64"), rows]), ("values", spec())], wide)
    assert pair.write_bytes == 200  # 5*10 elements
    mask = spec(8, 1000, dtype="bool")
    masked = cost("aten.index_put_", [("indices", [mask]), ("values", spec(7, dtype="float32"))], wide)
    assert masked.write_bytes == 28


def test_keys_that_are_copied_transposed_are_read_in_sectors():
    """32 numbers in a row of the copy of [8, 12, 64, 384] lie 1,536 bytes apart in 32 sectors of 32 bytes; a picture's
    three channels put next to each other take 3 x 1.33 sectors for 32 numbers, as many bytes as they have."""
    keys = TensorSpec((8, 12, 64, 384), (384 * 768, 64, 1, 768), "float16")
    assert sector_bytes(keys, contiguous(keys.shape, "float16")) == 8 * 12 * 64 * 384 * 32
    picture = contiguous((8, 3, 224, 224), "float32")
    beside = TensorSpec(picture.shape, (3 * 224 * 224, 1, 3 * 224, 3), "float32")
    assert sector_bytes(picture, beside) == 0
    assert sector_bytes(keys, TensorSpec(keys.shape, keys.strides, "float16")) == 0
