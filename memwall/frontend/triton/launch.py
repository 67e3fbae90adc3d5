"""A launch of a Triton kernel → its IR, without a device: what ``kernel[grid](...)`` would compile, and for what grid.

Triton itself specializes the arguments (a 1 becomes a constant, a multiple of 16 is known as one). The IR that is read
has its tensor descriptors written as pointers with masks, as Triton does for GPUs without TMA.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.hardware.chips import CHIPS, target_of
from memwall.hardware.lookup import Gpu

#: compute capability of the newest GPU without TMA, for which descriptors become pointers
_WITHOUT_TMA = 80
#: what is compiled for where no GPU is asked for that Triton knows
_DEFAULT = "sm_90"
#: characters of a compiler's message that are shown
_SHOWN = 300
#: options of a launch that have a field of their own, and options that change none of the kernel's code
_STATED, _NO_CODE = ("num_warps", "num_stages", "num_ctas"), ("debug", "ir_override")


@dataclass(frozen=True, slots=True)
class TritonCall:
    """A launch: ``ir`` is what Triton makes of the kernel's source before any pass, ``read`` the same with its passes,
    as it is read. ``arguments`` are the numbers of its arguments, None of pointers and floats; ``options`` what else
    the launch tells the compiler, such as ``maxnreg``."""

    name: str
    place: str
    grid: tuple[int, int, int]
    ir: str
    read: str
    arguments: tuple[int | None, ...]
    num_warps: int
    num_stages: int
    num_ctas: int
    options: tuple[tuple[str, Any], ...] = ()


def triton_target(architecture: str) -> Any:
    """Triton's target of ``sm_90`` or ``gfx942``."""
    from triton.backends.compiler import GPUTarget

    number = architecture.removeprefix("sm_")
    if number.isdecimal():
        return GPUTarget("cuda", int(number), 32)
    return GPUTarget("hip", architecture, CHIPS[architecture].warp_size)


def target_of_gpu(gpu: Gpu | None) -> Any:
    """Triton's target of a GPU; of the default one where Triton does not know it."""
    name = target_of(gpu) if gpu is not None else ""
    return triton_target(name if name in CHIPS or name.removeprefix("sm_").isdecimal() else _DEFAULT)


def launch_of(kernel: Any, grid: Any, args: Sequence[Any], options: Mapping[str, Any], target: Any) -> TritonCall:
    """The IR of a launch.

    Args:
        kernel: a function that ``@triton.jit`` decorates.
        grid: one to three numbers of programs, or a function of the arguments that returns them.
        args, options: what the kernel is called with: tensors on any device, numbers, ``num_warps`` and the like.
        target: the GPU that it is for, as :func:`target_of_gpu` makes it.

    Raises:
        UsageError: there is no grid, arguments do not fit, or Triton refuses the kernel; names the line.
    """
    place = _place_of(kernel)
    backend = compat.make_backend(target)
    given = {"debug": False, **options}
    try:
        binder = compat.create_function_from_signature(kernel.signature, kernel.params, backend)
        standing = {name: _stand_in(value) for name, value in given.items()}
        bound, specialization, options_text = binder(*map(_stand_in, args), **standing)
        settings, signature, constants, attributes = compat.pack_args(
            kernel, backend, given, bound, specialization, options_text
        )
    except (TypeError, KeyError, ValueError, AssertionError) as error:
        raise UsageError(f"{place}: the launch of {kernel.__name__} does not fit it: {_line(error)}") from error
    sizes = _grid(kernel, grid, bound, place)
    source = compat.ASTSource(kernel, signature, constants, attributes)
    try:
        raw, read = _irs(source, target, backend, settings)
    except Exception as error:  # a compiler may raise anything about a kernel
        (file, _, first), at = place.rpartition(":"), re.match(r"at (\d+):\d+:", str(error))
        where = f"{file}:{int(first) + int(at[1]) - 1}" if at else place
        raise UsageError(f"{where}: Triton refuses {kernel.__name__}: {_line(error)}") from error
    told = {name: options[name] for name in options if name not in (*kernel.arg_names, *_STATED, *_NO_CODE)}
    numbers = tuple(_numbers(signature.values(), bound.values()))
    return TritonCall(
        kernel.__name__,
        place,
        sizes,
        raw,
        read,
        numbers,
        **{name: getattr(settings, name) for name in _STATED},
        options=tuple((name, value) for name, value in told.items() if isinstance(value, (int, float, str))),
    )


