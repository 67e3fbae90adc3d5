"""The measured gate: its statistics on drawn samples, its eyes on written and real counters, its processes for real."""

import json
import math
import random
import signal
import statistics
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import pytest

from memwall.bench.ab import ABResult, Side, run_ab
from memwall.bench.ab import sides as ab_sides
from memwall.bench.ab.run import BLOCKS, Rules, run_launches, verdict_of
from memwall.bench.ab.sides import Round, SideProcesses, StepBlock
from memwall.bench.machine import Usage
from memwall.bench.stats import Ratio
from memwall.core.errors import UsageError
from memwall.core.process import Lost
from tests.unit.processes import is_alive, wait_for

QUIET = Usage(wall_s=0.06, capacity_s=0.12)


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (0.98, 1.02, "pass"),
    (0.80, 0.84, "pass"),
    (1.06, 1.09, "fail"),
    (1.051, 1.5, "fail"),
    (1.04, 1.06, "inconclusive"),  # what is allowed lies within
    (0.97, 1.06, "inconclusive"),
    (0.70, 1.04, "inconclusive"),  # 22 % either way: a slow-down of 5 % would not have shown
])  # fmt: skip
def test_the_whole_interval_decides(low, high, verdict):
    assert verdict_of(Ratio(math.sqrt(low * high), low, high, 1.0), 0.05) == verdict


# ---- the course of an A/B benchmark, on a machine that is made up


@dataclass
class FakeMachine:
    """A clock that only rounds and starts move, and a speed that wanders by a third while they run."""

    now: float = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    @property
    def slowness(self) -> float:
        return 1.0 + 0.3 * abs((self.now / 7.0) % 2.0 - 1.0)


@dataclass
class FakeSides:
    """Both sides: ``factor`` is how many times longer the head takes; ``usages`` of the rounds, then all are quiet."""

    machine: FakeMachine
    factor: float
    spread: float
    chance: random.Random
    usages: list[Usage] = field(default_factory=list)
    environment: dict = field(default_factory=lambda: {"device": "made up"})
    round_s: float = 0.12
    stopped: bool = False

    def round(self, head_first: bool) -> Round:
        usage = self.usages.pop(0) if self.usages else QUIET
        blocks = {}
        for is_head in (head_first, not head_first):
            step_s = 0.004 * (self.factor if is_head else 1.0) * self.machine.slowness
            blocks[is_head] = StepBlock(step_s * math.exp(self.chance.gauss(0.0, self.spread)), usage)
            self.machine.now += self.round_s / 2
        return Round(blocks[False], blocks[True])

    def stop(self) -> None:
        self.stopped = True


def play(factor=1.0, spread=0.014, seed=0, launch_spread=0.005, usages=(), seconds=60.0, **rules):
    """A result, and all sides that were started. Two blocks of ``spread`` 1.4 % make rounds of 2 %."""
    machine, chance, started = FakeMachine(), random.Random(seed), []
    waiting = list(usages)

    def launch():
        machine.now += 2.5
        shift = math.exp(chance.gauss(0.0, launch_spread))
        started.append(FakeSides(machine, factor * shift, spread, chance, waiting, round_s=rules.get("round_s", 0.12)))
        return started[-1]

    given = {name: value for name, value in rules.items() if name != "round_s"}
    result = run_launches(
        launch, Rules(**{"allowed": 0.05, "seconds": seconds, **given}), clock=machine.clock, sleep=machine.sleep
    )
    assert all(sides.stopped for sides in started)
    return result, started


def test_equal_code_never_fails():
    verdicts = [play(1.0, seed=seed)[0].verdict for seed in range(20)]
    assert verdicts == ["pass"] * 20


def test_a_slow_down_of_a_tenth_always_fails():
    results = [play(1.1, seed=seed)[0] for seed in range(20)]
    assert [c.verdict for c in results] == ["fail"] * 20
    assert all(c.low < 1.1 * 1.02 and c.high > 1.1 * 0.98 for c in results)


def test_what_is_exactly_as_slow_as_allowed_is_not_decided_by_chance():
    """After five looks of 99 % each, at most 5 of 100 either way; 1 of 12 would still be luck."""
    verdicts = [play(1.05, seed=seed)[0].verdict for seed in range(12)]
    assert verdicts.count("inconclusive") >= 11


def test_a_speed_up_passes():
    result, _ = play(0.8)
    assert result.verdict == "pass"
    assert result.ratio == pytest.approx(0.8, rel=0.02)


