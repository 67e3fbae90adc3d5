"""The DRAM bytes of a decode step of models with states and indices, by hand: 8 sequences of 4096 tokens with the new
ones, layers as wide as published and a few of each kind. A matmul moves its three matrices in bfloat16; norms add the
residual, and write the sum and what the next layer reads. The expected experts are whole ones. What a new token adds to
a cache of keys is read with the others, and its write is not counted."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from memwall.serving.model import read_model
from memwall.serving.steps import EngineStep, Layout
from memwall.serving.steps.kernels import Between, Product

BATCH, CONTEXT = 8, 4096


def moved(target):
    """Bytes that the kernels of the step read and write."""
    model = read_model(target, tokens=CONTEXT + 1)
    step, layout = EngineStep(BATCH, BATCH * (CONTEXT - 1)), Layout(weights=model.scheme)
    return sum(n * kernel.cost(step, layout).bytes for kernel, n in model.served.kernels)


def product(k, n):
    return 2 * (k * n + BATCH * (k + n))


def norm(width, reads, writes, weight):
    """Rows of ``width`` numbers that are read and written, and the weight in so many bytes each."""
    return 2 * BATCH * width * (reads + writes) + weight * width


def beginning(hidden, weight):
    """Rows of the table are gathered by indices of 8 bytes, kept, and normed."""
    return norm(hidden, 1, 2, weight) + 8 * BATCH


def ending(hidden, vocabulary):
    """The head, and the next token: logits are read, written and read in float32, and a sum over them is written."""
    return product(hidden, vocabulary) + BATCH * vocabulary * (2 + 4 + 4)


def network(hidden, inter, gated=True):
    """Up and down, and the activation between them."""
    columns = inter * (1 + gated)
    return product(hidden, columns) + 2 * BATCH * (columns + inter) + product(inter, hidden)


def experts(active, matrices, hidden, inter):
    """Weights of so many experts, and the rows in and out."""
    return 2 * active * matrices * hidden * inter + 2 * 2 * BATCH * hidden


def choice(scores, chosen, itemsize, bias):
    """Scores and their bias are read; an index of 8 bytes and a weight are written for each expert that is chosen."""
    return BATCH * (scores * itemsize + chosen * (8 + itemsize)) + bias * scores


def state(heads, numbers, channels, tokens):
    """Read and written: states in float32 and the three inputs of a convolution before the newest one; its weights; its
    input and result; what the recurrence reads of a token; and its result."""
    windows, weights = 2 * BATCH * 3 * channels * 2, 4 * channels * 2
    return 2 * BATCH * heads * numbers * 4 + windows + weights + 2 * BATCH * (2 * channels + tokens)


def cached(heads, kv_heads, size):
    """Keys and values of all sequences, queries and results."""
    return 2 * BATCH * (CONTEXT * kv_heads * 2 * size + 2 * heads * size)


def latent(heads, read, more=0):
    """The two products of absorbed attention with 128 numbers of a head and 512 of the latent, and attention to so many
    latents of 576 numbers, with as many indices of four bytes as ``more``."""
    sides = 2 * 2 * (heads * 128 * 512 + BATCH * heads * (128 + 512))
    return sides + 2 * BATCH * (read * 576 + heads * (576 + 512)) + 4 * BATCH * more


#: Qwen3-Next-80B-A3B, one block of four layers
QWEN = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 151936, "dtype": "bfloat16",
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "intermediate_size": 5632, "tie_word_embeddings": False,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}  # fmt: skip


def test_qwen3_next(save):
    """512 (1 - (502/512)^8) = 75 experts. Norms have weights of 1 + w, in float32. Gates of the delta rule are a
    product of their own, as is the gate of the shared expert, whose sigmoid the sum of both reads."""
    recurrence = 2 * 16 * 128 + 32 * (128 + 2) + 32 * 128  # queries, keys; values and two gates a head; result
    linear = product(2048, 8192 + 4096) + product(2048, 2 * 32) + state(32, 128 * 128, 8192, recurrence)
    linear += norm(4096, 2, 1, 0) + 2 * 128
    full = product(2048, 2 * 4096 + 2 * 512) + cached(16, 2, 256) + norm(4096, 2, 1, 0)  # gated
    after = product(4096, 2048) + norm(2048, 2, 2, 4) + network(2048, 512) + product(2048, 512) + product(2048, 1)
    after += choice(512, 10, 2, 0) + experts(75, 3, 2048, 512)
    sums = 3 * norm(2048, 3, 2, 4) + norm(2048, 3, 1, 4) + 4 * 2 * BATCH
    assert moved(save(QWEN)) == beginning(2048, 4) + 3 * linear + full + 4 * after + sums + ending(2048, 151936)


#: Kimi-Linear-48B-A3B, one layer of each kind
KIMI = {
    "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 2304, "vocab_size": 163840,
    "num_hidden_layers": 3, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 9216,
    "moe_intermediate_size": 1024, "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "linear_head_dim": 128,
    "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["linear_attention", "linear_attention", "full_attention"], "dtype": "bfloat16",
}  # fmt: skip


def test_kimi_linear(save):
    """256 (1 - (248/256)^8) = 57 experts. KDA has a gate for each number of a key, by two matmuls of rank 128, as has
    its result."""
    recurrence = 2 * 32 * 128 + 32 * (128 + 128 + 1) + 32 * 128
    kda = product(2304, 3 * 4096 + 128) + product(2304, 32) + product(2304, 128) + 2 * product(128, 4096)
    kda += state(32, 128 * 128, 3 * 4096, recurrence) + norm(4096, 2, 1, 0) + 4 * 128 + product(4096, 2304)
    mla = product(2304, 32 * 192 + 576) + latent(32, CONTEXT) + product(4096, 2304)
    sparse = product(2304, 256) + choice(256, 8, 4, 2) + experts(57, 3, 2304, 1024) + network(2304, 1024)
    layers = 2 * kda + mla + network(2304, 9216) + 2 * sparse
    norms = 4 * norm(2304, 2, 2, 2) + norm(2304, 3, 2, 2) + norm(2304, 3, 1, 2)
    assert moved(save(KIMI)) == beginning(2304, 2) + layers + norms + ending(2304, 163840)


#: Nemotron 3 Nano, four layers: Mamba-2, experts, Mamba-2, attention
NEMOTRON = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688, "num_hidden_layers": 4,
    "hybrid_override_pattern": "MEM*", "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
    "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
    "chunk_size": 128, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "n_shared_experts": 1, "moe_shared_expert_intermediate_size": 3712, "mlp_hidden_act": "relu2", "n_group": 1,
    "topk_group": 1, "vocab_size": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "max_position_embeddings": 262144, "intermediate_size": 1856, "use_conv_bias": True,
}  # fmt: skip


def test_nemotron_h(save):
    """128 (1 - (122/128)^8) = 41 experts of two matrices each. Weights of norms are cast to float32."""
    recurrence = 64 * (64 + 1) + 2 * 8 * 128 + 64 * 64  # input and time step, B and C, result
    mamba = product(2688, 4096 + 6144 + 64) + state(64, 64 * 128, 6144, recurrence)
    mamba += norm(4096, 2, 1, 2) + product(4096, 2688)
    attention = product(2688, 4096 + 2 * 256) + cached(32, 2, 128) + product(4096, 2688)
    sparse = product(2688, 128) + choice(128, 6, 4, 2) + experts(41, 2, 2688, 1856) + network(2688, 3712, gated=False)
    norms = 2 * norm(2688, 2, 2, 4) + norm(2688, 3, 2, 4) + norm(2688, 2, 1, 4)
    expected = beginning(2688, 4) + 2 * mamba + attention + sparse + norms + ending(2688, 131072)
    assert moved(save(NEMOTRON)) == expected


#: DeepSeek-V3.2, one layer of each kind
DEEPSEEK = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 7168,
    "num_hidden_layers": 2, "first_k_dense_replace": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "n_group": 8, "topk_group": 4, "vocab_size": 129280, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "max_position_embeddings": 163840,
}  # fmt: skip


def test_deepseek_v32(save):
    """57 of 256 experts. An index of 64 heads reads the keys of all tokens, 128 fp8 numbers and a scale, and writes a
    float32 score of each, which the choice of 2048 reads; their places are int32."""
    index = product(1536, 64 * 128) + product(7168, 128 + 64) + 132 * BATCH * (CONTEXT + 64)
    index += 2 * 4 * BATCH * CONTEXT + 4 * BATCH * 2048
    attention = product(7168, 1536 + 576) + norm(1536, 1, 1, 2) + product(1536, 128 * 192) + index
    attention += latent(128, 2048, more=2048) + product(16384, 7168)
    sparse = product(7168, 256) + choice(256, 8, 4, 4) + experts(57, 3, 7168, 2048) + network(7168, 2048)
    norms = 3 * norm(7168, 2, 2, 2) + norm(7168, 3, 1, 2)
    expected = beginning(7168, 2) + 2 * attention + network(7168, 18432) + sparse + norms + ending(7168, 129280)
    assert moved(save(DEEPSEEK)) == expected


#: gpt-oss-120b, one layer of each kind
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 128,
    "num_experts_per_tok": 4, "vocab_size": 201088, "attention_bias": True, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "dtype": "bfloat16", "pad_token_id": 199999,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip
#: bytes of an expert: three matrices of four bits a number, and a scale of eight bits for each 32
GPT_OSS_EXPERT = 3 * 2880 * 2880 * (4 + 8 / 32) // 8


def test_gpt_oss(save):
    """128 (1 - (124/128)^8) = 29 experts. One layer attends to 128 tokens. Biases and sinks are no part of a step."""
    product_bytes = product(2880, (64 + 2 * 8) * 64) + product(4096, 2880) + product(2880, 128)
    windowed = 2 * BATCH * (128 * 8 * 2 * 64 + 2 * 64 * 64)
    layers = 2 * (product_bytes + choice(128, 4, 2, 0) + 29 * GPT_OSS_EXPERT + 2 * 2 * BATCH * 2880)
    norms = 3 * norm(2880, 2, 2, 2) + norm(2880, 2, 1, 2)
    expected = beginning(2880, 2) + layers + windowed + cached(64, 8, 64) + norms + ending(2880, 201088)
    assert moved(save(GPT_OSS)) == expected


def test_weights_of_gpt_oss_are_in_memory_once(save):
    """36 layers of 128 experts; queries, keys, values, results and a router; norms, and the table and the head. Biases
    of all matmuls but the head's, and a sink for each head. The model's card has 60.8 GiB."""
    sizes = 2 * (2880 * 5120 + 4096 * 2880 + 2880 * 128) + 2 * 2 * 2880
    biases = 2 * (5120 + 2880 + 128) + 2 * 64 + 128 * 2 * (2 * 2880 + 2880)
    by_hand = 36 * (128 * GPT_OSS_EXPERT + sizes + biases) + 2 * (2 * 201088 * 2880 + 2880)
    fields = {**GPT_OSS, "num_hidden_layers": 36, "layer_types": GPT_OSS["layer_types"] * 18}
    model = read_model(save(fields), tokens=CONTEXT + 1)
    assert model.served.weights_bytes(Layout(weights=model.scheme)) == by_hand
    assert by_hand == pytest.approx(60.8 * 2**30, rel=1e-3)


#: DeepSeek-V4-Flash, a layer whose entries stand for 4 tokens and one whose entries stand for 128
DEEPSEEK_V4 = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 4096,
    "num_hidden_layers": 2, "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
    "vocab_size": 129280, "qk_rope_head_dim": 64, "o_groups": 8, "o_lora_rank": 1024, "sliding_window": 128,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "compress_ratios": [4, 128],
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 6,
    "num_hash_layers": 0, "hc_mult": 4, "max_position_embeddings": 65536, "dtype": "bfloat16", "pad_token_id": 0,
    "scoring_func": "sqrtsoftplus", "rope_theta": 10000, "compress_rope_theta": 160000,
}  # fmt: skip


#: a rotary table in bfloat16, of 64 numbers for each of the two sequences that are traced
TABLE = 2 * 2 * 64


def entries(products, entry, positions, ratio):
    """A token's numbers of both products are written, and they or as many others read twice; its part of an entry is
    written. The bias of each position and a norm's weight are read, and two tables."""
    tokens = 2 * BATCH * (3 * sum(products) + entry // ratio)
    return sum(product(4096, n) for n in products) + tokens + 2 * (positions + 512) + 2 * TABLE


def window(seen):
    """64 heads attend to 128 tokens, the new one, and entries so often seen, whose one vector is key and value."""
    return 2 * BATCH * (512 * (128 + 1 + seen) + 2 * 64 * 512)


def test_deepseek_v4(save):
    """44 of 256 experts. Four streams of the hidden size are normed in float32, and 24 sums of them say how they are
    mixed (base and scales are 27 numbers): into what a block reads, and to which its results are added by 4 weights. At
    the end 4 sums, with 5 numbers in float32. 1,024 entries of 4 tokens are scored and 512 attended to; of 128 there
    are 32. Results are turned back; 8 groups of 8 heads have a matrix each, whose results are put in order. The places
    of entries are not counted where attention reads them."""
    streams, row = 4 * 4096, 2 * BATCH * 4096
    spread = BATCH * (2 + 4) * streams  # streams, and normed in float32
    weights = 4 * (24 * streams + BATCH * (streams + 24))
    mixed = 2 * BATCH * streams + 2 * BATCH * 4  # and the weights of what will be added
    before = weights + BATCH * (2 * streams + 4 * 24) + 2 * (4096 + 27) + row + mixed
    hyper = 2 * 2 * (before + mixed + row + spread) + 2 * row  # of two layers; the shared expert's results, too
    begin = row + 8 * BATCH + spread
    end = 4 * (4 * streams + BATCH * (streams + 4)) + BATCH * (2 * streams + 4 * 4) + 2 * 4096 + 4 * 5 + row
    queries = product(4096, 1024 + 512) + norm(1024, 1, 1, 2) + product(1024, 64 * 512)
    back = 2 * 2 * BATCH * 64 * 512 + TABLE
    grouped = 2 * (8 * 4096 * 1024 + BATCH * 8 * (4096 + 1024)) + 2 * 2 * BATCH * 8192 + product(8192, 4096)
    index = product(1024, 64 * 128) + product(4096, 64) + 132 * BATCH * (1024 + 64)
    index += 2 * 4 * BATCH * 1024 + 4 * BATCH * 512
    sparse = entries((2048, 512), 512 + 128, 4 * 1024, 4) + index + window(512)
    heavy = entries((1024,), 512, 128 * 512, 128) + window(32)
    mixture = product(4096, 256) + choice(256, 6, 2, 2) + experts(44, 3, 4096, 2048) + network(4096, 2048)
    layers = 2 * (queries + back + grouped + mixture) + sparse + heavy
    assert moved(save(DEEPSEEK_V4)) == begin + hyper + layers + end + ending(4096, 129280)


@pytest.mark.parametrize(
    ("gpus", "weights", "read"),
    [
        (1, "", 2 * (8192 * 4096 + BATCH * 8 * 4096)),
        (2, "", 2 * (4096 * 4096 + BATCH * 4 * 4096)),
        (1, "fp8", 8192 * 4096 + 2 * BATCH * 8 * 4096 + 8 * 4),  # rows are cast first; a scale for each matrix
    ],
    ids=["one", "shared", "fp8"],
)
def test_groups_of_a_product_read_numbers_of_their_own(gpus, weights, read):
    grouped = Product(n=8192, k=4096, dtype="bfloat16", split="column", groups=8)
    cost = grouped.cost(EngineStep(BATCH, BATCH * CONTEXT), Layout(tp=gpus, weights=weights))
    assert (cost.read_bytes, cost.total_flops) == (read, 2 * BATCH * 4096 * 8192 // gpus)


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """The kernels of a decode step of DeepSeek-V4."""
    folder = tmp_path_factory.mktemp("v4")
    (folder / "config.json").write_text(json.dumps(DEEPSEEK_V4))
    return [kernel for kernel, _ in read_model(f"hf:{folder}", tokens=CONTEXT + 1).served.kernels]


def test_what_entries_of_deepseek_v4_are_made_of_is_one_product(compressed):
    """Values and weights of two entries of 512 numbers, of two index keys of 128, and of one entry of 512."""
    made = {k.n for k in compressed if isinstance(k, Product) and k.k == 4096 and k.split == "whole"}
    assert {2 * 2 * 512, 2 * 2 * 128, 2 * 512} <= made


def test_a_step_of_deepseek_v4_makes_its_part_of_an_entry(compressed):
    """Each token leaves the 2,560 or 1,024 numbers of its products, which are read again for its entries. A quarter of
    512 + 128 numbers, or 4 of 512, are written for each token."""
    found = {(k.read_bytes, k.write_bytes) for k in compressed if isinstance(k, Between) and k.itemsize == 1}
    assert found == {(2 * 2 * 2560, 2 * (2560 + 160)), (2 * 2 * 1024, 2 * (1024 + 4))}
