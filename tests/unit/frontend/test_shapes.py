"""Ops whose shapes torch does not know without data: those of the CPU's kernels, and what is recorded of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall
from memwall.core.errors import NeedsData, UsageError
from memwall.frontend.torch.dispatch.shapes import ShapeFunctions, SparseCopies
from memwall.frontend.torch.dispatch.tensors import check_stored, sparse_of, sparse_parts
from memwall.ops import graph_costs
from tests.unit.one_call import Call

COO = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (2, 3))
CSR = COO.to_sparse_csr()
CALLS = {
    "lstsq": lambda a, b: torch.linalg.lstsq(a, b).solution,
    "geqrf": lambda a, b: torch.geqrf(a),
    "ctc_list": lambda x, t: F.ctc_loss(x, t, (9, 8), (4, 3), reduction="none"),
    "gru_cell": lambda g, h, s: torch.ops.aten._thnn_fused_gru_cell(g, h, s),
    "fake_quantize": lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
    "fake_quantize_channel": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127),
    "istft": lambda x, w: torch.istft(x, 16, window=w),
    "cov": torch.cov,
    "dirichlet": torch._sample_dirichlet,
    "multi_margin": lambda x, t: F.multi_margin_loss(x, t),
}


def _meta(tensor):
    return torch.empty_like(tensor, device="meta")


def _specs(results):
    flat = results if isinstance(results, (tuple, list)) else [results]
    return [(tuple(t.shape), t.dtype) for t in flat]


@pytest.mark.parametrize(("name", "tensors"), [
    ("lstsq", (torch.randn(3, 7, 4), torch.randn(3, 7, 2))), ("lstsq", (torch.randn(7, 4), torch.randn(7))),
    ("geqrf", (torch.randn(2, 7, 4), torch.randn(1))),
    ("ctc_list", (torch.randn(9, 2, 5).log_softmax(-1), torch.ones(2, 4, dtype=torch.long))),
    ("fake_quantize", (torch.randn(3, 4),)),
    ("fake_quantize_channel", (torch.randn(3, 4), torch.ones(4), torch.zeros(4, dtype=torch.int32))),
    ("istft", (torch.randn(2, 9, 12, dtype=torch.complex64), torch.hann_window(16))), ("cov", (torch.randn(4, 9),)),
    ("dirichlet", (torch.rand(3, 4),)), ("multi_margin", (torch.randn(3, 4), torch.zeros(3, dtype=torch.long))),
])  # fmt: skip
def test_shapes_are_those_of_the_kernels(name, tensors):
    expected = _specs(CALLS[name](*tensors))
    with ShapeFunctions():
        assert _specs(CALLS[name](*map(_meta, tensors))) == expected


def test_a_gru_cell_has_a_state_and_what_its_gradient_needs():
    with ShapeFunctions():
        found = CALLS["gru_cell"](*(torch.empty(2, n, device="meta") for n in (48, 48, 16)))
    assert _specs(found) == [((2, 16), torch.float32), ((2, 80), torch.float32)]


@pytest.mark.parametrize("sparse", [COO, CSR], ids=["coo", "csr"])
def test_products_with_sparse_matrices_are_dense(sparse):
    dense = torch.randn(3, 4)
    with ShapeFunctions():
        found = torch.sparse.mm(_sparse_meta(sparse), _meta(dense))
    assert _specs(found) == _specs(torch.sparse.mm(sparse, dense))


class Squared(nn.Module):
    """The neighbours of neighbours of a ring of ten nodes."""

    def forward(self, places, values):
        ring = torch.sparse_coo_tensor(places, values, (10, 10)).coalesce().to_sparse_csr()
        return (ring @ ring).to_sparse_coo().values()


def test_a_product_of_two_sparse_matrices_is_refused_with_the_remedy():
    """A matrix becomes CSR on ``meta``; what the product stores is in its data, which ``--real`` has."""
    with ShapeFunctions():
        found = _sparse_meta(COO.coalesce()).coalesce().to_sparse_csr()
    assert [_specs(part) for part in sparse_parts(found)] == [_specs(part) for part in sparse_parts(CSR)]
    ring = torch.stack([torch.arange(10), torch.arange(10).roll(1)]), torch.ones(10)
    with pytest.raises(NeedsData, match=r"matmul of two sparse matrices.*--real"):
        memwall.profile(Squared(), ring)
    made = memwall.profile(Squared(), ring, real=True)
    costs = {op.name: cost for op, cost in zip(made.graph.ops, graph_costs(made.graph), strict=True)}
    assert not made.coverage.unmodeled
    assert costs["sparse.mm"].total_flops == 2 * 10


def _sparse_meta(sparse):
    if sparse.layout is torch.sparse_coo:
        parts = _meta(sparse._indices()), _meta(sparse._values())
        return torch.sparse_coo_tensor(*parts, sparse.shape, device="meta")
    parts = map(_meta, (sparse.crow_indices(), sparse.col_indices(), sparse.values()))
    return torch.sparse_csr_tensor(*parts, sparse.shape, device="meta")


def test_two_sparse_matrices_have_no_product_without_data():
    with ShapeFunctions(), pytest.raises(RuntimeError, match="as many elements as its data says"):
        torch.sparse.mm(_sparse_meta(CSR), _sparse_meta(COO.t().to_sparse_csr()))


def test_they_are_gone_after_a_trace():
    with pytest.raises(NotImplementedError):
        CALLS["fake_quantize"](torch.empty(3, device="meta"))


def test_lengths_of_ctc_are_read_by_the_host():
    """By the list form a GPU runs; with tensors of lengths a dispatch mode would take another."""

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 6)

        def forward(self, x, targets, steps, lengths):
            return F.ctc_loss(self.head(x).log_softmax(-1), targets, steps, lengths)

    inputs = (torch.randn(9, 2, 8), torch.ones(2, 4, dtype=torch.long), torch.tensor([9, 8]), torch.tensor([4, 3]))
    found = memwall.profile(Loss(), inputs, mode="training")
    costs = {op.name: cost for op, cost in zip(found.graph.ops, graph_costs(found.graph), strict=True)}
    states = 2 * 9 * (2 * 4 + 1)
    assert costs["aten._ctc_loss"].total_flops == 11 * states
    assert costs["aten._ctc_loss_backward"].total_flops == 14 * states + 3 * 9 * 2 * 6
    assert not found.notes


def test_lengths_of_ctc_that_follow_from_activations_are_stated():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 6)

        def forward(self, x, targets, lengths):
            scores = self.head(x)
            return F.ctc_loss(scores.log_softmax(-1), targets, scores.argsort(0)[0, :, 0], lengths)

    inputs = (torch.randn(9, 2, 8), torch.ones(2, 4, dtype=torch.long), torch.tensor([4, 3]))
    assert memwall.profile(Loss(), inputs, mode="training").notes == (
        "assumed: each sample has as many steps for CTC as the padded batch, 9",
    )


def test_an_op_of_a_library_is_traced_without_its_kernels():
    library = torch.library.Library("_C", "FRAGMENT")
    library.define("mul_and_silu(Tensor! result, Tensor input) -> ()")

    def gated(x):
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        torch.ops._C.mul_and_silu(out, x)
        return out

    try:
        found = memwall.profile(Call(gated), (torch.randn(4, 32),))
    finally:
        library._destroy()
    (op,) = found.graph.ops
    (cost,) = graph_costs(found.graph)
    assert (op.name, op.op_class) == ("_C.mul_and_silu", "elementwise")
    # silu's 4 and the product, for each of 4 x 16 results
    assert (cost.total_flops, cost.read_bytes, cost.write_bytes) == (5 * 64, 4 * 128, 4 * 64)


def test_what_a_call_does_not_say_is_noted():
    library = torch.library.Library("vllm", "FRAGMENT")
    library.define("unified_attention_with_output(Tensor q, Tensor k, Tensor v, Tensor! output, str layer_name) -> ()")

    def attend(query):
        out = torch.empty_like(query)
        torch.ops.vllm.unified_attention_with_output(query, query, query, out, "model.layers.0")
        return out

    try:
        found = memwall.profile(Call(attend), (torch.randn(4, 8, 16),))
    finally:
        library._destroy()
    (cost,) = graph_costs(found.graph)
    assert not cost.modeled
    assert any("lengths of cached contexts were not recorded" in note for note in found.capture["notes"])


def test_checks_of_atens_own_are_passed_and_pythons_are_assumed():
    spectrum, window = torch.randn(2, 9, 12, dtype=torch.complex64), torch.rand(16)
    found = memwall.profile(Call(lambda x, w: torch.istft(x, 16, window=w)), (spectrum, window))
    assert any(op.name.startswith("aten._fft_c2r") for op in found.graph.ops)
    assert not found.capture.get("notes")
    asked = memwall.profile(Call(lambda x, y: x if torch.equal(x, y) else y), (torch.randn(3), torch.randn(3)))
    assert any("condition=true" in note for note in asked.capture["notes"])


def test_synchronised_batch_norm_has_statistics_a_collective_and_a_result():
    import torch.distributed as dist

    def model():
        dist.init_process_group("nccl", rank=0, world_size=4, init_method="tcp://localhost:1")
        return nn.Sequential(nn.Conv2d(8, 8, 1), nn.SyncBatchNorm(8))

    workload = memwall.Workload(model=model, inputs=lambda: (torch.randn(2, 8, 6, 6),))
    found = memwall.profile(workload, mode="training", optimizer=None)
    names = [op.name for op in found.graph.ops]
    for name in ("batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt",
                 "batch_norm_backward_reduce", "batch_norm_backward_elemt"):  # fmt: skip
        assert f"aten.{name}" in names
    assert "c10d._allgather_base_" in names
    assert any("synchronised batch norms" in note for note in found.capture["notes"])


def test_the_boxes_that_are_kept_are_a_stated_share():
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        found = memwall.profile(
            Call(lambda boxes, scores: boxes[torch.ops.torchvision.nms(boxes, scores, 0.5)]),
            (torch.rand(200, 4), torch.rand(200)), assume=["nonzero=0.25"],
        )  # fmt: skip
    finally:
        library._destroy()
    suppression, gather = found.graph.ops
    (kept,) = found.graph.specs(suppression.outputs)
    assert (suppression.name, kept.shape, kept.dtype) == ("torchvision.nms", (50,), "int64")
    assert found.graph.specs(gather.outputs)[0].shape == (50, 4)
    assert graph_costs(found.graph)[0].total_flops == 12 * 200 * 201 // 2
    assert any("nonzero=0.25" in note for note in found.capture["notes"])


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
@pytest.mark.parametrize("copied", [lambda a: a.to(torch.bfloat16), lambda a: a.t(), lambda a: a.clone()])
def test_copies_of_a_sparse_tensor_store_as_much(layout, copied):
    dense = torch.zeros(4, 6)
    dense[::2, ::3] = 1.0
    given = {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc,
             "bsr": lambda: dense.to_sparse_bsr((2, 3))}[layout]()  # fmt: skip
    expected = copied(given)
    with SparseCopies():
        found = copied(sparse_of(given, [_meta(part) for part in sparse_parts(given)]))
    assert found.layout is expected.layout
    assert _specs([found, *sparse_parts(found)]) == _specs([expected, *sparse_parts(expected)])


class _Times(nn.Module):
    def __init__(self, matrix):
        super().__init__()
        self.register_buffer("matrix", matrix)

    def forward(self, x):
        return self.matrix @ x


class _TimesCast(nn.Module):
    def forward(self, matrix, x):
        return (matrix.to(torch.bfloat16) @ x.to(torch.bfloat16)) + torch.sparse.mm(matrix.coalesce().t(), x)


def _product_flops(*args, **options):
    graph = memwall.profile(*args, gpu="a100", optimizer=None, **options).graph
    products = [cost for op, cost in zip(graph.ops, graph_costs(graph), strict=True) if "mm" in op.name]
    return sum(cost.total_flops for cost in products)


def test_a_sparse_product_in_bf16_counts_what_is_stored():
    x = torch.randn(3, 8)  # 3 stored elements x 8 columns x 2
    assert _product_flops(_Times(COO), (x,), dtype="bf16") == 48
    assert _product_flops(_Times(COO), (x,), autocast="bf16") == 48
    square = torch.sparse_coo_tensor([[0, 1, 1], [2, 0, 2]], [3.0, 4.0, 5.0], (3, 3))
    assert _product_flops(_TimesCast(), (square, x)) == 2 * 48


def test_a_sparse_result_that_lost_its_elements_is_refused():
    given = _sparse_meta(COO)
    lost = torch.empty(2, 3, layout=torch.sparse_coo, device="meta")
    with pytest.raises(UsageError, match=r"aten\.permute\.default of a sparse tensor cannot be traced"):
        check_stored("aten.permute.default", lost, (given, [1, 0]))
    check_stored("aten.zeros_like.default", lost, (given,))
    check_stored("aten.permute.default", given, (given, [0, 1]))


def test_a_product_that_has_no_shape_function_is_refused_as_such():
    with pytest.raises(
        UsageError,
        match=r"no shape function for an op on a sparse tensor .*; trace real tensors with --real, or take COO",
    ):
        memwall.profile(_Times(COO.to_sparse_csc()), (torch.randn(3, 8),), gpu="a100", optimizer=None)
