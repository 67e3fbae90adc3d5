"""What of a file, or of Python, is a JAX program: a function of arrays, or a module of flax, haiku or equinox."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from memwall.core.errors import UsageError
from memwall.frontend.jax.program import JaxProgram
from memwall.frontend.targets.blame import blame
from memwall.frontend.targets.inputs import InputSpec


def program_of(model: Any, inputs: Any, **said: Any) -> JaxProgram:
    """The program of a function or module with its inputs.

    Args:
        model: a function of arrays, jitted or not; a module of flax (linen, nnx) or equinox; what ``haiku.transform``
            returns.
        inputs: a tuple or list of positional arguments, a dict of keywords of the function, or one argument; arrays,
            ``jax.ShapeDtypeStruct`` or trees of them.
        said: further fields of the program.

    Raises:
        UsageError: it is none of these, or making its weights raised.
    """
    name = said["target"] or said["name"]
    arguments, keywords = _split(model, inputs)
    try:
        function, weights = _adapted(model, arguments, keywords)
    except (Exception, SystemExit) as error:
        raise blame(error, f"making the weights of {name}") from error
    if not callable(function):
        raise UsageError(f"{name} is of type {type(model).__name__}, not a function of arrays or a module")
    if weights is not None:
        arguments = (weights, *arguments)
    parameters = 1 if weights is not None or (len(arguments) > 1 and _is_tree(arguments[0])) else 0
    return JaxProgram(function=function, arguments=tuple(arguments), keywords=keywords, parameters=parameters, **said)


def inputs_of(specs: Sequence[InputSpec]) -> tuple[Any, ...] | dict[str, Any]:
    """The inputs that ``--input`` describes, as shapes."""
    shapes = [jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for spec in specs]
    if specs and specs[0].name is not None:
        return {str(spec.name): shape for spec, shape in zip(specs, shapes, strict=True)}
    return tuple(shapes)


def _split(model: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments and keywords: a dict is one argument unless the function has parameters of these names."""
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    if isinstance(inputs, Mapping):
        try:
            names = set(inspect.signature(model).parameters)
        except (TypeError, ValueError):
            names = set()
        if inputs and all(isinstance(key, str) for key in inputs) and set(inputs) <= names:
            return (), dict(inputs)
    return (inputs,), {}


def _adapted(model: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """A function of arrays, and its weights as shapes where they are its first argument."""
    if hasattr(model, "init") and hasattr(model, "apply"):
        return _by_apply(model, arguments, keywords)
    if any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__):
        from flax import nnx

        graph, state = nnx.split(model)
        return lambda state, *given, **named: nnx.merge(graph, state)(*given, **named), _shapes(state)
    leaves = jax.tree_util.tree_leaves(model)
    if callable(model) and any(leaf is not model and _is_array(leaf) for leaf in leaves):
        arrays, rest = _partition(model)
        return lambda arrays, *given, **named: _combine(arrays, rest)(*given, **named), _shapes(arrays)
    return model, None


def _by_apply(model: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """Flax's linen and haiku: weights that ``init`` makes, of which ``apply`` is a function."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    takes_rng = "rng" in inspect.signature(model.apply).parameters
    legacy = jax.ShapeDtypeStruct((2,), jnp.uint32)
    weights = jax.eval_shape(model.init, legacy if takes_rng or _is_haiku(model) else key, *arguments, **keywords)
    if takes_rng:
        return lambda weights, *given, **named: model.apply(weights, None, *given, **named), weights
    return lambda weights, *given, **named: model.apply(weights, *given, **named), weights


def _is_haiku(model: Any) -> bool:
    return type(model).__module__.startswith("haiku")


def _partition(model: Any) -> tuple[Any, Any]:
    """The arrays of a tree, and the rest; None stands for what the other has."""
    arrays = jax.tree_util.tree_map(lambda leaf: leaf if _is_array(leaf) else None, model)
    rest = jax.tree_util.tree_map(lambda leaf: None if _is_array(leaf) else leaf, model)
    return arrays, rest


def _combine(arrays: Any, rest: Any) -> Any:
    none = lambda leaf: leaf is None  # noqa: E731
    return jax.tree_util.tree_map(lambda own, other: other if own is None else own, arrays, rest, is_leaf=none)


def _shapes(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_tree(argument: Any) -> bool:
    """Whether an argument is a tree of several arrays, as weights are."""
    leaves = jax.tree_util.tree_leaves(argument)
    return bool(leaves) and not (len(leaves) == 1 and leaves[0] is argument)
