"""``with memwall.trace() as t``: it records what ran, changes nothing that is computed, and leaves nothing behind."""

import contextlib
import copy
import gc
import importlib
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import memwall
from memwall.core.errors import UsageError


class Net(nn.Module):
    """Two linear layers and a norm."""

    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(self.down(torch.relu(self.up(x))))


def names(record, phase=None):
    return [op.name.removeprefix("aten.") for op in record.graph.ops if phase in (None, op.phase)]


# -- what is recorded --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_training_step_is_the_one_that_profile_traces(device):
    """The second step: the state of the optimizer exists, as memwall.profile has it."""
    net, x = Net().to(device), torch.randn(32, 64, device=device)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        with memwall.trace() as t:
            optimizer.zero_grad()
            loss = net(x).sum()
            loss.backward()
            optimizer.step()
    ours = t.profile(gpu="h100")
    told = memwall.profile(net, (x,), gpu="h100", mode="training", replay=False)
    assert [(op.name, op.phase, op.module.removeprefix("Net").lstrip(".")) for op in ours.graph.ops] == [
        (op.name, op.phase, op.module) for op in told.graph.ops
    ]
    assert ours.graph.role_bytes == told.graph.role_bytes
    mine, theirs = ours.simulations[0].totals, told.simulations[0].totals
    for quantity in ("flops", "dram_bytes", "kernels", "peak_memory_bytes"):
        assert getattr(mine, quantity) == getattr(theirs, quantity), quantity
    assert ours.workload.name == "Net"
    assert (ours.workload.mode, ours.workload.optimizer) == ("training", "AdamW")
    assert ours.workload.parameters == 64 * 256 + 256 + 256 * 64 + 64 + 2 * 64
    assert ours.capture["device"] == device


def test_several_calls_count_each():
    net, x = nn.Linear(16, 32, bias=False), torch.randn(4, 16)
    with memwall.trace() as t, torch.no_grad():
        for _ in range(3):
            net(x)
    record = t.profile(gpu=["h100", "v100"])
    assert names(record) == ["mm"] * 3
    assert record.flops == 3 * 2 * 4 * 16 * 32
    assert [s.gpu.architecture for s in record.simulations] == ["hopper", "volta"]
    assert record.workload.mode == "inference"
    assert record.workload.inputs == ({"shape": [4, 16], "dtype": "float32"},)


def test_any_code_without_a_module():
    """x read and y written by each of three calls: 2 x 4 kB a call."""
    x = torch.ones(1000)
    with memwall.trace(name="chain") as t:
        y = torch.exp(x)
        y += 1
        y[:500].mul_(2)
    record = t.profile(gpu="h100")
    assert names(record) == ["exp", "add_.Tensor", "mul_.Tensor"]
    assert record.dram_bytes == 8000 + 8000 + 4000
    assert record.workload.name == "chain"
    assert torch.equal(y[:500], (torch.exp(x) + 1)[:500] * 2)
    (output,) = record.graph.outputs
    assert record.graph.values[output].storage == record.graph.values[record.graph.ops[0].outputs[0]].storage


def test_modules_are_named_by_class_and_path_and_several_of_a_class_by_number():
    blocks, head = [Net(), Net()], nn.Sequential(nn.Linear(64, 8), nn.Tanh())
    x = torch.randn(2, 64)
    with memwall.trace() as t:
        for block in blocks:
            x = block(x)
        F.cross_entropy(head(x), torch.zeros(2, dtype=torch.long)).backward()
    modules = {op.module for op in t.profile().graph.ops}
    assert {"Net.0.up", "Net.0.norm", "Net.1.down", "Sequential.0", "Sequential.1", ""} <= modules
    rows = t.profile().to_pandas(by="module")
    assert {"Net.*.up", "Sequential.*"} <= set(rows["module"])


def test_backward_ops_belong_to_the_module_of_their_forward():
    net = Net()
    with memwall.trace() as t:
        net(torch.randn(2, 64)).sum().backward()
    found = [op.module for op in t.profile().graph.ops if op.name == "aten.native_layer_norm_backward"]
    assert found == ["Net.norm"]


def test_a_checkpoint_runs_its_modules_again_in_backward():
    net, x = Net(), torch.randn(2, 64, requires_grad=True)
    with memwall.trace() as t:
        checkpoint(net, x, use_reentrant=False).sum().backward()
    assert names(t.profile(), "backward").count("addmm") == 2


def test_raw_leaves_are_parameters_and_what_was_there_is_an_input():
    w, x = torch.randn(8, 4, requires_grad=True), torch.randn(2, 4)
    with memwall.trace() as t:
        F.linear(x, w).sum().backward()
    record = t.profile()
    sizes = record.graph.role_bytes
    assert (sizes["parameter"], sizes["input"], sizes["gradient"]) == (8 * 4 * 4, 2 * 4 * 4, 8 * 4 * 4)
    assert record.workload.parameters == 32


