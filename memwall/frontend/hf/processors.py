"""What a model's own processors make of images and frames: transformers' classes for the files that lie beside a
configuration. That of images is run on blank ones; of videos, whose classes want torchvision, the size of a frame is
followed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from memwall.core.files import read_json
from memwall.frontend.hf.asked import AskedModel
from memwall.frontend.targets.blame import first_line

if TYPE_CHECKING:
    from numpy import ndarray

#: the file that transformers writes for several processors, and for each kind its key there and its own file
_SHARED = "processor_config.json"
_FILES = {"image_processor": "preprocessor_config.json", "video_processor": "video_preprocessor_config.json"}
#: pixels that a processor of images is run on at most, of which each takes some 50 bytes meanwhile
_MOST_PIXELS = 50_000_000
#: processors of videos that keep the pixels of a frame between two bounds, or all pixels of a clip
_OF_FRAMES, _OF_CLIPS = ("Qwen2VLVideoProcessor",), ("Qwen3VLVideoProcessor",)


def _stated(folder: Path, kind: str) -> dict[str, Any] | None:
    """What a folder says of a processor; None: nothing."""
    for name, key in ((_FILES[kind], None), (_SHARED, kind)):
        read = read_json(folder / name) if (folder / name).is_file() else {}
        stated = read if key is None else read.get(key)
        if isinstance(stated, dict) and stated:
            return stated
    return None


def processed_images(folder: Path, asked: AskedModel) -> tuple[dict[str, ndarray], tuple[str, ...]]:
    """What the processor in a folder makes of as many images of the size that is asked for, nothing without a
    processor; and a note, where there is one that cannot be run."""
    if _stated(folder, "image_processor") is None:
        return {}, ()
    height, width = asked.stated_image
    if asked.images * height * width > _MOST_PIXELS:
        return {}, (f"the model's image processor is not run on more than {_MOST_PIXELS:,} pixels",)
    try:
        from PIL.Image import new
        from transformers import AutoImageProcessor

        processor: Any = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # PixtralProcessor has it make whole tokens
        whole = {"patch_size": asked.patch * asked.merge} if asked.vision.model_type == "pixtral" else {}
        made = processor([new("RGB", (width, height))] * asked.images, return_tensors="np", **whole)
    except Exception as error:  # whatever a processor raises, or a library that it imports
        return {}, (f"the model's image processor is not run: {first_line(error)[:120]}",)
    return _unpadded({name: array for name, array in made.items() if hasattr(array, "dtype")}), ()


def _unpadded(arrays: dict[str, ndarray]) -> dict[str, ndarray]:
    """Without the patches behind the last of an image, whose places are -1 (Gemma 4)."""
    places = arrays.get("image_position_ids")
    if places is None:
        return arrays
    last = int((places[0] >= 0).all(-1).sum())
    return {name: array[:, :last] if array.shape[:2] == places.shape[:2] else array for name, array in arrays.items()}


def as_inputs(arrays: Mapping[str, ndarray], asked: AskedModel) -> dict[str, Tensor]:
    """Tensors on the device of today: of whole numbers as they are, others of the same shape."""
    return {
        name: torch.randn(array.shape, dtype=asked.dtype) if array.dtype.kind == "f" else torch.tensor(array.tolist())
        for name, array in arrays.items()
    }


def processed_frame(folder: Path, asked: AskedModel) -> tuple[tuple[int, int] | None, tuple[str, ...]]:
    """Height and width that the processor in a folder gives to a frame, None without a processor; and a note, where
    there is one that memwall does not follow."""
    stated = _stated(folder, "video_processor")
    if stated is None:
        return None, ()
    name, bounds = str(stated.get("video_processor_type")), stated.get("size") or {}
    least, most = (
        stated.get(key) or bounds.get(edge)
        for key, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    if name not in (*_OF_FRAMES, *_OF_CLIPS) or not least or not most:
        return None, (f"the model's processor of videos, {name}, is not followed: frames are as they are asked for",)
    try:
        from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize

        frames, depth = (1, 1) if name in _OF_FRAMES else (max(asked.frames, asked.depth), asked.depth)
        height, width = asked.stated_image
        return smart_resize(frames, height, width, depth, asked.patch * asked.merge, least, most), ()
    except Exception as error:  # transformers lacks it, or it takes no such frames
        return None, (f"the model's processor of videos is not followed: {first_line(error)[:120]}",)
