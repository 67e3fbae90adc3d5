"""What was timed on a device, as it is saved in a profile: one run of one executor, kernel by kernel.

``measurements`` of a record is a list of :meth:`Measurement.to_dict`. Times in seconds; ``low_s`` and ``high_s`` are
the ends of the interval of the median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from memwall.record.format import BadRecord, plain

#: executor -> the policy whose groups it runs: ``inductor`` compiles each group of our planner alone by torch.compile
EXECUTORS: Mapping[str, str] = {"eager": "eager", "generated": "memwall", "inductor": "memwall"}

#: how the timing of one kernel ended
STATUSES = ("ok", "wrong", "failed", "timeout", "out of memory", "not generated", "skipped")


@dataclass(frozen=True, slots=True)
class Timing:
    """Median of ``samples`` timings of one thing, its interval, and the lowest and highest sample."""

    median_s: float
    low_s: float
    high_s: float
    samples: int
    min_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Sensors:
    """What the device said of itself beside the samples; None where it does not say. ``flags``: why a sample is in
    doubt (throttle reasons, other processes, contention)."""

    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """One kernel: what the model says of it and what the clock said.

    ``id`` is that of the kernel in the simulation of the same policy, ``repeats`` the number of equal kernels of the
    step that this one stands for. ``modeled_s``, ``bound_s``, bytes and FLOPs are of one launch. ``error`` is the worst
    deviation from float64 in units of the tolerance (below 1 passes), None when it was not checked.
    """

    id: int
    name: str
    op_ids: tuple[int, ...]
    op_class: str
    repeats: int
    flops: int
    bytes: int
    modeled_s: float
    bound_s: float
    status: str
    reason: str = ""
    timing: Timing | None = None
    error: float | None = None
    schedule: str = ""
    config: Mapping[str, int] = field(default_factory=dict)
    sensors: Sensors = Sensors()


@dataclass(frozen=True)
class Measurement:
    """One executor on one device. ``gpu`` is the name of the spec that modeled it; ``copy_bytes_per_s`` what a copy of
    large arrays reached here, 0 where that was not measured; ``step`` the whole step, None where it was not timed."""

    device: str
    kind: str
    gpu: str
    executor: str
    policy: str
    kernels: tuple[MeasuredKernel, ...]
    step: Timing | None = None
    step_modeled_s: float | None = None
    step_reason: str = ""
    copy_bytes_per_s: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types in the order of the format; what has its default is left out of kernels."""
        record: dict[str, Any] = {name: getattr(self, name) for name in _MEASUREMENT}
        record["environment"] = plain(dict(self.environment))
        record["step"] = None if self.step is None else asdict(self.step)
        record["kernels"] = [_kernel_to_dict(kernel) for kernel in self.kernels]
        return record

    @classmethod
    def from_dict(cls, record: Any, where: str = "measurement") -> Measurement:
        """The measurement of a parsed record; keys that this version does not know are ignored.

        Raises:
            BadRecord: a key is missing or its value is of the wrong kind; names it.
        """
        return cls(**_read(record, _MEASUREMENT, where))


# -- writing -----------------------------------------------------------------------------------------------------------

#: stands for a deviation that is no number
_ENDLESS = 1e20


def _kernel_to_dict(kernel: MeasuredKernel) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for name, (_, default) in _KERNEL.items():
        value = getattr(kernel, name)
        if default is _REQUIRED or value != default:
            record[_KEYS.get(name, name)] = plain(value)
    if kernel.error is not None:
        record["error"] = kernel.error if kernel.error < _ENDLESS else _ENDLESS
    if kernel.timing is not None:
        record["timing"] = asdict(kernel.timing)
    if kernel.sensors != Sensors():
        record["sensors"] = plain({k: v for k, v in asdict(kernel.sensors).items() if v not in (None, ())})
    return record


# -- reading -----------------------------------------------------------------------------------------------------------

#: beyond any count of a model, and any time, rate or frequency; what is nearer to 0 than the smallest is damage too
_MOST, _LARGEST, _SMALLEST = 1 << 96, 1e21, 1e-15


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise BadRecord(f"{where} is not text")
    return value


def _one_of(choices: Any) -> Callable[[Any, str], str]:
    def check(value: Any, where: str) -> str:
        if value not in tuple(choices):
            raise BadRecord(f"{where} is {str(value)[:40]!r}; want one of {', '.join(choices)}")
        return str(value)

    return check


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise BadRecord(f"{where} is neither true nor false")
    return value


