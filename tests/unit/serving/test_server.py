"""The server policy: what an engine runs in place of a language model's own ops, against hand arithmetic."""

import json
import re

import pytest

import memwall
from memwall.core.errors import UsageError
from memwall.hardware.cluster import cluster_of
from memwall.hardware.engine import ENGINES, EngineHost, engine_host, load_engine
from memwall.serving import read_model, serve
from memwall.serving.engines import AskedPolicy
from memwall.serving.saved import saved
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import EngineStep, Layout, served
from memwall.serving.steps.attention import Attention, Compressed, Index, Latent
from memwall.serving.steps.kernels import Between, Collective, Experts, Product
from tests.unit.configs import LLAMA, SHORT_LLAMA, target_of
from tests.unit.places import shared

pytest.importorskip("transformers", reason="transformers is not installed")

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None, "tie_word_embeddings": False,
    "max_position_embeddings": 32768, "dtype": "bfloat16",
}  # fmt: skip
#: DeepSeek-V3 with its widths and experts, 4 of its 61 layers, the first 3 without experts
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 4, "first_k_dense_replace": 3,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "vocab_size": 129280, "max_position_embeddings": 4096,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
#: DeepSeek-V3.2 with its widths, two layers without experts
SPARSE = DEEPSEEK | {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "num_hidden_layers": 2,
    "first_k_dense_replace": 2, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
#: windows of 128 keys in every other layer, sinks, experts with biases
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 256, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 2048,
    "num_local_experts": 8, "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 4096,
    "layer_types": ["sliding_attention", "full_attention"], "dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """``traced(fields)``: the profile of a decode step, by default of two sequences of 100 tokens; each made once."""
    known = {}

    def trace(fields, mode="decode", **sizes) -> memwall.Profile:
        sizes = sizes or {"batch": 2, "context": 100}
        key = json.dumps((fields, mode, sizes))
        if key not in known:
            target = target_of(tmp_path_factory.mktemp("model"), fields)
            known[key] = memwall.profile(target, mode=mode, gpu="h100", **sizes)
        return known[key]

    return trace


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory):
    return read_model(target_of(tmp_path_factory.mktemp("mixtral"), MIXTRAL))


def of(model, kind):
    return [(kernel, n) for kernel, n in model.kernels if isinstance(kernel, kind)]


def test_a_decode_step_of_llama_3_8b_reads_the_weights_once_and_the_cache_once(traced):
    profile = traced(LLAMA, batch=32, context=4096)
    schedule = profile.schedule(memwall.load_gpu("h100-sxm"), "server")
    # 8,030,261,248 weights but the table of 128,256 x 4,096, of which 32 rows are read; 2 x 8 x 128 numbers of a token
    weights = 2 * (8_030_261_248 - 128_256 * 4096) + 32 * 4096 * 2
    cache = 32 * 4096 * 32 * (2 * 8 * 128 * 2)
    assert (round(weights / 1e9, 2), round(cache / 1e9, 2)) == (15.01, 17.18)
    # activations: two reads and two writes of 4096 a layer and norm, QKV, gate and up; no more than 2 % of it all
    assert weights + cache < schedule.totals.dram_bytes < 1.02 * (weights + cache)
    eager = profile.schedule(memwall.load_gpu("h100-sxm"), "eager").totals
    assert eager.dram_bytes > 2 * schedule.totals.dram_bytes  # the dynamic cache is copied in every step
    # a layer: QKV, attention, its output, gate and up, down, an activation and two norms; embedding's norm and logits
    assert schedule.totals.kernels == 32 * 8 + 2


def test_each_op_is_in_one_group_and_masks_are_prepared(traced):
    profile = traced(GPT_OSS, batch=3, context=300)
    groups = profile.schedule(memwall.load_gpu("h100-sxm"), "server").kernels
    owned = [op for kernel in groups for op in kernel.op_ids]
    assert len(owned) == len(set(owned)) == len(profile.graph.ops)
    masks = [op.id for op in profile.graph.ops if op.name == "aten.where.self"]
    assert masks and all(kernel.launches == 0 for kernel in groups if set(kernel.op_ids) & set(masks))


def test_windows_and_sinks_are_seen(traced):
    model = served(traced(GPT_OSS, batch=2, context=1000).graph)
    windows = {kernel.window: n for kernel, n in of(model, Attention)}
    assert windows == {128: 1, 0: 1}
    assert [(k.heads, k.kv_heads, k.head_size) for k, _ in of(model, Attention)] == [(8, 2, 64)] * 2
    token = 2 * 2 * 64 * 2
    assert model.kv_bytes(1000, Layout()) == (128 + 1000) * token


def test_mixtral_at_batch_1_touches_2_of_8_experts(traced):
    model = served(traced(MIXTRAL).graph)
    ((experts, count),) = of(model, Experts)
    assert (experts.count, experts.top_k, experts.gated, count) == (8, 2, True, 2)
    cost = experts.cost(EngineStep(1, 100), Layout())
    one = 3 * 4096 * 14336 * 2  # an expert's three matrices in bfloat16: 352,321,536 bytes
    assert cost.read_bytes == pytest.approx(2 * one, rel=1e-3)
    assert cost.total_flops == 2 * 2 * 3 * 4096 * 14336


def test_deepseek_holds_576_numbers_of_a_token_and_layer(traced):
    model = served(traced(DEEPSEEK).graph)
    ((latent, count),) = of(model, Latent)
    assert (latent.rank, latent.rope, latent.nope, latent.value, latent.heads, count) == (512, 64, 128, 128, 128, 4)
    assert model.kv_bytes(1, Layout()) == 4_608  # 576 numbers of 2 bytes in each of 4 layers
    assert model.kv_bytes(1, Layout(tp=8)) == model.kv_bytes(1, Layout())  # every GPU holds the latents


#: a decoder that caches the keys and values of 4 heads, which it makes of latents, as DeepSeek's own code does
EXPANDED = """
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv_a, self.norm = nn.Linear(64, 96), nn.Linear(64, 24), nn.LayerNorm(16)
        self.kv_b, self.out = nn.Linear(16, 128, bias=False), nn.Linear(64, 64)

    def forward(self, x, cache):
        batch, new, _ = x.shape
        query = self.q(x).view(batch, new, 4, 24).transpose(1, 2)
        latent, shared = self.kv_a(x).split([16, 8], -1)
        made = self.kv_b(self.norm(latent)).view(batch, new, 4, 32).transpose(1, 2)
        own, value = made.split([16, 16], -1)
        key = torch.cat([own, shared[:, None].expand(-1, 4, -1, -1)], -1)
        key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        seen = torch.arange(key.shape[2]) >= 0
        mask = torch.where(seen, torch.tensor(0.0), -1e9) if MASKED else None
        read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(read.transpose(1, 2).reshape(batch, new, 64)), (key, value)

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.attention, self.head = nn.Embedding(128, 64), Attention(), nn.Linear(64, 128)

    def forward(self, input_ids, past_key_values):
        made, cache = self.attention(self.table(input_ids), past_key_values)
        return {"logits": self.head(made), "past_key_values": cache}

def model():
    return Decoder()

def decode_inputs(batch=2, context=32):
    cache = (torch.randn(batch, 4, context, 24), torch.randn(batch, 4, context, 16))
    return {"input_ids": torch.zeros(batch, 1, dtype=torch.int64), "past_key_values": cache}
"""


@pytest.mark.parametrize("masked", [False, True])
def test_keys_and_values_that_are_made_of_latents_are_held_as_latents(tmp_path, masked):
    """A mask of Python's own numbers is prepared, whatever their dtype."""
    path = tmp_path / "net.py"
    path.write_text(EXPANDED.replace("MASKED", str(masked)), encoding="utf-8")
    model = served(memwall.profile(str(path), mode="decode", gpu="h100", batch=2, context=32).graph)
    ((latent, count),) = of(model, Latent)
    assert (latent.heads, latent.nope, latent.rope, latent.rank, latent.value, count) == (4, 16, 8, 16, 16, 1)
    assert latent.kv_bytes(1, Layout()) == (16 + 8) * 4


def test_all_weights_are_counted_once_and_shared_as_megatron_does(traced):
    profile = traced(LLAMA, batch=32, context=4096)
    model = served(profile.graph)
    held = profile.graph.role_bytes["parameter"]
    assert model.weights_bytes(Layout()) == held == 2 * 8_030_261_248
    splits = {(k.n, k.k): k.split for k, _ in of(model, Product)}
    assert splits == {
        (6144, 4096): "column", (4096, 4096): "row", (28672, 4096): "column", (4096, 14336): "row",
        (128256, 4096): "column",
    }  # fmt: skip
    # norms of 4,096 in bfloat16 are on every GPU
    assert model.weights_bytes(Layout(tp=8)) == pytest.approx(held / 8 + 65 * 4096 * 2 * 7 / 8, rel=1e-6)
    # two all-reduces of b x s x h a layer, and one of the embedding
    (reduced, gathered) = of(model, Collective)
    assert (reduced[0].op, reduced[0].width, reduced[1]) == ("all_reduce", 4096 * 2, 2 * 32 + 1)
    assert (gathered[0].op, gathered[0].width, gathered[1]) == ("all_gather", 128256 * 2, 1)


@pytest.mark.parametrize("fields", [SHORT_LLAMA, MIXTRAL, DEEPSEEK, GPT_OSS])
def test_one_trace_gives_the_bytes_of_any_batch_and_context(traced, fields):
    """The kernels from one small trace cost what those of a trace of the asked size do."""
    longer = {"batch": 2, "context": 700} if fields is GPT_OSS else {}  # than its windows
    model = served(traced(fields, **longer).graph)
    for batch, context in ((1, 130), (64, 2048)):
        again = served(traced(fields, batch=batch, context=context).graph)
        step = EngineStep(batch, batch * context)
        ours, theirs = (sum(n * k.cost(step, Layout()).bytes for k, n in m.kernels) for m in (model, again))
        assert ours == (theirs if batch > 1 else pytest.approx(theirs, rel=1e-7))  # of one sample a choice is a view


def test_a_prompt_runs_the_same_kernels(traced):
    prompt = traced(SHORT_LLAMA, mode="prefill", batch=1, prompt=64)
    model = served(traced(SHORT_LLAMA).graph)
    step = EngineStep(0, 0, ((64, 0),))
    schedule = prompt.schedule(memwall.load_gpu("h100-sxm"), "server")
    planned = sum(kernel.flops for kernel in schedule.kernels)
    assert planned == sum(n * kernel.cost(step, Layout()).total_flops for kernel, n in model.kernels)


def test_an_index_chooses_the_latents_that_are_read(traced):
    """DeepSeek-V3.2: 64 queries of 128 fp8 numbers score every token, and attention reads 2,048 of them."""
    model = served(traced(SPARSE, batch=2, context=4000).graph)
    ((index, count),) = of(model, Index)
    assert (index.heads, index.size, index.top_k, count) == (64, 128, 2048, 2)
    ((latent, _),) = of(model, Latent)
    assert latent.top_k == 2048
    assert model.kv_bytes(1, Layout()) == 2 * (576 * 2 + 128 + 4) == model.kv_bytes(1, Layout(tp=8))
    assert 61 * (576 * 2 + 132) == 78_324  # of all 61 layers
    # every key of 10,000 tokens before and the new one; the 64 queries and their scales; scores out, in, and the chosen
    read = 10_001 * 132 + 64 * 132
    scores = 4 * 10_001
    assert index.cost(EngineStep(1, 10_000), Layout()).bytes == read + scores + scores + 4 * 2048
    # attention of one sequence: latents of 2,048 tokens however long it is
    longer, long = (latent.cost(EngineStep(1, n), Layout()).bytes for n in (100_000, 10_000))
    assert longer == long
    all_of_them = latent.cost(EngineStep(1, 2047), Layout())
    assert all_of_them.bytes == long
    # a prompt of 3,000: the first 2,048 queries see all before, the others 2,048
    pairs = 2048 * 2049 // 2 + 952 * 2048
    prompt = latent.cost(EngineStep(0, 0, ((3000, 0),)), Layout())
    around = 2 * 3000 * 128 * 512 * (128 + 128)
    assert prompt.total_flops == 2 * 128 * pairs * (192 + 128) + around
    assert index.cost(EngineStep(0, 0, ((3000, 0),)), Layout()).total_flops == pytest.approx(
        3000**2 * 128 * 64, rel=1e-3
    )


def test_layers_may_share_an_index(traced):
    """GLM-5.2: some layers attend to what the index of a layer before them has chosen, and keep no keys of one."""
    fields = SPARSE | {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "num_hidden_layers": 4,
        "indexer_types": ["full", "shared", "full", "shared"], "mlp_layer_types": ["dense"] * 4,
    }  # fmt: skip
    model = served(traced(fields, batch=2, context=4000).graph)
    assert [(kernel.top_k, n) for kernel, n in of(model, Latent)] == [(2048, 4)]
    assert model.kv_bytes(1, Layout()) == 4 * 576 * 2 + 2 * 132


def test_a_prompt_with_an_index_runs_the_same_kernels(traced):
    profile = traced(SPARSE, mode="prefill", batch=1, prompt=3000)
    schedule = profile.schedule(memwall.load_gpu("h100-sxm"), "server")
    model, step = served(traced(SPARSE, batch=2, context=4000).graph), EngineStep(0, 0, ((3000, 0),))
    planned = sum(kernel.flops for kernel in schedule.kernels)
    assert planned == sum(n * kernel.cost(step, Layout()).total_flops for kernel, n in model.kernels)


@pytest.mark.parametrize(("version", "measured_per_s"), [("0.10", 4.07), ("0.11", 5.98)])
def test_requests_with_piecewise_and_with_whole_graphs(version, measured_per_s):
    """Ten requests to a mixture of 30B in fp8 on an H100, as vLLM's authors measured them (pull request 25444)."""
    folder = shared("configs/Qwen--Qwen3-30B-A3B-FP8")
    if folder is None:
        pytest.skip("no shared/configs")
    asked = {"concurrency": 10, "requests": 10, "prompt": 1024, "generate": 128, "engine": f"vllm@{version}"}
    (point,) = saved(memwall.serve(f"hf:{folder}", gpu="h100", **asked)).points
    assert point.figure("requests_per_s") == pytest.approx(measured_per_s, rel=0.1)


def test_deepseek_v4_attends_to_entries_of_several_tokens(traced):
    """Two layers of windows alone (128 vectors of 512 numbers in bfloat16, keys and values in one), one with entries of
    4 tokens and an index (keys of 128 numbers in fp8 with a scale of 4 bytes), one with entries of 128; and pairs of
    2 x 512, 2 x 128 and 512 numbers of each token since the last entry, and half of the first of the 4 tokens
    before. A decode of 32,768 tokens reads the window and 512 entries, or all 256, once for all 64 heads: two FLOPs for
    each number of query and key, of weight and value."""
    folder = shared("configs/deepseek-ai--DeepSeek-V4-Flash")
    if folder is None:
        pytest.skip("the configuration is not at hand")
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"num_hidden_layers": 4}
    model = served(traced(fields, batch=2, context=4095).graph, context=4095)
    n = 1 << 20
    entries = n // 4 * (512 * 2 + 128 + 4) + n // 128 * 512 * 2
    opened = (3 + 4 / 2) * 2 * (2 * 512 + 2 * 128) * 2 + 127 * 2 * 512 * 2
    assert model.kv_bytes(n, Layout()) == model.kv_bytes(n, Layout(tp=8)) == 4 * 128 * 512 * 2 + entries + opened
    assert model.token_bytes(n, Layout()) == (512 * 2 + 128 + 4) // 4 + 512 * 2 // 128
    costs = {(kernel.ratio, n): kernel.cost(EngineStep(1, 32_767), Layout()) for kernel, n in of(model, Compressed)}
    seen = {(0, 2): 128, (4, 1): 128 + 512, (128, 1): 128 + 256}
    assert {key: cost.total_flops for key, cost in costs.items()} == {
        key: keys * 64 * 2 * 2 * 512 for key, keys in seen.items()
    }
    for key, keys in seen.items():  # and queries, results and the new vector
        assert costs[key].read_bytes - keys * 512 * 2 == pytest.approx(64 * 512 * 2, rel=0.02)
    (index, _), *none = of(model, Index)
    assert (index.ratio, index.heads, index.size, index.top_k, none) == (4, 64, 128, 512, [])
    experts = {(kernel.count, kernel.top_k) for kernel, _ in of(model, Experts)}
    assert experts == {(256, 6)}  # by a table of tokens in the first three layers


