"""The towers that read a model's images, clips and sounds, as one workload: what a server runs before a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from memwall.core.errors import UsageError, need
from memwall.frontend.hf.asked import AskedModel
from memwall.frontend.hf.classes import build, model_class
from memwall.frontend.hf.config import read_config
from memwall.frontend.hf.inputs import feature_maker, front_inputs, front_tokens
from memwall.frontend.hf.processors import as_inputs, processed_frame, processed_images
from memwall.frontend.targets.contract import Workload


class _Towers(nn.Module):
    """The functions of a model that make features, each with inputs of its own; ``made`` is told of each size and its
    features."""

    def __init__(self, model: nn.Module, made: Callable[[str, Any], None]) -> None:
        super().__init__()
        self.model, self.made = model, made

    def forward(self, **given: Mapping[str, Any]) -> list[Any]:
        found = []
        for size, inputs in given.items():
            maker: Any = feature_maker(self.model, size)
            found.append(maker(**inputs))
            self.made(size, found[-1])
        return found


@dataclass(frozen=True)
class FrontTower:
    """The workload of what stands in front of a request's prompt and, once it ran, the tokens of each size; ``notes``
    say what was assumed."""

    workload: Workload
    tokens: dict[str, int]
    notes: tuple[str, ...]


def front_tower(path: Path, sizes: Mapping[str, Any]) -> FrontTower:
    """The towers of the configuration file or of the folder that holds one, for ``images``, one clip of ``video``
    frames, each of ``image`` pixels, and ``seconds`` of sound.

    Raises:
        UsageError: the model reads no such thing, or makes no tokens of it.
    """
    transformers: Any = need("transformers", "hf")
    read = read_config(transformers, path)
    kind = model_class(transformers, read, path)
    asked = AskedModel(read.config, kind, {**sizes, "batch": 1, "seq": 1}, training=False)
    if asked.config.is_encoder_decoder:
        raise UsageError(f"{kind.__name__} has its encoder in front of each prompt; leave out images, frames and sound")
    folder = path if path.is_dir() else path.parent
    images, notes = processed_images(folder, asked) if "images" in sizes else ({}, ())
    frame, doubts = processed_frame(folder, asked) if "video" in sizes else (None, ())
    if frame is not None:
        asked = replace(asked, sizes={**asked.sizes, "frame": frame})
    tokens: dict[str, int] = {}
    heights = [int(each[0]) for each in images.get("image_sizes", [asked.image] * asked.images)]

    def made(size: str, features: Any) -> None:
        tokens[size] = front_tokens(asked, size, features, heights)

    def inputs() -> dict[str, Any]:
        return front_inputs(asked, build(kind, read.config), as_inputs(images, asked))

    towers = Workload(
        lambda: _Towers(build(kind, read.config), made), inputs, None, None, f"{kind.__name__}'s towers", samples=1
    )
    return FrontTower(towers, tokens, (*notes, *doubts))
