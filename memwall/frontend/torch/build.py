"""Workload → a module, its inputs and its optimizer as tensors without data (or, with ``--real``, small real ones).

The caller's module and tensors are not changed: an existing module is copied without its data.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn

from memwall.core import compat
from memwall.core.errors import MemwallError, UsageError, message_of
from memwall.core.units import size
from memwall.frontend.targets.blame import blame, user_frame
from memwall.frontend.targets.inputs import stays_on_host
from memwall.frontend.targets.seeds import seed_all
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.shapes import ExactShapes
from memwall.frontend.torch.dispatch.tensors import flat_tensors, plain_parts, sparse_of, sparse_parts
from memwall.frontend.torch.losses import flattened
from memwall.frontend.torch.process.copies import Copies
from memwall.frontend.torch.process.device import TracedDevice
from memwall.frontend.torch.process.failures import wanted_in_words
from memwall.frontend.torch.process.loaded import modules_below
from memwall.frontend.torch.ranks.distributed import end_group
from memwall.frontend.torch.values.carrying import Carrying
from memwall.frontend.torch.values.known import KnownValues
from memwall.frontend.torch.values.kv_caches import cached_tensors


class BuiltModule(NamedTuple):
    """A module on the traced device, the tensors that it holds besides parameters and buffers, by path, and what of the
    caller's is left out."""

    module: nn.Module
    hidden: dict[str, torch.Tensor]
    notes: tuple[str, ...]


class Inputs(NamedTuple):
    """Arguments of the forward call, all tensors among them and inside them, by name, the names of tensors that a cache
    of keys and values holds, and what forward calls its positional arguments, where that is known."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    cached: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, Any]:
        """The arguments as forward names them."""
        return dict(zip(self.names, self.args, strict=False)) | self.kwargs


def build_module(
    source: nn.Module | Callable[[], nn.Module],
    device: str,
    warn: Callable[[str], None],
    known: KnownValues | None = None,
) -> BuiltModule:
    """The module on ``device``, sharing nothing with the caller's; on ``meta`` its small buffers' values are ``known``.
    A UsageError where the caller's function raises, or returns no module."""
    if isinstance(source, nn.Module):
        return _copy_module(source, device, known)
    said: list[str] = []
    module = _construct(source, device, "building the model", said.append, known)
    if not isinstance(module, nn.Module):
        raise UsageError(f"the model function returned {type(module).__name__}, not a torch.nn.Module")
    for line in said:
        warn(line)
    # what the function returned may be kept by the user's file, a module-level singleton perhaps
    built = _copy_module(module, device, known)
    return built._replace(notes=(*said, *built.notes))


def build_inputs(
    source: Any,
    device: str,
    warn: Callable[[str], None],
    dtype: torch.dtype | None = None,
    known: KnownValues | None = None,
    names: Sequence[str] = (),
) -> Inputs:
    """Copies of the arguments whose tensors are on ``device``, caches inside any object among them, floating ones in
    ``dtype`` if given; on ``meta`` the values of integers, booleans and single numbers are ``known``; ``names`` are the
    names of positional arguments. A UsageError where the caller's function raises, or returns neither tensors, a tuple,
    a list nor a mapping. Random numbers follow seed 0, on ``meta`` as on the host."""
    inputs = source
    if callable(source):
        with contextlib.nullcontext() if known is None else known.draws.in_order():
            inputs = _construct(lambda: _seeded(source), device, "making the inputs", warn, known)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list, Mapping)):
        raise UsageError(f"inputs are a {type(inputs).__name__}; want a tuple, a list or a dict of tensors")

    def place(tensor: torch.Tensor) -> torch.Tensor:
        placed = _place(tensor, "cpu" if stays_on_host(tensor) else device)
        if dtype is not None and tensor.is_floating_point():
            placed = placed.detach().to(dtype).requires_grad_(tensor.requires_grad)
        if known is not None and (tensor.numel() == 1 or not (tensor.is_floating_point() or tensor.is_complex())):
            known.keep(placed, tensor)
        elif known is not None and tensor.layout is torch.strided:
            known.keep_nonzero(placed, tensor)
        return placed

    copies = Copies(place, device)
    copied = copies.of(dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs), "input")
    given = enumerate(flattened(copied, "an input"))
    plain = {id(item): f"input{i}" for i, item in given if isinstance(item, torch.Tensor)}
    placed = [(name, tensor) for name, tensor in copies.found if tensor.device.type == device]
    tensors = {plain.get(id(tensor), name): tensor for name, tensor in placed}
    by_name = copied if isinstance(copied, dict) else dict(zip((*names, *range(len(copied))), copied, strict=False))
    caches = {id(tensor) for _, tensor in cached_tensors(by_name)}
    cached = frozenset(plain.get(id(tensor), name) for name, tensor in placed if id(tensor) in caches)
    if isinstance(copied, dict):
        return Inputs((), copied, tensors, cached)
    return Inputs(copied, {}, tensors, cached, tuple(names))


