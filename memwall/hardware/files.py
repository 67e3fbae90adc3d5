"""Files of GPUs, clusters, hosts and engines: where memwall's own lie, and what schema a file is to state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memwall.core.errors import MissingError, UsageError
from memwall.core.files import read_toml
from memwall.core.structure import one_line, shown


def packaged(folder: str) -> Mapping[str, Path]:
    """Canonical name -> TOML file of a folder. In a wheel it is inside the package, in a checkout next to it."""
    here = Path(__file__).resolve().parents[1]
    for place in (here / folder, here.parent / folder):
        if files := {path.stem: path for path in sorted(place.glob("*.toml"))}:
            return files
    raise MissingError(f"no {folder} next to {here}: the installation is incomplete; install it again")


def read_stated(path: str | Path, schema: str, noun: str) -> dict[str, Any]:
    """What a TOML file states, without its schema, which is to be this one; ``noun``: what such files are of.

    Raises:
        UsageError: the file cannot be read, or states another schema.
    """
    found = read_toml(path)
    if (stated := found.pop("schema", None)) != schema:
        raise UsageError(f"{one_line(path)}: schema is {shown(stated)}; want {schema!r}, as in a file of {noun}")
    return found
