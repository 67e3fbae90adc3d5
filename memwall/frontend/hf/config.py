"""A folder that ``save_pretrained`` wrote, or its config.json → transformers' configuration, and what is to be said.

A ``model_type`` that transformers lacks is read by the configuration class of its ``architectures``, where it has that;
remote code is never run. What the weights would be quantised to is stated by :mod:`.quantized`, never applied.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from memwall.core.errors import MissingError, UsageError, message_of, nearest
from memwall.core.files import read_json
from memwall.core.structure import shown
from memwall.frontend.hf import decilm
from memwall.frontend.hf.quantized import is_quantised
from memwall.frontend.targets.blame import blame

_SPECIAL_FLOATS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}

#: Sizes that a flat configuration states and a composite one keeps in its text part.
#: layers of the deepest model that is built, and the keys that state them
MOST_LAYERS = 10_000
_LAYERS = ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers", "depth")
_CHECKED = ("hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
#: Model types that transformers lacks → the type that builds them: MiMo-7B is a Qwen2 with modules that guess
#: (modeling_mimo.py), MiniMax-M3 without its tower the text part of that with it (configuration_minimax_m3_vl.py).
_SAME = {"mimo": "qwen2", "minimax_m3": "minimax_m3_vl_text"}


class ReadConfig(NamedTuple):
    """A configuration, the dictionary that it was read from, and lines that the profile's pages state."""

    config: Any
    raw: dict[str, Any]
    notes: tuple[str, ...]


def read_config(transformers: Any, path: Path) -> ReadConfig:
    """The configuration in a file or a folder.

    Raises:
        UsageError: not a configuration, one that transformers cannot read, or of an unknown type and architecture.
    """
    source = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not source.exists() and (path / "adapter_config.json").exists():
        base = read_json(path / "adapter_config.json").get("base_model_name_or_path", "its base model")
        raise UsageError(
            f"{path} holds an adapter alone; memwall needs the config.json of {base} next to it, or profile the model"
            " that peft builds from a model file"
        )
    raw = _plain(read_json(source, infinite=True))  # as Python's json writes what transformers saves
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type", ""), str):
        raise UsageError(f'{source} is not a transformers configuration: it has no "model_type"')
    if not isinstance(raw.get("architectures") or [], list):
        raise UsageError(f"{source}: architectures is {shown(raw['architectures'])}; want a list of names")
    llama = decilm.as_llama(raw, source)
    kind, notes = _kind(transformers, llama or raw, source)
    if llama is not None:
        raw, notes = llama, (*notes, decilm.note(llama))
    fields = {k: v for k, v in raw.items() if k != "model_type" and not k.startswith("quantization")}
    try:
        config = kind.from_dict(fields)
        if _unread(config, raw) and "text_config" in kind.sub_configs:
            config = kind.from_dict({"text_config": fields})
            notes = (*notes, f"{source.name} describes text alone: other parts of {kind.__name__} have default sizes")
    except Exception as error:
        raise blame(error, f"reading {source}") from error
    _check_read(config, raw, source)
    _check_layers(config, source)
    _settle(config, quantised=is_quantised(raw, source.parent))
    if path.is_dir() and (path / "adapter_config.json").exists():
        notes = (*notes, "adapter_config.json is not applied: the base model alone is profiled")
    return ReadConfig(config, raw, notes)


def static_tokens(raw: dict[str, Any], folder: Path) -> int | None:
    """The least tokens of the static cache that a configuration, or generation_config.json next to it, asks for; None
    where the cache grows.

    Raises:
        UsageError: it asks for a cache of another kind; says which are known.
    """
    beside = folder / "generation_config.json"
    asked = read_json(beside) if beside.is_file() else {}
    asked = {**raw, **asked} if isinstance(asked, dict) else raw
    kind = asked.get("cache_implementation")
    if kind in (None, "dynamic", "hybrid"):  # hybrid: what layers with windows had in older versions
        return None
    if kind != "static":
        raise UsageError(f"{folder}: cache_implementation is {str(kind)[:40]!r}; static and dynamic are modeled")
    stated = (asked.get(key) for key in ("max_cache_len", "max_length"))
    return max((n for n in stated if isinstance(n, int)), default=0)


