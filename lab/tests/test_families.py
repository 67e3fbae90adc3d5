"""The campaign over small modules: what they are, the files that it writes, and that a cut run goes on."""

import csv
import random
import threading
import time
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import ClassVar

import pytest
import torch

import memwall
from benchmarks import families
from benchmarks.families import COLUMNS, Campaign, Timer, _Worker, main, pack, report
from benchmarks.family_modules import FAMILIES, MOST_ELEMENTS, Case, cases
from memwall import load_gpu
from memwall.bench.accuracy import score_files
from memwall.bench.accuracy.halves import module_in_fit_half
from memwall.bench.accuracy.refit import refit
from memwall.hardware.constants import StreamConstants
from memwall.perfmodel.families import calibrated, interval


@cache
def first_of(family: str) -> Case:
    """The first case of a family: the list takes seconds."""
    return next(case for case in cases() if case.family == family)


def test_there_are_five_hundred_modules_of_all_families():
    every = cases()
    assert len({case.name for case in every}) == len(every) >= 500
    assert {case.family for case in every} == set(FAMILIES)
    assert {case.family for case in every[:120]} == set(FAMILIES)  # a run that is cut has something of each
    assert {case.mode for case in every} == {"forward", "training"}
    for case in every:
        for shape in case.shapes:
            count = 1
            for size in shape:
                count *= size
            assert count <= MOST_ELEMENTS


@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_of_each_family_is_traced(family):
    case = first_of(family)
    profile = memwall.profile(case.workload(), gpu="h100-sxm", mode=case.mode)
    assert profile.workload.name == case.name
    assert not profile.coverage.unmodeled


def test_each_is_a_target_of_the_command_line():
    name = first_of("pool").name
    profile = memwall.profile(f"{families.ROOT}/lab/benchmarks/family_modules.py:{name}", mode="training")
    assert profile.workload.name == name


class Scripted:
    """A worker that gives times, and fails where it is told."""

    asked: ClassVar[list[tuple[str, str]]] = []
    fails = ""
    #: after so many answers the deadline has come
    most = 1000

    def __init__(self, kind):
        pass

    def ask(self, name, way, deadline):
        if len(self.asked) >= self.most:
            return None
        self.asked.append((name, way))
        return "took longer than its limit of 60 s" if name == self.fails else [0.001, 0.002, 0.003]

    def close(self):
        pass

    kill = close


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(families, "_Worker", Scripted)
    monkeypatch.setattr(Scripted, "asked", [])
    return Scripted


def rows_of(campaign):
    with campaign.table.open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_rows_are_read_back_and_a_second_run_times_what_is_missing(scripted, tmp_path, monkeypatch):
    wanted = [first_of("pool"), first_of("loss")]
    monkeypatch.setattr(scripted, "fails", wanted[1].name)
    campaign = Campaign("cuda", "h100-sxm", tmp_path, wanted)
    campaign.run(60.0)
    campaign.pack()
    rows = rows_of(campaign)
    assert tuple(rows[0]) == COLUMNS
    assert [row["way"] for row in rows] == list(families.WAYS)
    assert {row["module"] for row in rows} == {wanted[0].name}
    assert (rows[0]["mean_ms"], rows[0]["std_ms"], rows[0]["trials"]) == ("2", "1", "3")
    assert campaign.failed.read_text().splitlines()[0].startswith(f"{wanted[1].name} eager took")
    scored = score_files([campaign.table])
    assert [row.measured_s for row in scored.rows] == [0.002] * 3  # eager, in a queue, in a graph

    for path in (campaign.table, campaign.failed):
        with path.open("a") as lines:
            lines.write("h100-sxm,eager,half of a r")  # it was cut within a row
    scripted.asked.clear()
    Campaign("cuda", "h100-sxm", tmp_path, [*wanted, first_of("scan")]).run(60.0)
    assert {name for name, _ in scripted.asked} == {first_of("scan").name}
    assert len(rows_of(campaign)) == 2 * len(families.WAYS)


def test_a_module_that_cannot_be_compiled_is_not_tried_again(scripted, tmp_path, monkeypatch):
    wanted = [first_of("pool")]
    monkeypatch.setattr(scripted, "fails", wanted[0].name)
    Campaign("cuda", "h100-sxm", tmp_path, wanted).run(60.0)
    assert [way for _, way in scripted.asked] == ["eager", "eager_queue", "eager_graph", "compile"]


