"""What makes each parameter of a forward: a tensor as the processor of the model would give it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor

from memwall.frontend.hf.asked import SEQ, AskedModel, number

Make = Callable[[AskedModel], Any]
Size = Callable[[AskedModel], int]

#: Model types whose tokens are one of text with one of each codebook.
_TEXT_AND_CODES = frozenset(("kyutai_speech_to_text",))


def _ids(asked: AskedModel) -> Tensor:
    """Tokens of text, none of them with a meaning of its own."""
    books = number(asked.config, "num_codebooks") if asked.config.model_type in _TEXT_AND_CODES else None
    if books:
        return torch.randint(0, asked.vocabulary, (asked.batch, asked.seq, 1 + books))
    drawn = torch.randint(0, asked.vocabulary, (asked.batch, asked.seq))
    plain = next(n for n in range(asked.vocabulary) if n not in asked.special or n == asked.vocabulary - 1)
    return torch.where(torch.isin(drawn, torch.tensor(sorted(asked.special))), plain, drawn)


def _sizes(asked: AskedModel, shape: tuple[Size | int, ...]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else size(asked) for size in shape)


def _floats(*shape: Size | int) -> Make:
    """A maker of normal numbers."""
    return lambda asked: torch.randn(_sizes(asked, shape), dtype=asked.dtype)


def _whole(value: int, *shape: Size | int, dtype: torch.dtype = torch.int64) -> Make:
    """A maker of equal whole numbers, or of a mask."""
    return lambda asked: torch.full(_sizes(asked, shape), value, dtype=dtype)


def _of(*names: str, default: int = 1) -> Size:
    """A size that the configuration states under one of some names."""
    return lambda asked: number(asked.config, *names) or number(asked.text, *names) or default


#: Model types whose spectrograms are (batch, mels, columns), though nothing else tells.
_CHANNELS_FIRST = frozenset(("clvp", "glmasr", "glmasr_encoder", "voxtral_realtime", "voxtral_realtime_encoder"))


def _spectrogram(asked: AskedModel) -> Tensor:
    """Whisper's is (clips, mels, columns), 30 s by its encoder's positions; others' are (batch, columns, mels)."""
    clips, columns = asked.heard
    if asked.takes("is_longer"):  # CLAP: (batch, 1, columns, mels) of 10 s in steps of 10 ms
        return torch.randn((asked.batch, 1, asked.columns() + 1, asked.mels), dtype=asked.dtype)
    is_first = asked.fixed_columns or number(asked.audio, "n_window") or asked.config.model_type in _CHANNELS_FIRST
    shape = (asked.mels, columns) if is_first else (columns, asked.mels)
    return torch.randn((asked.batch * len(clips), *shape), dtype=asked.dtype)


def _spectrogram_mask(asked: AskedModel) -> Tensor:
    """(clips, columns), 1 where there is sound."""
    clips, columns = asked.heard
    mask = torch.arange(columns) < torch.tensor(clips)[:, None]
    return mask.to(torch.int64).repeat(asked.batch, 1)


def _sound(asked: AskedModel) -> Tensor:
    """A waveform: (batch, samples), (batch, channels, samples) for codecs; or a spectrogram of fixed length."""
    longest = number(asked.config, "max_length")
    if longest and number(asked.config, "num_mel_bins"):
        return torch.randn((asked.batch, longest, asked.mels), dtype=asked.dtype)
    fields = ("codebook_size", "codebook_dim", "quantization_dim", "audio_channels", "channels")
    codec = asked.config.model_type.startswith("pe_audio") or number(asked.config, *fields) is not None
    lead = (asked.batch, number(asked.config, "audio_channels", "channels") or 1) if codec else (asked.batch,)
    return torch.randn((*lead, asked.samples), dtype=asked.dtype)