def test_other_models_have_no_server(tmp_path):
    (tmp_path / "net.py").write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\ndef inputs():\n    return (torch.zeros(2, 8),)\n",
        encoding="utf-8",
    )
    with pytest.raises(UsageError, match="the server policy is of steps with a cache; profile with --mode prefill"):
        memwall.profile(tmp_path / "net.py", gpu="h100", policy="server")


@pytest.mark.defect("39b")
def test_experts_that_no_server_runs_are_refused_in_words():
    """A mixture in float32, as a configuration without a dtype is, was an internal error of memwall serve."""
    experts = Experts(hidden=64, inter=128, count=4, top_k=2, gated=True, dtype="float32")
    with pytest.raises(UsageError, match=r"experts in float32: cast the model first \(--dtype bfloat16\)"):
        experts.weights_bytes(Layout())


def steps_of(model, layout):
    gpu = memwall.load_gpu("h100-sxm")
    return GpuSteps(model, gpu, layout, cluster_of(gpu) if layout.gpus > 1 else None)


def test_groups_with_sequences_of_their_own_each_decode_their_part(traced):
    """Without experts a group never waits for another; each holds all weights and the cache of its sequences."""
    model = served(traced(SHORT_LLAMA).graph)
    one, four = steps_of(model, Layout()), steps_of(model, Layout(dp=4))
    assert four.step_s(16, 16 * 1000) == pytest.approx(one.step_s(4, 4 * 1000))
    assert four.step_s(0, 0, [(500, 0)] * 4) == pytest.approx(one.step_s(0, 0, [(500, 0)]))
    assert four.weights_bytes == one.weights_bytes
    assert four.kv_bytes(1600) == one.kv_bytes(1600) / 4  # of a sequence, on average over the GPUs


