"""Models inside other things: quantised, nested, compiled, sharded; checked by hand or against the plain module."""

import functools
import threading
import weakref
from collections import Counter

import pytest
import torch
from torch import nn

import memwall
from memwall.core.errors import MemwallError, UsageError
from memwall.ops.registry import graph_costs
from tests.unit.small_modules import Mlp


def inputs() -> tuple[torch.Tensor]:
    return (torch.zeros(8, 64),)


def names(made: memwall.Profile) -> list[str]:
    return [op.name.removeprefix("aten.") for op in made.graph.ops]


def profiled(module, given=None, **options) -> memwall.Profile:
    return memwall.profile(module, given or inputs(), **options)


def flops(made: memwall.Profile) -> int:
    return made.simulations[0].totals.flops


PLAIN = ["addmm", "relu", "addmm", "add.Tensor"]


class Int8(torch.Tensor):
    """A weight in 8 bits with a scale per row, as quantisation libraries write them."""

    @staticmethod
    def __new__(cls, numbers, scales):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=torch.float32, device=numbers.device)

    def __init__(self, numbers, scales) -> None:
        self.numbers, self.scales = numbers, scales

    def __tensor_flatten__(self):
        return ["numbers", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["numbers"], parts["scales"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scales)
        whole = lambda t: t.numbers.float() * t.scales  # noqa: E731
        return func(*torch.utils._pytree.tree_map_only(cls, whole, args), **(kwargs or {}))


def test_a_wrapper_is_what_it_holds_and_runs():
    """An int8 weight takes a quarter of the memory, and is widened and scaled before the product."""
    module = Mlp()
    whole = module.up.weight.detach()
    module.up.weight = nn.Parameter(Int8(whole.to(torch.int8), torch.ones(256, 1)), requires_grad=False)
    made = profiled(module)
    assert Counter(names(made)) == Counter(["_to_copy", "mul.Tensor", *PLAIN])
    held = made.graph.role_bytes["parameter"]
    assert held == 256 * 64 + 256 * 4 + (256 + 64 * 256 + 64) * 4
    assert made.workload.parameters == 2 * 64 * 256 + 256 + 64


def test_a_wrapper_that_hides_its_parts_is_refused_with_the_remedy():
    class Hiding(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return NotImplemented

    with pytest.raises(UsageError, match="give Hiding __tensor_flatten__"):
        profiled(nn.ReLU(), (Hiding(torch.zeros(2)),))


def _forward_flops(make, weight: nn.Linear) -> dict[str, int]:
    """FLOPs of a training step's forward, by op: those of a weight made anew in each."""
    made = memwall.profile(make(weight), (torch.zeros(4, 16),), mode="training")
    assert not made.coverage.unmodeled
    counts = Counter[str]()
    for op, cost in zip(made.graph.ops, graph_costs(made.graph), strict=True):
        counts[op.name.removeprefix("aten.")] += cost.total_flops if op.phase == "forward" else 0
    return {name: count for name, count in counts.items() if count and name != "sum"}  # the loss


def test_weights_made_anew_in_each_step_are_traced_and_trained():
    made = nn.utils.parametrizations
    product = 2 * 4 * 16 * 8
    # a square and an addition for each of 16 x 8 elements, and the scale
    assert _forward_flops(made.weight_norm, nn.Linear(16, 8)) == {"_weight_norm_interface": 3 * 128, "addmm": product}
    # a power iteration's two products with a vector, of which one is normalised after each; sigma's product and dot
    spectral = _forward_flops(made.spectral_norm, nn.Linear(16, 8))
    assert (spectral["mv"], spectral["vdot"], spectral["div.Tensor"]) == (3 * 2 * 128, 2 * 8, 128)
    # five products of 16 x 16 matrices in the exponential's series, one with the base
    exponential = functools.partial(made.orthogonal, orthogonal_map="matrix_exp")
    assert _forward_flops(exponential, nn.Linear(16, 16)) == {
        "sub.Tensor": 256, "linalg_matrix_exp": 5 * 2 * 16**3, "mm": 2 * 16**3, "addmm": 2 * 4 * 16 * 16}  # fmt: skip
    # 4mnk - 2(m + n)k^2 + 4k^3/3 for 8 reflections of 16 x 8
    reflections = _forward_flops(made.orthogonal, nn.Linear(16, 8))["linalg_householder_product"]
    assert reflections == pytest.approx(4 * 16 * 8 * 8 - 2 * 24 * 64 + 4 * 512 / 3, abs=1)


def test_a_jagged_batch_costs_its_rows():
    """Three and five tokens are eight rows."""
    batch = torch.nested.nested_tensor([torch.zeros(3, 64), torch.zeros(5, 64)], layout=torch.jagged)
    made = profiled(Mlp(), (batch,))
    assert names(made) == PLAIN
    assert flops(made) == flops(profiled(Mlp()))


class JaggedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 48)

    def forward(self, x, offsets):
        batch = torch.nested.nested_tensor_from_jagged(x, offsets)
        heads = [part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.inner(batch).chunk(3, -1)]
        return nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2).values()


