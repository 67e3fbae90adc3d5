"""Light stand-ins for some heavy modules that torch imports in a trace and hardly uses: cold commands are fast.

Making an optimizer imports ``torch._dynamo`` for ``disable`` and ``graph_break``, which do nothing in eager mode; a
process group clears a cache of its rules; shape functions import ``torch.fx.experimental.symbolic_shapes`` to hear that
True is true, and ``sympy`` to ask whether a number is one of its expressions. A stand-in answers those calls where
nothing is compiled or symbolic. Anything else loads the real module, which then answers for good: a model that calls
``torch.compile`` finds what it expects.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

from memwall.core.compat import name_of

_Function = Callable[..., Any]


class _StandIn(ModuleType):
    """A module that has some members by itself and loads the real one for all others.

    torch imports members inside of functions that it calls thousands of times: such an import asks for ``__path__``,
    which is there (empty but of packages) as an error would take longer, and so would ``__getattr__`` of the class."""

    def __init__(self, name: str, members: Mapping[str, Callable[[_StandIn, str], Any]]) -> None:
        super().__init__(name)
        made = {key: make(self, key) for key, make in members.items()}
        spec = find_spec(name)
        assert spec is not None
        path = spec.submodule_search_locations or []
        self.__dict__.update(made, __spec__=spec, __file__=spec.origin, __path__=path, __getattr__=self._missing)

    def _missing(self, name: str) -> Any:
        if name.startswith("__") and name != "__version__":  # asked of every module, by inspect for one
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.load(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.load(), name, value)

    def load(self) -> ModuleType:
        """The real module, which takes this one's place; whoever has this one gets its members. The other
        stand-ins go too, so that what is loaded with it gets the real ones."""
        _remove_stand_ins()
        real = import_module(self.__name__)
        self.__dict__.update(vars(real))
        return real

    def loaded(self) -> ModuleType | None:
        """The real module if anything has imported it."""
        found = sys.modules.get(self.__name__)
        return None if isinstance(found, _StandIn) else found


def _remove_stand_ins() -> None:
    for name in _MEMBERS:
        if isinstance(sys.modules.get(name), _StandIn):
            del sys.modules[name]


# -- members; torch may keep them, so each outlives its stand-in and then does what the real one does ------------------


def _of_numbers(function: _Function) -> Callable[[_StandIn, str], _Function]:
    """A function of numbers and truth values, or sequences of them; the real one is asked where any is symbolic."""

    def make(module: _StandIn, name: str) -> _Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs and all(map(_is_plain, args)):
                return function(*args)
            return getattr(module.load(), name)(*args, **kwargs)

        return call

    return make


def _itself(module: _StandIn, name: str) -> _Function:
    """A function that returns the number or truth value that it is given, likewise."""

    def call(value: Any, *others: Any, **options: Any) -> Any:
        if type(value) in _NUMBERS and not others and not options:
            return value
        return getattr(module.load(), name)(value, *others, **options)

    return call


_NUMBERS = frozenset((bool, int))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return _NUMBERS.issuperset(map(type, value)) or all(map(_is_plain, value))
    return type(value) in _NUMBERS


def _equal(x: Any, y: Any) -> bool:
    if type(x) is type(y) and x == y:
        return True
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return len(x) == len(y) and all(map(_equal, x, y))
    return bool(x == y)


def _disable(module: _StandIn, name: str) -> _Function:
    """``torch._dynamo.disable``: the function itself, or what the real one makes of it once a compiler is loaded."""

    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if not callable(fn):
            return module.load().disable(fn, recursive, **options)
        real: list[_Function] = []

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not real and (compiler := module.loaded()) is not None:
                real.append(compiler.disable(fn, recursive, **options))
            return (real[0] if real else fn)(*args, **kwargs)

        return call

    return disable


class _Rules:
    """``torch._dynamo.trace_rules``: which function a compiler looks into is in no cache before there is a compiler."""

    def __init__(self, module: _StandIn, name: str) -> None:
        self._module, self._name = module, name

    def clear_lru_cache(self) -> None:
        if (compiler := self._module.loaded()) is not None:
            getattr(compiler, self._name).clear_lru_cache()

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(self._module.load(), self._name), name)


class _Class:
    """A class that has no instances until its module is loaded."""

    def __init__(self, module: _StandIn, name: str) -> None:
        self.module, self.name = module, name

    def __instancecheck__(self, instance: Any) -> bool:
        real = self.module.loaded()
        return real is not None and isinstance(instance, getattr(real, self.name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.module.load(), self.name)(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (getattr(self.module.load(), self.name),)


#: Module -> its members that a trace needs.
_MEMBERS: Mapping[str, Mapping[str, Callable[[_StandIn, str], Any]]] = {
    name_of("dynamo"): {
        "disable": _disable,
        "graph_break": lambda module, name: lambda msg="": None,
        "trace_rules": _Rules,
    },
    "sympy": {"Basic": _Class},
    name_of("sympy_functions"): {"Max": _Class},
    "torch.fx.experimental.symbolic_shapes": {
        "expect_true": _itself,
        "free_unbacked_symbols": _of_numbers(lambda value: set()),
        "guard_bool": _itself,
        "guard_int": _itself,
        "guard_or_false": _itself,
        "guard_or_true": _itself,
        "guard_size_oblivious": _itself,
        "guarding_hint_or_throw": _itself,
        "has_guarding_hint": _of_numbers(lambda value: True),
        "is_nested_int": _of_numbers(lambda value: False),
        "is_symbolic": _of_numbers(lambda value: False),
        "statically_known_false": _of_numbers(operator.not_),
        "statically_known_true": _itself,
        "sym_and": _of_numbers(lambda *each: functools.reduce(operator.and_, each)),
        "sym_eq": _of_numbers(_equal),
        "sym_or": _of_numbers(lambda *each: functools.reduce(operator.or_, each)),
    },
}


# -- the import system -------------------------------------------------------------------------------------------------


class _Parts:
    """Finder of parts of the modules that have stand-ins: loads the real module, and with it perhaps the part, which
    then is not loaded twice."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if target is not None or not isinstance(parent, _StandIn):
            return None
        parent.load()
        return spec_from_loader(name, _Loaded(sys.modules[name])) if name in sys.modules else None


class _Loaded(Loader):
    """Loader of a module that is loaded already; the import system takes what it finds in ``sys.modules`` after it."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[self.module.__name__] = self.module


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """While open, heavy modules that are not loaded yet have stand-ins."""
    finder: Any = _Parts()
    sys.modules.update({name: _StandIn(name, made) for name, made in _MEMBERS.items() if name not in sys.modules})
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        _remove_stand_ins()
