"""How DTensor decides where results lie: not recorded, and once for parameters that are alike."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from memwall.core import compat

_DERIVE, _PROPAGATE = compat.name_of("tensor_meta"), "propagate_op_sharding_non_cached"


@contextlib.contextmanager
def deriving_shapes(recorder: Any) -> Iterator[None]:
    """While open, what DTensor runs to derive the shapes of a call is not recorded: it does so once in a process."""

    def unseen(derive: Callable[..., Any], self: Any, schema: Any) -> Any:
        with recorder.unrecorded():
            return derive(self, schema)

    with _replaced(_DERIVE, unseen):
        yield


@contextlib.contextmanager
def alike_once() -> Iterator[None]:
    """While open, ops on many DTensors (``_foreach``) are decided once for all that are alike: torch compares each
    with all, which for the optimizer of a large model takes longer than the rest of its trace."""

    def decided(propagate: Callable[..., Any], self: Any, schema: Any) -> Any:
        lists = [arg for arg in schema.args_schema if isinstance(arg, (list, tuple))]
        if "_foreach_" not in schema.op.name() or len({len(arg) for arg in lists}) != 1:
            return propagate(self, schema)
        columns = [*zip(*lists, strict=True)]
        distinct = list(dict.fromkeys(columns))
        rows = zip(*distinct, strict=True)
        args = [type(arg)(next(rows)) if isinstance(arg, (list, tuple)) else arg for arg in schema.args_schema]
        found = propagate(self, type(schema)(schema.op, tuple(args), schema.kwargs_schema, schema.schema_info))
        if found.needs_redistribute:
            return propagate(self, schema)
        if isinstance(found.output_spec, (list, tuple)):
            place = {column: i for i, column in enumerate(distinct)}
            found.output_spec = type(found.output_spec)(found.output_spec[place[column]] for column in columns)
        return found

    with _replaced(_PROPAGATE, decided):
        yield


def forget_meshes() -> None:
    """Let DTensor decide anew: to it the mesh of an earlier trace equals the next, whose groups are others."""
    if "torch.distributed.tensor" in sys.modules:
        compat.clear_sharding_prop_cache()


@contextlib.contextmanager
def _replaced(name: str, by: Callable[..., Any]) -> Iterator[None]:
    """While open, ``by`` answers for a method of DTensor's, which it is given first."""
    kind: Any = getattr(sys.modules.get(compat.name_of("sharding_prop")), "ShardingPropagator", None)
    original = getattr(kind, name, None)
    if original is None:
        yield
        return
    with patch.object(kind, name, lambda self, schema: by(original, self, schema)):
        yield
