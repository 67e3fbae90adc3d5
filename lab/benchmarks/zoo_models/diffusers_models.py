"""Model classes of diffusers 0.42, each with the inputs of its forward: one of every family, at its own width.

Transformers keep one or two layers. Latents are of images of 256 to 512 pixels and of a few frames of video;
pixels of autoencoders are 64 to 256 wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import diffusers
import torch
from diffusers.models import embeddings
from torch import Tensor, nn

Entry = tuple[Callable[[], nn.Module], Callable[[], Any]]

# -- inputs ------------------------------------------------------------------------------------------------------------


def _made(value: Any) -> Any:
    """A tuple is the shape of a random tensor, a function makes the value, a dictionary is made item by item; all else
    is passed as it is."""
    if isinstance(value, tuple):
        return torch.randn(value)
    if isinstance(value, Mapping):
        return {name: _made(item) for name, item in value.items()}
    return value() if callable(value) else value


def _model(class_name: str, options: Mapping[str, Any], **inputs: Any) -> Entry:
    """The class with these options, and its inputs by name."""
    kind = getattr(diffusers, class_name)  # imported here: diffusers imports a class when it is asked for
    return lambda: kind(**options), lambda: _made(inputs)


def _step() -> Tensor:
    return torch.tensor([500])


def _ones(*shape: int) -> Callable[[], Tensor]:
    """A mask that hides nothing."""
    return lambda: torch.ones(shape, dtype=torch.long)


def _all_true(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.ones(shape, dtype=torch.bool)


def _ids(count: int, *shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(count, shape)


def _rotary(tokens: int, width: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Cosines and sines of each token."""
    return lambda: (torch.randn(tokens, width), torch.randn(tokens, width))


def _sizes() -> dict[str, Callable[[], Tensor]]:
    """The sizes that CogView is told."""
    return {
        "original_size": lambda: torch.tensor([[512.0, 512.0]]), "target_size": lambda: torch.tensor([[512.0, 512.0]]),
        "crop_coords": lambda: torch.tensor([[0.0, 0.0]]),
    }  # fmt: skip


def _allegro_rotary() -> tuple[Any, Tensor]:
    """The angles of Allegro along time, height and width, and the three positions of each of 3 x 16 x 16 patches."""
    *angles, grid_t, grid_h, grid_w = embeddings.get_3d_rotary_pos_embed_allegro(
        embed_dim=96, crops_coords=((0, 0), (16, 16)), grid_size=(16, 16), temporal_size=3,
        interpolation_scale=(2.2, 2.0, 2.0), device="cpu",
    )  # fmt: skip
    return angles, torch.cartesian_prod(grid_t.long(), grid_h.long(), grid_w.long()).T[:, None]


# -- U-Nets ------------------------------------------------------------------------------------------------------------

_TEXT = (1, 77, 768)
_SD15 = {"cross_attention_dim": 768, "sample_size": 64}
_SDXL = {
    "block_out_channels": (320, 640, 1280), "cross_attention_dim": 2048, "transformer_layers_per_block": (1, 2, 2),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "attention_head_dim": (5, 10, 20), "use_linear_projection": True, "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
_SDXL_UP = {"up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D")}
_SDXL_INPUTS = {
    "timestep": _step, "encoder_hidden_states": (1, 77, 2048),
    "added_cond_kwargs": {"text_embeds": (1, 1280), "time_ids": (1, 6)},
}  # fmt: skip