def test_an_undecided_benchmark_goes_on_launch_by_launch():
    result, started = play(1.05)
    assert len(started) == result.launches == 14
    assert result.blocks == 14 * BLOCKS / 3
    assert "within the interval" in result.reasons[0]
    assert len(play(1.0)[1]) == 3


def test_a_spread_that_hides_the_allowed_slow_down_is_said():
    result, _ = play(1.0, spread=0.4)
    assert result.verdict == "inconclusive"
    assert result.smallest_detectable > 0.05
    assert f"no slow-down below {100 * result.smallest_detectable:.1f} % shows" in result.sentence


BUSY = Usage(wall_s=0.06, capacity_s=0.12, others_s=0.06)
HOT = Usage(wall_s=0.06, capacity_s=0.12, throttles=1)
WAITING = Usage(wall_s=0.06, capacity_s=0.12, waited_s=0.02)
CAPPED = Usage(wall_s=0.06, capacity_s=0.12, flags=("throttled: power cap",))
SHARED = Usage(wall_s=0.06, capacity_s=0.12, flags=("shared: 1 other process on the device",))


@pytest.mark.parametrize("usage", [BUSY, HOT, WAITING, CAPPED, SHARED])
def test_a_machine_that_is_never_quiet_is_not_judged(usage):
    result, started = play(2.0, usages=[usage] * 500)
    assert result.verdict == "inconclusive"
    assert (result.blocks, result.dropped, len(started)) == (0, BLOCKS + 1, 1)
    assert result.ratio is None
    assert usage.disturbances("cpu")[0] in result.sentence


def test_a_disturbed_round_is_repeated():
    result, _ = play(1.0, usages=[QUIET, BUSY, QUIET, HOT, WAITING])
    assert (result.verdict, result.blocks, result.dropped) == ("pass", BLOCKS, 3)


def test_a_disturbance_is_waited_out():
    """The machine is busy for ten seconds: rounds of 0.12 s and pauses of half a second outlast that."""
    machine = FakeMachine()

    class Crowded(FakeSides):
        def round(self, head_first: bool) -> Round:
            self.usages = [BUSY] if self.machine.now < 10.0 else []
            return super().round(head_first)

    result = run_launches(
        lambda: Crowded(machine, 1.0, 0.01, random.Random(0)), Rules(0.05), clock=machine.clock, sleep=machine.sleep
    )
    assert (result.verdict, result.blocks) == ("pass", BLOCKS)
    assert 10 / 0.62 - 1 < result.dropped < 10 / 0.62 + 1


def test_many_disturbed_rounds_leave_the_verdict_open():
    result, _ = play(2.0, blocks=9, usages=[HOT] * 9 + [QUIET] * 8)
    assert (result.verdict, result.dropped) == ("fail", 9)
    result, _ = play(2.0, blocks=6, usages=[HOT] * 7)
    assert result.verdict == "inconclusive"


@pytest.mark.parametrize(("usage", "why"), [
    (replace(QUIET, others_s=0.012), "other processes took 10 % of the machine's time"),
    (replace(QUIET, stolen_s=0.006), "the hypervisor took 5 % of the machine's time"),
    (replace(QUIET, flags=("unknown clocks: pynvml is not installed",)), "unknown clocks"),
])  # fmt: skip
def test_a_little_of_it_all_the_time_is_too_much(usage, why):
    result, _ = play(1.0, usages=[usage] * 500)
    assert (result.verdict, result.dropped) == ("inconclusive", 0)
    assert why in result.sentence
    assert result.ratio == pytest.approx(1.0, abs=0.02)


def test_the_host_of_a_gpu_may_be_busy():
    usages = [replace(QUIET, others_s=0.1)] * 500
    assert play(1.0, usages=usages, device="cuda")[0].verdict == "pass"
    assert play(1.0, usages=[WAITING] * 500, device="cuda")[0].verdict == "inconclusive"


def test_the_time_limit_holds():
    result, started = play(1.0, seconds=4.0)
    assert (result.verdict, len(started)) == ("inconclusive", 2)
    assert "the time was over" in result.sentence


def test_long_steps_get_fewer_rounds():
    """Starts of 2.5 s and rounds of 3 s: 12.5 s of the 45 s for each launch hold 4 rounds; the median of 24 is 12."""
    result, _ = play(1.0, seconds=45.0, round_s=3.0)
    assert (result.launches, result.blocks) == (3, 12)