def test_what_the_deadline_cuts_is_timed_by_the_next_run(scripted, tmp_path, monkeypatch):
    wanted = [first_of("pool")]
    monkeypatch.setattr(scripted, "most", 3)
    first = Campaign("cuda", "h100-sxm", tmp_path, wanted)
    first.run(60.0)  # all but the compiled way
    assert [row["way"] for row in rows_of(first)] == ["eager", "eager_queue", "eager_graph"]
    assert not first.failed.exists()
    monkeypatch.setattr(scripted, "most", 1000)
    Campaign("cuda", "h100-sxm", tmp_path, wanted).run(60.0)
    assert [row["way"] for row in rows_of(first)] == list(families.WAYS)


def test_the_report_is_made_of_what_was_timed_elsewhere(scripted, tmp_path, capsys):
    wanted = [first_of("pool"), first_of("loss")]
    Campaign("cuda", "h100-sxm", tmp_path, wanted).run(60.0)
    assert main(["--part", "report", "--gpu", "h100-sxm", "--folder", str(tmp_path)]) == 0
    assert "8 rows in" in capsys.readouterr().out
    place = tmp_path / "profiles" / "measured" / "h100-sxm"
    assert (place / "families_records.tar.xz").is_file()
    assert (tmp_path / "reports" / "measured_families_h100-sxm.md").is_file()


def test_a_training_step_ends_with_its_backward_phase():
    case = next(case for case in cases() if case.mode == "training")
    phases = {op.phase for op in memwall.profile(case.workload(), gpu="h100-sxm", **families._options(case)).graph.ops}
    assert phases == {"forward", "backward"}


def test_a_table_whose_first_line_was_cut_begins_anew(tmp_path):
    campaign = Campaign("cuda", "h100-sxm", tmp_path, [])
    campaign.table.write_text("gpu,way,mo")
    assert not rows_of(Campaign("cuda", "h100-sxm", tmp_path, []))
    assert campaign.table.read_text() == f"{','.join(COLUMNS)}\n"


def test_an_interrupt_waits_for_no_compiler(tmp_path, monkeypatch):
    class Stuck(Scripted):
        def __init__(self, kind):
            self.ended = threading.Event()

        def ask(self, name, way, deadline):
            if way != "compile":
                return [0.001]
            if name == first_of("pool").name:
                raise KeyboardInterrupt
            assert self.ended.wait(30)
            return "the process was killed by signal 9"

        def kill(self):
            self.ended.set()

    monkeypatch.setattr(families, "_Worker", Stuck)
    monkeypatch.setattr(families.os, "cpu_count", lambda: 4)  # two compilers
    campaign = Campaign("cuda", "h100-sxm", tmp_path, [first_of("pool"), first_of("loss")])
    with pytest.raises(KeyboardInterrupt):
        campaign.run(600.0)
    assert not campaign.failed.exists()  # what was cut has not failed


def test_a_worker_gives_up_at_the_deadline_and_says_why_a_module_failed():
    with closing(_Worker("cpu")) as worker:
        assert worker.ask(first_of("pool").name, "eager", time.monotonic()) is None
        assert "KeyError" in worker.ask("no_such", "eager", time.monotonic() + 60)


@pytest.mark.parametrize("way", [way for way in families.WAYS if way != families.COMPILED])
def test_a_module_is_timed_on_this_cpu(way):
    name = next(case.name for case in cases() if case.expression == "nn.AvgPool2d(2, stride=2)")
    assert Timer()("cpu", name, way)


