"""Tiles, waves and splits of matrix products by hand; physical facts; and rows that others measured."""

import csv
import hashlib
from dataclasses import replace

import pytest

from memwall.core.graph import Pipe
from memwall.hardware.constants import GemmConstants
from memwall.hardware.lookup import load_gpu
from memwall.ops.launches import Stream
from memwall.ops.product_launches import Gemm, VectorGemm
from memwall.perfmodel.families import constants, explain, predict
from memwall.perfmodel.gemm import explain as explain_with
from memwall.perfmodel.gemm import predict as predict_with
from tests.unit.cost_calls import cost, spec
from tests.unit.places import truth

H100, A100 = load_gpu("h100-sxm"), load_gpu("a100-80gb-sxm")
GPUS = tuple(
    map(load_gpu, ("h100-sxm", "a100-80gb-sxm", "l40s", "b200", "v100-sxm2-16gb", "l4", "mi300x", "p100-pcie-16gb"))
)
SHAPES = ((1, 4096, 4096), (17, 32, 65536), (128, 1024, 8192), (512, 512, 512), (4096, 4096, 64), (8192, 8192, 8192))


def gemm(m: int, n: int, k: int, batch: int = 1, dtype: str = "bfloat16", itemsize: int = 2) -> Gemm:
    read_bytes = batch * (m + n) * k * itemsize
    return Gemm(pipe=Pipe("tensor", dtype), batch=batch, m=m, n=n, k=k, itemsize=itemsize,
                read_bytes=read_bytes, write_bytes=2 * batch * m * n)  # fmt: skip


def test_a_large_square_is_cut_into_the_largest_tiles():
    facts = predict(gemm(8192, 8192, 8192), H100).facts
    assert facts["tile"] == (128, 256)
    assert (facts["split"], facts["blocks"]) == (1, 2048)  # 8192 / 128 = 64 by 8192 / 256 = 32
    assert facts["waves"] == pytest.approx(15.515, abs=1e-3)  # 2048 / 132


def test_a_large_square_runs_at_the_rate_that_power_allows():
    # 0.65 of the peak at 1 W per TFLOP/s; 700 W for 989.4 TFLOP/s are 0.7075, the root of which is 0.8411
    terms = predict_with(gemm(8192, 8192, 8192), H100, GemmConstants(plateau=1.0, load=400.0, sustained=0.65))
    assert terms.time_s == pytest.approx(2 * 8192**3 / (989.4e12 * 0.65 * 0.8411), rel=1e-3)


def test_a_board_of_less_power_is_slower_in_large_products_alone():
    halved = replace(H100, tdp_w=H100.tdp_w / 2)
    assert predict(gemm(8192, 8192, 8192), halved).time_s > 1.2 * predict(gemm(8192, 8192, 8192), H100).time_s
    assert predict(gemm(64, 64, 512), halved).time_s == predict(gemm(64, 64, 512), H100).time_s


def test_a_thin_deep_product_is_split_along_k():
    facts = predict(gemm(16, 64, 65536), H100).facts
    assert facts["split"] > 8
    assert facts["blocks"] <= H100.sm_count
    assert predict(gemm(16, 64, 256), H100).facts["split"] == 1


def test_one_tile_more_than_multiprocessors_takes_a_second_wave():
    known = GemmConstants(rounding=1.0, sustained=2.0)
    full, over = (predict_with(gemm(128, 256 * tiles, 2048), A100, known) for tiles in (108, 109))
    assert full.facts["blocks"] == 108
    assert over.time_s > 1.1 * full.time_s  # 128 x 128 tiles, 218 of them, make 3 rounds of half the size
    shared = replace(known, rounding=0.0)
    assert predict_with(gemm(128, 256 * 109, 2048), A100, shared).time_s < 1.02 * full.time_s


def test_a_batch_fills_the_multiprocessors_together():
    one, many = (predict(gemm(64, 64, 1024, batch=batch), H100, 1 << 30) for batch in (1, 132))
    assert many.time_s < 2 * one.time_s  # of 132 times the work


def test_rows_within_a_tile_cost_the_same():
    seconds = [predict(replace(gemm(m, 4096, 512), read_bytes=0, write_bytes=0), A100).time_s for m in (1, 9, 16)]
    assert seconds[0] == seconds[1] == seconds[2]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_product_beats_the_datasheet(gpu, shape):
    work = gemm(*shape)
    time_s = predict(work, gpu).time_s
    assert time_s >= work.flops / gpu.peak(work.pipe)
    assert time_s >= work.read_bytes / gpu.dram_bytes_per_s


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_more_to_read_or_to_multiply_never_takes_less(gpu):
    for m, n, k in SHAPES:
        work = gemm(m, n, k)
        time_s = predict(work, gpu).time_s
        assert predict(replace(work, read_bytes=2 * work.read_bytes), gpu).time_s >= time_s
        assert predict(gemm(m, n, 2 * k), gpu).time_s >= time_s
        assert predict(work, gpu, resident_bytes=work.read_bytes).time_s <= time_s


