"""What Triton's driver says while a model is loaded and traced: the answers of the GPU asked for; nothing runs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from memwall.core import compat


@contextlib.contextmanager
def triton_driver(properties: Callable[[], Any]) -> Iterator[None]:
    """While open, Triton has a driver of a GPU with these properties, as ``torch.cuda.get_device_properties`` states
    them; they are asked for when Triton asks. Does nothing where Triton is not imported."""
    if "triton" not in sys.modules:
        yield
        return
    import triton

    driver = triton.runtime.driver
    held = (compat.name_of("active_driver"), compat.name_of("default_driver"), "active")
    before = {name: value for name, value in vars(driver).items() if name in held}
    driver.set_active(_driver(properties))
    compat.triton_questions.has_triton.cache_clear()  # Dynamo may have asked before there was a driver
    try:
        yield
    finally:
        for name in held:
            vars(driver).pop(name, None)
        vars(driver).update(before)
        compat.triton_questions.has_triton.cache_clear()


def _driver(properties: Callable[[], Any]) -> Any:
    from triton.backends.compiler import GPUTarget

    def target() -> Any:
        known = properties()
        if known.gcnArchName.startswith("gfx"):
            return GPUTarget("hip", known.gcnArchName, known.warp_size)
        return GPUTarget("cuda", known.major * 10 + known.minor, known.warp_size)

    def described(*device: Any) -> dict[str, int]:
        known = properties()
        return {
            "max_shared_mem": known.shared_memory_per_block_optin,
            "max_num_regs": known.regs_per_multiprocessor,
            "multiprocessor_count": known.multi_processor_count,
            "sm_clock_rate": known.clock_rate,
            "warpSize": known.warp_size,
        }

    def capability(*device: Any) -> tuple[int, int]:
        known = properties()
        return known.major, known.minor

    return SimpleNamespace(
        get_current_target=target,
        get_current_device=lambda: 0,
        get_current_stream=lambda *device: 0,
        get_device_capability=capability,
        is_active=lambda: True,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        utils=SimpleNamespace(get_device_properties=described),
    )