def test_the_hosts_step_count_is_no_kernel():
    """On CUDA Adam counts its steps on the host, unless it is fused or capturable."""
    net = nn.Linear(8, 8)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.ones(2, 8)).sum().backward()
        with memwall.trace() as t:
            optimizer.step()
    found = t.profile().graph
    assert {op.phase for op in found.ops} == {"optimizer"}
    assert all(any(found.values[i].spec.shape for i in (*op.inputs, *op.outputs)) for op in found.ops)
    assert sum(op.name.startswith("aten._foreach_addcdiv_") for op in found.ops) == 1  # one launch for both tensors


def test_meta_tensors_are_the_devices_and_the_cpus_are_its_hosts():
    x = torch.randn(8, 8, device="meta")
    with memwall.trace() as t:
        torch.ones(100).exp()
        x @ x
    assert names(t.profile()) == ["mm"]


def test_policies_and_a_record(tmp_path):
    x = torch.ones(1000, 1000)
    with memwall.trace() as t:
        torch.relu(x + 1) * 2
    record = t.profile(gpu="a100", policy=["eager", "memwall"])
    eager, fused = record.simulations
    assert (eager.totals.kernels, fused.totals.kernels) == (3, 1)
    assert (eager.totals.dram_bytes, fused.totals.dram_bytes) == (24_000_000, 8_000_000)
    record.save(tmp_path / "t.json")
    assert memwall.Profile.load(tmp_path / "t.json").to_json() == record.to_json()


def test_what_is_still_alive_is_an_output_and_stays_in_memory():
    def run(keep):
        kept = []
        with memwall.trace() as t:
            for _ in range(4):
                y = torch.ones(1000) + 1
                if keep:
                    kept.append(y)
        return t.profile().simulations[0].totals.peak_memory_bytes

    assert run(keep=False) == 8000  # the ones and the sum; before the next round both are gone, but for the name y
    assert run(keep=True) == 4 * 4000 + 4000


def attends():
    """Self-attention and an RMS norm: kernels that a trace lets torch's own stand for."""

    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.RMSNorm(16)

        def forward(self, x):
            return self.norm(self.attention(x, x, x, need_weights=False)[0])

    return Attends()


def recurrent():
    class First(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0]

    return First(16, 8, batch_first=True)


@pytest.mark.parametrize("make", [Net, attends, recurrent])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's own: vmap falls back to a loop
def test_torch_func_gives_its_values_and_knows_the_parameters(make, batched):
    net, x = make(), torch.randn(3, 5, 64 if make is Net else 16)
    weights = dict(net.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(net, weights, (x,)).square().mean()

    gradient = torch.func.grad(loss)
    if batched:
        gradient = torch.func.vmap(gradient, in_dims=(None, 0))
        x = x.unsqueeze(1)
    alone = gradient(weights, x)
    with memwall.trace() as t:
        traced = gradient(weights, x)
    assert all(torch.allclose(alone[name], traced[name], atol=1e-6) for name in alone)
    record = t.profile()
    assert record.workload.parameters == sum(p.numel() for p in net.parameters())
    assert {op.phase for op in record.graph.ops} == {"forward", "backward"}
    assert record.coverage.unmodeled == ()


def test_a_forward_mode_derivative_is_that_of_the_cpu():
    """ATen asks a kernel on meta for a shape, which once made meta the device: one op without FLOPs was left.

    ATen multiplies the tangents of both factors, though that of the weight is zero.
    """
    net, x = nn.Linear(16, 16), torch.randn(4, 16)
    with memwall.trace() as t:
        value, tangent = torch.func.jvp(net, (x,), (x,))
    assert torch.allclose(tangent, x @ net.weight.T, atol=1e-6)
    record = t.profile()
    assert record.capture["device"] == "cpu"
    assert [name for name in names(record) if name in ("addmm", "mm")] == ["addmm", "mm", "mm"]
    assert not {"prims.add", "_has_same_storage_numel"} & set(names(record))
    assert torch.allclose(value, net(x))


def test_an_operator_on_functions_is_refused_in_one_line():
    with memwall.trace(), pytest.raises(UsageError, match="cannot record cond, an operator that takes"):
        torch.ops.higher_order.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(2),))


# -- what is computed stays what it was --------------------------------------------------------------------------------


def grads(*tensors):
    return [t.grad for t in tensors]


