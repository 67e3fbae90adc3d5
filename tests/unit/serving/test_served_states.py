"""Layers with a state of constant size: which they are, and what a server's kernels of them do, by hand."""

import pytest

import memwall
from memwall.hardware.engine import EngineHost
from memwall.ops import linear_attention as linear
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import EngineStep, Layout, served
from memwall.serving.steps.kernels import Collective, Product
from memwall.serving.steps.plan import ServedKernels
from memwall.serving.steps.states import DeltaRule, Scan

#: Gated DeltaNet with 4 heads of queries and keys and 8 of values, 16 numbers each
QWEN = {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "vocab_size": 512,
    "layer_types": ["linear_attention", "full_attention"], "linear_conv_kernel_dim": 4, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "dtype": "bfloat16",
}  # fmt: skip
#: Mamba-2 with 16 heads of 32 numbers, 64 of state and two groups of heads
MAMBA = {
    "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": 256, "num_hidden_layers": 2,
    "num_heads": 16, "head_dim": 32, "state_size": 64, "n_groups": 2, "conv_kernel": 4, "expand": 2, "chunk_size": 32,
    "vocab_size": 512, "dtype": "bfloat16",
}  # fmt: skip


def layer(save, fields, kind):
    """The kernel of that kind in a decode step."""
    traced = memwall.profile(save(fields), mode="decode", batch=2, context=64)
    (found,) = {kernel for kernel, _ in served(traced.graph, context=64).kernels if isinstance(kernel, kind)}
    return found


def test_a_step_of_the_delta_rule_has_its_heads(save):
    found = layer(save, QWEN, DeltaRule)
    assert (found.keys, found.heads, found.key_size, found.value_size) == (4, 8, 16, 16)
    assert (found.channels, found.taps) == (2 * 4 * 16 + 8 * 16, 4)


def test_a_step_of_mamba_2_has_its_heads_and_groups(save):
    found = layer(save, MAMBA, Scan)
    assert (found.heads, found.size, found.state, found.groups) == (16, 32, 64, 2)
    assert (found.channels, found.taps) == (16 * 32 + 2 * 2 * 64, 4)


DELTA = DeltaRule(
    state_bytes=0, read_bytes=0, write_bytes=0, weight_bytes=0, heads=32, channels=8192, taps=4, dtype="float32",
    keys=16, key_size=128, value_size=128,
)  # fmt: skip


def test_gpus_share_the_heads():
    """Half of 32 states of 128 x 128 float32 numbers a sequence, and half of 8192 channels with a window of three."""
    cost = DELTA.cost(EngineStep(8, 8 * 1000), Layout(tp=2))
    states, windows = 8 * 16 * 128 * 128 * 4, 2 * 8 * 4096 * 4
    assert cost.write_bytes == states + 2 * 8 * 16 * 128 + windows
    assert [work.kind for work in cost.launches] == ["conv_update", "state_triton"]


@pytest.mark.parametrize(
    ("engine", "kernels"),
    [
        ("vllm", ["conv_tiles", "delta_fused"]),
        ("sglang", ["conv_tiles", "delta_triton", "delta_triton"]),
        ("trtllm", ["conv_rows", "delta_triton", "delta_triton"]),
    ],
)
def test_engines_have_kernels_of_their_own_for_prompts(engine, kernels):
    cost = DELTA.cost(EngineStep(0, 0, ((1000, 0), (3000, 0))), Layout(engine=engine))
    assert [work.kind for work in cost.launches] == kernels
    # as two prompts of 2000 tokens
    assert cost.total_flops == 2 * 2000 * 6 * linear.Heads(16, 32).state


def test_a_step_of_both_takes_both():
    both, token, prompt = (
        DELTA.cost(step, Layout())
        for step in (EngineStep(4, 400, ((100, 0),)), EngineStep(4, 400), EngineStep(0, 0, ((100, 0),)))
    )
    assert both.bytes == token.bytes + prompt.bytes


#: Kimi-Linear: KDA with 4 heads of 16 numbers, and latent attention
KIMI = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "hidden_size": 128, "vocab_size": 2048,
    "pad_token_id": 0,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 256,
    "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "linear_head_dim": 16,
    "linear_num_heads": 4, "linear_conv_kernel_dim": 4, "mlp_layer_types": ["dense", "dense"],
    "layer_types": ["linear_attention", "full_attention"], "dtype": "bfloat16",
}  # fmt: skip


def test_kda_has_a_gate_for_each_number_of_a_key(save):
    found = layer(save, KIMI, DeltaRule)
    assert (found.keys, found.heads, found.gates) == (4, 4, 16)
    assert layer(save, QWEN, DeltaRule).gates == 1
    one, many = (linear.delta_decode(8, linear.Heads(4, 4, 16, 16, gates)) for gates in (1, 16))
    assert many.read_bytes - one.read_bytes == 8 * 4 * 15 * 2


def test_gpus_share_the_columns_of_the_second_of_two_matmuls_in_a_row(save):
    """The forget gate of KDA, 128 x 16 and 16 x 64: each GPU has the first whole, and no message is needed before the
    sums of the layers, two each, and of the table."""
    traced = memwall.profile(save(KIMI), mode="decode", batch=2, context=64)
    kernels = served(traced.graph, context=64).kernels
    splits = {(each.k, each.n): each.split for each, _ in kernels if isinstance(each, Product)}
    assert (splits[128, 16], splits[16, 64], splits[64, 128]) == ("whole", "column", "row")
    assert sum(n for each, n in kernels if isinstance(each, Collective) and each.op == "all_reduce") == 5


def test_a_gated_shared_expert_is_added_before_the_sums_of_gpus(save):
    """Two sums a layer and one of the table: the gate multiplies the share of each GPU."""
    traced = memwall.profile(save(QWEN | {"linear_num_value_heads": 16}), mode="decode", batch=2, context=64)
    kernels = served(traced.graph, context=64).kernels
    assert sum(n for each, n in kernels if isinstance(each, Collective) and each.op == "all_reduce") == 5


def test_sglang_multiplies_by_each_weight_of_a_recurrences_input():
    """Weights of 128 and 64 columns and 32 rows, for 4 tokens in bfloat16: two matmuls read the tokens twice."""
    kernel, step = Product(n=192, k=32, dtype="bfloat16", parts=(128, 64)), EngineStep(4, 400)
    apart, merged = (kernel.cost(step, Layout(engine=engine)) for engine in ("sglang", "vllm"))
    assert (len(apart.launches), len(merged.launches)) == (2, 1)
    assert apart.read_bytes == merged.read_bytes + 4 * 32 * 2 == 2 * (192 * 32 + 2 * 4 * 32)
    assert apart.write_bytes == merged.write_bytes == 2 * 4 * 192


def test_the_cpu_launches_seven_kernels_of_a_delta_rule_for_a_prompt():
    """The convolution, five kernels that take chunks and one that walks along them; of a decode two."""
    rule = DeltaRule(
        state_bytes=0, read_bytes=0, write_bytes=0, weight_bytes=0, heads=4, channels=1024, taps=4, dtype="float32",
        keys=2, key_size=128, value_size=128,
    )  # fmt: skip
    host, gpu = EngineHost("", launch_s=1.0), memwall.load_gpu("h100-sxm")
    steps = GpuSteps(ServedKernels(((rule, 3),), 0), gpu, Layout(engine="sglang"), host=host, captured=0)
    assert (steps.step_s(1, 64), steps.step_s(0, 0, ((64, 0),))) == (3 * 2, 3 * 7)
