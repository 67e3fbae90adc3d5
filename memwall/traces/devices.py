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
    kinds = {_kind(entry) for entry in listed}
    only = listed[0] if len(kinds) == 1 else {}
    return tuple(
        _device(index, known.get(index, only), kernels_of.get(index, 0))
        for index in sorted({*known, *kernels_of})
        if index in kernels_of or index in known
    )


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
    major, minor = _first(entry, "computeMajor", "major"), _first(entry, "computeMinor", "minor")
    return Device(
        index=index,
        name=printable(str(entry.get("name", "")))[:200],
        compute_capability=f"{major}.{minor}" if major is not None and minor is not None else None,
        memory_bytes=_whole(entry.get("totalGlobalMem")),
        sm_count=_first(entry, "numSms", "multiProcessorCount"),
        kernels=kernels,
    )


def _first(entry: Mapping[str, Any], *names: str) -> Any:
    """Today's name of a property, else that of early 2021."""
    return next((whole for name in names if (whole := _whole(entry.get(name))) is not None), None)


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry.get("name", ""))


def _whole(value: object, default: int | None = None) -> Any:
    """A whole number from 0 on, also from a text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and value >= 0 else default
