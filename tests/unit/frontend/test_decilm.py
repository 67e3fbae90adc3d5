"""DeciLM: layers of several widths, some without attention or a feed-forward network, by hand."""

import pytest

import memwall
from memwall.core.errors import UsageError
from tests.unit.configs import target_of

pytest.importorskip("transformers", reason="transformers is not installed")


def block(no_attention=False, no_network=False, mult=6.0, **attention):
    return {
        "attention": {"n_heads_in_group": None if no_attention else 2, "no_op": no_attention, **attention},
        "ffn": {"ffn_mult": None if no_network else mult, "no_op": no_network},
    }


#: 64 numbers, 4 heads of 16, of which 2 hold keys and values
DECILM = {
    "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": None, "intermediate_size": None, "vocab_size": 256,
    "max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu",
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
    # 6 x 64 x 2 / 3 = 256, and 7 x 64 x 2 / 3 = 298.7, which is rounded up to 512
    "block_configs": [block(), block(no_attention=True), block(no_network=True), block(mult=7.0)],
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    def write(**changed) -> str:
        return target_of(tmp_path, DECILM | changed)

    return write


def test_layers_have_the_widths_of_their_blocks(config):
    profile = memwall.profile(config(), mode="decode", batch=2, context=32, gpu="h100")
    attention = 64 * 64 * 2 + 64 * 32 * 2 + 64  # q and o, k and v of 2 heads, the norm before them
    networks = [3 * 64 * 256 + 64, 3 * 64 * 256 + 64, 3 * 64 * 512 + 64]
    weights = 3 * attention + sum(networks) + 2 * 256 * 64 + 64
    held = sum(storage.nbytes for storage in profile.graph.storages if storage.role == "parameter")
    assert held == 2 * weights
    # three layers keep keys and values of 2 heads of 16, of 32 tokens of 2 samples
    assert profile.graph.role_bytes["kv_cache"] == 3 * 2 * 2 * 16 * 32 * 2 * 2
    assert any("1 of 4 layers without attention" in note for note in profile.notes)


def test_a_decilm_is_served(config):
    (point,) = memwall.serve(config(), gpu="h100", prompt=16, generate=8, concurrency=2).points
    assert point.steps.kv_bytes(10) == 10 * 3 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(("blocks", "said"), [
    ([block()], "1 block_configs for 4 layers"),
    ([block(), block(), block(), block(window_length=8)], r"block_configs\[3\] has attention.window_length"),
    ([block(no_attention=True), *[block()] * 3], "whose first layer has no attention"),
    ([{}] * 4, "these are no block_configs of a DeciLM"),
])  # fmt: skip
def test_what_blocks_cannot_be(config, blocks, said):
    with pytest.raises(UsageError, match=said):
        memwall.profile(config(block_configs=blocks), mode="decode", gpu="h100")
