"""What stands in front of a prompt: the tokens of images, clips and sounds by the rules of each model's processor, and
what their towers must do."""

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

import memwall
from memwall.core.errors import UsageError
from memwall.ops import Cost
from memwall.serving.tower import media_of, read_media

WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**WIDE, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "max_position_embeddings": 4096}
ROTATED = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
LLAMA = {"model_type": "llama", **TEXT}


def _model(kind, architecture, **parts):
    return {"model_type": kind, "architectures": [architecture], "dtype": "bfloat16", **parts}


#: patches of 16 x 16 pixels and two frames, of which 2 x 2 are a token
QWEN3 = _model(
    "qwen3_vl", "Qwen3VLForConditionalGeneration", image_token_id=500, video_token_id=501, vision_start_token_id=502,
    vision_end_token_id=503, text_config={"model_type": "qwen3_vl_text", **TEXT, "rope_scaling": ROTATED},
    vision_config={**WIDE, "num_heads": 2, "depth": 2, "patch_size": 16, "out_hidden_size": 32,
                   "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
)  # fmt: skip
#: patches of 14 x 14
QWEN2 = _model(
    "qwen2_vl", "Qwen2VLForConditionalGeneration", image_token_id=500, video_token_id=501, vision_start_token_id=502,
    vision_end_token_id=503, text_config={"model_type": "qwen2_vl_text", **TEXT, "rope_scaling": ROTATED},
    vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14},
)  # fmt: skip
CLIP = {"model_type": "clip_vision_model", **WIDE, "patch_size": 8, "image_size": 32, "projection_dim": 32}
LLAVA = _model("llava", "LlavaForConditionalGeneration", text_config=LLAMA, vision_config=CLIP, image_token_index=500)
LLAVA_NEXT = {
    **_model("llava_next", "LlavaNextForConditionalGeneration", text_config=LLAMA, vision_config=CLIP),
    "image_token_index": 500, "image_grid_pinpoints": [[32, 64], [64, 32], [64, 64]],
}  # fmt: skip
SMOL = _model(
    "smolvlm", "SmolVLMForConditionalGeneration", text_config=LLAMA, image_token_id=500, scale_factor=2,
    vision_config={"model_type": "smolvlm_vision", **WIDE, "patch_size": 8, "image_size": 32},
)  # fmt: skip
#: 3 x 3 patches of 16 x 16 are a token
GEMMA4 = _model(
    "gemma4", "Gemma4ForConditionalGeneration", image_token_id=500, video_token_id=501, audio_token_id=504,
    boi_token_id=502, eoi_token_id=503, boa_token_id=505, eoa_token_index=506,
    text_config={"model_type": "gemma4_text", **TEXT},
    vision_config={"model_type": "gemma4_vision", **WIDE, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 16,
                   "pooling_kernel_size": 3, "default_output_length": 280},
    audio_config={"model_type": "gemma4_audio", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                  "output_proj_dims": 32},
)  # fmt: skip


#: patches of 14 x 14 pixels, of which 2 x 2 are a token
MISTRAL3 = _model(
    "mistral3", "Mistral3ForConditionalGeneration", image_token_index=500, spatial_merge_size=2,
    vision_feature_layer=-1, text_config={"model_type": "mistral", **TEXT},
    vision_config={"model_type": "pixtral", **WIDE, "head_dim": 16, "patch_size": 14, "image_size": 1540},
)  # fmt: skip


@pytest.fixture
def front(tmp_path):
    """``front(fields, files, frames=4)``: what stands in front of a prompt of the model in a folder with such files."""

    def read(fields, files=None, **asked):
        for kind in (fields["model_type"], *(part.get("model_type") for part in fields.values() if type(part) is dict)):
            if kind is not None and kind not in CONFIG_MAPPING_NAMES:
                pytest.skip(f"this transformers has no {kind}")
        for name, stated in {"config.json": fields, **(files or {})}.items():
            (tmp_path / name).write_text(json.dumps(stated))
        return read_media(f"hf:{tmp_path}", media_of(asked))

    return read


def _image_processor(kind, **stated):
    return {"preprocessor_config.json": {"image_processor_type": f"{kind}ImageProcessor", **stated}}