def _irs(source: Any, target: Any, backend: Any, settings: Any) -> tuple[str, str]:
    """The IR as written, and as it is read."""
    context = compat.triton_ir.context()
    compat.triton_ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(settings), backend.get_module_map()
    module = source.make_ir(target, settings, functions, modules, context)
    raw = str(module)
    without_tma = (_WITHOUT_TMA,) if target.backend == "cuda" else ()
    return raw, str(backend.make_ttir(module, {}, settings, *without_tma))


def _grid(kernel: Any, grid: Any, bound: Mapping[str, Any], place: str) -> tuple[int, int, int]:
    """Programs along x, y and z."""
    found = grid(_Given(bound)) if callable(grid) else grid
    if isinstance(found, int):
        found = (found,)
    if not isinstance(found, (tuple, list)):
        name = kernel.__name__
        raise UsageError(f"{place}: {name} is launched without a grid; write {name}[(programs,)](...)")
    if not 1 <= len(found) <= 3:
        raise UsageError(f"{place}: {kernel.__name__} is launched with a grid of {len(found)} sizes; want one to three")
    sizes = [int(size) for size in found]
    if any(size < 0 for size in sizes):
        raise UsageError(f"{place}: {kernel.__name__} is launched with the grid {tuple(sizes)}: no size is below 0")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


@dataclass(frozen=True, slots=True)
class _Address:
    """Where a tensor without data begins, as far as Triton asks: what it points to, and by what that is divisible, its
    storage being aligned as an allocator does it."""

    tensor: Any
    dtype: Any
    offset_bytes: int

    def data_ptr(self) -> int:
        return self.offset_bytes


def _stand_in(value: Any) -> Any:
    """An address for a tensor, or for one that ``triton.reinterpret`` gives another dtype; any other value itself."""
    tensor: Any = value.base if type(value).__name__ == "TensorWrapper" else value
    if hasattr(tensor, "storage_offset") and hasattr(tensor, "element_size"):
        return _Address(value, value.dtype, int(tensor.storage_offset()) * tensor.element_size())
    return value


class _Given(dict[str, Any]):
    """The arguments as a function for the grid sees them."""

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        return found.tensor if isinstance(found, _Address) else found


def _numbers(kinds: Any, given: Any) -> Iterator[int | None]:
    """The arguments of the IR: one of a pointer or a number, none of a constant, several of a descriptor."""
    for kind, value in zip(kinds, given, strict=True):
        if isinstance(kind, tuple):
            yield from _numbers(kind, value)
        elif kind.startswith("tensordesc"):
            sizes, strides = map(int, value.shape), map(int, value.strides)
            once = [*sizes, *strides]
            yield from (None, *once, 0, *once)
        elif kind != "constexpr":
            is_number = isinstance(value, (int, bool)) and not kind.startswith(("fp", "bf", "*"))
            yield int(value) if is_number else None


def _place_of(kernel: Any) -> str:
    """The file and line of a kernel's ``def``."""
    lines, first = inspect.getsourcelines(kernel.fn)
    ahead = next((at for at, line in enumerate(lines) if line.lstrip().startswith("def ")), 0)
    return f"{kernel.fn.__code__.co_filename}:{first + ahead}"


def _line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^\t")]
    return (lines[-1] if lines else type(error).__name__)[:_SHOWN]