def _coded(asked: AskedModel) -> Tensor:
    """What a half of a codec takes: a waveform, (batch, channels, samples), or its decoder (batch, width, frames)."""
    ratios = getattr(asked.config, "upsampling_ratios", None)
    if not asked.takes("padding_cache"):
        return _floats(_batch, _seq, _hidden)(asked)
    if not ratios:
        return _sound(asked)
    shape = (asked.batch, _hidden(asked), max(1, asked.samples // math.prod(ratios)))
    return torch.randn(shape, dtype=asked.dtype)


def _context(asked: AskedModel) -> int:
    """Steps of the past that a time-series model is given."""
    lags = getattr(asked.config, "lags_sequence", None) or [0]
    return (number(asked.config, "context_length", "prediction_length") or SEQ) + max(lags)


def _series(steps: Size) -> Make:
    """(batch, steps), with a third axis where there are several variables."""

    def make(asked: AskedModel) -> Tensor:
        several = number(asked.config, "num_input_channels")
        width = several or number(asked.config, "input_size") or 1
        last = (width,) if several or width > 1 else ()
        return torch.randn((asked.batch, steps(asked), *last), dtype=asked.dtype)

    return make


def _codes(asked: AskedModel) -> Tensor:
    """Ids of the decoder: ids of text, or for several codebooks a row for each."""
    decoder = getattr(asked.config, "decoder", getattr(asked.config, "decoder_config", None))
    books, channels = number(decoder, "num_codebooks") or 1, number(decoder, "num_channels")
    vocabulary = number(decoder, "vocab_size") or asked.vocabulary
    if channels is not None:  # Dia: a channel for each codebook
        return torch.randint(0, vocabulary, (asked.batch, asked.seq, channels))
    return torch.randint(0, vocabulary, (asked.batch * books, asked.seq)) if books > 1 else _ids(asked)


def _flattened(asked: AskedModel) -> Tensor:
    """Pix2Struct: patches with row and column in front (image_processing_pix2struct.py)."""
    patches = asked.seq if "seq" in asked.sizes else 2048
    values = number(asked.vision, "patch_embed_hidden_size") or asked.patch**2 * asked.channels
    made = torch.randn((asked.batch, patches, values + 2), dtype=asked.dtype)
    made[..., 0] = torch.arange(patches) // 64 + 1
    made[..., 1] = torch.arange(patches) % 64 + 1
    return made


def _image_places(asked: AskedModel) -> Tensor:
    """Kosmos-2: which tokens the image takes the place of."""
    return (torch.arange(asked.seq) < (number(asked.config, "latent_query_num") or 64)).expand(asked.batch, -1)


def _perceived(asked: AskedModel) -> Tensor:
    """Perceiver: ids of bytes for its heads on text, pixels for heads on images, else what is attended to."""
    name = asked.model.__name__
    if name.endswith(("ForMaskedLM", "ForSequenceClassification")):
        return torch.randint(
            0, asked.vocabulary, (asked.batch, number(asked.config, "max_position_embeddings") or 2048)
        )
    return _image(asked) if "Image" in name else _floats(_batch, _seq, _hidden)(asked)


def _session(asked: AskedModel) -> Any:
    """SAM 2: a video of one frame and a point on one object in it, as the processor's init_video_session and
    add_inputs_to_inference_session make them (processing_sam2_video.py)."""
    kind = asked.parameters["inference_session"].annotation
    if not hasattr(kind, "add_point_inputs"):  # SAM 3 finds the objects by text
        return None
    height, width = asked.image
    session = kind(
        video=torch.randn((1, asked.channels, height, width), dtype=asked.dtype),
        video_height=height,
        video_width=width,
        inference_device="cuda",
        inference_state_device="cuda",
        video_storage_device="cuda",
        dtype=asked.dtype,
    )
    point = {
        "point_coords": torch.full((1, 1, 1, 2), width / 2),
        "point_labels": torch.ones((1, 1, 1), dtype=torch.int32),
    }
    session.add_point_inputs(session.obj_id_to_idx(1), 0, point)
    session.obj_with_new_inputs = [1]
    return session


_CLASSES = 8
_batch, _seq = attrgetter("batch"), attrgetter("seq")
_columns = methodcaller("columns")
_height, _width = (lambda asked: asked.image[0]), (lambda asked: asked.image[1])
_hidden = _of("hidden_size", "d_model", "n_embd")
_horizon = _of("prediction_length", "horizon_length")
_image = _floats(_batch, attrgetter("channels"), _height, _width)
_time_features: Size = lambda asked: int(getattr(asked.config, "num_time_features", 0) or 0)  # noqa: E731

#: Parameter of forward → its tensor.
MAKERS: Mapping[str, Make] = {
    # text
    "input_ids": _ids,
    "decoder_input_ids": _codes,
    "inputs_embeds": _floats(_batch, _seq, _hidden),
    "lang_ids": _whole(0, _batch),
    "noise_embeds": _floats(_batch, _of("block_size", default=16), _hidden),
    "context_hidden_states": _floats(_batch, _seq, lambda a: len(a.config.target_layer_ids) * _hidden(a)),
    "bbox": _whole(0, _batch, _seq, 4),
    "qformer_input_ids": _whole(1, _batch, 32),
    "query_embeds": _floats(1, _of("num_query_tokens", default=32), _hidden),
    "inputs": _perceived,
    "encoder_hidden_states": _floats(_batch, 257, _of("encoder_hidden_size", "hidden_size")),
    # sound
    "is_longer": _whole(0, _batch, 1, dtype=torch.bool),
    "audio_mel": _floats(_batch, _columns, attrgetter("mels")),
    "audio_mel_mask": _whole(0, _batch, _columns, dtype=torch.bool),  # of what is padding
    "latents": _floats(_batch, _hidden, 125),
    "input_values": _sound,
    "hidden_states": _coded,
    "input_features": _spectrogram,
    "input_features_mask": _spectrogram_mask,
    "feature_attention_mask": _spectrogram_mask,
    "spectrogram": _floats(_batch, _columns, _of("model_in_dim", "num_mel_bins", default=80)),
    # images
    "flattened_patches": _flattened,
    "image": _image,
    "prompt_pixel_values": _image,
    "prompt_masks": _image,
    "pixel_mask": _whole(1, _batch, _height, _width),
    "image_embeds_position_mask": _image_places,
    "input_points": _floats(_batch, 1, 1, 2),
    "task_inputs": _whole(1, _batch, _of("task_seq_len", default=77)),
    "visual_feats": _floats(_batch, 36, _of("visual_feat_dim", default=2048)),
    "visual_pos": _floats(_batch, 36, _of("visual_pos_dim", default=4)),
    "classes_input_ids": _whole(1, _CLASSES, 16),
    "classes_attention_mask": _whole(1, _CLASSES, 16),
    "tasks_input_ids": _whole(1, _batch, 16),
    "tasks_attention_mask": _whole(1, _batch, 16),
    "classes_structure": _whole(8, _batch),
    # videos and robots
    "inference_session": _session,
    "frame_idx": lambda asked: 0,
    "state": _floats(_batch, _of("max_state_dim")),
    "noise": _floats(_batch, _of("chunk_size"), _of("max_action_dim")),
    "timestep": _floats(_batch),
    # time series and decisions
    "past_values": _series(_context),
    "past_observed_mask": lambda asked: torch.ones_like(_series(_context)(asked), dtype=torch.bool),
    "past_values_padding": lambda asked: torch.zeros_like(_series(_context)(asked)),  # TimesFM: as numbers
    "freq": _whole(0, _batch, 1),
    "past_time_features": _floats(_batch, _context, _time_features),
    "future_time_features": _floats(_batch, _horizon, _time_features),
    "future_values": _series(_horizon),
    "states": _floats(_batch, _seq, _of("state_dim")),
    "actions": _floats(_batch, _seq, _of("act_dim")),
    "rewards": _floats(_batch, _seq, 1),
    "returns_to_go": _floats(_batch, _seq, 1),
    "timesteps": lambda asked: torch.arange(asked.seq).expand(asked.batch, -1),
}
