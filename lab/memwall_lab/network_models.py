"""Networks of libraries that others timed, by name: timm's, U-Nets of diffusers, torchvision's.

The libraries are optional, and installed without what they depend on (``pip install --no-deps timm diffusers
importlib_metadata zipp``): none of their weights and pictures is needed, nor torchvision, which wants a torch of its
own: its networks are from :mod:`memwall_lab.convnets`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from memwall.bench.accuracy.kinds import Skip
from memwall.core.files import uncollected
from memwall.frontend.targets import Workload
from memwall.hardware.torch_versions import TORCH
from memwall.record.profile import Profile

if TYPE_CHECKING:
    from torch import Tensor, nn

#: the oldest version of torch that is modeled, for times of older ones too
OLDEST = next(iter(TORCH))


@dataclass(frozen=True, slots=True)
class NetworkStep:
    """One step of a network: the library that builds it, its name there, images of a batch, and the side of one in
    pixels (of a U-Net, of a latent). ``dtype``: of model and input; ``autocast``: of a forward on float32 weights;
    ``searched``: cuDNN searches its engines (``cudnn.benchmark``); ``torch``: its version."""

    library: str
    name: str
    batch: int
    side: int
    mode: str = "inference"
    dtype: str | None = None
    autocast: str | None = None
    channels_last: bool = False
    searched: bool = True
    torch: str = OLDEST


@lru_cache(maxsize=256)
@uncollected()
def traced(step: NetworkStep) -> Profile:
    """The profile of a step, without an optimizer. Raises :class:`Skip`: its library, or the model there, is not
    here."""
    from torch.nn.functional import cross_entropy

    from memwall import pipeline
    from memwall_lab.convnets import KeptGradients

    def loss(output: Any) -> Tensor:
        return cross_entropy(output.float(), output.new_zeros(step.batch, dtype=int))

    in_training: dict[str, Any] = {"optimizer": KeptGradients, "loss": loss} if step.mode == "training" else {}
    with _switched(step.searched):
        return pipeline.profile(
            _LIBRARIES[step.library](step), gpu="a100-80gb-sxm", mode=step.mode, dtype=step.dtype,
            autocast=step.autocast, torch=step.torch, **in_training,
        )  # fmt: skip


@contextmanager
def _switched(searched: bool) -> Iterator[None]:
    """With or without ``cudnn.benchmark``, which a trace records with each convolution, and with matmuls of float32 in
    TF32 where a GPU has it, as all of these tables were timed."""
    from torch.backends import cuda, cudnn

    before = cudnn.benchmark, cuda.matmul.allow_tf32
    cudnn.benchmark, cuda.matmul.allow_tf32 = searched, True
    try:
        yield
    finally:
        cudnn.benchmark, cuda.matmul.allow_tf32 = before


def _laid_out(step: NetworkStep, kind: Any) -> Any:
    """A module or a tensor in the layout of a step."""
    import torch

    return kind.to(memory_format=torch.channels_last) if step.channels_last else kind


# -- timm --------------------------------------------------------------------------------------------------------------


def _timm_model(step: NetworkStep) -> Workload:
    import torch

    timm = _timm()
    if not timm.is_model(step.name):
        raise Skip(f"timm {timm.__version__} has no such model")
    shape = step.batch, 3, step.side, step.side
    return Workload(
        lambda: _laid_out(step, timm.create_model(step.name)),
        lambda: (_laid_out(step, torch.randn(shape)),),
        name=step.name,
    )


class _AnyName(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _NoLibrary(ModuleType):
    """A module any name of which is a class, any name of which is a string."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {})


#: what timm imports of torchvision, for pictures and for trees of features, neither of which a step has
_TORCHVISION = (
    "torchvision", "torchvision.datasets", "torchvision.models", "torchvision.models.feature_extraction",
    "torchvision.ops", "torchvision.ops.misc", "torchvision.transforms", "torchvision.transforms.functional",
)  # fmt: skip


