"""Products, convolutions and recurrent layers. Expected values are worked out beside the assertions."""

import pytest

from memwall.core.graph import Pipe
from tests.unit.cost_calls import TENSOR_BF16, TENSOR_FP32, TF32, VECTOR, cost, expanded, spec


def test_mm_counts_two_flops_per_multiply_add():
    result = cost("aten.mm", [("self", spec(128, 64)), ("mat2", spec(64, 256))], spec(128, 256))
    assert result.flops == {TENSOR_BF16: 4_194_304}  # 2 * 128 * 256 * 64
    assert result.read_bytes == 49_152  # (128*64 + 64*256) * 2
    assert result.write_bytes == 65_536  # 128*256*2


def test_fp32_mm_has_a_pipe_of_its_own_unless_tf32_is_on():
    operands = [("self", spec(8, 4, dtype="float32")), ("mat2", spec(4, 16, dtype="float32"))]
    out = spec(8, 16, dtype="float32")
    assert cost("aten.mm", operands, out).flops == {TENSOR_FP32: 1024}  # 2 * 8 * 16 * 4
    assert cost("aten.mm", operands, out, allow_tf32=False).flops == {TENSOR_FP32: 1024}
    assert cost("aten.mm", operands, out, allow_tf32=True).flops == {TF32: 1024}


@pytest.mark.parametrize(("dtype", "pipe", "flops"), [
    ("float64", Pipe("tensor", "float64"), 1024),
    ("int8", Pipe("tensor", "int8"), 1024),
    ("float8_e4m3fn", Pipe("tensor", "fp8"), 1024),
    ("complex64", VECTOR, 4096),  # 4 multiplies and 4 adds for each of 8*16*4 products: 8 * 512
    ("complex128", Pipe("vector", "float64"), 4096),
])  # fmt: skip
def test_pipe_follows_dtype(dtype, pipe, flops):
    result = cost("aten.mm", [("self", spec(8, 4, dtype=dtype)), ("mat2", spec(4, 16, dtype=dtype))],
                  spec(8, 16, dtype=dtype))  # fmt: skip
    assert result.flops == {pipe: flops}


@pytest.mark.parametrize("name", ["aten._scaled_mm", "aten._scaled_mm_v2"])
def test_four_bit_floats_stand_two_to_an_element(name):
    """NVFP4 [8, 64] x [64, 16]: 2 * 8 * 64 * 16 FLOPs, 4 bits a number and a byte of scale for 16 of them."""
    dtype = "float4_e2m1fn_x2"
    scales = [("scale_a", spec(8 * 4, dtype="float8_e4m3fn")), ("scale_b", spec(16 * 4, dtype="float8_e4m3fn"))]
    result = cost(name, [("self", spec(8, 32, dtype=dtype)), ("mat2", spec(32, 16, dtype=dtype)), *scales], spec(8, 16))
    assert result.flops == {Pipe("tensor", "fp4"): 16_384}
    assert result.read_bytes == 256 + 512 + 32 + 64
    assert (result.launches[0].k, result.launches[0].kernel) == (64, "nvfp4")


def test_grouped_products_of_four_bit_floats():
    """Rows of 4 groups, [32, 64] x [4, 64, 16], and the gradient of weights, whose k is the rows."""
    dtype, out = "float4_e2m1fn_x2", spec(32, 16)
    rows = [("self", spec(32, 32, dtype=dtype)), ("mat2", spec(4, 32, 16, dtype=dtype))]
    assert cost("aten._scaled_grouped_mm_v2", rows, out).total_flops == 2 * 32 * 64 * 16
    columns = [("self", spec(64, 16, dtype=dtype)), ("mat2", spec(16, 16, dtype=dtype))]
    assert cost("aten._scaled_grouped_mm_v2", columns, spec(4, 64, 16)).total_flops == 2 * 64 * 32 * 16


def test_addmm_bias_is_read_once_and_adds_no_flops():
    result = cost("aten.addmm", [("self", spec(256)), ("mat1", spec(128, 64)), ("mat2", spec(64, 256))], spec(128, 256),
                  beta=1, alpha=1)  # fmt: skip
    assert result.total_flops == 4_194_304
    assert result.read_bytes == 49_664  # 49,152 + 256 * 2
    assert (result.kernels, result.extra_bytes) == (1, 0)


