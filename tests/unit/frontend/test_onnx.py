"""ONNX files as graphs: FLOPs, bytes, views and modules by hand arithmetic; and what a wrong file is told."""

import sys

import pytest

import memwall
from memwall.core.errors import MissingError, UsageError
from memwall.fusion.ideal import ideal_plan
from tests.unit.onnx_files import FLOAT, HALF, INT64, given, helper, node, numbers, result, save, weight


def graph_of(path, **dims):
    return memwall.profile(path, dims=dims, gpu="h100-sxm").graph


def made(tmp_path, nodes, inputs, weights=(), outputs=None, opset=20, **dims):
    """The profile of a file of some nodes, whose outputs are those of the last."""
    nodes = list(nodes)
    outputs = [result(name) for name in nodes[-1].output] if outputs is None else outputs
    path = save(tmp_path / "model.onnx", nodes, inputs, outputs, weights, opset)
    return memwall.profile(path, dims=dims, gpu="h100-sxm")


def flops(profile):
    return sum(cost.total_flops for cost in profile.costs[0])


def names(profile):
    return [op.name for op in profile.graph.ops]


# -- what nodes become -------------------------------------------------------------------------------------------------


def test_a_matmul_of_symbolic_rows_is_one_product(tmp_path):
    found = made(tmp_path, [node("y = MatMul(x, w)", "/fc/MatMul")], [given("x", "batch", 256)],
                 [weight("w", [256, 1024])], batch=512)  # fmt: skip
    (op,) = found.graph.ops
    assert op.name == "aten.mm" and flops(found) == 2 * 512 * 256 * 1024
    assert found.costs[0][0].bytes == 2 * (512 * 256 + 256 * 1024 + 512 * 1024)


def test_weights_outside_of_the_file_are_parameters(tmp_path):
    found = made(tmp_path, [node("y = MatMul(x, w)")], [given("x", 8, 256)], [weight("w", [256, 1024])])
    assert found.workload.parameters == 256 * 1024 and found.workload.dtype == "float16"


def test_the_name_of_a_node_says_its_module(tmp_path):
    found = made(tmp_path, [node("y = Relu(x)", "/layers.0/attn/Relu")], [given("x", 8)])
    assert [(op.module, op.source) for op in found.graph.ops] == [("layers.0.attn", "Relu /layers.0/attn/Relu")]


def test_an_exporter_says_the_module_in_its_notes(tmp_path):
    relu = node("y = Relu(x)", "node_relu_3")
    relu.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layers.0', 'layers.0.act', 'relu']")
    assert made(tmp_path, [relu], [given("x", 8)]).graph.ops[0].module == "layers.0.act"


def test_shapes_that_are_computed_from_shapes_launch_nothing(tmp_path):
    """x [b, s, 64] → [b, s, 4, 16] by Shape, Gather and Concat, as exporters write it."""
    nodes = [node("s = Shape(x)"), node("b = Gather(s, zero)", axis=0), node("t = Gather(s, one)", axis=0),
             node("n = Concat(b, t, heads)", axis=0), node("h = Reshape(x, n)"), node("y = Relu(h)")]  # fmt: skip
    constants = [numbers("zero", 0), numbers("one", 1), numbers("heads", 4, 16)]
    found = made(tmp_path, nodes, [given("x", "b", "s", 64)], constants, b=2, s=8)
    (op,) = found.graph.ops
    assert found.graph.values[op.inputs[0]].spec.shape == (2, 8, 4, 16)


def test_reshape_and_transpose_are_views_of_one_storage(tmp_path):
    nodes = [node("h = Reshape(x, n)"), node("t = Transpose(h)", perm=[0, 2, 1, 3]), node("y = Relu(t)")]
    found = made(tmp_path, nodes, [given("x", 2, 8, 64)], [numbers("n", 2, 8, 4, 16)])
    (op,) = found.graph.ops
    read = found.graph.values[op.inputs[0]]
    assert read.spec.strides == (512, 16, 64, 1) and found.graph.storages[read.storage].role == "input"
    assert found.graph.free_calls == {"onnx.Reshape": 1, "onnx.Transpose": 1}


def test_what_strides_cannot_say_is_copied(tmp_path):
    nodes = [node("t = Transpose(x)", perm=[1, 0]), node("y = Reshape(t, n)")]
    found = made(tmp_path, nodes, [given("x", 8, 64)], [numbers("n", 512)])
    assert names(found) == ["aten.clone"]