@lru_cache(maxsize=1)
def _timm() -> Any:
    """timm, where torchvision is missing with empty modules in its place while timm is imported."""
    if find_spec("timm") is None:
        raise Skip("timm is not installed (pip install --no-deps timm)")
    made: dict[str, ModuleType] = {}
    if find_spec("torchvision") is None:
        for name in _TORCHVISION:
            made[name] = _NoLibrary(name)
            made[name].__spec__, made[name].__path__ = ModuleSpec(name, None), []
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, made[name])
    sys.modules.update(made)
    try:
        import timm
        import timm.layers.fast_norm as norms
    finally:
        for name in made:
            del sys.modules[name]
    # GroupNorm and LayerNorm stay in autocast's dtype: in float32 the norms of efficientnet_b0_gn and what follows them
    # would move more bytes than the memory of an RTX 3090 does in its whole step
    norms.set_fast_norm(True)
    return timm


# -- torchvision ------------------------------------------------------------------------------------------------------


def _classic(step: NetworkStep) -> Workload:
    import torch

    from memwall_lab.convnets import NETS

    if step.name not in NETS:
        raise Skip("there is no such network of torchvision here")
    shape = step.batch, 3, step.side, step.side
    return Workload(lambda: _laid_out(step, NETS[step.name][0]()), lambda: (torch.randn(shape),), name=step.name)


# -- diffusers ---------------------------------------------------------------------------------------------------------

#: name of a U-Net → its configuration, beside what is common (the published models' ``unet/config.json``)
_UNETS: Mapping[str, Mapping[str, Any]] = {
    "SD": {"cross_attention_dim": 768},
    "SD inpaint": {"cross_attention_dim": 768, "in_channels": 9},
    "SDXL": {
        "cross_attention_dim": 2048, "attention_head_dim": [5, 10, 20], "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", *2 * ("CrossAttnDownBlock2D",)),
        "up_block_types": (*2 * ("CrossAttnUpBlock2D",), "UpBlock2D"), "transformer_layers_per_block": [1, 2, 10],
        "use_linear_projection": True, "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
}  # fmt: skip
#: tokens of a prompt, as CLIP's encoder has them
_PROMPT = 77


def _unet(step: NetworkStep) -> Workload:
    if find_spec("diffusers") is None:
        raise Skip("diffusers is not installed (pip install --no-deps diffusers importlib_metadata zipp)")
    import torch
    from diffusers import ControlNetModel, UNet2DConditionModel

    name, _, control = step.name.partition(" + ")
    options = dict(_UNETS[name])
    width = options["cross_attention_dim"]

    def model() -> nn.Module:
        unet = UNet2DConditionModel(**options)
        return _laid_out(step, _controlled()(unet, ControlNetModel(cross_attention_dim=width)) if control else unet)

    def inputs() -> dict[str, Any]:
        latents = torch.randn(step.batch, options.get("in_channels", 4), step.side, step.side)
        given: dict[str, Any] = {
            "sample": _laid_out(step, latents), "timestep": torch.tensor(500),
            "encoder_hidden_states": torch.randn(step.batch, _PROMPT, width),
        }  # fmt: skip
        if "addition_embed_type" in options:
            added = {"text_embeds": torch.randn(step.batch, 1280), "time_ids": torch.randn(step.batch, 6)}
            given["added_cond_kwargs"] = added
        if control:
            given["picture"] = torch.randn(step.batch, 3, 8 * step.side, 8 * step.side)
        return given

    return Workload(model, inputs, name=step.name)


def _controlled() -> Callable[..., Any]:
    """The module of a U-Net that a ControlNet steers."""
    from torch import nn

    class Controlled(nn.Module):
        def __init__(self, unet: nn.Module, control: nn.Module) -> None:
            super().__init__()
            self.unet, self.control = unet, control

        def forward(self, picture: Tensor, **given: Any) -> Any:
            down, middle = self.control(controlnet_cond=picture, return_dict=False, **given)
            more = {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
            return self.unet(**given, **more)

    return Controlled


#: library → the workload of a step of its
_LIBRARIES: Mapping[str, Callable[[NetworkStep], Workload]] = {
    "timm": _timm_model, "diffusers": _unet, "torchvision": _classic,
}  # fmt: skip
