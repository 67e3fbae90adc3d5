"""A JAX function with shapes for its arguments: traced to its jaxpr, in training with gradients and an optimizer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from memwall.core.errors import UsageError
from memwall.core.graph import Graph, Storage
from memwall.frontend.facts import TraceFacts, noted
from memwall.frontend.jax.arguments import devices_of, laid, shapes_of
from memwall.frontend.jax.avals import shape_of
from memwall.frontend.jax.jaxprs import JaxprWriter
from memwall.frontend.program import Program, TraceOptions, TraceResult, described
from memwall.frontend.targets.blame import blame, users_code
from memwall.frontend.writing import GraphWriter

Tree = Any

#: what ``--optimizer`` names → the function of optax, and its arguments
_OPTIMIZERS = {"adamw": ("adamw", (1e-3,)), "adam": ("adam", (1e-3,)), "sgd": ("sgd", (1e-2,))}


@dataclass(frozen=True)
class JaxProgram(Program):
    """A function of arrays, jitted or not.

    Attributes:
        function: of ``arguments`` and ``keywords``.
        arguments, keywords: pytrees of arrays or of shapes (``jax.ShapeDtypeStruct``).
        parameters: the number of leading arguments that are weights, by which gradients are taken: none or one.
        buffers: of arguments after it that the model holds and that have no gradient.
        loss: the function's result → a scalar; None takes the result where that is one.
        optimizer: a transformation of optax, the name of one, or None.
        samples: of a step, where known.
    """

    kind: ClassVar[str] = "a JAX program"

    function: Callable[..., Any] = lambda: None
    arguments: tuple[Tree, ...] = ()
    keywords: Mapping[str, Tree] = field(default_factory=dict)
    parameters: int = 0
    buffers: int = 0
    loss: Callable[[Any], Any] | None = None
    optimizer: Any = "adamw"
    samples: int | None = None

    def traced(self, options: TraceOptions) -> TraceResult:
        """The graph of a step. Raises ``UsageError``: the function cannot be traced, or an option does not fit."""
        if options.mode not in ("inference", "training"):
            raise UsageError(
                f"{self.target or self.name} is a JAX program: --mode {options.mode} is of PyTorch modules; profile the"
                " function that makes that step"
            )
        arguments, keywords = self._shapes(options.dtype)
        writer = GraphWriter(options.max_ops)
        walk = JaxprWriter(writer, trips=_trips(options.assume))
        given = self._given(writer, arguments, keywords)
        leaves = jax.tree_util.tree_leaves(given)
        weights = jax.tree_util.tree_leaves(given[: self.parameters])
        optimizer = None
        if options.mode == "training":
            optimizer = self._transformation(walk)
            outputs = self._trained(walk, arguments, keywords, given, optimizer)
        else:
            closed, _ = self._jaxpr(self.function, arguments, keywords)
            outputs = walk.closed(closed, leaves)
            pairs = _aliased(closed)
            _donated(writer, [outputs[made] for made, _ in pairs], [leaves[before] for _, before in pairs])
        own = [*weights, *walk.constants]
        graph = writer.graph(
            jax.tree_util.tree_leaves(given[self.parameters + self.buffers :]),
            own,
            tuple(dict.fromkeys(value for value in outputs if value is not None)),
            gradients=options.mode == "training",
            one_program=True,
        )
        devices = devices_of(jax.tree_util.tree_leaves((arguments, keywords)))
        return self._result(graph, options, walk, own, optimizer and optimizer[0], devices)

    def exported(self, options: TraceOptions, platform: str) -> Callable[[], bytes]:
        """As :meth:`memwall.frontend.program.Program.exported`."""
        return cache(partial(self._serialized, options, platform))

    def _serialized(self, options: TraceOptions, platform: str) -> bytes:
        """The step as a function of the leaves, which any tree can be made of. Arguments are donated that the function
        donates, and in training the old weights and states."""
        arguments, keywords = self._shapes(options.dtype)
        step: Callable[..., Any] = self.function
        first: tuple[Tree, ...] = ()
        if options.mode == "training":
            step, arguments, first = self._training_step(arguments)
        closed, _ = self._jaxpr(step, arguments, keywords)
        donated = tuple(range(len(jax.tree_util.tree_leaves(first)))) or _donated_by(closed)
        leaves, tree = jax.tree_util.tree_flatten((arguments, keywords))

        def flat(*given: Any) -> list[Any]:
            positional, named = jax.tree_util.tree_unflatten(tree, given)
            return jax.tree_util.tree_leaves(step(*positional, **named))

        with _blamed(f"exporting {self.target or self.name}"), users_code():
            jitted = jax.jit(flat, donate_argnums=donated)
            return bytes(jax.export.export(jitted, platforms=(platform,))(*laid(leaves, closed)).serialize())

    def _training_step(
        self, arguments: Sequence[Tree]
    ) -> tuple[Callable[..., Any], tuple[Tree, ...], tuple[Tree, ...]]:
        """A whole step as one function, its arguments, and the first of them, which it may overwrite."""
        optimizer = self._transformation(None)
        differentiated = jax.value_and_grad(self._scalar)
        if optimizer is None:
            return differentiated, tuple(arguments), ()
        _, transformation = optimizer
        state = jax.eval_shape(transformation.init, arguments[0])

        def step(params: Tree, state: Tree, *rest: Tree, **keywords: Tree) -> Any:
            loss, gradients = differentiated(params, *rest, **keywords)
            return loss, *_updated(transformation, gradients, state, params)

        return step, (arguments[0], state, *arguments[1:]), (arguments[0], state)

    # -- the arguments -----------------------------------------------------------------------------------------------

    def _shapes(self, dtype: str | None) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
        """The arguments as shapes, their floats in another dtype where that is asked for."""
        with _blamed(f"reading the inputs of {self.target or self.name}"):
            found = shapes_of((self.arguments, dict(self.keywords)), dtype)
        return found[0], found[1]

    def _given(self, writer: GraphWriter, arguments: Sequence[Tree], keywords: Mapping[str, Tree]) -> tuple[Tree, ...]:
        """The arguments as values of the graph, one tree each, the keywords last."""

        def value(number: int) -> Callable[[Any, Any], int]:
            held = number - self.parameters
            role = "parameter" if held < 0 else "buffer" if held < self.buffers else "input"

            def made(path: Any, leaf: Any) -> int:
                name = _path_name(path) or (f"input.{held - self.buffers}" if role == "input" else "")
                return writer.array(*shape_of(leaf), role, name)

            return made

        trees = [*arguments, dict(keywords)]
        return tuple(jax.tree_util.tree_map_with_path(value(n), tree) for n, tree in enumerate(trees))

    # -- tracing -----------------------------------------------------------------------------------------------------

    def _jaxpr(self, function: Callable[..., Any], arguments: Sequence[Tree], keywords: Mapping[str, Tree]) -> Any:
        """The closed jaxpr, and the shapes of the results."""
        with _blamed(f"tracing {self.target or self.name}"), users_code():
            return jax.make_jaxpr(function, return_shape=True)(*arguments, **keywords)

    def _trained(
        self,
        walk: JaxprWriter,
        arguments: Sequence[Tree],
        keywords: Mapping[str, Tree],
        given: Sequence[Tree],
        optimizer: tuple[str, Any] | None,
    ) -> list[int | None]:
        """Forward, backward and the optimizer's step: the values that outlive it."""
        if not self.parameters or not jax.tree_util.tree_leaves(arguments[0]):
            raise UsageError(
                f"{self.target or self.name}: --mode training takes the gradient by the first argument, which is to be"
                " a tree of weights, as in f(params, x)"
            )
        leaves = jax.tree_util.tree_leaves(tuple(given))
        closed, shapes = self._jaxpr(jax.value_and_grad(self._scalar), arguments, keywords)
        values = walk.closed(closed, leaves)
        gradients = values[1:]
        writer = walk.writer
        for value, weight in zip(gradients, jax.tree_util.tree_leaves(given[0]), strict=True):
            _name(writer, value, "gradient", writer.storages[writer.values[weight].storage].name)
        if optimizer is None:
            return values
        _, transformation = optimizer
        with _blamed("making the optimizer's state"):
            state = jax.eval_shape(transformation.init, arguments[0])
        step = lambda grads, held, params: _updated(transformation, grads, held, params)  # noqa: E731
        held = jax.tree_util.tree_map_with_path(
            lambda path, leaf: writer.array(*shape_of(leaf), "optimizer_state", _path_name(path)), state
        )
        closed, _ = self._jaxpr(step, (shapes[1], state, arguments[0]), {})
        writer.phase, writer.module = "optimizer", "optimizer"
        given_step = [*gradients, *jax.tree_util.tree_leaves((held, given[0]))]
        updated = walk.closed(closed, given_step)
        _donated(writer, updated, [*jax.tree_util.tree_leaves(given[0]), *jax.tree_util.tree_leaves(held)])
        return [values[0], *updated]

    def _scalar(self, *arguments: Tree, **keywords: Tree) -> Any:
        """What gradients are taken of: the loss of the result, the result where it is a number, or its first item; else
        the sum of its floats."""
        result = self.function(*arguments, **keywords)
        if self.loss is not None:
            return self.loss(result)
        results = result if isinstance(result, tuple | list) and result else (result,)
        if any(_alike(each, arguments[0]) for each in results):
            raise UsageError(
                f"{self.target or self.name} returns new weights, and so is a whole training step: profile it without"
                " --mode training"
            )
        first = results[0]
        if jax.tree_util.all_leaves((first,)) and jnp.shape(first) == () and _is_float(first):
            return first
        return sum(jnp.sum(leaf, dtype=jnp.float32) for leaf in jax.tree_util.tree_leaves(result) if _is_float(leaf))

    def _transformation(self, walk: JaxprWriter | None) -> tuple[str, Any] | None:
        """Name and transformation of the optimizer; None for a step that ends after backward."""
        asked = self.optimizer
        if asked is None or asked == "none":
            return None
        if isinstance(asked, str):
            name = asked.partition(":")[0]
            if name not in _OPTIMIZERS:
                raise UsageError(
                    f"no optimizer named {asked!r} for a JAX program; want {', '.join(_OPTIMIZERS)} or none"
                )
            try:
                optax = importlib.import_module("optax")
            except ImportError:
                if walk is not None:
                    walk.notes["the step ends after backward: optax, which has its optimizer, is not installed"] = None
                return None
            function, numbers = _OPTIMIZERS[name]
            return name, getattr(optax, function)(*numbers)
        with _blamed("making the optimizer"):
            made = asked() if callable(asked) else asked
        if not hasattr(made, "init") or not hasattr(made, "update"):
            raise UsageError(f"optimizer() returned {type(made).__name__}, not a transformation of optax")
        return "optax", made

    # -- the result --------------------------------------------------------------------------------------------------

    def _result(
        self,
        graph: Graph,
        options: TraceOptions,
        walk: JaxprWriter,
        own: Sequence[int],
        optimizer: str | None,
        devices: int,
    ) -> TraceResult:
        first = next((graph.values[i].spec for i in graph.inputs if graph.values[i].spec.shape), None)
        ids = first is not None and "int" in first.dtype and len(first.shape) == 2
        weights = [each for each in own if graph.storages[graph.values[each].storage].role == "parameter"]
        info = described(
            graph,
            [(spec.dtype, spec.numel) for spec in graph.specs(weights)],
            name=self.name,
            target=self.target,
            mode=options.mode,
            samples=self.samples or (first.shape[0] if first else None),
            tokens=first.numel if first is not None and ids else None,
            optimizer=optimizer,
            samples_assumed=not self.samples and first is not None,
        )
        whole = f"the program is for {devices:,} devices: arrays that a compiler would divide are whole here"
        facts = TraceFacts(notes=noted((whole,) if devices > 1 else (), walk.notes))
        return TraceResult(graph, info, facts, versions={"jax": jax.__version__})