def test_split_and_slice_begin_where_they_say(tmp_path):
    nodes = [node("a, b = Split(x)", axis=1, num_outputs=2), node("y = Add(a, b)")]
    (op,) = made(tmp_path, nodes, [given("x", 8, 64)]).graph.ops
    found = made(tmp_path, nodes, [given("x", 8, 64)]).graph
    assert [found.values[i].offset for i in op.inputs] == [0, 32]


def test_a_constant_of_one_element_is_no_tensor_that_is_read(tmp_path):
    found = made(tmp_path, [node("y = Mul(x, c)")], [given("x", 8, 64)], [numbers("c", 0.125, shape=[], dtype=HALF)])
    (op,) = found.graph.ops
    assert op.attributes["other"] == 0.125 and found.costs[0][0].read_bytes == 2 * 8 * 64


def test_what_weights_alone_make_is_made_before_the_step(tmp_path):
    nodes = [node("w = Concat(a, b)", axis=1), node("y = MatMul(x, w)")]
    found = made(tmp_path, nodes, [given("x", 8, 64)], [weight("a", [64, 32]), weight("b", [64, 32])])
    assert names(found) == ["aten.mm"] and found.graph.role_bytes["parameter"] == 2 * 64 * 64


def test_a_mask_of_sizes_that_a_run_decides_is_made_in_every_run(tmp_path):
    """[256, 256] of a symbol is more than a host computes; of fixed sizes it is made before the step."""
    nodes = [node("s = Shape(x)"), node("n = Concat(s, s)", axis=0), node("m = ConstantOfShape(n)")]
    nodes += [node("u = Trilu(m)"), node("y = Add(u, x)")]
    of_symbol = made(tmp_path, nodes, [given("x", "seq", dtype=FLOAT)], seq=256)
    assert names(of_symbol) == ["aten.full", "aten.triu", "aten.add.Tensor"]
    fixed = made(tmp_path, nodes, [given("x", 256, dtype=FLOAT)])
    assert names(fixed) == ["aten.add.Tensor"] and fixed.workload.parameters == 256 * 256


def test_batches_of_heads_are_one_batched_product(tmp_path):
    """q [2, 4, 8, 16] by the transposed k: 8 products of [8, 16] x [16, 8]."""
    nodes = [node("t = Transpose(k)", perm=[0, 1, 3, 2]), node("y = MatMul(q, t)")]
    found = made(tmp_path, nodes, [given("q", 2, 4, 8, 16), given("k", 2, 4, 8, 16)])
    assert names(found) == ["aten.bmm"] and flops(found) == 2 * 8 * 8 * 8 * 16


def test_gemm_has_transposed_operands_and_a_bias(tmp_path):
    found = made(tmp_path, [node("y = Gemm(x, w, b)", transB=1)], [given("x", 8, 64)],
                 [weight("w", [32, 64]), weight("b", [32])])  # fmt: skip
    assert names(found) == ["aten.addmm"] and flops(found) == 2 * 8 * 64 * 32


def test_a_convolution_counts_its_outputs_times_its_window(tmp_path):
    """[1, 3, 8, 8] by 16 filters of 3 x 3, stride 2, padded by 1: 16 x 4 x 4 outputs of 27 multiply-adds."""
    found = made(tmp_path, [node("y = Conv(x, w)", strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3])],
                 [given("x", 1, 3, 8, 8)], [weight("w", [16, 3, 3, 3])])  # fmt: skip
    assert flops(found) == 2 * 16 * 4 * 4 * 27


def test_padding_of_same_is_what_the_outputs_need(tmp_path):
    """8 places, window 3, stride 2: 4 outputs need (4 - 1)·2 + 3 - 8 = 1 more, none of it in front."""
    found = made(tmp_path, [node("y = Conv(x, w)", strides=[2, 2], auto_pad="SAME_UPPER")],
                 [given("x", 1, 3, 8, 8)], [weight("w", [16, 3, 3, 3])])  # fmt: skip
    assert found.graph.ops[0].attributes["padding"] == (0, 0)


def test_einsum_is_a_product_of_permuted_views(tmp_path):
    found = made(tmp_path, [node("y = Einsum(a, b)", equation="bshd,bthd->bhst")],
                 [given("a", 2, 8, 4, 16), given("b", 2, 8, 4, 16)])  # fmt: skip
    assert flops(found) == 2 * 2 * 4 * 8 * 8 * 16
    assert found.graph.values[found.graph.outputs[0]].spec.shape == (2, 4, 8, 8)


