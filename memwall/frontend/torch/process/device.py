"""Where tensors go while memwall builds or traces a model: ``cuda``, or no device, means the traced device.

A model written for a GPU says ``device="cuda"`` or ``.cuda()``; on a machine without one those calls would raise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from memwall.core import compat
from memwall.frontend.targets.blame import is_machinery
from memwall.frontend.torch.dispatch.attention import jagged_kernels
from memwall.frontend.torch.dispatch.tensors import is_wrapper
from memwall.frontend.torch.process.cuda_answers import is_cuda, tensor_dtype
from memwall.frontend.torch.values.known import KnownValues

_FACTORIES = frozenset(
    getattr(torch, name)
    for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "normal", "eye",
                 "empty_strided", "tril_indices", "triu_indices", "bartlett_window", "hann_window", "hamming_window",
                 "arange", "linspace", "logspace")
)  # fmt: skip

#: Random numbers; a single one, without a device, is a number of the host to the model's Python (LayerDrop).
_RANDOM = frozenset((torch.rand, torch.randn))

#: What makes tensors of numbers that Python has.
_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray)
_ARRAYS = (torch.Tensor.numpy, torch.Tensor.__array__)

#: ``torch.nn.init`` by name, which libraries replace
_INITS = {
    name: f for name, f in vars(torch.nn.init).items()
    if name.endswith("_") and not name.startswith("_") and callable(f)
}  # fmt: skip
#: What fills new weights: nothing to do where tensors have no values.
FILLERS = frozenset(
    [
        getattr(torch.Tensor, name)
        for name in ("normal_", "uniform_", "zero_", "fill_", "random_", "bernoulli_", "mul_", "add_")
    ]
    + [*_INITS.values()]
)


_IS_CUDA: Any = vars(compat.TensorBase)["is_cuda"].__get__
_SET_DATA: Any = vars(compat.TensorBase)["data"].__set__
_DEVICE: Any = vars(compat.TensorBase)["device"].__get__
_CUDA = torch.device("cuda", 0)
_ATTENTION: Any = torch.nn.functional.scaled_dot_product_attention


@cache
def _is_machinery(filename: str) -> bool:
    return is_machinery(filename) and "_higher_order_ops" not in filename  # which check that a GPU is asked


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor's memory begins: of tensors without data another address for each storage, so that two are not
    taken for one."""
    if not tensor.is_meta or is_wrapper(type(tensor)):
        return tensor.data_ptr()
    return (compat.cdata(tensor.untyped_storage()) << 20) + tensor.storage_offset() * tensor.element_size()


