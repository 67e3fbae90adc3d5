"""Kernels on a TPU: tiles of weights by hand, padded arrays, blocks of attention, and bounds that hold."""

from dataclasses import replace

import pytest

from memwall.core.graph import Graph, Op, Pipe, Storage, TensorSpec, Value
from memwall.hardware.lookup import load_gpu
from memwall.ops import Cost
from memwall.ops.launches import Rows, Stream
from memwall.ops.product_launches import Convolution, FusedAttention, Gemm, Recurrent
from memwall.perfmodel.families import as_run, explain, predict
from memwall.perfmodel.roofline import predict_cost
from memwall.perfmodel.tpu import laid_out, padded_elements, padding, requests

BF16, FP32 = Pipe("tensor", "bfloat16"), Pipe("vector", "float32")
V5E = load_gpu("tpu-v5e")
V5E = replace(V5E, utilization={"tpu.matrix.reached": 1.0, "tpu.matrix.dram": 1.0, "tpu.vector.dram": 1.0})


def gemm(m: int, n: int, k: int, batch: int = 1, pipe: Pipe = BF16) -> Gemm:
    read, write = 2 * batch * (m * k + k * n), 2 * batch * m * n
    return Gemm(pipe=pipe, batch=batch, m=m, n=n, k=k, itemsize=2, read_bytes=read, write_bytes=write)


