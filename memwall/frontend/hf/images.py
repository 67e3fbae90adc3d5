"""Images and videos as each family's processor hands them to the model, by what the model's forward takes.

Sources: ``image_processing_*.py`` and ``processing_*.py`` of transformers 5.23. The number of tokens that an image
becomes is asked of the model (:mod:`.inputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.frontend.hf.asked import AskedModel, number, pair

Tensors = dict[str, Tensor]


def _plain(asked: AskedModel) -> Tensors:
    """(images, channels, height, width)."""
    shape = (asked.pictures, asked.channels, *asked.image)
    return {"pixel_values": torch.randn(shape, dtype=asked.dtype)}


def _clip(asked: AskedModel) -> Tensors:
    """(batch, frames, channels, height, width)."""
    shape = (asked.batch, asked.frames, asked.channels, *asked.image)
    return {"pixel_values": torch.randn(shape, dtype=asked.dtype)}


def _rows_of_patches(asked: AskedModel, count: int, frames: int) -> tuple[Tensor, Tensor]:
    """(patches, values) of so many images or clips in a row, and the grid of each in time, height and width: a patch
    has as many frames as the tower takes together, of which an image is one and the last of a clip is repeated
    (image_processing_qwen2_vl.py, video_processing_qwen2_vl.py)."""
    height, width = (size // asked.patch for size in asked.image)
    rows = -(-frames // asked.depth)
    values = asked.channels * asked.depth * asked.patch * asked.patch
    pixels = torch.randn((count * rows * height * width, values), dtype=asked.dtype)
    return pixels, torch.tensor([[rows, height, width]] * count, dtype=torch.int64)


def _patches(asked: AskedModel) -> Tensors:
    """Qwen2-VL and what follows it: all patches of all images in a row, and their grids."""
    pixels, grid = _rows_of_patches(asked, asked.pictures, 1)
    merged = torch.full((asked.pictures,), asked.merge, dtype=torch.int64)  # VideoLLaMA 3 merges others in videos
    return {
        "pixel_values": pixels,
        "hidden_states": pixels,
        "image_grid_thw": grid,
        "grid_thw": grid,
        "image_merge_sizes": merged,
        "merge_sizes": merged,
    }


def _flat_patches(asked: AskedModel) -> Tensors:
    """SigLIP 2 and LFM2-VL: the patches of each image in a row, a mask of patches that are there, and the grid
    (image_processing_siglip2.py)."""
    most = number(asked.vision, "num_patches") or number(asked.config, "max_num_patches") or 256
    side = int(most**0.5)
    height, width = (size // asked.patch for size in asked.sizes.get("image", (side * asked.patch,) * 2))
    values = asked.channels * asked.patch * asked.patch
    return {
        "pixel_values": torch.randn((asked.pictures, height * width, values), dtype=asked.dtype),
        "pixel_attention_mask": torch.ones((asked.pictures, height * width), dtype=torch.int64),
        "spatial_shapes": torch.tensor([[height, width]] * asked.pictures, dtype=torch.int64),
    }


def _positioned_patches(asked: AskedModel) -> Tensors:
    """Gemma 4: patches in a row with the column and row of each (image_processing_gemma4.py)."""
    pixels, places = _placed(asked, asked.pictures)
    return {"pixel_values": pixels, "image_position_ids": places, "pixel_position_ids": places}


def _placed(asked: AskedModel, count: int) -> tuple[Tensor, Tensor]:
    """(pictures, patches, values), and (pictures, patches, 2) columns and rows."""
    pool = number(asked.vision, "pooling_kernel_size") or 1
    step = asked.patch * pool
    height, width = (max(size // step, 1) * pool for size in asked.image)
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack((columns, rows), -1).reshape(1, height * width, 2).repeat(count, 1, 1)
    values = asked.channels * asked.patch * asked.patch
    return torch.randn((count, height * width, values), dtype=asked.dtype), places


def _aspect_tiles(asked: AskedModel) -> Tensors:
    """Llama 3.2 Vision: (batch, images, tiles, channels, height, width), one tile of four filled
    (image_processing_mllama.py)."""
    tiles = number(asked.vision, "max_num_tiles") or 4
    lead = (asked.batch, asked.images)
    mask = torch.zeros((*lead, tiles), dtype=torch.int64)
    mask[..., 0] = 1
    cross = torch.zeros((asked.batch, asked.seq, asked.images, tiles), dtype=torch.int64)
    cross[..., 0] = 1
    return {
        "pixel_values": torch.randn((*lead, tiles, asked.channels, *asked.image), dtype=asked.dtype),
        "aspect_ratio_ids": torch.ones(lead, dtype=torch.int64),
        "aspect_ratio_mask": mask,
        "cross_attention_mask": cross,
    }


def _any_resolution(asked: AskedModel) -> Tensors:
    """LLaVA-NeXT: the image scaled down, and tiles of it: (images, 1 + tiles, channels, height, width), with the size
    before; the grid with the least tiles (image_processing_llava_next.py)."""
    side = asked._trained_image
    grids = [found for each in asked.config.image_grid_pinpoints if (found := pair(each)) is not None]
    height, width = asked.sizes.get("image") or min(grids, key=lambda grid: grid[0] * grid[1])
    best = min(grids, key=lambda grid: _misfit(grid, (height, width)))
    tiles = 1 + (best[0] // side[0]) * (best[1] // side[1])
    return {
        "pixel_values": torch.randn((asked.pictures, tiles, asked.channels, *side), dtype=asked.dtype),
        "image_sizes": torch.tensor([[height, width]] * asked.pictures, dtype=torch.int64),
    }


def _misfit(grid: tuple[int, int], image: tuple[int, int]) -> tuple[float, float]:
    """Less is better: resolution lost, then resolution wasted (select_best_resolution of image_processing_utils.py)."""
    scale = min(grid[0] / image[0], grid[1] / image[1])
    kept = min(int(image[0] * scale) * int(image[1] * scale), image[0] * image[1])
    return -kept, grid[0] * grid[1] - kept


def _sized(asked: AskedModel) -> Tensors:
    """Pixtral: (images, channels, height, width) and the size of each."""
    made = _plain(asked)
    return {**made, "image_sizes": torch.tensor([list(asked.image)] * asked.pictures, dtype=torch.int64)}


def _masked(asked: AskedModel) -> Tensors:
    """Idefics: (batch, images, channels, height, width), a mask of the pixels that are there, and in its first version
    of the images that each token sees."""
    lead = (asked.batch, asked.images)
    return {
        "pixel_values": torch.randn((*lead, asked.channels, *asked.image), dtype=asked.dtype),
        "pixel_attention_mask": torch.ones((*lead, *asked.image), dtype=torch.int64),
        "image_attention_mask": torch.ones((asked.batch, asked.seq, asked.images), dtype=torch.int64),
    }


def _strips(asked: AskedModel) -> Tensors:
    """MiniCPM-V: the patches of all images side by side, (1, channels, patch, patches x patch), and the patches of each
    along its height and width, multiples of 4: the tower merges 2 x 2 twice (image_processing_minicpmv4_6.py)."""
    height, width = (max(size // (4 * asked.patch), 1) * 4 for size in asked.image)
    strip = (1, asked.channels, asked.patch, asked.pictures * height * width * asked.patch)
    return {
        "pixel_values": torch.randn(strip, dtype=asked.dtype),
        "target_sizes": torch.tensor([[height, width]] * asked.pictures, dtype=torch.int32),
    }


def _two_resolutions(asked: AskedModel) -> Tensors:
    """DeepSeek-VL hybrid: each image for both towers, each at the size that its tower was trained with."""
    side = pair(getattr(asked.config.high_res_vision_config, "image_size", None)) or asked.image
    shape = (asked.pictures, asked.channels, *side)
    return {**_plain(asked), "high_res_pixel_values": torch.randn(shape, dtype=asked.dtype)}


#: Patches that two neighbouring crops of Molmo 2 share, and crops of an image at most.
_SHARED, _MOST_CROPS = 8, 8


def _overlapping_crops(asked: AskedModel) -> Tensors:
    """Molmo 2: each image as one crop and cut into crops that overlap, (crops, patches, values); for each token the
    2 x 2 patches that it pools, -1 beyond the edge; and the tokens of both along height and width
    (image_processing_molmo2.py)."""
    side = asked._trained_image[0] // asked.patch
    down, across = _tiling(asked.stated_image, side, asked.patch)
    sizes = [(side, side), (down * (side - _SHARED) + _SHARED, across * (side - _SHARED) + _SHARED)]
    pooled = []
    for first, (rows, columns) in zip((0, side * side), sizes, strict=True):
        places = torch.arange(first, first + rows * columns).reshape(rows, columns)
        places = functional.pad(places, (0, columns % 2, 0, rows % 2), value=-1)
        pooled.append(places.unfold(0, 2, 2).unfold(1, 2, 2).reshape(-1, 4))
    each, crops = torch.cat(pooled), 1 + down * across
    shape = (asked.pictures * crops, side * side, asked.channels * asked.patch**2)
    grid = [(size + 1) // 2 for view in sizes for size in view]
    firsts = (torch.arange(asked.pictures) * crops * side * side)[:, None, None]
    return {
        "pixel_values": torch.randn(shape, dtype=asked.dtype),
        "image_token_pooling": torch.where(each < 0, each, each + firsts).reshape(-1, 4),
        "image_grids": torch.tensor([grid] * asked.pictures),
        "image_num_crops": torch.full((asked.pictures,), crops),
    }


def _tiling(image: tuple[int, int], side: int, patch: int) -> tuple[int, int]:
    """Crops along height and width: crops that enlarge the image least, else reduce it least."""
    window = (side - _SHARED) * patch
    tilings = sorted(
        ((down, across) for down in range(1, _MOST_CROPS + 1) for across in range(1, _MOST_CROPS // down + 1)),
        key=lambda tiling: (tiling[0] * tiling[1], tiling[0]),
    )
    inner = [max(size - _SHARED * patch, 1) for size in image]
    scales = {
        tiling: min(count * window / size for count, size in zip(tiling, inner, strict=True)) for tiling in tilings
    }
    enlarging = {tiling: scale for tiling, scale in scales.items() if scale >= 1}
    return min(enlarging, key=enlarging.__getitem__) if enlarging else max(scales, key=scales.__getitem__)


def _cameras(asked: AskedModel) -> Tensors:
    """pi0: (batch, cameras, channels, height, width), which cameras there are, and a token for each patch in front of
    the text (processing_pi0.py)."""
    from memwall.frontend.hf.makers import MAKERS

    lead = (asked.batch, asked.images)
    patches = asked.images * (asked.image[0] // asked.patch) * (asked.image[1] // asked.patch)
    tokens = torch.full((asked.batch, patches), asked.config.vlm_config.image_token_id)
    return {
        "pixel_values": torch.randn((*lead, asked.channels, *asked.image), dtype=asked.dtype),
        "pixel_attention_mask": torch.ones(lead, dtype=torch.bool),
        "input_ids": torch.cat((tokens, MAKERS["input_ids"](asked)), 1),
    }


def _token_blocks(asked: AskedModel) -> Tensors:
    """Inkling 2: for each token of an image its block of merged patches, (tokens, side, side, channels), and the grid
    of each image counted in tokens (image_processing_inkling2.py)."""
    side = asked.patch * asked.merge
    height, width = (max(size // side, 1) for size in asked.image)
    return {
        "pixel_values": torch.randn((asked.pictures * height * width, side, side, asked.channels), dtype=asked.dtype),
        "image_grid_thw": torch.tensor([[1, height, width]] * asked.pictures, dtype=torch.int64),
    }


#: What a forward takes → how its images come; the first that fits.
_LAYOUTS: tuple[tuple[Callable[[AskedModel], bool], Callable[[AskedModel], Tensors]], ...] = (
    (lambda a: a.takes("image_grid_thw") or a.takes("grid_thw"), _patches),
    (lambda a: a.takes("target_sizes"), _strips),
    (lambda a: a.takes("high_res_pixel_values"), _two_resolutions),
    (lambda a: a.takes("image_token_pooling"), _overlapping_crops),
    (lambda a: a.takes("aspect_ratio_ids"), _aspect_tiles),
    (lambda a: a.takes("image_position_ids") or a.takes("pixel_position_ids"), _positioned_patches),
    (lambda a: a.takes("pixel_attention_mask", "spatial_shapes"), _flat_patches),
    (lambda a: bool(getattr(a.config, "image_grid_pinpoints", None)), _any_resolution),
    (lambda a: a.takes("image_sizes") and a.vision.model_type == "pixtral", _sized),
    (lambda a: a.takes("pixel_attention_mask"), _masked),
    (lambda a: number(a.vision, "num_frames", "frames_per_clip") is not None, _clip),
    (lambda a: True, _plain),
)


def images(asked: AskedModel) -> Tensors:
    """The images of a batch, with what goes with them; forward may take fewer of these."""
    layout = _BY_TYPE.get(asked.config.model_type) or next(made for fits, made in _LAYOUTS if fits(asked))
    return layout(asked)


def _pairs(asked: AskedModel) -> Tensors:
    """Two images to find the same points in: (batch, 2, channels, height, width)."""
    return {"pixel_values": torch.randn((asked.batch, 2, asked.channels, *asked.image), dtype=asked.dtype)}


def _square_patches(asked: AskedModel) -> Tensors:
    """Kimi K2.5, PaddleOCR-VL: as Qwen2-VL, each patch (channels, height, width) of one frame
    (image_processing_kimi_k25.py)."""
    made = _patches(asked)
    shape = (-1, asked.channels, asked.patch, asked.patch)
    return {**made, "pixel_values": made["pixel_values"].reshape(shape)}


#: Model types whose patches are (channels, height, width) of one frame.
_SQUARE = ("kimi_k25", "kimi_k25_vision", "paddleocr_vl")

#: Model types whose forward does not tell.
_BY_TYPE: Mapping[str, Callable[[AskedModel], Tensors]] = {
    "efficientloftr": _pairs, "lightglue": _pairs, "superglue": _pairs,
    "idefics": _masked, "instructblipvideo": _clip,
    **dict.fromkeys(_SQUARE, _square_patches),
    "neomme": _patches, "pi0": _cameras, "inkling2": _token_blocks, "inkling2_vision": _token_blocks,
}  # fmt: skip


def _clips_of_patches(asked: AskedModel) -> Tensors:
    """Qwen2-VL and what follows it: all patches of all clips in a row, and their grids."""
    pixels, grid = _rows_of_patches(asked, asked.batch, asked.frames)
    if asked.config.model_type in _SQUARE:
        pixels = pixels.reshape(-1, asked.channels, asked.patch, asked.patch)
    merged = torch.full((asked.batch,), asked.merge, dtype=torch.int64)
    return {"pixel_values_videos": pixels, "video_grid_thw": grid, "video_merge_sizes": merged}


def _placed_frames(asked: AskedModel) -> Tensors:
    """Gemma 4: each frame as an image, and the frames of each clip."""
    pixels, places = _placed(asked, asked.batch * asked.frames)
    frames = torch.full((asked.batch,), asked.frames, dtype=torch.int64)
    return {"pixel_values_videos": pixels, "video_position_ids": places, "num_frames_per_video": frames}


def videos(asked: AskedModel) -> Tensors:
    """The clips of a batch, of ``frame`` pixels where a processor says so; (batch, frames, channels, height, width)
    where the model asks for nothing else."""
    if "frame" in asked.sizes:
        asked = replace(asked, sizes={**asked.sizes, "image": asked.sizes["frame"]})
    if asked.takes("video_grid_thw"):
        return _clips_of_patches(asked)
    if asked.takes("video_position_ids"):
        return _placed_frames(asked)
    shape = (asked.batch, asked.frames, asked.channels, *asked.image)
    return {"pixel_values_videos": torch.randn(shape, dtype=asked.dtype)}


def tokens_of(features: Any, width: int) -> int:
    """Tokens that image features are: rows as wide as the text's; a UsageError where they are not."""
    found = getattr(features, "pooler_output", features)
    tensors = [tensor for tensor in compat.tree_leaves(found) if hasattr(tensor, "numel")]
    if any(tensor.shape[-1] != width for tensor in tensors):
        raise UsageError(f"its features are {tensors[0].shape[-1]} wide, tokens of text are {width}")
    return sum(tensor.numel() for tensor in tensors) // width
