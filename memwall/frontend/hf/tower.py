"""The tower that reads a model's images, as a workload of its own: what a server runs before a prompt with images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from memwall.core.errors import UsageError, need
from memwall.frontend.hf.asked import AskedModel
from memwall.frontend.hf.classes import build, model_class
from memwall.frontend.hf.config import read_config
from memwall.frontend.hf.inputs import image_inputs
from memwall.frontend.targets.contract import Workload


class _Tower(nn.Module):
    """The model's function that makes features of images, which its part ``model`` may have."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, **given: Any) -> Any:
        home: Any = self.model if hasattr(self.model, self.name) else self.model.model
        return getattr(home, self.name)(**given)


@dataclass(frozen=True)
class ImageTower:
    """The workload of a request's images, and, once its inputs were made, the tokens that they become."""

    workload: Workload
    tokens: list[int]


def image_tower(path: Path, sizes: Mapping[str, Any]) -> ImageTower:
    """The tower of the configuration file or of the folder that holds one, for ``images`` of ``image`` pixels.

    Raises:
        UsageError: the model reads no images, or makes no tokens of them.
    """
    transformers: Any = need("transformers", "hf")
    read = read_config(transformers, path)
    kind = model_class(transformers, read, path)
    asked = AskedModel(read.config, kind, {**sizes, "batch": 1, "seq": 1}, training=False)
    if "images" not in asked.fronts or asked.config.is_encoder_decoder:
        raise UsageError(f"{kind.__name__} reads no images: leave out --images")
    tokens: list[int] = []

    def model() -> nn.Module:
        return _Tower(build(kind, read.config), "get_image_features")

    def inputs() -> dict[str, Any]:
        made, count = image_inputs(asked, lambda: build(kind, read.config))
        tokens.append(count)
        return made

    return ImageTower(Workload(model, inputs, None, None, f"{kind.__name__}'s tower", samples=1), tokens)