def test_expanded_bias_counts_its_distinct_elements():
    result = cost("aten.addmm",
                  [("self", expanded((128, 256), (0, 1))), ("mat1", spec(128, 64)), ("mat2", spec(64, 256))],
                  spec(128, 256))  # fmt: skip
    assert result.read_bytes == 49_664


def test_matrix_addend_is_copied_first():
    result = cost("aten.addmm", [("self", spec(128, 256)), ("mat1", spec(128, 64)), ("mat2", spec(64, 256))],
                  spec(128, 256))  # fmt: skip
    assert result.read_bytes == 49_152 + 65_536
    assert (result.kernels, result.extra_bytes) == (2, 131_072)  # the output written and read once more


def test_baddbmm_with_beta_zero_does_not_read_its_addend():
    result = cost("aten.baddbmm", [("self", spec(4, 32, 32)), ("batch1", spec(4, 32, 8)), ("batch2", spec(4, 8, 32))],
                  spec(4, 32, 32), beta=0)  # fmt: skip
    assert result.total_flops == 65_536  # 2 * 4 * 32*32*8
    assert result.read_bytes == 4_096  # 2 operands * 4*32*8 elements * 2 bytes
    assert result.kernels == 1


@pytest.mark.parametrize(("name", "inputs", "out", "flops"), [
    ("aten.bmm", [("self", spec(4, 32, 8)), ("mat2", spec(4, 8, 16))], spec(4, 32, 16), 32_768),  # 2*4*32*16*8
    ("aten.mv", [("self", spec(100, 50)), ("vec", spec(50))], spec(100), 10_000),  # 2*100*50
    ("aten.dot", [("self", spec(100)), ("tensor", spec(100))], spec(), 200),
    ("aten.linear", [("input", spec(2, 3, 8)), ("weight", spec(5, 8))], spec(2, 3, 5), 480),  # 2*6*5*8
    ("aten.matmul", [("self", spec(2, 3, 8)), ("other", spec(8, 5))], spec(2, 3, 5), 480),
    ("aten.addbmm", [("self", spec(32, 16)), ("batch1", spec(4, 32, 8)), ("batch2", spec(4, 8, 16))],
     spec(32, 16), 32_768),
    ("aten.addr", [("self", spec(6, 7)), ("vec1", spec(6)), ("vec2", spec(7))], spec(6, 7), 84),  # 2*6*7
])  # fmt: skip
def test_shapes(name, inputs, out, flops):
    assert cost(name, inputs, out).total_flops == flops


def test_grouped_mm_of_rows_and_of_its_weight_gradient():
    # 64 rows shared out over 8 experts [32, 48]: 2 * 64 * 32 * 48; all experts' weights are read
    offsets = spec(8, dtype="int32")
    forward = cost(
        "aten._grouped_mm", [("self", spec(64, 32)), ("mat2", spec(8, 32, 48)), ("offs", offsets)], spec(64, 48)
    )
    assert forward.flops == {TENSOR_BF16: 196_608}
    assert forward.read_bytes == 28_704  # 64*32*2 + 8*32*48*2 + 8*4
    gradient = cost(
        "aten._grouped_mm", [("self", spec(32, 64)), ("mat2", spec(64, 48)), ("offs", offsets)], spec(8, 32, 48)
    )
    assert gradient.flops == {TENSOR_BF16: 196_608}  # the 64 rows are summed within their groups


@pytest.mark.defect("19b")
def test_grouped_products_read_the_weights_of_groups_with_rows():
    """A grouped product was billed the weights of all of its groups, also of those that have no rows."""
    inputs = [("self", spec(64, 2048)), ("mat2", spec(128, 2048, 1536)), ("offs", spec(128, dtype="int32"))]
    # a token's row for each of 8 of 128 experts: 8 tokens choose 52 of them by chance, or the same 8
    found = cost("aten._grouped_mm", inputs, spec(64, 1536), slices=(52, 8))
    rows, expert = 64 * 2048 * 2 + 128 * 4, 2048 * 1536 * 2
    assert (found.read_bytes, found.least_read_bytes) == (rows + 52 * expert, rows + 8 * expert)
    (work,) = found.launches
    assert (work.batch, work.m, work.n, work.k) == (52, 2, 1536, 2048)  # 64 rows in 52 groups: 1 or 2
    assert work.flops == found.total_flops == 2 * 64 * 2048 * 1536
    # of columns: each group has some columns of the result
    inputs = [("self", spec(16, 96, 32)), ("mat2", spec(32, 64)), ("offs", spec(16, dtype="int32"))]
    found = cost("aten._grouped_mm", inputs, spec(96, 64), slices=(4, 4))
    assert found.read_bytes == found.least_read_bytes == 4 * 96 * 32 * 2 + 32 * 64 * 2 + 16 * 4
    assert found.total_flops == 2 * 96 * 32 * 64