def _count(value: Any, where: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise BadRecord(f"{where} must be a whole number that is not negative, not {str(value)[:40]!r}")
    return value


def _at_least_1(value: Any, where: str) -> int:
    if _count(value, where) < 1:
        raise BadRecord(f"{where} must be at least 1")
    return int(value)


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not (value == 0 or _SMALLEST <= value < _LARGEST):
        raise BadRecord(f"{where} must be a number that is not negative, not {str(value)[:40]!r}")
    return float(value)


def _time(value: Any, where: str) -> float:
    if not _number(value, where):
        raise BadRecord(f"{where} must be above 0")
    return float(value)


def _celsius(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise BadRecord(f"{where} must be a number, not {str(value)[:40]!r}")
    return float(value)


def _or_none(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, where: None if value is None else check(value, where)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRecord(f"{where} is not a list")
    return value


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRecord(f"{where} is not an object")
    return value


def _counts(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_count(item, where) for item in _list(value, where))


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(item, where) for item in _list(value, where))


def _config(value: Any, where: str) -> dict[str, int]:
    return {str(name): _count(number, f"{where}.{name}") for name, number in _object(value, where).items()}


#: What a key that must be there has for a default.
_REQUIRED: Any = object()

#: Field -> how its value is checked, and what stands in where the record has none.
_Fields = Mapping[str, tuple[Callable[[Any, str], Any], Any]]

_TIMING: _Fields = {
    "median_s": (_time, _REQUIRED), "low_s": (_time, _REQUIRED), "high_s": (_time, _REQUIRED),
    "samples": (_at_least_1, _REQUIRED), "min_s": (_time, _REQUIRED), "max_s": (_time, _REQUIRED),
}  # fmt: skip
_SENSORS: _Fields = {
    "clock_hz": (_or_none(_number), None), "memory_clock_hz": (_or_none(_number), None),
    "power_w": (_or_none(_number), None), "temperature_c": (_or_none(_celsius), None), "flags": (_texts, ()),
}  # fmt: skip


def _timing(value: Any, where: str) -> Timing:
    timing = Timing(**_read(value, _TIMING, where))
    if not timing.min_s <= timing.low_s <= timing.median_s <= timing.high_s <= timing.max_s:
        raise BadRecord(f"{where}: min_s, low_s, median_s, high_s, max_s are not in this order")
    return timing


def _sensors(value: Any, where: str) -> Sensors:
    return Sensors(**_read(value, _SENSORS, where))


_KERNEL: _Fields = {
    "id": (_count, _REQUIRED), "name": (_text, _REQUIRED), "op_ids": (_counts, _REQUIRED),
    "op_class": (_text, _REQUIRED), "repeats": (_at_least_1, _REQUIRED), "flops": (_count, _REQUIRED),
    "bytes": (_count, _REQUIRED), "modeled_s": (_number, _REQUIRED), "bound_s": (_number, _REQUIRED),
    "status": (_one_of(STATUSES), _REQUIRED), "reason": (_text, ""), "timing": (_or_none(_timing), None),
    "error": (_or_none(_number), None), "schedule": (_text, ""), "config": (_config, {}),
    "sensors": (_sensors, Sensors()),
}  # fmt: skip

#: Names that a record has for a field, where they differ: those of the rest of the format.
_KEYS = {"op_class": "class"}


def _kernel(value: Any, where: str) -> MeasuredKernel:
    kernel = MeasuredKernel(**_read(value, _KERNEL, where))
    if kernel.status == "ok" and kernel.timing is None:
        raise BadRecord(f"{where} is ok and has no timing")
    return kernel


def _kernels(value: Any, where: str) -> tuple[MeasuredKernel, ...]:
    return tuple(_kernel(item, f"{where}[{i}]") for i, item in enumerate(_list(value, where)))


_MEASUREMENT: _Fields = {
    "device": (_text, _REQUIRED), "kind": (_text, _REQUIRED), "gpu": (_text, _REQUIRED),
    "executor": (_one_of(EXECUTORS), _REQUIRED), "policy": (_text, _REQUIRED),
    "copy_bytes_per_s": (_number, 0.0), "complete": (_flag, _REQUIRED), "environment": (_object, {}),
    "step": (_or_none(_timing), None), "step_modeled_s": (_or_none(_number), None), "step_reason": (_text, ""),
    "kernels": (_kernels, _REQUIRED),
}  # fmt: skip


def _read(record: Any, fields: _Fields, where: str) -> dict[str, Any]:
    """The fields of an object, each checked."""
    known, values = _object(record, where), {}
    for name, (check, default) in fields.items():
        key = _KEYS.get(name, name)
        if key not in known and default is _REQUIRED:
            raise BadRecord(f"{where} has no {key!r}")
        values[name] = check(known[key], f"{where}.{key}") if key in known else default
    return values