_UNETS: dict[str, Entry] = {
    "UNet1DModel": _model(
        "UNet1DModel",
        {"in_channels": 14, "out_channels": 14, "time_embedding_type": "positional", "use_timestep_embedding": True,
         "block_out_channels": (32, 64, 128, 256), "down_block_types": ("DownResnetBlock1D",) * 4,
         "up_block_types": ("UpResnetBlock1D",) * 3, "mid_block_type": "MidResTemporalBlock1D",
         "out_block_type": "OutConv1DBlock", "act_fn": "mish"},
        sample=(1, 14, 128), timestep=_step,
    ),
    "UNet2DModel": _model("UNet2DModel", {}, sample=(1, 3, 64, 64), timestep=_step),
    "UNet2DConditionModel_sd15": _model(
        "UNet2DConditionModel", _SD15, sample=(1, 4, 64, 64), timestep=_step, encoder_hidden_states=_TEXT
    ),
    "UNet2DConditionModel_sdxl": _model(
        "UNet2DConditionModel", {**_SDXL, **_SDXL_UP}, sample=(1, 4, 64, 64), **_SDXL_INPUTS
    ),
    "UNet3DConditionModel": _model(
        "UNet3DConditionModel", {}, sample=(1, 4, 4, 32, 32), timestep=_step, encoder_hidden_states=(1, 77, 1024)
    ),
    "UNetMotionModel": _model(
        "UNetMotionModel", {"cross_attention_dim": 768}, sample=(1, 4, 4, 32, 32), timestep=_step,
        encoder_hidden_states=(4, 77, 768),
    ),
    "UNetSpatioTemporalConditionModel": _model(
        "UNetSpatioTemporalConditionModel", {}, sample=(1, 4, 8, 32, 32), timestep=_step,
        encoder_hidden_states=(1, 1, 1024), added_time_ids=(1, 3),
    ),
    "I2VGenXLUNet": _model(
        "I2VGenXLUNet", {}, sample=(1, 4, 4, 32, 32), timestep=_step, fps=lambda: torch.tensor([16]),
        image_latents=(1, 4, 4, 32, 32), image_embeddings=(1, 1024), encoder_hidden_states=(1, 77, 1024),
    ),
    "Kandinsky3UNet": _model(
        "Kandinsky3UNet", {"layers_per_block": 2}, sample=(1, 4, 32, 32), timestep=_step,
        encoder_hidden_states=(1, 77, 4096), encoder_attention_mask=_ones(1, 77),
    ),
    "StableCascadeUNet": _model(
        "StableCascadeUNet",
        {"down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1), "clip_text_in_channels": 1280,
         "clip_image_in_channels": 768},
        sample=(1, 16, 24, 24), timestep_ratio=(1,), clip_text_pooled=(1, 1, 1280), clip_text=(1, 77, 1280),
        clip_img=(1, 1, 768),
    ),
    "AudioLDM2UNet2DConditionModel": _model(
        "AudioLDM2UNet2DConditionModel",
        {"in_channels": 8, "out_channels": 8, "block_out_channels": (128, 256, 384, 640),
         "cross_attention_dim": ((None, 768, 1024),) * 4, "attention_head_dim": 8},
        sample=(1, 8, 64, 16), timestep=_step, encoder_hidden_states=(1, 8, 768),
        encoder_hidden_states_1=(1, 32, 1024), encoder_attention_mask_1=_ones(1, 32),
    ),
    "UVit2DModel": _model(
        "UVit2DModel", {"num_hidden_layers": 2}, input_ids=_ids(8192, 1, 32, 32), encoder_hidden_states=_TEXT,
        pooled_text_emb=(1, 768), micro_conds=(1, 5),
    ),
    "UNetControlNetXSModel": _model(
        "UNetControlNetXSModel", {"cross_attention_dim": 768}, sample=(1, 4, 32, 32), timestep=_step,
        encoder_hidden_states=_TEXT, controlnet_cond=(1, 3, 256, 256),
    ),
}  # fmt: skip

# -- transformers of images --------------------------------------------------------------------------------------------

_TWO = {"num_layers": 2}
_ONE_EACH = {"num_layers": 1, "num_single_layers": 1}
_PACKED = {"hidden_states": (1, 1024, 64), "timestep": (1,), "img_ids": (1024, 3), "txt_ids": (128, 3)}
_HUNYUAN_DIT = {"in_channels": 4, "patch_size": 2, "sample_size": 64, "hidden_size": 1408}
_HUNYUAN_DIT_INPUTS = {
    "hidden_states": (1, 4, 64, 64), "timestep": (1,), "encoder_hidden_states": (1, 77, 1024),
    "text_embedding_mask": _ones(1, 77), "encoder_hidden_states_t5": (1, 256, 2048),
    "text_embedding_mask_t5": _ones(1, 256), "image_meta_size": (1, 6), "style": _ids(1, 1),
    "image_rotary_emb": _rotary(1024, 88),
}  # fmt: skip
_QWEN = {
    "hidden_states": (1, 1024, 64), "encoder_hidden_states": (1, 128, 3584), "timestep": (1,),
    "encoder_hidden_states_mask": _ones(1, 128), "img_shapes": [[(1, 32, 32)]],
}  # fmt: skip

