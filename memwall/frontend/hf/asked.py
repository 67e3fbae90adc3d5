"""What is asked for: the sizes that the user gave, and the numbers that a configuration has under many names."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from memwall.core.errors import UsageError
from memwall.frontend.hf.config import all_parts, text_config

SEQ, IMAGE, FRAMES = 512, 224, 8
#: seconds of sound: of a waveform, and of a spectrogram
SECONDS, SPECTROGRAM_SECONDS = 1.0, 10.0
#: samples of a waveform in a second, and columns of a spectrogram (steps of 10 ms)
SAMPLE_RATE, COLUMN_RATE = 16_000, 100
#: columns of 30 s
_CLIP_COLUMNS = 30 * COLUMN_RATE

#: What a configuration calls the most positions that it has.
POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length")
_VISION = (
    "vision_config", "vision_tower_config", "vit_config", "vision_encoder_config", "image_config", "backbone_config",
    "encoder",
)  # fmt: skip
_AUDIO = (
    "audio_config", "audio_encoder_config", "encoder_config", "speech_config", "acoustic_tokenizer_encoder_config",
    "asr_config", "semantic_model_config",
)  # fmt: skip
#: Bins of a column of Wav2Vec2-BERT's spectrogram, of which its model is given several at once.
_BINS = 80

#: Model types with a batch norm of one vector for each sample.
_NORMALISE_VECTORS = frozenset(("levit", "groupvit"))

#: Parts that hold a whole model of images and text.
_WHOLES = ("thinker_config", "vlm_config")

_PIXELS = ("pixel_values", "pixel_values_images", "flattened_patches", "pixel_values_videos", "inputs", "grid_thw")
#: Size → what has it, and the inputs of a forward that takes such.
_TAKEN_BY: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "seq": ("token ids", ("input_ids", "decoder_input_ids", "inputs_embeds", "inputs", "context_hidden_states")),
    "image": ("images", _PIXELS),
    "images": ("images", _PIXELS),
    "video": ("videos", ("pixel_values_videos", "pixel_values")),
    "seconds": ("sound", ("input_values", "input_features", "audio_input_features", "input_audio_embeds")),
}


def number(config: Any, *names: str) -> int | None:
    """The first of some fields that is a whole number above 0, or a pair of equal ones."""
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, (list, tuple)) and value and len({*value}) == 1:
            value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def pair(value: Any) -> tuple[int, int] | None:
    """Height and width of a number, a pair or ``{"height": .., "width": ..}``; the last two of more."""
    if isinstance(value, Mapping):
        value = (value.get("height", value.get("shortest_edge")), value.get("width", value.get("shortest_edge")))
    if isinstance(value, int):
        value = (value, value)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = (value[0], value[0])
    if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(item, int) for item in value):
        return value[-2], value[-1]
    return None


def _whole(count: float) -> int:
    """A count rounded up, at least 1; 0.56 s times 100 is 56, though not in floating numbers."""
    return max(1, math.ceil(round(count, 6)))


def _timm_image(config: Any) -> tuple[int, int] | None:
    """Height and width that a model of timm was trained with, which some take alone."""
    if getattr(config, "model_type", None) != "timm_wrapper":
        return None
    try:
        timm: Any = importlib.import_module("timm")
    except Exception:  # timm is not installed, or is built for another torch: its sizes are not known
        return None
    known = timm.get_pretrained_cfg(config.architecture, allow_unregistered=True)
    return pair(getattr(known, "input_size", None))


def _extractor_default(config: Any, *names: str) -> int | None:
    """What the feature extractor of a model takes one of some settings to be, where nothing else is said, or has as a
    constant."""
    package = type(config).__module__.rpartition(".")[0]
    try:
        module = importlib.import_module(f"{package}.feature_extraction_{package.rpartition('.')[2]}")
    except Exception:  # no such module, or one that imports a library that does not load
        return None
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            defaults = [inspect.signature(kind).parameters.get(name) for name in names]
            stated = [each.default for each in defaults if each is not None]
            found = [each for each in (*stated, *(getattr(kind, name, None) for name in names)) if type(each) is int]
            if found:
                return found[0]
    return None


@dataclass(frozen=True)
class AskedModel:
    """A model class, its configuration, and the sizes that the user gave."""

    config: Any
    model: Any
    sizes: Mapping[str, Any]
    training: bool = False
    #: positions of tokens, where they are fewer than the configuration says
    positions: int | None = None

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of forward, but ``self``."""
        found = dict(inspect.signature(self.model.forward).parameters)
        found.pop("self", None)
        return found

    def check(self) -> None:
        """Refuse sizes of what the model does not take, by a UsageError."""
        if "seq" in self.sizes and self._columns_per_token:
            raise UsageError(
                f"--seq {self.sizes['seq']} was given, but {self.model.__name__} takes a token for each"
                f" {self._columns_per_token / COLUMN_RATE:g} s of sound: give --seconds"
            )
        for size, (what, inputs) in _TAKEN_BY.items():
            if size in self.sizes and not any(name in self.parameters for name in inputs):
                said = "x".join(map(str, self.sizes[size])) if size == "image" else self.sizes[size]
                raise UsageError(f"--{size} {said} was given, but {self.model.__name__} takes no {what}")
        fixed = None if hasattr(self.config, "audio_config") else self.fixed_columns
        if fixed and self.sizes.get("seconds", fixed / COLUMN_RATE) != fixed / COLUMN_RATE:
            raise UsageError(
                f"--seconds {self.sizes['seconds']:g} was given, but {self.model.__name__} takes"
                f" {fixed / COLUMN_RATE:g} s whatever is said: pad a shorter sound, and take a longer one as --batch"
            )

    @cached_property
    def fixed_columns(self) -> int | None:
        """Columns of a spectrogram of which each has a position, as in Whisper's encoder, whose second layer takes
        two; not of towers that take windows, each with the same positions."""
        if number(self.audio, "input_feat_per_channel", "n_window") or not number(self.audio, "num_mel_bins"):
            return None
        positions = number(self.audio, "max_source_positions")
        return 2 * positions if positions else None

    @cached_property
    def heard(self) -> tuple[list[int], int]:
        """Columns of a spectrogram in each clip of a sound, and the columns that it is padded to: a longer sound than
        a tower has positions for, or than 30 s of GLM-ASR, is cut (processing_voxtral.py), and one that is taken in
        windows is padded to whole ones (Qwen3-ASR)."""
        stated, fixed = "seconds" in self.sizes, self.fixed_columns
        columns = self.columns() if stated or fixed is None else fixed
        most = fixed or (_CLIP_COLUMNS if self.config.model_type == "glmasr" else columns)
        clips = [min(most, columns - first) for first in range(0, columns, most)]
        step = 2 * (number(self.audio, "n_window") or 0) or 1
        return clips, fixed or (most if len(clips) > 1 else -(-columns // step) * step)

    @cached_property
    def required(self) -> list[str]:
        """The parameters of forward without a default."""
        many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [n for n, p in self.parameters.items() if p.default is p.empty and p.kind not in many]

    def takes(self, *names: str) -> bool:
        return all(name in self.parameters for name in names)

    @cached_property
    def text(self) -> Any:
        return text_config(self.config)

    @cached_property
    def vision(self) -> Any:
        """The part that describes images, or the whole configuration if it has no such part."""
        return self._part(_VISION, ("patch_size", "image_size", "num_channels", "in_channels"))

    @cached_property
    def audio(self) -> Any:
        """The part that describes sound, or the whole configuration if it has no such part."""
        fields = (
            "num_mel_bins",
            "feature_size",
            "max_source_positions",
            "input_dim",
            "mel_bins",
            "feature_projection_input_dim",
            "input_feat_size",
            "subsampling_conv_channels",
        )
        return self._part(_AUDIO, fields)

    @property
    def fronts(self) -> tuple[str, ...]:
        """What parts of a model of text read that stand in front of it."""
        parts = {"images": self.vision, "sounds": self.audio}
        return tuple(name for name, part in parts.items() if part is not self.config)

    def _part(self, names: tuple[str, ...], fields: tuple[str, ...]) -> Any:
        config = self.config
        for home in (config, *(getattr(config, name, None) for name in _WHOLES)):
            for name in names:
                part = getattr(home, name, None)
                if part is not None and any(getattr(part, field, None) is not None for field in fields):
                    return part
        return config

    @property
    def dtype(self) -> Any:
        return getattr(self.config, "dtype", None) or torch.float32

    @property
    def batch(self) -> int:
        return int(self.sizes.get("batch", 2 if self.normalises_vectors else 1))

    @property
    def normalises_vectors(self) -> bool:
        """Whether a batch norm sees one vector for each sample, so that training takes two samples at least."""
        return self.training and self.config.model_type in _NORMALISE_VECTORS

    @property
    def _columns_per_token(self) -> int | None:
        """Columns of a spectrogram for each token of text, where they go together."""
        return number(self.config, "audio_length_per_tok") if self.takes("input_features") else None

    @cached_property
    def seq(self) -> int:
        """Tokens of text in a sample."""
        if step := self._columns_per_token:
            return self.columns() // step  # a token is added to what is heard at its time
        if "seq" in self.sizes:
            return int(self.sizes["seq"])
        if self.training and getattr(self.config, "axial_pos_embds", False):
            return math.prod(self.config.axial_pos_shape)  # Reformer trains on whole sequences alone
        longest = [n for key in POSITIONS if (n := number(self.text, key)) is not None]
        # Longformer pads to whole windows
        return self.positions or max(min([SEQ, *longest]), number(self.config, "attention_window") or 1)

    def has(self, part: str) -> bool:
        """Whether the model has a part, as far as its configuration says."""
        return getattr(self.config, part, self) is not None

    @property
    def images(self) -> int:
        return int(self.sizes.get("images", 1))

    @property
    def pictures(self) -> int:
        """Images of the whole batch."""
        return self.batch * self.images

    @cached_property
    def patch(self) -> int:
        return number(self.vision, "patch_size", "spatial_patch_size") or 14

    @cached_property
    def depth(self) -> int:
        """Frames that become one patch."""
        return number(self.vision, "temporal_patch_size", "patch_temporal") or 1

    @cached_property
    def merge(self) -> int:
        """Patches along each axis that become one token."""
        names = ("spatial_merge_size", "merge_kernel_size")
        return number(self.vision, *names) or number(self.config, *names) or 1

    @cached_property
    def image(self) -> tuple[int, int]:
        """Height and width of an image: as asked for, else as in the configuration; to the nearest whole blocks
        of what the tower takes together (smart_resize of image_processing_qwen2_vl.py)."""
        height, width = self.stated_image
        if "image" not in self.sizes and self.takes("prompt_pixel_values"):  # seen below its prompt
            height //= 2
        step = self.patch * self.merge if self.takes("image_grid_thw") or self.takes("grid_thw") else 1
        if self.takes("input_ids", "pixel_attention_mask"):  # patches that become one token, as in Idefics 3
            step = self.patch * (number(self.config, "scale_factor", "pixel_shuffle_factor") or 1)
        if windows := number(self.vision, "num_windows_side", "num_windows"):  # along each axis, as in RF-DETR
            step = self.patch * windows
        return max(round(height / step), 1) * step, max(round(width / step), 1) * step

    @property
    def stated_image(self) -> tuple[int, int]:
        """Height and width of an image that are asked for, else of the configuration's."""
        return self.sizes.get("image") or self._trained_image

    @cached_property
    def _trained_image(self) -> tuple[int, int]:
        ratios = getattr(self.config, "scaled_images_ratios", None)
        if ratios:  # Depth Pro: the smallest scale is one patch
            return (int(self.patch / min(ratios)),) * 2
        for home in (self.vision, self.config, *all_parts(self.config)):
            stated = (pair(getattr(home, name, None)) for name in ("image_size", "input_size", "max_img_size"))
            if found := next(filter(None, stated), None) or _timm_image(home):
                return found
        return IMAGE, IMAGE

    @cached_property
    def channels(self) -> int:
        return (
            number(self.vision, "num_channels", "in_channels", "in_chans") or number(self.config, "num_channels") or 3
        )

    @cached_property
    def frames(self) -> int:
        """Frames of a video."""
        return int(
            self.sizes.get("video")
            or number(self.vision, "num_frames", "frames_per_clip")
            or number(self.config, "num_frames", "frames_per_clip")
            or FRAMES
        )

    @cached_property
    def mels(self) -> int:
        """Rows of a spectrogram."""
        names = (
            "num_mel_bins",
            "mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "num_mel_channels",
            "n_mels",
            "input_feat_size",
            "input_dim",
            "input_size",
            "feature_projection_input_dim",
            "spec_num_mel_bins",
        )
        stated = number(self.audio, *names) or number(self.config, *names)
        stated = stated or _extractor_default(self.config, "feature_size", "num_mel_bins") or _BINS
        stacked = number(self.audio, "num_stacked_frames") or _extractor_default(self.config, "frame_stacking") or 1
        return stated * stacked * (_extractor_default(self.config, "delta_expansion") or 1)

    @cached_property
    def stride(self) -> int:
        """Columns of 10 ms from one that the model is given to the next: several may come as one."""
        several = number(self.audio, "feature_projection_input_dim", "input_dim")
        return several // _BINS if several else _extractor_default(self.config, "stride_lfr", "frame_stacking") or 1

    def columns(self) -> int:
        """Columns of a spectrogram, as many as whole tokens of text take; where the waveform is given too, of as many
        seconds."""
        seconds = SECONDS if self.takes("input_values", "input_features") else SPECTROGRAM_SECONDS
        columns = _whole(float(self.sizes.get("seconds", seconds)) * COLUMN_RATE / self.stride)
        step = self._columns_per_token or 1
        return math.ceil(columns / step) * step

    @property
    def samples(self) -> int:
        """Samples of a waveform, a multiple of the samples that become a token."""
        step = number(self.audio, "samples_per_token") or 1
        return _whole(float(self.sizes.get("seconds", SECONDS)) * self.sample_rate / step) * step

    @property
    def sample_rate(self) -> int:
        stated = number(self.audio, "sampling_rate", "sample_rate") or number(self.config, "sampling_rate")
        return stated or _extractor_default(self.config, "sampling_rate") or SAMPLE_RATE

    @property
    def vocabulary(self) -> int:
        return number(self.text, "vocab_size") or number(self.config, "vocab_size") or 2

    @cached_property
    def special(self) -> set[int]:
        """Ids of tokens with a meaning of their own."""
        fields = [field for part in all_parts(self.config) for field in vars(part).items()]
        named = [value for name, value in fields if name.endswith(("_token_id", "_token_index"))]
        flat = [one for value in named for one in (value if isinstance(value, (list, tuple)) else (value,))]
        return {one for one in flat if isinstance(one, int)}
