"""What the trace records: the CUDA op stream, its phases and modules, and the data flow by storage."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import memwall
from memwall.core.errors import UsageError
from memwall.ops import graph_costs
from tests.unit.one_call import Call


def ops(result, phase=None):
    return [op for op in result.graph.ops if phase is None or op.phase == phase]


def names(result, phase=None):
    return [op.name for op in ops(result, phase)]


class Block(nn.Module):
    """Attention and a two-layer network, with dropout."""

    def __init__(self, width=64, heads=4, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))


def tokens(dtype=torch.bfloat16, width=64):
    return torch.randn(2, 16, width, dtype=dtype)


# -- the caller's things are left alone --------------------------------------------------------------------------------


def test_nothing_of_the_callers_is_changed():
    module, x = Block(), torch.randn(2, 16, 64, requires_grad=True)
    module.eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    memwall.profile(module, (x,), mode="training", dtype="bf16")
    assert not module.training
    assert x.grad is None and all(p.grad is None for p in module.parameters())
    assert all(p.device.type == "cpu" and p.dtype is torch.float32 for p in module.parameters())
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert torch.nn.functional.dropout(torch.ones(4), 0.0).tolist() == [1] * 4  # the overrides are gone
    assert nn.Module.__call__ is nn.Module._wrapped_call_impl


def test_a_module_may_live_on_meta_and_inputs_may_be_keywords():
    with torch.device("meta"):
        module = Block()
    assert names(memwall.profile(module, {"x": tokens(torch.float32)}))[0] == "aten.native_layer_norm"


def test_tied_weights_are_counted_once():
    a, b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
    b.weight = a.weight
    result = memwall.profile(nn.Sequential(a, b), (torch.randn(2, 8),))
    assert result.workload.parameters == 64
    assert result.simulations[0].memory.parameters == 256


# -- phases and modules ------------------------------------------------------------------------------------------------


def test_backward_ops_know_their_phase_and_module():
    result = memwall.profile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), (torch.randn(2, 8),),
                             mode="training", optimizer="sgd:loop")  # fmt: skip
    backward = [(op.name, op.module) for op in ops(result, "backward")]
    assert backward == [
        ("aten.ones_like", ""),
        ("aten.mm", "2"), ("aten.mm", "2"), ("aten.sum.dim_IntList", "2"),
        ("aten.threshold_backward", "1"),
        ("aten.mm", "0"), ("aten.sum.dim_IntList", "0"),
    ]  # fmt: skip
    assert {op.module for op in ops(result, "optimizer")} == {"optimizer"}


def test_a_checkpointed_block_is_run_again_in_backward_under_its_own_name():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 64)
            self.blocks = nn.ModuleList(Block(dropout=0.0) for _ in range(2))

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x

    result = memwall.profile(Net(), (torch.zeros(2, 16, dtype=torch.long),), mode="training", optimizer=None)
    again = [op.module for op in ops(result, "backward") if op.name == "aten.native_layer_norm"]
    assert again == ["blocks.1.norm", "blocks.0.norm"]


def test_a_checkpoint_gives_what_a_norm_saved_once():
    """An RMS norm is one op here, whose backward may ask for its saved tensors once."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.RMSNorm(64), nn.Linear(64, 8)

        def forward(self, x):
            return self.head(checkpoint(self.norm, x, use_reentrant=False))

    result = memwall.profile(Net(), (torch.zeros(2, 64),), mode="training", optimizer=None)
    found = [(op.phase, op.name) for op in result.graph.ops if "rms_norm" in op.name]
    assert found == [
        ("forward", "aten._fused_rms_norm"), ("backward", "aten._fused_rms_norm"),
        ("backward", "aten._fused_rms_norm_backward"),
    ]  # fmt: skip


