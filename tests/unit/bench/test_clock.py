"""The CPU's clock on times that are made up, and the variables of a process in which kernels are timed."""

import os

import pytest
import torch

from memwall.bench.clock import CpuClock, timing_environment
from memwall.bench.device import Ready
from memwall.record.measurement import Sensors


class FakeClocks:
    """Each call of the timed part takes the next of some pairs of CPU and wall time, ns."""

    def __init__(self, steps):
        self.steps = iter(steps)

    def time(self, call):
        call()
        cpu, wall = next(self.steps)
        return wall / 1e9, cpu / wall


@pytest.mark.parametrize(("steps", "count", "samples", "flags"), [
    # what lost the core is taken again
    ([(100, 100), (50, 100), (94, 100), (95, 100), (300, 300)], 3, [100e-9, 100e-9, 300e-9], ()),
    # a machine that is never free is flagged, and its best repetitions are kept
    ([(80, 100), (60, 120), (50, 130), (40, 140)] * 2, 2, [100e-9, 100e-9],
     ("contended: no repetition had 95% of a core",)),
])  # fmt: skip
def test_repetitions_that_lost_the_core(steps, count, samples, flags):
    found, sensors = CpuClock(Sensors, FakeClocks(steps)).samples(Ready(lambda: None, lambda: None), count, 1e9)
    assert (found, sensors.flags) == (samples, flags)


def test_a_spent_budget_leaves_one_sample():
    clock = FakeClocks([(100, 100)] * 9)
    assert len(CpuClock(Sensors, clock).samples(Ready(lambda: None, lambda: None), 5, 0.0)[0]) == 1


def test_what_is_written_over_is_put_back_before_each_sample():
    x = torch.ones(4)
    seen = []

    def call():
        seen.append(float(x[0]))
        x.add_(1.0)

    cpu = CpuClock(Sensors, FakeClocks([(1, 1)] * 9))
    cpu.samples(Ready(call, lambda: x.fill_(1.0)), 3, 1e9)
    assert seen == [1.0, 1.0, 1.0]


def test_a_cpu_worker_keeps_its_memory_and_finds_this_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = timing_environment("cpu")
    assert environment["MALLOC_MMAP_MAX_"] == "0" and environment["OMP_NUM_THREADS"] == "1"
    assert environment["PYTHONPATH"].split(os.pathsep)[1] == "/elsewhere"
    assert "MALLOC_MMAP_MAX_" not in timing_environment("cuda") or "MALLOC_MMAP_MAX_" in os.environ