def test_experts_have_the_tokens_of_all_groups_and_send_them(traced):
    model = served(traced(MIXTRAL).graph)
    ((experts, count),) = of(model, Experts)
    layout = Layout(dp=4, ep=4)
    whole, parted = experts.weights_bytes(Layout()), experts.weights_bytes(layout)
    assert parted == whole / 4
    # 64 tokens choose 2 of 8 experts: 128 rows, a quarter of them on each GPU
    assert experts.cost(EngineStep(64, 0), layout).total_flops == 32 * 2 * 3 * 4096 * 14336
    steps = steps_of(model, layout)
    alone_s = steps.prediction(experts, EngineStep(64, 0)).time_s
    moved_s = 2 * 64 * 4096 * 2 * 3 / 4 / 450e9  # out and back, three quarters of them, at the rate of NVLink 4
    taken = steps.by_kind(EngineStep(64, 64 * 100))
    assert taken["Experts"] == pytest.approx(count * alone_s)
    assert count * moved_s < taken["Collective"] < count * (moved_s + 2 * 15e-6)  # and the latency of each


def test_experts_may_have_the_kernels_of_another_engine(traced):
    ((experts, _),) = of(served(traced(MIXTRAL).graph), Experts)
    layouts = Layout(engine="trtllm"), Layout(engine="trtllm", experts_engine="sglang")
    assert [experts.cost(EngineStep(64, 0), layout).launches[0].engine for layout in layouts] == ["trtllm", "sglang"]


