"""Kernels of linear attention and scans that are assumed to be installed, by hand."""

import json

import pytest

import memwall

pytest.importorskip("transformers.models.qwen3_next", reason="transformers has no Qwen3-Next")

_SIZES = {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 512, "dtype": "bfloat16"}
#: one layer of two key heads and four value heads of 64 numbers, one that attends
QWEN = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "intermediate_size": 256,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 64, "linear_value_head_dim": 64, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"], **_SIZES,
}  # fmt: skip
#: two layers of four heads of 64 numbers with 32 of state each
MAMBA = {
    "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "num_heads": 4, "head_dim": 64, "state_size": 32,
    "n_groups": 2, "expand": 2, "chunk_size": 64, **_SIZES,
}  # fmt: skip
PROMPT, STEP = {"mode": "prefill", "prompt": 256}, {"mode": "decode", "context": 256}
_PACKAGES = ("fla", "mamba_ssm", "causal_conv1d")


@pytest.fixture
def profiled(tmp_path):
    def run(config, assume="kernels=installed", **options):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return memwall.profile(f"hf:{tmp_path}", gpu="h100", batch=2, assume=assume, **options)

    return run


def kernels(made):
    return {
        op.name: cost for op, cost in zip(made.graph.ops, made.costs[0], strict=True)
        if op.name.partition(".")[0] in _PACKAGES
    }  # fmt: skip


@pytest.mark.parametrize(("config", "step", "names"), [
    (QWEN, PROMPT, ["causal_conv1d.causal_conv1d_fn", "fla.chunk_gated_delta_rule"]),
    (QWEN, STEP, ["causal_conv1d.causal_conv1d_update", "fla.fused_recurrent_gated_delta_rule"]),
    (MAMBA, PROMPT, ["causal_conv1d.causal_conv1d_fn", "mamba_ssm.mamba_chunk_scan_combined"]),
    (MAMBA, STEP, ["causal_conv1d.causal_conv1d_update", "mamba_ssm.selective_state_update"]),
])  # fmt: skip
def test_installed_kernels_run_where_transformers_calls_them(profiled, config, step, names):
    made = profiled(config, **step)
    assert list(kernels(made)) == names
    assert not made.coverage.unmodeled
    assert any(note.startswith("assumed: kernels=installed") for note in made.notes)


def test_kimi_linear_runs_kda(profiled):
    pytest.importorskip("transformers.models.kimi_linear", reason="transformers has no Kimi-Linear")
    kimi = {
        "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "intermediate_size": 256,
        "num_attention_heads": 2, "num_key_value_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16,
        "v_head_dim": 32, "qk_nope_head_dim": 32, "num_experts": 4, "num_experts_per_token": 2,
        "num_shared_experts": 1, "moe_intermediate_size": 64, "mlp_layer_types": ["dense", "sparse"],
        "layer_types": ["linear_attention", "full_attention"], "linear_head_dim": 64, "linear_num_heads": 2,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **_SIZES,
    }  # fmt: skip
    assert list(kernels(profiled(kimi, **PROMPT))) == ["causal_conv1d.causal_conv1d_fn", "fla.chunk_kda"]
    assert list(kernels(profiled(kimi, **STEP))) == ["causal_conv1d.causal_conv1d_update", "fla.fused_recurrent_kda"]


def test_the_delta_rule_does_three_products_of_its_state_for_each_token(profiled):
    cost = kernels(profiled(QWEN, **PROMPT))["fla.chunk_gated_delta_rule"]
    # the state times a key, its change, the state times a query: 2 FLOP for each of 4 x 64 x 64 numbers
    assert cost.total_flops == 3 * 2 * (2 * 256) * 4 * 64 * 64


def test_a_scan_of_mamba_2_goes_into_the_state_and_out_of_it(profiled):
    cost = kernels(profiled(MAMBA, **PROMPT))["mamba_ssm.mamba_chunk_scan_combined"]
    assert cost.total_flops == 2 * 2 * (2 * 256) * 4 * 64 * 32


def test_a_decode_reads_and_writes_each_state_once(profiled):
    cost = kernels(profiled(QWEN, **STEP))["fla.fused_recurrent_gated_delta_rule"]
    state = 2 * 4 * 64 * 64 * 4  # float32
    # queries, keys, values and two gates of a value head, in two bytes; the results
    assert cost.read_bytes == state + 2 * 2 * (2 * 2 * 64 + 4 * (64 + 2))
    assert cost.write_bytes == state + 2 * 2 * 4 * 64


@pytest.mark.parametrize(("config", "options", "said"), [
    (QWEN, {"assume": (), **PROMPT}, "run as transformers' own PyTorch"),
    (MAMBA, {"assume": (), **STEP}, "run as transformers' own PyTorch"),
    (MAMBA, {"mode": "training", "seq": 64}, "modeled forward and in 16 bits alone"),
    ({**MAMBA, "dtype": "float32"}, PROMPT, "modeled forward and in 16 bits alone"),
])  # fmt: skip
def test_elsewhere_the_page_says_that_pytorch_runs(profiled, config, options, said):
    made = profiled(config, **options)
    assert not kernels(made)
    assert sum(said in note for note in made.notes) == 1