def _plain(value: Any) -> Any:
    """A JSON value with transformers' tagged floats as floats."""
    if isinstance(value, dict):
        if set(value) == {"__float__"} and value["__float__"] in _SPECIAL_FLOATS:
            return _SPECIAL_FLOATS[value["__float__"]]
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _kind(transformers: Any, raw: dict[str, Any], source: Path) -> tuple[Any, tuple[str, ...]]:
    """The configuration class, by the model type, else by the architecture."""
    model_type = raw.get("model_type")
    with loading("its table of configurations"):
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    if model_type in CONFIG_MAPPING:
        with loading(f"the configuration of {model_type}"):
            return CONFIG_MAPPING[model_type], ()
    version = f"transformers {transformers.__version__}"
    if (same := _SAME.get(str(model_type))) in CONFIG_MAPPING:
        with loading(f"the configuration of {same}"):
            return CONFIG_MAPPING[same], (f"{version} has no model type {model_type!r}: it is built as {same}",)
    for model_class in architectures(transformers, raw):
        kind = model_class.config_class
        told = f"{version} has no model type {model_type!r}: it is built as {model_class.__name__} ({kind.model_type})"
        return kind, (told,)
    if model_type is None:
        raise UsageError(f'{source} is not a transformers configuration: it has no "model_type"')
    custom = " (its own code is not run)" if "auto_map" in raw else ""
    named = ", ".join(map(str, raw.get("architectures") or ()))
    lacking = f" nor an architecture {named[:60]}" if named else ""
    close = nearest(model_type, CONFIG_MAPPING, cutoff=0.85)
    way = f"did you mean {close[0]}?" if close else "profile it with a version that has it, or from a model file"
    raise UsageError(f"{source}: {version} has no model type {model_type[:40]!r}{lacking}{custom}; {way}")


def architectures(transformers: Any, raw: dict[str, Any]) -> list[Any]:
    """The model classes of transformers that a configuration names."""
    named = raw.get("architectures")
    found = [loaded(transformers, str(name)) for name in (named if isinstance(named, list) else ())]
    return [each for each in found if inspect.isclass(each) and getattr(each, "config_class", None) is not None]


def loaded(transformers: Any, name: str) -> Any:
    """What transformers has by a name, else None; a MissingError where it cannot import it."""
    with loading(name):
        return getattr(transformers, name, None)


@contextlib.contextmanager
def loading(what: str) -> Iterator[None]:
    """Around each import of what transformers loads on demand: whatever is raised then, as by an installed library that
    is not of this torch, becomes a MissingError."""
    try:
        yield
    except Exception as error:
        said = " ".join(message_of(error.__cause__ or error).split())
        raise MissingError(
            f"transformers cannot load {what}: {said}; install what it imports, in versions that fit this torch"
        ) from error


def _unread(config: Any, raw: dict[str, Any]) -> tuple[str, ...]:
    """The sizes of a flat configuration that its composite class did not take."""
    text = text_config(config)
    nested = any(isinstance(value, dict) and "num_hidden_layers" in value for value in raw.values())
    checked = () if nested or text is config else _CHECKED
    return tuple(key for key in checked if key in raw and getattr(text, key, raw[key]) != raw[key])


def _check_read(config: Any, raw: dict[str, Any], source: Path) -> None:
    """Refuse a configuration whose sizes its class did not take: it would be profiled with default sizes."""
    for key in _unread(config, raw):
        raise UsageError(
            f"{source}: {key} is {raw[key]}, but {type(config).__name__} reads it from its text_config, which has"
            f" {getattr(text_config(config), key)}: this file is of another version of the model"
        )


def _check_layers(config: Any, source: Path) -> None:
    """Refuse a model of so many layers that it could not be built in any time."""
    for part in all_parts(config):
        for key in _LAYERS:
            layers = getattr(part, key, None)
            if isinstance(layers, int) and layers > MOST_LAYERS:
                raise UsageError(f"{source}: {key} is {layers:,}; at most {MOST_LAYERS:,} layers are built")


def _settle(config: Any, quantised: bool) -> None:
    """No cache, no random masks; the dtype of the part that has one where the whole has none, and bfloat16 where none
    has any and the weights are quantised: what is left of them is of that dtype."""
    import torch

    parts = all_parts(config)
    for part in parts:
        if hasattr(part, "use_cache"):
            part.use_cache = False
        if hasattr(part, "apply_spec_augment"):
            part.apply_spec_augment = False  # draws its mask on the CPU, from the data
    if getattr(config, "dtype", None) is None:
        text = text_config(config)
        stated = [part.dtype for part in (text, *parts) if getattr(part, "dtype", None) is not None]
        config.dtype = stated[0] if stated else torch.bfloat16 if quantised else None


def all_parts(config: Any) -> list[Any]:
    """A configuration and all configurations in it, outermost first."""
    found, left = [], [config]
    while left:
        part = left.pop(0)
        found.append(part)
        left += [value for value in vars(part).values() if hasattr(value, "get_text_config")]
    return found


def text_config(config: Any) -> Any:
    """The part that describes the text, the decoder's of an encoder-decoder; else the whole."""
    try:
        return config.get_text_config(decoder=True)
    except (ValueError, AttributeError):  # several, or a composite without any
        return config


#: how configurations name modules that guess the tokens after the next one (MTP), which transformers does not build
GUESSING = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def guesses(raw: Mapping[str, Any]) -> int:
    """Tokens that modules of the model's own guess, each one; 0 without such."""
    homes = [raw, *(part for part in raw.values() if isinstance(part, dict))]
    stated = (home.get(name) for home in homes for name in GUESSING)
    return max((n for n in stated if isinstance(n, int) and n > 0), default=0)
