"""The text of generated kernels: one golden file for each nest, and what stands beside the text."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import memwall
from memwall.codegen import NotGenerated, generate
from memwall.core.flow import Flow
from memwall.fusion import plan_graph
from memwall.hardware.lookup import load_gpu

H100 = load_gpu("h100-sxm")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x, y):
        return self.norm(x + y)


class Activation(nn.Module):
    def forward(self, x, bias):
        return functional.gelu(x + bias)


class Bias(nn.Module):
    """Its gradient is a sum over rows beside the activation's gradient."""

    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x, y):
        return functional.gelu(x + self.bias) * y


def generated(module, *shapes, dtype="float16", mode="inference", gpu=H100):
    """The kernels of a module's groups."""
    with torch.device("meta"):
        inputs = tuple(torch.empty(shape) for shape in shapes)
    profile = memwall.profile(module, inputs, gpu=gpu, mode=mode, dtype=dtype, optimizer=None)
    graph = profile.graph
    flow = Flow.of(graph)
    return [generate(graph, flow, g, gpu) for g in plan_graph("memwall", graph, profile.costs[0], gpu).groups]


#: golden file -> its kernels and the nest that each takes
CASES = {
    "pointwise": (lambda: generated(Activation(), (512, 4096), (4096,)), "pointwise"),
    "persistent": (lambda: generated(Residual(1000), (4096, 1000), (4096, 1000)), "persistent"),
    "looped": (lambda: generated(nn.Softmax(-1), (512, 65537), dtype="float32"), "looped"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_source(name, golden):
    make, schedule = CASES[name]
    (kernel,) = make()
    assert kernel.schedule == schedule
    golden(f"kernel_{name}.py.txt", kernel.source)


def test_the_source_of_a_sum_over_rows(golden):
    with torch.device("meta"):
        module = Bias(4096)
    made = generated(module, (8192, 4096), (8192, 4096), mode="training")
    kernels = [k for k in made if k.schedule == "split" and "gradient" in k.source]
    assert len(kernels) == 1
    assert [launch.function for launch in kernels[0].launches] == ["split", "finish_1"]
    golden("kernel_split.py.txt", kernels[0].source)


def test_it_is_the_same_every_time():
    first, again = (CASES["persistent"][0]()[0] for _ in range(2))
    assert first == again


def test_what_stands_beside_the_text():
    (kernel,) = CASES["persistent"][0]()
    (launch,) = kernel.launches
    assert [kind for _, kind in launch.arguments] == ["*fp16"] * 5  # x, y, weight, bias; out
    assert launch.constants["RBLOCK"] == 1024  # the power of two that holds a row of 1000
    rows_each = launch.constants["XBLOCK"]
    assert launch.grid == (-(-4096 // rows_each),)
    assert kernel.configs[0] == kernel.config
    assert "RBLOCK" not in kernel.config  # a row has to fit: it may not be assigned


def test_offsets_beyond_31_bits_are_computed_in_64():
    small, large = (generated(Activation(), (rows, 4096), (4096,))[0].source for rows in (1 << 18, 1 << 19))
    assert "to(tl.int64)" not in small
    assert "tl.program_id(0).to(tl.int64) * XBLOCK" in large  # 2^31 elements


def test_few_rows_are_shared_by_several_programs():
    """Eight rows of a million columns leave most of 132 multiprocessors idle: stripes, then their join."""
    (kernel,) = generated(nn.Softmax(-1), (8, 1 << 20), dtype="float32")
    assert kernel.schedule == "split + pointwise"
    assert kernel.launches[0].grid[1] > 1


def test_what_is_not_generated_says_why():
    class Unknown(nn.Module):
        def forward(self, x):
            return torch.cumsum(x, -1)

    with pytest.raises(NotGenerated, match=r"no rule for aten\.cumsum"):
        generated(Unknown(), (8, 128))


def test_rows_of_float64_are_refused_where_statistics_are_float32():
    with pytest.raises(NotGenerated, match="float64"):
        generated(Residual(8), (4, 8), (4, 8), dtype="float64")
