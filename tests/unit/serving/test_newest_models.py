"""The newest model types of transformers, with the sizes that their classes have of themselves: each is served, or
refused in a line, and no kernel is left out in silence."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from memwall.core.errors import UsageError
from memwall.frontend.targets import resolve
from memwall.serving.model import read_model
from memwall.serving.steps import EngineStep, Layout
from memwall.serving.steps.attention import Attention, Index
from memwall.serving.steps.kernels import Experts

#: text models whose files in transformers are of 2026 and that no configuration of a deployed model is of -> what the
#: refusal says, empty for what is served
TYPES = {
    "axk1": "", "axk2": "", "bailing_hybrid": "", "beam": "", "cohere2_moe": "", "dots3_note_text": "",
    "exaone_moe": "", "flint": "is of no kind that the server policy models", "gemma4_unified_text": "",
    "granite_swa": "", "granitemoe_swa": "", "hrm_text": "is of no kind that the server policy models", "hy_v3": "",
    "hy_v4": "", "hyperclovax": "", "inkling2_text": "the operands of a matmul must have one dtype",
    "inkling_text": "is of no kind that the server policy models", "internlm3": "", "iquestcoder": "",
    "kimi_linear": "", "kolibri1": "", "laguna": "", "lfm3": "", "mellum": "", "minicpm3": "", "minimax_m3_vl_text": "",
    "olmo_hybrid": "",
    "qwen4_exp_text": "unsupported operand type", "solar_open": "", "youtu": "",
    "zaya": "is of no kind that the server policy models",
}  # fmt: skip


def default(kind, save, **fields):
    """The configuration of a type with its own sizes, but for some fields."""
    if kind not in CONFIG_MAPPING_NAMES:
        pytest.skip(f"this transformers has no {kind}")
    config = CONFIG_MAPPING[kind](**fields)
    return save({**config.to_dict(), "architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]], "dtype": "bfloat16"})


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", TYPES)
def test_a_new_model_is_served_or_refused_in_a_line(save, kind):
    """What no kernel reads is at most the tables of embeddings and norms of keys: an expert or a layer that is not seen
    would be there, too."""
    target = default(kind, save)
    if TYPES[kind]:
        with pytest.raises(UsageError, match=TYPES[kind]) as refused:
            read_model(target)
        assert "\n" not in str(refused.value)
        return
    model = read_model(target).served
    with torch.device("meta"):
        module = resolve(target).model()
    tables = sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Embedding))
    assert model.other_bytes <= 2 * tables * 1.001
    assert model.weights_bytes(Layout()) == pytest.approx(2 * sum(p.numel() for p in module.parameters()), rel=1e-3)


#: three layers of LongCat-Flash, each with two attentions; of 24 experts 8 give back what they are given
LONGCAT = {
    "hidden_size": 256, "num_layers": 3, "num_attention_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "head_dim": 16, "v_head_dim": 32, "ffn_hidden_size": 256,
    "expert_ffn_hidden_size": 64, "n_routed_experts": 16, "zero_expert_num": 8, "moe_topk": 6, "vocab_size": 2048,
}  # fmt: skip


def kernels_of(target, kind):
    return {kernel for kernel, _ in read_model(target).served.kernels if isinstance(kernel, kind)}


def test_a_loop_over_experts_is_one_mixture(save):
    """A loop multiplied all tokens by those experts alone that the traced ones had chosen. Of six choices among 16
    experts and 8 that do nothing four are of experts."""
    (found,) = kernels_of(default("longcat_flash", save, **LONGCAT), Experts)
    assert (found.count, found.hidden, found.inter, found.gated) == (16, 256, 64, True)
    assert (found.top_k, found.alike) == (4, False)


#: two layers of MiniMax-M3, the second with an index of two heads, which chooses four blocks of 32 keys
MINIMAX = {
    "architectures": ["MiniMaxM3ForCausalLM"], "model_type": "minimax_m3", "hidden_size": 256, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "rotary_dim": 16, "intermediate_size": 64,
    "dense_intermediate_size": 256, "shared_intermediate_size": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
    "moe_layer_freq": [0, 1], "vocab_size": 2048, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1], "sparse_num_index_heads": 2, "sparse_index_dim": 64, "sparse_block_size": 32,
        "sparse_topk_blocks": 4, "sparse_local_block": 1,
    },
}  # fmt: skip


@pytest.fixture
def minimax(save):
    if "minimax_m3_vl_text" not in CONFIG_MAPPING_NAMES:
        pytest.skip("this transformers has no MiniMax-M3")
    return save(MINIMAX)


def test_an_index_of_blocks_scores_keys_and_chooses_blocks(minimax):
    """3 sequences of 1000 tokens: each of 2 heads reads its query of 64 numbers and all sequences' keys, one for both
    heads, in two bytes, writes the largest score of 32 keys in four, and chooses 4 of 32 blocks."""
    (index,) = kernels_of(minimax, Index)
    assert (index.heads, index.size, index.top_k, index.block) == (2, 64, 4, 32)
    assert index.kv_bytes(1000, Layout()) == 1000 * 2 * 64
    scores, choice = index.cost(EngineStep(3, 3 * 999), Layout()).launches
    assert scores.read_bytes == (3 * 1000 + 3 * 2) * 2 * 64
    assert (scores.write_bytes, choice.read_bytes) == (4 * 188, 4 * 6 * 32)  # 3 x 1000 / 32 blocks and a half, 2 heads


def test_attention_reads_the_blocks_that_an_index_chooses(minimax):
    """A decode reads 4 blocks of 32 keys for each of two heads of keys; with fewer tokens all of them. The tokens of a
    prompt attend to 128 keys at most, the first ones to fewer."""
    whole, sparse = sorted(kernels_of(minimax, Attention), key=lambda kernel: kernel.top_k)
    assert (whole.top_k, sparse.top_k) == (0, 4 * 32)
    read = [each.cost(EngineStep(3, 3 * 999), Layout()).read_bytes for each in (whole, sparse)]
    assert read[0] - read[1] == 3 * (1000 - 128) * 2 * 2 * 32 * 2
    few = EngineStep(3, 3 * 99)
    assert sparse.cost(few, Layout()).read_bytes == whole.cost(few, Layout()).read_bytes
    prompt = sparse.cost(EngineStep(0, 0, ((1000, 0),)), Layout())
    assert prompt.total_flops == 4 * 8 * 32 * (128 * 129 // 2 + (1000 - 128) * 128)


def test_a_file_of_text_alone_is_the_text_part_of_a_model_of_images(save):
    """Step-3.7-Flash as some write it: the sizes of the text part stand at the top."""
    fields = {
        "architectures": ["Step3p7FlashForCausalLM"], "model_type": "step3p7", "hidden_size": 256, "head_dim": 32,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048,
        "intermediate_size": 512, "moe_intermediate_size": 64, "share_expert_dim": 64, "torch_dtype": "bfloat16",
    }  # fmt: skip
    if "step3p7" not in CONFIG_MAPPING_NAMES:
        pytest.skip("this transformers has no Step-3.7")
    workload = resolve(save(fields))
    with torch.device("meta"):
        text = workload.model().model.language_model
    assert (len(text.layers), text.embed_tokens.weight.shape) == (4, (2048, 256))
    assert any("default sizes" in str(note) for note in workload.notes)
