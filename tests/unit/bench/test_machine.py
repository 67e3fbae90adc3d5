"""What the system and NVML say of a machine, from files and a library made up, and from this machine."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from memwall.bench.device import in_doubt, merged, open_nvml, read_nvml
from memwall.bench.machine import Counters, Usage, cache_bytes, cpu_name, machine_busy_s, read_counters, vendor_name
from memwall.record.measurement import Sensors
from tests.unit.places import ROOT


def test_caches_that_hold_data_by_level(tmp_path):
    rows = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1M"), ("3", "Unified", "32768K")]
    for n, row in enumerate(rows):
        folder = tmp_path / f"index{n}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), row, strict=True):
            (folder / name).write_text(text + "\n")
    assert cache_bytes(tmp_path) == {"l1": 49152, "l2": 1048576, "l3": 33554432}
    assert cache_bytes(tmp_path / "nowhere") == {}


def test_the_name_of_the_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: AMD EPYC 9B45\nflags\t: fpu\n")
    assert (cpu_name(file), vendor_name(file)) == ("AMD EPYC 9B45", "AMD")
    assert cpu_name(tmp_path / "nowhere")


def test_busy_seconds_leave_out_idle_and_waiting(tmp_path):
    tick = os.sysconf("SC_CLK_TCK")
    file = tmp_path / "stat"
    file.write_text(f"cpu  {tick} {tick} {tick} {50 * tick} {9 * tick} 0 0 {tick} 0 0\ncpu0 1 2 3\n")
    assert machine_busy_s(file) == pytest.approx(4.0)  # user, nice, system, steal
    assert machine_busy_s(tmp_path / "nowhere") == 0.0


def written(root: Path, ticks: str, queued: str, quota: int, throttled: int) -> Path:
    """The files that are read, as Linux writes them."""
    files = {
        "proc/stat": f"cpu  {ticks} 0 0\ncpu0 1 2 3\n",
        "proc/self/schedstat": queued + "\n",
        "sys/fs/cgroup/cpu.stat": f"usage_usec 5\nthrottled_usec {quota}\n",
        "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": f"{throttled}\n",
        "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "0\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_the_counters_are_read_and_subtracted(tmp_path):
    """user, nice, system, irq and softirq are work; idle and iowait are not; a tick is 10 ms."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    before = read_counters(written(tmp_path, "100 10 20 1000 50 1 2 5", "1000000000 20000000 7", 3000, 4))
    after = read_counters(written(tmp_path, "160 12 25 1100 60 2 4 8", "1500000000 70000000 9", 5000, 6))
    usage = replace(before, wall_s=10.0, own_s=1.0, cores=4).usage(
        replace(after, wall_s=10.5, own_s=1.45, cores=4), ("shared: x",)
    )
    assert usage.capacity_s == pytest.approx(2.0)
    assert usage.others_s == pytest.approx((60 + 2 + 5 + 1 + 2) * tick_s - 0.45)
    assert usage.stolen_s == pytest.approx(3 * tick_s)
    assert usage.waited_s == pytest.approx(0.050 + 0.002)
    assert usage.throttles == 2
    assert usage.flags == ("shared: x",)


def test_a_system_that_says_nothing_is_not_trusted(tmp_path):
    before, after = (replace(read_counters(tmp_path), wall_s=w, own_s=o) for w, o in ((0.0, 0.0), (1.0, 0.7)))
    usage = before.usage(after)
    assert usage.waited_s == pytest.approx(0.3)  # what one thread did not run
    assert any("no /proc/stat" in doubt for doubt in usage.doubts("cpu"))


def test_usages_add_up():
    busy, hot = Usage(0.06, 0.12, others_s=0.06), Usage(0.06, 0.12, throttles=1)
    capped = Usage(0.06, 0.12, flags=("throttled: power cap",))
    total = sum([busy, hot, capped, capped], Usage())
    assert total.wall_s == pytest.approx(0.24)
    assert (total.others_s, total.throttles, total.flags) == (0.06, 1, ("throttled: power cap",))


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux's /proc/stat")
def test_a_process_that_never_rests_is_seen():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.2)
            before = read_counters()
            time.sleep(0.6)
            usage = before.usage(read_counters())
        finally:
            busy.kill()
    # of 0.6 s; on a crowded machine its place is taken by others, which counts the same
    assert usage.others_s > 0.3
    assert isinstance(before, Counters)


class FakeNvml:
    """An NVML that answers as told; a method that is not told of raises NVML's error."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, reasons=0, pids=(), power=None):
        self.reasons, self.pids, self.power = reasons, pids, power

    def nvmlDeviceGetClockInfo(self, handle, which):  # noqa: N802  NVML's name
        return {1: 1980, 2: 2619}[which]

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        if self.power is None:
            raise self.NVMLError("not supported")
        return self.power

    def nvmlDeviceGetTemperature(self, handle, which):  # noqa: N802
        return 41

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):  # noqa: N802
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        return [type("Process", (), {"pid": pid}) for pid in self.pids]


def test_nvml_in_base_units_and_what_it_does_not_say_is_none():
    found = read_nvml(FakeNvml(), "handle", lambda: frozenset([7]))
    assert (found.clock_hz, found.memory_clock_hz) == (1.98e9, 2.619e9)
    assert (found.power_w, found.temperature_c, found.flags) == (None, 41.0, ())
    assert read_nvml(FakeNvml(power=350_000), "handle", frozenset).power_w == 350.0


@pytest.mark.parametrize(("reasons", "pids", "words"), [
    (0x1, [7], []),  # idle: nothing slows it down
    (0x4 | 0x20, [7], ["power cap", "temperature"]),
    (0x80, [7], ["power brake"]),
    (0, [7, 8, 9], ["2 other processes"]),
    (0, [900], []),  # one process under a number of the host's: it is us
    (0, [900, 901], ["1 other process"]),
])  # fmt: skip
def test_flags_of_a_throttled_or_shared_board(reasons, pids, words):
    flags = read_nvml(FakeNvml(reasons, pids), "handle", lambda: frozenset([7])).flags
    assert len(flags) == len(words)
    assert all(word in flag for word, flag in zip(words, flags, strict=True))
    assert in_doubt(flags) == flags


def test_readings_are_merged():
    both = merged([Sensors(clock_hz=1e9, flags=("a",)), Sensors(clock_hz=2e9, power_w=100.0, flags=("a", "b"))])
    assert both == Sensors(clock_hz=1.5e9, power_w=100.0, flags=("a", "b"))
    assert merged([]) == Sensors()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a board to ask")
def test_a_board_that_nobody_can_ask_says_so_and_is_not_in_doubt():
    flags = open_nvml(None)().flags
    assert len(flags) == 1 and flags[0].startswith("unknown clocks: ")
    assert in_doubt(flags) == ()


def test_the_workers_of_one_parent_are_a_family():
    code = "from memwall.bench.device import family; import os; print(os.getpid(), *family()); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    first, second = (subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2))
    own, *known = map(int, second.stdout.readline().split())
    assert own == second.pid
    assert {os.getpid(), first.pid, second.pid} <= set(known)
    for process in (first, second):
        process.communicate("done\n")