@pytest.mark.parametrize(
    ("equation", "left", "right"),
    [("...ij,jk->...ik", (4, 2, 32, 64), (64, 16)), ("...ij,...jk", (4, 2, 32, 64), (1, 2, 64, 16)),
     ("abij,abjk->abik", (4, 2, 32, 64), (1, 2, 64, 16))],
)  # fmt: skip
def test_batches_of_an_einsum_may_be_left_out_or_repeated(tmp_path, equation, left, right):
    nodes = [node("y = Einsum(a, b)", equation=equation)]
    found = made(tmp_path, nodes, [given("a", *left), given("b", *right)])
    assert flops(found) == 2 * 4 * 2 * 32 * 64 * 16
    assert found.graph.values[found.graph.outputs[0]].spec.shape == (4, 2, 32, 16)


@pytest.mark.parametrize(
    ("factors", "shape", "op"),
    [
        ((1, 1, 2, 2), (2, 8, 16, 16), "aten.upsample_bilinear2d"),
        ((1, 2, 2, 1), (2, 16, 16, 8), "aten.upsample_bilinear2d"),  # channels last
        ((2, 2), (16, 16), "aten.upsample_bilinear2d"),
        ((1, 1, 2), (2, 8, 16), "aten.upsample_linear1d"),
    ],
)
def test_a_resize_by_factors_of_the_file(tmp_path, factors, shape, op):
    factor = numbers("s", *factors, dtype=FLOAT)
    found = made(tmp_path, [node("y = Resize(x, _, s)", mode="linear")], [given("x", *shape)], [factor])
    assert names(found) == [op]
    made_shape = tuple(int(n * size) for n, size in zip(factors, shape, strict=True))
    assert found.graph.values[found.graph.outputs[0]].spec.shape == made_shape


def test_an_einsum_of_three_is_two_products_from_left_to_right(tmp_path):
    """8 x 16 by 16 x 32, then 8 x 32 by 32 x 64."""
    found = made(tmp_path, [node("y = Einsum(a, b, c)", equation="ij,jk,kl->il")],
                 [given("a", 8, 16), given("b", 16, 32), given("c", 32, 64)])  # fmt: skip
    assert names(found) == ["aten.bmm"] * 2 and flops(found) == 2 * 8 * 16 * 32 + 2 * 8 * 32 * 64
    assert found.graph.values[found.graph.outputs[0]].spec.shape == (8, 64)


def test_a_determinant_is_a_factorization(tmp_path):
    """2n^3/3, less a half of n^2 and a sixth of n, for each matrix; what is above 1 % of n^3 here."""
    found = made(tmp_path, [node("y = Det(x)")], [given("x", 4, 100, 100)])
    assert flops(found) == pytest.approx(4 * 2 / 3 * 100**3, rel=0.01)


def test_a_deformable_convolution_is_the_product_of_its_columns(tmp_path):
    """16 filters of 8 x 3 x 3 at 2 x 10 x 10 places."""
    found = made(tmp_path, [node("y = DeformConv(x, w, o)", kernel_shape=[3, 3])],
                 [given("x", 2, 8, 12, 12), given("w", 16, 8, 3, 3), given("o", 2, 18, 10, 10)])  # fmt: skip
    (cost,) = found.costs[0]
    assert sum(n for pipe, n in cost.flops.items() if pipe.engine == "tensor") == 2 * 16 * 8 * 9 * 2 * 10 * 10


@pytest.mark.parametrize(("parts", "each"), [(1, 2.5), (2, 5)])
def test_a_fourier_transform_is_5_n_log_n_and_half_of_a_real_signal(tmp_path, parts, each):
    found = made(tmp_path, [node("y = DFT(x)")], [given("x", 4, 64, parts)])
    assert flops(found) == 4 * each * 64 * 6


def test_a_transform_of_frames_weighs_each_by_its_window(tmp_path):
    """13 frames of 64 points, 16 apart, of 256: 2.5 n log2 n, and n products."""
    found = made(tmp_path, [node("y = STFT(x, s, w)")], [given("x", 1, 256, 1)],
                 [numbers("s", 16), weight("w", [64])])  # fmt: skip
    assert flops(found) == 13 * (2.5 * 64 * 6 + 64)


@pytest.mark.parametrize(("op", "what"), [("SequenceConstruct", "a sequence"), ("Optional", "an optional")])
def test_what_holds_tensors_is_named(tmp_path, op, what):
    with pytest.raises(UsageError, match=rf"its output 'y' is {what} of tensors, which is not modeled$"):
        made(tmp_path, [node(f"y = {op}(x)")], [given("x", 8)])