def _alike(result: Tree, weights: Tree) -> bool:
    """Whether a result is a tree of several arrays of the weights' names, shapes and dtypes."""
    kinds = [(leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(weights)]
    same = jax.tree_util.tree_structure(result) == jax.tree_util.tree_structure(weights)
    return same and [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in jax.tree_util.tree_leaves(result)] == kinds


def _is_float(leaf: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.floating))


def _donated_by(closed: Any) -> tuple[int, ...]:
    """The arguments that a jitted function donates, by their places among the leaves."""
    eqns = closed.jaxpr.eqns
    if len(eqns) != 1 or "donated_invars" not in eqns[0].params:
        return ()
    given = {
        var for var, is_donated in zip(eqns[0].invars, eqns[0].params["donated_invars"], strict=True) if is_donated
    }
    return tuple(place for place, var in enumerate(closed.jaxpr.invars) if var in given)


def _aliased(closed: Any) -> list[tuple[int, int]]:
    """The results of a jitted function that take the memory of arguments that it donates, and these, by their places:
    as ``jax.jit`` pairs them, each argument with the first result of its shape and dtype that is left."""
    left = dict(enumerate(closed.out_avals))
    pairs = []
    for before in _donated_by(closed):
        kind = closed.in_avals[before]
        made = next((i for i, aval in left.items() if (aval.shape, aval.dtype) == (kind.shape, kind.dtype)), None)
        if made is not None:
            del left[made]
            pairs.append((made, before))
    return pairs


