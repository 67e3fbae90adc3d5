"""The inputs of a model as its processor would make them, from the configuration alone.

Which there are follows from what forward takes: its main input, what it cannot do without, and what goes with those.
Images are put into the ids as tokens, as many as the model itself makes of them.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memwall.core.errors import UsageError
from memwall.frontend.hf.asked import POSITIONS, AskedModel, number
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


class _Tokens(NamedTuple):
    """A part of a model whose features take the place of tokens: its main input, the function that makes the features,
    the fields of a configuration with the id of the token, its part of the configuration, and its mark among types."""

    name: str
    input: str
    ask: tuple[str, ...]
    ids: tuple[str, ...]
    part: str
    mark: int


_TOKENS = (
    _Tokens(
        "image", "pixel_values", ("get_image_features", "get_video_features"),  # of frames, as InstructBLIP's
        ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_pad_token_id", "video_token_id"),
        "vision_config", 1,
    ),
    _Tokens(
        "audio", "input_features", ("get_audio_features",), ("audio_token_id", "audio_token_index"), "audio_config", 3,
    ),
)  # fmt: skip


def _with_tokens(asked: AskedModel, made: dict[str, Tensor], model: Callable[[], Any], note: Note) -> dict[str, Tensor]:
    """The inputs with each part's tokens in front of the text; ``note`` is told which parts are left out."""
    from memwall.frontend.torch.process.failures import why_without_data

    for part in _TOKENS:
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


def _without_part(asked: AskedModel, made: dict[str, Tensor], part: _Tokens, why: str, note: Note) -> dict[str, Tensor]:
    """The inputs, but for inputs of a part that cannot be run; a UsageError where forward needs them."""
    if part.input in asked.required:
        raise UsageError(f"{asked.model.__name__} needs its {part.name} tower, which cannot be run: {why}")
    note(f"{part.name} tower not run: {why}")
    gone = {part.input, *(images(asked) if part.input in _VISUAL else _WITH[part.input])}
    return {name: tensor for name, tensor in made.items() if name not in gone}


def image_inputs(asked: AskedModel, model: Callable[[], Any]) -> tuple[dict[str, Tensor], int]:
    """What the model's tower of images takes of a sample, and the tokens that its images become.

    Raises:
        UsageError: its images become no tokens.
    """
    part = _TOKENS[0]
    made, token = dict(_made(asked)), number(asked.config, *part.ids)
    module = model()
    homes = (getattr(module, "model", None), module)
    ask = next((getattr(home, part.ask[0]) for home in homes if hasattr(home, part.ask[0])), None)
    if ask is None or token is None or part.input not in made:
        raise UsageError(f"{asked.model.__name__} makes no tokens of images that memwall knows of; leave out --images")
    given = {name: tensor for name, tensor in made.items() if name in inspect.signature(ask).parameters}
    longer = _with_part(asked, made, part, token, module)
    return given, int(longer["input_ids"].shape[-1] - made["input_ids"].shape[-1])


def _with_part(asked: AskedModel, made: dict[str, Tensor], part: _Tokens, token: int, module: Any) -> dict[str, Tensor]:
    homes: tuple[Any, ...] = (getattr(module, "model", None), module)  # the outer one hands on what it does not name
    ask = next((getattr(home, name) for name in part.ask for home in homes if hasattr(home, name)), None)
    if ask is None and part.name == "image":  # attended to, and no tokens
        return made
    if ask is None:
        raise UsageError(f"{asked.model.__name__} does not say how many tokens a sound becomes")
    taken = inspect.signature(ask).parameters
    with torch.no_grad():
        features = ask(**{name: tensor for name, tensor in made.items() if name in taken})
    width = number(asked.text, "hidden_size", "n_embd", "d_model") or 1
    count = tokens_of(features, width) // asked.batch
    named = [(f"vision_{side}_token_id", f"image_{side}_token_id") for side in ("start", "end")]
    edges = [[end] if (end := number(asked.config, *names)) else [] for names in named]
    ids = [*edges[0], *[token] * count, *edges[1]] if part.name == "image" else [token] * count
    front = torch.tensor(ids, dtype=torch.int64).expand(asked.batch, -1)
    types = torch.cat(((front == token) * part.mark, made.get("mm_token_type_ids", made["input_ids"] * 0)), 1)
    made = {**made, "input_ids": torch.cat((front, made["input_ids"]), 1)}
    if part.name == "audio" and asked.takes("attention_mask"):
        made["attention_mask"] = torch.ones_like(made["input_ids"])
    return {**made, "mm_token_type_ids": types} if asked.takes("mm_token_type_ids") else made