def attention():
    q, k, v = (torch.randn(2, 4, 16, 32, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    out.sum().backward()
    return [out, *grads(q, k, v)]


def attention_bf16():
    q, k, v = (torch.randn(2, 4, 16, 32, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    return [out, *grads(q, k, v)]


def encoder():
    layer, x = (nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.randn(2, 8, 32, requires_grad=True))
    out = layer(x)
    out.sum().backward()
    return [out, x.grad, *grads(*layer.parameters())]


def lstm():
    layer, x = nn.LSTM(16, 32, 2, batch_first=True, dropout=0.2), torch.randn(2, 5, 16, requires_grad=True)
    out, (h, c) = layer(x)
    (out.sum() + h.sum()).backward()
    return [out, h, c, x.grad, *grads(*layer.parameters())]


def gru():
    layer, x = nn.GRU(16, 32, bidirectional=True), torch.randn(5, 2, 16)
    out, h = layer(x)
    (out * 2).sum().backward()
    return [out, h, *grads(*layer.parameters())]


def rms_norm():
    layer, x = nn.RMSNorm(32), torch.randn(4, 32, requires_grad=True)
    out = layer(x)
    (out**2).sum().backward()
    return [out, x.grad, layer.weight.grad]


def dropout_and_softmax():
    x = torch.randn(64, 64, requires_grad=True)
    out = F.softmax(F.dropout(x, 0.3), -1)
    (out * out).sum().backward()
    return [out, x.grad, F.softmax(x.detach().half(), -1, dtype=torch.float32), F.one_hot(torch.arange(5) % 3)]


def convolution():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    out = net(torch.randn(2, 3, 16, 16))
    out.sum().backward()
    return [out, net[1].running_mean, *grads(*net.parameters())]


def steps_of(kind, **options):
    net = nn.Linear(8, 8)
    optimizer = kind(net.parameters(), **options)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).pow(2).sum().backward()
        optimizer.step()
    assert optimizer.param_groups[0]["foreach"] is None  # as the caller left it
    return [p.detach().clone() for p in net.parameters()]


def adam():
    return steps_of(torch.optim.Adam, lr=0.1)


def sgd():
    return steps_of(torch.optim.SGD, lr=0.1, momentum=0.9)


def autocast():
    net = nn.Linear(8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(torch.randn(4, 8))
    out.float().sum().backward()
    return [out, net.weight.grad]


def inference_mode():
    net, x = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(4, 8)
    with torch.inference_mode():
        return [net(x)]


def compiled():
    return [torch.compile(nn.Sequential(nn.Linear(8, 8), nn.GELU()), backend="eager")(torch.randn(4, 8))]


def clipped():
    net = nn.Linear(8, 8)
    net(torch.randn(4, 8)).pow(2).sum().backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    return grads(*net.parameters())


#: the code, and a kernel that CUDA runs there
CASES = {
    clipped: "_foreach_norm.Scalar",
    attention: "_scaled_dot_product_efficient_attention_backward",
    attention_bf16: "_scaled_dot_product_cudnn_attention_backward",
    encoder: "_scaled_dot_product_efficient_attention",
    lstm: "_cudnn_rnn_backward",
    gru: "_cudnn_rnn",
    rms_norm: "_fused_rms_norm_backward",
    dropout_and_softmax: "native_dropout_backward",
    convolution: "convolution_backward",
    adam: "_foreach_sqrt",
    sgd: "_foreach_add_.List",
    autocast: "_to_copy",
    inference_mode: "_softmax",
    compiled: "gelu",
}


@pytest.mark.parametrize("code", CASES, ids=lambda code: code.__name__)
def test_values_are_those_of_the_code_alone_and_the_kernels_those_of_cuda(code):
    torch.manual_seed(0)
    alone = code()
    torch.manual_seed(0)
    with memwall.trace() as t:
        traced = code()
    assert all(torch.equal(a, b) for a, b in zip(alone, traced, strict=True))
    record = t.profile()
    assert CASES[code] in names(record)
    assert record.coverage.unmodeled == ()


def test_data_is_not_kept_alive():
    freed = []
    with memwall.trace() as t:
        x = torch.ones(1000)
        for _ in range(3):
            y = x + 1
            weakref.finalize(y.untyped_storage(), freed.append, True)
            del y
            gc.collect()
        assert len(freed) == 3
    assert names(t.profile()) == ["ones", "add.Tensor", "add.Tensor", "add.Tensor"]
    assert len({op.outputs for op in t.profile().graph.ops}) == 4  # three storages, though one address


# -- nothing is left behind --------------------------------------------------------------------------------------------


def test_after_an_exception_nothing_is_patched_and_there_is_no_profile():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    before = (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad, torch.inference_mode.__enter__)
    t = memwall.trace()

    def raising():
        with t:
            net(torch.ones(2, 64)).sum().backward()
            optimizer.param_groups[0]["lr"] = None  # the step raises, behind its pre-hook
            with contextlib.suppress(TypeError):
                optimizer.step()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raising()
    assert (nn.Module.__call__, torch.autograd.backward, torch.autograd.grad, torch.inference_mode.__enter__) == before
    assert optimizer.param_groups[0]["foreach"] is None
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    base = importlib.import_module("torch.optim.optimizer")
    assert not {"cpu", "meta"} & set(base._get_foreach_kernels_supported_devices())
    assert not base._global_optimizer_pre_hooks and not base._global_optimizer_post_hooks
    with pytest.raises(UsageError, match="cut short: the block raised ZeroDivisionError"):
        t.profile()
    with memwall.trace() as after:
        net(torch.ones(2, 64))
    assert {op.phase for op in after.profile().graph.ops} == {"forward"}


def test_traces_cannot_be_nested():
    linear = nn.Linear(2, 2)
    with memwall.trace() as t:
        x = torch.ones(8) + 1
        with pytest.raises(UsageError, match="cannot be nested"), memwall.trace():
            pass
        with pytest.raises(UsageError, match="cannot be nested"):
            memwall.profile(linear, (torch.empty(2, 2),))
        x += 1
    assert names(t.profile()) == ["ones", "add.Tensor", "add_.Tensor"]


def test_inside_a_profiled_model_a_trace_is_refused():
    class Own(nn.Module):
        def forward(self, x):
            with memwall.trace():
                return x + 1

    with pytest.raises(UsageError, match="cannot be nested"):
        memwall.profile(Own(), (torch.ones(2),))


def test_another_thread_waits_its_turn():
    found = []

    def other():
        found.append(memwall.profile(nn.Linear(2, 2), (torch.ones(2, 2),)))

    with memwall.trace() as t:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        assert not found
        torch.ones(8).exp()
    thread.join(60)
    assert found
    assert names(t.profile()) == ["ones", "exp"]


def test_what_another_thread_runs_meanwhile_changes_nothing():
    """It is in a module and in backward while the block calls its own, and its optimizer steps."""
    inside, go_on = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            inside.set()
            go_on.wait(60)
            return gradient

    class Other(nn.Linear):
        def forward(self, x):
            Waits.apply(super().forward(x)).sum().backward()
            return x

    def run():
        other = Other(2, 2)
        optimizer = torch.optim.SGD(other.parameters())
        other(torch.ones(2))
        optimizer.step()

    net = nn.Linear(4, 4)
    with memwall.trace() as t:
        thread = threading.Thread(target=run)
        thread.start()
        assert inside.wait(60)
        net(torch.ones(2, 4))
        go_on.set()
        thread.join(60)
        torch.ones(2) * 2
    record = t.profile()
    assert [(op.name, op.module, op.phase) for op in record.graph.ops] == [
        ("aten.ones", "", "forward"), ("aten.addmm", "Linear", "forward"),
        ("aten.ones", "", "forward"), ("aten.mul.Tensor", "", "forward"),
    ]  # fmt: skip
    assert (record.workload.name, record.workload.optimizer) == ("Linear", None)


def test_wrong_use_says_the_way_out():
    t = memwall.trace()
    with pytest.raises(UsageError, match="not entered yet"):
        t.profile()
    with t, pytest.raises(UsageError, match="still recording"):
        t.profile()
    with pytest.raises(UsageError, match="no PyTorch op ran"):
        t.profile()
    with pytest.raises(UsageError, match="used already"), t:
        pass
    with pytest.raises(UsageError, match="want one of cudnn, flash, efficient, math"):
        memwall.trace(attention="fast")
    with pytest.raises(TypeError, match="unexpected keyword"):
        memwall.trace(nonsense=1)
    with memwall.trace(max_ops=20), pytest.raises(UsageError, match="passed 20 ops"):
        [torch.ones(2) for _ in range(30)]
    with memwall.trace() as t:
        torch.ones(2)
    with pytest.raises(UsageError, match="h10000"):
        t.profile(gpu="h10000")
    assert repr(t) == "<memwall.trace of trace: 1 ops>"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_tensors_are_recorded_as_they_run():
    net, x = Net().cuda(), torch.randn(32, 64, device="cuda")
    with memwall.trace() as t:
        net(x).sum().backward()
    record = t.profile()
    assert record.capture["device"] == "cuda"
    assert names(record).count("addmm") == 2


@pytest.mark.defect("18")
def test_an_average_of_the_weights_is_no_part_of_the_model():
    """Whatever leaf required a gradient and was met counted as a parameter, also a copy that only follows the weights.

    Two layers of 64 x 64 and 64 numbers each, and their average."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).to("meta")
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters())
    with memwall.trace() as trace:
        net(torch.ones(4, 64, device="meta")).sum().backward()
        optimizer.step()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.lerp_(weight, 0.01)
    assert trace.profile(gpu="h100").workload.parameters == 2 * (64 * 64 + 64)