def test_prompts_are_dealt_to_parts_by_their_tokens():
    """The rest of a prompt and a whole one were two alike: of two stages one had the rest, and no one the other."""
    rest, whole = (192, 8000), (8000, 0)
    assert EngineStep(0, 0, (rest, whole)).fullest(2).prefills == (whole,)
    assert EngineStep(0, 0, (rest, whole, rest)).fullest(2).tokens == 8000
    assert EngineStep(5, 500, ((300, 0),) * 3 + ((500, 0),)).fullest(2) == EngineStep(3, 300, ((500, 0), (300, 0)))


def test_stages_work_on_as_many_parts_of_the_batch(traced):
    model = served(traced(SHORT_LLAMA).graph)
    one, two = steps_of(model, Layout()), steps_of(model, Layout(pp=2))
    sent_s = two.step_s(64, 64 * 1000) - one.step_s(32, 32 * 1000)
    assert 32 * 4096 * 2 / 450e9 < sent_s < 100e-6  # 32 rows of 4,096 numbers go to the other stage
    assert two.weights_bytes == one.weights_bytes // 2
    assert two.kv_bytes(1600) == one.kv_bytes(1600) / 2


@pytest.mark.parametrize("layout", [{"pp": 2}, {"dp": 2}])
def test_stages_and_groups_make_and_draw_what_as_many_replicas_do(tmp_path, layout):
    """Long prompts that are cut: two stages made 6 times the tokens of two replicas, and drew twice what they do."""
    model, load = read_model(target_of(tmp_path, SHORT_LLAMA), tokens=4200), {"prompt": 4096, "generate": 64}
    apart, two = (
        serve(model, gpu="h100", concurrency=16, token_budget=4096, **load, **each).points[0].candidate
        for each in (layout, {"replicas": 2})
    )
    assert apart.run.tokens_per_s == pytest.approx(two.run.tokens_per_s, rel=0.02)
    assert apart.watts_per_gpu == pytest.approx(two.watts_per_gpu, rel=0.02)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ep": 3, "tp": 3}, "3 GPUs do not divide 32 heads; --tp 2 does"),
        ({"ep": 3, "dp": 3}, "3 GPUs do not divide 8 experts; --ep 2 does"),
        ({"ep": 4, "tp": 2}, "--ep 4 does not divide the 2 GPUs of --tp 2 and --dp 1; --ep 2 does"),
        ({"pp": 3}, "3 stages are more than the 2 layers; --pp 2 is the most"),
        ({"dp": 0}, "--dp 0: want 1 or more"),
    ],
)
def test_layouts_that_cannot_be_are_refused_in_one_line(mixtral, options, why):
    with pytest.raises(UsageError, match=re.escape(why)):
        serve(mixtral, gpu="h100", concurrency=1, **options)