def test_an_einsum_that_is_no_product_is_kept(tmp_path):
    found = made(tmp_path, [node("y = Einsum(a)", equation="ii->i")], [given("a", 8, 8)])
    assert names(found) == ["onnx.Einsum"] and found.costs[0][0].bytes == 2 * (64 + 8)


def test_the_largest_of_a_row_as_a_one_among_zeros(tmp_path):
    assert names(made(tmp_path, [node("y = Hardmax(x)")], [given("x", 8, 64)])) == [
        "aten.argmax", "aten.zeros", "aten.scatter_.value",
    ]  # fmt: skip


def test_an_lstm_is_one_call_with_its_weights(tmp_path):
    """4 gates of 16, each from 16 inputs and 16 states: 2·8 rows of 64·32 multiply-adds, and 27 FLOP a cell."""
    found = made(tmp_path, [node("y, h = LSTM(x, w, r, b)", hidden_size=16)], [given("x", 8, 2, 16)],
                 [weight("w", [1, 64, 16]), weight("r", [1, 64, 16]), weight("b", [1, 128])])  # fmt: skip
    assert names(found) == ["aten._cudnn_rnn"]
    assert flops(found) == 2 * 16 * 64 * 32 + 27 * 16 * 16


def test_an_embedding_reads_the_rows_that_it_fetches(tmp_path):
    found = made(
        tmp_path, [node("y = Gather(w, i)", axis=0)], [given("i", 2, 8, dtype=INT64)], [weight("w", [1000, 64])]
    )
    assert names(found) == ["aten.embedding"] and found.costs[0][0].read_bytes == 16 * 8 + 16 * 64 * 2


def test_the_norms_of_transformers_are_rows(tmp_path):
    nodes = [node("a = LayerNormalization(x, w, b)", axis=-1), node("y = RMSNormalization(a, w)", axis=-1)]
    found = made(tmp_path, nodes, [given("x", 8, 64)], [weight("w", [64]), weight("b", [64])], opset=23)
    assert names(found) == ["aten.native_layer_norm", "aten._fused_rms_norm"] and flops(found) == (7 + 4) * 8 * 64


@pytest.mark.parametrize(
    ("text", "said", "opset", "op", "shape"),
    [
        ("y = GroupNormalization(x, w, w)", {"num_groups": 4}, 21, "aten.native_group_norm", (2, 16, 8)),
        ("y = LessOrEqual(x, q)", {}, 13, "aten.le.Tensor", (2, 16, 8)),
        ("y = GreaterOrEqual(q, x)", {}, 13, "aten.ge.Tensor", (2, 16, 8)),
    ],
)
def test_shapes_that_onnx_does_not_infer_are_known(tmp_path, text, said, opset, op, shape):
    inputs = [given("x", 2, 16, 8), given("q", 16, 1)]
    found = made(tmp_path, [node(text, **said)], inputs, [weight("w", [16])], opset=opset)
    assert names(found) == [op]
    assert found.graph.values[found.graph.outputs[0]].spec.shape == shape


# -- com.microsoft -----------------------------------------------------------------------------------------------------


def test_a_product_with_weights_of_four_bits_reads_half_a_byte_of_each(tmp_path):
    """K 256, N 512, blocks of 32: 8 blocks of 16 bytes a row, and a scale of 2 bytes for each block."""
    nodes = [node("y = MatMulNBits(x, q, s)", domain="com.microsoft", K=256, N=512, bits=4, block_size=32)]
    packed = [weight("q", [512, 8, 16], dtype=2), weight("s", [512 * 8])]
    found = made(tmp_path, nodes, [given("x", 4, 256)], packed)
    cost = found.costs[0][0]
    assert cost.read_bytes == 2 * 4 * 256 + 512 * 256 // 2 + 2 * 512 * 8 and cost.total_flops == 2 * 4 * 256 * 512


def test_grouped_queries_attend_to_past_and_new_keys(tmp_path):
    """One token of 8 heads of 64 with 2 key heads and 127 tokens of cache: 128 keys, 4·8·64 FLOP for each."""
    inputs = [given("q", 1, 1, 8 * 64), given("k", 1, 1, 2 * 64), given("v", 1, 1, 2 * 64),
              given("past_k", 1, 2, 127, 64), given("past_v", 1, 2, 127, 64)]  # fmt: skip
    nodes = [node("y, pk, pv = GroupQueryAttention(q, k, v, past_k, past_v)", domain="com.microsoft", num_heads=8,
                  kv_num_heads=2)]  # fmt: skip
    found = made(tmp_path, nodes, inputs)
    assert names(found) == ["aten.cat", "aten.cat", "aten._flash_attention_forward"]
    assert flops(found) == 4 * 8 * 64 * 128
    assert found.graph.role_bytes["kv_cache"] == 2 * 2 * 127 * 64 * 2


