"""Ops of other libraries, counted alike in modules and traces; sequences, sparse matrices, fake quantization."""

import pytest

from memwall.ops import classify, cost_of
from memwall.ops.registry import find_row
from memwall.ops.schemas import library_schemas
from tests.unit.cost_calls import TENSOR_BF16, VECTOR, call, cost, spec


def f32(*shape):
    return spec(*shape, dtype="float32")


def test_a_rule_counts_an_op_that_a_module_calls():
    found = cost("vllm.outplace_fused_experts", [
        ("hidden", spec(8, 32)), ("w1", spec(4, 128, 32)), ("w2", spec(4, 32, 64)), ("topk_weights", f32(8, 2)),
        ("topk_ids", spec(8, 2, dtype="int32")),
    ], spec(8, 32))  # fmt: skip
    # 16 rows through an expert: [32] x [32, 128] and [64] x [64, 32]
    assert found.flops == {TENSOR_BF16: 2 * 16 * (128 * 32 + 64 * 32)}
    # 4 (1 - (2/4)^8) = 3.98 of 4 experts are read by chance, 2 at least
    assert found.read_bytes - found.least_read_bytes == 2 * (128 * 32 + 64 * 32) * 2
    assert classify("vllm.outplace_fused_experts") == "contraction"


def test_another_formula_counts_what_only_writes_its_result_elsewhere():
    found = cost("_C.rms_norm", [("out", spec(16, 64)), ("input", spec(16, 64)), ("weight", spec(64))], spec(16, 64),
                 epsilon=1e-6)  # fmt: skip
    assert found.flops == {VECTOR: 4 * 16 * 64}
    assert found.read_bytes == (16 * 64 + 64) * 2  # the result is not read


def test_a_call_that_does_not_say_what_it_does_is_not_modeled():
    assert not cost_of(call("vllm.unified_attention", [("layer_name", spec(1))], spec(1))).modeled


def test_every_line_of_the_table_counts():
    in_traces_alone = ("aten::", "autograd_function::")  # an older torch, a Python autograd function
    names = [name for name in library_schemas() if not name.startswith(in_traces_alone)]
    assert len(names) > 100
    assert not [name for name in names if not (row := find_row(name.replace("::", "."))) or row.cost is None]


def test_a_selective_scan_goes_through_its_states():
    u, state = f32(64, 128), f32(4, 64, 16)
    inputs = [("u", u), ("delta", u), ("A", f32(64, 16)), ("B", f32(1, 16, 128)), ("C", f32(1, 16, 128)),
              ("ssm_states", state)]  # fmt: skip
    found = cost("_C.selective_scan_fwd", inputs, u, delta_softplus=True)
    # 16 states of 7 FLOP for each of 8192 tokens and channels, the step times the input, softplus
    assert found.flops == {VECTOR: 8192 * (16 * 7 + 1 + 4)}
    assert (found.read_bytes, found.write_bytes) == (4 * (2 * 8192 + 1024 + 2 * 2048), 4 * 8192)


def test_a_recursive_filter_goes_through_its_samples():
    data = f32(2, 3, 1000)
    inputs = [("data", data), ("coefficients", f32(3, 3)), ("out", f32(2, 3, 1002))]
    found = cost("torchaudio._lfilter_core_loop", inputs, f32(2, 3, 1002))
    assert found.flops == {VECTOR: 2 * 3 * 6000}
    assert (found.launches[0].steps, found.launches[0].blocks) == (1000, 1)


def test_a_causal_convolution_is_two_flops_a_tap():
    data = spec(2, 64, 128)
    found = cost("DaoAILab._causal_conv1d_fwd_cpp", [("input", data), ("weight", spec(64, 4)), ("out", data)], data,
                 silu_activation=True)  # fmt: skip
    assert found.flops == {VECTOR: 2 * 64 * 128 * (2 * 4 + 4)}
    assert (found.read_bytes, found.write_bytes) == (data.nbytes + 64 * 4 * 2, data.nbytes)