_QWEN_PIXELS = {"patch_size": 16, "merge_size": 2, "size": {"shortest_edge": 256 * 256, "longest_edge": 512 * 512}}


@pytest.mark.parametrize(("fields", "files", "asked", "tokens"), [
    # 512 x 512 / 32^2, and a token on each side
    (QWEN3, {}, {"images": 1, "image": "512x512"}, 256 + 2),
    # 1024 x 512 is 2 times too large: divided by its root, 724.1 x 362.0, and rounded down to 22 x 11 times 32
    (QWEN3, _image_processor("Qwen2VL", **_QWEN_PIXELS), {"images": 2, "image": "1024x512"}, 2 * (22 * 11 + 2)),
    # 64 x 64 is enlarged 16 times
    (QWEN3, _image_processor("Qwen2VL", **_QWEN_PIXELS), {"images": 1, "image": "64x64"}, 8 * 8 + 2),
    # the same stated for several processors in one file
    (QWEN3, {"processor_config.json": {"image_processor": {
        "image_processor_type": "Qwen2VLImageProcessor", **_QWEN_PIXELS}}}, {"images": 1, "image": "64x64"}, 66),
    # whatever the size, 32 x 32 are cut out: 4 x 4 patches
    (LLAVA, _image_processor("CLIP", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
     {"images": 3, "image": "600x800"}, 3 * 16),
    # the tiles 64 x 64 next to the whole: 8 x 8 patches with the end of each of 8 rows, and 16
    (LLAVA_NEXT, _image_processor("LlavaNext", size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32},
                                  image_grid_pinpoints=[[32, 64], [64, 32], [64, 64]]),
     {"images": 1, "image": "500x500"}, 8 * 9 + 16),
    # the longest edge becomes 64: 2 x 2 tiles of 32 x 32 next to the whole, 2 x 2 tokens each
    (SMOL, _image_processor("SmolVLM", size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
     {"images": 1, "image": "500x500"}, 5 * 4),
    # 600 x 800 has 12.5 x 16.7 tokens of 48 x 48 pixels; at most 280 are made of an image: enlarged to 14 x 19
    (GEMMA4, _image_processor("Gemma4"), {"images": 1, "image": "600x800"}, 14 * 19 + 2),
    (GEMMA4, {}, {"images": 1, "image": "480x480"}, 100 + 2),
    # 280 x 560 has 10 rows of 20 tokens and the end of each
    (MISTRAL3, {}, {"images": 2, "image": "280x560"}, 2 * 10 * 21),
    # 1000 x 2000 is made half as large: 500 x 1000, in whole tokens 18 x 36
    (MISTRAL3, _image_processor("Pixtral", size={"longest_edge": 1000}, patch_size={"height": 14, "width": 14}),
     {"images": 1, "image": "1000x2000"}, 18 * 37),
], ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else "")  # fmt: skip
def test_tokens_of_images(front, fields, files, asked, tokens):
    if files:
        pytest.importorskip("PIL", reason="Pillow is not installed")
    found = front(fields, files, **asked)
    assert (found.tokens, found.notes) == (tokens, ())


def _video_processor(kind, least, most):
    size = {"shortest_edge": least, "longest_edge": most}
    return {"video_preprocessor_config.json": {"video_processor_type": f"{kind}VideoProcessor", "size": size}}


@pytest.mark.parametrize(("fields", "files", "asked", "tokens"), [
    # 5 frames are 3 rows of patches, of 4 x 8 tokens; in front of each stand a time, as <0.2 seconds>, and two more
    (QWEN3, {}, {"frames": 5, "image": "128x256"}, 3 * (32 + 6 + 2)),
    # the 11th and 12th row are of 10.25 and 11.25 s, of one digit more
    (QWEN3, {}, {"frames": 24, "image": "32x32"}, 12 * (1 + 6 + 2) + 2),
    # without times: 2 rows of 4 x 4 tokens, and the clip has a token on each side
    (QWEN2, {}, {"frames": 4, "image": "112x112"}, 2 * 16 + 2),
    # 4 frames of 256 x 256 are 16 times the pixels that a clip may have: 64 x 64 are left
    (QWEN3, _video_processor("Qwen3VL", 1024, 4 * 64 * 64), {"frames": 4, "image": "256x256"}, 2 * (4 + 8)),
    # each frame of 224 x 224 has 4 times the pixels that it may have
    (QWEN2, _video_processor("Qwen2VL", 784, 112 * 112), {"frames": 4, "image": "224x224"}, 2 * 16 + 2),
    # each frame is a picture of 100 tokens
    (GEMMA4, {}, {"frames": 3, "image": "480x480"}, 300 + 2),
    # an image next to a clip
    (QWEN3, {}, {"frames": 2, "images": 1, "image": "64x64"}, 4 + 2 + 4 + 8),
], ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else "")  # fmt: skip
def test_tokens_of_clips(front, fields, files, asked, tokens):
    found = front(fields, files, **asked)
    assert (found.tokens, found.notes) == (tokens, ())


def test_weights_of_a_tower_of_images_and_clips_are_counted_once(front):
    alone = front(QWEN3, frames=2, image="64x64").tower.weight_bytes
    assert front(QWEN3, frames=2, images=1, image="64x64").tower.weight_bytes == alone


WHISPER = {"num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "d_model": 32}
_HEARING = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
OMNI = {"text_config": {"model_type": "qwen2_5_omni_text", **TEXT, "rope_scaling": ROTATED}}
SOUNDS = {
    "qwen2_audio": _model(
        "qwen2_audio", "Qwen2AudioForConditionalGeneration", audio_token_index=500, text_config=LLAMA,
        audio_config={"model_type": "qwen2_audio_encoder", **WHISPER},
    ),
    # four columns of 32 numbers are a row of 128
    "voxtral": _model(
        "voxtral", "VoxtralForConditionalGeneration", audio_token_id=500, text_config=LLAMA,
        audio_config={"model_type": "voxtral_encoder", **_HEARING, "num_mel_bins": 128},
    ),
    "qwen2_5_omni_thinker": _model(
        "qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", audio_token_index=500, **OMNI,
        audio_start_token_id=501, audio_end_token_id=502,
        audio_config={"model_type": "qwen2_5_omni_audio_encoder", **WHISPER, "output_dim": 32},
        vision_config={"model_type": "qwen2_5_omni_vision_encoder", **WIDE, "num_heads": 2, "depth": 1,
                       "out_hidden_size": 32},
    ),
    "qwen3_omni_moe_thinker": _model(
        "qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", audio_token_id=500,
        text_config={"model_type": "qwen3_omni_moe_text", **TEXT, "rope_scaling": ROTATED, "num_experts": 2,
                     "num_experts_per_tok": 1, "moe_intermediate_size": 32},
        audio_config={"model_type": "qwen3_omni_moe_audio_encoder", **WHISPER, "output_dim": 32,
                      "downsample_hidden_size": 16},
        vision_config={"model_type": "qwen3_omni_moe_vision_encoder", **WIDE, "num_heads": 2, "depth": 1,
                       "out_hidden_size": 32, "deepstack_visual_indexes": [0]},
    ),
    "granite_speech": _model(
        "granite_speech", "GraniteSpeechForConditionalGeneration", audio_token_index=500, has_lora_adapter=False,
        text_config={"model_type": "granite", **TEXT},
        encoder_config={"model_type": "granite_speech_encoder", "input_dim": 160, "hidden_dim": 32, "num_layers": 2,
                        "num_heads": 2, "dim_head": 16, "output_dim": 42},
        projector_config={"model_type": "blip_2_qformer", **WIDE, "encoder_hidden_size": 32, "vocab_size": 99},
    ),
    "glmasr": _model(
        "glmasr", "GlmAsrForConditionalGeneration", audio_token_id=500, text_config=LLAMA,
        audio_config={"model_type": "glmasr_encoder", **_HEARING, "num_key_value_heads": 2, "head_dim": 16},
    ),
    "gemma4": GEMMA4,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "seconds", "tokens"), [
    # 455 columns of 10 ms: 228 after a convolution of stride 2, of which 114 pairs are averaged
    ("qwen2_audio", 4.55, 114),
    # 375 of each 30 s, to which the sound is padded
    ("voxtral", 4, 375), ("voxtral", 45, 750),
    # as Qwen2-Audio, of any length, with a token on each side
    ("qwen2_5_omni_thinker", 4.55, 114 + 2), ("qwen2_5_omni_thinker", 45, 1125 + 2),
    # three convolutions of stride 2 leave 13 of each 100 columns, and of 55 columns 28, 14, 7
    ("qwen3_omni_moe_thinker", 4, 52), ("qwen3_omni_moe_thinker", 4.55, 52 + 7),
    # two columns are one row; three queries read each 15 rows: 200 are 14 windows
    ("granite_speech", 4, 14 * 3),
    # a convolution of stride 2, four of whose rows are a token: 228 are 57, and 30 s and 15 s 375 and 187
    ("glmasr", 4.55, 57), ("glmasr", 45, 375 + 187),
    # two convolutions of stride 2, and a token on each side
    ("gemma4", 4.55, 114 + 2),
])  # fmt: skip
def test_tokens_of_sounds(front, kind, seconds, tokens):
    assert front(SOUNDS[kind], audio=seconds).tokens == tokens


def test_a_tower_of_sound_runs_all_of_its_30_s(front):
    """Two convolutions of three taps, 3,000 and 1,500 columns of 32 numbers, the first of 128 bins; queries, keys,
    values and results of 32 x 32 and two matmuls of 32 x 64 for each of 1,500; scores and their sums of two heads of
    16; and the projector on the 750 that are left."""
    tower = front(SOUNDS["qwen2_audio"], audio=4).tower
    convolved = 2 * 3 * 32 * (128 * 3000 + 32 * 1500)
    layer = 2 * 1500 * 32 * (4 * 32 + 2 * 64) + 4 * 1500**2 * 32
    total = sum((cost for cost, n in tower.costs for _ in range(n)), Cost(launches=()))
    dense = sum(flops for pipe, flops in total.flops.items() if pipe.engine == "tensor")
    assert dense == convolved + layer + 2 * 750 * 32 * 32


@pytest.mark.parametrize(("fields", "asked", "why"), [
    (LLAVA, {"frames": 4}, "reads no videos: give frames as --images"),
    (LLAVA, {"audio": 4}, "reads no sound: leave out --audio"),
    (SOUNDS["qwen2_audio"], {"audio": 45}, "hears 30 s of a sound at most, no 45"),
    (SOUNDS["qwen2_audio"], {"images": 1}, "reads no images: leave out --images"),
    (LLAVA, {"audio": float("nan")}, "--audio must be a number above 0"),
    (LLAVA, {"frames": 0}, "--frames must be a whole number above 0"),
    (LLAVA, {"image": "32x32"}, "--image is the size of --images and --frames"),
])  # fmt: skip
def test_what_a_model_does_not_read_is_refused(front, fields, asked, why):
    with pytest.raises(UsageError, match=why) as refused:
        front(fields, **asked)
    assert "\n" not in str(refused.value)


def test_a_processor_that_cannot_be_run_is_said(front):
    found = front(LLAVA, _image_processor("Nobody"), images=1)
    assert found.tokens == 16
    (note,) = found.notes
    assert note.startswith("the model's image processor is not run: ")


def test_a_processor_is_not_run_on_images_without_end(front):
    """One of 200,000 x 200,000 pixels took all memory of the machine."""
    (note,) = front(QWEN3, _image_processor("Qwen2VL", **_QWEN_PIXELS), images=1, image="8000x8000").notes
    assert note == "the model's image processor is not run on more than 50,000,000 pixels"


def test_a_server_bills_a_clip_and_says_it(save):
    if "qwen3_vl" not in CONFIG_MAPPING_NAMES:
        pytest.skip("this transformers has no qwen3_vl")
    found = memwall.serve(save(QWEN3), gpu="h100", prompt=64, generate=8, concurrency=1, frames=4, image="64x64")
    assert found.points[0].workload.prompt.most == 64 + 2 * (4 + 8)
    assert found.model.fronts == ()
