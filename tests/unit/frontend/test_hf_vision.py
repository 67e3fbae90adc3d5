"""``hf:``: inputs of images, videos and robots from the configuration."""

import pytest

from memwall.core.errors import MissingError, UsageError
from memwall.frontend.hf.classes import model_class
from memwall.frontend.hf.config import ReadConfig
from memwall.frontend.targets import resolve
from memwall.frontend.torch.options import TraceOptions
from memwall.frontend.torch.run import trace

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA = {"model_type": "gemma", **TINY, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 99}
SIGLIP = {"model_type": "siglip_vision_model", **TINY, "image_size": 28, "patch_size": 14, "vision_use_head": False}


@pytest.mark.parametrize(("config", "sizes", "inputs"), [
    (  # 3 x 4 patches are cut to none and 4, but at least 4 each way; 2 images of 4 x 4 patches in one strip
        {"model_type": "minicpmv4_7_vision", **TINY, "image_size": 56, "patch_size": 14},
        {"image": (42, 56), "images": 2},
        {"pixel_values": (1, 3, 14, 2 * 16 * 14), "target_sizes": (2, 2)},
    ),
    (  # 84 x 56 pixels in tokens of 2 x 2 patches of 14: 3 x 2
        {"model_type": "inkling2_vision", **TINY, "patch_size": 14, "spatial_merge_size": 2, "text_hidden_size": 32},
        {"image": (84, 56)},
        {"pixel_values": (6, 28, 28, 3), "image_grid_thw": (1, 3)},
    ),
    (  # 4 x 4 patches of 14 x 14 x 3, merged 2 x 2 in the text, not in the tower
        {"model_type": "video_llama_3_vision", **TINY, "patch_size": 14},
        {"image": (56, 56)},
        {"pixel_values": (16, 588), "grid_thw": (1, 3), "merge_sizes": (1,)},
    ),
    (  # 1000 x 700 pixels come nearest to 31 x 22 tokens of 2 x 2 patches of 16, each with two frames of 3 channels
        {"model_type": "qwen3_vl_vision", **TINY, "num_heads": 2, "depth": 1, "patch_size": 16, "out_hidden_size": 32,
         "spatial_merge_size": 2, "temporal_patch_size": 2, "deepstack_visual_indexes": []},
        {"image": (1000, 700)},
        {"hidden_states": (62 * 44, 3 * 2 * 16 * 16), "grid_thw": (1, 3)},
    ),
    (  # 1000 x 700 pixels are 36 x 25 tokens of 2 x 2 patches of 14
        {"model_type": "kimi_k25_vision", **TINY, "patch_size": 14, "merge_kernel_size": [2, 2]},
        {"image": (1000, 700)},
        {"pixel_values": (72 * 50, 3, 14, 14), "grid_thw": (1, 3)},
    ),
    (  # patches of 14, 3 x 3 to a token: 100 pixels are cut to 2 times 42, 4 tokens in front of 8 of text
        {"model_type": "idefics3", "image_token_id": 90, "scale_factor": 3, "vision_config": {**TINY, "image_size": 84,
         "patch_size": 14}, "text_config": {"model_type": "llama", **TINY, "vocab_size": 99}},
        {"image": (100, 100), "seq": 8},
        {"input_ids": (1, 12), "pixel_values": (1, 1, 3, 84, 84), "pixel_attention_mask": (1, 1, 84, 84)},
    ),
    (  # 10 patches a side, 8 of them shared: 2 x 1 crops of 12 x 10 patches enlarge 160 x 140 pixels least; the views
       # of 100 and of 120 patches are pooled 2 x 2 to 25 and 30 tokens between two marks, before 8 of text
        {"model_type": "molmo2", "image_patch_id": 90, "image_start_token_id": 91, "image_end_token_id": 92,
         "vision_config": {**TINY, "image_size": [140, 140], "patch_size": 14, "num_key_value_heads": 2,
                           "head_dim": 16},
         "adapter_config": {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16,
                            "num_key_value_heads": 2, "text_hidden_size": 32, "vision_feature_layer": [-1]},
         "text_config": {**TINY, "head_dim": 16, "num_key_value_heads": 2, "vocab_size": 99}},
        {"image": (160, 140), "seq": 8},
        {"input_ids": (1, 65), "pixel_values": (3, 100, 588), "image_token_pooling": (55, 4), "image_grids": (1, 4),
         "image_num_crops": (1,), "mm_token_type_ids": (1, 65)},
    ),
    (  # 4 x 4 patches of 8 x 8 x 3 in a row, each a token in front of 8 of text
        {"model_type": "neomme", "patch_size": 8, "num_hidden_layers": 1},
        {"image": (32, 32), "seq": 8},
        {"input_ids": (1, 24), "pixel_values": (16, 192)},
    ),
    (  # 2 windows along each axis of patches of 14: 100 pixels come nearest to 4 times 28
        {"model_type": "rf_detr_dinov2", **TINY, "image_size": 56, "patch_size": 14, "num_windows": 2,
         "out_features": ["stage1"]},
        {"image": (100, 100)},
        {"pixel_values": (1, 3, 112, 112)},
    ),
    (  # a block of noise after the target's states of 3 layers
        {"model_type": "muse_glimmer_assistant", **TINY, "num_key_value_heads": 1, "head_dim": 16, "block_size": 4,
         "target_layer_ids": [0, 1, 2], "layer_types": ["full_attention"]},
        {"seq": 8},
        {"noise_embeds": (1, 4, 32), "context_hidden_states": (1, 8, 96)},
    ),
    (  # 2 cameras of 2 x 2 patches are 8 tokens before 10 of text
        {"model_type": "pi0", "chunk_size": 5, "max_state_dim": 6, "max_action_dim": 7, "dit_config": GEMMA,
         "vlm_config": {"model_type": "paligemma", "text_config": GEMMA, "vision_config": SIGLIP, "projection_dim": 32,
                        "image_token_id": 99}},
        {"seq": 10, "images": 2, "batch": 2},
        {"state": (2, 6), "noise": (2, 5, 7), "timestep": (2,), "input_ids": (2, 18),
         "pixel_values": (2, 2, 3, 28, 28), "pixel_attention_mask": (2, 2)},
    ),
], ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else "")  # fmt: skip
def test_inputs_are_what_the_processor_makes(save, config, sizes, inputs):
    given = resolve(save(config), **sizes).inputs()
    assert {name: tuple(tensor.shape) for name, tensor in given.items()} == inputs
    assert trace(resolve(save(config), **sizes), TraceOptions()).graph.ops