def test_a_norm_of_a_sum_is_one_kernel(tmp_path):
    nodes = [node("y, _, _, s = SkipSimplifiedLayerNormalization(x, r, w)", domain="com.microsoft")]
    nodes[0].output[:] = ["y", "", "", "s"]
    found = made(tmp_path, nodes, [given("x", 8, 64), given("r", 8, 64)], [weight("w", [64])],
                 [result("y"), result("s")])  # fmt: skip
    assert len(found.graph.ops) == 1 and flops(found) == (4 + 1) * 8 * 64
    assert found.costs[0][0].bytes == 2 * (4 * 8 * 64 + 64)


def test_attention_by_heads_that_lie_in_the_width(tmp_path):
    """Eight heads of 16 over 32 tokens, twice: 2 products of 2 x 2 x 8 x 32 x 32 x 16 FLOP."""
    shapes = [given(name, 2, 32, 128) for name in "qkv"]
    found = made(tmp_path, [node("y = MultiHeadAttention(q, k, v)", domain="com.microsoft", num_heads=8)], shapes)
    assert names(found) == ["aten._flash_attention_forward"] and flops(found) == 2 * 2 * 2 * 8 * 32 * 32 * 16


def test_a_gpu_without_flash_attention_runs_the_memory_efficient_kernel(tmp_path):
    nodes = [node("y = MultiHeadAttention(q, k, v)", domain="com.microsoft", num_heads=8)]
    path = save(tmp_path / "m.onnx", nodes, [given(name, 2, 32, 128) for name in "qkv"], [result("y")])
    (op,) = memwall.profile(path, gpu="v100-sxm2-16gb").graph.ops
    assert op.name == "aten._efficient_attention_forward"


