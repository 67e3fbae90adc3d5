"""Made-up runs in a folder, as ``memwall measure --record`` keeps them: no kernel was timed.

``record(folder, 3, mm=25.0)`` is a run of 2026-01-03 in which a product takes 25 us, with an interval of 2 % to either
side; all other kernels take what :mod:`tests.unit.measured_fixture` says. The modeled range of a product is 20 to 30
us, that of every other kernel wide enough for any time.
"""

from dataclasses import replace
from pathlib import Path

from memwall.bench.drift.runs import keep
from memwall.record.measurement import Measurement
from memwall.record.profile import Profile
from tests.unit.measured_fixture import US, make_measured, timing

A, B = "a" * 40, "b" * 40


def made(day: int, mm: float = 25.0, range_us=(20.0, 30.0), step=None, **facts) -> Profile:
    """A measured profile; ``facts`` are of the environment, but ``device`` and ``copy`` (bytes per second) of the
    measurement and ``flags`` of the sensors of every kernel."""
    whole = {} if step is None else {"module_step": {"eager": {"status": "ok", "reason": "", "timing": step}}}
    changes = {"device": facts.pop("device", "Maker old 16GB"), "copy_bytes_per_s": facts.pop("copy", 0.8e12)}
    flags = facts.pop("flags", ())
    environment = {"time": f"2026-01-{day:02d}T05:24:55Z", "commit": A, "changes": False, "torch": "2.11.0", **whole}
    profile = make_measured(("eager",), environment={**environment, **facts}, **changes)
    (record,) = profile.measurements
    measurement = Measurement.from_dict(record)
    kernels = []
    for kernel in measurement.kernels:
        low, high = range_us if kernel.name == "aten.mm" else (1e-3, 1e6)
        time = timing(mm) if kernel.name == "aten.mm" else kernel.timing
        sensors = replace(kernel.sensors, flags=flags)
        ends = {"modeled_low_s": low * US, "modeled_high_s": high * US}
        kernels.append(replace(kernel, timing=time, sensors=sensors, **ends))
    return replace(profile, measurements=(replace(measurement, kernels=tuple(kernels)).to_dict(),))


def record(folder: Path, day: int, mm: float = 25.0, **facts) -> Path:
    """A run kept in a folder; its path."""
    return keep(made(day, mm, **facts), folder)