def test_linear_backward_counts_the_gradients_asked_for():
    inputs = [("self", spec(6, 8)), ("grad_output", spec(6, 5)), ("weight", spec(5, 8))]
    both = cost("aten.linear_backward", inputs, [spec(6, 8), spec(5, 8)], output_mask=(True, True, False))
    assert both.total_flops == 960  # 2 * (2*6*5*8)


# Convolutions


def _conv(dtype="float32", bias=False, **attributes):
    # ResNet's first layer on two images: [2, 3, 224, 224] -> [2, 64, 112, 112], 7x7
    inputs = [("input", spec(2, 3, 224, 224, dtype=dtype)), ("weight", spec(64, 3, 7, 7, dtype=dtype))]
    inputs += [("bias", spec(64, dtype=dtype))] if bias else []
    out = spec(2, 64, 112, 112, dtype=dtype)
    return cost("aten.convolution", inputs, out, transposed=False, groups=1, **attributes)


def test_convolution():
    result = _conv()
    # 2 * (2*64*112*112 = 1,605,632 outputs) * 3 * 49
    assert result.flops == {TF32: 472_055_808}
    assert result.read_bytes == 1_204_224 + 37_632  # 2*3*224*224*4; 64*3*49*4
    assert result.write_bytes == 6_422_528  # 1,605,632 * 4


def test_fp32_convolution_without_tf32_is_plain_fp32():
    assert _conv(allow_tf32=False).flops == {TENSOR_FP32: 472_055_808}


def test_bias_is_a_second_pass_and_no_flops():
    result = _conv(bias=True)
    assert result.total_flops == 472_055_808
    assert (result.kernels, result.extra_bytes) == (2, 12_845_056)  # 2 * 6,422,528


def test_grouped_and_depthwise_convolutions():
    data, out = spec(1, 32, 8, 8), spec(1, 64, 8, 8)
    grouped = cost("aten.convolution", [("input", data), ("weight", spec(64, 8, 3, 3))], out, groups=4)
    assert grouped.flops == {TENSOR_BF16: 589_824}  # 2 * 4096 * (32/4) * 9
    depthwise = cost("aten.convolution", [("input", data), ("weight", spec(32, 1, 3, 3))], data, groups=32)
    assert depthwise.flops == {VECTOR: 36_864}  # 2 * 2048 * 1 * 9


def test_transposed_convolution_counts_on_its_input():
    result = cost("aten.convolution", [("input", spec(1, 16, 8, 8)), ("weight", spec(16, 4, 2, 2))], spec(1, 4, 16, 16),
                  transposed=True, groups=1)  # fmt: skip
    assert result.total_flops == 32_768  # 2 * (16*8*8 = 1024) * 4 * 4


def test_convolution_backward_counts_each_gradient_asked_for():
    grad, data, weight = spec(2, 8, 4, 4), spec(2, 4, 4, 4), spec(8, 4, 3, 3)
    inputs = [("grad_output", grad), ("input", data), ("weight", weight)]
    # forward: 2 * 256 * 4 * 9 = 18,432
    both = cost("aten.convolution_backward", inputs, [data, weight], output_mask=(True, True, False))
    assert (both.total_flops, both.kernels) == (36_864, 2)
    assert both.read_bytes == 512 + 576 + 256  # grad 256, weight 288, input 128 elements of 2 bytes
    assert both.extra_bytes == 512  # grad_output again
    weights_only = cost("aten.convolution_backward", inputs, [weight], output_mask=(False, True, False))
    assert weights_only.total_flops == 18_432
    assert weights_only.read_bytes == 512 + 256
    with_bias = cost("aten.convolution_backward", inputs, [data, weight, spec(8)], output_mask=(True, True, True))
    assert with_bias.total_flops == 36_864  # the bias gradient's adds are not counted


# Recurrent layers