def test_a_product_of_nothing_takes_no_arithmetic():
    assert predict(gemm(0, 16, 16), H100).compute_s == 0.0
    assert explain(gemm(0, 16, 16), H100, predict(gemm(0, 16, 16), H100)).startswith("there is nothing to compute")


def test_the_sentence_names_tiles_waves_and_the_wall():
    work = gemm(8192, 8192, 8192)
    text = explain(work, H100, predict(work, H100))
    assert "8192x8192x8192 in 128x256 tiles: 2,048 blocks on 132 SMs = 15.5 waves" in text
    assert "its power limit of 700 W holds the chip at" in text and text.endswith(".")
    deep, known = gemm(8, 64, 512), GemmConstants(depth_clocks=20)
    assert "waits 20 clocks for 2 bytes of each row" in explain_with(deep, H100, known, predict_with(deep, H100, known))
    decode = gemm(1, 16384, 16384)
    assert "through DRAM at" in explain(decode, H100, predict(decode, H100))


def test_a_dtype_without_rows_goes_by_another_of_the_board():
    assert constants(GemmConstants, H100, "tf32") == constants(GemmConstants, H100, "bfloat16")


def test_tf32_of_an_a100_by_hand() -> None:
    """10240^3 in 80 x 40 tiles of 128 x 256 on 108 SMs: 29.63 waves, run as 0.81 x 30 + 0.19 x 29.63 = 29.93; a tile is
    10240 x 32768 multiply-adds at 0.922 x 0.88 of 1.444 TFLOP/s, 573 us, and 5300 clocks: 17.25 ms, 124 TFLOP/s."""
    n, a100 = 10240, load_gpu("a100-80gb-sxm")
    work = Gemm(pipe=Pipe("tensor", "tf32"), batch=1, m=n, n=n, k=n, itemsize=4, read_bytes=8 * n * n,
                write_bytes=4 * n * n)  # fmt: skip
    assert predict(work, a100).time_s == pytest.approx(17.25e-3, rel=0.01)


# What the cost formulas say is launched.


def test_a_product_is_one_launch_of_its_bytes():
    result = cost("aten.mm", [("self", spec(128, 64)), ("mat2", spec(64, 256))], spec(128, 256))
    (work,) = result.launches
    assert (work.batch, work.m, work.n, work.k, work.itemsize) == (1, 128, 256, 64, 2)
    assert (work.read_bytes, work.write_bytes) == (result.read_bytes, result.write_bytes)
    assert work.variant == "bfloat16" and type(work) is Gemm


@pytest.mark.parametrize(("name", "operands", "output", "sizes"), [
    # a linear layer is one product over all its rows: 4 * 32
    ("aten.linear", [("input", spec(4, 32, 64)), ("weight", spec(256, 64)), ("bias", spec(256))], spec(4, 32, 256),
     (1, 128, 256, 64)),
    ("aten.bmm", [("self", spec(4, 32, 8)), ("mat2", spec(4, 8, 16))], spec(4, 32, 16), (4, 32, 16, 8)),
    # grouped products are a batch: 1024 rows over 8 groups
    ("aten._grouped_mm", [("self", spec(1024, 64)), ("mat2", spec(8, 64, 32)), ("offs", spec(8, dtype="int32"))],
     spec(1024, 32), (8, 128, 32, 64)),
])  # fmt: skip
def test_sizes_of_a_product(name, operands, output, sizes):
    (work,) = cost(name, operands, output).launches
    assert (work.batch, work.m, work.n, work.k) == sizes


def test_full_precision_is_another_family():
    operands = [("self", spec(8, 4, dtype="float32")), ("mat2", spec(4, 16, dtype="float32"))]
    (work,) = cost("aten.mm", operands, spec(8, 16, dtype="float32")).launches
    assert isinstance(work, VectorGemm) and not work.bias
    biased = [("self", spec(16, dtype="float32")), ("mat1", operands[0][1]), ("mat2", operands[1][1])]
    (work,) = cost("aten.addmm", biased, spec(8, 16, dtype="float32")).launches
    assert isinstance(work, VectorGemm) and work.bias
    (work,) = cost("aten.mm", operands, spec(8, 16, dtype="float32"), allow_tf32=True).launches
    assert type(work) is Gemm and work.variant == "tf32" and work.itemsize == 4


def test_a_matrix_addend_is_copied_by_a_launch_before():
    operands = [("self", spec(128, 256)), ("mat1", spec(128, 64)), ("mat2", spec(64, 256))]
    result = cost("aten.addmm", operands, spec(128, 256))
    copy, product = result.launches
    assert isinstance(copy, Stream) and copy.bytes == 2 * 65_536
    assert copy.bytes + product.bytes == result.bytes + result.extra_bytes


