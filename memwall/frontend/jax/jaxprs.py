"""A jaxpr → ops: each primitive in order, loops written out, calls and branches entered.

``scan`` runs its body once for each item; how often ``while`` runs is assumed unless it counts up to a number of the
program's; of ``cond`` the branch with most work runs. What a name scope or, without one, the chain of the user's
functions says is the module; the innermost line of the user's is the source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from memwall.core.graph import TensorSpec, contiguous
from memwall.core.ranks import ranks_text
from memwall.frontend.jax.avals import dtype_name, plain_parameters, shape_of
from memwall.frontend.jax.views import VIEWS, View, item, parts
from memwall.frontend.targets.blame import is_machinery, portable
from memwall.frontend.writing import GraphWriter

#: primitives that launch nothing, jitted or not
_FREE = frozenset((
    "stop_gradient", "optimization_barrier", "sharding_constraint", "name", "pvary", "pbroadcast", "mesh_cast",
    "reshard", "device_put", "random_wrap", "random_unwrap", "create_token", "after_all", "debug_callback",
    "debug_print", "layout_constraint", "axis_index",
))  # fmt: skip
#: primitives that are a call, and the parameters that may hold what they call
_CALLS = frozenset((
    "jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint", "custom_jvp_call",
    "custom_vjp_call", "custom_vmap_call", "custom_partitioning", "composite", "linear_call",
))  # fmt: skip
_CALLED = ("jaxpr", "call_jaxpr", "call", "callee")
#: primitives that make arrays of nothing
_MAKERS = frozenset(("iota", "random_seed", "rng_uniform"))
#: primitives that are a message among devices → the collective
_COLLECTIVES: Mapping[str, str] = {
    **dict.fromkeys(("psum", "psum_invariant", "pmax", "pmin"), "all_reduce"),
    **dict.fromkeys(("all_gather", "all_gather_invariant", "all_gather_reduced"), "all_gather"),
    "reduce_scatter": "reduce_scatter", "all_to_all": "all_to_all", "ragged_all_to_all": "all_to_all",
    "ppermute": "ppermute",
}  # fmt: skip
#: names of operands, where formulas ask for them
OPERANDS: Mapping[str, tuple[str, ...]] = {
    "dot_general": ("lhs", "rhs"), "conv_general_dilated": ("lhs", "rhs"), "pad": ("operand", "padding_value"),
    "gather": ("operand", "indices"), "select_n": ("which", "x", "y"), "clamp": ("min", "x", "max"),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max"),
                    ("operand", "indices", "updates")),
    "dynamic_update_slice": ("operand", "update"), "dynamic_slice": ("operand",),
}  # fmt: skip
#: wrappers of a name scope: transformations
_TRANSFORMS = re.compile(r"(\w+)\((.*)\)")
#: the package in front of a class, as equinox names scopes
_PACKAGE = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z])")
_FOLDER = str(Path(__file__).parent)


@dataclass
class JaxprWriter:
    """What writes jaxprs into a graph.

    Attributes:
        writer: of the graph.
        trips: of a loop of which nothing says how often it runs.
        notes: what was assumed, once each.
    """

    writer: GraphWriter
    trips: int = 1
    notes: dict[str, None] = field(default_factory=dict)
    _scopes: list[str] = field(default_factory=list)
    #: of the shard_map that is being written: axes of its mesh and their sizes, in order
    _mesh: Mapping[str, int] = field(default_factory=dict)
    _places: dict[Any, tuple[str, str]] = field(default_factory=dict)

    def closed(self, closed: ClosedJaxpr, given: Sequence[int | None]) -> list[int | None]:
        """The results of a jaxpr for some values; its constants are weights that the function holds."""
        constants = [self.constant(each) for each in closed.consts]
        return self.run(closed.jaxpr, [*constants, *given])

    def constant(self, array: Any) -> int:
        """A value of the program's own: a weight where it is of floats."""
        shape, dtype = tuple(np.shape(array)), dtype_name(getattr(array, "dtype", np.asarray(array).dtype))
        known = self._constants.get(id(array))
        if known is None:
            role = "parameter" if "float" in dtype and np.prod(shape, dtype=int) > 1 else "buffer"
            value = self.writer.array(shape, dtype, role, f"constant.{len(self._constants)}")
            known = self._constants[id(array)] = (value, array)
        return known[0]

    @property
    def constants(self) -> list[int]:
        """The values of the program's own weights."""
        return [value for value, _ in self._constants.values()]

    _constants: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def run(self, jaxpr: Jaxpr, given: Sequence[int | None]) -> list[int | None]:
        """The results of an open jaxpr, whose constants come first among what is given; None is a number that is
        written into the program."""
        values: dict[Any, int | None] = dict(zip([*jaxpr.constvars, *jaxpr.invars], given, strict=True))

        def read(atom: Any) -> int | None:
            return None if isinstance(atom, Literal) else values[atom]

        for eqn in jaxpr.eqns:
            made = self._equation(eqn, [read(atom) for atom in eqn.invars])
            values.update(zip(eqn.outvars, made, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    # -- one equation ------------------------------------------------------------------------------------------------

    def _equation(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        name = eqn.primitive.name.replace("-", "_")
        with self._at(eqn):
            if special := _SPECIAL.get(name):
                return special(self, eqn, given)
            if name in _CALLS:
                return self._call(eqn, given)
            if name in _FREE:
                self.writer.free(f"lax.{name}")
                return [*given, *[None] * len(eqn.outvars)][: len(eqn.outvars)]
            if all(value is None for value in given) and name not in _MAKERS and _are_numbers(eqn.outvars):
                return [None] * len(eqn.outvars)  # of numbers in the program, which XLA folds and a host computes
            view = VIEWS.get(name)
            if view is not None and given[0] is not None:
                shape = eqn.outvars[0].aval.shape
                made = self._seen(given[0], eqn.invars[0].aval, lambda spec: view(spec, eqn.params, shape))
                if made is not None:
                    return [self._view(name, given[0], made)]
            return self._op(name, eqn, given)

    def _op(self, name: str, eqn: Any, given: Sequence[int | None], **more: Any) -> list[int | None]:
        outputs = [self._array(var.aval) for var in eqn.outvars]
        inputs = [(i, value) for i, value in enumerate(given) if value is not None]
        names = OPERANDS.get(name, ())
        arguments = [names[i] if i < len(names) else "xyz"[i] if i < 3 else f"x{i}" for i, _ in inputs]
        if name == "broadcast_in_dim":
            name = "full"
        self.writer.op(
            f"lax.{name}",
            [value for _, value in inputs],
            outputs,
            arguments=arguments,
            attributes={**plain_parameters(eqn.params), **more},
        )
        return [*outputs]

    def _view(self, name: str, source: int, view: View) -> int:
        """A view, and the op that copies it where nothing compiles the program."""
        shape, strides = ([int(number) for number in numbers] for numbers in view[:2])  # some are numpy's
        self.writer.op(f"lax.{name}", (source,), (), arguments=("operand",), attributes={"view": shape})
        return self.writer.view(source, shape, strides, int(view.offset))

    def _seen(self, value: int, aval: Any, view: Callable[[TensorSpec], View | None]) -> View | None:
        """A view of an array; of an array of keys, whose words stay together."""
        spec, rank = self.writer.spec(value), len(aval.shape)
        found = view(TensorSpec(spec.shape[:rank], spec.strides[:rank], spec.dtype))
        return found and View((*found.shape, *spec.shape[rank:]), (*found.strides, *spec.strides[rank:]), found.offset)

    def _array(self, aval: Any) -> int:
        shape, dtype = shape_of(aval)
        return self.writer.array(shape, dtype)

    def _call(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        inner = next(eqn.params[key] for key in _CALLED if key in eqn.params)
        return self.closed(inner, given) if isinstance(inner, ClosedJaxpr) else self.run(inner, given)

    def _linear_solve(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        """``custom_linear_solve``, of whose functions the one that solves runs, for its constants and what follows all
        constants."""
        lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
        first = lengths.matvec + lengths.vecmat
        return self.closed(solve, [*given[first : first + lengths.solve], *given[sum(lengths) :]])

    def _shard_map(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        """What the first device of a mesh does, on its parts of the arrays."""
        inner = eqn.params["jaxpr"]
        outer, self._mesh = self._mesh, dict(eqn.params["mesh"].shape)
        devices = int(np.prod([*self._mesh.values()], dtype=int))
        if devices > 1:
            self.notes[f"a shard_map over {devices:,} devices is what the first of them does"] = None
        made = self.run(inner, self._parted(given, inner.invars))
        self._mesh = outer
        return self._parted(made, eqn.outvars)

    def _collective(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        """A message among the devices along some axes of the mesh, from the first device."""
        name = eqn.primitive.name
        said = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        axes = [said] if isinstance(said, str) else [axis for axis in said if isinstance(axis, str)]
        places, step = [0], 1
        for axis, size in reversed([*self._mesh.items()]):
            if axis in axes:
                places = [place + step * number for number in range(size) for place in places]
            step *= size
        attributes = {"ranks": len(places), "group": ranks_text(sorted(places))}
        inputs = [value for value in given if value is not None]
        if not inputs or len(places) == 1:
            return self._parted(given[: len(eqn.outvars)], eqn.outvars)
        outputs = [self._array(var.aval) for var in eqn.outvars]
        self.writer.op(
            f"lax.{_COLLECTIVES[name]}", inputs, outputs, arguments=["operand"] * len(inputs), attributes=attributes
        )
        return [*outputs]

    def _parted(self, given: Sequence[int | None], variables: Sequence[Any]) -> list[int | None]:
        """Arrays in the shapes of variables: the first device's part of each, or the whole that a part stands for."""
        made = []
        for value, var in zip(given, variables, strict=True):
            shape, dtype = shape_of(var.aval)
            if value is not None and shape != self.writer.spec(value).shape:
                value = self.writer.view(value, shape, contiguous(shape, dtype).strides)
            made.append(value)
        return made

    def _split(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        (source,) = given
        assert source is not None
        views = parts(self.writer.spec(source), eqn.params["sizes"], eqn.params["axis"])
        return [self._view("split", source, view) for view in views]

    def _update(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        """``dynamic_update_slice`` of the operand, the update and the places, which are numbers."""
        return self._op("dynamic_update_slice", eqn, [*given[:2], *[None] * (len(given) - 2)])

    def _take(self, eqn: Any, given: Sequence[int | None]) -> list[int | None]:
        """``dynamic_slice``: which part is not known, and the first one stands for it."""
        source = given[0]
        if source is None:
            return self._op("dynamic_slice", eqn, given[:1])
        sizes = tuple(eqn.params["slice_sizes"])
        view = self._seen(source, eqn.invars[0].aval, lambda spec: View(sizes, spec.strides))
        assert view is not None
        return [self._view("dynamic_slice", source, view)]

    # -- loops and branches ------------------------------------------------------------------------------------------

    def _scan(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        said, writer = eqn.params, self.writer
        closed, length = said["jaxpr"], said["length"]
        consts, carried = said["num_consts"], said["num_carry"]
        held, carry, items = given[:consts], given[consts : consts + carried], given[consts + carried :]
        stacked = [self._array(var.aval) for var in eqn.outvars[carried:]]
        order = range(length - 1, -1, -1) if said["reverse"] else range(length)
        for number in order:
            writer.trip()
            with self._scope(f"{'' if self._scopes and self._scopes[-1] else 'scan.'}{number}"):
                own = [
                    None if each is None else self._view("dynamic_slice", each, item(writer.spec(each), number))
                    for each in items
                ]
                made = self.closed(closed, [*held, *carry, *own])
                carry = made[:carried]
                for whole, one in zip(stacked, made[carried:], strict=True):
                    place = writer.view(whole, *item(writer.spec(whole), number))
                    if one is None:
                        writer.op("lax.full", (), [place])
                    else:
                        writer.op("lax.dynamic_update_slice", [one], [place], arguments=["update"])
        return [*carry, *stacked]

    def _while(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        said = eqn.params
        tested, ran = said["cond_nconsts"], said["body_nconsts"]
        of_test, of_body, carry = given[:tested], given[tested : tested + ran], given[tested + ran :]
        trips = _counted_trips(eqn)
        if trips is None:
            trips, text = self.trips, "time" if self.trips == 1 else "times"
            self.notes[f"a while loop of unknown length runs {trips:,} {text} (--assume trips=N)"] = None
        for number in range(trips):
            self.writer.trip()
            with self._scope(f"while.{number}"):
                self.closed(said["cond_jaxpr"], [*of_test, *carry])
                carry = self.closed(said["body_jaxpr"], [*of_body, *carry])
        return carry

    def _cond(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        branches, which = eqn.params["branches"], eqn.invars[0]
        if isinstance(which, Literal):
            return self.closed(branches[min(max(int(which.val), 0), len(branches) - 1)], given[1:])
        work = [_work(branch.jaxpr) for branch in branches]
        if len(set(work)) > 1:
            self.notes[f"of a cond with {len(branches)} branches the one with most work runs"] = None
        return self.closed(branches[work.index(max(work))], given[1:])

    def _pallas(self, eqn: Any, given: list[int | None]) -> list[int | None]:
        """A kernel of the user's own, with what its CostEstimate says."""
        said = eqn.params.get("cost_estimate")
        estimate = (
            {key: int(getattr(said, key)) for key in ("flops", "transcendentals", "bytes_accessed")} if said else None
        )
        name = str(eqn.params.get("name") or getattr(eqn.params.get("name_and_src_info"), "name", "") or "")
        return self._op("pallas_call", eqn, given, cost_estimate=estimate, kernel=name)

    # -- where it comes from -----------------------------------------------------------------------------------------

    @contextmanager
    def _at(self, eqn: Any) -> Iterator[None]:
        """What the equation's name scope and line say of the ops of it."""
        writer = self.writer
        before = writer.module, writer.source, writer.phase, writer.again
        info = eqn.source_info
        scopes, transforms = scopes_of(str(info.name_stack))
        if "transpose" in transforms:
            writer.phase = "backward"
        writer.again = writer.again or "rematted_computation" in transforms
        with self._scope(*scopes):
            functions, source = self._place(info.traceback)
            writer.module = ".".join(filter(None, self._scopes)) or functions or before[0]
            if source:
                writer.source = source
            yield
        writer.module, writer.source, writer.phase, writer.again = before

    @contextmanager
    def _scope(self, *names: str) -> Iterator[None]:
        self._scopes.extend(names)
        before, self.writer.module = self.writer.module, ".".join(filter(None, self._scopes)) or self.writer.module
        yield
        self.writer.module = before
        del self._scopes[len(self._scopes) - len(names) :]

    def _place(self, traceback: Any) -> tuple[str, str]:
        """The chain of the user's functions, without the outermost, and the user's innermost line."""
        found = self._places.get(traceback)
        if found is None:
            stack = traceback.frames if traceback is not None else []  # innermost first
            outermost = max((i for i, frame in enumerate(stack) if frame.file_name.startswith(_FOLDER)), default=None)
            frames = [frame for frame in stack[:outermost] if not is_machinery(frame.file_name)]
            names = [frame.function_name.rpartition(".")[2] for frame in reversed(frames)]
            chain = ".".join(name for name in names[1:] if name.isidentifier())
            source = f"{portable(frames[0].file_name)}:{frames[0].line_num}" if frames else ""
            found = self._places[traceback] = (chain, source)
        return found


_SPECIAL: Mapping[str, Callable[[JaxprWriter, Any, list[int | None]], list[int | None]]] = {
    "scan": JaxprWriter._scan,
    "shard_map": JaxprWriter._shard_map,
    "custom_linear_solve": JaxprWriter._linear_solve,
    "while": JaxprWriter._while,
    "cond": JaxprWriter._cond,
    "split": JaxprWriter._split,
    "pallas_call": JaxprWriter._pallas,
    **dict.fromkeys(_COLLECTIVES, JaxprWriter._collective),
    "dynamic_slice": JaxprWriter._take,
    "dynamic_update_slice": JaxprWriter._update,
}


def scopes_of(stack: str) -> tuple[list[str], set[str]]:
    """The names of a name stack without what transformations add, and these."""
    names, transforms = [], set()
    for token in filter(None, re.split(r"/(?![^()]*\))", stack)):
        while match := _TRANSFORMS.fullmatch(token):
            transforms.add(match[1])
            token = match[2]
        for name in token.split("/"):
            if name == "rematted_computation" or name == "checkpoint":
                transforms.add(name)
            elif name and "->" not in name:
                names.append(_PACKAGE.sub("", name))
    return names, transforms


def _are_numbers(variables: Sequence[Any]) -> bool:
    return all(not getattr(var.aval, "shape", ()) for var in variables)


def _counted_trips(eqn: Any) -> int | None:
    """How often a ``while`` runs that counts up from a number to another of the program's; None of any other."""
    test, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    tested, ran = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    if [each.primitive.name for each in test.eqns] != ["lt"] or test.eqns[0].outvars != test.outvars:
        return None
    counter, limit = test.eqns[0].invars
    if isinstance(counter, Literal) or counter not in test.invars[tested:]:
        return None
    place = test.invars.index(counter) - tested
    made = next((each for each in body.eqns if body.outvars[place] in each.outvars), None)
    if made is None or made.primitive.name != "add" or made.invars[0] is not body.invars[ran + place]:
        return None
    numbers = eqn.invars[tested + ran + place], limit, made.invars[1]
    if not all(isinstance(number, Literal) for number in numbers):
        return None
    start, stop, step = (int(number.val) for number in numbers)
    return len(range(start, stop, step)) if step > 0 else None


def _work(jaxpr: Jaxpr) -> int:
    """Elements that a jaxpr computes, with elements summed over in products, convolutions and what it calls."""
    total = 0
    for eqn in jaxpr.eqns:
        count = sum(int(np.prod(getattr(var.aval, "shape", ()), dtype=int)) for var in eqn.outvars)
        axes = eqn.params.get("dimension_numbers")
        if eqn.primitive.name == "dot_general":
            count *= math.prod(eqn.invars[0].aval.shape[axis] for axis in axes[0][0])
        if eqn.primitive.name == "conv_general_dilated":
            weights = eqn.invars[1].aval.shape
            count *= math.prod(weights) // max(weights[axes.rhs_spec[0]], 1)
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inside = getattr(inner, "jaxpr", inner)
                if hasattr(inside, "eqns"):
                    count += _work(inside) * eqn.params.get("length", 1)
        total += count
    return total
