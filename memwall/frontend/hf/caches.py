"""Which parameter of a forward is its cache, whatever a version of transformers calls it.

A cache is what a step takes and hands on: ``past_key_values`` up to transformers 5.23, ``cache`` since,
``cache_params`` of recurrent models, ``mems``. It is of a class of caches, or has a name as caches have, and the output
has a field of that name.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any


def cache_parameter(forward: Callable[..., Any]) -> inspect.Parameter | None:
    """The parameter by which a forward takes its cache; None: none is found.

    Of several the first that the output hands back; one that is not handed back is changed in place, where it is of a
    class of caches, or comes back in an output of which nothing is known.
    """
    from memwall.frontend.torch.values.kv_caches import is_of_cache

    back, parameters = handed_back(forward), inspect.signature(forward).parameters.values()
    cached = [each for each in parameters if cache_classes(each) or is_of_cache(each.name)]
    held = [each for each in cached if not each.name.startswith("use_")]
    handed = [each for each in held if each.name in back]
    return next(iter([*handed, *(each for each in held if cache_classes(each) or not back)]), None)


def handed_back(forward: Callable[..., Any]) -> set[str]:
    """The fields of the outputs that a forward is annotated with; empty where nothing is known of them."""
    outputs = [
        kind for kind in _classes(inspect.signature(forward).return_annotation) if dataclasses.is_dataclass(kind)
    ]
    return {field.name for kind in outputs for field in dataclasses.fields(kind)}


def cache_classes(parameter: inspect.Parameter) -> list[type]:
    """The classes of caches that a parameter is annotated with."""
    from memwall.frontend.torch.values.kv_caches import is_cache_class

    return [kind for kind in _classes(parameter.annotation) if is_cache_class(kind)]


def _classes(annotation: Any) -> list[type]:
    """The classes that an annotation names, also in a union."""
    parts = typing.get_args(annotation)
    if parts:
        return [kind for part in parts for kind in _classes(part)]
    return [annotation] if inspect.isclass(annotation) else []