def test_lstm_multiplies_every_weight_with_every_step():
    # one layer, 10 steps, batch 4, input 16, hidden 32, 4 gates
    weights = [spec(128, 16), spec(128, 32), spec(128), spec(128)]
    inputs = [("input", spec(10, 4, 16)), ("weight", weights), ("hx", spec(1, 4, 32)), ("cx", spec(1, 4, 32))]
    out = [spec(10, 4, 32), spec(1, 4, 32), spec(1, 4, 32)]
    forward = cost("aten._cudnn_rnn", inputs, out, mode=2, weight_stride0=4, batch_first=False)
    # 2 * 40 rows * (128*16 + 128*32), and for each of 40 * 32 hidden elements 27: 12 sums of two products and two
    # biases in 4 gates, 3 sigmoids of 3, 2 tanh, 4 for c = f c + i g and h = o tanh(c)
    assert forward.total_flops == 491_520 + 34_560
    # the input's product moves 4,096 + 1,280 + 10,240 bytes, the steps of a persistent kernel 8,192 of weights once and
    # 2,560 + 10,240: in all 36,608. Once each would be 1,280 + 12,288 + 512 + 512 read and 2,560 + 512 written: 17,664
    assert forward.extra_bytes == 18_944
    assert forward.kernels == 2
    backward = cost("aten._cudnn_rnn_backward", inputs, [spec(10, 4, 16), spec(1, 4, 32), spec(1, 4, 32), *weights],
                    weight_stride0=4, batch_first=False)  # fmt: skip
    # 5 derivatives of 3, 6 products (do, d tanh, di, dg, df, dc), 2 sums (dc, dh), 4 bias gradients
    assert backward.total_flops == 983_040 + 40 * 32 * 27


def test_a_recurrent_layer_that_is_not_persistent_reads_its_weights_at_each_step():
    """cuDNN has no persistent kernels for float64: a product of the inputs, then two kernels for each of 10 steps."""
    weights = [spec(128, 16, dtype="float64"), spec(128, 32, dtype="float64")]
    inputs = [("input", spec(10, 4, 16, dtype="float64")), ("weight", weights)]
    forward = cost("aten._cudnn_rnn", inputs, [spec(10, 4, 32, dtype="float64")], mode=2, weight_stride0=2)
    # 8 bytes each: 2,048 + 640 + 5,120 elements, then 10 times 4,096 + 128 + 512; once each 640 + 6,144 and 1,280
    assert forward.extra_bytes == 8 * (7_808 + 47_360 - 8_064)
    assert forward.kernels == 21


def test_projected_layers_have_five_tensors_each():
    """LSTM of 2 layers with biases, input 16, hidden 32, projected to 8: 2 layers of a product and 3 kernels a step."""
    layers = [[spec(128, size), spec(128, 8), spec(128), spec(128), spec(8, 32)] for size in (16, 8)]
    result = cost("aten._cudnn_rnn", [("input", spec(10, 4, 16)), ("weight", [*layers[0], *layers[1]])],
                  [spec(10, 4, 8)], mode=2, num_layers=2, hidden_size=32, has_biases=True)  # fmt: skip
    assert result.kernels == 2 * (1 + 3 * 10)
    (launch,) = result.launches
    assert (launch.layers, launch.hidden, launch.state) == (2, 32, 8)
    # 2 * 40 rows * (128*16 + 128*8 + 8*32 + 128*8 + 128*8 + 8*32)
    assert sum(launch.pipe_flops.values()) == 80 * 5_632


def test_batch_first_and_packed_rnn_count_their_steps():
    weights = [spec(32, 16), spec(32, 32)]
    out = spec(4, 10, 32)
    first = cost("aten._cudnn_rnn", [("input", spec(4, 10, 16)), ("weight", weights)], out,
                 batch_first=True, has_biases=False)  # fmt: skip
    (launch,) = first.launches
    assert (first.kernels, launch.steps, launch.rows) == (2, 10, 40)
    packed = cost("aten._cudnn_rnn", [("input", spec(25, 16)), ("weight", weights)], out,
                  batch_sizes=(10, 10, 5), weight_stride0=2)  # fmt: skip
    assert packed.kernels == 7  # sequences of different lengths have no persistent kernel
    assert packed.total_flops == 76_800 + 25 * 32 * 2  # 2 * 25 rows * (32*16 + 32*32), a sum and a tanh
