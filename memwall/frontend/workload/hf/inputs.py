"""The inputs of a model as its processor would make them, from the configuration alone.

Which there are follows from what forward takes: its main input, what it cannot do without, and what goes with those.
Images are put into the ids as tokens, as many as the model itself makes of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.frontend.workload.blame import first_line
from memwall.frontend.workload.hf.asked import Asked, number
from memwall.frontend.workload.hf.images import images, tokens_of, videos

if TYPE_CHECKING:
    from torch import Tensor

Make = Callable[[Asked], "Tensor"]


def _ids(asked: Asked) -> Tensor:
    """Tokens of text, none of them with a meaning of its own."""
    import torch

    drawn = torch.randint(0, asked.vocabulary, (asked.batch, asked.seq))
    plain = next(n for n in range(asked.vocabulary) if n not in asked.special or n == asked.vocabulary - 1)
    return torch.where(torch.isin(drawn, torch.tensor(sorted(asked.special))), plain, drawn)


def _floats(*shape: Callable[[Asked], int]) -> Make:
    """A maker of normal numbers."""

    def make(asked: Asked) -> Tensor:
        import torch

        return torch.randn(tuple(size(asked) for size in shape), dtype=asked.dtype)

    return make


def _whole(value: int, *shape: Callable[[Asked], int]) -> Make:
    """A maker of equal whole numbers."""

    def make(asked: Asked) -> Tensor:
        import torch

        return torch.full(tuple(size(asked) for size in shape), value, dtype=torch.int64)

    return make


def _batch(asked: Asked) -> int:
    return asked.batch


def _seq(asked: Asked) -> int:
    return asked.seq


def _of(*names: str, default: int = 1) -> Callable[[Asked], int]:
    """A size that the configuration states under one of some names."""
    return lambda asked: number(asked.config, *names) or number(asked.text, *names) or default


def _constant(value: int) -> Callable[[Asked], int]:
    return lambda asked: value


def _spectrogram(asked: Asked) -> Tensor:
    """Whisper's is (batch, mels, columns), 30 s by its encoder's positions; others' are (batch, columns, mels)."""
    import torch

    positions = number(asked.audio, "max_source_positions")
    if (
        positions is not None
        and number(asked.audio, "num_mel_bins")
        and not number(asked.audio, "input_feat_per_channel")
    ):
        return torch.randn((asked.batch, asked.mels, 2 * positions), dtype=asked.dtype)
    return torch.randn((asked.batch, asked.columns(), asked.mels), dtype=asked.dtype)


def _lags(asked: Asked) -> int:
    """Steps of the past that a time-series model is given."""
    context = number(asked.config, "context_length", "prediction_length") or 1
    lags = getattr(asked.config, "lags_sequence", None) or [0]
    return context + max(lags)


#: Parameter of forward → its tensor.
_MAKERS: Mapping[str, Make] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "input_values": _floats(_batch, lambda a: a.samples),
    "input_features": _spectrogram,
    "bbox": _whole(0, _batch, _seq, _constant(4)),
    "qformer_input_ids": _whole(1, _batch, _constant(32)),
    "query_embeds": _floats(_batch, _of("num_query_tokens", default=32), _of("hidden_size")),
    "inputs_embeds": _floats(_batch, _seq, _of("hidden_size", "d_model")),
    "past_values": _floats(_batch, _lags, _of("input_size", "num_input_channels")),
}

#: What goes with other inputs where forward takes it, though it has a default.
_WITH: Mapping[str, tuple[str, ...]] = {"input_ids": ("bbox", "qformer_input_ids")}


def make_inputs(asked: Asked, model: Callable[[], Any], note: Callable[[str], None]) -> dict[str, Tensor]:
    """The inputs of forward by name. ``model`` builds the module, which is asked how many tokens an image becomes;
    ``note`` is told what is left out.

    Raises:
        UsageError: forward needs an input that memwall cannot make.
    """
    made = dict(_made(asked))
    unknown = [name for name in asked.required if name not in made]
    if unknown:
        raise UsageError(
            f"memwall does not know the input {unknown[0]!r} of {asked.model.__name__}; "
            f"give all inputs by --input, as in --input '{unknown[0]}=f32[...]'"
        )
    try:
        return _with_image_tokens(asked, made, model)
    except Exception as error:  # whatever transformers raises where the images are not as this model wants them
        note(f"image tower not run: {first_line(error)}")
        return {name: made[name] for name in ("input_ids", "decoder_input_ids") if name in made}


def _made(asked: Asked) -> Iterator[tuple[str, Tensor]]:
    """Each input that is passed, before image tokens are put into the ids."""
    main = getattr(asked.model, "main_input_name", "input_ids")
    names = [*([main] if isinstance(main, str) else main), *asked.required]
    if asked.config.is_encoder_decoder:
        names.append("decoder_input_ids")
    if "input_ids" in names and asked.takes("pixel_values"):
        names.append("pixel_values")
    names += [more for name in names for more in _WITH.get(name, ())]
    for name in dict.fromkeys(names):
        if name not in asked.parameters:
            continue
        if name in ("pixel_values", "pixel_values_videos"):
            yield from (
                (k, v) for k, v in (images if name == "pixel_values" else videos)(asked).items() if asked.takes(k)
            )
        elif name in _MAKERS:
            yield name, _MAKERS[name](asked)


#: What a configuration calls the token that stands for a piece of an image.
_IMAGE_TOKENS = ("image_token_id", "image_token_index", "media_placeholder_token_id", "image_pad_token_id")


def _with_image_tokens(asked: Asked, made: dict[str, Tensor], model: Callable[[], Any]) -> dict[str, Tensor]:
    """The inputs with the image's tokens in front of the text: the model takes them out of the ids again."""
    import torch

    token = next((n for name in _IMAGE_TOKENS if (n := number(asked.config, name)) is not None), None)
    if token is None or not {"input_ids", "pixel_values"} <= made.keys():
        return made
    count = _image_tokens(asked, made, model()) // asked.batch
    parts = [_special(asked, "vision_start_token_id"), [token] * count, _special(asked, "vision_end_token_id")]
    front = torch.tensor([each for part in parts for each in part], dtype=torch.int64).expand(asked.batch, -1)
    made["input_ids"] = torch.cat((front, made["input_ids"]), 1)
    if asked.takes("mm_token_type_ids"):
        made["mm_token_type_ids"] = (made["input_ids"] == token).to(torch.int64)
    return made


def _special(asked: Asked, name: str) -> list[int]:
    found = number(asked.config, name)
    return [] if found is None else [found]


def _image_tokens(asked: Asked, made: Mapping[str, Tensor], module: Any) -> int:
    """Tokens that the model makes of the images of a batch."""
    import torch

    ask = next(
        (f for home in (module, getattr(module, "model", None)) if (f := getattr(home, "get_image_features", None))),
        None,
    )
    if ask is None:
        raise UsageError("it does not say how many tokens an image becomes")
    taken = inspect.signature(ask).parameters
    with torch.no_grad():
        return tokens_of(ask(**{k: v for k, v in made.items() if k in taken}), number(asked.text, "hidden_size") or 1)
