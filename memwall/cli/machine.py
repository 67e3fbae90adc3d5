"""The GPUs that a command runs on: those named, else this machine's, else one that everybody knows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from memwall.hardware.lookup import Gpu, load_gpu, load_gpus, match_device

DEFAULT_GPU = "h100-sxm"


def chosen_gpus(names: Sequence[str | Gpu], say: Callable[[str], None]) -> list[Gpu]:
    """The GPUs of ``--gpu``, each once; without any, the default, saying which.

    Raises:
        UsageError: a name or a file is wrong.
    """
    if names:
        return load_gpus(names)
    device = this_machine()
    gpu = match_device(device) if device else None
    if gpu is not None:
        say(f"on this machine's {gpu.full_name}; --gpu NAME for others")
        return [gpu]
    if device:
        say(f"this machine's {device} is not among memwall gpus; taking {DEFAULT_GPU}")
    return [load_gpu(DEFAULT_GPU)]


def this_machine() -> str | None:
    """What the driver calls the first NVIDIA GPU of this machine; None where there is none. Imports no torch."""
    with contextlib.suppress(Exception):  # no driver, no library, no permission: all mean no GPU that we can see
        import pynvml

        pynvml.nvmlInit()
        try:
            name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            pynvml.nvmlShutdown()
        return name.decode() if isinstance(name, bytes) else str(name)
    return None
