"""The operators that eager PyTorch asks for a library, in place of the kernels that a trace names."""

from types import SimpleNamespace

import pytest
import torch

import memwall
from memwall.bench.kernels import eager_forms
from memwall.bench.kernels.executors import KernelBuilder
from memwall.bench.kernels.oracle import Oracle

ATEN = torch.ops.aten


class Layers(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.convolution, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8, **options)

    def forward(self, x):
        return torch.relu(self.norm(self.convolution(x)))


class Sampled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.data = torch.nn.Parameter(torch.randn(2, 3, 6, 6))

    def forward(self, grid):
        return torch.nn.functional.grid_sample(self.data.sin(), grid.tanh(), align_corners=True)


def built(module, inputs, name, folder, mode="training"):
    """The eager function of the op of that name, the oracle of its group."""
    made = memwall.profile(module, inputs, gpu="h200", mode=mode, optimizer=None)
    schedule = made.schedule(made.simulations[0].gpu, "eager")
    group = next(g for g in schedule.plan.groups if made.graph.ops[g.op_ids[0]].name.startswith(name))
    builder = KernelBuilder(made.graph, made.simulations[0].gpu, "cpu", folder)
    return builder, group, Oracle(made.graph, builder.flow, group)


IMAGES = (torch.randn(4, 3, 10, 10),)
PLACES = (torch.randn(2, 4, 4, 2),)


@pytest.mark.parametrize(("module", "inputs", "name", "mode", "form"), [
    (Layers(), IMAGES, "aten.native_batch_norm", "training", "forms.batch_norm("),
    (Layers(), IMAGES, "aten.native_batch_norm", "inference", "forms.batch_norm("),
    (Layers(affine=False), IMAGES, "aten.native_batch_norm", "training", "forms.batch_norm("),
    (Layers(track_running_stats=False), IMAGES, "aten.native_batch_norm", "training", "_without_statistics("),
    (Layers(), IMAGES, "aten.native_batch_norm_backward", "training", "eager_batch_norm_backward("),
    (Layers(affine=False), IMAGES, "aten.native_batch_norm_backward", "training", "eager_batch_norm_backward("),
    (Sampled(), PLACES, "aten.grid_sampler_2d", "training", "forms.grid_sampler("),
    (Sampled(), PLACES, "aten.grid_sampler_2d_backward", "training", "forms.grid_sampler_backward("),
])  # fmt: skip
def test_an_op_is_called_by_the_form_that_chooses_and_gives_its_results(tmp_path, module, inputs, name, mode, form):
    builder, group, oracle = built(module, inputs, name, tmp_path, mode)
    kernel = builder.eager(group)
    assert form in kernel.source
    arena = oracle.inputs()
    expected = oracle.eager(arena)
    found = kernel.run(*[arena[i] for i in kernel.inputs])
    for value_id, tensor in zip(kernel.outputs, found, strict=True):
        if value_id in oracle.results:  # in inference no statistics
            torch.testing.assert_close(tensor, expected[value_id])
    assert expected.keys() == {*kernel.outputs[: 1 if mode == "inference" else None], *oracle.effects}
    for value_id in oracle.effects:  # running statistics
        torch.testing.assert_close(arena[value_id], expected[value_id])


def test_what_eager_does_not_choose_is_called_by_its_name(tmp_path):
    builder, group, _ = built(Layers(), IMAGES, "aten.relu", tmp_path)
    source = builder.eager(group).source
    assert "torch.ops.aten.relu" in source
    assert "eager_forms" not in source


@pytest.fixture
def library(monkeypatch):
    """ATen with a library that takes every batch norm and grid, as cuDNN would; the calls that reached it."""
    calls = []

    def choose(x, weight, bias, mean, var, training, momentum, eps, enabled):
        calls.append(("forward", mean))
        return *ATEN.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps), torch.tensor([7]), 1

    def gradient(index, x, grad, weight, mean, var, saved_mean, deviation, train, eps, wanted, reserve):
        calls.append(("backward", index, reserve.tolist()))
        return ATEN.native_batch_norm_backward(grad, x, weight, mean, var, saved_mean, deviation, train, eps, wanted)

    def sampled_backward(x, grid, grad):
        calls.append(("sampled",))
        return x, grid

    fake = SimpleNamespace(
        _batch_norm_impl_index=choose, _batch_norm_impl_index_backward=gradient,
        cudnn_grid_sampler_backward=sampled_backward, grid_sampler_2d_backward=ATEN.grid_sampler_2d_backward,
    )  # fmt: skip
    monkeypatch.setattr(eager_forms, "_ATEN", fake)
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    return calls


def backward_arguments():
    x, weight = torch.randn(4, 8, 6, 6), torch.ones(8)
    _, mean, deviation = ATEN.native_batch_norm(x, weight, weight, None, None, True, 0.1, 1e-5)
    running = [torch.zeros(8), torch.ones(8)]
    return [torch.randn_like(x), x, weight, *running, mean, deviation, True, 1e-5, [True, True, True]]


def test_a_gradient_gets_what_the_forward_pass_of_its_library_left(library):
    arguments = backward_arguments()
    expected = ATEN.native_batch_norm_backward(*arguments)
    backward = eager_forms.BatchNormBackward()
    for _ in range(2):
        for made, wanted in zip(backward(*arguments), expected, strict=True):
            torch.testing.assert_close(made, wanted)
    # once ahead, without the running statistics, which it would change; then gradients alone
    assert library == [("forward", None), ("backward", 1, [7]), ("backward", 1, [7])]
    assert arguments[3].tolist() == [0.0] * 8


def test_other_tensors_of_the_same_shape_have_a_forward_pass_of_their_own(library):
    first, second = backward_arguments(), backward_arguments()
    backward = eager_forms.BatchNormBackward()
    backward(*first)
    backward(*second)
    assert [kind for kind, *_ in library] == ["forward", "backward"] * 2


def test_gradients_by_given_statistics_are_pytorchs_own(library):
    arguments = backward_arguments()
    arguments[7] = False
    eager_forms.BatchNormBackward()(*arguments)
    assert library == [("backward", 0, [])]


@pytest.mark.parametrize(("aligned", "padding", "channels", "by_library"), [
    (True, 0, 3, True), (False, 0, 3, False), (True, 1, 3, False), (True, 0, 1025, False),
])  # fmt: skip
def test_cudnn_samples_bilinearly_with_zeros_outside_and_aligned_corners(
    library, aligned, padding, channels, by_library
):
    x, grid = torch.randn(1, channels, 4, 4), torch.rand(1, 2, 2, 2)
    eager_forms.grid_sampler_backward(torch.ones(1, channels, 2, 2), x, grid, 0, padding, aligned, [True, True])
    assert bool(library) == by_library
