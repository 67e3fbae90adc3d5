"""The inputs of a model as its processor would make them, from the configuration alone.

Which there are follows from what forward takes: its main input, what it cannot do without, and what goes with those.
Images are put into the ids as tokens, as many as the model itself makes of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memwall.core.errors import UsageError
from memwall.frontend.hf.asked import COLUMN_RATE, POSITIONS, AskedModel, number
from memwall.frontend.hf.images import images, tokens_of, videos
from memwall.frontend.hf.makers import MAKERS
from memwall.frontend.targets.blame import first_line

Note = Callable[[str], None]

#: What goes with other inputs where forward takes it, though it has a default.
_WITH: Mapping[str, tuple[str, ...]] = {
    "input_ids": ("bbox", "qformer_input_ids", "visual_feats", "visual_pos"),
    "input_features": ("input_features_mask", "feature_attention_mask", "is_longer"),
    "query_embeds": ("encoder_hidden_states",),
    "pixel_values": ("input_points", "image_embeds_position_mask"),
    "state": ("noise", "timestep"),
    "inference_session": ("frame_idx",),
    "past_values": ("past_time_features", "past_observed_mask", "future_time_features"),
    "future_time_features": ("future_values",),  # decoded with the past
    "states": ("actions", "rewards", "returns_to_go", "timesteps"),
}


def make_inputs(asked: AskedModel, model: Callable[[], Any], note: Note) -> dict[str, Tensor]:
    """The inputs of forward by name. ``model`` builds the module, which is asked how many tokens an image becomes;
    ``note`` is told what is left out.

    Raises:
        UsageError: forward needs an input that memwall cannot make.
    """
    asked = _with_positions(asked, model)
    made = dict(_made(asked))
    unknown = [name for name in asked.required if name not in made]
    if unknown:
        raise UsageError(_unknown_input(asked, unknown[0]))
    return _with_tokens(asked, made, model, note)


def with_mask(asked: AskedModel, made: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inputs with a mask that says that nothing is padded, where this transformers (4.56) takes a batch that has
    neither mask nor cache for packed sequences, and keeps them apart by masks of its own: a tokenizer gives one."""
    find = getattr(sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices", None)
    masks = hasattr(sys.modules[asked.model.__module__], "create_causal_mask")
    if not masks or "input_ids" not in made or "attention_mask" in made or not asked.takes("attention_mask"):
        return made
    if find is None or find(torch.arange(2, device="cpu")[None]) is None:
        return made
    return {**made, "attention_mask": torch.ones_like(made["input_ids"])}


def _with_positions(asked: AskedModel, model: Callable[[], Any]) -> AskedModel:
    """What is asked for, with the positions that are left where padding has the first ones, as in RoBERTa: a
    multiple of 8, as batches are padded to."""
    from torch.nn import Embedding

    most = number(asked.text, *POSITIONS)
    padding = getattr(asked.text, "pad_token_id", None)
    if most is None or type(padding) is not int or not asked.takes("input_ids"):
        return asked
    left = (most - padding - 1) // 8 * 8
    if left < 8 or left >= asked.seq:
        return asked
    tables = [each for each in model().modules() if isinstance(each, Embedding)]
    offset = any(each.num_embeddings == most and each.padding_idx == padding for each in tables)
    return replace(asked, positions=left) if offset else asked


def _unknown_input(asked: AskedModel, name: str) -> str:
    kind = asked.parameters[name].annotation
    if inspect.isclass(kind) and kind.__name__.endswith("Session"):
        parts = ", ".join(dict.fromkeys(p.model_type for p in vars(asked.config).values() if hasattr(p, "model_type")))
        return (
            f"{asked.model.__name__} tracks in a {kind.__name__} what it finds, and that needs data;"
            f" profile the configuration of one of its parts: {parts}"
        )
    return (
        f"memwall does not know the input {name!r} of {asked.model.__name__}; "
        f"give all inputs by --input, as in --input '{name}=f32[...]'"
    )


#: Main inputs that come with others.
_VISUAL: Mapping[str, Callable[[AskedModel], dict[str, Tensor]]] = {
    "pixel_values": images,
    "pixel_values_videos": videos,
}


def _made(asked: AskedModel) -> Iterator[tuple[str, Tensor]]:
    """Each input that is passed, before image tokens are put into the ids."""
    main = getattr(asked.model, "main_input_name", "input_ids")
    names = [*([main] if isinstance(main, str) else main), *asked.required]
    if not any(name in asked.parameters for name in names) and asked.takes("input_ids"):
        names.append("input_ids")  # the text part of a model of images
    if asked.takes("lang_ids") and not asked.has("default_language"):
        names.append("lang_ids")
    if asked.config.is_encoder_decoder:
        names.append("decoder_input_ids")
    if asked.takes("input_ids", "pixel_values") and asked.has("vision_config"):
        names += ["input_ids", "pixel_values"]
    if asked.takes("input_ids", "input_features") and asked.has("audio_config"):
        names += ["input_ids", "input_features"]
    if asked.takes("pixel_values_videos", "input_values") and not asked.takes("pixel_values"):
        names += ["pixel_values_videos", "input_values"]
    for name in names:  # grows as it goes
        names += [more for more in _WITH.get(name, ()) if more not in names and asked.takes(more)]
    for name in dict.fromkeys(names):
        if name not in asked.parameters:
            continue
        if name in _VISUAL or (name == "hidden_states" and asked.takes("grid_thw")):
            made = _VISUAL.get(name, images)(asked)
            yield from ((key, tensor) for key, tensor in made.items() if asked.takes(key))
        elif name in MAKERS and (tensor := MAKERS[name](asked)) is not None:
            yield name, tensor


class _FrontPart(NamedTuple):
    """A part of a model whose features take the place of tokens: the size by which a user asks for it, the name of the
    part and of its main input, the functions that make the features, the fields of a configuration with the id of the
    token and with the ids of tokens around it, and its mark among types."""

    size: str
    name: str
    input: str
    ask: tuple[str, ...]
    ids: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    mark: int


_VISION_EDGES = (
    ("vision_start_token_id", "vision_end_token_id"),
    ("image_start_token_id", "image_end_token_id"),
    ("boi_token_id", "eoi_token_id"),
    ("boi_token_index", "eoi_token_index"),
)
_AUDIO_EDGES = (
    ("audio_start_token_id", "audio_end_token_id"),
    ("boa_token_id", "eoa_token_id"),
    ("boa_token_id", "eoa_token_index"),
)
_IMAGE, _VIDEO, _AUDIO = _PARTS = (
    _FrontPart(
        "images", "image", "pixel_values", ("get_image_features", "get_video_features"),  # of frames: InstructBLIP's
        ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_pad_token_id", "video_token_id"),
        _VISION_EDGES, 1,
    ),
    _FrontPart(
        "video", "video", "pixel_values_videos", ("get_video_features",), ("video_token_id", "video_token_index"),
        _VISION_EDGES, 2,
    ),
    _FrontPart(
        "seconds", "audio", "input_features", ("get_audio_features",), ("audio_token_id", "audio_token_index"),
        _AUDIO_EDGES, 3,
    ),
)  # fmt: skip


def _with_tokens(asked: AskedModel, made: dict[str, Tensor], model: Callable[[], Any], note: Note) -> dict[str, Tensor]:
    """The inputs with each part's tokens in front of the text; ``note`` is told which parts are left out."""
    from memwall.frontend.torch.process.failures import why_without_data

    for part in (_IMAGE, _AUDIO):
        token = number(asked.config, *part.ids)
        if not {"input_ids", part.input} <= made.keys():
            continue
        if token is None:
            if stated := next((name for name in part.ids if hasattr(asked.config, name)), None):
                made = _without_part(asked, made, part, f"the configuration has no value for {stated}", note)
            continue
        try:
            made = _with_part(asked, made, part, token, model())
        except Exception as error:  # whatever transformers raises where the input is not as this model wants it
            made = _without_part(asked, made, part, why_without_data(error) or first_line(error)[:120], note)
    return made


def _without_part(
    asked: AskedModel, made: dict[str, Tensor], part: _FrontPart, why: str, note: Note
) -> dict[str, Tensor]:
    """The inputs, but for inputs of a part that cannot be run; a UsageError where forward needs them."""
    if part.input in asked.required:
        raise UsageError(f"{asked.model.__name__} needs its {part.name} tower, which cannot be run: {why}")
    note(f"{part.name} tower not run: {why}")
    gone = {part.input, *(images(asked) if part.input in _VISUAL else _WITH[part.input])}
    return {name: tensor for name, tensor in made.items() if name not in gone}


def feature_maker(model: Any, size: str) -> Callable[..., Any] | None:
    """The function of a model that makes features of its ``images``, of a ``video``, or of ``seconds`` of sound."""
    part = next(part for part in _PARTS if part.size == size)
    homes = (getattr(model, "model", None), model)  # the outer one hands on what it does not name
    found = next((getattr(home, name) for name in part.ask for home in homes if hasattr(home, name)), None)
    return found or (_heard(model) if part is _AUDIO else None)


def _heard(model: Any) -> Callable[..., Any] | None:
    """The tower and projector of Qwen2-Audio, which has no function for its features: features of the columns that a
    mask has, of which the tower's two convolutions and its pooling leave a quarter."""
    homes = [home for home in (getattr(model, "model", None), model) if hasattr(home, "multi_modal_projector")]
    if not homes or not hasattr(homes[0], "audio_tower"):
        return None
    home: Any = homes[0]

    def features(input_features: Tensor, feature_attention_mask: Tensor) -> Tensor:
        made = home.multi_modal_projector(home.audio_tower(input_features).last_hidden_state)
        columns = [int(row.sum()) for row in feature_attention_mask]
        left = [((count - 1) // 2 + 1 - 2) // 2 + 1 for count in columns]
        return torch.cat([row[:count] for row, count in zip(made, left, strict=True)])

    return features


#: part → how its inputs are made
_MADE: Mapping[str, Callable[[AskedModel, set[str]], Mapping[str, Tensor]]] = {
    "image": lambda asked, _: images(asked),
    "video": lambda asked, _: videos(asked),
    "audio": lambda asked, taken: {name: MAKERS[name](asked) for name in taken if name in MAKERS},
}
#: what a model does not do that is asked for a part
_READS = {
    "image": "images: leave out --images",
    "audio": "sound: leave out --audio",
    "video": "videos: give frames as --images, if it reads those",
}


def front_inputs(asked: AskedModel, model: Any, processed: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Size → what the function that makes its features takes, for all that is asked to stand in front of a prompt;
    ``processed`` is what the processor of the model makes of the images, empty without one.

    Raises:
        UsageError: the model reads no such thing, or makes no tokens of it.
    """
    return {part.size: _inputs_of(asked, model, part, processed) for part in _PARTS if part.size in asked.sizes}


def _inputs_of(asked: AskedModel, model: Any, part: _FrontPart, processed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    name, ask = asked.model.__name__, feature_maker(model, part.size)
    if ask is None or ("sounds" if part is _AUDIO else "images") not in asked.fronts:
        raise UsageError(f"{name} reads no {_READS[part.name]}")
    if number(asked.config, *part.ids) is None:
        raise UsageError(f"{name} makes no tokens of {_READS[part.name]}")
    if part is _AUDIO and ask.__name__ not in part.ask and len(asked.heard[0]) > 1:
        raise UsageError(
            f"{name} hears {asked.heard[1] / COLUMN_RATE:g} s of a sound at most, no {asked.sizes['seconds']:g}"
        )
    taken = set(inspect.signature(ask).parameters)
    made = processed if part is _IMAGE and processed else _MADE[part.name](asked, taken)
    return {key: tensor for key, tensor in made.items() if key in taken}


def front_tokens(asked: AskedModel, size: str, features: Any, heights: Sequence[int]) -> int:
    """The tokens that features of a size become in a sample, with tokens around them that the configuration names, and
    with the end of each row of images of so many pixels.

    Raises:
        UsageError: the features are no tokens.
    """
    part = next(part for part in _PARTS if part.size == size)
    rows = _rows(asked, heights) if part is _IMAGE else 0
    return _count(asked, features) + _around(asked, part) + rows


def _count(asked: AskedModel, features: Any) -> int:
    """Features of each sample."""
    return tokens_of(features, number(asked.text, "hidden_size", "n_embd", "d_model") or 1) // asked.batch


def _edges(asked: AskedModel, part: _FrontPart) -> tuple[list[int], list[int]]:
    """Tokens in front of a part and behind it."""
    for names in part.edges:
        found = [number(asked.config, name) for name in names]
        if None not in found:
            return [found[0] or 0], [found[1] or 0]
    return [], []


#: Models whose clips have a time in front of every row of patches, as ``<0.2 seconds>``, and both edges around it
#: (processing_qwen3_vl.py), of frames at a rate of 2 per second
_STAMPED, _FRAME_RATE = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), 2


#: Models of images in Pixtral's tower whose rows of tokens end with one more (processing_pixtral.py)
_BROKEN = ("llava", "mistral3")


def _rows(asked: AskedModel, heights: Sequence[int]) -> int:
    """Rows of images that end with a token."""
    is_broken = asked.config.model_type in _BROKEN and asked.vision.model_type == "pixtral"
    return sum(height // (asked.patch * asked.merge) for height in heights) if is_broken else 0


def _around(asked: AskedModel, part: _FrontPart) -> int:
    """Tokens around the images, the clip or the sound of a sample, as the configuration names them. Of a time each
    digit, the point and each of its other three parts is a token (the pattern of Qwen's tokenizer)."""
    each = sum(map(len, _edges(asked, part)))
    if part is not _VIDEO or asked.config.model_type not in _STAMPED:
        return each * (asked.images if part is _IMAGE else 1)
    rows = range(-(-asked.frames // asked.depth))
    times_s = [(row * asked.depth + (asked.depth - 1) / 2) / _FRAME_RATE for row in rows]
    return sum(each + 3 + len(f"{time_s:.1f}") for time_s in times_s)


def _with_part(
    asked: AskedModel, made: dict[str, Tensor], part: _FrontPart, token: int, module: Any
) -> dict[str, Tensor]:
    ask = feature_maker(module, part.size)
    if ask is None and part is _IMAGE:  # attended to, and no tokens
        return made
    if ask is None:
        raise UsageError(f"{asked.model.__name__} does not say how many tokens a sound becomes")
    taken = inspect.signature(ask).parameters
    with torch.no_grad():
        features = ask(**{name: tensor for name, tensor in made.items() if name in taken})
    count = _count(asked, features)
    before, behind = _edges(asked, part)
    several = asked.images if part is _IMAGE else 1
    ids = [*before, *[token] * (count // several), *behind] * several
    front = torch.tensor(ids, dtype=torch.int64).expand(asked.batch, -1)
    types = torch.cat(((front == token) * part.mark, made.get("mm_token_type_ids", made["input_ids"] * 0)), 1)
    made = {**made, "input_ids": torch.cat((front, made["input_ids"]), 1)}
    if part is _AUDIO and asked.takes("attention_mask"):
        made["attention_mask"] = torch.ones_like(made["input_ids"])
    return {**made, "mm_token_type_ids": types} if asked.takes("mm_token_type_ids") else made
