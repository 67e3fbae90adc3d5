"""What Triton kernels of others' habits do, against counts by hand.

FLOPs are those of elements that are loaded: an add, a product, a division or a transcendental call is one; a maximum, a
comparison, a selection and a conversion none; a reduction one for each element that it adds up. Scalars count too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from memwall.core.errors import Unsupported
from memwall.frontend.triton.work import kernel_work
from memwall.hardware.lookup import load_gpu
from tests.unit import triton_kernels as kernels

F16, F32, I32, I64, U8, FP8 = (
    torch.float16, torch.float32, torch.int32, torch.int64, torch.uint8, torch.float8_e4m3fn,
)  # fmt: skip


def T(dtype: torch.dtype, *shape: int) -> torch.Tensor:  # noqa: N802  a table is full of it
    return torch.empty(shape, dtype=dtype, device="meta")


def several(count: int, dtype: torch.dtype, *shape: int) -> tuple[torch.Tensor, ...]:
    return tuple(T(dtype, *shape) for _ in range(count))


def described(tensor: torch.Tensor, *block: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(tensor, list(block))


@dataclass(frozen=True)
class Case:
    """A launch, and what it does by hand: FLOPs by kind of work, different bytes read and written."""

    name: str
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    read: int
    write: int
    flops: dict[str, int] = field(default_factory=dict)
    gpu: str = "h100"

    def work(self) -> Any:
        kernel, gpu = getattr(kernels, self.name), load_gpu(self.gpu)
        return kernel_work(kernel, self.grid, *self.args, gpu=gpu, **self.constants)


def matmul_case(m: int, n: int, k: int, activation: str, **counts: Any) -> Case:
    args = (T(F16, m, k), T(F16, k, n), T(F16, m, n), m, n, k, k, 1, n, 1, n, 1)
    tiles = -(-m // 128) * -(-n // 128)
    blocks = {"BM": 128, "BN": 128, "BK": 32, "GROUP": 8, "ACTIVATION": activation}
    return Case("matmul", (tiles,), args, blocks, **counts)


CASES = [
    # 100,000 adds of two numbers; three tensors of 400,000 bytes, the tail of 352 masked
    Case("vector_add", (98,), (*several(3, F32, 100000), 100000), {"BLOCK": 1024},
         800_000, 400_000, {"arithmetic": 100_000}),
    # 64 x 1000: a subtraction and a division each, an exp, a sum; the maximum counts none
    Case("softmax_row", (64,), (*several(2, F32, 64, 1000), 1000, 1000, 1000), {"BLOCK": 1024},
         256_000, 256_000, {"arithmetic": 128_000, "transcendental": 64_000, "reduction": 64_000}),
    # 1823 x 781 = 1,423,763 elements of 4 bytes, rows shared among 132 programs
    Case("softmax_persistent", (132,), (*several(2, F32, 1823, 781), 781, 1823, 781), {"BLOCK": 1024, "STAGES": 4},
         5_695_052, 5_695_052, {"arithmetic": 2_847_526, "transcendental": 1_423_763, "reduction": 1_423_763}),
    # 2 x 1024^3; each operand once: 2 x 2 MiB
    matmul_case(1024, 1024, 1024, "", read=4_194_304, write=2_097_152, flops={"dot": 2_147_483_648}),
    # rows and columns wrap around to 8 x 128 and 5 x 128, k is masked: 2 x 1024 x 640 x 200; one product for each of
    # the 1024 x 640 results of leaky_relu; 1000 x 200 and 200 x 520 halves are read
    matmul_case(1000, 520, 200, "leaky_relu", read=608_000, write=1_040_000,
                flops={"dot": 262_144_000, "arithmetic": 655_360}),
    # 10,000 divisions, and 1 - p once in each of 10 programs; x, 4-byte flags, the result
    Case("dropout", (10,), (T(F32, 10000), T(I32, 10000), T(F32, 10000), 10000, 0.5), {"BLOCK": 1024},
         80_000, 40_000, {"arithmetic": 10_010}),
    # as above, and the product that makes a number in [0, 1) of each of 10,240 random words
    Case("seeded_dropout", (10,), (T(F32, 10000), T(F32, 10000), 10000, 0.5, 123), {"BLOCK": 1024},
         40_000, 40_000, {"arithmetic": 20_250}),
    # 64 rows of 1000: pass 1 an add, pass 2 a subtraction, a square and an add, pass 3 four: 8 x 64,000, and 4 scalars
    # a row (two divisions by N, an eps, 1/x); two sums of a block of 256 a row; a root a row.
    # x 128,000, w and b 2,000 each; y 128,000, mean and rstd 256 each
    Case("layer_norm", (64,), (T(F16, 64, 1000), T(F16, 64, 1000), T(F16, 1000), T(F16, 1000), T(F32, 64), T(F32, 64),
                               1000, 1000, 1e-5), {"BLOCK": 256},
         132_000, 128_512, {"arithmetic": 512_256, "reduction": 32_768, "transcendental": 64}),
    # 64 rows of 1000 halves into 8 partial sums of 1000; 16 words of locks and counts
    Case("layer_norm_partial_gradients", (64,), (T(F16, 64, 1000), T(F16, 8, 1000), T(I32, 16), 1000),
         {"GROUP": 8, "BLOCK": 1024}, 128_000 + 16_000 + 64, 16_000 + 64, {"arithmetic": 64_000}),
    # 500 x 1000 adds into blocks of 32 x 128, whose rows 8 programs sum: 8 x 4096
    Case("column_sums", (8,), (T(F32, 500, 1000), T(F32, 1000), 500, 1000), {"BM": 32, "BN": 128},
         2_000_000, 4_000, {"arithmetic": 500_000, "reduction": 32_768}),
    # 32 heads of 1024: 8 blocks of 128 rows, block i over 2(i + 1) blocks of 64 keys: 72 a head, 2304 in all, two
    # products of 128 x 64 x 64 each: 2304 x 2 x 2 x 524,288. A block has 8192 scores: scale, subtract, and 8192 results
    # to rescale, and 128 rows: max x scale, top - new, total x old, + : 2304 x (2 x 8192 + 8192 + 4 x 128); a division
    # for each result, 2,097,152, and the first top, 128 - inf, in 256 programs. exp2 of scores and rows; sums of scores
    Case("attention", (8, 32), (*several(4, F16, 32, 1024, 64), 0.1, 32, 1024),
         {"BM": 128, "BN": 64, "D": 64, "CAUSAL": True}, 3 * 4_194_304, 4_194_304,
         {"dot": 4_831_838_208, "arithmetic": 59_899_904, "transcendental": 19_169_280, "reduction": 18_874_368}),
    # all 16 blocks of keys for all 8 blocks of rows: 4096 pairs of blocks, 4 x 524,288 FLOP each
    Case("attention", (8, 32), (*several(4, F16, 32, 1024, 64), 0.1, 32, 1024),
         {"BM": 128, "BN": 64, "D": 64, "CAUSAL": False}, 3 * 4_194_304, 4_194_304,
         {"dot": 8_589_934_592, "arithmetic": 4096 * 25_088 + 2_097_152, "transcendental": 4096 * 8_320,
          "reduction": 4096 * 8_192}),
    # sizes and addresses are data: each of 16 programs does one tile of each of 4 problems, one step deep. A block
    # of 128 x 32 halves and one of 32 x 128 each, from memory of its own; 12 sizes of 4 bytes, 3 x 4 addresses of 8
    Case("grouped_matmul", (16,), (*several(3, I64, 4), T(I32, 12)),
         {"G": 4, "PROGRAMS": 16, "BM": 128, "BN": 128, "BK": 32},
         2 * 64 * 8_192 + 48 + 96, 64 * 32_768, {"dot": 64 * 1_048_576}),
    # 512 tiles on 132 programs: 2 x 4096^3
    Case("matmul_persistent", (132,), (*several(3, F16, 4096, 4096), 4096, 4096, 4096),
         {"PROGRAMS": 132, "BM": 128, "BN": 256, "BK": 64}, 67_108_864, 33_554_432, {"dot": 137_438_953_472}),
    # descriptors leave out what lies beyond the tensors: 2 x 1000 x 520 x 200
    Case("matmul_descriptors", (8, 5), (T(F16, 1000, 200), T(F16, 520, 200), T(F16, 1000, 520), 1000, 520, 200),
         {"BM": 128, "BN": 128, "BK": 64}, 400_000 + 208_000, 1_040_000, {"dot": 208_000_000}),
    Case("matmul_host_descriptors", (8, 8),
         (described(T(F16, 1024, 512), 128, 64), described(T(F16, 512, 1024), 64, 128),
          described(T(F16, 1024, 1024), 128, 128), 512),
         {"BM": 128, "BN": 128, "BK": 64}, 2 * 1_048_576, 2_097_152, {"dot": 1_073_741_824}),
    # MXFP8: 512 x 1024 bytes and 512 x 32 scales a side; 2 x 512 x 512 x 1024
    Case("matmul_scaled", (4, 4), (T(FP8, 512, 1024), T(U8, 512, 32), T(FP8, 512, 1024), T(U8, 512, 32),
                                   T(F32, 512, 512), 512, 512, 1024),
         {"BM": 128, "BN": 128, "BK": 128, "PACK": 1, "KIND": "e4m3"}, 2 * (524_288 + 16_384), 1_048_576,
         {"dot": 536_870_912}, gpu="b200"),
    # MXFP4: two numbers in a byte
    Case("matmul_scaled", (4, 4), (T(U8, 512, 512), T(U8, 512, 32), T(U8, 512, 512), T(U8, 512, 32),
                                   T(F32, 512, 512), 512, 512, 1024),
         {"BM": 128, "BN": 128, "BK": 128, "PACK": 2, "KIND": "e2m1"}, 2 * (262_144 + 16_384), 1_048_576,
         {"dot": 536_870_912}, gpu="b200"),
    # one number, added to by 98 programs
    Case("sum_atomic", (98,), (T(F32, 100000), T(F32, 1), 100000), {"BLOCK": 1024},
         400_004, 4, {"reduction": 100_000, "atomic": 98}),
    Case("max_partial", (98,), (T(F32, 100000), T(F32, 98), 100000), {"BLOCK": 1024}, 400_000, 392),
    # 300 indices of 8 bytes, as many rows of 768 halves, which all may differ
    Case("embedding", (300,), (T(F16, 50000, 768), T(I64, 300), T(F16, 300, 768), 768), {"BLOCK": 1024},
         2_400 + 460_800, 460_800),
    # of a table of 100 rows no more than all of it
    Case("embedding", (300,), (T(F16, 100, 768), T(I64, 300), T(F16, 300, 768), 768), {"BLOCK": 1024},
         2_400 + 153_600, 460_800),
    # six programs read the same 64 indices, for other columns of the same rows
    Case("gather_blocks", (5, 6), (T(F16, 50000, 768), T(I64, 300), T(F16, 300, 768), 300, 768),
         {"BLOCK": 64, "COLS": 128}, 2_400 + 460_800, 460_800),
    Case("scatter_rows", (300,), (T(F16, 300, 768), T(I64, 300), T(F16, 50000, 768), 768), {"BLOCK": 1024},
         460_800 + 2_400, 460_800),
    # 10,000 places in 500 numbers: all 2,000 bytes, read and written
    Case("scatter_add", (10,), (T(F32, 10000), T(I32, 10000), T(F32, 500), 10000), {"BLOCK": 1024},
         40_000 + 40_000 + 2_000, 2_000, {"atomic": 10_000}),
    Case("cumsum_rows", (64,), (*several(2, F32, 64, 1000), 1000), {"BLOCK": 1024},
         256_000, 256_000, {"scan": 64_000}),
    # three FLOPs a step: a2 a1, a2 b1, + b2
    Case("linear_recurrence", (64,), (*several(3, F32, 64, 512), 512), {"BLOCK": 512},
         262_144, 131_072, {"scan": 98_304}),
    # 64 counts of 4 bytes, to which 10 programs add
    Case("histogram", (10,), (T(I32, 10000), T(I32, 64), 10000), {"BINS": 64, "BLOCK": 1024}, 40_256, 256),
    # 5,000 bytes, a scale for 128: 79 of 2 bytes; 10,000 products
    Case("dequantize_int4", (10,), (T(U8, 5000), T(F16, 80), T(F16, 10000), 10000), {"GROUP": 128, "BLOCK": 1024},
         5_158, 20_000, {"arithmetic": 10_000}),
    # 2 x 100 x 4096 x 2048; a scale for each result of whole tiles, 128 x 4096
    Case("matmul_int8_weights", (1, 32), (T(F16, 100, 2048), T(torch.int8, 2048, 4096), T(F32, 4096),
                                          T(F16, 100, 4096), 100, 4096, 2048), {"BM": 128, "BN": 128, "BK": 64},
         409_600 + 8_388_608 + 16_384, 819_200, {"dot": 1_677_721_600, "arithmetic": 524_288}),
    Case("transpose", (16, 8), (T(F32, 1000, 500), T(F32, 500, 1000), 1000, 500), {"BLOCK": 64}, 2_000_000, 2_000_000),
    # each third number
    Case("copy_strided", (10,), (T(F32, 30000), T(F32, 10000), 10000, 3), {"BLOCK": 1024}, 40_000, 40_000),
    # 16 heads x 512 tokens x 64 pairs: 6 FLOPs; in place; cosines and sines of 512 x 64
    Case("rotary", (512, 16), (T(F32, 16, 512, 128), T(F32, 512, 64), T(F32, 512, 64), 512), {"HALF": 64},
         4_194_304 + 262_144, 4_194_304, {"arithmetic": 3_145_728}),
    # a square, a product by rms and one by w: 3 x 64,000, and a division and an eps a row
    Case("rms_norm", (64,), (T(F16, 64, 1000), T(F16, 1000), T(F16, 64, 1000), 1000, 1e-6), {"BLOCK": 1024},
         130_000, 128_000, {"arithmetic": 192_128, "reduction": 64_000, "transcendental": 64}),
    # sigmoid: 0 - x, exp, 1 + , 1 / ; a times it, times b
    Case("swiglu", (10,), (*several(3, F16, 10000), 10000), {"BLOCK": 1024},
         40_000, 20_000, {"arithmetic": 50_000, "transcendental": 10_000}),
    # 0.044715 x x x (3), + x, x 0.79788; 0.5 x, 1 + tanh, their product
    Case("gelu_tanh", (10,), (*several(2, F32, 10000), 10000), {"BLOCK": 1024},
         40_000, 40_000, {"arithmetic": 80_000, "transcendental": 10_000}),
    # 64 x 10,000: x - new; 3 blocks a row: top - new, total x, +; at the end + and -. exp of each, 3 a row, and a log
    Case("cross_entropy", (64,), (T(F32, 64, 10000), T(I64, 64), T(F32, 64), 10000), {"BLOCK": 4096},
         2_560_000 + 512, 256,
         {"arithmetic": 640_000 + 64 * (9 + 2), "transcendental": 640_000 + 64 * 4, "reduction": 640_000}),
    # 32 channels: each of 4 taps has 500 places to multiply, and adds where the taps before it were loaded too
    Case("depthwise_conv", (32, 4), (T(F32, 32, 500), T(F32, 32, 4), T(F32, 32, 500), 500), {"WIDTH": 4, "BLOCK": 128},
         64_000 + 512, 64_000, {"arithmetic": 32 * (4 * 500 + 500 + 499 + 498 + 497)}),
    # eight programs add to each result, in float32
    Case("matmul_split_k", (4, 4, 8), (T(F16, 512, 4096), T(F16, 4096, 512), T(F32, 512, 512), 512, 512, 4096),
         {"BM": 128, "BN": 128, "BK": 64, "SPLIT": 8}, 2 * 4_194_304 + 1_048_576, 1_048_576,
         {"dot": 2_147_483_648, "atomic": 2_097_152}),
    # block pointers with checked bounds: 10 x 2 x 200 x 200 x 300
    Case("batched_matmul", (2, 2, 10),
         (T(F16, 10, 200, 300), T(F16, 10, 300, 200), T(F16, 10, 200, 200), 200, 200, 300),
         {"BM": 128, "BN": 128, "BK": 64}, 2_400_000, 800_000, {"dot": 240_000_000}),
    # 8 sequences of 32 pages of 16 keys of 64 numbers: a product and an add each
    Case("paged_keys", (8,), (T(F32, 8, 64), T(F32, 1000, 16, 64), T(I32, 8, 32), T(F32, 8, 512), 500),
         {"PAGE": 16, "D": 64, "PAGES": 32}, 2_048 + 1_048_576 + 1_024, 16_384,
         {"arithmetic": 262_144, "reduction": 262_144}),
    Case("argmax_rows", (64,), (T(F32, 64, 1000), T(I64, 64), 1000), {"BLOCK": 1024}, 256_000, 512),
    # m: b1 m, (1 - b1) g, + ; v: b2 v, (1 - b2) g, g, + ; p: lr m, root, + eps, /, - : 11 and a root; 1 - b twice in
    # each of ten programs
    Case("adam", (10,), (*several(4, F32, 10000), 10000, 0.001, 0.9, 0.999, 1e-08), {"BLOCK": 1024},
         160_000, 120_000, {"arithmetic": 110_020, "transcendental": 10_000}),
    # 62 x 62 windows of 9: an add each, and a division of whole blocks of 64
    Case("average_pool", (62,), (T(F32, 64, 64), T(F32, 62, 62), 64, 62), {"WINDOW": 3, "BLOCK": 64},
         16_384, 15_376, {"arithmetic": 62 * 62 * 9 + 62 * 64}),
    # programs beyond the 500 rows return at once
    Case("copy_ragged", (16,), (T(F32, 1024, 50), T(F32, 1024, 50), 500, 50), {"BLOCK": 64}, 100_000, 100_000),
    # 10,000 halves 13 times: a loop of while, over blocks of 1024
    Case("bisect_power", (10,), (T(F32, 10000), T(F32, 10000), 10000), {"BLOCK": 1024},
         40_000, 40_000, {"arithmetic": 133_120}),
    # 8 x 64 x 196: an add, a square and an add; a channel: two divisions, a square, a subtraction, and sums of 2 x 256
    Case("channel_moments", (64,), (T(F32, 8, 64, 196), T(F32, 64), T(F32, 64), 8, 64, 196), {"BLOCK": 256},
         401_408, 512, {"arithmetic": 3 * 100_352 + 64 * 4, "reduction": 64 * 512}),
    # 64 tiles of 32 steps on 108 programs: 104 do 19 steps, 4 do 18. None does a whole tile, so each adds to one for
    # each of 108 + 63 - 3 stretches: 63 borders of tiles, of which 3 are borders of programs (19 x 32, 64 and 96)
    Case("matmul_stream_k", (108,), (T(F16, 1024, 1024), T(F16, 1024, 1024), T(F32, 1024, 1024), 1024, 1024, 2048),
         {"BM": 128, "BN": 128, "BK": 32}, 2 * 2_097_152 + 4_194_304, 4_194_304,
         {"dot": 2_147_483_648, "atomic": 168 * 16_384}),
    # three products of TF32, or six of bfloat16, for one of float32: 2 x 64^3 each
    *(Case("matmul_precise", (1,), several(3, F32, 64, 64), {"N": 64, "PRECISION": asked}, 32_768, 16_384,
           {"dot": count * 524_288})
      for asked, count in (("ieee", 1), ("tf32", 1), ("tf32x3", 3), ("bf16x3", 3), ("bf16x6", 6))),
    # 5 programs read the one tensor, 11 the other
    Case("concatenate", (16,), (T(F32, 640), T(F32, 1408), T(F32, 2048), 5), {"BLOCK": 128}, 8_192, 8_192),
    # lengths are data: all 8 blocks of 128 of each of 100 rows of 1000 run, but touch no more than there is
    Case("double_ragged", (100, 8), (T(F32, 100, 1000), T(I32, 100), T(F32, 100, 1000), 1000), {"BLOCK": 128},
         400_400, 400_000, {"arithmetic": 102_400}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.name}" for number, case in enumerate(CASES)])
def test_flops_and_bytes_are_those_by_hand(case):
    work = case.work()
    assert {kind: count for kind, _, count in work.flops} == case.flops
    assert (work.read_bytes, work.write_bytes) == (case.read, case.write)


@pytest.mark.parametrize(
    ("precision", "pipe"), [("ieee", "vector.float32"), ("tf32x3", "tensor.tf32"), ("bf16x6", "tensor.bfloat16")]
)
def test_products_of_float32_run_where_their_precision_says(precision, pipe):
    work = kernel_work(kernels.matmul_precise, (1,), *several(3, F32, 64, 64), N=64, PRECISION=precision)
    assert [where for _, where, _ in work.flops] == [pipe]


def test_what_data_may_mask_is_not_said_to_lie_beyond_a_tensor():
    work = kernel_work(
        kernels.double_ragged, (100, 8), T(F32, 100, 1000), T(I32, 100), T(F32, 100, 1000), 1000, BLOCK=128
    )
    assert not any("beyond" in note for note in work.notes)


def test_halves_of_rows_are_different_bytes_however_many_there_are():
    n = 32768 * 1280
    both = T(F16, 32768, 2560)
    given = (both[:, :1280], both[:, 1280:], T(F16, 32768, 1280), n)
    work = kernel_work(kernels.gated, (n // 1024,), *given, WIDTH=1280, BLOCK=1024)
    # blocks of 1024 begin at five different places of a row of 1280
    assert (work.read_bytes, work.notes) == (2 * 2 * n, ())


def test_a_pointer_that_the_program_chooses_is_of_either_tensor():
    work = kernel_work(kernels.concatenate, (16,), T(F32, 640), T(F32, 1408), T(F32, 2048), 5, BLOCK=128)
    read = {each.argument: each.touched_bytes for each in work.accesses if each.what == "read"}
    assert (read, work.notes) == ({"a_ptr": 2_560, "b_ptr": 5_632}, ())


def test_inline_assembly_is_said_not_to_be_counted():
    work = kernel_work(kernels.exp2_assembly, (8,), T(F32, 1024), T(F32, 1024), BLOCK=128)
    assert work.notes == ("inline assembly is not read: none of its FLOPs are counted",)


def test_on_amd_a_launch_takes_options_of_its_compiler():
    given = (*several(3, F32, 1024), 1024)
    work = kernel_work(kernels.vector_add, (1,), *given, gpu=load_gpu("mi300x"), BLOCK=1024, waves_per_eu=2)
    assert work.options == (("waves_per_eu", 2),)


def test_products_of_float32_keep_their_precision_where_the_gpu_has_no_tf32():
    given = (*several(3, F32, 128, 128), 128, 128, 128, 128, 1, 128, 1, 128, 1)
    blocks = {"BM": 128, "BN": 128, "BK": 32, "GROUP": 8, "ACTIVATION": ""}
    works = [kernel_work(kernels.matmul, (1,), *given, gpu=load_gpu(gpu), **blocks) for gpu in ("h100", "mi210")]
    assert [work.flops[0][1] for work in works] == ["tensor.tf32", "vector.float32"]


def test_a_grid_of_too_many_programs_is_not_followed():
    with pytest.raises(Unsupported, match="a grid of 2,147,483,647 programs"):
        kernel_work(kernels.vector_add, (2**31 - 1,), *several(3, F32, 1024), 1024, BLOCK=1024)