def test_a_video_is_followed_from_a_point_on_its_first_frame(save):
    """The session that the processor would open holds the frame, on the device, and the point."""
    hiera = {"hidden_size": 8, "embed_dim_per_stage": [8, 16, 32, 64], "num_attention_heads_per_stage": [1, 2, 4, 8],
             "blocks_per_stage": [1, 1, 1, 1], "global_attention_blocks": []}  # fmt: skip
    backbone = {"model_type": "sam2_hiera_det_model", **hiera}
    vision = {"backbone_config": backbone, "backbone_channel_list": [64, 32, 16, 8]}
    traced = trace(resolve(save({"model_type": "sam2_video", "vision_config": vision})), TraceOptions())
    assert sorted(tuple(given["shape"]) for given in traced.workload.inputs) == [
        (1, 1, 1),
        (1, 1, 1, 2),
        (3, 1024, 1024),
    ]


def test_a_session_without_points_names_the_parts(save):
    with pytest.raises(UsageError, match=r"Sam3VideoInferenceSession.*parts: sam3, sam3_tracker_video"):
        resolve(save({"model_type": "sam3_video"})).inputs()


def test_a_tower_without_its_token_is_left_out_or_refused(save):
    """BLIP-2's forward cannot do without images, and its first configurations name no token for them."""
    with pytest.raises(UsageError, match=r"needs its image tower.*has no value for image_token_"):
        resolve(save({"model_type": "blip-2"})).inputs()


def test_a_part_that_runs_nothing_by_itself_names_the_model_that_does(save):
    """GLM-Image's codebook has an ``encode`` and no forward; the model of images and text calls it."""
    with pytest.raises(UsageError, match=r"has no forward.*the model that it is a part of: glm_image$"):
        resolve(save({"model_type": "glm_image_vqmodel"}))


class _Unloadable:
    """transformers next to a torchvision that was built for another torch."""

    def __getattr__(self, name):
        raise ModuleNotFoundError(f"Could not import module {name!r}") from RuntimeError("torchvision::nms is missing")


def test_a_package_that_does_not_load_is_what_is_missing(save):
    config = transformers.ViTConfig()
    with pytest.raises(MissingError, match=r"transformers cannot load ViT\w+: torchvision::nms is missing; install"):
        model_class(_Unloadable(), ReadConfig(config=config, raw={}, notes=()), "vit")


def test_a_refusal_says_what_was_assumed_and_how_to_fix_it(save):
    """SuperPoint's points depend on pixels; LeViT ends in a batch norm of one value for each sample and channel."""
    fields = {"model_type": "lightglue", "num_hidden_layers": 2}
    with pytest.raises(UsageError, match=r"assumed, nonzero=0\.5, condition=true: try --assume condition=false"):
        trace(resolve(save(fields)), TraceOptions())
    assert trace(resolve(save(fields)), TraceOptions(assume=("condition=false",))).graph.ops
    levit = save({"model_type": "levit", "depths": [1, 1, 1]})
    with pytest.raises(UsageError, match="--batch 2"):
        trace(resolve(levit, mode="training", batch=1), TraceOptions("training"))
    assert trace(resolve(levit, mode="training"), TraceOptions("training")).graph.ops  # of two samples