# -- the CUDA op stream ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gpu", "dtype", "kernel"), [
    ("h100-sxm", torch.bfloat16, "aten._scaled_dot_product_cudnn_attention"),
    ("a100", torch.float16, "aten._scaled_dot_product_flash_attention"),
    ("h100-sxm", torch.float32, "aten._scaled_dot_product_efficient_attention"),  # flash is half precision only
    ("v100", torch.float16, "aten._scaled_dot_product_efficient_attention"),  # flash needs sm_80
    ("v100", torch.float32, "aten._scaled_dot_product_efficient_attention"),
    ("v100", torch.bfloat16, "aten._safe_softmax"),  # no fused kernel for bf16 below sm_80
    ("mi100", torch.float16, "aten._safe_softmax"),
])  # fmt: skip
def test_attention_is_what_the_generation_would_run(gpu, dtype, kernel):
    found = names(memwall.profile(Block(), (tokens(dtype),), dtype=str(dtype)[6:], gpu=gpu))
    assert kernel in found
    assert len([n for n in found if "attention" in n or "softmax" in n]) == 1


def test_gpus_of_two_generations_get_a_graph_each():
    result = memwall.profile(Block(), (tokens(),), dtype="bf16", gpu=["v100", "h100-sxm"])
    assert len(result.graphs) == 2
    kernels = [{k.name for k in s.kernels} for s in result.simulations]
    assert "aten._safe_softmax" in kernels[0] and "aten._scaled_dot_product_cudnn_attention" in kernels[1]


def test_without_attention_one_graph_serves_all():
    assert len(memwall.profile(nn.Linear(8, 8), (torch.randn(2, 8),), gpu=["v100", "h100-sxm"]).graphs) == 1


def test_masked_attention_takes_the_efficient_kernel_and_math_can_be_chosen():
    def masked(q):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(16, 16, dtype=torch.bool, device=q.device))

    q = torch.randn(2, 4, 16, 16, dtype=torch.float16)
    assert "aten._scaled_dot_product_efficient_attention" in names(memwall.profile(Call(masked), (q,), gpu="a100"))
    assert "aten._scaled_dot_product_efficient_attention" not in names(
        memwall.profile(Call(masked), (q,), gpu="a100", attention="math")
    )


def test_multihead_attention_and_dropout_take_their_cuda_forms():
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    found = names(memwall.profile(layer, (tokens(),), dtype="bf16", mode="training", optimizer=None))
    assert found.count("aten.native_dropout") == 3
    assert "aten._scaled_dot_product_flash_attention_backward" in found
    assert not [n for n in found if "bernoulli" in n or "cpu" in n or "mkldnn" in n]


def test_rms_norm_is_one_kernel_each_way():
    net = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64))
    found = names(memwall.profile(net, (torch.randn(4, 64),), mode="training", optimizer=None))
    assert found.count("aten._fused_rms_norm") == found.count("aten._fused_rms_norm_backward") == 1


def test_lstm_is_cudnns_with_flops_by_hand():
    net = nn.LSTM(32, 64, num_layers=2, batch_first=True)
    result = memwall.profile(net, (torch.randn(4, 10, 32),), mode="training", optimizer=None)
    flops = {op.name: c.total_flops for op, c in zip(result.graph.ops, result.costs[0], strict=True)}
    # 4 gates of 64 rows: layer 1 has 32 + 64 columns, layer 2 has 64 + 64; 10 steps of batch 4; 2 FLOP each
    forward = 2 * 4 * 64 * ((32 + 64) + (64 + 64)) * 10 * 4
    # a hidden element of a step: 12 sums in the gates, 3 sigmoids of 3 steps, 2 tanh, 4 in the blend of the states
    gates = 27 * 64 * 2 * 10 * 4
    assert flops["aten._cudnn_rnn"] == forward + gates == 4_587_520 + 138_240
    assert flops["aten._cudnn_rnn_backward"] == 2 * forward + gates


@pytest.mark.parametrize(("optimizer", "found"), [
    ("adamw", "aten._foreach_addcdiv_.ScalarList"),
    ("adamw:fused", "aten._fused_adamw_"),
    ("adam:fused", "aten._fused_adam_"),
    ("sgd", "aten._foreach_add_.List"),
    ("sgd:fused", "aten._fused_sgd_"),
    ("adam:loop", "aten.addcdiv_"),
])  # fmt: skip
def test_optimizers_take_their_multi_tensor_forms(optimizer, found):
    result = memwall.profile(nn.Linear(8, 8), (torch.randn(2, 8),), mode="training", optimizer=optimizer)
    assert found in names(result, "optimizer")
    assert not [op for op in ops(result, "optimizer") if op.name in ("aten.zeros_like", "aten.item")]