class TracedDevice(TorchFunctionMode):
    """Function mode that maps CUDA devices to ``device`` (``meta`` or ``cpu``) and creates tensors there by default;
    on ``meta`` Python finds the ``known`` values. While a model is built (``building``), weights are not filled. With
    ``note``, which is called with what that assumes, activations that go to the host stay where they are."""

    def __init__(
        self,
        device: str,
        *,
        building: bool = False,
        known: KnownValues | None = None,
        note: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self.device = torch.device(device)
        self._known = known
        self._numbers = torch.Generator().manual_seed(0)  # of the host, which what a GPU draws leaves as it is
        self._fills_nothing = building and device == "meta"
        #: what is called in the stead of a function
        self._instead: dict[Any, Callable[..., Any]] = {
            **{make: partial(self._made, make) for make in _FACTORIES},
            torch.Tensor.__setitem__: self._set,
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: self._cuda,
            _IS_CUDA: lambda tensor: tensor.device.type in (device, "cuda"),
            _DEVICE: lambda tensor: tensor.device if building else self._device(tensor, sys._getframe(2)),
            torch.Tensor.get_device: lambda tensor: 0 if tensor.device.type == device else -1,
            torch.Tensor.pin_memory: lambda tensor, *args, **options: tensor,
            torch.Tensor.is_pinned: lambda tensor, *args, **options: False,
            torch.Tensor.type: self._type,
            _ATTENTION: _attention,
        }
        if self._fills_nothing:
            self._instead |= {fill: partial(self._unfilled, fill) for fill in FILLERS}
        if known is not None:
            self._instead |= {make: partial(self._of_numbers, make) for make in _OF_NUMBERS}
            self._instead[_SET_DATA] = self._set_data
            self._instead[torch.Tensor.new_tensor] = self._new_tensor
            self._instead[torch.Tensor.__getitem__] = self._item
            self._instead[torch.Tensor.__format__] = self._format
        if known is not None and building:  # with data the tensor would be on the host
            self._instead |= {method: partial(self._array, method) for method in _ARRAYS}
        elif not building:
            if known is not None and note is not None:
                self._note = note
                self._instead |= {torch.Tensor.to: self._to_host_or_device, torch.Tensor.cpu: self._to_host}
                self._instead |= {method: partial(self._read, method) for method in (torch.Tensor.tolist, *_ARRAYS)}
            self._instead |= {make: partial(self._random, make) for make in _RANDOM}
            self._instead[torch.Tensor.data_ptr] = _address

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and "pin_memory" in kwargs:  # which pages the host's memory has is nothing to a trace
            kwargs = dict(kwargs)
            if kwargs.pop("pin_memory") and func in _FACTORIES:
                kwargs.setdefault("device", "cpu")
        instead = self._instead.get(func)
        if instead is None and self._fills_nothing:  # transformers puts functions of its own in the place of torch's
            instead = self._instead.get(_INITS.get(getattr(func, "__name__", "")))
        if instead is not None:
            return instead(*args, **(kwargs or {}))
        return func(*args, **self._mapped(kwargs)) if kwargs else func(*args)

    def _mapped(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keyword arguments with the traced device in place of CUDA's."""
        device = options.get("device")
        return options if device is None else {**options, "device": self._map(device)}

    def _unfilled(self, fill: Callable[..., Any], *args: Any, **options: Any) -> Any:
        target = args[0] if args else options.get("tensor")
        if isinstance(target, torch.Tensor) and target.is_meta and self._is_valueless(target):
            if self._known is not None:
                self._known.forget((target,))
            return target
        return fill(*args, **self._mapped(options))

    def _is_valueless(self, tensor: torch.Tensor) -> bool:
        """Whether what a tensor is filled with is not asked for: a weight, or floats that are not known."""
        if isinstance(tensor, nn.Parameter):
            return True
        floats = tensor.is_floating_point() or tensor.is_complex()
        return floats and (self._known is None or not self._known.has(tensor))

    def _random(self, make: Callable[..., Any], *size: Any, **options: Any) -> Any:
        if not _is_number(size, options):
            return self._made(make, *size, **options)
        number = make(*size, **options, device="cpu", generator=self._numbers)
        if self._known is not None:
            self._known.drawn_on_host(number)
        return number

    def _made(self, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
        device = options.get("device")
        options["device"] = self.device if device is None else self._map(device)
        if self._fills_nothing and _is_weight(make, args, options):
            with compat.DisableTorchDispatch():
                return make(*args, **options)
        return make(*args, **options)

    def _set(self, tensor: torch.Tensor, index: Any, value: Any) -> None:
        """``x[index] = value``. A number takes no kernel that makes a tensor of it, as torch launches on ``meta``: on a
        device a view is filled, and at indices the number comes from the host (python_variable_indexing.cpp)."""
        index = self._with_numbers(tensor, index)
        if isinstance(value, (bool, int, float, complex)):
            if not _has_tensors(index):
                tensor[index].fill_(value)
                return
            if self._known is not None and tensor.is_meta:
                value = self._of_numbers(torch.tensor, value, dtype=tensor.dtype, device=self.device)
        torch.Tensor.__setitem__(tensor, index, value)

    def _set_data(self, tensor: torch.Tensor, data: torch.Tensor) -> None:
        """``weight.data = torch.tensor(...)``: what the host's data says goes to where the weight is."""
        if self._known is not None and tensor.is_meta and not data.is_meta:
            data = self._known.made(data)
        _SET_DATA(tensor, data)

    def _to(self, tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        options = dict(self._mapped(options))
        if args and is_cuda(args[0]):
            args = (self._map(args[0]), *args[1:])
        if self._fills_nothing and isinstance(tensor, nn.Parameter) and tensor.is_meta:
            with compat.DisableTorchDispatch():
                return torch.Tensor.to(tensor, *args, **options)
        return torch.Tensor.to(tensor, *args, **options)

    def _to_host_or_device(self, tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        device = options.get("device", args[0] if args else None)
        if not isinstance(device, (str, torch.device)) or torch.device(device).type != "cpu" or self._has_value(tensor):
            return self._to(tensor, *args, **options)
        _, dtype, _, _ = compat.parse_to(*args, **{k: v for k, v in options.items() if k != "copy"})
        here = self._to_host(tensor)
        return here if dtype is None else torch.Tensor.to(here, dtype)

    def _to_host(self, tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        """An activation that goes to the host: without its data it cannot be there."""
        if self._has_value(tensor):
            return tensor.cpu(**options)
        self._note("a copy to the host takes no time, and ops on what the model moved there (.cpu()) run on the GPU")
        return tensor

    def _read(self, method: Callable[..., Any], tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        """Numbers that Python reads of a tensor, assumed where they are not known."""
        assumptions = self._known.assumptions if self._known is not None else None
        if assumptions is None or self._has_value(tensor) or (tensor.requires_grad and method in _ARRAYS):
            return method(tensor, *args, **options)
        return method(assumptions.read(tensor), *args, **options)

    def _has_value(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_meta or self._known is None or self._known.has(tensor)

    def _device(self, tensor: torch.Tensor, caller: FrameType) -> torch.device:
        """``cuda:0`` to the model's code; torch's own and memwall's need to know where the tensor is."""
        device = tensor.device
        return _CUDA if device == self.device and not _is_machinery(caller.f_code.co_filename) else device

    def _cuda(
        self,
        tensor: torch.Tensor,
        device: Any = None,
        *args: Any,
        memory_format: Any = torch.preserve_format,
        **options: Any,
    ) -> torch.Tensor:
        return tensor.to(self.device if device is None else self._map(device), memory_format=memory_format)

    def _of_numbers(self, make: Callable[..., torch.Tensor], data: Any, *args: Any, **options: Any) -> torch.Tensor:
        """``torch.tensor(data, device="cuda")``: on ``meta`` with its value known."""
        device = self._map(options.pop("device", None))
        if not isinstance(data, torch.Tensor):
            data = compat.tree_map_only(torch.Tensor, torch.Tensor.item, data)
            if self._known is not None and torch.device(device or "cpu").type == "meta":
                wants_gradient = options.pop("requires_grad", False)
                return self._known.made(make(data, *args, **options, device="cpu")).requires_grad_(wants_gradient)
        return make(data, *args, **options, device=device)

    def _new_tensor(self, tensor: torch.Tensor, data: Any, **options: Any) -> torch.Tensor:
        """``x.new_tensor(data)``, likewise."""
        if isinstance(data, torch.Tensor) or not tensor.is_meta:
            return tensor.new_tensor(data, **options)
        return self._of_numbers(torch.tensor, data, **{"dtype": tensor.dtype, "device": self.device, **options})

    def _item(self, tensor: torch.Tensor, index: Any) -> torch.Tensor:
        return tensor[self._with_numbers(tensor, index)]

    def _with_numbers(self, tensor: torch.Tensor, index: Any) -> Any:
        """The index in ``x[:, [2, 0]]``: of a list torch would make an index tensor on ``meta`` without its numbers."""
        items = index if isinstance(index, tuple) else (index,)
        if self._known is None or not tensor.is_meta or not any(map(_is_list_of_numbers, items)):
            return index
        return tuple(
            self._of_numbers(torch.tensor, i, device=self.device) if _is_list_of_numbers(i) else i for i in items
        )

    def _format(self, tensor: torch.Tensor, spec: str) -> str:
        """``f"expert_{tensor}"``: the number, where it is known."""
        if self._known is not None and tensor.is_meta and not tensor.dim() and self._known.has(tensor):
            return format(tensor.item(), spec)
        return tensor.__format__(spec)

    def _array(self, method: Callable[..., Any], tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
        value = self._known.of(tensor) if self._known is not None else None
        return method(tensor if value is None else value, *args, **options)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, *args: Any, **options: Any) -> Any:
        """``x.type(torch.cuda.FloatTensor)`` moves and casts; without a type, what a CUDA tensor says of itself."""
        if dtype is None and tensor.device.type == self.device.type:
            return f"torch.cuda.{tensor.type().rpartition('.')[2]}"
        of_cuda = tensor_dtype(dtype)
        return tensor.type(dtype) if of_cuda is None else tensor.to(self.device, of_cuda)

    def _map(self, device: Any) -> Any:
        if not is_cuda(device):
            return device
        index = device if isinstance(device, int) else torch.device(device).index
        if index and self._known is not None and str(index) != os.environ.get("LOCAL_RANK"):
            said = f"cuda:{index} is taken for the one GPU that is modeled: what runs there counts, copies to it do not"
            self._known.said[said] = None
        return self.device


def _attention(query: torch.Tensor, *args: Any, **options: Any) -> Any:
    """Attention; of jagged tensors Python chooses the kernel."""
    if not query.is_nested or not query.is_meta:
        return _ATTENTION(query, *args, **options)
    with jagged_kernels():
        return _ATTENTION(query, *args, **options)


def _is_number(size: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a factory call without a device makes one number."""
    shape = options.get("size", size)
    shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return options.get("device") is None and "generator" not in options and all(n == 1 for n in shape)


def _is_weight(make: Any, args: tuple, options: Mapping[str, Any]) -> bool:
    """Whether what a factory makes while a model is built is a weight, whose values are not carried along: most are."""
    if make is torch.ones or make is torch.zeros:
        floats = options.get("dtype") in (None, float, torch.float32, torch.bfloat16, torch.float16, torch.float64)
        return floats and type(args[0] if args else None) is int and args[0] > 64
    return make is torch.empty


def _is_list_of_numbers(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(type(number) in (int, bool) for number in item)


def _has_tensors(index: Any) -> bool:
    """Whether an index gathers (tensors, lists, arrays) rather than slices."""
    items = index if isinstance(index, tuple) else (index,)
    return not all(item is None or item is Ellipsis or type(item) in (int, slice) for item in items)