@pytest.mark.parametrize(("dtype", "kernel"), [("f32", "_efficient"), ("bf16", "_flash")])
def test_jagged_attention_runs_the_kernels_of_a_gpu(dtype, kernel):
    """Three sequences of five tokens, two heads of eight: 3 x 5 x 5 pairs, a product with keys and one with values."""
    given = (torch.zeros(15, 16), torch.tensor([0, 5, 10, 15]))
    made = memwall.profile(JaggedAttention(), given, mode="training", dtype=dtype, optimizer=None)
    counts = {op.name: cost.total_flops for op, cost in zip(made.graph.ops, graph_costs(made.graph), strict=True)}
    assert counts[f"aten.{kernel}_attention_forward"] == 2 * 2 * 2 * 75 * 8
    assert counts[f"aten.{kernel}_attention_backward"] == 4 * 2 * 2 * 75 * 8
    assert counts["aten.addmm"] == 2 * 15 * 16 * 48


def test_a_nested_tensor_of_the_strided_layout_is_refused_with_the_remedy():
    class Net(Mlp):
        def forward(self, x):
            return torch.nested.nested_tensor([x, x[:3]]).to_padded_tensor(0.0)

    with pytest.raises(MemwallError, match=r"strided layout needs data.*layout=torch\.jagged"):
        profiled(Net())
    with pytest.raises(UsageError, match=r"strided layout is given to the model: make it with layout=torch\.jagged"):
        profiled(Mlp(), (torch.nested.nested_tensor([torch.zeros(3, 64)]),))


def test_a_subclass_that_only_renames_calls_is_kept():
    class Image(torch.Tensor):
        pass

    class Net(Mlp):
        def forward(self, x):
            assert isinstance(x, Image)
            return super().forward(x)

    assert names(profiled(Net(), (torch.zeros(8, 64).as_subclass(Image),))) == PLAIN