def test_nodes_between_which_times_are_linear_are_close_to_the_times_themselves(traced):
    model = served(traced(MIXTRAL).graph)
    steps = steps_of(model, Layout())
    for step in (EngineStep(61, 61 * 1111), EngineStep(203, 203 * 999, ((733, 0), (411, 3777)))):
        assert steps.step_s(step.decodes, step.context_tokens, step.prefills) == pytest.approx(
            sum(steps.by_kind(step).values()), rel=0.02
        )


def test_a_verification_reads_each_cache_once(traced):
    """32 sequences of 4,096 tokens verify 4 drafts: keys and values of 4,101 tokens of 8 heads of 128 in bfloat16, read
    by one kernel in less than twice the time of plain decodes, and 5 rows of logits of each sequence."""
    model = served(traced(SHORT_LLAMA).graph)
    plain, verify = EngineStep(32, 32 * 4096), EngineStep(32, 32 * 4096, (), 5)
    attention, head = of(model, Attention)[0][0], next(k for k, _ in of(model, Product) if k.of_sequences)
    found = attention.cost(verify, Layout())
    assert len(found.launches) == len(attention.cost(plain, Layout()).launches)
    cache, queries = 32 * 4101 * 2 * 8 * 128 * 2, 32 * 5 * 32 * 128 * 2
    assert found.read_bytes == pytest.approx(cache + queries, rel=0.01)
    steps = steps_of(model, Layout())
    assert steps.kernel_s(attention, plain) < steps.kernel_s(attention, verify) < 2 * steps.kernel_s(attention, plain)
    assert sum(head.cost(verify, Layout()).flops.values()) == 2 * (5 * 32) * 4096 * 128256