def test_adamw_keeps_two_moments_per_parameter():
    result = memwall.profile(nn.Linear(8, 8), (torch.randn(2, 8),), mode="training", optimizer="adamw")
    assert result.graph.role_bytes["optimizer_state"] == 2 * (64 + 8) * 4
    assert result.graph.role_bytes["gradient"] == (64 + 8) * 4


def test_fp32_products_follow_torchs_tf32_switches():
    found = memwall.profile(nn.Sequential(nn.Conv2d(8, 8, 3), nn.Linear(6, 6)), (torch.randn(1, 8, 8, 8),)).graph.ops
    assert [op.attributes.get("allow_tf32") for op in found] == [True, False]


@pytest.mark.defect("39")
def test_convolutions_are_those_of_a_search_where_the_model_asks_for_it(tmp_path, monkeypatch):
    """``torch.backends.cudnn.benchmark`` changed no convolution, though the model of their kernels knows of a search.

    Without one, float32 kernels of a gradient with a stride of 2 run over all 9 taps of the window, with it over the
    9/4 that meet an output. Three quarters of 2 x 64 x 128 x 9 FLOPs for each of 8 x 56 x 56 places are spared, 177 us
    of a V100 at 15.7 TFLOP/s."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    text = """
import torch
def model(): return torch.nn.Sequential(torch.nn.Conv2d(64, 64, 1), torch.nn.Conv2d(64, 128, 3, padding=1, stride=2))
def inputs(batch=8): return (torch.randn(batch, 64, 56, 56),)
"""
    made = []
    for name, said in (("plain", ""), ("searched", "torch.backends.cudnn.benchmark = True")):
        path = tmp_path / f"{name}.py"
        path.write_text(text.replace("import torch", f"import torch\n{said}"), encoding="utf-8")
        made.append(memwall.profile(str(path), gpu="v100-sxm2-16gb", mode="training"))
    ops = [op for op in made[1].graph.ops if op.name.startswith("aten.convolution")]
    assert len(ops) == 4 and all(op.attributes["benchmark"] for op in ops)
    assert ["benchmark" in " ".join(each.notes) for each in made] == [False, True]
    plain_s, searched_s = (each.simulations[0].totals.time_s for each in made)
    spared_s = 3 / 4 * 2 * 64 * 128 * 9 * 8 * 56 * 56 / 15.7e12
    assert plain_s - searched_s > spared_s


# -- autocast ----------------------------------------------------------------------------------------------------------


class Autocast(nn.Module):
    """A region of its own inside."""

    def __init__(self, regional):
        super().__init__()
        self.regional = regional
        self.linear, self.norm = nn.Linear(64, 64), nn.LayerNorm(64)

    def body(self, x):
        return torch.softmax(self.norm(self.linear(self.linear(x))), -1)

    def forward(self, x):
        if not self.regional:
            return self.body(x)
        with torch.autocast("cuda", torch.bfloat16):
            return self.body(x)


@pytest.mark.parametrize("regional", [True, False])
def test_autocast_inserts_cudas_casts(regional):
    result = memwall.profile(Autocast(regional), (torch.randn(4, 64),), autocast=None if regional else "bf16")
    values = result.graph.values
    found = [(op.name, values[op.outputs[0]].spec.dtype) for op in result.graph.ops]
    # the weight and bias are cast once, layer norm and softmax run in fp32
    assert found == [
        ("aten._to_copy", "bfloat16"), ("aten._to_copy", "bfloat16"), ("aten._to_copy", "bfloat16"),
        ("aten.addmm", "bfloat16"), ("aten.addmm", "bfloat16"),
        ("aten._to_copy", "float32"), ("aten.native_layer_norm", "float32"), ("aten._softmax", "float32"),
    ]  # fmt: skip


@pytest.mark.parametrize("convolution", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_autocast_casts_convolutions_that_pad_by_a_word(convolution):
    """``padding="same"`` calls another overload, which on CUDA reaches the one that autocast casts."""
    rank = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[convolution]
    model = nn.Sequential(convolution(4, 4, 3, padding=1), convolution(4, 4, 3, padding="same"))
    result = memwall.profile(model, (torch.randn(2, 4, *rank * [8]),), autocast="fp16")
    made = [result.graph.values[op.outputs[0]].spec.dtype for op in result.graph.ops if "convolution" in op.name]
    assert made == ["float16", "float16"]


def test_autocast_ends_with_its_region():
    memwall.profile(Autocast(True), (torch.randn(4, 64),))
    assert not torch.is_autocast_enabled("cpu")
    assert nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1)).dtype is torch.float32


class Checkpointed(nn.Module):
    """Two blocks that are run again in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_again_under_its_autocast(reentrant):
    result = memwall.profile(Checkpointed(reentrant), (torch.randn(4, 16),), mode="training", optimizer=None,
                             autocast="fp16")  # fmt: skip
    values = result.graph.values
    again = [values[op.outputs[0]].spec.dtype for op in ops(result, "backward") if op.name == "aten.addmm"]
    # the last layer of a block is not needed again where the checkpoint stops early
    assert again == ["float16"] * (4 if reentrant else 2)


