"""A fake CUDA GPU, present while Inductor decides what it would run on it.

It only answers queries (device, number of units, memory); nothing is ever launched. All patches to torch and Triton
are undone at the end, and the answers are cleared from their caches.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.frontend.triton.driver import triton_driver
from memwall.fusion.policies import why_not
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu, match_device
from memwall.ops.contraction import product_pipe

#: shared memory of a block without opt-in
_SHARED_PER_BLOCK, _THREADS_PER_BLOCK = 48 * 1024, 1024


def capability_of(gpu: Gpu) -> tuple[int, int]:
    """The compute capability of a GPU that Inductor can write Triton code for; a UsageError if it is not NVIDIA's, or
    older than 7.0."""
    if why := why_not("inductor", gpu):
        raise UsageError(why)
    major, _, minor = (gpu.compute_capability or "").partition(".")
    return int(major), int(minor)


def properties_of(gpu: Gpu) -> SimpleNamespace:
    """What ``torch.cuda.get_device_properties`` would say of a GPU."""
    major, minor = capability_of(gpu)
    chip = chip_of(gpu)
    return SimpleNamespace(
        name=gpu.full_name,
        major=major,
        minor=minor,
        multi_processor_count=gpu.sm_count,
        warp_size=chip.warp_size,
        max_threads_per_multi_processor=chip.threads,
        max_threads_per_block=_THREADS_PER_BLOCK,
        regs_per_multiprocessor=chip.registers,
        total_memory=gpu.dram_bytes,
        L2_cache_size=gpu.l2_bytes,
        shared_memory_per_block=_SHARED_PER_BLOCK,
        shared_memory_per_block_optin=chip.shared_block_bytes,
        shared_memory_per_multiprocessor=chip.shared_bytes,
        gcnArchName="",
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid=gpu.name,
        clock_rate=int(gpu.boost_clock_hz / 1e3),
    )


@contextlib.contextmanager
def device_for(gpu: Gpu, kind: str) -> Iterator[torch.device]:
    """The device that Inductor compiles for: the CPU, this machine's GPU if it is the given one, or a fake (see
    :func:`capability_of`)."""
    has_it = kind != "cpu" and torch.cuda.is_available() and match_device(torch.cuda.get_device_name()) == gpu
    with contextlib.nullcontext() if kind == "cpu" or has_it else fake_gpu(gpu):
        yield torch.device("cpu") if kind == "cpu" else torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def fake_gpu(gpu: Gpu) -> Iterator[None]:
    """While open, torch, Inductor and Triton see a GPU of that kind as device 0."""
    known = properties_of(gpu)
    interfaces = compat.dynamo_device_interface
    with contextlib.ExitStack() as stack:
        stack.callback(_forget)
        stack.enter_context(_device_guard())
        stack.enter_context(triton_driver(lambda: known))
        for owner, answers in _answers(gpu, known, interfaces):
            for name, answer in answers.items():
                if hasattr(owner, name):
                    static = isinstance(owner, type)
                    stack.enter_context(patch.object(owner, name, staticmethod(answer) if static else answer))
        _forget()
        yield


def _answers(gpu: Gpu, known: SimpleNamespace, interfaces: Any) -> list[tuple[Any, dict[str, Callable[..., Any]]]]:
    """The patched objects, the attribute names and the answers."""

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    capability = known.major, known.minor
    common = {
        "is_available": constant(True),
        "device_count": constant(1),
        "current_device": constant(0),
        "get_device_properties": constant(known),
        "set_device": constant(None),
        "synchronize": constant(None),
    }
    cuda = {
        "get_device_capability": constant(capability),
        "get_device_name": constant(known.name),
        compat.name_of("lazy_init"): constant(None),
        "is_tf32_supported": constant(capability >= (8, 0)),
        "is_bf16_supported": constant(capability >= (8, 0)),
        compat.name_of("exchange_device"): constant(0),
        compat.name_of("maybe_exchange_device"): constant(0),
        "get_rng_state": lambda *args, **kwargs: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": constant(None),
    }
    interface = {
        "get_compute_capability": constant(known.major * 10 + known.minor),
        "get_raw_stream": constant(0),
        "is_triton_capable": constant(True),
        "raise_if_triton_unavailable": constant(None),
        "is_bf16_supported": constant(capability >= (8, 0)),
        "exchange_device": constant(0),
        "maybe_exchange_device": constant(0),
    }
    return [
        (torch.cuda, common | cuda),
        (interfaces.CudaInterface, common | interface),
        (interfaces.CudaInterface.Worker, {k: common[k] for k in ("get_device_properties", "current_device")}),
        (compat.fake_tensor, {"init_gpu_context": constant(None)}),
        (compat.torch_c, {compat.name_of("conv_memory_format"): _conv_format}),
        (compat.torch_internal, {"max_clock_rate": constant(gpu.boost_clock_hz / 1e6)}),
        (compat.inductor_utils, {"get_gpu_dram_gbps": constant(gpu.dram_bytes_per_s / 1e9)}),
        (
            compat.inductor_scheduler,
            {
                "get_gpu_dram_gbps": constant(gpu.dram_bytes_per_s / 1e9),
                "get_device_tflops": lambda dtype: _tflops(gpu, dtype),
            },
        ),
    ]


def _conv_format(images: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
    """The layout of a convolution's results: channels last where the images or the weight are, since cuDNN then runs it
    (``cudnn_conv_suggest_memory_format`` in ATen/native/ConvUtils.h). A torch without cuDNN says contiguous."""
    formats: set[torch.memory_format] = {compat.suggest_memory_format(tensor) for tensor in (images, weight)}
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
    narrow = torch.float64 not in (images.dtype, weight.dtype)
    return last if last in formats and narrow else torch.contiguous_format


def _tflops(gpu: Gpu, dtype: torch.dtype) -> float:
    pipe = Pipe("vector", "float32") if dtype is torch.float32 else product_pipe(str(dtype).removeprefix("torch."), {})
    return gpu.peak(pipe) / 1e12


@contextlib.contextmanager
def _device_guard() -> Iterator[None]:
    """Use meta's device guard for CUDA: a CPU build of torch has none and would abort."""
    if torch.version.cuda is not None:
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    kinds = (ctypes.c_void_p * (_META_DEVICE + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before = kinds[_CUDA_DEVICE]
    if not before:
        kinds[_CUDA_DEVICE] = kinds[_META_DEVICE]
    try:
        yield
    finally:
        kinds[_CUDA_DEVICE] = before


#: c10::DeviceType
_CUDA_DEVICE, _META_DEVICE = 1, 14


def _forget() -> None:
    """Clear torch's caches about the devices of this process."""
    interfaces = compat.dynamo_device_interface
    for module in (compat.inductor_utils, compat.triton_questions, compat.inductor_triton):
        for item in vars(module).values():
            if getattr(item, "__module__", None) == module.__name__ and hasattr(item, "cache_clear"):
                item.cache_clear()
    compat.DeviceProperties.create.cache_clear()
    setattr(interfaces, compat.name_of("device_initialized"), False)
    interfaces.device_interfaces.pop("cuda", None)
    for table in (interfaces.caching_worker_device_properties, interfaces.caching_worker_current_devices):
        table.pop("cuda", None)
