"""The models of the zoo: which names there are in each library, and the workload of each, its layers cut.

A suite is a module-level class with ``names()`` and ``workload(name, mode, folder)``, which returns what
:func:`memwall.profile` takes. It raises :class:`NotBuildable` where the library itself cannot make the model.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from memwall import Workload


class NotBuildable(Exception):
    """The library cannot make the model from what it ships."""


class Suite(Protocol):
    """A library's models."""

    def names(self) -> list[str]: ...

    def workload(self, name: str, mode: str, folder: Path) -> Any: ...

    def gives_inputs(self, name: str, mode: str) -> bool:
        """Whether the inputs are known to be right, so that a failure on real tensors is the library's own."""
        ...

    def assumes(self, name: str, mode: str) -> tuple[str, ...]:
        """What is assumed of activations, beside what a trace assumes by itself."""
        return ()


# -- transformers ------------------------------------------------------------------------------------------------------

#: what a configuration calls its number of layers
_LAYERS = frozenset((
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers", "decoder_layers", "num_blocks",
    "num_encoder_layers", "num_decoder_layers", "num_decoder_hidden_layers", "num_conv_layers",
    "num_transformer_layers", "num_attention_layers", "encoder_num_layers",
    "decoder_num_layers", "num_stack_layers", "prenet_num_layers",
))  # fmt: skip
_KEPT_LAYERS = 2

_HEAD: Mapping[str, Any] = {"head_dim": 128}
_HORIZON: Mapping[str, Any] = {"prediction_length": 24}
_GLM: Mapping[str, Any] = {
    "head_dim": 128,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]
    },
}  # fmt: skip
_OMNI: Mapping[str, Any] = {"head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4}
#: model types whose configuration counts its layers elsewhere too
_WHOLE = frozenset(("clap", "mllama"))
#: model type → what its configuration has no default for, as its published models have it
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "autoformer": _HORIZON, "informer": _HORIZON, "time_series_transformer": _HORIZON,
    "blip-2": {"image_token_index": 50265}, "instructblip": {"image_token_index": 32000},
    "instructblipvideo": {"video_token_index": 32000},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": _HEAD, "hunyuan_v1_moe": _HEAD, "ministral": _HEAD,
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "dots1": {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 6},
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_image_text"), _GLM),
    **{name: {"text_config": _GLM} for name in ("glm46v", "glm4v", "glm4v_moe", "glm_image", "glmga")},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 151652},
    "qwen3_omni_moe_thinker": {"text_config": _OMNI},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention"] * 10 + ["conv"] * 2},
}  # fmt: skip


def cut(config: Any) -> Any:
    """A configuration's dictionary with at most two layers, in all of its parts; lists with an entry for each layer
    shrink with it."""
    if isinstance(config, list):
        return [cut(item) for item in config]
    if not isinstance(config, dict):
        return config
    counts = {value for key, value in config.items() if key in _LAYERS and type(value) is int and value > _KEPT_LAYERS}
    made = {}
    for key, value in config.items():
        if key in _LAYERS and type(value) is int:
            made[key] = min(value, _KEPT_LAYERS)
        elif isinstance(value, list) and len(value) in counts and key != "architectures":
            made[key] = value[:_KEPT_LAYERS]
        else:
            made[key] = cut(value)
    return made


#: model types whose default configuration transformers itself cannot run, whatever the inputs → why; the zoo runs them
#: on real tensors as well, and counts them apart only where that fails too
_NOT_RUNNABLE: Mapping[str, str] = {
    **dict.fromkeys(("edgetam", "edgetam_vision_model"), "a misspelt key: another backbone is built"),
    "pp_ocrv6_small_det": "a neck for another backbone",
    "uvdoc": "a head for stages that the backbone does not return",
    "lw_detr": "no scale for its projector",
    "higgs_audio_v2_tokenizer": "two encoders with different numbers of frames",
}
#: models that it cannot run in training → why
_NOT_TRAINABLE: Mapping[str, str] = dict.fromkeys(
    ("sam2_video", "sam3_tracker_video", "edgetam_video"), "scores that it keeps outside of training, yet reads always"
)
#: what holds where a trace by itself would assume otherwise: no pair of images is matched before the last layer
_ASSUMED: Mapping[str, tuple[str, ...]] = {"lightglue": ("condition=false",)}