def test_a_verification_of_latents_attends_to_the_latents(traced):
    """Drafts of DeepSeek-V3 are verified as decodes are, on 576 numbers a token, without keys of all heads."""
    model = served(traced(DEEPSEEK).graph)
    latent, _ = of(model, Latent)[0]
    found = latent.cost(EngineStep(8, 8 * 4096, (), 3), Layout())
    weights = 2 * latent.weights_bytes(Layout())
    assert found.read_bytes < 8 * 4099 * 576 * 2 + 3 * weights
    scores = 2 * 8 * 3 * 128 * 4099 * (576 + 512)
    assert scores < sum(found.flops.values()) < 1.1 * scores


def test_a_module_that_guesses_is_a_layer_with_experts_and_the_head(traced):
    """DeepSeek-V3's MTP module, but for the product that joins its two inputs, in bfloat16: the head, of 129,280 rows
    of 7,168, runs again and is held once, with the model."""
    layer = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    experts = (256 + 1) * 3 * 7168 * 2048 + 7168 * 256
    model = served(traced(DEEPSEEK | {"first_k_dense_replace": 1}, batch=2, context=512).graph)
    guessing = model.guessing()
    assert guessing.weights_bytes(Layout()) == pytest.approx(2 * (layer + experts), rel=1e-4)
    head = sum(kernel.weights_bytes(Layout()) for kernel, _ in of(guessing, Product) if kernel.n == 129280)
    assert head == 2 * 7168 * 129280
    assert guessing.kv_bytes(100, Layout()) == 100 * 576 * 2