def test_cpu_autocast_is_torchs_own_again_after_a_training_step():
    blocks = nn.Sequential(nn.Linear(16, 16), *(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)))
    result = memwall.profile(blocks, (torch.randn(4, 16),), mode="training", autocast="fp16")
    assert result.capture["replayed_blocks"] > 0
    assert not torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


# -- data flow ---------------------------------------------------------------------------------------------------------


def test_views_and_in_place_ops_share_the_storage():
    def function(x):
        y = x + 1
        y[0].mul_(2)  # writes a view of y
        return y.t().contiguous()

    graph = memwall.profile(Call(function), (torch.randn(4, 8),)).graph
    add, mul, clone = graph.ops
    written, scaled, read = (graph.values[add.outputs[0]], graph.values[mul.outputs[0]], graph.values[clone.inputs[0]])
    assert written.storage == scaled.storage == read.storage
    assert mul.inputs == mul.outputs
    assert (scaled.spec.shape, scaled.offset) == ((8,), 0)
    assert read.spec.strides == (1, 8)
    assert graph.storages[written.storage].nbytes == 4 * 8 * 4


def test_freed_storages_are_not_mistaken_for_new_ones():
    def doubled(x):
        for _ in range(50):
            x = x * 2  # each result is freed before the next is made
        return x

    graph = memwall.profile(Call(doubled), (torch.randn(4),)).graph
    assert len({graph.values[op.outputs[0]].storage for op in graph.ops}) == 50


def test_host_tensors_are_not_the_gpus():
    # the two steps live on the host
    net = Call(lambda x: x * float(torch.tensor([1.0, 2.0]).sum()))
    assert names(memwall.profile(net, (torch.randn(4),))) == ["aten.mul.Tensor"]


def test_a_model_that_asks_for_cuda_is_traced_all_the_same():
    def asks(x):
        x = x.cuda()
        return x.to("cuda:0") + torch.arange(4, device="cuda") + torch.zeros(4, device=torch.device("cuda"))

    assert names(memwall.profile(Call(asks), (torch.randn(4),)))[-1] == "aten.add.Tensor"


def test_tensors_say_and_do_what_cuda_tensors_would():
    def step(x):
        assert x.type() == "torch.cuda.FloatTensor" and x.half().type() == "torch.cuda.HalfTensor"
        assert x.type(dtype=torch.float16).dtype is torch.float16
        assert x.cuda(non_blocking=True, memory_format=torch.channels_last).stride() == (32, 1, 8, 2)
        assert x.cuda().stride() == (32, 16, 4, 1) and not x.pin_memory(device="cuda").is_pinned()
        return x + 1

    assert "aten.add.Tensor" in names(memwall.profile(Call(step), (torch.randn(2, 2, 4, 4),)))


@pytest.mark.parametrize(("gpu", "bf16", "tf32"), [
    ("v100", False, False), ("a100", True, True), ("mi250x", True, False), ("mi300x", True, True),
])  # fmt: skip
def test_torch_counts_emulated_bf16_as_supported(gpu, bf16, tf32):
    """As torch/cuda/__init__.py has it: below sm_80 it tries to make a tensor, which works."""

    def step(x):
        assert torch.cuda.is_bf16_supported() and torch.cuda.is_bf16_supported(including_emulation=False) is bf16
        assert torch.cuda.is_tf32_supported() is tf32
        return x + 1

    memwall.profile(Call(step), (torch.randn(4),), gpu=gpu)


