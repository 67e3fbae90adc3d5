"""A target that is written out: ``mm(bf16[4096,8192], bf16[8192,4096])``; statements of torch's ops on shapes.

What a string may say is decided before anything runs, because programs write them too: names are of inputs
(``DTYPE[SIZE, ...]``), of earlier statements, and of functions of :mod:`torch`, ``F`` and ``aten`` that torch lists as
ops, and of its functions that fill a tensor; attributes are a tensor's. Nothing else of Python is there.
"""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

from memwall.core.errors import UsageError, nearest
from memwall.core.graph import ITEMSIZE
from memwall.frontend.targets.contract import Workload
from memwall.frontend.targets.inputs import SHORT_DTYPES, InputSpec, make_tensor, parse_input

_DTYPES = "|".join((*SHORT_DTYPES, *ITEMSIZE))
#: an input, or a call of a function
_LOOKS = re.compile(rf"\b(?:(?:{_DTYPES})\s*+\[|[A-Za-z_]\w*+\s*+\()")
#: an input of no sizes, which Python cannot read
_SCALAR = re.compile(rf"\b({_DTYPES})\[\s*\]")
#: what ends as a file, or as a name in one, is none
_FILE = re.compile(r".*\.(?:py|json|gz|pb|onnx|mlir|mlirbc|stablehlo|jax|hlo|txt|toml|csv)(?::[\w.]+)?")
_MOST_CHARACTERS, _MOST_DEPTH = 10_000, 60

#: functions that fill a tensor, which torch does not list as ops
_FILLING = ("arange", "empty", "eye", "full", "full_like", "linspace", "ones", "ones_like", "rand", "randint", "randn",
            "randperm", "rand_like", "randn_like", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros",
            "zeros_like", "empty_like")  # fmt: skip
#: attributes of a tensor that are no functions
_PROPERTIES = ("H", "T", "mH", "mT", "real", "imag", "shape", "ndim", "dtype", "device", "itemsize", "nbytes")
#: packages by the names that people give them, packages in which a function without one is searched, and longer names
_PACKAGES, _SEARCHED = ("torch", "F", "aten", "math"), ("F", "torch", "aten")
_SHORTER = {"torch.nn.functional": "F", "nn.functional": "F", "torch.ops.aten": "aten"}
#: methods of a tensor that are no ops
_NOT_ON_META = ("apply_", "backward", "map_", "map2_", "numpy", "register_hook", "share_memory_", "storage", "tolist")

_SYNTAX = (
    ast.Name, ast.Subscript, ast.Slice, ast.Constant, ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp, ast.Compare,
    ast.Starred, ast.expr_context, ast.Expr, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip
_NUMBERS = {"math.pi": math.pi, "torch.inf": math.inf, "math.inf": math.inf, "torch.pi": math.pi}
_LONGEST_TEXT = 40
#: numbers of an input that are drawn
_MOST_DRAWN = 1 << 16
#: what stands for a file in messages
_PLACE = "the expression"


def is_expression(text: str) -> bool:
    """Whether a target reads as ops on shapes and not as a file or a module."""
    return _LOOKS.search(text) is not None and not _FILE.fullmatch(text)


def workload_of_expression(text: str) -> Workload:
    """The workload of an expression: its inputs in the order in which they stand, its result from the last
    statement.

    Args:
        text: statements divided by ``;`` or new lines, such as ``x = f16[8,128]; softmax(x + 1, -1)``. An input is
            ``DTYPE[SIZE, ...]``, as for ``--input``; a size may be a number that an earlier statement names.

    Raises:
        UsageError: it is no Python, says what an expression may not say, or names no function; with the place.
    """
    from torch import nn

    reader = _Statements(text)
    function = reader.function()

    class Expression(nn.Module):
        def forward(self, *inputs: Any) -> Any:
            from memwall.frontend.targets.guarded import Restraint, listed

            with Restraint():
                made = function(*inputs)
                return listed(made) if type(made) in (list, tuple) else made

    specs = tuple(reader.inputs)
    return Workload(Expression(), lambda: tuple(map(_unfilled, specs)), name=_shown(text), target=text)


def _unfilled(spec: InputSpec) -> Any:
    """An input whose numbers nobody draws, as long as it is of floats or large."""
    import torch

    if math.prod(spec.shape) > _MOST_DRAWN or getattr(torch, spec.dtype).is_floating_point:
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
    return make_tensor(spec)


def _shown(text: str, most: int = 60) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 1] + "…"


