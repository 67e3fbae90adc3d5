"""Values that are known though tensors are on ``meta``.

A storage on ``meta`` may have a *shadow*: a host storage of its size with the true bytes. A tensor's value is then its
view of the shadow, so that views, aliases and in-place writes follow by themselves. A call whose tensors are all known
and small runs on their values too; what it returns has shadows in turn. A write of something unknown drops the shadow.

Values come from constants, ranges, seeded random numbers, integer and boolean inputs, and small buffers; never from
parameters or floating inputs, so that activations stay unknown. What decides of activations, as a top-k, a rounding or
the count of a mask, has the value that is assumed, which is noted once something depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from memwall.core import compat
from memwall.frontend.torch.dispatch.results import Results
from memwall.frontend.torch.dispatch.tensors import flat_tensors
from memwall.frontend.torch.ranks.distributed import has_other_ranks
from memwall.frontend.torch.ranks.sent_values import handed
from memwall.frontend.torch.values.assumed_values import assume, assume_places
from memwall.frontend.torch.values.assumptions import RANDOM, Assumptions, Basis, assumed_result
from memwall.frontend.torch.values.draws import Draws, as_drawn
from memwall.frontend.torch.values.shadows import Shadows, address_of
from memwall.frontend.torch.values.value_rules import (
    ARE_ZERO,
    BY_FEW,
    DECIDED,
    ENDS,
    FILLS,
    INTEGERS,
    MOST_FLOATS,
    MOST_INTEGERS,
    NUMBERED,
    OF_FLOATS,
    PICKS,
    SLICES,
    UNIQUE,
    UNSET,
    ValueRule,
    arguments_at,
    by_few,
    decides,
    elements,
    is_of_integers,
    is_small,
    is_uniform,
    selected,
    wrong_picks,
)
from memwall.ops.signatures import Signature

_HOST = torch.device("cpu")


class KnownValues(Shadows):
    """The values of one trace. Where there are ``assumptions``, they answer what depends on activations. ``asked``
    counts the calls whose result left the tensors or gave one its shape: what Python or the kernels may depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.draws = Draws()
        self.said: dict[str, None] = {}  # of the values, for the report
        self.assumptions: Assumptions | None = None
        self._results = Results()
        #: random numbers that were drawn on the host
        self._numbers: dict[int, torch.UntypedStorage] = {}
        self._kinds: dict[str, ValueRule] = {}

    @property
    def by_module(self) -> bool:
        """Whether some modules have assumptions of their own."""
        return self.assumptions is not None and self.assumptions.by_module

    def drawn_on_host(self, number: torch.Tensor) -> None:
        """A random number was drawn on the host, where a CUDA run has it."""
        self.draws.count += 1
        self._numbers[compat.cdata(number.untyped_storage())] = number.untyped_storage()

    def _with_numbers(self, args: tuple, any_number: bool) -> tuple:
        """The arguments with random numbers of the host on ``meta`` where other tensors are: a model that is written
        for one device has them where its tensors are. Or with ``any_number`` of the host there."""
        if not any(t.is_meta for t in flat_tensors(args)):
            return args

        def is_number(item: Any) -> bool:
            if not isinstance(item, torch.Tensor) or item.is_meta:
                return False
            return (any_number and not item.dim()) or address_of(item) in self._numbers

        return tuple(self.made(item) if is_number(item) else item for item in args)

    def slices(self, name: str, arguments: Iterable[tuple[str, torch.Tensor]]) -> tuple[int, int] | None:
        """How many slices of an operand an op of :data:`SLICES` touches, and the fewest that it does in any run; None
        where that is not known. Of places that no choice of activations gives, as the places of tokens, it is not
        asked."""
        if name not in SLICES:
            return None
        argument, count = SLICES[name]
        which = [tensor for each, tensor in arguments if each == argument]
        value = self.of(which[0]) if len(which) == 1 and which[0].numel() else None
        if value is None or value.is_meta:
            return None
        assumed = self.assumed(which[0])
        if argument != ENDS and not all([basis.fewest for basis in assumed] or [0]):
            return None
        found = count(value)
        fewest = min([found, *(max(basis.fewest, 1) for basis in assumed)])
        if fewest < found:
            self._note(assumed)
        return found, fewest

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, signature: Signature, args: tuple, kwargs: dict[str, Any], guess: bool = False) -> Any:
        """What a call returns; its value is carried along where all that the call reads is known. Assumptions answer
        what depends on activations where it may ``guess``."""
        func = signature.function
        kind = self._kinds.get(signature.name)
        if kind is None:
            kind = self._kinds[signature.name] = ValueRule.of(signature)
        if kind.free:
            out = func(*args, **kwargs)
            if signature.name in UNSET and out.is_meta and out.dtype in INTEGERS and out.numel() <= MOST_FLOATS:
                self._shadow(out).zero_()  # parts of it may be written, each with its values
            return out
        if self._numbers or signature.name in NUMBERED:
            args = self._with_numbers(args, signature.name in NUMBERED)
        if kind.sends and has_other_ranks():
            return self._sent(signature, kind, args, kwargs)
        count = len(args)
        for place, name in kind.reads:
            value = args[place] if place < count else kwargs.get(name)
            if value is not None and self._is_unknown(value):
                return self._called_unknown(signature, kind, args, kwargs, guess)
        tensors = [*flat_tensors(args), *flat_tensors(tuple(kwargs.values()))]
        if any(t.is_meta for t in tensors) or _is_meta(kwargs.get("device")):
            return self._called_known(signature, kind, args, kwargs, tensors)
        return func(*args, **kwargs)

    def _sent(self, signature: Signature, kind: ValueRule, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What a collective returns; the values of other ranks are assumed to be this one's."""
        read, written = (arguments_at(places, args, kwargs) for places in (kind.reads, kind.writes))
        alike, basis = self.assumptions.unasked("ranks") if self.assumptions is not None else (False, Basis(""))
        known = alike and not any(map(self._is_unknown, read)) and all(map(self._is_overwritable, written))
        values = [value.clone() for tensor in read if (value := self.of(tensor)) is not None] if known else []
        assumed = (basis, *(each for tensor in read for each in self.assumed(tensor)))
        if not values:
            self.forget(written)
        out = signature.function(*args, **kwargs)
        made = written or [tensor for tensor in flat_tensors(out) if tensor.is_meta]
        if values and (parts := handed(signature, values, args, kwargs, [tensor.shape for tensor in made])):
            for tensor, part in zip(made, parts, strict=True):
                if is_small(tensor):
                    self.give(tensor, part, *assumed)
        else:
            self.forget(written)
        return out

    def _is_unknown(self, value: Any) -> bool:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return True
            if not value.is_meta:
                return False
            found = self._found(value)
            if found is None:
                return True
            return not found.uniform and value.numel() > MOST_INTEGERS and elements(value) > MOST_INTEGERS
        return isinstance(value, (list, tuple)) and any(
            self._is_unknown(item) for item in value if isinstance(item, torch.Tensor)
        )

    def _called_unknown(
        self, signature: Signature, kind: ValueRule, args: tuple, kwargs: dict[str, Any], guess: bool
    ) -> Any:
        """The result where something that is read is unknown: so is what is written."""
        if kind.writes:
            self.forget(arguments_at(kind.writes, args, kwargs))
        self.draws.missed |= kind.random
        if signature.updates:
            return None
        if signature.name in PICKS:
            self.said |= wrong_picks(self, signature.name, args)
        if signature.name == "aten.masked_select":
            mask = self.of(args[1])
            if mask is not None and not mask.is_meta:
                self._note(self.assumed(args[1]))
                self.asked += 1
                return selected(args[0], mask)
        if signature.name in ARE_ZERO and args[1] == 0 and address_of(args[0]) in self._normal:
            out = signature.function(*args, **kwargs)
            self.give_uniform(out, ARE_ZERO[signature.name])
            return out
        if (truth := DECIDED.get(signature.name)) is not None:
            for operand in flat_tensors(args):
                if decides(truth, self.of(operand)):
                    out = self._ran(signature, kind, args, kwargs)
                    self.give_uniform(out, truth, *self.assumed(operand))
                    return out
        if self.assumptions is None or not guess:
            return self._ran(signature, kind, args, kwargs)
        if kind.asks:
            self.asked += 1
            result = assumed_result(self.assumptions, signature.name, args)
            if signature.name in UNIQUE:
                assume_places(self, self.assumptions, *result[1:])
            return signature.function(*args, **kwargs) if result is NotImplemented else result
        out = self._ran(signature, kind, args, kwargs)
        assume(self, self.assumptions, signature.name, out, args, kwargs)
        return out

    def _ran(self, signature: Signature, kind: ValueRule, args: tuple, kwargs: dict[str, Any]) -> Any:
        """What a call returns on ``meta``."""
        if kind.fresh:
            return self._results.of(signature.function, args, kwargs)
        return signature.function(*args, **kwargs)

    def _called_known(
        self, signature: Signature, kind: ValueRule, args: tuple, kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        func, written = signature.function, arguments_at(kind.writes, args, kwargs)
        leaves = kwargs.get("device") == _HOST or any(not t.is_meta for t in written)
        missed = [RANDOM] if kind.random and self.draws.missed else []
        assumed = tuple(dict.fromkeys([*missed, *(basis for t in tensors if t.is_meta for basis in self.assumed(t))]))
        if signature.name in UNIQUE and any(basis.text.startswith("rounded=") for basis in assumed):
            return self._called_unknown(signature, kind, args, kwargs, guess=True)  # of which one number stands for all
        if kind.asks or leaves:
            self.asked += 1
            self._note(assumed)
            result = self._on_host(func, kind, args, kwargs)
            if written:
                return written[0]
            return result if leaves else compat.tree_map_only(torch.Tensor, self.made, result)
        out = None if signature.updates else self._ran(signature, kind, args, kwargs)
        results = [t for t in flat_tensors(out) if t.is_meta]
        if not all(map(is_small, results)):
            self.forget(written)
            self._fill(signature, kind, args, kwargs, results, assumed)
            if kind.random and len(tensors) == len(written):  # of no tensor, or fills one
                self.draws.wait(as_drawn(func, args, kwargs), results[0].numel())
            if not (kind.pointwise and all(is_of_integers(t, tensors) and not self.has(t) for t in results)):
                return out
        too_large = kind.reduces and func not in BY_FEW and any(t.numel() > MOST_INTEGERS for t in tensors)
        if too_large or not all(map(self._is_overwritable, written)):
            self.forget(written)
            return out
        for tensor in written:
            self._shadow(tensor)
        try:
            values = self._on_host(func, kind, args, kwargs)
        except Exception:  # what the CPU cannot run, or what fails on a device later
            self.forget(written)
            return out
        given = {address_of(t) for t in tensors if t.is_meta}
        for tensor, value in zip(results, flat_tensors(values), strict=False):
            if address_of(tensor) not in given and tensor.shape == value.shape:
                self.give(tensor, value, *assumed)
        for tensor in written:
            self._rest_on(tensor, assumed)
        return out

    def _note(self, assumed: Iterable[Basis]) -> None:
        if self.assumptions is not None:
            for basis in assumed:
                self.assumptions.note(basis.text)

    def _fill(
        self,
        signature: Signature,
        kind: ValueRule,
        args: tuple,
        kwargs: dict[str, Any],
        results: list[torch.Tensor],
        assumed: tuple[Basis, ...],
    ) -> None:
        """Large tensors of one value: masks of ones, and what is computed of them element by element."""
        if signature.name == "aten.randn":
            self._normal[address_of(results[0])] = results[0].untyped_storage()
        if kind.writes or len(results) != 1 or results[0].is_complex():
            return
        name = signature.name.removeprefix("aten.").removeprefix("new_").removesuffix("_like")
        if name in FILLS:
            self.give_uniform(results[0], FILLS[name](args))
        elif kind.pointwise and not kind.random:
            tensors = [self.of(t) for t in flat_tensors([*args, *kwargs.values()])]
            if all(t is not None and is_uniform(t) for t in tensors):
                one = compat.tree_map_only(torch.Tensor, lambda t: self._first(t), (args, kwargs))
                value = self._on_host(signature.function, kind, *one)
                self.give_uniform(results[0], value, *assumed)

    def _first(self, tensor: torch.Tensor) -> torch.Tensor:
        value = self.of(tensor)
        assert value is not None
        return value[(0,) * value.dim()]

    def _on_host(self, func: Any, kind: ValueRule, args: tuple, kwargs: dict[str, Any]) -> Any:
        """The call on the values of its tensors."""

        def value(item: Any) -> Any:
            if isinstance(item, torch.Tensor):
                known = self.of(item)  # of an unread tensor the kind alone matters
                return torch.empty((), dtype=item.dtype, device=_HOST).expand(item.shape) if known is None else known
            if isinstance(item, (list, tuple)):
                return [value(each) for each in item]
            return _HOST if _is_meta(item) else item

        if func in BY_FEW and args[0].numel() > MOST_INTEGERS and (first := self.of(args[0])) is not None:
            return by_few(func, first, *args[1:], **{name: value(item) for name, item in kwargs.items()})
        given = [value(item) for item in args], {name: value(item) for name, item in kwargs.items()}
        call = partial(OF_FLOATS.get(func, func), *given[0], **given[1])
        return self.draws.draw(call) if kind.random else call()


def _is_meta(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == "meta"