def test_gradients_that_the_model_itself_turns_off_are_its_own_error():
    def step(x):
        torch.set_grad_enabled(False)
        x.sum().backward()

    with pytest.raises(UsageError, match="does not require grad"):
        memwall.profile(Call(step), (torch.randn(4, 8, requires_grad=True),))


def test_flex_attention_may_be_imported_in_forward():
    def step(x):
        from torch.nn.attention.flex_attention import flex_attention

        return flex_attention(x, x, x)

    assert "aten.bmm" in names(memwall.profile(Call(step), (torch.randn(2, 4, 16, 16),)))


def test_sparse_gradients_are_traced_by_their_parts():
    net = nn.EmbeddingBag(1000, 16, sparse=True, mode="sum")
    result = memwall.profile(net, (torch.zeros(4, 8, dtype=torch.long),), mode="training",
                             optimizer=lambda p: torch.optim.SGD(p, lr=0.1))  # fmt: skip
    assert result.graph.role_bytes["gradient"] < 1000 * 16 * 4
    (update,) = [c for o, c in zip(result.graph.ops, result.costs[0], strict=True) if o.name == "sparse.add_.Tensor"]
    # 32 ids: a row and a column number of 8 B each and 16 floats; those 32 rows of the table are read and written
    assert (update.read_bytes, update.write_bytes) == (32 * 8 + 2 * 32 * 16 * 4, 32 * 16 * 4)


def test_attention_of_no_chip_is_refused_and_of_no_keys_is_math():
    def flash(x):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(x, x, x)

    with pytest.raises(UsageError, match="only flash attention"):
        memwall.profile(Call(flash), (torch.randn(2, 4, 16, 16),))  # flash attention is half precision only
    none = torch.randn(2, 4, 0, 16, dtype=torch.float16)
    found = names(memwall.profile(Call(F.scaled_dot_product_attention), (none.new_ones(2, 4, 16, 16), none, none)))
    assert "aten.bmm" in found  # sdp_utils.cpp, check_nonzero_sequence_lengths_dense


# -- models whose Python needs data ------------------------------------------------------------------------------------


def branches(x):
    return x * 2 if x.abs().sum() > 0 else x


def counts(x):
    return x[: int(x.sum())]


def bins(x):
    """Calls what torch runs on data alone."""
    return x * torch.histogram(x.flatten(), 4).hist.sum()


def test_data_dependent_python_gets_a_line_and_a_way_out():
    with pytest.raises(UsageError) as caught:
        memwall.profile(Call(bins), (torch.randn(4, 8),))
    message = str(caught.value)
    assert "\n" not in message and "shape function" in message and "--real" in message
    assert "test_trace.py:" in message and "in bins" in message


@pytest.mark.parametrize(
    ("function", "assume", "rows"),
    [(counts, (), 1), (counts, ("number=3",), 3), (lambda x: x * x.flatten().tolist()[0], (), 4)],
)
def test_numbers_that_python_reads_of_activations_are_assumed(function, assume, rows):
    profile = memwall.profile(Call(function), (torch.randn(4, 8),), assume=assume)
    assert profile.graph.values[profile.graph.outputs[0]].spec.shape == (rows, 8)
    assert [note.partition(",")[0] for note in profile.notes] == [f"assumed: {assume[0] if assume else 'number=1'}"]


def test_real_tensors_take_the_branch():
    assert names(memwall.profile(Call(branches), (torch.ones(4, 8),), real=True))[-1] == "aten.mul.Tensor"
    masked = Call(lambda x: x[x > 0.5])
    assert "aten.index.Tensor" in names(memwall.profile(masked, (torch.ones(4, 8),), real=True))