def test_each_side_begins_equally_often():
    order = []

    class Noted(FakeSides):
        def round(self, head_first: bool) -> Round:
            order.append(head_first)
            return super().round(head_first)

    machine = FakeMachine()
    run_launches(lambda: Noted(machine, 1.0, 0.01, random.Random(0)), Rules(0.05), clock=machine.clock)
    assert len(order) == BLOCKS
    assert order.count(True) == BLOCKS / 2
    assert order[:8] != order[8:16]


@pytest.mark.parametrize(("rules", "message"), [
    ({"allowed": 0.0}, "above 0 %"),
    ({"allowed": -0.1}, "above 0 %"),
    ({"allowed": math.nan}, "above 0 %"),
    ({"allowed": 0.05, "device": "tpu"}, "there is cpu, cuda"),
    ({"allowed": 0.05, "blocks": 5}, "at least 6"),
    ({"allowed": 0.05, "seconds": 0.0}, "above 0 s"),
    ({"allowed": 0.05, "seconds": math.inf}, "above 0 s"),
])  # fmt: skip
def test_rules_that_make_no_sense_are_refused(rules, message):
    with pytest.raises(UsageError, match=message):
        Rules(**rules)


def test_the_outcome_is_json():
    result, _ = play(1.1)
    found = json.loads(json.dumps(result.to_dict()))
    assert found["verdict"] == "fail"
    assert len(found["base_samples_s"]) == len(found["head_samples_s"]) == found["blocks"] == BLOCKS
    confidence = pytest.approx(0.99286, abs=1e-5)  # seven looks, 5 %
    assert found["environment"] == {"device": "made up", "confidence": confidence}
    assert found["base_s"] == statistics.median(found["base_samples_s"])
    assert "\n" not in found["sentence"]


def test_the_sentence():
    result = ABResult("fail", 0.05, "cpu", 1.1, 1.08, 1.12, 0.001, 0.018, 24, 2, 3, base_s=0.004, head_s=0.0044)
    assert result.sentence == (
        "fail: head +10.0 % in time (+8.0 % to +12.0 %); the base takes 4.00 ms a step; +5.0 % is allowed;"
        " slow-downs from 1.8 % on would show; 24 rounds, 2 dropped"
    )


# ---- the processes


MODEL = """\
import sys
import torch
from helper import WIDTH

def model():
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))

def inputs(batch=16):
    return (torch.randn(batch, WIDTH),)
"""


def checkout(folder: Path, width: int = 64, model: str = MODEL) -> Side:
    """A repository with a model, a module at its root that the model imports, and a package named as ours."""
    (folder / "models").mkdir(parents=True)
    (folder / "models/net.py").write_text(model, encoding="utf-8")
    (folder / "helper.py").write_text(f"WIDTH = {width}\n", encoding="utf-8")
    (folder / "memwall").mkdir()
    (folder / "memwall/__init__.py").write_text("raise ImportError('not this one')\n", encoding="utf-8")
    return Side(folder, "models/net.py", {"batch": 4})


def test_each_side_runs_its_own_code(tmp_path, monkeypatch):
    """The head multiplies matrices of 64 times as many elements. PYTHONPATH names the head's checkout alone, as an
    editable install would, and a package named memwall lies in both."""
    base, head = checkout(tmp_path / "base", 64), checkout(tmp_path / "head", 512)
    monkeypatch.setenv("PYTHONPATH", str(head.folder))
    launch = SideProcesses(base, head, "cpu", 0)
    pids = [side.pid for side in launch._sides.values()]
    try:
        rounds = [launch.round(head_first=first) for first in (False, True)]
        assert launch.environment["threads"] == 1
    finally:
        launch.stop()
    assert all(r.log_ratio > math.log(2) for r in rounds)
    assert all(r.usage.wall_s > 0.05 and r.base.usage.capacity_s > 0 for r in rounds)
    assert not any(is_alive(pid) for pid in pids)


def test_without_time_nothing_is_decided(tmp_path):
    result = run_ab(checkout(tmp_path / "base"), checkout(tmp_path / "head"), Rules(0.05, seconds=0.5))
    assert (result.verdict, result.ratio) == ("inconclusive", None)
    assert result.environment["torch"]