def test_shared_experts_run_next_to_the_others(traced):
    """Gate and up, the activation and down of DeepSeek's shared expert need nothing of the routed ones."""
    model = served(traced(DEEPSEEK).graph)
    beside = [(kernel.n, kernel.k) for kernel, _ in of(model, Product) if kernel.beside]
    assert sorted(beside) == [(4096, 7168), (7168, 2048)]
    (router,) = (kernel for kernel, _ in of(model, Product) if kernel.n == 256)
    assert router.dtype == "bfloat16" and not router.beside  # the model itself routes in float32


def test_an_all_reduce_of_the_engines_own_makes_the_norm_behind_it(traced):
    """On one GPU a norm takes microseconds; behind an all-reduce of 8 KB rows only its bytes, until NCCL sends them."""
    model = served(traced(SHORT_LLAMA).graph)
    norm = next(k for k, n in model.kernels if isinstance(k, Between) and k.columns == 4096 and n > 1)
    alone, shared_by_2 = steps_of(model, Layout()), steps_of(model, Layout(tp=2))
    few, many = EngineStep(4, 400), EngineStep(2048, 204800)  # 32 KB and 16 MB
    assert alone.kernel_s(norm, few) > 2e-6 > shared_by_2.kernel_s(norm, few)
    assert shared_by_2.kernel_s(norm, many) == alone.kernel_s(norm, many)