def _seeded(make: Callable[[], Any]) -> Any:
    """What a function makes of the numbers that follow seed 0, whatever was drawn before."""
    seed_all()
    return make()


#: What torch says of a tensor that has no data, in messages that :func:`wanted_data` has no words for.
_OF_META = re.compile(r"\b(sparse|type)?meta\b|unallocated|incompatible tensor type|fake impl", re.I)


def _construct(
    make: Callable[[], Any], device: str, doing: str, warn: Callable[[str], None], known: KnownValues | None
) -> Any:
    """Call the user's function with tensors on ``device``; where it needs data, build on the host after all."""
    carried: Any = contextlib.nullcontext() if known is None else Carrying(known)
    try:
        with ExactShapes(), carried, TracedDevice(device, building=True, known=known):
            return make()
    except Exception as error:
        if device == "cpu" or isinstance(error, MemwallError) or not _OF_META.search(message_of(error)):
            raise blame(error, doing) from error
        at = user_frame(error)
        why = f"{doing} needs data ({wanted_in_words(error)}{f', at {at}' if at else ''})"
    end_group()  # the function makes its process group again
    try:
        warn(f"{why}: built on the host, weights in memory, at most {size(_MOST_HOST_BYTES)}")
        with _HostLimit(why), TracedDevice("cpu", building=True):
            return make()
    except Exception as error:
        raise blame(error, doing) from error


#: Bytes of tensors that are made on the host at most, where their values are needed to build a model.
_MOST_HOST_BYTES = 2_000_000_000


