"""Sphinx's roles in docstrings (``:func:`load_gpu` ``) as plain code, for mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ROLE = re.compile(r":\w+:`~?([^`]+)`")


class Roles(Extension):
    """Rewrites each docstring as it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value)