def test_real_tensors_record_the_cuda_form_too():
    real = memwall.profile(Block(), (tokens(),), dtype="bf16", real=True, mode="training", optimizer=None)
    without = memwall.profile(Block(), (tokens(),), dtype="bf16", mode="training", optimizer=None)
    assert [op.name for op in real.graph.ops if op.op_class == "attention"] == [
        op.name for op in without.graph.ops if op.op_class == "attention"
    ]
    assert real.dense_model_flops == without.dense_model_flops


class Aligned(nn.Module):
    """Keeps a mask of constants as a sparse buffer."""

    def __init__(self):
        super().__init__()
        heads = torch.zeros(8, 8, dtype=torch.bool)
        heads[4:] = True
        self.register_buffer("heads", heads.to_sparse(), persistent=False)

    def forward(self, x):
        return x @ self.heads.to_dense().float()


class Fitted(nn.Module):
    """Initialises its weight by least squares."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(256, 16, 8))
        with torch.no_grad():
            self.weight.copy_(torch.linalg.lstsq(torch.rand(256, 32, 16), torch.rand(256, 32, 8)).solution)

    def forward(self, x):
        return x @ self.weight[0]


class FromNumpy(nn.Module):
    """Takes its weight from an array."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8, bias=False)
        self.layer.weight.data = torch.tensor(np.ones((16, 8), dtype=np.float32), requires_grad=True)

    def forward(self, x):
        return self.layer(x)


