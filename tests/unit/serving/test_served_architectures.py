"""Architectures that people serve, cut short: prefill and decode run, and the cache of a token is what hand says."""

import json
from dataclasses import replace

import pytest

import memwall
from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpu
from memwall.serving.saved import saved
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import Layout, served
from memwall.serving.steps.kernels import Between, Collective, Experts
from memwall.serving.tower import TOWER_ATTENTION, as_attended

pytest.importorskip("transformers", reason="transformers is not installed")

CONTEXT = 300
_COMMON = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048, "max_position_embeddings": 4096, "dtype": "bfloat16",
    "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
#: keys and values of a token in a layer: 2 of 2 heads of 32 in bfloat16
TOKEN = 2 * 2 * 32 * 2
_EXPERTS = {"num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


def _config(kind: str, architecture: str, **more):
    return {"model_type": kind, "architectures": [architecture], **_COMMON, **more}


#: name -> (configuration, bytes of the cache of one sequence of so many tokens)
MODELS = {
    "Llama-3": (_config("llama", "LlamaForCausalLM"), lambda n: 4 * n * TOKEN),
    # chunks of 64 tokens in all layers but each fourth; experts in each second layer
    "Llama-4": (
        _config("llama4_text", "Llama4ForCausalLM", attention_chunk_size=64, intermediate_size_mlp=512,
                interleave_moe_layer_step=2, **_EXPERTS),
        lambda n: (3 * min(n, 64) + n) * TOKEN,
    ),
    "Qwen3": (_config("qwen3", "Qwen3ForCausalLM"), lambda n: 4 * n * TOKEN),
    "Qwen3-MoE": (_config("qwen3_moe", "Qwen3MoeForCausalLM", **_EXPERTS), lambda n: 4 * n * TOKEN),
    "Mistral": (_config("mistral", "MistralForCausalLM", sliding_window=None), lambda n: 4 * n * TOKEN),
    "Mistral with a window": (
        _config("mistral", "MistralForCausalLM", sliding_window=128), lambda n: 4 * min(n, 128) * TOKEN,
    ),
    "Mixtral": (_config("mixtral", "MixtralForCausalLM", sliding_window=None, **_EXPERTS), lambda n: 4 * n * TOKEN),
    # five layers of six have a window: of four, the first four
    "Gemma-3": (
        _config("gemma3_text", "Gemma3ForCausalLM", sliding_window=96, num_hidden_layers=6),
        lambda n: (5 * min(n, 96) + n) * TOKEN,
    ),
    "GPT-OSS": (
        _config("gpt_oss", "GptOssForCausalLM", sliding_window=128, **_EXPERTS,
                layer_types=["sliding_attention", "full_attention"] * 2,
                quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}),
        lambda n: 2 * (min(n, 128) + n) * TOKEN,
    ),
    # a latent of 64 numbers and a rotated key of 16
    "DeepSeek-V3": (
        _config("deepseek_v3", "DeepseekV3ForCausalLM", num_key_value_heads=8, head_dim=16, q_lora_rank=96, n_group=2,
                kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, first_k_dense_replace=1,
                n_routed_experts=8, n_shared_experts=1, topk_group=1, num_experts_per_tok=2, moe_intermediate_size=128),
        lambda n: 4 * n * (64 + 16) * 2,
    ),
    # windows of 64 tokens, whose vectors of 32 numbers are keys and values; entries of 4 and of 128 tokens next to
    # them, and pairs of 2 x 32 and of 32 numbers of each token since the last; for those of 4 an index has a key of
    # 16 numbers in fp8 with a scale, and pairs of 2 x 16; of the 4 tokens before, half of each pair is part of the next
    # entry
    "DeepSeek-V4": (
        {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"], "hidden_size": 256,
         "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 64,
         "vocab_size": 2048,
         "qk_rope_head_dim": 16, "o_groups": 2, "o_lora_rank": 64, "sliding_window": 64, "index_n_heads": 4,
         "index_head_dim": 16, "index_topk": 8, "compress_ratios": [0, 4, 128, 4], "moe_intermediate_size": 128,
         "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "num_hash_layers": 1, "hc_mult": 4,
         "max_position_embeddings": 4096, "dtype": "bfloat16", "pad_token_id": 0, "scoring_func": "sqrtsoftplus",
         "rope_theta": 10000, "compress_rope_theta": 160000},
        lambda n: 4 * min(n, 64) * 32 * 2 + 2 * (n // 4 * (32 * 2 + 16 + 4) + (3 + 4 / 2) * 2 * (2 * 32 + 2 * 16) * 2)
        + n // 128 * 32 * 2 + 127 * 2 * 32 * 2,
    ),
    "Phi-4": (_config("phi3", "Phi3ForCausalLM"), lambda n: 4 * n * TOKEN),
    # 16 heads of 32 x 64 states in float32, and the columns before the newest, 3 of 512 + 2 x 64 channels
    "Mamba-2": (
        _config("mamba2", "Mamba2ForCausalLM", num_heads=16, head_dim=32, state_size=64, n_groups=1, conv_kernel=4,
                expand=2, chunk_size=32),
        lambda n: 4 * (4 * 16 * 32 * 64 + 2 * 3 * (512 + 2 * 64)),
    ),
    # as Mamba-2, with attention in one layer of four
    "Bamba": (
        _config("bamba", "BambaForCausalLM", mamba_n_heads=16, mamba_d_head=32, mamba_d_state=64, mamba_n_groups=1,
                mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=32, attn_layer_indices=[2]),
        lambda n: 3 * (4 * 16 * 32 * 64 + 2 * 3 * (512 + 2 * 64)) + n * TOKEN,
    ),
    # 1,500 columns of sound, whatever is said, and the text
    "Whisper": (
        {"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 256,
         "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
         "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "num_mel_bins": 80, "max_source_positions": 1500,
         "max_target_positions": 448, "vocab_size": 2048, "is_encoder_decoder": True, "dtype": "bfloat16",
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
        lambda n: 3 * 2 * (1500 + n) * 256 * 2,
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_the_cache_of_a_token(save, name):
    """A sample may miss that transformers keeps the cache of another architecture in another form."""
    fields, held = MODELS[name]
    decode = memwall.profile(save(fields), mode="decode", batch=2, context=CONTEXT, policy=["eager", "server"])
    model = served(decode.graph, context=CONTEXT)
    for tokens in (50, CONTEXT, 1000):
        assert model.kv_bytes(tokens, Layout()) == held(tokens)
    assert model.weights_bytes(Layout()) == decode.graph.role_bytes["parameter"]
    eager, server = (schedule.totals for schedule in decode.simulations)
    assert server.dram_bytes < eager.dram_bytes and server.kernels < eager.kernels
    # the server reads all weights but the table, of which rows are gathered, and both sequences' caches
    assert server.dram_bytes > 2 * held(CONTEXT)


@pytest.mark.parametrize(
    ("kind", "architecture", "more", "widths"),
    [
        ("minimax_m2", "MiniMaxM2ForCausalLM", _EXPERTS, [8]),
        ("olmo2", "Olmo2ForCausalLM", {}, [8]),
        ("qwen3", "Qwen3ForCausalLM", {}, []),
    ],
)
def test_norms_over_all_heads_are_summed_over_the_gpus(save, kind, architecture, more, widths):
    """Queries and keys have a sum of squares in float32 each; Qwen3 has a norm for each head, whole on its GPU."""
    kernels = memwall.serving.read_model(save(_config(kind, architecture, **more))).served.kernels
    found = [(kernel.width, n) for kernel, n in kernels if isinstance(kernel, Collective) and kernel.op == "all_reduce"]
    assert [(width, n) for width, n in found if width != 2 * 256] == [(width, 4) for width in widths]


def test_a_module_that_guesses_is_a_layer_with_a_whole_cache(save):
    """Of Bamba's layers of states and one of attention the latter, of Gemma's six the one without a window: query, key,
    value and output of 8, 2, 2 and 8 heads of 32, and three products of 256 by 512."""
    for name, cache in (("Bamba", TOKEN), ("Gemma-3", TOKEN)):
        decode = memwall.profile(save(MODELS[name][0]), mode="decode", batch=2, context=CONTEXT)
        guessing = served(decode.graph, context=CONTEXT).guessing()
        assert guessing.kv_bytes(1000, Layout()) == 1000 * cache
        products = 256 * 32 * (8 + 2 + 2 + 8) + 3 * 256 * 512
        assert guessing.weights_bytes(Layout()) == pytest.approx(2 * products, rel=0.01), name  # and norms


def test_a_server_moves_the_rows_of_chosen_experts_alone(save):
    """Llama-4 in transformers copies each token's row, 256 numbers in bfloat16, for all experts, scales the copies and
    adds them up. Between the kernels of a server stand a few such rows; buffers are those of 8,192 tokens."""
    fields, _ = MODELS["Llama-4"]
    decode = memwall.profile(save(fields | {"num_local_experts": 64}), mode="decode", batch=2, context=CONTEXT)
    model = served(decode.graph, context=CONTEXT)
    (experts,) = {kernel for kernel, _ in model.kernels if isinstance(kernel, Experts)}
    assert (experts.count, experts.top_k, experts.hidden, experts.inter) == (64, 2, 256, 512)
    between = [kernel for kernel, _ in model.kernels if isinstance(kernel, Between) and not kernel.of_sequences]
    assert max(kernel.read_bytes + kernel.write_bytes for kernel in between) < 16 * 256 * 2
    assert GpuSteps(model, load_gpu("h100")).reserved_bytes < (2 << 30) + 8192 * 16 * 256 * 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_fills_the_cache(save, name):
    fields, held = MODELS[name]
    if name == "DeepSeek-V4":
        pytest.skip("the server policy reads its decode steps alone")
    prompt = memwall.profile(save(fields), mode="prefill", batch=2, prompt=CONTEXT, policy=["eager", "server"])
    eager, server = (schedule.totals for schedule in prompt.simulations)
    assert server.kernels < eager.kernels
    # what is left after the step: a window's layers keep what the prompt made until the next step cuts it
    assert prompt.graph.role_bytes["kv_made"] >= 2 * held(CONTEXT) * 0.99


#: a tower of two layers of 32 numbers in two heads, which makes 16 patches of 8 x 8 of an image of 32 x 32
LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "bfloat16",
    "text_config": {"model_type": "llama", **{k: v for k, v in _config("llama", "").items() if "arch" not in k}},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64,
                      "patch_size": 8, "image_size": 32, "num_attention_heads": 2,
                      "num_hidden_layers": 2, "projection_dim": 32},
    "image_token_index": 1,
}  # fmt: skip


def test_images_in_front_of_a_model_are_not_billed_and_said(save):
    found = memwall.serve(save(LLAVA), gpu="h100", prompt=64, generate=8, concurrency=2)
    assert found.model.fronts == ("images",)
    assert "images and what encodes them are not billed" in saved(found).requests


@pytest.fixture(scope="module")
def pictured(tmp_path_factory):
    """The server of a model with a tower, without images and with three in each request."""
    folder = tmp_path_factory.mktemp("llava")
    (folder / "config.json").write_text(json.dumps(LLAVA))
    load = {"gpu": "h100", "prompt": 64, "generate": 8, "concurrency": 1}
    return [memwall.serve(f"hf:{folder}", **load, **more) for more in ({}, {"images": 3})]


def test_images_are_tokens_in_front_of_a_prompt(pictured):
    text, images = pictured
    # an image is 4 x 4 patches, each of which is a token
    assert images.model.media.tokens == 3 * 16
    load = images.points[0].workload
    assert (load.prompt.least, load.prompt.most, text.points[0].workload.prompt.most) == (64 + 48, 64 + 48, 64)


def test_a_request_waits_for_its_tower(pictured):
    images = pictured[1]
    tower_s = images.points[0].steps.tower_s
    assert tower_s > 0
    first = [saved(found).points[0].figure("ttft_s") for found in pictured]
    assert first[1] - first[0] >= tower_s
    said = saved(images).media
    assert said.startswith("3 images as 48 tokens for each request; the tower takes ") and said.endswith("on h100-sxm")
    assert "not billed" not in saved(images).requests


def test_a_tower_attends_in_one_call_of_a_layer_by_the_kernel_of_the_engine(pictured):
    tower = pictured[1].model.media.tower
    attended = [(cost, n) for cost, n in tower.costs if any(hasattr(work, "head_size") for work in cost.launches)]
    # two heads of 16 numbers over 16 patches and a class token, for three images, in two layers; CLIP's last layer too
    ((cost, count),) = attended
    (work,) = cost.launches
    assert (count, work.batch, work.heads, work.queries, work.head_size, work.pairs) == (2, 3, 2, 17, 16, 17 * 17)
    kernels = {
        (engine, gpu): as_attended(cost, memwall.load_gpu(gpu), engine).launches[0].kernel
        for engine in ("vllm", "sglang", "trtllm") for gpu in ("l40s", "h100-sxm", "b200", "b300")
    }  # fmt: skip
    # kernel_source of aic_encoder_attention.csv, on l40s, h100-sxm, b200 and b300
    taken = {
        engine: [kernel for (asked, _), kernel in kernels.items() if asked == engine] for engine in TOWER_ATTENTION
    }
    assert taken == {
        "vllm": ["flash", "flash3", "flash4", "flash4"], "sglang": ["triton", "flash3", "flash4", "triton"],
        "trtllm": ["trtllm"] * 4,
    }  # fmt: skip


def test_the_weights_of_a_tower_are_counted_once(pictured):
    text, images = pictured
    assert images.points[0].weights_bytes == text.points[0].weights_bytes
    # whole on each of two GPUs, where other tables are shared
    tower = images.model.media.tower
    layout = replace(images.points[0].layout, tp=2)
    apart = images.model.served.weights_bytes(layout) - text.model.served.weights_bytes(layout)
    assert apart == pytest.approx(tower.weight_bytes / 2, abs=1)


@pytest.mark.parametrize(("fields", "asked", "why"), [
    ("text", {"images": 1}, "reads no images"),
    (LLAVA, {"image": "32x32"}, "--image is the size of --images"),
    (LLAVA, {"images": 1, "prefix_hit": 0.5}, "--images with --prefix-hit"),
])  # fmt: skip
def test_images_that_cannot_be_billed_are_refused(save, fields, asked, why):
    target = save(_config("llama", "LlamaForCausalLM") if fields == "text" else fields)
    with pytest.raises(UsageError, match=why):
        memwall.serve(target, gpu="h100", prompt=64, generate=8, concurrency=1, **asked)