class _HostLimit(compat.TorchDispatchMode):
    """While open, tensors are made on the host up to a limit; beyond it a UsageError says why they are made there."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why, self._bytes = why, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not flat_tensors((args, kwargs)):
            self._bytes += sum(tensor.untyped_storage().nbytes() for tensor in flat_tensors(made))
        if self._bytes > _MOST_HOST_BYTES:
            raise UsageError(
                f"{self._why}, and its tensors take more than {size(_MOST_HOST_BYTES)} on the host: keep what is read"
                " back small and apart from the weights, profile fewer layers and multiply, or, where the memory is"
                " there, take --real, which builds on the host without a limit"
            )
        return made


def _place(tensor: torch.Tensor, device: str) -> torch.Tensor:
    if tensor.is_nested:
        raise UsageError(
            "a nested tensor of the strided layout is given to the model: make it with layout=torch.jagged, or pad it,"
            " as in .to_padded_tensor(0)"
        )
    if device == "cpu":
        return tensor.detach().to("cpu", copy=True).requires_grad_(tensor.requires_grad)
    if tensor.layout is not torch.strided:
        made = sparse_of(tensor, [_place(part.detach(), device) for part in sparse_parts(tensor)])
        return made.requires_grad_(tensor.requires_grad)
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
    return empty.requires_grad_(tensor.requires_grad)


def _copy_module(module: nn.Module, device: str, known: KnownValues | None) -> BuiltModule:
    """A deep copy whose tensors are on ``device``: on ``meta`` no data is copied, ties between weights are kept."""

    def place(tensor: torch.Tensor) -> torch.Tensor:
        placed = _place(tensor, device)
        if known is not None and not isinstance(tensor, nn.Parameter):
            known.keep(placed, tensor)
        return placed

    copies = Copies(place, device)
    try:
        copied = copies.of(module)
    except Exception as error:
        raise blame(error, "copying the module") from error
    held = [part for t in (*copied.parameters(), *copied.buffers()) for part in (t, *plain_parts(t))]
    own = set(map(id, held))
    hidden = {name: tensor for name, tensor in copies.found if id(tensor) not in own}
    return BuiltModule(copied, hidden, tuple(copies.notes))


# -- optimizers, as a CUDA device would run them, in their steady state ------------------------------

_BY_NAME: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": lambda params, **options: torch.optim.SGD(params, lr=0.1, momentum=0.9, **options),
    "sgd-plain": lambda params, **options: torch.optim.SGD(params, lr=0.1, **options),
}
OPTIMIZERS = tuple(_BY_NAME)
_VARIANTS = {"": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "loop": {"foreach": False}}


def make_optimizer(source: Any, parameters: list[torch.Tensor]) -> torch.optim.Optimizer | None:
    """An optimizer from a name (``adamw``, ``sgd:fused``, ...), a function of the parameters, or None.

    ``sgd`` has momentum 0.9. Without a variant an optimizer takes the multi-tensor form that PyTorch takes on CUDA.

    Raises:
        UsageError: unknown name or variant, or the function returned no optimizer.
    """
    if source is None or source == "none" or not parameters:
        return None
    if isinstance(source, str):
        name, _, variant = source.partition(":")
        if name not in _BY_NAME or variant not in _VARIANTS:
            raise UsageError(
                f"no optimizer {source!r}; want {', '.join(OPTIMIZERS)} or none; :foreach, :fused or :loop may follow"
            )
        optimizer = _BY_NAME[name](parameters, **_VARIANTS[variant])
    elif not callable(source):
        kind = type(source).__name__
        raise UsageError(f"the optimizer is of class {kind}; want a name or a function: lambda parameters: {kind}(...)")
    else:
        optimizer = source(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(f"the optimizer function returned {type(optimizer).__name__}, not a torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        for group in optimizer.param_groups:  # no number of the device ends the iteration before its update
            group |= {"max_iter": 1, "line_search_fn": None, "tolerance_grad": -math.inf, "tolerance_change": -math.inf}
    elif _wants_closure(optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} runs the model itself, as often as its search asks (by a closure): profile one"
            " evaluation with --optimizer none (optimizer=None) and multiply"
        )
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    return optimizer


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def iterations(optimizer: torch.optim.Optimizer | None) -> str:
    """What a step of an optimizer that evaluates the model several times is counted as; empty for the others."""
    if not isinstance(optimizer, torch.optim.LBFGS):
        return ""
    return (
        "LBFGS: one evaluation of the model and one update are counted; a step makes up to max_iter of them"
        " (20 by default)"
    )


def take_step(optimizer: torch.optim.Optimizer, loss: torch.Tensor, recorder: Recorder) -> None:
    """Take a step; to an optimizer that asks for the loss it is the one already computed."""
    closure: list[Any] = [lambda: loss] if _wants_closure(optimizer) else []
    with recorder, any_number(recorder):
        optimizer.step(*closure)


def settle(optimizer: torch.optim.Optimizer, recorder: Recorder) -> None:
    """Take dummy steps, so that the state exists, as it does later: ``SparseAdam`` with gradients of no row."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    layout = torch.sparse_coo if isinstance(optimizer, torch.optim.SparseAdam) else torch.strided
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter, layout=layout)
    take_step(optimizer, torch.zeros((), device=parameters[0].device), recorder)
    if isinstance(optimizer, torch.optim.LBFGS):
        take_step(optimizer, torch.zeros((), device=parameters[0].device), recorder)
        history = optimizer.param_groups[0]["history_size"]
        for state in optimizer.state.values():
            for name in ("old_dirs", "old_stps", "ro"):
                state[name] += [torch.zeros_like(state[name][0]) for _ in range(history - len(state[name]))]
    optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def any_number(recorder: Recorder) -> Iterator[None]:
    """During an optimizer's step: a number that it reads from the device (a norm perhaps) is 1, also where it is
    compared. It scales the update and changes no shape. A ``GradScaler`` finds all gradients finite. Sparse tensors are
    made of parts by torch's old constructor too, which knows none on ``meta`` (``SparseAdam``)."""

    def comparing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(tensor: torch.Tensor, other: Any) -> Any:
            result = original(tensor, other)
            if tensor.is_meta and tensor.numel() == 1 and isinstance(other, (int, float)):
                result.of_one = getattr(operator, name)(1.0, other)
            return result

        return compare

    truth = torch.Tensor.__bool__
    with contextlib.ExitStack() as stack:
        for name in ("lt", "le", "gt", "ge"):
            method = f"__{name}__"
            stack.enter_context(patch.object(torch.Tensor, method, comparing(name, getattr(torch.Tensor, method))))
        known = lambda tensor: tensor.of_one if hasattr(tensor, "of_one") else truth(tensor)  # noqa: E731
        stack.enter_context(patch.object(torch.Tensor, "__bool__", known))
        stack.enter_context(patch.object(torch.amp.GradScaler, compat.name_of("maybe_opt_step"), _step_unscaled))
        stack.enter_context(patch.object(recorder, "reads_one", True))
        stack.enter_context(patch.object(torch.Tensor, "new", _new))
        yield


_OLD_CONSTRUCTOR: Any = torch.Tensor.new


def _new(tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    if tensor.layout is not torch.sparse_coo or not tensor.is_meta:
        made: torch.Tensor = _OLD_CONSTRUCTOR(tensor, *args, **options)
        return made
    return torch.sparse_coo_tensor(*args, check_invariants=False)


def _step_unscaled(scaler: Any, optimizer: torch.optim.Optimizer, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


@contextlib.contextmanager
def fused_everywhere(*devices: str) -> Iterator[None]:
    """Let ``fused=True``, ``foreach=True`` and ``capturable=True`` accept these types of device, and the first two be
    the default there, as on CUDA."""
    names = map(compat.name_of, ("fused_kernels_devices", "foreach_kernels_devices", "capturable_devices"))
    places = modules_below("torch.optim")
    with contextlib.ExitStack() as stack:
        for place, name in itertools.product((*places, compat.foreach_utils), names):
            if original := vars(place).get(name):
                replaced = lambda *args, original=original, **named: [*original(*args, **named), *devices]  # noqa: E731
                stack.enter_context(patch.object(place, name, replaced))
        yield