def test_constants_are_fitted_to_half_of_the_modules_and_scored_on_the_other(tmp_path, monkeypatch):
    """Times of a GPU whose streams are a quarter slower, 3 % of noise: the fit finds it, and only its half tells."""
    gpu = load_gpu("h100-sxm")
    slow = {name: 0.75 * gpu.utilization[f"stream.elementwise.{name}"] for name in ("read", "triad", "copy")}
    real = replace(gpu, utilization=gpu.utilization | {f"stream.elementwise.{name}": n for name, n in slow.items()})
    wanted = [case for case in cases() if case.family in ("elementwise", "upsample") and case.mode == "forward"]
    wanted = [case for case in wanted if "transpose" not in case.expression]  # L2 holds these
    known = {}

    def once(workload, **options):
        if workload.name not in known:
            known[workload.name] = memwall.profile(workload, **options)
        return known[workload.name]

    monkeypatch.setattr("benchmarks.families.profile", once)
    pack(tmp_path / "families_records.tar.xz", wanted, "h100-sxm")
    draw, table = random.Random(0), tmp_path / "families_times.csv"
    lines = [",".join(COLUMNS)]
    for case in wanted:
        profile = once(case.workload())
        took_ms = 1e3 * profile.schedule(real, "eager", launch="graph").totals.time_s * draw.uniform(0.97, 1.03)
        lines.append(f"h100-sxm,eager_graph,{case.name},{took_ms},0,{took_ms},{took_ms},20")
    table.write_text("\n".join(lines) + "\n")

    page = report(table, tmp_path / "fitted.toml")
    assert [section.heading for section in page.sections] == [
        "Kernels alone", "With the shipped constants", "Constants fitted to half of the modules",
        "The other half with these",
    ]  # fmt: skip
    families, every = page.sections[0].blocks
    unseen = [case for case in wanted if not module_in_fit_half(case.name)]
    counts = {line[0]: int(line[1]) for line in families.rows}
    assert counts == {
        "all": len(unseen), "upsampling": sum(case.family == "upsample" for case in unseen),
        "element-wise, losses, indices": sum(case.family == "elementwise" for case in unseen),
    }  # fmt: skip
    assert {line[0]: line[1] for line in every.rows} == {
        case.name: "fitted" if module_in_fit_half(case.name) else "held out" for case in wanted
    }
    assert all(float(line[-1]) < 0 for line in every.rows if line[0].startswith("elementwise"))  # modeled too fast
    found = {fit.target.table: fit for fit in refit(table).fits}["utilization.stream.elementwise"]
    assert found.before.mape > 0.1
    assert found.after.mape < 0.04
    fitted = load_gpu(tmp_path / "fitted.toml")
    assert fitted.utilization["stream.elementwise.copy"] == pytest.approx(slow["copy"], rel=0.05)
    held_out = [row for row in score_files([table], split=True).split.held_out if row.dataset == "families"]
    assert {row.shape for row in held_out} == {case.name for case in wanted if not module_in_fit_half(case.name)}


def test_kernels_that_loop_have_an_interval_of_their_own():
    """No data set fits them: what KernelBench's modules tell, on every GPU; an add has the interval of its GPU's
    rows."""
    x = torch.rand(64, 32, 28, 28)
    profile = memwall.profile(torch.nn.AvgPool2d(3), (x,), gpu="t4")
    (pooling,) = profile.simulations[0].kernels
    floor_s = load_gpu("t4").launch_overhead_s
    assert pooling.high_s == pytest.approx(1.56 * pooling.time_s, abs=floor_s)
    assert calibrated(StreamConstants, load_gpu("t4"), "looped") == "by architecture"
    assert calibrated(StreamConstants, load_gpu("t4"), "elementwise") == "yes"


def test_the_interval_of_kernels_without_rows_is_narrow_on_a_gpu_that_has_some():
    gpu = load_gpu("h100-sxm")
    assert interval(StreamConstants, gpu, "unmeasured")[:2] == (0.61, 2.34)
    assert calibrated(StreamConstants, gpu, "unmeasured") == "datasheet only"
    own = {"stream.unmeasured.interval_low": 0.9, "stream.unmeasured.interval_high": 1.2}
    fitted = replace(gpu, utilization=gpu.utilization | own, fitted_on=gpu.fitted_on | {"stream.unmeasured": gpu.name})
    assert interval(StreamConstants, fitted, "unmeasured")[:2] == (0.9, 1.2)
    assert calibrated(StreamConstants, fitted, "unmeasured") == "yes"


def test_the_archive_holds_a_profile_of_each(tmp_path):
    pack(tmp_path / "some_records.tar.xz", [first_of("pool")], "h100-sxm")
    name = first_of("pool").name
    (tmp_path / "some_times.csv").write_text(f"{','.join(COLUMNS)}\nh100-sxm,eager,{name},1,0,1,1,3\n")
    (scored,) = score_files([tmp_path / "some_times.csv"]).rows
    assert scored.measured_s == 0.001


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["--only", "nothing"], 2, "no module named nothing"), (["--device", "cuda"], 3, "no CUDA device here")],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, code, said, capsys, tmp_path):
    assert main([*arguments, "--folder", str(tmp_path)]) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
