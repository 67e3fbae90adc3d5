"""What of a file, or of Python, is a JAX program: a function of arrays, or a module of flax, haiku or equinox."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

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
            ``jax.ShapeDtypeStruct`` or trees of them. Numbers, flags and strings are passed as they are.
        said: further fields of the program.

    Raises:
        UsageError: the target is of another kind, or making its weights raised.
    """
    name = said["target"] or said["name"]
    (arguments, keywords), fixed = _partition(_split(model, inputs), _is_array)
    try:
        function, weights, held = _adapted(model, arguments, keywords, fixed)
    except (Exception, SystemExit) as error:
        raise blame(error, f"making the weights of {name}") from error
    if not callable(function):
        raise UsageError(f"the model of {name} is of type {type(model).__name__}, not a function of arrays or a module")
    own = () if weights is None else (weights,) if held is None else (weights, held)
    parameters = 1 if own or (len(arguments) > 1 and _is_tree(arguments[0])) else 0
    return JaxProgram(
        function=_completed(function, len(own), fixed),
        arguments=(*own, *arguments),
        keywords=keywords,
        parameters=parameters,
        buffers=len(own[1:]),
        **said,
    )


#: a function of arrays; its weights, and what it holds besides that has no gradient, as shapes, or None
Adapted = tuple[Callable[..., Any], Any, Any]


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


def _completed(function: Callable[..., Any], own: int, fixed: Any) -> Callable[..., Any]:
    """A function of arrays alone: the first ``own``, and what the fixed arguments, positional and named, lack."""

    def of_arrays(*arrays: Any, **named: Any) -> Any:
        positional, keywords = _combine((arrays[own:], named), fixed)
        return function(*arrays[:own], *positional, **keywords)

    return of_arrays


def _adapted(model: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], fixed: Any) -> Adapted:
    """A model as a function whose first arguments are what it holds."""
    if hasattr(model, "init") and hasattr(model, "apply"):
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
        made = jax.eval_shape(_completed(model.init, 1, fixed), key, *arguments, **keywords)
        return _by_apply(model, made, np.zeros(key.shape, key.dtype))
    if any(base.__module__.startswith("flax.nnx") for base in type(model).__mro__):
        return _of_nnx(model)
    leaves = jax.tree_util.tree_leaves(model)
    if callable(model) and any(leaf is not model and _is_array(leaf) for leaf in leaves):
        arrays, rest = _partition(model, _is_array)
        weights, held = _partition(_shapes(arrays), _is_floating)
        whole = lambda weights, held: _combine(_combine(weights, held), rest)  # noqa: E731
        return lambda weights, held, *given, **named: whole(weights, held)(*given, **named), weights, held
    return model, None, None


def _of_nnx(model: Any) -> Adapted:
    """Flax's nnx: parameters, and the rest of a module's state; calls of submodules are scopes named by their paths."""
    from flax import nnx

    split: Any = nnx.split(model, nnx.Param, ...)
    graph, weights, held = split

    def run(weights: Any, held: Any, *given: Any, **named: Any) -> Any:
        own = jax.tree_util.tree_map(lambda leaf: leaf, held)  # variables of this trace, which may be set
        whole = nnx.merge(graph, weights, own)
        with _scoped(whole, nnx):
            return whole(*given, **named)

    return run, _shapes(weights), _shapes(held)


@contextmanager
def _scoped(model: Any, nnx: Any) -> Iterator[None]:
    """While open, a call of a submodule is a name scope: its path in the module that is called."""
    paths = {id(each): ".".join(map(str, path)) for path, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)}
    open_paths = [""]

    def scoped(call: Callable[..., Any]) -> Callable[..., Any]:
        def named(self: Any, *given: Any, **keywords: Any) -> Any:
            path = paths.get(id(self), "")
            own = path.removeprefix(f"{open_paths[-1]}.") if open_paths[-1] else path
            if not own:
                return call(self, *given, **keywords)
            open_paths.append(path)
            try:
                with jax.named_scope(own.replace(".", "/")):
                    return call(self, *given, **keywords)
            finally:
                open_paths.pop()

        return named

    with ExitStack() as stack:
        for kind in {type(each) for _, each in nnx.iter_graph(model) if isinstance(each, nnx.Module)}:
            if "__call__" in vars(kind):
                stack.enter_context(patch.object(kind, "__call__", scoped(vars(kind)["__call__"])))
        yield


def _by_apply(model: Any, made: Any, key: Any) -> Adapted:
    """Flax's linen and haiku: what ``init`` has made, of which ``apply`` is a function; linen's other collections and
    haiku's state, such as running means, have no gradient, and what becomes of them is left out. The key is a constant
    of a program that draws random numbers."""
    names = [*inspect.signature(model.apply).parameters]
    if names[0] == "variables":
        held = {name: tree for name, tree in made.items() if name != "params"}
        how = {"rngs": key, "mutable": [*held]}
        apply = lambda own, held, *given, **named: model.apply({"params": own, **held}, *given, **how, **named)[0]  # noqa: E731
        return apply, made.get("params", {}), held
    is_stateful = type(model).__name__ == "TransformedWithState"
    keys = (key,) if "rng" in names[: 2 + is_stateful] else ()  # unless haiku was told that there is none
    if is_stateful:
        return lambda own, held, *given, **named: model.apply(own, held, *keys, *given, **named)[0], *made
    return lambda own, *given, **named: model.apply(own, *keys, *given, **named), made, None


def _partition(tree: Any, has: Callable[[Any], bool]) -> tuple[Any, Any]:
    """A tree's leaves of a kind, and the rest; None stands for what the other has."""
    own = jax.tree_util.tree_map(lambda leaf: leaf if has(leaf) else None, tree)
    rest = jax.tree_util.tree_map(lambda leaf: None if has(leaf) else leaf, tree)
    return own, rest


def _combine(arrays: Any, rest: Any) -> Any:
    none = lambda leaf: leaf is None  # noqa: E731
    return jax.tree_util.tree_map(lambda own, other: other if own is None else own, arrays, rest, is_leaf=none)


def _shapes(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def _is_floating(leaf: Any) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def _is_tree(argument: Any) -> bool:
    """Whether an argument is a tree of several arrays, as weights are."""
    leaves = jax.tree_util.tree_leaves(argument)
    return bool(leaves) and not (len(leaves) == 1 and leaves[0] is argument)