def test_a_vector_is_a_product_of_one_column_and_a_scalar_product_streams():
    (work,) = cost("aten.mv", [("self", spec(128, 64)), ("vec", spec(64))], spec(128)).launches
    assert (work.m, work.n, work.k) == (128, 1, 64)
    (work,) = cost("aten.dot", [("self", spec(64)), ("tensor", spec(64))], spec()).launches
    assert isinstance(work, Stream)


MEASURED = truth("aiconfigurator_gemm.csv")


@pytest.mark.skipif(MEASURED is None, reason="shared/truth is not here")
@pytest.mark.parametrize(
    ("label", "name", "at_most"),
    [("H100-SXM-80GB", "h100-sxm", 0.07), ("H200-SXM-141GB", "h200", 0.08), ("A100-SXM4-80GB", "a100-80gb-sxm", 0.09),
     ("B200-SXM", "b200", 0.12)],
)  # fmt: skip
def test_shapes_that_were_not_fitted_come_out_as_measured(label, name, at_most):
    gpu, errors = load_gpu(name), []
    with MEASURED.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            m, n, k = (int(row[size]) for size in "mnk")
            fitted = not int(hashlib.sha256(f"{m}x{n}x{k}".encode()).hexdigest(), 16) & 1
            if (row["gpu"], row["dtype"]) != (label, "bfloat16") or fitted or len(errors) == 300:
                continue
            work = gemm(m, n, k)
            copies = max(1, min(5, -(-gpu.l2_bytes // (2 * n * k))))
            warm = 2 * m * k if work.bytes <= gpu.l2_bytes else 0
            warm = work.read_bytes if work.bytes + (copies - 1) * 2 * n * k <= 0.9 * gpu.l2_bytes else warm
            modeled_s = predict(work, gpu, warm).time_s + gpu.launch_overhead_s
            errors.append(abs(modeled_s / (float(row["latency_ms"]) * 1e-3) - 1))
    assert len(errors) == 300
    assert sum(errors) / len(errors) < at_most


@pytest.mark.parametrize(("gpu", "share"), [
    ("rtx-4090", 0.71), ("a100-80gb-sxm", 0.71), ("h200", 0.71 * 0.629), ("b200", 0.71 * 0.629), ("mi300x", 1.0),
])  # fmt: skip
def test_rows_that_begin_between_16_bytes_are_loaded_one_by_one(gpu, share):
    """PyTorch issue 181718 (RTX 4090): 111 TFLOP/s at sizes of 2055 to 2073, 156 at 2040; arXiv 2501.12084, section
    6.2: a warp's instructions reach 62.9 % of an H800's peak in the mean."""
    found, known = load_gpu(gpu), GemmConstants(plateau=0.9, load=400.0, sustained=1.0, tile_clocks=0.0)
    aligned = gemm(2048, 2048, 2048)
    plain, slower = (predict_with(work, found, known) for work in (aligned, replace(aligned, aligned=False)))
    rates = [
        2048**3 / terms.facts["pipe_s"] / terms.facts["waves"] * terms.facts["rounds"] for terms in (plain, slower)
    ]
    assert rates[1] / rates[0] == pytest.approx(share, rel=1e-6)
    said = explain_with(replace(aligned, aligned=False), found, known, slower)
    assert ("do not begin at multiples of 16 bytes" in said) == (share < 1 and slower.wall == "compute")


@pytest.mark.parametrize(("dtype", "left", "right", "aligned"), [
    ("float16", (64, 512), (512, 64), True), ("float16", (64, 300), (300, 64), False),
    ("float16", (64, 512), (512, 300), False), ("float32", (64, 300), (300, 64), True),
    ("float32", (64, 301), (301, 64), False), ("float16", (300, 1), (1, 300), True),
])  # fmt: skip
def test_which_operands_have_aligned_rows(dtype, left, right, aligned):
    made = spec(left[0], right[1], dtype=dtype)
    inputs = [("self", spec(*left, dtype=dtype)), ("mat2", spec(*right, dtype=dtype))]
    (work,) = cost("aten.mm", inputs, [made], allow_tf32=True).launches
    assert work.aligned == aligned


def test_the_rows_of_a_transposed_weight_are_those_of_k():
    """A head of 50257 words on 768 numbers: its weight lies as [50257, 768], the gradient of its result does not."""
    weight, data, grad = (spec(*shape, dtype="bfloat16") for shape in ((50257, 768), (512, 768), (512, 50257)))
    across = replace(weight, shape=(768, 50257), strides=(1, 768))
    (ahead,) = cost("aten.mm", [("self", data), ("mat2", across)], [grad]).launches
    (back,) = cost("aten.mm", [("self", grad), ("mat2", weight)], [data]).launches
    assert (ahead.aligned, back.aligned) == (True, False)
