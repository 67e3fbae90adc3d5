"""The arguments of a JAX program: trees of shapes, and where each lies on the mesh that the program names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jax.sharding import NamedSharding, PartitionSpec

from memwall.core.errors import UsageError
from memwall.frontend.targets.inputs import SHORT_DTYPES

#: a mesh that a program names, and how arguments lie on it, by their places
Named = tuple[Any, Mapping[int, PartitionSpec]]


def shapes_of(tree: Any, dtype: str | None) -> Any:
    """The arrays of a tree as shapes, floats in another dtype where that is asked for; shardings over a mesh stay.

    Raises:
        UsageError: a leaf has a size that no array has.
    """
    to = None if dtype is None else jnp.dtype(_floating(dtype))

    def shape(leaf: Any) -> Any:
        kind = jax.dtypes.canonicalize_dtype(leaf.dtype, allow_extended_dtype=True)
        sizes = tuple(leaf.shape)
        if not all(isinstance(size, int | np.integer) and size >= 0 for size in sizes):
            raise UsageError(f"an input has the shape ({', '.join(map(str, sizes))}); sizes are whole and not negative")
        if to is not None and jnp.issubdtype(kind, jnp.floating):
            kind = to
        return jax.ShapeDtypeStruct(sizes, kind, sharding=_on_mesh(getattr(leaf, "sharding", None)))

    return jax.tree_util.tree_map(shape, tree)


def laid(leaves: Sequence[Any], closed: ClosedJaxpr) -> list[Any]:
    """The leaves of a program's arguments, each on the mesh that the program names, where none of them lies on one:
    what a ``shard_map`` takes as it wants it, and all else whole on every device."""
    found = None if devices_of(leaves) > 1 else next(_named(closed.jaxpr, _places(closed.jaxpr)), None)
    if found is None:
        return [*leaves]
    mesh, specs = found
    return [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, specs.get(place, PartitionSpec())))
        for place, leaf in enumerate(leaves)
    ]


def devices_of(leaves: Sequence[Any]) -> int:
    """How many devices the leaves lie on."""
    return max((math.prod(leaf.sharding.mesh.axis_sizes) for leaf in leaves if leaf.sharding is not None), default=1)


def _places(jaxpr: Jaxpr) -> dict[Any, int]:
    return {var: place for place, var in enumerate(jaxpr.invars)}


def _named(jaxpr: Jaxpr, places: Mapping[Any, int]) -> Iterator[Named]:
    """The meshes that a jaxpr names. ``places``: its variables that are arguments of the program → which ones."""
    for eqn in jaxpr.eqns:
        own = [None if isinstance(var, Literal) else places.get(var) for var in eqn.invars]
        if eqn.primitive.name == "shard_map":
            specs = zip(own, eqn.params["in_specs"], strict=True)
            yield eqn.params["mesh"], {place: spec for place, spec in specs if place is not None}
        for said in ("sharding", "dst_sharding"):
            if (laid := _on_mesh(eqn.params.get(said))) is not None and not laid.mesh.empty:
                yield laid.mesh, {}
        for inner in _called(eqn.params.values()):
            known = zip(inner.invars, own, strict=True) if len(inner.invars) == len(own) else ()
            yield from _named(inner, {var: place for var, place in known if place is not None})


def _called(params: Any) -> Iterator[Jaxpr]:
    for value in params:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _called(value)


def _on_mesh(sharding: Any) -> Any:
    """A sharding over a mesh; where an array lies otherwise is no part of the program."""
    return sharding if isinstance(sharding, NamedSharding) else None


def _floating(name: str) -> str:
    key = SHORT_DTYPES.get(name.lower(), name.lower())
    if key not in ("float32", "bfloat16", "float16", "float64"):
        raise UsageError(f"no floating dtype named {name!r}; want float32, bfloat16, float16 or float64")
    return key