def functions_of(package: str) -> Mapping[str, Any]:
    """The functions of a package that an expression may call, by name: what torch lists as its ops; of ``aten`` ops
    with the overload, and of ``Tensor`` its methods."""
    first, _, rest = package.partition(".")
    if first == "aten":
        return _Aten(rest)
    return _functions().get(package, {})


class _Aten(dict[str, Any]):
    """Ops of aten by name, or the overloads of one, looked up when they are asked for."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self._op = op

    def get(self, name: str, default: Any = None) -> Any:
        import torch

        if {self._op, name} & {"from_file", "save", "load"} or name.startswith("__"):
            return default
        op = getattr(torch.ops.aten, self._op, None) if self._op else torch.ops.aten
        found = getattr(op, name, None)
        return found if type(found).__name__ in ("OpOverload", "OpOverloadPacket") else default


@cache
def _functions() -> Mapping[str, Mapping[str, Any]]:
    import torch
    from torch.nn import functional
    from torch.overrides import get_overridable_functions

    listed = get_overridable_functions()

    def of(package: Any) -> dict[str, Any]:
        ops = set(map(id, listed.get(package, ())))
        return {name: found for name, found in vars(package).items() if id(found) in ops}

    methods = {name for name in dir(torch.Tensor) if getattr(torch.Tensor, name) in listed[torch.Tensor]}
    return {
        "F": of(functional),
        "torch": {**of(torch), **of(torch.functional), **{name: getattr(torch, name) for name in _FILLING}},
        **{f"torch.{name}": of(getattr(torch, name)) for name in ("linalg", "fft", "special")},
        "math": {name: getattr(math, name) for name in ("sqrt", "ceil", "floor", "log", "log2", "exp")},
        "Tensor": {
            name: getattr(torch.Tensor, name) for name in methods if name[0] != "_" and name not in _NOT_ON_META
        },
    }


class _Statements(ast.NodeTransformer):
    """Statements → a function of their inputs, in which every name is one that was looked up. ``inputs`` are those in
    the order in which they stand."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.inputs: list[InputSpec] = []
        self._names: set[str] = set()
        self._numbers: dict[str, Any] = {}  # of the names, names of numbers
        self._known: dict[str, Any] = {}  # names in the code → functions and dtypes

    def function(self) -> Callable[..., Any]:
        """The function. Raises UsageError: the text is no expression; with the place."""
        body: list[ast.stmt] = [self.visit(statement) for statement in self._parsed().body]
        if not self.inputs:
            raise UsageError(f"{_shown(self.text)!r} has no input; write one as DTYPE[SIZE, ...], such as f32[8,1024]")
        last = body[-1]
        if isinstance(last, ast.Assign):
            body.append(ast.Return(_loaded(last.targets[0])))
        elif isinstance(last, ast.Expr):
            body[-1] = ast.Return(last.value)
        tree = ast.parse(f"def expression(): {'; '.join(map(ast.unparse, body))}")
        made = tree.body[0]
        assert isinstance(made, ast.FunctionDef)
        made.args.args = [ast.arg(f"_input_{number}") for number in range(len(self.inputs))]
        linecache.cache[_PLACE] = (len(self.text), None, self.text.splitlines(keepends=True), _PLACE)
        # the code has no name but what was looked up; torch's own imports when it is called
        space: dict[str, Any] = {**self._known, "__builtins__": {"__import__": __import__}}
        exec(compile(ast.fix_missing_locations(tree), _PLACE, "exec"), space)  # of nodes looked at one by one
        found: Callable[..., Any] = space["expression"]
        return found

    def _parsed(self) -> ast.Module:
        shown = _shown(self.text)
        if len(self.text) > _MOST_CHARACTERS:
            raise UsageError(f"an expression has at most {_MOST_CHARACTERS:,} characters, not {len(self.text):,}")
        try:
            tree = ast.parse(_SCALAR.sub(r"\1[()]", self.text.strip()))
        except SyntaxError as error:
            raise UsageError(f"cannot read {shown!r}: {error.msg} ({_at(error.lineno, error.offset)})") from None
        except (RecursionError, MemoryError, ValueError):
            raise UsageError(f"cannot read {shown!r}: it is nested too deeply, or no text") from None
        level: list[ast.AST] = [tree]
        for _ in range(_MOST_DEPTH):
            level = [child for node in level for child in ast.iter_child_nodes(node)]
        if level:
            raise UsageError(f"cannot read {shown!r}: it is nested too deeply")
        return tree

    def _refused(self, node: ast.AST, why: str) -> UsageError:
        return UsageError(f"{why} ({_at(getattr(node, 'lineno', 1), getattr(node, 'col_offset', 0) + 1)})")

    def _known_as(self, name: str, thing: Any) -> ast.expr:
        name = "_" + name.replace(".", "_")  # as no name of the text begins
        self._known[name] = thing
        return ast.Name(name, ast.Load())

    # -- statements ----------------------------------------------------------------------------------------------------

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _SYNTAX):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()
            raise self._refused(node, f"an expression has ops on shapes and names for them, and no {words}")
        return super().generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        value = self.visit(node.value)
        targets = [name for each in node.targets for name in (each.elts if isinstance(each, ast.Tuple) else [each])]
        for name in targets:
            if not isinstance(name, ast.Name) or name.id in (*_PACKAGES, *SHORT_DTYPES, *ITEMSIZE) or name.id[0] == "_":
                raise self._refused(name, f"{ast.unparse(name)} cannot be the name of a value")
            self._names.add(name.id)
            self._numbers.pop(name.id, None)
            if isinstance(value, ast.Constant) and len(targets) == 1:
                self._numbers[name.id] = value.value
        return ast.Assign(node.targets, value, lineno=node.lineno)

    # -- values --------------------------------------------------------------------------------------------------------

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        sizes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if not isinstance(node.value, ast.Name) or not self._is_dtype(node.value.id):
            index = [self.visit(size) for size in sizes]
            whole = ast.Tuple(index, ast.Load()) if isinstance(node.slice, ast.Tuple) else index[0]
            return ast.Subscript(self.visit(node.value), whole, ast.Load())
        numbers = [self._number(self.visit(size)) for size in sizes]
        if wrong := [size for size, n in zip(sizes, numbers, strict=True) if type(n) is not int or n < 0]:
            raise self._refused(wrong[0], f"the size {ast.unparse(wrong[0])} of {ast.unparse(node)} is no whole number")
        try:
            self.inputs.append(parse_input(f"{node.value.id}[{','.join(map(str, numbers))}]"))
        except UsageError as error:
            raise self._refused(node, str(error)) from None
        return ast.Name(f"_input_{len(self.inputs) - 1}", ast.Load())

    def _is_dtype(self, name: str) -> bool:
        return name not in self._names and SHORT_DTYPES.get(name, name) in ITEMSIZE

    def _number(self, node: ast.AST) -> Any:
        return node.value if isinstance(node, ast.Constant) else None

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, (str, bytes)) and len(node.value) > _LONGEST_TEXT:
            raise self._refused(node, "no op has an option of such a long text")
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        from memwall.frontend.targets.guarded import ARITHMETIC, computed

        name, text = type(node.op).__name__, ast.unparse(node)
        if name not in ARITHMETIC or any(isinstance(each, (ast.List, ast.Tuple)) for each in (node.left, node.right)):
            raise self._refused(node, f"cannot compute {text}")
        left, right = self.visit(node.left), self.visit(node.right)
        if not (isinstance(left, ast.Constant) or isinstance(right, ast.Constant)):
            return self._call(f"op_{name}", partial(computed, name), left, right)
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            try:
                return ast.copy_location(ast.Constant(computed(name, left.value, right.value)), node)
            except UsageError as error:
                raise self._refused(node, f"cannot compute {text}: {error}") from None
        if any(isinstance(self._number(each), (str, bytes)) for each in (left, right)):
            raise self._refused(node, f"cannot compute {text}")
        return self._call(f"op_{name}", partial(computed, name), left, right)

    def visit_List(self, node: ast.List) -> ast.AST:
        from memwall.frontend.targets.guarded import listed

        return self._call("listed", listed, self.generic_visit(node))

    def visit_Tuple(self, node: ast.Tuple) -> ast.AST:
        return self.visit_List(node)  # type: ignore[arg-type]

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> ast.AST:
        return ast.Call(self._known_as(name, function), [*args], [])

    # -- names ---------------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self._numbers:
            return ast.copy_location(ast.Constant(self._numbers[node.id]), node)
        if node.id in self._names:
            return node
        if self._is_dtype(node.id):
            import torch

            return self._known_as(f"dtype_{node.id}", getattr(torch, SHORT_DTYPES.get(node.id, node.id)))
        raise self._refused(node, f"nothing is called {node.id!r}; an input is written as DTYPE[SIZE, ...]")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """A dtype or a number of a package, or what a tensor says of itself."""
        named = self._dotted(node)
        if named in _NUMBERS:
            return ast.Constant(_NUMBERS[named])
        if named == f"torch.{node.attr}" and self._is_dtype(node.attr):
            return self.visit_Name(ast.Name(node.attr, ast.Load()))
        if node.attr not in _PROPERTIES:
            raise self._refused(node, f"{ast.unparse(node)} is no property of a tensor{_near(node.attr, _PROPERTIES)}")
        return ast.Attribute(self.visit(node.value), node.attr, ast.Load())

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if any(each.arg is None for each in node.keywords):
            raise self._refused(node, "the options of an op are written one by one")
        keywords = [ast.keyword(each.arg, self.visit(each.value)) for each in node.keywords]
        return ast.Call(self._function(node.func), [self.visit(each) for each in node.args], keywords)

    def _function(self, node: ast.expr) -> ast.expr:
        """The function that is called: of a package, or a tensor's."""
        named = self._dotted(node)
        if named is not None:
            package, _, name = named.rpartition(".")
            places = {"": _SEARCHED, "torch": ("torch", "aten")}.get(package, (package,))
            for place in places:
                if (found := functions_of(place).get(name)) is not None:
                    return self._known_as(f"{place}_{name}", found)
            if package.partition(".")[0] in (*_PACKAGES, ""):
                known = [each for place in places for each in functions_of(place)]
                raise self._refused(node, f"{package or 'torch'} has no op {name!r}{_near(name, known)}")
        if not isinstance(node, ast.Attribute):
            raise self._refused(node, f"cannot call {ast.unparse(node)}")
        if node.attr not in functions_of("Tensor"):
            raise self._refused(node, f"a tensor has no op {node.attr!r}{_near(node.attr, functions_of('Tensor'))}")
        return ast.Attribute(self.visit(node.value), node.attr, ast.Load())

    def _dotted(self, node: ast.expr) -> str | None:
        """``torch.nn.functional.gelu`` as ``F.gelu``; None for what begins with a value."""
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in self._names:
            return None
        named = ".".join((node.id, *reversed(parts)))
        long = next((long for long in _SHORTER if named.startswith(long)), "")
        return _SHORTER.get(long, "") + named.removeprefix(long)


def _loaded(target: ast.expr) -> ast.expr:
    """What was assigned, read again."""
    if isinstance(target, ast.Tuple):
        return ast.Tuple([_loaded(each) for each in target.elts], ast.Load())
    assert isinstance(target, ast.Name)
    return ast.Name(target.id, ast.Load())


def _near(name: str, known: Iterable[str]) -> str:
    found = nearest(name, list(known))
    return f"; did you mean {', '.join(found)}?" if found else ""


def _at(line: int | None, column: int | None) -> str:
    return f"at character {column or 1}" if (line or 1) == 1 else f"line {line}, character {column or 1}"