class Binned(nn.Module):
    """Counts its weights, by an op that has no shape function."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 8, bias=False)
        self.layer.counts = torch.histogram(self.layer.weight.detach(), 4).hist.tolist()

    def forward(self, x):
        return self.layer(x)


@pytest.mark.defect("37")
@pytest.mark.parametrize(
    ("make", "columns", "flops"),  # two FLOP for each row, row's element and column
    [(Aligned, 8, 2 * 4 * 8 * 8), (Fitted, 16, 2 * 4 * 16 * 8), (FromNumpy, 8, 2 * 4 * 8 * 16)],
)
def test_a_constructor_that_computes_is_built_without_data(make, columns, flops):
    """While a module was built, ops of known values had no results of unforeseen length, ops that a step may run had no
    shape functions, and a weight took no data from the host."""
    said = []
    made = memwall.profile(memwall.Workload(make, (torch.randn(4, columns),)), progress=said.append)
    assert made.dense_model_flops == flops
    assert not [line for line in (*said, *made.notes) if "needs data" in line]


@pytest.mark.defect("37")
def test_a_constructor_that_needs_data_is_built_on_the_host_and_the_report_says_so():
    """Only some of torch's words for an op without data led to a second try on the host, so that a constructor with
    any other such op failed."""
    made = memwall.profile(memwall.Workload(Binned, (torch.randn(4, 64),)))
    assert made.simulations[0].totals.flops == 2 * 4 * 64 * 8
    (note,) = made.notes
    assert note.startswith("building the model needs data (aten::histogram") and "built on the host" in note
    assert "test_trace.py:" in note


@pytest.mark.defect("37", "39b")
def test_what_is_too_large_for_the_host_says_what_would_work(monkeypatch):
    """The error of a constructor quoted what torch says about its compiler, cut off, and named no way out."""
    monkeypatch.setattr("memwall.frontend.torch.build._MOST_HOST_BYTES", 1000)
    with pytest.raises(UsageError) as caught:
        memwall.profile(memwall.Workload(Binned, (torch.randn(4, 64),)))  # 2,048 bytes of weights
    message = str(caught.value)
    assert "needs data (aten::histogram" in message and "--real" in message
    assert "torch.compile" not in message and "PT2" not in message and "\n" not in message


def test_an_error_of_the_user_stays_the_users_where_it_speaks_of_meta():
    def model():
        raise RuntimeError("the meta file is missing")

    with pytest.raises(UsageError, match=r"building the model: RuntimeError: the meta file is missing \(at "):
        memwall.profile(memwall.Workload(model, (torch.randn(4),)))


# -- runaway traces ----------------------------------------------------------------------------------------------------


class Loop(nn.Module):
    """A Python loop over time."""

    def forward(self, x):
        for _ in range(10_000):
            x = x + 1
        return x


def test_a_runaway_loop_is_warned_of_and_stopped():
    said = []
    with pytest.raises(UsageError, match=r"passed 1,000 ops.*Python loop.*--max-ops"):
        memwall.profile(Loop(), (torch.randn(4),), max_ops=1000, progress=said.append)
    assert any("250 ops so far" in line for line in said)


# -- costs of the user's own ops ---------------------------------------------------------------------------------------


def test_a_custom_op_is_unmodeled_until_it_has_a_cost():
    @torch.library.custom_op("memwall_unit::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @double.register_fake
    def _(x):
        return torch.empty_like(x)

    net = Call(lambda x: double(x))  # a module is copied, and an op must not be
    result = memwall.profile(net, (torch.randn(256),))
    assert result.coverage.unmodeled == ("memwall_unit.double",)
    assert result.costs[0][0].bytes == 2 * 256 * 4  # charged all the same
    with pytest.raises(UsageError, match=r"memwall_unit\.double"):
        memwall.profile(net, (torch.randn(256),), strict=True)

    @memwall.register_cost("memwall_unit::double", op_class="elementwise")
    def cost(call):
        return call.cost({memwall.Pipe("vector", "float32"): call.need("x").numel})

    result = memwall.profile(net, (torch.randn(256),), strict=True)
    assert (result.flops, result.graph.ops[0].op_class) == (256, "elementwise")
    with pytest.raises(ValueError, match="already"):
        memwall.register_cost("memwall_unit::double")(cost)


def test_pointer_use_of_a_triton_kernel_is_read_off_its_source():
    from memwall.frontend.torch.dispatch.triton_calls import pointer_use

    source = """
    def gather(x_ptr, index_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        rows = tl.load(index_ptr + offsets, mask=offsets < n)
        source = x_ptr + rows
        target = out_ptr + offsets
        for i in range(4):
            tl.store(target, tl.load(source), mask=offsets < n)
            target += BLOCK
        tl.atomic_add(count_ptr, 1)
    """
    reads, writes = pointer_use(source, frozenset(("x_ptr", "index_ptr", "out_ptr", "count_ptr")))
    assert reads == {"x_ptr", "index_ptr", "count_ptr"}
    assert writes == {"out_ptr", "count_ptr"}


# -- what a device would refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16])
def test_products_of_different_dtypes_are_refused_as_on_a_device(dtype):
    with pytest.raises(UsageError, match="one dtype"):
        memwall.profile(nn.Linear(8, 8), (torch.zeros(2, 8, dtype=dtype),))


ON_THE_HOST = torch.ones(8, 8)


def exits(x):
    raise SystemExit(0)


@pytest.mark.parametrize(("function", "dtype", "message"), [
    (lambda x: x @ x, torch.int64, "CUDA has no matmul"),
    (exits, torch.float32, "SystemExit"),
    (lambda x: torch.bincount(x.int()), torch.float32, "--real"),
    (lambda x: torch.where(x > 0, x, ON_THE_HOST), torch.float32, r"device=x\.device"),
])  # fmt: skip
def test_what_cannot_run_so_is_refused_with_the_way_out(function, dtype, message):
    with pytest.raises(UsageError, match=message):
        memwall.profile(Call(function), (torch.zeros(8, 8, dtype=dtype),))


def test_work_in_another_thread_is_not_lost_in_silence():
    import threading

    def elsewhere(x):
        found = []
        worker = threading.Thread(target=lambda: found.append(x.to("meta") * 2))
        worker.start()
        worker.join()
        return found[0]

    said = []
    memwall.profile(Call(elsewhere), (torch.randn(4),), progress=said.append)
    assert any("another thread" in line for line in said)


# -- odd modules -------------------------------------------------------------------------------------------------------


class Holds(nn.Module):
    """Plain attributes that are tensors, lists of tensors, arrays, default dicts."""

    def __init__(self):
        super().__init__()
        import collections

        import numpy

        self.scale = torch.ones(8)
        self.pair = [torch.ones(8), torch.ones(8)]
        self.array = numpy.ones(3)
        self.calls = collections.defaultdict(list)

    def forward(self, x):
        self.calls["x"].append(1)
        return x * self.scale + self.pair[1]


def test_modules_may_hold_tensors_in_plain_attributes():
    assert names(memwall.profile(Holds(), (torch.randn(4, 8),))) == ["aten.mul.Tensor", "aten.add.Tensor"]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weight_norm_of_both_kinds():
    for norm in (torch.nn.utils.weight_norm, torch.nn.utils.parametrizations.weight_norm):
        found = names(memwall.profile(norm(nn.Linear(8, 8)), (torch.randn(4, 8),)))
        assert found[-1] == "aten.addmm"


def test_compiled_modules_are_traced_as_they_run_eagerly():
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled.compile()
    for module in (torch.compile(net), compiled):
        assert names(memwall.profile(module, (torch.randn(4, 8),))) == ["aten.addmm", "aten.relu"]


@pytest.mark.filterwarnings("ignore")
def test_inference_mode_hides_nothing():
    plain = names(memwall.profile(Block(), (tokens(),), dtype="bf16"))
    with torch.inference_mode():
        assert names(memwall.profile(Block(), (tokens(),), dtype="bf16")) == plain
    assert torch.empty(2).is_inference() is False


def test_three_profiles_at_once_leave_torch_as_it_was():
    import threading

    before = nn.Module.__call__
    workers = [threading.Thread(target=memwall.profile, args=(Block(), (torch.randn(2, 16, 64),))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert nn.Module.__call__ is before


def test_assigning_a_number_to_a_slice_is_one_fill_and_adding_to_one_is_one_add():
    def assigned(x):
        y = x + 1
        y[:, 0] = 0.0
        y[:, 1:3] += 1
        return y

    found = names(memwall.profile(Call(assigned), (torch.randn(4, 8),)))
    assert found == ["aten.add.Tensor", "aten.fill_.Scalar", "aten.add_.Tensor"]


def test_outputs_may_be_dataclasses():
    import dataclasses

    @dataclasses.dataclass
    class Out:
        logits: torch.Tensor

    class Net(nn.Linear):
        def forward(self, x):
            return Out(super().forward(x))

    assert "aten.mm" in names(memwall.profile(Net(8, 8), (torch.randn(4, 8),), mode="training"), "backward")


def test_an_optimizer_that_fails_is_an_error_and_not_skipped():
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("out of order")

    with pytest.raises(UsageError, match="out of order"):
        memwall.profile(nn.Linear(4, 4), (torch.randn(2, 4),), mode="training", optimizer=lambda p: Broken(p, lr=0.1))


def test_sparse_adam_reads_the_rows_of_a_sparse_gradient():
    net = nn.Embedding(1000, 8, sparse=True)
    made = memwall.profile(
        net, (torch.zeros(4, 2, dtype=torch.long),), mode="training", optimizer=torch.optim.SparseAdam
    )
    step = [(op, cost) for op, cost in zip(made.graph.ops, graph_costs(made.graph), strict=True)
            if op.phase == "optimizer"]  # fmt: skip
    assert all(cost.modeled for _, cost in step)
    # rows made unique; per average: its rows, the difference, the factor, and their sum into it; the weights' too
    counts = Counter(op.name.removeprefix("sparse.").removeprefix("aten.") for op, _ in step)
    assert (counts["_coalesce"], counts["sparse_mask"], counts["add_.Tensor"]) == (1, 2, 3 + 3)
    # eight rows of eight numbers, their places and sums: no op of the step moves the table of 1000, 32,000 bytes
    assert max(cost.bytes for _, cost in step) < 3 * 4 * 64 + 8 * 8 * 8
    assert made.graph.role_bytes["optimizer_state"] == 2 * 1000 * 8 * 4


def test_adagrad_reads_the_rows_of_a_sparse_gradient():
    net = nn.Embedding(1000, 8, sparse=True)
    found = memwall.profile(net, (torch.zeros(4, 2, dtype=torch.long),), mode="training", optimizer=torch.optim.Adagrad)
    step = [op for op in found.graph.ops if op.phase == "optimizer"]
    assert [op.name for op in step[:2]] == ["sparse._coalesce", "aten.pow.Tensor_Scalar"]
    costs = graph_costs(found.graph)
    assert all(costs[op.id].modeled for op in step)
    # eight rows of eight numbers and their places: no op of the step moves the table of 1000
    assert max(costs[op.id].bytes for op in step) < 2_000
