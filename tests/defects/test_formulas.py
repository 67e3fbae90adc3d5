"""Ops without formulas, and refused for want of a shape."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall


class _Calls(nn.Module):
    """A function of a scaled input, so that there is something to train."""

    def __init__(self, function):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.function = function

    def forward(self, *args):
        return self.function(*(arg * self.scale if arg.is_floating_point() else arg for arg in args))


def _profiled(function, *args, mode="training"):
    return memwall.profile(_Calls(function), args, mode=mode, loss=lambda out: out.sum())


def _costs(function, *args, mode="training"):
    """The named op → its cost, of a trace that has a formula for every op."""
    found = _profiled(function, *args, mode=mode)
    pairs = list(zip(found.graph.ops, found.costs[0], strict=True))
    assert not [op.name for op, cost in pairs if not cost.modeled]
    return {op.name.removesuffix(".default"): cost for op, cost in pairs}


def test_f53_a_triangular_solve_has_flops():
    """No formula knew LAPACK's solvers and factorizations, which gated DeltaNet and Gaussian processes use."""
    matrix, rhs = torch.randn(8, 64, 64), torch.randn(8, 64, 16)
    costs = _costs(lambda a, b: torch.linalg.solve_triangular(a, b, upper=False), matrix, rhs)
    assert costs["aten.linalg_solve_triangular"].total_flops == 8 * 64 * 64 * 16
    costs = _costs(lambda a: torch.linalg.cholesky(a), torch.eye(12))
    assert costs["aten.linalg_cholesky_ex"].total_flops == 12**3 // 3
    assert _costs(torch.linalg.inv, torch.eye(12))["aten.linalg_inv_ex"].total_flops == 2 * 12**3
    _costs(lambda a: torch.linalg.svd(a)[1], torch.randn(9, 5))
    _costs(lambda a: torch.linalg.eigh(a)[0], torch.eye(9))
    _costs(lambda a, b: torch.linalg.lstsq(a, b).solution, torch.randn(9, 5), torch.randn(9, 2), mode="inference")


def test_f53_regions_and_deformable_convolutions_have_flops():
    """torchvision's compiled ops had no formula, so that a deformable convolution's FLOPs were none."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        library.define(
            "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h,"
            " SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups,"
            " SymInt offset_groups, bool use_mask) -> Tensor"
        )
        shape = lambda x, w, offset, *others: x.new_empty(x.shape[0], w.shape[0], *offset.shape[-2:])  # noqa: E731
        library.impl("deform_conv2d", shape, "Meta")

        def run(x, weight, offset, mask, bias):
            ones = (1, 1, 1, 1, 1, 1, 1, 1)
            return torch.ops.torchvision.deform_conv2d(x, weight, offset, mask, bias, *ones, True)

        inputs = (torch.randn(2, 8, 10, 10), torch.randn(16, 8, 3, 3), torch.randn(2, 18, 10, 10),
                  torch.rand(2, 9, 10, 10), torch.zeros(16))  # fmt: skip
        cost = _costs(run, *inputs, mode="inference")["torchvision.deform_conv2d"]
        assert max(cost.flops.values()) == 2 * (2 * 16 * 100) * 8 * 9
    finally:
        library._destroy()


def test_f53_antialiased_interpolation_has_flops():
    """Interpolation with ``antialias=True``, as every image processor's, had no formula."""
    costs = _costs(lambda x: F.interpolate(x, (4, 4), mode="bilinear", antialias=True), torch.randn(1, 3, 8, 8))
    # windows of 3, 4, 4 and 3 pixels: 14 along each axis; 2 FLOP a pixel and 2 a row of each window
    assert costs["aten._upsample_bilinear2d_aa"].total_flops == 3 * (2 * 14 * 14 + 2 * 14 * 4)
    assert costs["aten._upsample_bilinear2d_aa_backward"].total_flops == 3 * 3 * 14 * 14


@pytest.mark.parametrize("tensors", [True, False])
def test_f53_ctc_loss_is_traced(tensors):
    """``ctc_loss`` has no shape function for lengths in tensors, and none for its gradient."""
    lengths = (torch.tensor([50, 40]), torch.tensor([10, 8])) if tensors else ((50, 40), (10, 8))

    def loss(x, targets, *rest):
        return F.ctc_loss(x.log_softmax(-1), targets, *(rest or lengths))

    given = lengths if tensors else ()
    costs = _costs(loss, torch.randn(50, 2, 20), torch.ones(2, 10, dtype=torch.long), *given)
    assert costs["aten._ctc_loss"].total_flops == 11 * 2 * 50 * 21


def test_f53_istft_is_traced():
    """A check inside ATen that a window does not add up to zero asked for a value."""
    window = torch.hann_window(16)

    def run(x, w):
        return torch.istft(torch.stft(x, 16, window=w, return_complex=True), 16, window=w)

    costs = _costs(run, torch.randn(2, 400), window)
    assert costs["aten._fft_c2r"].total_flops > 0


def test_f53_fake_quantization_is_traced():
    """Quantization-aware training's ops had neither shapes nor formulas."""
    costs = _costs(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), torch.randn(10, 10))
    assert costs["aten.fake_quantize_per_tensor_affine_cachemask"].total_flops == 400


def test_f53_distances_and_bilinear_layers_have_flops():
    """Distances of pairs, ``nn.Bilinear``, unpooling and segment sums had no formula."""
    pairs = torch.randn(10, 5), torch.randn(12, 5)
    assert _costs(torch.cdist, *pairs)["aten._cdist_forward"].total_flops == 3 * 120 * 5
    bilinear = _costs(F.bilinear, torch.randn(4, 8), torch.randn(4, 6), torch.randn(5, 8, 6))
    assert bilinear["aten._trilinear"].total_flops > 0
    _costs(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), torch.randn(2, 3, 8, 8))


@pytest.mark.filterwarnings("ignore")  # torch warns that it does not check indices
def test_f53_sparse_products_are_traced():
    """Sparse matrices had no shape functions: message-passing layers that multiply by them were refused."""

    def run(places, values, x):
        return torch.sparse.mm(torch.sparse_coo_tensor(places, values, (10, 10)), x)

    places = torch.stack([torch.arange(20) % 10, torch.arange(20) // 2])
    found = _profiled(run, places, torch.randn(20), torch.randn(10, 4), mode="inference")
    assert max(cost.total_flops for cost in found.costs[0]) == 2 * 20 * 4


def test_c30_library_ops_of_modules_have_the_formulas_of_traces(folder, run):
    """What counts vLLM's ops in a trace counted none of them in a module: the tables were two."""
    (folder / "served.py").write_text(
        "import torch\n"
        "library = torch.library.Library('_C', 'FRAGMENT')\n"
        "library.define('silu_and_mul(Tensor! result, Tensor input) -> ()')\n"
        "class Gated(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        out = x.new_empty(x.shape[0], x.shape[1] // 2)\n"
        "        torch.ops._C.silu_and_mul(out, x)\n"
        "        return out\n"
        "def model():\n"
        "    return Gated()\n"
        "def inputs():\n"
        "    return (torch.randn(4, 32),)\n",
        encoding="utf-8",
    )
    result = run("profile", "served.py")
    assert result.code == 0, result.err
    assert "100 % of 1 op" in result.out
