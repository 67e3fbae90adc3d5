"""Which GPUs a trace ran on, and which of memwall's boards that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memwall.hardware.lookup import load_gpu, match_device
from memwall.traces.records import Device, Trace
from memwall.traces.values import printable

#: a device with fewer of its board's multiprocessors is a part of it: a MIG slice, a partition of an MI300X
_WHOLE_BOARD = 0.9


def read_devices(properties: object, kernels_of: Mapping[int, int]) -> tuple[Device, ...]:
    """The devices of ``deviceProperties`` and those that only kernels name, by index.

    ROCm numbers a kernel's device among all agents of the machine and ``deviceProperties`` among visible GPUs; where
    all of these are of one kind, a device without properties is one of them.
    """
    listed = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    known = {_whole(entry.get("id"), default=place): entry for place, entry in enumerate(listed)}
    kinds = {str(entry.get("name", "")) for entry in listed}
    only = listed[0] if len(kinds) == 1 else {}
    indices = sorted({*known, *kernels_of})
    return tuple(_device(index, known.get(index, only), kernels_of.get(index, 0)) for index in indices)


def board(trace: Trace) -> str | None:
    """The canonical name of the board that ran the kernels; None where it has no spec, no name, or several ran.

    A device with a part of the board's multiprocessors (a MIG slice) is not that board.
    """
    names = {_board_of(device) for device in used(trace)}
    return next(iter(names)) if len(names) == 1 else None


def used(trace: Trace) -> Sequence[Device]:
    """The devices that ran something."""
    return [device for device in trace.devices if device.kernels]


def _board_of(device: Device) -> str | None:
    gpu = match_device(device.name) if device.name else None
    if gpu is None:
        return None
    whole = load_gpu(gpu.name).sm_count
    part = device.sm_count is not None and device.sm_count < _WHOLE_BOARD * whole
    return None if part else gpu.name


def _device(index: int, entry: Mapping[str, Any], kernels: int) -> Device:
    counts = (_whole(entry.get(name)) for name in ("numSms", "multiProcessorCount"))  # the second: early 2021
    sm_count = next((count for count in counts if count is not None), None)
    return Device(index=index, name=printable(str(entry.get("name", "")))[:200], sm_count=sm_count, kernels=kernels)


def _whole(value: object, default: int | None = None) -> Any:
    """A whole number from 0 on, also from a text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value >= 0 else default
