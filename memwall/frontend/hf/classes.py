"""The model class of a configuration, and the model that is built of it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from memwall.core import compat
from memwall.core.errors import UsageError, message_of
from memwall.frontend.hf.config import ReadConfig, all_parts, architectures, loaded, loading
from memwall.frontend.hf.decilm import shape_layers

#: transformers' tables of head classes by model type, an encoder-decoder whole before its halves.
_AUTO_MAPPINGS = (
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES",
)  # fmt: skip


def model_class(transformers: Any, read: ReadConfig, source: object) -> Any:
    """The class that a configuration is of: its architecture's, else of transformers' tables the first that takes this
    configuration, else a class of its modeling file. A UsageError if no class is found."""
    from torch.nn import Module

    config = read.config
    listed = _listed(transformers, config)
    candidates = [*architectures(transformers, read.raw), *listed, *_written(config)]
    fitting = [c for c in candidates if isinstance(config, c.config_class)] or listed  # a type may borrow its classes
    for found in fitting:
        if found.forward is not Module.forward:
            return found
    if fitting:
        parts = ", ".join(dict.fromkeys(part.model_type for part in all_parts(config)[1:]))
        way_out = f"; profile the configuration of one of its parts: {parts}" if parts else ""
        if not parts and (holders := ", ".join(_holders(config))):
            way_out = f"; profile the configuration of the model that it is a part of: {holders}"
        raise UsageError(f"{source}: {fitting[0].__name__} has no forward, it runs its parts one by one{way_out}")
    named = ", ".join(map(str, config.architectures or ()))
    wanted = f" (architectures: {named[:80]})" if named else ""
    raise UsageError(f"{source}: transformers has no model class for {config.model_type!r}{wanted}")


def _listed(transformers: Any, config: Any) -> list[Any]:
    with loading("its table of models"):
        from transformers.models.auto import modeling_auto
    found = []
    for mapping in _AUTO_MAPPINGS:
        if "CTC" in mapping and getattr(config, "vocab_size", None) is None:
            continue  # its head has no size
        names = getattr(modeling_auto, mapping, {}).get(config.model_type)
        for name in names if isinstance(names, (list, tuple)) else (names,):
            each = loaded(transformers, name) if name else None
            if getattr(each, "config_class", None) is not None:
                found.append(each)
    return found


def _holders(config: Any) -> list[str]:
    """The types next to the configuration's class that have such a configuration for one of their parts."""
    home = sys.modules[type(config).__module__]
    classes: list[Any] = [c for c in vars(home).values() if inspect.isclass(c)]
    return [c.model_type for c in classes if type(config) in getattr(c, "sub_configs", {}).values()]


def _written(config: Any) -> list[Any]:
    """The model classes next to the configuration class that take exactly it and have a forward of their own, the last
    one written first: it holds the others."""
    home = type(config).__module__.replace(".configuration_", ".modeling_")
    if find_spec(home) is None:
        return []
    with loading(home):
        classes = [c for c in vars(importlib.import_module(home)).values() if inspect.isclass(c)]
    own = [c for c in classes if c.__module__ == home and getattr(c, "config_class", None) is type(config)]
    return [c for c in reversed(own) if "forward" in vars(c)]


def build(model: Any, config: Any) -> Any:
    """The module, with SDPA where the model supports it."""
    with _buffers_filled_alone():
        try:
            made = compat.from_config(model, config, attn_implementation="sdpa")
        except (ValueError, ImportError) as error:
            said = message_of(error)
            if "attention" not in said and "sdpa" not in said:
                raise
            made = compat.from_config(model, config, attn_implementation="eager")
        shape_layers(made)
        return made


def _buffers_filled_alone() -> contextlib.AbstractContextManager[Any]:
    """While open, transformers fills only modules with buffers: weights without data stay as they are."""
    import torch

    base: Any = sys.modules["transformers.modeling_utils"].PreTrainedModel
    fill = getattr(base, compat.name_of("initialize_weights"), None)
    if fill is None or not torch.empty(0).is_meta:
        return contextlib.nullcontext()

    def filled(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if compat.buffers(module):
            fill(self, module, *args, **kwargs)

    return patch.object(base, compat.name_of("initialize_weights"), filled)
