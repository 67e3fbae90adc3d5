"""What ``torch.cuda`` says while a model is loaded, built and traced: the answers of the GPU asked for.

A model written for a GPU asks whether there is one, what it can do, makes streams and events, reads memory statistics.
One table answers for the whole of torch.cuda: nothing is running, so events are over at once and no memory is in use;
streams are from :mod:`memwall.frontend.torch.dispatch.streams`. What a GPU's own numbers answer is noted, as the
graph then holds for that GPU alone.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.cuda.nvtx

from memwall.core.compat import name_of, torch_c
from memwall.core.errors import UsageError
from memwall.frontend.torch.dispatch.streams import (
    Event,
    StreamContext,
    TracedStream,
    current_stream,
    default_stream,
    set_stream,
)
from memwall.frontend.triton.driver import triton_driver
from memwall.hardware.chips import chip_of, target_of
from memwall.hardware.lookup import Gpu

#: torch.cuda and the modules that it takes its functions from; each may hold the same name
_HOMES = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs, torch.cuda.nvtx)


class _TensorType:
    """``torch.cuda.FloatTensor`` and its siblings: makes tensors of a dtype, and has those as instances."""

    is_cuda = True

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, *given: Any) -> torch.Tensor:
        if len(given) == 1 and not isinstance(given[0], (int, torch.Size)):
            return torch.as_tensor(given[0], dtype=self.dtype, device="cuda")
        size = given[0] if given and isinstance(given[0], torch.Size) else given
        return torch.empty(size, dtype=self.dtype, device="cuda")

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype is self.dtype


_TENSOR_TYPES = {
    f"{name}Tensor": _TensorType(dtype)
    for name, dtype in (
        ("Float", torch.float32), ("Double", torch.float64), ("Half", torch.float16), ("BFloat16", torch.bfloat16),
        ("Byte", torch.uint8), ("Char", torch.int8), ("Short", torch.int16), ("Int", torch.int32),
        ("Long", torch.int64), ("Bool", torch.bool),
    )
}  # fmt: skip


def is_cuda(device: Any) -> bool:
    """Whether a device is named ``cuda``, ``cuda:0`` or 0."""
    if isinstance(device, str):
        return device.partition(":")[0] == "cuda"
    if isinstance(device, torch.device):
        return device.type == "cuda"
    return type(device) is int


def tensor_dtype(kind: Any) -> torch.dtype | None:
    """The dtype of ``torch.cuda.FloatTensor`` or ``"torch.cuda.FloatTensor"``; None for anything else."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = _TENSOR_TYPES.get(kind.removeprefix("torch.cuda."))
    return kind.dtype if isinstance(kind, _TensorType) else None


def _set_default_tensor_type(original: Callable[[Any], None], kind: Any) -> None:
    dtype = tensor_dtype(kind)
    if dtype is None:
        original(kind)
    else:
        torch.set_default_dtype(dtype)  # tensors without a device are the GPU's already


def _set_default_device(original: Callable[[Any], None], device: Any) -> None:
    if device is None or not is_cuda(device):  # tensors without a device are the GPU's already
        original(device)


class _HostGenerator(torch.Generator):
    """A generator of the host, whatever device is asked for: nothing is drawn without data."""

    def __new__(cls, device: Any = "cpu") -> _HostGenerator:
        make: Any = super().__new__  # whose stub has no device
        made: _HostGenerator = make(cls, "cpu" if is_cuda(device) else device)
        return made