def test_ctc_goes_through_a_lattice():
    states = 2 * 50 * 21  # two sequences, 50 steps, 10 symbols with blanks between and around
    inputs = [("log_probs", f32(50, 2, 30)), ("targets", spec(2, 10, dtype="int64"))]
    found = cost("aten._ctc_loss.default", inputs, [f32(2), f32(2, 50, 21)])
    assert found.flops == {VECTOR: 11 * states}
    assert found.launches[0].steps == 2 * 50
    back = [("grad", f32(2)), *inputs, ("neg_log_likelihood", f32(2)), ("log_alpha", f32(2, 50, 21))]
    assert cost("aten._ctc_loss_backward.default", back, f32(50, 2, 30)).flops == {VECTOR: 14 * states + 3 * 3000}


def test_a_sparse_product_counts_stored_elements():
    parts = [spec(2, 20, dtype="int64"), f32(20)]
    found = cost("sparse.mm.default", [("self", parts), ("mat2", f32(1000, 4))], f32(10, 4))
    assert found.flops == {VECTOR: 2 * 20 * 4}
    assert found.read_bytes == 2 * 20 * 8 + 80 + 20 * 4 * 4  # of 1000 rows no more than 20 are met
    sampled = cost("sparse.sparse_sampled_addmm.default",
                   [("self", [spec(11, dtype="int64"), spec(20, dtype="int64"), f32(20)]), ("mat1", f32(10, 6)),
                    ("mat2", f32(6, 10))], [spec(11, dtype="int64"), spec(20, dtype="int64"), f32(20)])  # fmt: skip
    assert sampled.flops == {VECTOR: 2 * 20 * 6}


def test_a_product_of_two_sparse_matrices_is_as_much_as_it_stores():
    """30 elements in 10 rows: each is one multiply-add at least."""
    given, made = [[spec(11, dtype="int64"), spec(n, dtype="int64"), f32(n)] for n in (20, 30)]
    found = cost("sparse.mm.default", [("self", given), ("mat2", given)], made)
    assert found.flops == {VECTOR: 2 * 30}
    assert (found.read_bytes, found.write_bytes) == (2 * (11 * 8 + 20 * 12), 11 * 8 + 30 * 12)


def test_fake_quantization_is_four_flops():
    data = f32(100)
    found = cost("aten.fake_quantize_per_tensor_affine_cachemask.default", [("self", data)],
                 [data, spec(100, dtype="bool")], scale=0.1, zero_point=0)  # fmt: skip
    assert found.flops == {VECTOR: 400}  # a multiply and an add, a subtraction and a multiply
    assert (found.read_bytes, found.write_bytes) == (400, 500)


def test_antialiased_interpolation_widens_its_window():
    found = cost("aten._upsample_bilinear2d_aa.default", [("self", f32(1, 3, 8, 8))], f32(1, 3, 4, 4),
                 output_size=(4, 4), align_corners=False)  # fmt: skip
    # a step of 2 and a support of 2: windows of 3, 4, 4 and 3 pixels of 8, 14 an axis
    assert found.flops == {VECTOR: 3 * (2 * 14 * 14 + 2 * 14 * 4)}
    assert found.read_bytes == 3 * 64 * 4


def test_synchronised_batch_norm_adds_up_to_batch_norm():
    data = f32(4, 8, 5, 5)
    stats = cost("aten.batch_norm_stats.default", [("input", data)], [f32(8), f32(8)])
    applied = cost("aten.batch_norm_elemt.default", [("input", data), ("mean", f32(8)), ("invstd", f32(8))], data)
    assert stats.total_flops + applied.total_flops == 7 * 800


def test_names_of_a_librarys_arguments_become_those_of_its_rule():
    torch = pytest.importorskip("torch", reason="needs torch: an operator to read the schema of")
    from memwall.ops.signatures import signature_of

    library = torch.library.Library("sgl_kernel", "FRAGMENT")
    library.define("rmsnorm(Tensor! output, Tensor input, Tensor weight, float eps, bool enable_pdl) -> ()")
    try:
        signature = signature_of(torch.ops.sgl_kernel.rmsnorm.default)
        assert [argument.name for argument in signature.arguments] == ["out", "input", "weight", "eps", "enable_pdl"]
        assert [argument.written for argument in signature.arguments] == [True, False, False, False, False]
    finally:
        library._destroy()