class Transformers(Suite):
    """Every model type that transformers has a base model for, from its default configuration."""

    def gives_inputs(self, name: str, mode: str) -> bool:
        return name in _NOT_RUNNABLE or (mode == "training" and name in _NOT_TRAINABLE)

    def assumes(self, name: str, mode: str) -> tuple[str, ...]:
        return _ASSUMED.get(name, ())

    def names(self) -> list[str]:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

        return sorted(set(CONFIG_MAPPING) & set(MODEL_MAPPING_NAMES))

    def workload(self, name: str, mode: str, folder: Path) -> str:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                whole = CONFIG_MAPPING[name](**NEEDED.get(name, {}))
                config = self.buildable(CONFIG_MAPPING[name], whole)
            except NotBuildable:
                raise
            except Exception as error:
                raise NotBuildable(f"{type(error).__name__}: {error}") from error
        config.save_pretrained(folder)
        return f"hf:{folder}"

    def buildable(self, kind: Any, whole: Any) -> Any:
        """The cut configuration, or the whole one where a model needs all of its layers."""
        failed: Exception | None = None
        shorter = None if whole.model_type in _WHOLE else cut(json.loads(whole.to_json_string(use_diff=False)))
        for made in (shorter, None):
            try:
                config = whole if made is None else kind.from_dict(made)
                self._build(config)
                return config
            except Exception as error:
                failed = error
        raise NotBuildable(f"{type(failed).__name__}: {failed}")

    def _build(self, config: Any) -> None:
        from transformers import AutoModel

        try:
            with torch.device("meta"):
                AutoModel.from_config(config)
        except Exception as error:
            if "meta" not in str(error):
                raise
            AutoModel.from_config(config)  # its building needs data


# -- timm, torchvision -------------------------------------------------------------------------------------------------


class OwnInputs(Suite):
    """A library whose models the zoo calls with inputs of its own."""

    def gives_inputs(self, name: str, mode: str) -> bool:
        return True


class Timm(OwnInputs):
    """The smallest-named model of each module of timm, at its own image size."""

    def names(self) -> list[str]:
        import timm

        return [name for module in timm.list_modules() for name in timm.list_models(module=module)[:1]]

    def workload(self, name: str, mode: str, folder: Path) -> Workload:
        import timm

        size = (
            timm.get_pretrained_cfg(name, allow_unregistered=True).input_size
            if timm.is_model_pretrained(name)
            else None
        )
        shape = size or (3, 224, 224)
        return Workload(lambda: timm.create_model(name), lambda: (torch.randn(2, *shape),), name=name)


class Torchvision(OwnInputs):
    """All models of torchvision: one image of 224 (two in training), 16 frames of video, targets for detectors."""

    def assumes(self, name: str, mode: str) -> tuple[str, ...]:
        """Detectors look in training whether boxes are degenerate: none is."""
        import torchvision

        is_detector = ".detection" in torchvision.models.get_model_builder(name).__module__
        return ("condition=false",) if is_detector and mode == "training" else ()

    def names(self) -> list[str]:
        import torchvision

        return torchvision.models.list_models()

    def workload(self, name: str, mode: str, folder: Path) -> Workload:
        import torchvision

        def model() -> nn.Module:
            options: dict[str, Any] = {"weights": None}
            if "weights_backbone" in inspect.signature(torchvision.models.get_model_builder(name)).parameters:
                options["weights_backbone"] = None
            return torchvision.models.get_model(name, **options)

        return Workload(model, lambda: self._inputs(name, mode), name=name)

    def _inputs(self, name: str, mode: str) -> tuple[Any, ...]:
        import torchvision

        home = torchvision.models.get_model_builder(name).__module__
        if ".detection" in home:
            images = [torch.randn(3, 480, 640) for _ in range(2)]
            return (images, [self._target(name) for _ in images]) if mode == "training" else (images,)
        if ".optical_flow" in home:
            return (torch.randn(1, 3, 256, 256), torch.randn(1, 3, 256, 256))
        if ".video" in home:
            return (torch.randn(1, 3, 16, 224, 224),)
        return (torch.randn(2, 3, *((299, 299) if "inception" in name else (224, 224))),)

    def _target(self, name: str) -> dict[str, torch.Tensor]:
        target = {"boxes": torch.tensor([[20.0, 30.0, 200.0, 220.0], [100.0, 50.0, 400.0, 300.0]]),
                  "labels": torch.tensor([1, 1])}  # fmt: skip
        if "mask" in name:
            target["masks"] = torch.ones(2, 480, 640, dtype=torch.uint8)
        if "keypoint" in name:
            target["keypoints"] = torch.tensor([[[50.0, 60.0, 1.0]] * 17, [[200.0, 100.0, 1.0]] * 17])
        return target


# -- models of which each needs its own inputs -------------------------------------------------------------------------

Made = tuple[nn.Module, Any]


class Listed(OwnInputs):
    """Models listed with their inputs: name → a function that makes both."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._table = table

    def names(self) -> list[str]:
        return list(self._table)

    def workload(self, name: str, mode: str, folder: Path) -> Workload:
        model, inputs = self._table[name]
        return Workload(model, inputs, name=name)


def _diffusers() -> Listed:
    from zoo_models.diffusers_models import MODELS

    return Listed(MODELS)


def _torchaudio() -> Listed:
    from zoo_models.torchaudio_models import MODELS

    return Listed(MODELS)


def _pyg() -> Listed:
    from zoo_models.pyg_models import MODELS

    return Listed(MODELS)


SUITES: Mapping[str, Any] = {
    "transformers": Transformers, "timm": Timm, "torchvision": Torchvision, "diffusers": _diffusers,
    "torchaudio": _torchaudio, "torch_geometric": _pyg,
}  # fmt: skip