def test_causal_attention_of_onnx_skips_what_is_masked(tmp_path):
    """Of 32 x 32 pairs 32 x 33 / 2 are on and under the diagonal."""
    shapes = [given(name, 2, 8, 32, 16) for name in "qkv"]
    found = made(tmp_path, [node("y = Attention(q, k, v)", is_causal=1)], shapes, opset=23)
    assert flops(found) == 2 * 2 * 2 * 8 * (32 * 33 // 2) * 16


def test_projections_and_attention_of_one_node(tmp_path):
    """x [2, 32, 128] by [128, 384], a bias, then heads of 16."""
    nodes = [node("y = Attention(x, w, b)", domain="com.microsoft", num_heads=8)]
    found = made(tmp_path, nodes, [given("x", 2, 32, 128)], [weight("w", [128, 384]), weight("b", [384])])
    assert names(found) == ["aten.mm", "aten.add.Tensor", "aten._flash_attention_forward"]
    assert flops(found) == 2 * 64 * 128 * 384 + 64 * 384 + 2 * 2 * 2 * 8 * 32 * 32 * 16


def test_a_fused_product_is_of_transposed_operands(tmp_path):
    nodes = [node("y = FusedMatMul(a, b)", domain="com.microsoft", transB=1, alpha=0.125)]
    found = made(tmp_path, nodes, [given("a", 2, 8, 16), given("b", 2, 4, 16)])
    assert found.graph.values[found.graph.outputs[0]].spec.shape == (2, 8, 4) and flops(found) == 2 * 2 * 8 * 4 * 16


def test_tokens_choose_experts_of_four_bits(tmp_path):
    """One token by 2 of 8 experts: gate and up [2 x 128, 64] and down [64, 128] of half bytes, a scale for each row."""
    node_of = node("y = QMoE(x, r, a, sa, _, b, sb)", domain="com.microsoft", k=2, expert_weight_bits=4)
    weights = [weight("a", [8, 256, 32], dtype=2), weight("sa", [8, 256]), weight("b", [8, 64, 64], dtype=2),
               weight("sb", [8, 64])]  # fmt: skip
    node_of.input[:] = ["x", "r", "a", "sa", "", "b", "sb"]
    found = made(tmp_path, [node_of], [given("x", 1, 64), given("r", 1, 8)], weights)
    cost = found.costs[0][0]
    assert cost.total_flops == 2 * 2 * 3 * 64 * 128
    assert cost.read_bytes == 2 * (3 * 64 * 128 // 2 + 2 * (256 + 64)) + 2 * 64


def quantised(name, dtype):
    """Nodes and weights of a tensor in eight bits and back, with one scale."""
    nodes = [node(f"{name}8 = QuantizeLinear({name}, s, z)"), node(f"{name}f = DequantizeLinear({name}8, s, z)")]
    return nodes, [numbers("s", 0.1, shape=[], dtype=FLOAT), numbers("z", 0, shape=[], dtype=dtype)]


def test_a_product_of_what_was_stored_in_eight_bits_is_in_eight_bits(tmp_path):
    """x [8, 64] is quantised and multiplied by an int8 matrix [64, 32], each a byte."""
    nodes, constants = quantised("x", 3)
    nodes += [node("wf = DequantizeLinear(w, s, z)"), node("y = MatMul(xf, wf)")]
    found = made(tmp_path, nodes, [given("x", 8, 64, dtype=FLOAT)], [*constants, weight("w", [64, 32], dtype=3)])
    assert names(found) == ["aten.quantize_per_tensor", "aten._int_mm"]
    cost = found.costs[0][1]
    assert {str(pipe): n for pipe, n in cost.flops.items()} == {"tensor.int8": 2 * 8 * 64 * 32}
    assert cost.bytes == 8 * 64 + 64 * 32 + 4 * 8 * 32


def test_a_convolution_of_what_was_stored_in_eight_bits_is_in_eight_bits(tmp_path):
    nodes, constants = quantised("x", 3)
    nodes += [node("wf = DequantizeLinear(w, s, z)"), node("y = Conv(xf, wf)", pads=[1, 1, 1, 1])]
    weights = [*constants, weight("w", [16, 3, 3, 3], dtype=3)]
    found = made(tmp_path, nodes, [given("x", 1, 3, 8, 8, dtype=FLOAT)], weights)
    assert names(found) == ["aten.quantize_per_tensor", "aten.convolution"]
    assert [str(pipe) for pipe in found.costs[0][1].flops] == ["tensor.int8"]


def test_a_few_stored_weights_are_read_as_they_are_stored_too(tmp_path):
    """Numbers of a file that are small enough to be folded: 2 x 1 x 3 x 3 of eight bits."""
    nodes, constants = quantised("x", 3)
    nodes += [node("wf = DequantizeLinear(w, one)"), node("y = Conv(xf, wf)", pads=[1, 1, 1, 1])]
    weights = [
        *constants,
        numbers("w", *[1] * 18, shape=[2, 1, 3, 3], dtype=3),
        numbers("one", 1, shape=[], dtype=FLOAT),
    ]
    found = made(tmp_path, nodes, [given("x", 1, 1, 8, 8, dtype=FLOAT)], weights)
    assert names(found) == ["aten.quantize_per_tensor", "aten.convolution"]
    assert [str(pipe) for pipe in found.costs[0][1].flops] == ["tensor.int8"]


def test_a_matrix_of_four_bits_is_read_as_it_is_stored(tmp_path):
    """[64, 32] in blocks of 32 rows: two scales for each column."""
    nodes = [node("wf = DequantizeLinear(w, s)", axis=0, block_size=32), node("y = MatMul(x, wf)")]
    found = made(
        tmp_path, nodes, [given("x", 8, 64)], [weight("w", [64, 32], dtype=22), weight("s", [2, 32])], opset=21
    )
    assert names(found) == ["microsoft.MatMulNBits"]
    assert found.costs[0][0].read_bytes == 2 * 8 * 64 + 64 * 32 // 2 + 2 * 2 * 32


def test_what_else_takes_a_dequantized_tensor_reads_it_dequantized(tmp_path):
    nodes, constants = quantised("x", 3)
    found = made(tmp_path, [*nodes, node("y = Relu(xf)")], [given("x", 8, 64, dtype=FLOAT)], constants)
    assert names(found) == ["aten.quantize_per_tensor", "aten.dequantize", "aten.relu"]


# -- control -----------------------------------------------------------------------------------------------------------


def loop_body():
    return helper.make_graph(
        [node("more = Identity(going)"), node("h2 = Relu(h)")],
        "body",
        [given("i", dtype=INT64), given("going", dtype=9), given("h", 8)],
        [given("more", dtype=9), given("h2", 8)],
    )


def test_a_loop_of_known_trips_is_written_out(tmp_path):
    nodes = [node("y = Loop(n, _, x)", body=loop_body())]
    found = made(tmp_path, nodes, [given("x", 8)], [numbers("n", 5, shape=[])])
    assert names(found) == ["aten.relu"] * 5


def test_a_loop_of_unknown_trips_is_written_once_and_said(tmp_path):
    nodes = [node("y = Loop(n, _, x)", "/decode/Loop", body=loop_body())]
    found = made(tmp_path, nodes, [given("x", 8), given("n", dtype=INT64)])
    assert names(found) == ["aten.relu"]
    assert "Loop /decode/Loop: its number of trips depends on data, and one trip is counted" in found.traced.notes


def stacking_body(first):
    """Doubles what is carried, and gives each double away."""
    return helper.make_graph(
        [node("h2 = Add(h, h)"), node("each = Add(h, part)" if first == "part" else "each = Add(h, h)")],
        "body",
        [given("i", dtype=INT64), given("going", dtype=9), given("h", 8)]
        if first == "i"
        else [given("h", 8), given("part", 8)],
        [given("going", dtype=9)] * (first == "i") + [given("h2", 8), given("each", 8)],
    )


@pytest.mark.parametrize("trips", [3, 0, -1])
def test_a_loop_stacks_what_its_trips_give_away(tmp_path, trips):
    nodes = [node("y, each = Loop(n, _, x)", body=stacking_body("i"))]
    found = made(tmp_path, nodes, [given("x", 8)], [numbers("n", trips, shape=[])])
    assert found.graph.values[found.graph.outputs[1]].spec.shape == (max(trips, 0), 8)


def test_a_scan_reads_and_stacks_along_the_axes_that_it_says(tmp_path):
    """x [8, 5]: five parts of the last axis, stacked behind each other again."""
    nodes = [node("y, each = Scan(h, x)", body=stacking_body("part"), num_scan_inputs=1, scan_input_axes=[-1],
                  scan_output_axes=[1])]  # fmt: skip
    found = made(tmp_path, nodes, [given("h", 8), given("x", 8, 5)])
    assert names(found) == ["aten.add.Tensor"] * 10 + ["aten.stack"]
    assert found.graph.values[found.graph.outputs[1]].spec.shape == (8, 5)


def test_an_if_takes_the_branch_with_more_nodes(tmp_path):
    short = helper.make_graph([node("a = Relu(x)")], "then", [], [given("a", 8)])
    long = helper.make_graph([node("b = Exp(x)"), node("c = Log(b)")], "else", [], [given("c", 8)])
    nodes = [node("y = If(c)", then_branch=short, else_branch=long)]
    assert names(made(tmp_path, nodes, [given("x", 8), given("c", dtype=9)])) == ["aten.exp", "aten.log"]


# -- the whole ---------------------------------------------------------------------------------------------------------


def test_an_op_without_a_row_is_kept_and_lowers_the_coverage(tmp_path):
    found = made(tmp_path, [node("y = LpPool(x)", kernel_shape=[1, 1])], [given("x", 1, 8, 4, 4, dtype=FLOAT)])
    assert names(found) == ["onnx.LpPool"] and found.coverage.unmodeled == ("onnx.LpPool",)
    assert found.costs[0][0].bytes == 2 * 4 * 8 * 16


def test_an_op_that_onnx_defines_by_others_is_written_as_these(tmp_path):
    """Means over all axes but the channels, of the numbers and of their squares, and the root of the variance."""
    found = made(
        tmp_path, [node("y = MeanVarianceNormalization(x)", "/norm/MVN")], [given("x", 1, 8, 4, 4, dtype=FLOAT)]
    )
    assert names(found).count("aten.mean.dim") == 2 and "aten.sqrt" in names(found)
    assert found.coverage.unmodeled == () and {op.module for op in found.graph.ops} == {"norm"}


def test_a_row_by_a_stack_of_matrices_is_a_row_each(tmp_path):
    found = made(tmp_path, [node("y = MatMul(a, b)")], [given("a", 16), given("b", 3, 16, 8)])
    assert flops(found) == 2 * 3 * 16 * 8


def test_ideal_moves_inputs_weights_and_outputs_alone(tmp_path):
    """x [512, 256] → relu(x w1) w2: the hidden tensor crosses between two products."""
    nodes = [node("h = MatMul(x, w1)"), node("a = Relu(h)"), node("y = MatMul(a, w2)")]
    found = made(tmp_path, nodes, [given("x", 512, 256)], [weight("w1", [256, 1024]), weight("w2", [1024, 256])])
    plan = ideal_plan(found.graph, found.costs[0])
    moved = sum(group.cost.bytes for group in plan.groups)
    assert moved == 2 * (512 * 256 + 256 * 1024 + 2 * 512 * 1024 + 1024 * 256 + 512 * 256)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dims": {}}, "leaves sizes open: 'batch' of input 'x'; give --dim batch=N"),
        ({"dims": {"batch": 1, "seq": 2}}, "has no symbolic size 'seq'; it has batch"),
        ({"dims": ["batch"]}, "--dim wants NAME=N with a whole number, as in batch=8, not batch="),
        ({"batch": 8}, "--batch has no effect on"),
        ({"mode": "training"}, "an ONNX file, a forward pass as it was exported: it has no training"),
        ({"dtype": "bf16"}, "--dtype has no effect on"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_one_line(tmp_path, change, said):
    path = save(tmp_path / "m.onnx", [node("y = Relu(x)")], [given("x", "batch")], [result("y")])
    with pytest.raises(UsageError) as caught:
        memwall.profile(path, gpu="h100-sxm", **{"dims": {"batch": 2}, **change})
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"", "it has no graph of nodes"),
        (b"import torch\n", "is no ONNX file, or is cut short"),
        ("cut", "is no ONNX file, or is cut short"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_one_line(tmp_path, contents, said):
    path = tmp_path / "m.onnx"
    if contents == "cut":
        save(path, [node("y = Relu(x)")], [given("x", 8)], [result("y")])
        contents = path.read_bytes()[:-9]
    path.write_bytes(contents)
    with pytest.raises(UsageError, match=said) as caught:
        memwall.profile(str(path), gpu="h100-sxm")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said", "problem"),
    [
        ("y = GroupQueryAttention(x, x, x)", {"domain": "com.microsoft"}, "'num_heads'"),
        ("y = Reshape(x, seven)", {}, r"\[2, 8, 8\] has not as many elements as \[7, 7\]"),
        ("y = Gather(none, place)", {"axis": 1}, "Gather is not as ONNX defines it"),
        ("y = Loop(n, _, x)", {}, "Loop is not as ONNX defines it .'body'"),
        ("z = Relu(x)", {}, "no node makes the output 'y'"),
        ("y = Relu(z)", {}, "no node makes 'z', which Relu reads"),
    ],
)
def test_a_wrong_node_is_one_line(tmp_path, text, said, problem):
    given_too = [given("x", 2, 8, 8), given("none", 8, 0), given("n", dtype=INT64)]
    constants = [numbers("seven", 7, 7), numbers("place", 7, shape=[])]
    with pytest.raises(UsageError, match=problem) as caught:
        made(tmp_path, [node(text, **said)], given_too, constants, [given("y", 8, 8)])
    assert "\n" not in str(caught.value)


def test_a_file_called_model_has_the_name_of_its_folder(tmp_path):
    (tmp_path / "bert").mkdir()
    path = save(tmp_path / "bert" / "model.onnx", [node("y = Relu(x)")], [given("x", 8)], [result("y")])
    assert memwall.profile(path, gpu="h100-sxm").workload.name == "bert"


def test_an_opset_that_is_too_old_says_how_to_convert_it(tmp_path):
    path = save(tmp_path / "m.onnx", [node("y = Relu(x)")], [given("x", 8)], [result("y")], opset=11)
    with pytest.raises(UsageError, match="has opset 11; opsets from 13 on are read: convert it"):
        memwall.profile(path, gpu="h100-sxm")


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    path = save(tmp_path / "m.onnx", [node("y = Relu(x)")], [given("x", 8)], [result("y")])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingError, match=r"pip install 'memwall-roofline\[onnx\]'"):
        memwall.profile(path, gpu="h100-sxm")


def test_sizes_of_a_file_are_refused_elsewhere(tmp_path):
    (tmp_path / "model.py").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="--dim gives the sizes of an ONNX file"):
        memwall.profile(str(tmp_path / "model.py"), dims={"batch": 2}, gpu="h100-sxm")


def test_what_needs_a_module_refuses_a_file(tmp_path):
    from memwall.frontend.targets import resolve

    path = save(tmp_path / "m.onnx", [node("y = Relu(x)")], [given("x", 8)], [result("y")])
    with pytest.raises(UsageError, match="is an ONNX file, and this needs a PyTorch module"):
        resolve(path)