def _updated(transformation: Any, gradients: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
    """Weights and state after a step, as ``optax.apply_updates`` makes them."""
    updates, state = transformation.update(gradients, state, params)
    return jax.tree_util.tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates), state


def _donated(writer: GraphWriter, made: Sequence[int | None], before: Sequence[int]) -> None:
    """Let the new weights and states take the memory of the old, as a training loop donates them."""
    place = {}
    for new, old in zip(made, before, strict=False):
        if new is None:
            continue
        fresh, held = writer.values[new], writer.values[old]
        if fresh.spec == held.spec and writer.storages[fresh.storage].role == "activation" and not fresh.offset:
            place[fresh.storage] = held.storage
    for number, value in enumerate(writer.values):
        if value.storage in place:
            writer.values[number] = replace(value, storage=place[value.storage])
    for number in place:
        writer.storages[number] = Storage(number, 0, "activation")


def _name(writer: GraphWriter, value: int | None, role: str, name: str) -> None:
    """Give the storage of a value another role, unless the value was there before the step."""
    if value is None:
        return
    number = writer.values[value].storage
    if writer.storages[number].role == "activation":
        writer.storages[number] = replace(writer.storages[number], role=role, name=name)


def _path_name(path: Sequence[Any]) -> str:
    """``layers.0.kernel`` of the path of a leaf."""
    names = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", ""))) for key in path)
    return ".".join(str(name) for name in names if str(name))


def _trips(assume: Sequence[str]) -> int:
    """What ``--assume trips=N`` says of loops of unknown length."""
    trips = 1
    for text in assume:
        name, _, number = text.partition("=")
        if name != "trips" or not number.isdecimal() or not int(number):
            raise UsageError(f"--assume {text}: of a JAX program only trips=N is assumed, of loops of unknown length")
        trips = int(number)
    return trips


@contextmanager
def _blamed(doing: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise blame(error, doing) from error