def array(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return TensorSpec(shape, tuple(reversed(strides)), dtype)


def matrix_s(work: Gemm, gpu=V5E) -> float:
    return predict(work, gpu).facts["matrix_s"]


@pytest.mark.parametrize(("m", "n", "k", "rows"), [
    (4096, 4096, 4096, 1024 * 4096),  # 32 x 32 tiles of weights, 4096 rows each
    (4096, 4096, 64, 32 * 4096),  # half of each tile is padding
    (8, 4096, 4096, 1024 * 51),  # as long as 51 rows take
    (4096, 8, 4096, 1024 * 51),  # the other operand is held
    (1000, 1000, 1000, 64 * 1000),  # 8 x 8 tiles of 128
    (130, 130, 130, 4 * 136),  # 2 x 2 tiles, rows in eights
])  # fmt: skip
def test_rows_that_pass_tiles_of_128(m: int, n: int, k: int, rows: int) -> None:
    assert as_run(gemm(m, n, k), V5E).rows == rows


def test_a_row_and_a_tile_take_the_share_of_the_peak() -> None:
    # 4 units, each 128 x 128 multiply-adds a clock: 4096^3 are 2^20 clocks of 1.503 GHz (197e12 / 131072)
    assert matrix_s(gemm(4096, 4096, 4096)) == pytest.approx(2 * 4096**3 / 197e12)


def test_tiles_of_a_v6e_are_twice_as_wide() -> None:
    work = as_run(gemm(4096, 4096, 128), load_gpu("tpu-v6e"))
    assert work.rows == 16 * 4096  # 16 x 1 tiles of 256 x 256, half of each empty


def test_one_tile_of_weights_leaves_three_of_four_units_idle() -> None:
    # 8 rows past one tile: one piece of work, of 51 rows
    work = as_run(gemm(8, 128, 128), V5E)
    assert (work.rows, work.parts) == (51, 1)
    assert matrix_s(gemm(8, 128, 128)) == pytest.approx(4 * 51 * 2 * 128**2 / 197e12)


def test_few_tiles_share_many_rows() -> None:
    # 4096 rows past one tile are 80 pieces of 51 rows, 20 for each unit
    assert matrix_s(gemm(4096, 128, 128)) == pytest.approx(4096 * 2 * 128**2 / 197e12)


def test_float32_is_one_pass_of_bfloat16() -> None:
    assert matrix_s(gemm(4096, 4096, 4096, pipe=Pipe("tensor", "float32"))) == matrix_s(gemm(4096, 4096, 4096))


def test_traffic_overlaps_but_for_the_first_windows() -> None:
    terms = predict(gemm(8, 4096, 4096), V5E)
    moved_s = (2 * (8 * 4096 + 4096**2) + 2 * 8 * 4096) / 819e9
    assert terms.memory_s == pytest.approx(moved_s)
    assert terms.time_s == pytest.approx(moved_s + 3 * 32 * 4096 * 2 / 819e9)


def test_what_vmem_holds_is_not_read_from_hbm() -> None:
    work = gemm(8, 4096, 4096)
    terms = predict(work, V5E, work.read_bytes)
    assert terms.memory_s == pytest.approx(work.write_bytes / 819e9 + work.read_bytes / 18e12)


def test_a_convolution_is_a_product_over_places_taps_and_channels() -> None:
    work = Convolution(pipe=BF16, role="forward", images=8, groups=1, channels_in=64, channels_out=128,
                       places_in=(56, 56), places_out=(56, 56), kernel=(3, 3), stride=(1, 1), itemsize=2)  # fmt: skip
    # k = 64 x 9 = 576: 5 tiles of 128, and 8 x 56 x 56 = 25,088 rows
    assert as_run(work, V5E).rows == 5 * 25088


def test_a_depthwise_convolution_is_the_vector_units() -> None:
    work = Convolution(pipe=FP32, role="forward", images=1, groups=32, channels_in=1, channels_out=1, places_in=(8, 8),
                       places_out=(8, 8), kernel=(3, 3), stride=(1, 1), itemsize=2)  # fmt: skip
    assert (as_run(work, V5E).rows, as_run(work, V5E).ops) == (0, 2 * 32 * 64 * 9)


def attention(head: int, causal: bool, backward: bool = False) -> FusedAttention:
    pairs = 2048 * 2049 // 2 if causal else 2048**2
    return FusedAttention(pipe=BF16, kernel="flash", backward=backward, batch=1, heads=1, kv_heads=1, queries=2048,
                          keys=2048, head_size=head, value_size=head, pairs=pairs, itemsize=2)  # fmt: skip


def test_heads_of_64_take_as_long_as_heads_of_128() -> None:
    # 16 tiles of keys, 2048 rows, for scores and for values
    assert as_run(attention(64, False), V5E).rows == as_run(attention(128, False), V5E).rows == 2 * 16 * 2048


def test_causal_attention_takes_whole_blocks_on_the_diagonal() -> None:
    # 2048 x 2049 / 2 pairs and half of 512 more for each query: 0.6252 of all
    assert as_run(attention(128, True), V5E).rows == pytest.approx(0.6252 * 2 * 16 * 2048, rel=1e-3)


def test_backward_computes_scores_and_their_gradients_twice() -> None:
    # 5 products and two of them again
    assert as_run(attention(128, False, True), V5E).rows == 7 * 16 * 2048


def test_a_loop_over_steps_waits_for_each() -> None:
    work = Recurrent(pipe=BF16, dtype="bfloat16", cell="lstm", gates=4, backward=False, of_weights=False, steps=100,
                     rows=3200, layers=1, directions=1, inputs=128, hidden=128, state=128, itemsize=2)  # fmt: skip
    assert predict(work, V5E).latency_s >= 100 * 1.2e-6
    # 32 rows: 4 tiles of gates x 2 of inputs and state, each as long as 51 rows
    assert as_run(work, V5E).rows == 100 * 8 * 51


def test_a_stream_takes_its_traffic_or_its_ops() -> None:
    quiet = Stream(read_bytes=819_000_000, write_bytes=0, elements=1, flops=0, pipe=FP32)
    assert predict(quiet, V5E).body_s == pytest.approx(1e-3)
    busy = replace(quiet, flops=61_000_000_000)
    assert predict(busy, V5E).body_s == pytest.approx(1e-2)


def test_rows_are_padded_to_lanes() -> None:
    work = Rows(kind="softmax_warp", rows=1000, columns=100, itemsize=4)
    assert as_run(work, V5E).ops == 8 * 1000 * 128


@pytest.mark.parametrize(("shape", "tile", "padded"), [
    ((), (8, 128), 1),
    ((100,), (8, 128), 128),
    ((1000, 1000), (8, 128), 1000 * 1024),
    ((4096, 3), (8, 128), 4096 * 4),  # 4096 in lanes, 3 in tiles of 4 rows
    ((3, 5), (8, 128), 4 * 128),
    ((2, 12, 2048, 64), (8, 128), 2 * 12 * 2048 * 64),  # 2048 in lanes, 64 in sublanes
    ((17, 128), (16, 128), 32 * 128),
    # as libtpu 0.0.42 lays them out for a v5e: {1,3,2,0}, {3,2,1,0}, {0,1}, {2,3,1,0}
    ((32, 64, 56, 56), (8, 128), 32 * 56 * 56 * 128),
    ((64, 3, 224, 224), (8, 128), 64 * 3 * 224 * 256),
    ((4096, 100), (8, 128), 4096 * 104),
    ((5, 4096), (8, 128), 8 * 4096),
    ((0, 5), (8, 128), 0),
])  # fmt: skip
def test_arrays_fill_tiles_in_the_layout_with_the_least_padding(shape: tuple[int, ...], tile: tuple[int, int],
                                                                padded: int) -> None:  # fmt: skip
    assert padded_elements(shape, tile) == padded


def test_a_broadcast_axis_has_no_padding() -> None:
    spread = TensorSpec((1000, 128), (0, 1), "float32")
    assert padding([spread], V5E) == 1.0


def test_padded_arrays_move_more_bytes_and_leave_the_bound() -> None:
    cost = Cost(read_bytes=10**9, write_bytes=10**9)
    more = padding([array(100, 100), array(100, 100)], V5E)
    assert more == pytest.approx(1.04 * 1.28)  # 104 rows of 128
    padded = predict_cost(laid_out(cost, V5E, more), V5E)
    assert padded.memory_s == pytest.approx(more * predict_cost(cost, V5E).memory_s)
    assert padded.bound_s == predict_cost(cost, V5E).bound_s


def test_single_numbers_are_looked_up_one_in_a_clock() -> None:
    # 1.5e6 numbers of 4 bytes and as many indices of 8: 22 us of traffic, and 1 ms at 1.5 GHz
    cost = Cost(read_bytes=12_000_000, write_bytes=6_000_000)
    assert predict_cost(laid_out(cost, V5E, 1.0, 1_500_000), V5E).latency_s == pytest.approx(1e-3)


@pytest.mark.parametrize(("name", "argument", "shape", "count"), [
    ("aten.gather.default", "index", (100, 50), 5000),
    ("aten.embedding.default", "indices", (4, 2048), 8192),
    ("lax.gather", "indices", (4096, 1), 4096),
    ("lax.scatter_add", "indices", (10, 20, 2), 200),
    ("aten.max_pool2d_with_indices_backward.default", "indices", (100,), 0),
    ("aten.add.Tensor", "other", (100,), 0),
])  # fmt: skip
def test_what_an_op_looks_up(name: str, argument: str, shape: tuple[int, ...], count: int) -> None:
    values = (Value(0, array(*shape, dtype="int64"), 0, 0),)
    ops = (Op(0, name, "movement", "forward", "", (0,), (), (argument,)),)
    storages = (Storage(0, values[0].spec.nbytes, "input"),)
    assert requests(Graph(values, storages, ops), [0]) == count


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x"])
@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (1, 4096, 4096), (64, 64, 64), (100_000, 128, 128)])
def test_no_product_is_faster_than_its_bound(name: str, sizes: tuple[int, int, int]) -> None:
    work = gemm(*sizes)
    cost = Cost(dict(work.pipe_flops), work.read_bytes, work.write_bytes, launches=(work,))
    found = predict_cost(cost, load_gpu(name))
    assert found.bound_s <= found.low_s <= found.time_s <= found.high_s


def test_the_sentence_names_units_padding_and_traffic() -> None:
    text = explain(gemm(4096, 4096, 64), V5E, predict(gemm(4096, 4096, 64), V5E))
    assert "matrix units 21.80 us at 100 % of 197.00 TFLOP/s, 50 % of it on numbers that are no padding" in text