class Answering:
    """A process of a side that gives or raises the same whatever it is asked."""

    def __init__(self, answer):
        self.answer = answer

    def send(self, *question):
        pass

    def receive(self, limit_s):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    stop = send


@pytest.mark.parametrize(("failing", "error", "message"), [
    ("base", UsageError("no such width"), "^the base: no such width"),
    ("head", Lost("failed", "SIGSEGV"), "^the head does not run: SIGSEGV"),
    ("head", Lost("timeout", "took longer"), "^the head took longer"),
])  # fmt: skip
def test_a_side_that_fails_is_named(tmp_path, monkeypatch, failing, error, message):
    monkeypatch.setattr(ab_sides, "_started", lambda name, *rest: Answering(error if name == failing else ({}, 1.0)))
    with pytest.raises(UsageError, match=message):
        SideProcesses(Side(tmp_path, "net.py"), Side(tmp_path, "net.py"), "cpu", 0)


def test_what_a_model_raises_has_its_line(tmp_path, monkeypatch):
    side = checkout(tmp_path / "base", model=f"raise ValueError('no such width')\n{MODEL}")
    monkeypatch.chdir(side.folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("torch.set_flush_denormal", lambda on: None)
    with pytest.raises(UsageError, match=r"no such width.*net\.py:1"):
        ab_sides.SideWorker()("build", "cpu", side, tmp_path / "head", 0)


def test_options_are_those_of_a_profile(tmp_path):
    with pytest.raises(UsageError, match="no option 'bach' of a timed model; did you mean batch"):
        ab_sides.SideWorker()("build", "cpu", Side(tmp_path, "net.py", {"bach": 3}), tmp_path, 0)


def test_the_same_place_of_the_own_checkout_comes_first(tmp_path, monkeypatch):
    base, head = tmp_path / "base", tmp_path / "head"
    for folder in (base / "src", head / "src", head / ".venv/lib"):
        folder.mkdir(parents=True)
    entries = [str(head / "src"), str(head / ".venv/lib"), "/usr/lib/python"]
    monkeypatch.setattr(sys, "path", list(entries))
    ab_sides._look_in(base, head)
    assert sys.path == [str(base), str(base / "src"), *entries]


def test_a_module_of_the_other_checkout_is_refused(tmp_path, monkeypatch):
    """What both checkouts have must come from the own one; a virtual environment in one of them is none of it."""
    base, head = tmp_path / "base", tmp_path / "head"
    for path in (base / "pkg.py", head / "pkg.py", head / ".venv/numpy.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    installed, stray = ModuleType("zz_installed"), ModuleType("zz_stray")
    installed.__file__, stray.__file__ = str(head / ".venv/numpy.py"), str(head / "pkg.py")
    monkeypatch.setitem(sys.modules, "zz_installed", installed)
    ab_sides._refuse_strays(base, head)
    monkeypatch.setitem(sys.modules, "zz_stray", stray)
    ab_sides._refuse_strays(head, base)
    with pytest.raises(UsageError, match=r"^zz_stray comes from the other side's checkout \(pkg.py\)"):
        ab_sides._refuse_strays(base, head)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        run_ab(Side(tmp_path / "none", "net.py"), Side(tmp_path, "net.py"), Rules(0.05))


def test_one_file_cannot_be_both_sides(tmp_path):
    side = Side(tmp_path, str(tmp_path / "net.py"))
    with pytest.raises(UsageError, match="the same file for both sides"):
        run_ab(side, side, Rules(0.05))


ENDLESS = """\
import os, pathlib, time, torch

class Net(torch.nn.Module):
    def forward(self, x):
        pathlib.Path("pid").write_text(str(os.getpid()))
        while True:
            pass

def model():
    return Net()

def inputs():
    return (torch.ones(1),)
"""

PARENT = """\
import sys
from pathlib import Path
from memwall.bench.ab import Rules, Side, run_ab
run_ab(Side(Path(sys.argv[1]), "models/net.py"), Side(Path(sys.argv[2]), "models/net.py"), Rules(0.05))
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_no_process_outlives_its_interrupted_parent(tmp_path, forks):
    """Both steps never end."""
    sides = [checkout(tmp_path / name, model=ENDLESS).folder for name in ("base", "head")]
    parent = forks.python(PARENT, *sides)
    pids = [int(wait_for(lambda f=folder: (f / "pid").read_text())) for folder in sides]
    parent.send_signal(signal.SIGINT)
    parent.communicate()
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