def _load(original: Callable[..., Any], file: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` that reads onto the host what is to be on CUDA."""
    return original(file, "cpu" if map_location is None or is_cuda(map_location) else map_location, *args, **kwargs)


def _of_cuda(original: Callable[..., Any], *device: str) -> Any:
    """What torch says of CUDA's autocast, also where code asks for the device of a tensor without data."""
    return original(*("cuda" if kind == "meta" else kind for kind in device))


def _compile(model: Any = None, **options: Any) -> Any:
    """``torch.compile`` as the eager execution that is traced: the module itself, or a function that calls its own,
    named as torch's so that ``flex_attention`` knows what it is called by."""
    if model is None:
        return _compile
    if not isinstance(model, FunctionType):
        return model

    @wraps(model)
    def compile_wrapper(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return compile_wrapper


class _Graph:
    """A CUDA graph, which libraries name in annotations and a model cannot make."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Graph:
        raise UsageError(
            "the model captures a CUDA graph itself, which needs a GPU; profile the module that it captures, with"
            " --cuda-graph (cuda_graph=True) for its replay"
        )


_MODULE_TO: Any = torch.nn.Module.to


def _to(module: torch.nn.Module, *args: Any, **options: Any) -> Any:
    """``module.to(0)``, of which torch alone looks for the GPU of that number."""
    if args and type(args[0]) is int:
        args = (torch.device("cuda", args[0]), *args[1:])
    return _MODULE_TO(module, *args, **options)


def _always(value: Any = None) -> Callable[..., Any]:
    """A function of its own for each name: a compiler tells functions apart by what they are."""
    return lambda *args, **kwargs: value


#: What a function of torch.cuda returns, whatever the GPU -> the functions.
_RETURNED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (True, ("is_available", "is_initialized")),
    (False, ("can_device_access_peer", "is_current_stream_capturing", name_of("is_in_bad_fork"))),
    (1, ("device_count",)),
    (0, (
        "current_device", name_of("exchange_device"), name_of("maybe_exchange_device"), "initial_seed", "range_push",
        "range_pop", "range_start", "get_sync_debug_mode", "current_blas_handle", "memory_allocated",
        "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached", "max_memory_cached",
        "utilization", "memory_usage", "temperature", "power_draw", "clock_rate",
    )),
    (None, (
        "init", name_of("lazy_init"), name_of("lazy_call"), "synchronize", "set_device", "ipc_collect",
        "set_sync_debug_mode", "empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated",
        "reset_accumulated_memory_stats", "reset_max_memory_cached", "set_per_process_memory_fraction", "manual_seed",
        "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all", "range_end", "mark",
        name_of("record_memory_history"), name_of("cuda_sleep"),
    )),
    ("", ("memory_summary", "list_gpu_processes", "get_gencode_flags")),
)  # fmt: skip

#: Name in torch.cuda -> what it is instead, whatever the GPU.
_FIXED: Mapping[str, Any] = {
    **{name: _always(value) for value, names in _RETURNED for name in names},
    **_TENSOR_TYPES,
    "Event": Event,
    "Stream": TracedStream,
    "ExternalStream": type("ExternalStream", (TracedStream,), {}),
    "stream": StreamContext,
    "StreamContext": StreamContext,
    "set_stream": set_stream,
    "current_stream": current_stream,
    "default_stream": default_stream,
    **{name: type(name, (_Graph,), {}) for name in ("CUDAGraph", "graph", "graph_pool_handle")},
    "get_rng_state": lambda *args: torch.zeros(16, dtype=torch.uint8, device="cpu"),
    "get_rng_state_all": lambda: [torch.zeros(16, dtype=torch.uint8, device="cpu")],
    "make_graphed_callables": lambda callables, *args, **kwargs: callables,
    "default_generators": (torch.default_generator,),
    "memory_stats": lambda *args: defaultdict(int),
    "memory_stats_as_nested_dict": lambda *args: defaultdict(int),
    "memory_snapshot": lambda *args, **kwargs: [],
}

#: The same of what stands outside torch.cuda.
_ELSEWHERE: tuple[tuple[Any, Mapping[str, Any]], ...] = (
    (torch_c, {  # whom torch.accelerator, torch.get_device_module and torch.distributed ask for the kind of device
        **{name_of(name): _always(torch.device("cuda")) for name in ("accelerator", "accelerator_kind")},
        name_of("accelerator_stream"): lambda *args: current_stream(*args),
        name_of("set_accelerator_stream"): set_stream,
        **{name_of(name): _always(0) for name in
           ("accelerator_index", "exchange_accelerator", "maybe_exchange_accelerator")},
        **{name_of(name): _always() for name in
           ("set_accelerator_index", "synchronize_accelerator", "empty_host_cache")},
        name_of("is_accelerator_allocator_initialized"): _always(False),
    }),
    (torch.Tensor, {"record_stream": _always()}),
    (torch.nn.Module, {"to": _to}),
    (torch, {
        "Event": Event, "Stream": TracedStream,
        "is_autocast_enabled": partial(_of_cuda, torch.is_autocast_enabled),
        "get_autocast_dtype": partial(_of_cuda, torch.get_autocast_dtype),
        "Generator": _HostGenerator, "compile": _compile, "load": partial(_load, torch.load),
        "set_default_device": partial(_set_default_device, torch.set_default_device),
        "set_default_tensor_type": partial(_set_default_tensor_type, torch.set_default_tensor_type),
    }),
)  # fmt: skip


def _capability(gpu: Gpu, device: Any = None) -> tuple[int, int]:
    """``(9, 0)`` of sm_90; AMD's gfx942 is (9, 4), as ROCm builds of torch say."""
    digits = target_of(gpu).removeprefix("sm_").removeprefix("gfx")
    if target_of(gpu).startswith("gfx"):
        return int(digits[:-2]), int(digits[-2], 16)
    return (int(digits[:-1]), int(digits[-1])) if digits.isdecimal() else (0, 0)


def _supports_bf16(gpu: Gpu, including_emulation: bool = True) -> bool:
    """As torch says it: every GPU does, the older ones by converting to float32 and back."""
    return including_emulation or gpu.vendor.lower() == "amd" or _capability(gpu) >= (8, 0)


def _supports_tf32(gpu: Gpu) -> bool:
    return target_of(gpu).startswith(("gfx94", "gfx95")) or (gpu.vendor.lower() != "amd" and _capability(gpu) >= (8, 0))


def _properties(gpu: Gpu, device: Any = None) -> Any:
    (major, minor), chip = _capability(gpu), chip_of(gpu)
    return SimpleNamespace(
        name=gpu.full_name,
        major=major,
        minor=minor,
        total_memory=gpu.dram_bytes,
        L2_cache_size=gpu.l2_bytes,
        multi_processor_count=gpu.sm_count,
        warp_size=chip.warp_size,
        max_threads_per_block=1024,
        max_threads_per_multi_processor=chip.threads,
        regs_per_multiprocessor=chip.registers,
        shared_memory_per_block=min(chip.shared_block_bytes, 48 << 10),
        shared_memory_per_block_optin=chip.shared_block_bytes,
        shared_memory_per_multiprocessor=chip.shared_bytes,
        clock_rate=int(gpu.boost_clock_hz / 1e3),
        gcnArchName=target_of(gpu),
        is_integrated=0,
        is_multi_gpu_board=0,
    )


#: Name in torch.cuda -> the answer of a GPU; its use is noted.
_OF_THE_GPU: Mapping[str, Callable[..., Any]] = {
    "get_device_properties": _properties,
    "get_device_name": lambda gpu, device=None: gpu.full_name,
    "get_device_capability": _capability,
    "get_arch_list": lambda gpu: [target_of(gpu)],
    "is_bf16_supported": _supports_bf16,
    "is_tf32_supported": _supports_tf32,
    "mem_get_info": lambda gpu, device=None: (gpu.dram_bytes, gpu.dram_bytes),
}

_LOCK = threading.RLock()
_OPEN: list[dict[str, None]] = []


def _forget_cached() -> None:
    """Make all ask again that remember what torch.cuda said or was: torch itself, transformers, and TorchDynamo."""
    torch.get_device_module.cache_clear()
    for name, function in vars(sys.modules.get("transformers.utils.import_utils", object)).items():
        if name.startswith("is_torch_") and hasattr(function, "cache_clear"):
            function.cache_clear()
    if (rules := name_of("dynamo_trace_rules")) in sys.modules:
        sys.modules[rules].clear_lru_cache()


@contextlib.contextmanager
def cuda_answers(gpu: Gpu) -> Iterator[dict[str, None]]:
    """While open, ``torch.cuda`` answers as a machine with this GPU does; yields the names that it answered from the
    GPU's own numbers. Inside another one, that one's GPU answers."""
    with _LOCK:
        if _OPEN:
            yield _OPEN[-1]
            return
        asked: dict[str, None] = {}

        def answer(name: str, *args: Any, **kwargs: Any) -> Any:
            asked[name] = None
            return _OF_THE_GPU[name](gpu, *args, **kwargs)

        table = {**_FIXED, **{name: partial(answer, name) for name in _OF_THE_GPU}}
        memory = {name_of("accelerator_memory"): partial(answer, "mem_get_info")}
        with contextlib.ExitStack() as stack:
            for home, values in (*((home, table) for home in _HOMES), *_ELSEWHERE, (torch_c, memory)):
                for name, value in values.items():
                    if hasattr(home, name):
                        stack.enter_context(patch.object(home, name, value))
            stack.enter_context(triton_driver(lambda: answer("get_device_properties")))
            _forget_cached()
            stack.callback(_forget_cached)
            stack.callback(_OPEN.clear)
            _OPEN.append(asked)
            yield asked
