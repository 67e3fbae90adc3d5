"""One model written for several front ends is one graph: equal FLOPs of products, convolutions and attention, equal
compulsory bytes (what goes in is read once, what comes out written once), and equal bytes of policy ideal. FLOPs of the
torch form are counted by hand."""

import warnings

import pytest
import torch

import memwall
from memwall.fusion.ideal import ideal_plan, one_kernel
from tests.unit.conformance_torch import EXPERTS, HEADS, KEY_HEADS, SIZE, TOKENS, WIDTH, models

#: name → multiply-adds: of MLPs, of projections, of 2 products of scores for each head; of filters at each place
_ROWS = 2 * TOKENS
_SCORES = 2 * 2 * HEADS * TOKENS * TOKENS * SIZE
_GPT = _ROWS * (4 + 8) * WIDTH * WIDTH + _SCORES
MULTIPLY_ADDS = {
    "mlp": _ROWS * 8 * WIDTH * WIDTH,
    "resnet": 2 * 16 * 16 * 32 * (9 * 16 + 9 * 32 + 16),
    "gpt": _GPT,
    "llama": _ROWS * WIDTH * (2 * WIDTH + 2 * KEY_HEADS * SIZE + 3 * 2 * WIDTH) + _SCORES,
    "moe": TOKENS * WIDTH * EXPERTS * (1 + 2 * 2 * WIDTH),
    "vit": 2 * 64 * WIDTH * 3 * 16 + _GPT + 2 * WIDTH * 10,
    "unet": 2 * 9 * (32 * 32 * (16 * 32 + 64 * 16) + 16 * 16 * 32 * 32),
    "lstm": 8 * 2 * 4 * WIDTH * 2 * WIDTH,
}
#: an LSTM's gates count as well: 27 FLOP for each hidden element
_GATES = {"lstm": 27 * 16 * WIDTH}
#: what the file stores and the module makes: the states that it begins with, zeros of both samples
_STORED_STATES = {"lstm": 2 * 2 * WIDTH * 4}
#: loops over its steps, which read its weights at each of them, are not the one call of a library
_IN_STEPS = frozenset(("lstm",))
PRODUCTS = ("contraction", "convolution", "attention")


def figures(profile):
    """FLOPs of products, compulsory bytes, and bytes of the ideal plan."""
    graph, costs = profile.graph, profile.costs[0]
    flops = sum(cost.total_flops for op, cost in zip(graph.ops, costs, strict=True) if op.op_class in PRODUCTS)
    return flops, one_kernel(graph, costs).bytes, sum(group.cost.bytes for group in ideal_plan(graph, costs).groups)


def in_jax(name):
    pytest.importorskip("jax", reason="needs JAX")
    from tests.unit import conformance_jax

    return conformance_jax.models()[name]


@pytest.fixture(scope="module")
def torch_figures():
    torch.manual_seed(0)
    found = {}
    for name, (module, inputs) in models().items():
        found[name] = figures(memwall.profile(module, inputs, gpu="h100-sxm")), module, inputs
    return found


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_products_in_torch_are_those_counted_by_hand(name, torch_figures):
    assert torch_figures[name][0][0] == 2 * MULTIPLY_ADDS[name] + _GATES.get(name, 0)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_a_file_of_onnx_is_the_module_that_it_was_exported_from(name, torch_figures, tmp_path):
    pytest.importorskip("onnx", reason="needs the package onnx")
    wanted, module, inputs = torch_figures[name]
    path = str(tmp_path / "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter without onnxscript is the older one
        as_it_is = {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
        torch.onnx.export(module.eval(), inputs, path, opset_version=18, dynamo=False, **as_it_is)
    flops, compulsory_bytes, ideal_bytes = figures(memwall.profile(path, gpu="h100-sxm"))
    assert (flops, ideal_bytes) == (wanted[0], wanted[2])
    assert compulsory_bytes == wanted[1] + _STORED_STATES.get(name, 0)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_a_function_of_jax_is_the_module(name, torch_figures):
    function, weights, inputs = in_jax(name)
    from memwall.frontend.jax.program import JaxProgram

    program = JaxProgram(name, name, function, (weights, *inputs), parameters=1)
    agrees(name, figures(memwall.profile(program, gpu="h100-sxm")), torch_figures)


@pytest.mark.parametrize("name", MULTIPLY_ADDS)
def test_what_jax_exports_is_the_module(name, torch_figures, tmp_path):
    function, weights, inputs = in_jax(name)
    import jax

    made = jax.export.export(jax.jit(function), platforms=["cuda"])(weights, *inputs)
    (tmp_path / "model.jax").write_bytes(made.serialize())
    agrees(name, figures(memwall.profile(str(tmp_path / "model.jax"), gpu="h100-sxm")), torch_figures)


def agrees(name, found, torch_figures):
    if name in _IN_STEPS:
        assert found[:2] == (2 * MULTIPLY_ADDS[name], torch_figures[name][0][1])
    else:
        assert found == torch_figures[name][0]