class Compiled(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.compile(self.up)
        self.go = torch.compile(self.plain)

    def plain(self, x):
        return super().forward(x)

    def forward(self, x):
        return self.go(x)


class Closing(Mlp):
    """A module whose forward is a function that closes over the module's own, as hooks of libraries write it."""

    def __init__(self) -> None:
        super().__init__()
        own = self.forward
        self.forward = lambda x: own(x)


class Partial(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.forward = functools.partial(Mlp.forward, self)


class Unpicklable(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.lock, self.lines = threading.Lock(), (line for line in "ab")
        self.owner = weakref.ref(self.up)

    def forward(self, x):
        with self.lock:
            return x + self.down(torch.relu(self.owner()(x)))


@pytest.mark.parametrize("kind", [Compiled, Closing, Partial, Unpicklable])
def test_a_copy_runs_on_its_own_tensors(kind):
    made = profiled(kind())
    assert names(made) == PLAIN
    assert made.workload.parameters == 2 * 64 * 256 + 256 + 64


def test_hooks_on_gradients_are_kept():
    module = Mlp()
    module.up.weight.register_hook(lambda gradient: gradient * 2)
    made = profiled(module, mode="training", optimizer=None)
    assert Counter(names(made)) - Counter(names(profiled(Mlp(), mode="training", optimizer=None))) == {"mul.Tensor": 1}


# -- operators that take functions, and what models ask of the device ------------------------------------------------


class Loops(nn.Module):
    """Eight rows, one after the other."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.step = kind, nn.Linear(64, 64)

    def forward(self, x):
        from torch._higher_order_ops import map as map_rows
        from torch._higher_order_ops.associative_scan import associative_scan
        from torch._higher_order_ops.scan import scan
        from torch._higher_order_ops.while_loop import while_loop

        if self.kind == "while":
            count = torch.zeros((), dtype=torch.int64, device=x.device)
            return while_loop(lambda i, y: i < 8, lambda i, y: (i + 1, self.step(y)), (count, x[0]))[1]
        if self.kind == "scan":
            return scan(lambda carry, row: (self.step(row) + carry, carry * 1), x[0] * 0, x)[1]
        if self.kind == "map":
            return map_rows(lambda row: self.step(row), x)
        return associative_scan(lambda a, b: a * b, self.step(x), dim=0)


@pytest.mark.parametrize("kind", ["while", "scan", "map"])
def test_a_loop_runs_its_body_as_often_as_it_says(kind):
    made = profiled(Loops(kind))
    assert names(made).count("addmm") == 8
    assert flops(made) >= 8 * 2 * 64 * 64


def test_a_scan_over_products_needs_no_gpu():
    made = profiled(Loops("associative"))
    assert names(made).count("addmm") == 1 and "mul.Tensor" in names(made)


@pytest.mark.parametrize("kind", ["scan", "map", "associative"])
def test_a_loop_is_trained(kind):
    made = profiled(Loops(kind), mode="training", optimizer=None)
    assert any(op.phase == "backward" and op.name == "aten.mm" for op in made.graph.ops)


class Asking(Mlp):
    def forward(self, x):
        assert x.device == torch.device("cuda:0") and str(x.device) == "cuda:0", x.device
        assert x.device.type == "cuda" and self.up.weight.device.type == "cuda"
        with torch.cuda.device(x.device), torch.device("cuda"):
            noise = torch.zeros(8, 64, device=x.device) + torch.zeros(8, 64)
        generator = torch.cuda.default_generators[0]
        generator.initial_seed()
        torch.cuda.utilization()
        return super().forward(x + noise.normal_(generator=generator))


def test_a_tensor_is_on_cuda_to_the_model():
    assert [name for name in names(profiled(Asking())) if name in PLAIN][-4:] == PLAIN


def test_a_default_device_that_the_model_sets_stays_in_the_trace():
    def model():
        torch.set_default_device("cuda")
        return Mlp()

    profiled(memwall.Workload(model, inputs()))
    assert torch.zeros(1).device.type == "cpu"


def test_scripted_functions_are_seen():
    script = torch.jit.script(_double)

    class Net(Mlp):
        def forward(self, x):
            return script(super().forward(x))

    assert names(profiled(Net())) == [*PLAIN, "mul.Scalar"]


def _double(x):
    return x * 2


# -- optimizers ------------------------------------------------------------------------------------------------------

#: parameters of Mlp
COUNT = 2 * 64 * 256 + 256 + 64


def test_lbfgs_counts_one_evaluation_and_holds_its_history():
    """A hundred directions and as many steps: parameters, gradients and the history are 202 times the parameters."""
    made = profiled(Mlp(), mode="training", optimizer=lambda p: torch.optim.LBFGS(p))
    peak = made.simulations[0].totals.peak_memory_bytes
    assert 202 * COUNT * 4 <= peak <= 212 * COUNT * 4
    assert names(made).count("addmm") == 2
    # the two loops over the history: a product of directions with the gradient each, and three of the last step
    assert 2 * 100 <= names(made).count("dot") <= 2 * 100 + 5
    assert any("one evaluation" in note for note in made.capture["notes"])


@pytest.mark.parametrize("kind", ["Adadelta", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"])
def test_a_capturable_optimizer_is_traced(kind):
    optimizer = getattr(torch.optim, kind)
    made = profiled(Mlp(), mode="training", optimizer=lambda p: optimizer(p, capturable=True))
    assert any(op.phase == "optimizer" for op in made.graph.ops)


def test_a_learning_rate_may_be_a_tensor():
    made = profiled(Mlp(), mode="training", optimizer=lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), fused=True))
    assert "_fused_adamw_.tensor_lr" in names(made)


def test_a_number_that_an_optimizer_reads_is_one_also_where_it_is_compared():
    class Clipped(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
                if norm > 2:
                    raise ValueError("a norm of 1 is not above 2")
                if norm > 0.5:
                    torch._foreach_mul_([p.grad for p in group["params"]], 0.5 / norm.item())
            return super().step(closure)

    made = profiled(Mlp(), mode="training", optimizer=lambda p: Clipped(p, lr=0.1))
    assert "_foreach_mul_.Scalar" in names(made)


# -- compiled code, ops of libraries, activations on the host --------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, inputs())])
def test_torchscript_is_traced(make):
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    made, plain = (profiled(module, mode="training") for module in (make(net), net))
    assert names(made) == names(plain) and flops(made) == flops(plain)
    assert made.graph.role_bytes == plain.graph.role_bytes
    assert net[0].weight.device.type == "cpu" and net[0].weight.grad is None


def test_an_op_without_shapes_is_refused_with_the_remedy():
    @torch.library.custom_op("memwall_tests::shapeless", mutates_args=())
    def shapeless(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Net(Mlp):
        def forward(self, x):
            return shapeless(super().forward(x))

    with pytest.raises(UsageError, match=r'@torch.library.register_fake\("memwall_tests::shapeless"\)'):
        profiled(Net())
    shapeless.register_fake(torch.empty_like)
    made = profiled(Net())
    assert names(made) == [*PLAIN, "memwall_tests.shapeless"]
    assert made.coverage.unmodeled == ("memwall_tests.shapeless",)


@pytest.mark.filterwarnings("ignore")  # torch's dynamic quantization is deprecated
def test_dynamic_quantization_runs_on_cpus_alone():
    """``linear_dynamic`` is registered for the CPU: a time on a GPU would be that of no kernel."""
    linear = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear})
    with pytest.raises(
        UsageError, match=r"quantized::linear_dynamic has a kernel for CPUs alone.*before quantize_dynamic"
    ):
        memwall.profile(linear, (torch.randn(2, 8),))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    assert has_kernel("quantized::linear_dynamic", "CPU") and not has_kernel("quantized::linear_dynamic", "CUDA")


def test_saving_on_the_host_empties_the_device():
    class Net(nn.Module):
        def __init__(self, saves: bool) -> None:
            super().__init__()
            self.saves, self.layers = saves, nn.ModuleList(Mlp() for _ in range(4))

        def forward(self, x):
            with torch.autograd.graph.save_on_cpu(pin_memory=True) if self.saves else torch.enable_grad():
                for layer in self.layers:
                    x = layer(x)
            return x

    given = (torch.zeros(4096, 64),)
    kept, saved = (profiled(Net(saves), given, mode="training", optimizer=None) for saves in (False, True))
    # a layer keeps its input, what goes into the ReLU or comes out of it: 64 and 256 columns
    row = (64 + 256) * 4096 * 4
    peaks = [made.simulations[0].totals.peak_memory_bytes for made in (kept, saved)]
    assert peaks[0] - peaks[1] > 2 * row
    assert flops(kept) == flops(saved)
    assert any("save_on_cpu" in note for note in saved.capture["notes"])


def test_a_forward_mode_derivative_has_no_ops_that_only_ask_for_shapes():
    class Net(Mlp):
        def forward(self, x):
            return torch.func.jvp(super().forward, (x,), (x,))[1]

    made = profiled(Net())
    assert not made.coverage.unmodeled
    assert names(made).count("addmm") == 2


# -- transformers ----------------------------------------------------------------------------------------------------


def llama(**changes):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 1000}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, **changes)
    return transformers, config, transformers.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_a_cache_that_has_been_used_is_in_memory(kind):
    """Two layers of keys and values: 2 sequences, 2 heads of 32 numbers; 256 places, or the 16 that were written."""
    transformers, config, model = llama()
    cache = transformers.StaticCache(config=config, max_cache_len=256) if kind == "static" else None
    prompt = torch.ones(2, 16, dtype=torch.int64)
    cache = model(prompt, past_key_values=cache, use_cache=True).past_key_values
    made = profiled(model, {"input_ids": prompt[:, :1], "past_key_values": cache})
    held = 2 * 2 * (2 * 2 * (256 if kind == "static" else 16) * 32) * 4
    weights = made.graph.role_bytes["parameter"]
    assert made.simulations[0].totals.peak_memory_bytes >= weights + held
    assert held <= made.graph.role_bytes["kv_cache"] <= held + 200
    assert cache.get_seq_length() == 16


def test_what_a_tokenizer_returns_is_taken():
    transformers, _, model = llama()
    ids = torch.ones(2, 16, dtype=torch.int64)
    given = transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert flops(profiled(model, given)) >= 2 * 32 * 128 * 1000


def test_generate_makes_the_tokens_that_it_may():
    """One pass over the prompt and two over a token each; each ends in 1,000 logits per sequence."""
    _, _, model = llama()

    class Generating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids):
            return self.model.generate(ids, max_new_tokens=3, do_sample=False)

    made = profiled(Generating(), (torch.ones(2, 16, dtype=torch.int64),))
    shapes = [made.graph.values[op.outputs[0]].spec.shape for op in made.graph.ops if op.name == "aten.mm"]
    assert sum(shape == (2, 1000) for shape in shapes) == 3
    assert any("generate()" in note for note in made.capture["notes"])
