"""The modules that are loaded, by package: a trace asks for some of thousands again and again, and looks at each name
once."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from types import ModuleType

#: names that were looked at, and these by package
_NAMES: set[str] = set()
_OF_PACKAGE: defaultdict[str, list[str]] = defaultdict(list)


def names_by_package() -> Mapping[str, list[str]]:
    """The names of modules that are or were loaded, in the order in which they were seen."""
    for name in list(sys.modules):
        if name not in _NAMES:
            _NAMES.add(name)
            _OF_PACKAGE[name.partition(".")[0]].append(name)
    return _OF_PACKAGE


def modules_below(package: str) -> list[ModuleType]:
    """The loaded modules below a package such as ``torch.optim``."""
    begins = f"{package}."
    names = [name for name in names_by_package().get(package.partition(".")[0], ()) if name.startswith(begins)]
    return [module for name in names if isinstance(module := sys.modules.get(name), ModuleType)]