_IMAGES: dict[str, Entry] = {
    "DiTTransformer2DModel": _model(
        "DiTTransformer2DModel", _TWO, hidden_states=(1, 4, 32, 32), timestep=_step, class_labels=_ids(1000, 1)
    ),
    "Transformer2DModel": _model(
        "Transformer2DModel", {"in_channels": 320, "num_attention_heads": 8, "attention_head_dim": 40,
                               "cross_attention_dim": 768},
        hidden_states=(1, 320, 64, 64), encoder_hidden_states=_TEXT,
    ),
    "PixArtTransformer2DModel": _model(
        "PixArtTransformer2DModel", {**_TWO, "caption_channels": 4096, "sample_size": 64},
        hidden_states=(1, 4, 64, 64), encoder_hidden_states=(1, 120, 4096), timestep=_step,
        encoder_attention_mask=_ones(1, 120), added_cond_kwargs={"resolution": None, "aspect_ratio": None},
    ),
    "PixArtTransformer2DModel_1024": _model(
        "PixArtTransformer2DModel", {**_TWO, "caption_channels": 4096}, hidden_states=(1, 4, 128, 128),
        encoder_hidden_states=(1, 120, 4096), timestep=_step, encoder_attention_mask=_ones(1, 120),
        added_cond_kwargs={"resolution": (1, 2), "aspect_ratio": (1, 1)},
    ),
    "SD3Transformer2DModel": _model(
        "SD3Transformer2DModel", _TWO, hidden_states=(1, 16, 64, 64), encoder_hidden_states=(1, 154, 4096),
        pooled_projections=(1, 2048), timestep=_step,
    ),
    "SD3Transformer2DModel_35": _model(
        "SD3Transformer2DModel", {**_TWO, "dual_attention_layers": (0, 1), "qk_norm": "rms_norm"},
        hidden_states=(1, 16, 64, 64), encoder_hidden_states=(1, 154, 4096), pooled_projections=(1, 2048),
        timestep=_step,
    ),
    "FluxTransformer2DModel": _model(
        "FluxTransformer2DModel", {**_ONE_EACH, "guidance_embeds": True}, **_PACKED, guidance=(1,),
        encoder_hidden_states=(1, 128, 4096), pooled_projections=(1, 768),
    ),
    "Flux2Transformer2DModel": _model(
        "Flux2Transformer2DModel", _ONE_EACH, hidden_states=(1, 1024, 128), encoder_hidden_states=(1, 128, 15_360),
        timestep=(1,), img_ids=(1, 1024, 4), txt_ids=(1, 128, 4), guidance=(1,),
    ),
    "Flux3Transformer2DModel": _model(
        "Flux3Transformer2DModel", _ONE_EACH, hidden_states=(1, 1024, 128), encoder_hidden_states=(1, 128, 20_480),
        timestep=(1,), img_ids=(1024, 4), txt_ids=(128, 4),
    ),
    "ChromaTransformer2DModel": _model(
        "ChromaTransformer2DModel", _ONE_EACH, **_PACKED, encoder_hidden_states=(1, 128, 4096),
        attention_mask=_all_true(1, 1152),
    ),
    "BriaTransformer2DModel": _model(
        "BriaTransformer2DModel", _ONE_EACH, **_PACKED, encoder_hidden_states=(1, 128, 4096)
    ),
    "OvisImageTransformer2DModel": _model(
        "OvisImageTransformer2DModel", _ONE_EACH, **_PACKED, encoder_hidden_states=(1, 128, 2048)
    ),
    "LongCatImageTransformer2DModel": _model(
        "LongCatImageTransformer2DModel", _ONE_EACH, **_PACKED, encoder_hidden_states=(1, 128, 3584)
    ),
    "SanaTransformer2DModel": _model(
        "SanaTransformer2DModel", _TWO, hidden_states=(1, 32, 16, 16), encoder_hidden_states=(1, 300, 2304),
        timestep=_step, encoder_attention_mask=_ones(1, 300),
    ),
    "AuraFlowTransformer2DModel": _model(
        "AuraFlowTransformer2DModel", {"num_mmdit_layers": 1, "num_single_dit_layers": 1},
        hidden_states=(1, 4, 64, 64), encoder_hidden_states=(1, 256, 2048), timestep=(1,),
    ),
    "CogView3PlusTransformer2DModel": _model(
        "CogView3PlusTransformer2DModel", _TWO, hidden_states=(1, 16, 64, 64), encoder_hidden_states=(1, 224, 4096),
        timestep=_step, **_sizes(),
    ),
    "CogView4Transformer2DModel": _model(
        "CogView4Transformer2DModel", _TWO, hidden_states=(1, 16, 64, 64), encoder_hidden_states=(1, 64, 4096),
        timestep=_step, **_sizes(),
    ),
    "GlmImageTransformer2DModel": _model(
        "GlmImageTransformer2DModel", _TWO, hidden_states=(1, 16, 64, 64), encoder_hidden_states=(1, 64, 1472),
        prior_token_id=_ids(16_384, 1, 1024), prior_token_drop=lambda: torch.zeros(1, 1024, dtype=torch.bool),
        timestep=_step, target_size=lambda: torch.tensor([[512.0, 512.0]]),
        crop_coords=lambda: torch.tensor([[0.0, 0.0]]),
    ),
    "HunyuanDiT2DModel": _model("HunyuanDiT2DModel", {**_HUNYUAN_DIT, **_TWO}, **_HUNYUAN_DIT_INPUTS),
    "HunyuanImageTransformer2DModel": _model(
        "HunyuanImageTransformer2DModel", _ONE_EACH, hidden_states=(1, 64, 16, 16), timestep=(1,),
        encoder_hidden_states=(1, 64, 3584), encoder_attention_mask=_ones(1, 64),
    ),
    "Lumina2Transformer2DModel": _model(
        "Lumina2Transformer2DModel", _TWO, hidden_states=(1, 16, 64, 64), timestep=(1,),
        encoder_hidden_states=(1, 64, 1024), encoder_attention_mask=_all_true(1, 64),
    ),
    "LuminaNextDiT2DModel": _model(
        "LuminaNextDiT2DModel", {**_TWO, "num_kv_heads": 8}, hidden_states=(1, 4, 64, 64), timestep=(1,),
        encoder_hidden_states=(1, 64, 2048), encoder_mask=_ones(1, 64),
        image_rotary_emb=lambda: embeddings.get_2d_rotary_pos_embed_lumina(72, 384, 384), cross_attention_kwargs={},
    ),
    "QwenImageTransformer2DModel": _model("QwenImageTransformer2DModel", _TWO, **_QWEN),
    "HiDreamImageTransformer2DModel": _model(
        "HiDreamImageTransformer2DModel",
        {**_ONE_EACH, "patch_size": 2, "in_channels": 16, "caption_channels": [4096, 4096], "llama_layers": [0, 1],
         "axes_dims_rope": (64, 32, 32)},
        hidden_states=(1, 16, 64, 64), timesteps=_step, encoder_hidden_states_t5=(1, 128, 4096),
        encoder_hidden_states_llama3=(2, 1, 128, 4096), pooled_embeds=(1, 2048),
    ),
    "OmniGenTransformer2DModel": _model(
        "OmniGenTransformer2DModel",
        {**_TWO, "rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}},
        hidden_states=(1, 4, 64, 64), timestep=(1,), input_ids=_ids(32_000, 1, 64),
        input_img_latents=[], input_image_sizes={}, attention_mask=_ones(1, 64 + 1 + 1024, 64 + 1 + 1024),
        position_ids=lambda: torch.arange(64 + 1 + 1024)[None],
    ),
    "PRXTransformer2DModel": _model(
        "PRXTransformer2DModel", {"depth": 2, "axes_dim": [32, 32]}, hidden_states=(1, 16, 64, 64), timestep=(1,),
        encoder_hidden_states=(1, 64, 2304), attention_mask=_all_true(1, 64),
    ),
    "ZImageTransformer2DModel": _model(
        "ZImageTransformer2DModel", {"n_layers": 2, "n_refiner_layers": 1}, x=lambda: [torch.randn(16, 1, 64, 64)],
        t=(1,), cap_feats=lambda: [torch.randn(64, 2560)],
    ),
    "ErnieImageTransformer2DModel": _model(
        "ErnieImageTransformer2DModel", _TWO, hidden_states=(1, 128, 32, 32), timestep=_step, text_bth=(1, 64, 2560),
        text_lens=lambda: torch.tensor([64]),
    ),
    "NucleusMoEImageTransformer2DModel": _model(
        "NucleusMoEImageTransformer2DModel",
        {**_TWO, "num_experts": 8, "capacity_factors": [1.0, 1.0], "dense_moe_strategy": "leave_first_block_dense"},
        **_QWEN,
    ),
    "PriorTransformer": _model(
        "PriorTransformer", _TWO, hidden_states=(1, 768), timestep=_step, proj_embedding=(1, 768),
        encoder_hidden_states=_TEXT, attention_mask=_all_true(1, 77),
    ),
}  # fmt: skip

# -- transformers of video and audio -----------------------------------------------------------------------------------

_VIDEO = {"hidden_states": (1, 16, 3, 32, 32), "timestep": _step}
_WAN_TEXT = {"encoder_hidden_states": (1, 128, 4096)}
_COG_SIZE = {"sample_height": 32, "sample_width": 32, "sample_frames": 9}
_COG_INPUTS = {
    "hidden_states": (1, 3, 16, 32, 32), "encoder_hidden_states": (1, 226, 4096), "timestep": _step,
}  # fmt: skip

_VIDEOS: dict[str, Entry] = {
    "CogVideoXTransformer3DModel": _model("CogVideoXTransformer3DModel", {**_TWO, **_COG_SIZE}, **_COG_INPUTS),
    "CogVideoXTransformer3DModel_5b": _model(
        "CogVideoXTransformer3DModel",
        {**_TWO, **_COG_SIZE, "num_attention_heads": 48, "use_rotary_positional_embeddings": True},
        **_COG_INPUTS, image_rotary_emb=_rotary(768, 64),
    ),
    "ConsisIDTransformer3DModel": _model("ConsisIDTransformer3DModel", {**_TWO, **_COG_SIZE}, **_COG_INPUTS),
    "HunyuanVideoTransformer3DModel": _model(
        "HunyuanVideoTransformer3DModel", {**_ONE_EACH, "num_refiner_layers": 1}, **_VIDEO,
        encoder_hidden_states=(1, 64, 4096), encoder_attention_mask=_ones(1, 64), pooled_projections=(1, 768),
        guidance=(1,),
    ),
    "HunyuanVideo15Transformer3DModel": _model(
        "HunyuanVideo15Transformer3DModel", {**_TWO, "num_refiner_layers": 1}, hidden_states=(1, 65, 2, 16, 16),
        timestep=(1,), encoder_hidden_states=(1, 64, 3584), encoder_attention_mask=_ones(1, 64),
        encoder_hidden_states_2=(1, 32, 1472), encoder_attention_mask_2=_ones(1, 32), image_embeds=(1, 729, 1152),
    ),
    "LatteTransformer3DModel": _model(
        "LatteTransformer3DModel",
        {**_TWO, "in_channels": 4, "out_channels": 8, "patch_size": 2, "sample_size": 32, "attention_head_dim": 72,
         "cross_attention_dim": 1152, "caption_channels": 4096, "norm_type": "ada_norm_single", "video_length": 4,
         "activation_fn": "gelu-approximate", "attention_bias": True, "norm_elementwise_affine": False},
        hidden_states=(1, 4, 4, 32, 32), timestep=_step, encoder_hidden_states=(1, 120, 4096),
    ),
    "LTXVideoTransformer3DModel": _model(
        "LTXVideoTransformer3DModel", _TWO, hidden_states=(1, 512, 128), encoder_hidden_states=(1, 128, 4096),
        timestep=_step, encoder_attention_mask=_ones(1, 128), num_frames=2, height=16, width=16,
    ),
    "LTX2VideoTransformer3DModel": _model(
        "LTX2VideoTransformer3DModel", _TWO, hidden_states=(1, 512, 128), audio_hidden_states=(1, 32, 128),
        encoder_hidden_states=(1, 128, 3840), audio_encoder_hidden_states=(1, 128, 3840), timestep=_step,
        encoder_attention_mask=_ones(1, 128), audio_encoder_attention_mask=_ones(1, 128), num_frames=2, height=16,
        width=16, audio_num_frames=32,
    ),
    "MochiTransformer3DModel": _model(
        "MochiTransformer3DModel", _TWO, hidden_states=(1, 12, 3, 32, 32), encoder_hidden_states=(1, 256, 4096),
        timestep=_step, encoder_attention_mask=_all_true(1, 256),
    ),
    "AllegroTransformer3DModel": _model(
        "AllegroTransformer3DModel", {**_TWO, "sample_height": 32, "sample_width": 32, "sample_frames": 3},
        hidden_states=(1, 4, 3, 32, 32), encoder_hidden_states=(1, 128, 4096), timestep=_step,
        attention_mask=_ones(1, 3, 32, 32), encoder_attention_mask=_ones(1, 128), image_rotary_emb=_allegro_rotary,
    ),
    "EasyAnimateTransformer3DModel": _model(
        "EasyAnimateTransformer3DModel", {**_TWO, "mmdit_layers": 1, "in_channels": 16, "out_channels": 16,
                                          "patch_size": 2},
        **_VIDEO, encoder_hidden_states=(1, 128, 3584),
    ),
    "WanTransformer3DModel": _model("WanTransformer3DModel", {"num_layers": 1}, **_VIDEO, **_WAN_TEXT),
    "WanTransformer3DModel_i2v": _model(
        "WanTransformer3DModel", {"num_layers": 1, "in_channels": 36, "image_dim": 1280, "added_kv_proj_dim": 5120},
        hidden_states=(1, 36, 3, 32, 32), timestep=_step, **_WAN_TEXT, encoder_hidden_states_image=(1, 257, 1280),
    ),
    "WanVACETransformer3DModel": _model(
        "WanVACETransformer3DModel", {"num_layers": 1, "vace_layers": [0]}, **_VIDEO, **_WAN_TEXT,
        control_hidden_states=(1, 96, 3, 32, 32),
    ),
    "ChronoEditTransformer3DModel": _model("ChronoEditTransformer3DModel", {"num_layers": 1}, **_VIDEO, **_WAN_TEXT),
    "SkyReelsV2Transformer3DModel": _model("SkyReelsV2Transformer3DModel", _TWO, **_VIDEO, **_WAN_TEXT),
    "HeliosTransformer3DModel": _model(
        "HeliosTransformer3DModel", {"num_layers": 1, "has_multi_term_memory_patch": False}, **_VIDEO, **_WAN_TEXT
    ),
    "SanaVideoTransformer3DModel": _model(
        "SanaVideoTransformer3DModel", _TWO, **_VIDEO, encoder_hidden_states=(1, 300, 2304),
        encoder_attention_mask=_ones(1, 300),
    ),
    "CosmosTransformer3DModel": _model(
        "CosmosTransformer3DModel", {"num_layers": 1}, hidden_states=(1, 16, 2, 32, 32), timestep=_step,
        encoder_hidden_states=(1, 128, 1024), fps=24, padding_mask=(1, 1, 256, 256),
    ),
    "MotifVideoTransformer3DModel": _model(
        "MotifVideoTransformer3DModel", _ONE_EACH, hidden_states=(1, 33, 3, 32, 32), timestep=_step,
        encoder_hidden_states=(1, 64, 4096), encoder_attention_mask=_ones(1, 64),
    ),
    "Kandinsky5Transformer3DModel": _model(
        "Kandinsky5Transformer3DModel", {"num_text_blocks": 1, "num_visual_blocks": 2},
        hidden_states=(1, 3, 32, 32, 4), encoder_hidden_states=(1, 64, 3584), timestep=_step,
        pooled_projections=(1, 768),
        visual_rope_pos=lambda: [torch.arange(3), torch.arange(16), torch.arange(16)],
        text_rope_pos=lambda: torch.arange(64),
    ),
    "TransformerTemporalModel": _model(
        "TransformerTemporalModel", {"in_channels": 320, "num_attention_heads": 8, "attention_head_dim": 40},
        hidden_states=(8, 320, 32, 32), num_frames=8,
    ),
    "StableAudioDiTModel": _model(
        "StableAudioDiTModel", _TWO, hidden_states=(1, 64, 1024), timestep=(1,), encoder_hidden_states=(1, 128, 768),
        global_hidden_states=(1, 1, 1536), rotary_embedding=_rotary(1025, 32),
    ),
    "AceStepTransformer1DModel": _model(
        "AceStepTransformer1DModel", {"num_hidden_layers": 2}, hidden_states=(1, 256, 64), timestep=(1,),
        timestep_r=(1,), encoder_hidden_states=(1, 64, 2048), context_latents=(1, 256, 128),
    ),
    "T5FilmDecoder": _model(
        "T5FilmDecoder", _TWO, encodings_and_masks=lambda: [(torch.randn(1, 256, 768), torch.ones(1, 256))],
        decoder_input_tokens=(1, 256, 128), decoder_noise_time=lambda: torch.tensor([0.5]),
    ),
}  # fmt: skip

# -- control -----------------------------------------------------------------------------------------------------------


def _pair(kind: Callable[[list[nn.Module]], nn.Module], part: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A module of two control nets or adapters."""
    return lambda: kind([part(), part()])


def _control_net() -> nn.Module:
    return diffusers.ControlNetModel(cross_attention_dim=768)


_CONTROL_INPUTS = {"sample": (1, 4, 32, 32), "timestep": _step, "encoder_hidden_states": _TEXT}
_PIXELS = (1, 3, 256, 256)

_CONTROL: dict[str, Entry] = {
    "ControlNetModel": _model(
        "ControlNetModel", {"cross_attention_dim": 768}, **_CONTROL_INPUTS, controlnet_cond=_PIXELS
    ),
    "ControlNetModel_sdxl": _model(
        "ControlNetModel", _SDXL, sample=(1, 4, 32, 32), **_SDXL_INPUTS, controlnet_cond=_PIXELS
    ),
    "ControlNetUnionModel": _model(
        "ControlNetUnionModel", {"cross_attention_dim": 768, "addition_embed_type": "text_time",
                                 "addition_time_embed_dim": 256, "projection_class_embeddings_input_dim": 2816},
        **_CONTROL_INPUTS, controlnet_cond=lambda: [torch.randn(_PIXELS)],
        control_type=lambda: torch.tensor([[1.0, 0, 0, 0, 0, 0]]), control_type_idx=[0],
        added_cond_kwargs={"text_embeds": (1, 1280), "time_ids": (1, 6)},
    ),
    "MultiControlNetModel": (
        _pair(diffusers.MultiControlNetModel, _control_net),
        lambda: {**_made(_CONTROL_INPUTS), "controlnet_cond": [torch.randn(_PIXELS), torch.randn(_PIXELS)],
                 "conditioning_scale": [1.0, 0.5], "return_dict": False},
    ),
    "SparseControlNetModel": _model(
        "SparseControlNetModel", {}, sample=(1, 4, 4, 32, 32), timestep=_step, encoder_hidden_states=(4, 77, 768),
        controlnet_cond=(1, 4, 4, 32, 32), conditioning_mask=(1, 1, 4, 32, 32),
    ),
    "SD3ControlNetModel": _model(
        "SD3ControlNetModel", _TWO, hidden_states=(1, 16, 64, 64), controlnet_cond=(1, 16, 64, 64),
        encoder_hidden_states=(1, 154, 4096), pooled_projections=(1, 2048), timestep=_step,
    ),
    "FluxControlNetModel": _model(
        "FluxControlNetModel", _ONE_EACH, **_PACKED, controlnet_cond=(1, 1024, 64),
        encoder_hidden_states=(1, 128, 4096), pooled_projections=(1, 768),
    ),
    "HunyuanDiT2DControlNetModel": _model(
        "HunyuanDiT2DControlNetModel", {**_HUNYUAN_DIT, "transformer_num_layers": 4}, **_HUNYUAN_DIT_INPUTS,
        controlnet_cond=(1, 4, 64, 64),
    ),
    "SanaControlNetModel": _model(
        "SanaControlNetModel", _TWO, hidden_states=(1, 32, 16, 16), encoder_hidden_states=(1, 300, 2304),
        timestep=_step, controlnet_cond=(1, 32, 16, 16), encoder_attention_mask=_ones(1, 300),
    ),
    "QwenImageControlNetModel": _model(
        "QwenImageControlNetModel", {"num_layers": 1}, **_QWEN, controlnet_cond=(1, 1024, 64)
    ),
    "T2IAdapter": _model("T2IAdapter", {}, x=(1, 3, 512, 512)),
    "T2IAdapter_sdxl": _model("T2IAdapter", {"adapter_type": "full_adapter_xl", "downscale_factor": 16},
                              x=(1, 3, 512, 512)),
    "MultiAdapter": (_pair(diffusers.MultiAdapter, diffusers.T2IAdapter),
                     lambda: ([torch.randn(_PIXELS), torch.randn(_PIXELS)],)),
}  # fmt: skip

# -- autoencoders ------------------------------------------------------------------------------------------------------


def _stages(kind: str, count: int = 4) -> dict[str, Any]:
    """The stages of the autoencoders of Stable Diffusion."""
    return {"down_block_types": (f"Down{kind}",) * count, "up_block_types": ("UpDecoderBlock2D",) * count,
            "block_out_channels": (128, 256, 512, 512)[:count], "layers_per_block": 2}  # fmt: skip


def _clip(frames: int, size: int) -> tuple[int, ...]:
    return (1, 3, frames, size, size)


_DC_BLOCKS = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
_AUTOENCODERS: dict[str, Entry] = {
    "AutoencoderKL": _model("AutoencoderKL", _stages("EncoderBlock2D"), sample=(1, 3, 256, 256)),
    "AutoencoderKLFlux2": _model("AutoencoderKLFlux2", {}, sample=(1, 3, 256, 256)),
    "AutoencoderTiny": _model("AutoencoderTiny", {}, sample=(1, 3, 512, 512)),
    "AutoencoderDC": _model(
        "AutoencoderDC",
        {"encoder_block_types": _DC_BLOCKS, "decoder_block_types": _DC_BLOCKS,
         "encoder_layers_per_block": (1,) * 6, "decoder_layers_per_block": (1,) * 6},
        sample=(1, 3, 256, 256),
    ),
    "VQModel": _model("VQModel", {**_stages("EncoderBlock2D", 3), "num_vq_embeddings": 8192}, sample=(1, 3, 128, 128)),
    "AsymmetricAutoencoderKL": _model(
        "AsymmetricAutoencoderKL",
        {"down_block_types": ("DownEncoderBlock2D",) * 4, "down_block_out_channels": (128, 256, 512, 512),
         "layers_per_down_block": 2, "up_block_types": ("UpDecoderBlock2D",) * 4,
         "up_block_out_channels": (192, 384, 768, 768), "layers_per_up_block": 3},
        sample=(1, 3, 128, 128), mask=lambda: torch.ones(1, 1, 128, 128),
    ),
    "ConsistencyDecoderVAE": _model("ConsistencyDecoderVAE", {}, sample=(1, 3, 64, 64)),
    "AutoencoderRAE": _model(
        "AutoencoderRAE", {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}, sample=(1, 3, 224, 224)
    ),
    "AutoencoderKLTemporalDecoder": _model(
        "AutoencoderKLTemporalDecoder",
        {"down_block_types": ("DownEncoderBlock2D",) * 4, "block_out_channels": (128, 256, 512, 512),
         "layers_per_block": 2},
        sample=(2, 3, 128, 128), num_frames=2,
    ),
    "AutoencoderKLCogVideoX": _model("AutoencoderKLCogVideoX", {"layers_per_block": 1}, sample=_clip(5, 64)),
    "AutoencoderKLWan": _model("AutoencoderKLWan", {}, sample=_clip(5, 64)),
    "AutoencoderKLQwenImage": _model("AutoencoderKLQwenImage", {}, sample=_clip(1, 128)),
    "AutoencoderKLLTXVideo": _model("AutoencoderKLLTXVideo", {}, sample=_clip(9, 64)),
    "AutoencoderKLLTX2Video": _model(
        "AutoencoderKLLTX2Video", {"layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 4},
        sample=_clip(9, 64),
    ),
    "AutoencoderKLMochi": _model(
        "AutoencoderKLMochi", {"layers_per_block": (1,) * 5}, sample=_clip(7, 64)
    ),
    "AutoencoderKLCosmos": _model("AutoencoderKLCosmos", {"num_layers": 1}, sample=_clip(9, 64)),
    "AutoencoderKLHunyuanVideo": _model("AutoencoderKLHunyuanVideo", {"layers_per_block": 1}, sample=_clip(5, 64)),
    "AutoencoderKLHunyuanVideo15": _model("AutoencoderKLHunyuanVideo15", {"layers_per_block": 1}, sample=_clip(5, 64)),
    "AutoencoderKLHunyuanImage": _model(
        "AutoencoderKLHunyuanImage",
        {"in_channels": 3, "out_channels": 3, "latent_channels": 64, "layers_per_block": 1,
         "block_out_channels": (128, 256, 512, 512, 1024, 1024), "spatial_compression_ratio": 32, "sample_size": 384},
        sample=(1, 3, 128, 128),
    ),
    "AutoencoderKLMagvit": _model("AutoencoderKLMagvit", {"layers_per_block": 1}, sample=_clip(5, 64)),
    "AutoencoderKLKVAE": _model("AutoencoderKLKVAE", {}, sample=(1, 3, 128, 128)),
    "AutoencoderVidTok": _model("AutoencoderVidTok", {}, sample=_clip(5, 64)),
    "AutoencoderOobleck": _model("AutoencoderOobleck", {}, sample=(1, 2, 20_480)),
    "AutoencoderSAME": _model("AutoencoderSAME", {"encoder_transformer_depths": (2,)}, sample=(1, 2, 65_536)),
    "AutoencoderKLLTX2Audio": _model("AutoencoderKLLTX2Audio", {}, sample=(1, 2, 64, 64)),
    "MMAudioVAE": _model("MMAudioVAE", {}, sample=(1, 65_536)),
    "MMAudioVocoder": _model("MMAudioVocoder", {}, mel=(1, 128, 32)),
}  # fmt: skip

MODELS: dict[str, Entry] = {**_UNETS, **_IMAGES, **_VIDEOS, **_CONTROL, **_AUTOENCODERS}
