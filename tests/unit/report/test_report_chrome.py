"""The Chrome trace, against hand arithmetic and the rules of the format."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from memwall.core.graph import Graph
from memwall.fusion import plan_graph
from memwall.hardware.gpu import Cpu
from memwall.record.profile import Profile
from memwall.report import render
from memwall.report.trace_events import timeline
from memwall.simulate.memory import MemoryPeak, memory_levels, memory_peak
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import HOSTILE, HOSTILE_MODULE, NEW, OLD, Builder, make_gpu, make_profile
from tests.unit.timeline_fixture import POLICIES, SLOW_CPU, several, with_source


def events_of(profile, phase, **wanted):
    """The events of a kind whose keys have some values."""
    trace = json.loads(render(profile, "trace.json"))
    return [e for e in trace["traceEvents"] if e["ph"] == phase and all(e.get(k) == v for k, v in wanted.items())]


def rows_of(profile):
    """(process, row) -> its slices."""
    events = json.loads(render(profile, "trace.json"))["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    rows = {
        (e["pid"], e["tid"]): (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"
    }
    found = {name: [] for name in rows.values()}
    for e in events:
        if e["ph"] == "X":
            found[rows[e["pid"], e["tid"]]].append(e)
    return found


def ns(us):
    return round(us * 1000)


#: phase -> keys that the Trace Event Format wants of such an event
REQUIRED = {
    "M": ("pid", "name", "args"), "X": ("pid", "tid", "name", "ts", "dur"), "C": ("pid", "name", "ts", "args"),
    "s": ("pid", "tid", "name", "cat", "id", "ts"), "f": ("pid", "tid", "name", "cat", "id", "ts", "bp"),
}  # fmt: skip


def disorder(slices, nests):
    """What is wrong with the (start, end) of a row; where it nests, a slice may hold others whole."""
    found, around = [], []
    for i, (start, end) in enumerate(slices):
        if start < 0 or end < start:
            found.append("has a negative time")
        if i and start < slices[i - 1][0]:
            found.append("goes back")
        while around and around[-1] <= start:
            around.pop()
        if around and (not nests or end > around[-1]):
            found.append("overlaps")
        around.append(end)
    return found


def faults(text):
    """What is wrong with a trace, by the rules of the format and of our rows; nothing if the list is empty."""
    trace = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    events = trace["traceEvents"]
    found = [f"{e['ph']} has no {key}" for e in events for key in REQUIRED.get(e["ph"], ("?",)) if key not in e]
    rows, counters, arrows = {}, {}, {}
    for e in events:
        if e["ph"] == "X":
            rows.setdefault((e["pid"], e["tid"]), []).append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])))
        elif e["ph"] == "C":
            counters.setdefault((e["pid"], e["name"]), []).append(e)
        elif e["ph"] in "sf":
            arrows.setdefault(e["id"], []).append(e)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found += [f"row {row} has no name" for row in rows if row not in names]
    for row, slices in rows.items():
        found += [f"row {row} {words}" for words in disorder(slices, nests="modules" in names.get(row, ""))]
    for key, points in counters.items():
        times = [ns(e["ts"]) for e in points]
        found += [f"counter {key} goes back" for a, b in pairwise(times) if b < a]
        found += [f"counter {key} changes its series" for e in points if set(e["args"]) != set(points[0]["args"])]
        found += [f"counter {key} is no count" for e in points for n in e["args"].values() if type(n) is not int]
    for number, ends in arrows.items():
        if [e["ph"] for e in ends] != ["s", "f"]:
            found.append(f"arrow {number} has no two ends")
            continue
        tail, head = ends
        for e in ends:
            if not any(a <= ns(e["ts"]) < b for a, b in rows.get((e["pid"], e["tid"]), ())):
                found.append(f"arrow {number} ends in no slice")
        if tail["ts"] > head["ts"]:
            found.append(f"arrow {number} points back")
    return found


def test_the_rules_are_kept():
    assert faults(render(several(), "trace.json")) == []


@pytest.mark.parametrize(("phase", "change", "fault"), [
    ("X", lambda e: e.update(dur=e["dur"] + 0.001), "overlaps"),
    ("X", lambda e: e.update(dur=-1), "negative"),
    ("X", lambda e: e.update(ts=1e6), "goes back"),
    ("C", lambda e: e["args"].update(more=1), "series"),
    ("f", lambda e: e.update(ts=0.0), "points back"),
    ("s", lambda e: e.update(id=0), "no two ends"),
    ("M", lambda e: e.update(name="x"), "no name"),
])  # fmt: skip
def test_the_rules_see_a_fault(phase, change, fault):
    trace = json.loads(render(several(), "trace.json"))
    spoiled = [e for e in trace["traceEvents"] if e["ph"] == phase and (phase != "M" or e["name"] == "thread_name")]
    change(spoiled[-1 if phase == "f" else 0])
    assert any(fault in words for words in faults(json.dumps(trace)))


def test_a_late_launch_is_a_gap():
    rows = rows_of(make_profile(gpus=(SLOW_CPU,)))
    launches, kernels, _ = rows.values()
    assert [ns(e["dur"]) for e in launches] == [30_000] * 12
    assert [ns(e["ts"]) for e in launches[:3]] == [0, 30_000, 60_000]
    # the optimizer of the step before was launched last: 20 tiles of 2 MiB at 1 TB/s and 2 launches, 43.943 us; each
    # product of 2^31 FLOP takes 21.475 us at 100 TFLOP/s and 1 us of launch
    assert (ns(kernels[0]["ts"]), ns(kernels[0]["dur"])) == (43_943, 22_475)
    # a GELU moves 2 x 2 MiB at 1 TB/s: 4.194 us and 1 us of launch; then the GPU waits until 90 us
    assert (ns(kernels[1]["ts"]), ns(kernels[1]["dur"])) == (66_418, 5_194)
    assert ns(kernels[2]["ts"]) == 90_000
    assert [e["name"] for e in kernels[:3]] == ["mm", "gelu", "native_layer_norm"]


def test_a_cpu_that_is_ahead_leaves_no_gap():
    profile = make_profile(gpus=(make_gpu("fast_cpu", dispatch_s=1e-6),))
    _, kernels, _ = rows_of(profile).values()
    assert ns(kernels[0]["ts"]) == 1_000
    for before, after in pairwise(kernels):
        assert ns(before["ts"]) + ns(before["dur"]) == ns(after["ts"])


@pytest.mark.parametrize("gpu", [OLD, SLOW_CPU])
def test_the_last_kernel_ends_with_the_total(gpu):
    profile = several((gpu,))
    for schedule in profile.simulations:
        times = timeline(profile, schedule)
        begin_s = times.runs[0].start_ns / 1e9 - schedule.kernels[0].wait_s
        assert times.runs[-1].end_ns == pytest.approx((begin_s + schedule.totals.time_s) * 1e9, abs=2)
        assert sum(run.end_ns - run.start_ns for run in times.runs) <= times.runs[-1].end_ns


def test_a_cpu_that_issues_nothing_has_no_row():
    profile = make_profile(gpus=(OLD,))  # a captured graph: no dispatch
    assert [row for _, row in rows_of(profile)] == ["eager: GPU", "eager: modules"]
    assert events_of(profile, "s") == []


def test_a_cpu_runs_kernels():
    machine = make_gpu("machine", cpu=Cpu(cache_bytes={"l2": 1_000_000}, cache_bytes_per_s={"l2": 100e9}))
    profile = several((machine,))
    rows = [row for _, row in rows_of(profile)]
    assert rows == [f"{policy}: {row}" for policy in POLICIES for row in ("kernels", "modules")]
    assert faults(render(profile, "trace.json")) == []


def test_one_process_a_gpu_and_three_rows_a_policy():
    rows = list(rows_of(several()))
    assert rows[:3] == [("slow_cpu (modeled)", f"eager: {row}") for row in ("CPU launches", "GPU", "modules")]
    assert {process for process, _ in rows} == {"slow_cpu (modeled)", "new (modeled)"}
    assert [row for process, row in rows if process == "new (modeled)"] == [
        f"{policy}: {row}" for policy in POLICIES for row in ("GPU", "modules")
    ]


def test_no_two_processes_or_rows_have_one_number():
    named = events_of(several(), "M", name="process_name") + events_of(several(), "M", name="thread_name")
    numbers = [e.get("tid", e["pid"]) for e in named]
    assert len(numbers) == len(set(numbers)) == 2 + 3 * 3 + 3 * 2


def test_arrows_lead_from_each_launch_to_its_kernel():
    profile = make_profile(gpus=(SLOW_CPU,))
    launches, kernels, _ = rows_of(profile).values()
    tails, heads = events_of(profile, "s"), events_of(profile, "f")
    assert [(e["tid"], e["ts"]) for e in tails] == [(e["tid"], e["ts"]) for e in launches]
    assert [(e["tid"], e["ts"]) for e in heads] == [(e["tid"], e["ts"]) for e in kernels]
    assert [e["id"] for e in tails] == [e["id"] for e in heads]


def test_a_kernel_says_where_it_comes_from_and_what_it_costs():
    profile = with_source(make_profile(gpus=(SLOW_CPU,)), {0: "net.py:12"})
    _, kernels, _ = rows_of(profile).values()
    assert kernels[0]["args"] == {
        "module": "blocks.0.proj", "source": "net.py:12", "class": "contraction", "phase": "forward", "launches": 1,
        "flops": 2**31, "read_bytes": 2**22, "write_bytes": 2**21,
        "bound_us": 21.4748, "compute_us": 21.4748, "memory_us": 6.2915,  # 3 x 2 MiB at 1 TB/s
        "latency_us": 0.0, "overhead_us": 1.0, "limited_by": "compute",  # a launch, issued while the step before it ran
    }  # fmt: skip
    assert "source" not in kernels[1]["args"]


def test_a_fused_kernel_names_three_lines():
    profile = make_profile(gpus=(OLD,))
    lines = {op.id: f"net.py:{10 + op.id}" for op in profile.graph.ops}
    profile = with_source(profile, lines)
    kernel = replace(profile.simulations[0].kernels[0], op_ids=(0, 1, 2, 3, 4))
    schedule = replace(profile.simulations[0], kernels=(kernel,), plan=None, policy="inductor")
    (slice_,) = events_of(profile.with_simulations((schedule,)), "X", cat="contraction")
    assert slice_["args"]["source"] == "net.py:10, net.py:11, net.py:12, 2 more"


def test_modules_nest_in_phases():
    profile = make_profile(gpus=(SLOW_CPU,))
    modules = rows_of(profile)["slow_cpu (modeled)", "eager: modules"]
    names = [(e["cat"], e["name"]) for e in modules]
    assert names[:5] == [
        ("phase", "forward"), ("module", "blocks.0"), ("module", "proj"), ("module", "act"), ("module", "norm"),
    ]  # fmt: skip
    assert [name for kind, name in names if kind == "phase"] == ["forward", "backward", "optimizer"]
    forward, block = modules[0], modules[1]
    # from the start of the first product, as the step before ends (43.943 us), to the end of the layer norm, issued at
    # 90 us: it moves 2 x 2 MiB and the 2 MiB of a second pass in 6.291 us, and 1 us of launch
    assert (ns(block["ts"]), ns(block["ts"] + block["dur"])) == (43_943, 97_291)
    assert ns(forward["ts"]) == 43_943


def test_names_arrive_whole():
    profile = make_profile(name='<b>"x"\u2028')
    text = render(profile, "trace.json")
    assert "\x1b" not in text
    assert text.isascii()
    trace = json.loads(text)
    assert trace["otherData"]["workload"] == '<b>"x"\u2028'
    kernel = next(e for e in trace["traceEvents"] if e["name"] == HOSTILE)
    assert kernel["args"]["module"] == HOSTILE_MODULE


def three_ops(gpu):
    """Input 100 bytes and weight 1000 -> y 200 -> z 300, and from z the gradient of 1000."""
    b = Builder()
    x, weight = b.value((100,), "input", "int8"), b.value((1000,), "parameter", "int8")
    y, z = b.value((200,), dtype="int8"), b.value((300,), dtype="int8")
    gradient = b.value((1000,), "gradient", "int8")
    b.op("aten.a", "elementwise", "forward", "net", (x, weight), (y,))
    b.op("aten.b", "elementwise", "forward", "net", (y,), (z,))
    b.op("aten.c", "elementwise", "forward", "net", (z, weight), (gradient,))
    graph = Graph(tuple(b.values), tuple(b.storages), tuple(b.ops), (x,), (weight,), ())
    profile = replace(make_profile(gpus=()), graphs=(graph,), costs=(tuple(b.costs),))
    return profile.with_simulations((simulate(graph, plan_graph("eager", graph, b.costs, gpu), gpu),))


def totals_of(profile):
    return [(e["ts"], e["args"]["total"]) for e in events_of(profile, "C", name="eager: memory")]


def test_memory_by_hand():
    profile = three_ops(make_gpu(dispatch_s=10e-6))
    graph, plan = profile.graph, profile.simulations[0].plan
    assert list(memory_levels(graph, plan)) == [
        (1000, 0, 0, 0, 0, 100, 0, 0), (1000, 0, 0, 200, 0, 100, 0, 0), (1000, 0, 0, 200, 0, 100, 0, 0),
        (1000, 0, 0, 500, 0, 100, 0, 0), (1000, 0, 0, 300, 0, 100, 0, 0), (1000, 1000, 0, 300, 0, 100, 0, 0),
        (1000, 1000, 0, 0, 0, 100, 0, 0),
    ]  # fmt: skip
    assert memory_peak(graph, plan) == MemoryPeak(1000, 1000, 0, 300, inputs=100, kernel=2)
    ends = [round(e["ts"] + e["dur"], 3) for e in events_of(profile, "X", cat="elementwise")]
    # kernels start at 10, 20 and 30 us; y dies as b ends, z as c ends
    assert totals_of(profile) == [
        (0, 1100), (10, 1300), (20, 1600), (ends[1], 1400), (30, 2400), (ends[2], 2100),
    ]  # fmt: skip
    roles = events_of(profile, "C", name="eager: memory:")
    assert [sum(e["args"].values()) for e in roles] == [total for _, total in totals_of(profile)]
    assert roles[-2]["args"] == {"parameters": 1000, "gradients": 1000, "activations": 300, "inputs": 100}


def test_what_dies_as_the_next_kernel_starts_is_one_step():
    profile = three_ops(OLD)
    starts = [e["ts"] for e in events_of(profile, "X", cat="elementwise")]
    end = events_of(profile, "X", cat="phase")[0]["dur"]
    assert totals_of(profile) == [(0, 1300), (starts[1], 1600), (starts[2], 2400), (end, 2100)]


def test_the_last_phase_and_module_last_to_the_end():
    profile = three_ops(OLD)
    total_ns = round(profile.simulations[0].totals.time_s * 1e9)
    scopes = rows_of(profile)["old (modeled)", "eager: modules"]
    assert [(e["name"], e["ts"], ns(e["dur"])) for e in scopes] == [("forward", 0, total_ns), ("net", 0, total_ns)]


@pytest.mark.parametrize("gpu", [OLD, SLOW_CPU])
def test_the_most_alive_is_the_peak(gpu):
    profile = several((gpu,))
    for schedule in profile.simulations:
        points = events_of(profile, "C", name=f"{schedule.policy}: memory")
        assert max(e["args"]["total"] for e in points) == schedule.totals.peak_memory_bytes
        roles = events_of(profile, "C", name=f"{schedule.policy}: memory:")
        assert max(sum(e["args"].values()) for e in roles) == schedule.totals.peak_memory_bytes


def test_a_peak_that_another_version_counted_is_not_drawn_over():
    profile = make_profile(gpus=(OLD,))
    (schedule,) = profile.simulations
    other = replace(schedule, totals=replace(schedule.totals, peak_memory_bytes=1))
    assert events_of(profile.with_simulations((other,)), "C") == []


def test_a_saved_profile_gives_the_same_trace():
    profile = several()
    saved = Profile.from_dict(json.loads(profile.to_json()))
    assert all(schedule.plan is None for schedule in saved.simulations)
    assert render(saved, "trace.json") == render(profile, "trace.json")


def test_a_compilers_saved_plan_leaves_out_its_memory_alone():
    profile = make_profile(gpus=(SLOW_CPU,))
    schedule = replace(profile.simulations[0], policy="inductor", plan=None)
    rows = rows_of(profile.with_simulations((schedule,)))
    assert [len(slices) for slices in rows.values()][:2] == [12, 12]
    assert events_of(profile.with_simulations((schedule,)), "C") == []


def test_a_record_whose_waits_do_not_fit_still_has_order():
    """Kernels of an older memwall that charged no wait: none starts before its launch."""
    record = json.loads(make_profile(gpus=(SLOW_CPU,)).to_json())
    del record["simulations"][0]["launch"], record["gpus"]["slow_cpu"]["host"]
    record["gpus"]["slow_cpu"]["dispatch_s"] = 30e-6
    for kernel in record["simulations"][0]["kernels"]:
        kernel["overhead_s"] = 1e-6
        kernel.pop("wait_s", None)
    launches, runs, _ = rows_of(Profile.from_dict(record)).values()
    assert all(ns(launch["ts"]) <= ns(run["ts"]) for launch, run in zip(launches, runs, strict=True))
    assert ns(runs[0]["dur"]) == 21_475  # its arithmetic: the overhead is taken for a wait
    for before, after in pairwise(runs):
        assert ns(before["ts"]) + ns(before["dur"]) <= ns(after["ts"])


def test_several_graphs():
    one, two = make_profile(gpus=(OLD,)), make_profile(gpus=(NEW,), blocks=3)
    both = replace(one, graphs=(one.graph, two.graph), costs=(one.costs[0], two.costs[0]))
    (second,) = two.simulations
    both = both.with_simulations((*one.simulations, replace(second, graph=1)))
    rows = rows_of(both)
    assert [len(rows[f"{name} (modeled)", "eager: GPU"]) for name in ("old", "new")] == [12, 16]
    assert faults(render(both, "trace.json")) == []


def test_nothing_depends_on_hash_order():
    code = (
        "import hashlib; from memwall.report import render; from tests.unit.timeline_fixture import several;"
        "print(hashlib.sha256(render(several(), 'trace.json').encode()).hexdigest())"
    )
    here = hashlib.sha256(render(several(), "trace.json").encode()).hexdigest()
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True,
                          env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, text=True)  # fmt: skip
    assert done.stdout.strip() == here


def test_a_thousand_kernels_stay_small():
    text = render(make_profile(gpus=(SLOW_CPU,), blocks=250), "trace.json")
    assert len(events := json.loads(text)["traceEvents"]) > 5_000
    assert sum(e["ph"] == "X" and e["tid"] == 3 for e in events) == 1_004
    assert len(text) < 1_500_000