def test_the_cpu_of_an_engine_adds_to_steps_and_bounds_those_without_a_graph(traced):
    model = served(traced(SHORT_LLAMA).graph)
    plain, slow = steps_of(model, Layout()), steps_of(model, Layout())
    slow.host = EngineHost("slow", step_s=0.002, launch_s=0.01)
    assert slow.step_s(4, 400) == pytest.approx(plain.step_s(4, 400) + 0.002)
    kernels = sum(n for _, n in model.kernels)
    assert slow.step_s(0, 0, [(1024, 0)]) == pytest.approx(kernels * 0.01 + 0.002)
    assert [engine_host(name).name for name in ENGINES] == list(ENGINES)


def test_an_engine_takes_longer_for_each_sequence_and_by_a_factor_for_kernels(traced):
    model = served(traced(SHORT_LLAMA).graph)
    plain, slow = steps_of(model, Layout()), steps_of(model, Layout())
    slow.host = EngineHost("slow", step_s=0.002, sequence_s=1e-5, kernels_factor=3)
    assert slow.step_s(4, 400) == pytest.approx(3 * plain.step_s(4, 400) + 0.002 + 4e-5)
    assert slow.decodes([4], [100])[0] == [pytest.approx(slow.step_s(4, 400))]


def test_a_draft_has_the_factor_of_kernels_and_none_of_the_cpu(traced):
    model = served(traced(SHORT_LLAMA).graph)
    plain, slow = steps_of(model, Layout()), steps_of(model, Layout())
    slow.host = EngineHost("slow", step_s=0.002, sequence_s=1e-5, kernels_factor=3)
    assert slow.guessing(model).step_s(4, 400) == pytest.approx(3 * plain.step_s(4, 400))


def test_attention_that_lies_between_graphs_waits_for_the_cpu(traced):
    """So many launches more in a step of decodes; a prompt that no graph holds launches every kernel either way."""
    model = served(traced(SHORT_LLAMA).graph)
    whole, apart = steps_of(model, Layout()), steps_of(model, Layout())
    whole.host = apart.host = EngineHost("slow", launch_s=0.01)
    apart.attention_apart = True
    layers = sum(n for _, n in of(model, Attention))
    assert apart.step_s(4, 400) == pytest.approx(whole.step_s(4, 400) + layers * 0.01)
    assert apart.decodes([4], [100])[0] == [pytest.approx(apart.step_s(4, 400))]
    assert apart.step_s(0, 0, [(1024, 0)]) == whole.step_s(0, 0, [(1024, 0)])


def test_what_is_not_asked_of_a_scheduler_is_the_engines():
    """An H100 of vLLM 0.12: ``get_batch_defaults``."""
    found = AskedPolicy().of(load_engine("vllm@0.12"), memwall.load_gpu("h100-sxm"), Layout())
    assert (found.max_batch, found.token_budget, found.mixed, found.captured[-1]) == (1024, 8192, True, 512)


@pytest.mark.parametrize(
    ("engine", "asked", "mixed", "cut"),
    [("vllm", None, True, True), ("trtllm", None, True, False), ("sglang", None, False, False),
     ("sglang", "chunked", True, True), ("trtllm", "chunked", True, True), ("vllm", "apart", False, False)],
)  # fmt: skip
def test_prompts_run_as_the_engine_does_by_itself_or_as_asked(engine, asked, mixed, cut):
    """vLLM's V1 scheduler cuts prompts, enable_chunked_prefill of TensorRT-LLM is off, SGLang does not mix chunks."""
    found = AskedPolicy(prefill=asked).of(load_engine(engine), memwall.load_gpu("h100-sxm"), Layout())
    assert (found.mixed, found.cut) == (mixed, cut)


def test_an_asked_budget_bounds_the_sequences_that_an_engine_takes():
    """600 tokens hold 200 sequences of three verified tokens, which is less than 1,024."""
    found = AskedPolicy(token_budget=600).of(load_engine("vllm"), memwall.load_gpu("h100-sxm"), Layout(), verified=3)
    assert found.max_batch == 200
