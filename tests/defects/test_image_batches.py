"""Models of images whose processor hands on the grid of patches: each image of a batch costs what one does."""

import json

import memwall
from memwall.serving import read_model
from memwall.serving.steps.attention import Attention

TEXT = {
    "model_type": "qwen2_5_vl_text", "vocab_size": 1000, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e4},
}  # fmt: skip
VISION = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128,
    "fullatt_block_indexes": [1],
}  # fmt: skip
CONFIG = {
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": TEXT,
    "vision_config": VISION, "image_token_id": 990, "video_token_id": 991, "vision_start_token_id": 992,
    "vision_end_token_id": 993,
}  # fmt: skip


def test_a_batch_of_images_costs_as_often_what_one_does(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    one, two = (memwall.profile(f"hf:{tmp_path}", batch=batch, seq=64) for batch in (1, 2))
    assert two.notes == ()  # no tower is left out
    products = [
        sum(cost.total_flops for op, cost in zip(p.graph.ops, p.costs[0], strict=True) if op.op_class == "contraction")
        for p in (one, two)
    ]
    assert products[1] == 2 * products[0]
    # the patches of two images of 224 x 224: 2 * 16 * 16, each 2 * 14 * 14 * 3 numbers
    assert {"shape": [512, 1176], "dtype": "float32"} in [dict(each) for each in two.workload.inputs]


def test_a_step_with_a_cache_says_what_images_put_in_front(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    decode = memwall.profile(f"hf:{tmp_path}", mode="decode", batch=2, context=300)
    # 224 x 224 in patches of 14 merged two by two: 8 * 8, with a token before and after
    assert decode.notes == ("1 new token for each of 2 samples, 300 tokens and 66 tokens of images or sounds in front"
                            " each in the cache",)  # fmt: skip
    assert [2, 2, 366, 32] in [list(each["shape"]) for each in decode.workload.inputs]


def test_a_server_prepares_how_far_images_move_positions_on(tmp_path):
    """The prompt's step leaves a whole number for each sample, of which rotary tables are made by no layer's kernel."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "dtype": "bfloat16"}))
    (kernel, count), *none = [
        each for each in read_model(f"hf:{tmp_path}").served.kernels if isinstance(each[0], Attention)
    ]
    assert (kernel.heads, kernel.kv_heads, kernel.head_size, count, none) == (4, 2, 32, 2, [])


def test_a_static_cache_has_room_for_images(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "cache_implementation": "static"}))
    decode = memwall.profile(f"hf:{tmp_path}", mode="decode", batch=2, context=64)
    assert [2, 2, 131, 32] in [list(each["shape"]) for each in decode.workload.inputs]  # 66 + 64 + 1


def test_an_expanded_tensor_of_the_host_keeps_its_values():
    import torch

    from memwall.frontend.torch.values.known import KnownValues

    rows = torch.tensor([[1, 16, 16]]).expand(3, -1)
    known = KnownValues()
    assert known.of(known.made(rows)).tolist() == [[1, 16, 16]] * 3
