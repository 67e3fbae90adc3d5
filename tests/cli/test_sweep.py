"""``memwall sweep``: what it prints, writes, keeps and refuses."""

import csv
import importlib.util
import json
import os
import random
import re
import shlex
import sys

import pytest

import memwall
from memwall.serving import read_model, serve
from memwall.serving.steps import EngineStep
from memwall.sweeping.kinds import kind_of
from tests.unit.commands import MODEL
from tests.unit.configs import SHORT_LLAMA, target_of

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One core, on which a sweep starts no processes unless it is asked to: each takes some seconds to import torch."""
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def mlp(tmp_path):
    (tmp_path / "mlp.py").write_text(MODEL, encoding="utf-8")
    return str(tmp_path / "mlp.py")


@pytest.fixture
def llama(tmp_path):
    return target_of(tmp_path / "llama", SHORT_LLAMA)


def record(run, *words):
    result = run("sweep", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_profile_at_each_point_is_that_of_the_profile_alone(mlp):
    vary = {"gpu": ["p100", "h100", "a100"], "batch": [1, 64, 4096], "policy": ["eager", "memwall"],
            "mode": ["inference", "training"], "cuda_graph": [False, True]}  # fmt: skip
    frame = memwall.sweep(mlp, vary, workers=0)
    assert len(frame) == 72 and (frame["error"] == "").all() and frame["id"].is_unique
    for place in random.Random(3).sample(range(72), 5):
        row = frame.iloc[place]
        options = {name: row[name] for name in ("gpu", "batch", "policy", "mode", "cuda_graph")}
        alone = memwall.profile(mlp, **{**options, "batch": int(row["batch"])})
        totals, schedule = alone.simulations[0].totals, alone.simulations[0]
        assert (row["time_s"], row["kernels"], row["flops"]) == (totals.time_s, totals.kernels, totals.flops), options
        assert (row["peak_memory"], row["mfu"]) == (totals.peak_memory_bytes, totals.mfu)
        assert row["fits"] == schedule.fits
        assert row["samples_per_s"] == pytest.approx(row["batch"] / totals.time_s)


def test_a_decode_step_is_that_of_the_server_alone(llama):
    vary = {"gpu": ["a100", "b200"], "tp": [1, 2, 4], "weights": ["model", "fp8"], "kv": ["model", "fp8"],
            "batch": [1, 3, 200], "context": [17, 4096]}  # fmt: skip
    frame = memwall.sweep(llama, vary, workers=0)
    ran = frame[frame["error"] == ""]
    assert len(frame) == 144 and len(ran) >= 72
    for place in random.Random(5).sample(range(len(ran)), 4):
        row = ran.iloc[place]
        model = read_model(llama, weights=row["weights"])
        batch, context = int(row["batch"]), int(row["context"])
        (point,) = serve(model, gpu=row["gpu"], tp=int(row["tp"]), kv=row["kv"], concurrency=1, prompt=16).points
        time_s = point.steps.step_s(batch, batch * context)
        assert row["time_s"] == time_s and row["limited_by"] == point.steps.wall(EngineStep(batch, batch * context))
        assert row["tokens_per_s_per_gpu"] == pytest.approx(batch / time_s / row["tp"])
        assert row["weights_bytes"] == point.steps.weights_bytes
        blocks = context // 16 + 1  # the next token has a place too
        assert row["kv_bytes"] == point.steps.kv_bytes(16 * blocks)
        held = point.steps.weights_bytes + point.steps.reserved_bytes + batch * row["kv_bytes"]
        assert row["fits"] == (held <= point.steps.capacity_bytes)
        assert row["largest_batch"] == (point.steps.capacity_bytes - held + batch * row["kv_bytes"]) // row["kv_bytes"]


def test_a_page_says_what_no_axis_does(run, llama):
    """1,024 tokens in the cache of a decode step, 64 clients of a server unless requests come at a rate."""
    assert ", context 1024\n" in run("sweep", llama, "--vary", "batch=1,2", "tp=1,2").out
    served = run("sweep", llama, "--of", "serve", "--vary", "gpu=h100,b200", "generate=8").out
    assert "fixed         generate 8, concurrency 64\n" in served
    assert (
        "fixed         generate 8, rate 3.0\n"
        in run("sweep", llama, "--of", "serve", "--vary", "gpu=h100,b200", "generate=8", "rate=3").out
    )


def test_a_server_at_each_point_is_that_of_serve_alone(llama):
    frame = memwall.sweep(llama, {"gpu": ["h100", "a100"], "concurrency": [1, 8], "prompt": [256]}, workers=0)
    for _, row in frame.iterrows():
        (point,) = serve(llama, gpu=row["gpu"], concurrency=int(row["concurrency"]), prompt=256).points
        assert row["ttft_p99_s"] == point.candidate.run.ttft.p99
        assert row["tokens_per_s"] == point.candidate.run.tokens_per_s


def best_and_alone(run, *words):
    """The best point of a sweep, and what its page's command for that point alone says of it."""
    found = record(run, *words)
    best = next(point for point in found["points"] if point["id"] == found["left"][0])
    (command,) = re.findall(r"This point alone:\n    memwall (.*)\n", run("sweep", *words).out)
    alone = run(*shlex.split(command), "--json")
    assert alone.code == 0, alone.err
    return best, json.loads(alone.out)


def test_the_command_of_the_best_point_reproduces_it(run, mlp):
    best, alone = best_and_alone(run, mlp, "--vary", "batch=1,64", "gpu=h100,a100", "mode=training", "cuda_graph=true",
                                 "policy=eager,memwall")  # fmt: skip
    (simulation,) = alone["simulations"]
    names = {"time_s": "time_s", "kernels": "kernels", "peak_memory": "peak_memory_bytes", "mfu": "mfu"}
    assert {name: best[name] for name in names} == {name: simulation["totals"][of] for name, of in names.items()}


def test_the_command_of_the_best_point_with_a_price_reproduces_it(run, mlp):
    best, alone = best_and_alone(run, mlp, "--vary", "batch=1,64", "gpu=h100,a100", "cuda_graph=true",
                                 "--best", "usd_per_step", "--price", "h100=2.5", "a100=1.1")  # fmt: skip
    (entry,) = alone["entries"]
    shared = best.keys() & entry.keys()
    assert shared >= {"time_s", "energy_j", "usd_per_step", "usd_per_million_samples"}
    assert {name: best[name] for name in shared} == {name: entry[name] for name in shared}


def test_the_command_of_the_best_point_of_a_server_reproduces_it(run, llama):
    best, alone = best_and_alone(run, llama, "--of", "serve", "--vary", "gpu=h100,a100", "rate=2,8", "prompt=200",
                                 "generate=16", "--price", "h100=2.5", "a100=1.1")  # fmt: skip
    (point,) = alone["points"]
    shared = best.keys() & point.keys()
    assert shared >= {"ttft_p99_s", "tokens_per_s", "usd_per_million_tokens"}
    assert {name: best[name] for name in shared} == {name: point[name] for name in shared}


def test_the_kind_is_the_first_that_has_what_is_named():
    assert kind_of(["batch", "gpu"]).name == "profile" == kind_of(["batch", "context", "mode"]).name
    assert kind_of(["batch", "context"]).name == "decode" == kind_of(["gpu", "batch"], None, ["largest_batch"]).name
    assert kind_of(["prompt", "gpu"]).name == "serve" == kind_of(["gpu", "concurrency"]).name
    assert kind_of(["gpu"], "decode").name == "decode"


def test_a_broken_point_is_a_row_and_the_others_go_on(run, llama):
    found = record(run, llama, "--vary", "tp=1,2,3", "batch=1,8", "gpu=h100")
    errors = [point["error"] for point in found["points"]]
    assert errors[:4] == [""] * 4
    assert errors[4] == errors[5] == "3 GPUs do not divide 32 heads; --tp 2 does"
    text = run("sweep", llama, "--vary", "tp=1,2,3", "batch=1,8", "gpu=h100").out
    assert "No result of 2 points: 3 GPUs do not divide 32 heads; --tp 2 does." in text


def test_where_best_and_top(run, llama, tmp_path):
    words = (llama, "--vary", "batch=1,2,4..64", "gpu=h100", "context=1024,8000", "--where", "fits",
             "tokens_per_s_per_user>1", "--best", "time_s", "--top", "2")  # fmt: skip
    result = run("sweep", *words, "-o", str(tmp_path / "s.csv"), "-o", str(tmp_path / "s.html"))
    assert result.code == 0, result.err
    assert "── The best by modeled time\n" in result.out and "and 12 more rows" in result.out
    rows = list(csv.DictReader((tmp_path / "s.csv").open(encoding="utf-8")))
    assert len(rows) == 14 and rows[0]["batch"] == "1" and float(rows[-1]["time_s"]) > float(rows[0]["time_s"])
    found = record(run, *words)
    times = {point["id"]: point["time_s"] for point in found["points"]}
    assert [times[key] for key in found["left"]] == sorted(times.values())
    assert found["schema"] == "memwall.sweep/1" and found["of"] == "decode"


def test_progress_says_the_best_of_the_points_that_satisfy_the_conditions(mlp):
    said: list[str] = []
    vary = {"gpu": ["v100", "h100"], "batch": [1, 8]}
    best = memwall.sweep(mlp, vary, where=["batch==1"], best="time_s", progress=said.append).iloc[0]
    assert best["batch"] == 1
    lead = f"the best so far: time_s = {best['time_s']:,.4g} with gpu={best['gpu']}, batch=1"
    assert said[-1].startswith("sweeping 4 of 4 points, ") and said[-1].endswith(lead)


def test_a_file_asks_the_same(run, llama, tmp_path):
    (tmp_path / "s.toml").write_text(
        f"""vary = ["gpu=h100", "batch=1,8"]
where = ["fits"]
best = "time_s"
[workloads.small]
target = {json.dumps(llama)}
vary = ["context=1024"]
[workloads.long]
target = {json.dumps(llama)}
vary = ["context=4096"]
""",
        encoding="utf-8",
    )
    of_file = record(run, str(tmp_path / "s.toml"), "--of", "decode")
    alone = record(run, llama, "--vary", "gpu=h100", "batch=1,8", "context=1024", "--of", "decode")
    assert [p["time_s"] for p in of_file["points"][:2]] == [p["time_s"] for p in alone["points"]]
    assert [p["context"] for p in of_file["points"]] == [1024, 1024, 4096, 4096]


@pytest.mark.parametrize(("words", "said"), [
    (("--vary", "bacth=1,2"), "no option 'bacth'; did you mean batch?"),
    (("--vary", "batch=1,x"), "--vary batch: 'x' is not a valid integer"),
    (("--vary", "gpu=h10"), "h10"),
    (("--vary", "tp=1", "weights=fp9"), "no scheme of weights 'fp9'; did you mean fp8?"),
    (("--vary", "policy=egaer"), "did you mean eager?"),
    (("--vary", "batch=1,2", "--where", "tmie_s<1"), "no quantity or option 'tmie_s'; did you mean time_s?"),
    (("--vary", "batch=1,2", "--where", "time_s<1ns"), "no point satisfies time_s<1ns: time_s goes from"),
    (("--vary", "batch=1,2", "--best", "tiem_s"), "did you mean time_s?"),
    (("--vary", "batch=1..3000", "seq=1..3000"), "9,000,000 points would take about"),
    (("--vary", "batch=4", "tp=1", "policy=eager"), "no kind of sweep has all of"),
    (("--vary", "batch=4", "--resume"), "--resume goes with --keep FOLDER"),
    (("--vary", "batch=4", "--engine", "ray"), "no engine of sweeps 'ray'; there is local, dask"),
    (("--vary", "batch=4", "--where", "fits<3"), "fits is true or false; say fits, or not fits"),
    (("--vary", "batch=4", "--best", "fits"), "no quantity or option 'fits'"),
    (("--vary", "batch=4", "--pareto", "time_s", "time_s"), "a Pareto front is of two or three quantities"),
    ((), "no axis given"),
])  # fmt: skip
def test_one_line_says_what_is_wrong(run, mlp, words, said):
    result = run("sweep", mlp, *words)
    assert result.code == 2 and said in result.error


@pytest.mark.parametrize(("line", "said"), [
    ('top = "x"', "top is 'x'; want a whole number above 0"), ("top = -3", "top is '-3'"),
    ("best = 3", "want the name of a quantity"), ("of = 3", "want the name of a kind of points"),
    ("price = 3", "want a table of GPUs"), ("workloads = 3", "want tables such as"),
    ("where = 3", "want a text or a list"),
])  # fmt: skip
def test_a_file_with_a_value_of_another_type(run, mlp, tmp_path, line, said):
    path = tmp_path / "s.toml"
    path.write_text(f'targets = ["{mlp}"]\nvary = ["batch=1"]\n{line}\n', encoding="utf-8")
    result = run("sweep", str(path))
    assert result.code == 2 and said in result.error


@pytest.mark.defect("19")
@pytest.mark.parametrize(
    ("vary", "price", "said"),
    [
        ("batch=1", "h100=0", "--price takes NAME=USD above 0, such as h100=2.5, not 'h100=0'"),
        ("tp=1", "b200=4", "a price of b200, which is not among the GPUs: h100-sxm"),
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_price_without_effect_is_refused(run, mlp, tmp_path, vary, price, said, is_file):
    """A price that no point uses was dropped without a word, and one in a file of a sweep had rules of its own."""
    path, axes = tmp_path / "s.toml", [vary, "gpu=h100"]
    path.write_text(f"targets = [{mlp!r}]\nvary = {axes}\nprice = {{ {price} }}\n", encoding="utf-8")
    result = run("sweep", str(path)) if is_file else run("sweep", mlp, "--vary", *axes, "--price", price)
    assert result.code == 2 and said in result.error


def test_finished_points_are_kept_and_not_evaluated_again(run, mlp, tmp_path, monkeypatch):
    keep = tmp_path / "points"
    words = (mlp, "--vary", "batch=1,2,4", "gpu=h100,a100", "--workers", "0", "--keep", str(keep))
    first = record(run, *words)
    parts = {path.name: path.read_bytes() for path in keep.iterdir()}
    assert "has the points of a sweep; add --resume" in run("sweep", *words).error
    lost = sorted(parts)[1]
    (keep / lost).unlink()
    monkeypatch.setattr("memwall.sweeping.kinds.profile", None)
    again = record(run, *words, "--resume")
    assert again["points"] == first["points"]
    assert {path.name: path.read_bytes() for path in keep.iterdir()} == parts


def test_the_cache_is_used_where_the_model_is_as_it_was_and_can_be_cleared(run, mlp, tmp_path, monkeypatch):
    calls = []
    traced = memwall.profile
    monkeypatch.setattr("memwall.trace_cache.profile", lambda *a, **k: calls.append(k) or traced(*a, **k))
    (tmp_path / "width.py").write_text("WIDTH = 64\n", encoding="utf-8")
    (tmp_path / "mlp.py").write_text(MODEL.replace("import torch", "import torch\nfrom width import WIDTH").replace(
        "Linear(64, 8)", "Linear(64, WIDTH)"), encoding="utf-8")  # fmt: skip
    first = memwall.sweep(mlp, {"batch": [4]}, workers=0)
    memwall.sweep(mlp, {"batch": [4], "gpu": ["a100"]}, workers=0)
    assert len(calls) == 1
    memwall.sweep(mlp, {"batch": [4]}, workers=0, cache=False)
    assert len(calls) == 2
    (tmp_path / "width.py").write_text("WIDTH = 4096\n", encoding="utf-8")  # imported by the target
    monkeypatch.delitem(sys.modules, "width", raising=False)
    wider = memwall.sweep(mlp, {"batch": [4]}, workers=0)
    assert len(calls) == 3 and wider["flops"][0] > 10 * first["flops"][0]
    assert "traces of sweeps: 1 file" in run("cache").out
    assert "deleted" in run("cache", "--clear").out and "traces of sweeps: 0 files" in run("cache").out


DIES = """
import os, pathlib, signal, torch

def model():
    return torch.nn.Linear(64, 64)

def inputs(batch=4):
    seen = pathlib.Path(__file__).with_name(f"died_{batch}")
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if batch == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return (torch.zeros(batch, 64),)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_worker_that_is_killed_loses_nothing(tmp_path, engine):
    if engine == "dask":
        pytest.importorskip("distributed", reason="Dask is not installed")
    (tmp_path / "dies.py").write_text(DIES, encoding="utf-8")
    vary = {"batch": [2, 3], "gpu": ["a100", "h100"]}
    frame = memwall.sweep(str(tmp_path / "dies.py"), vary, workers=2, keep=tmp_path / "kept", engine=engine)
    assert frame["id"].is_unique and len(frame) == 4
    assert frame[frame["batch"] != 3]["error"].tolist() == [""] * 2
    assert frame[frame["batch"] == 3]["error"].str.contains("killed by signal 9.*3 times|KilledWorker").all()
    alone = memwall.profile(str(tmp_path / "dies.py"), batch=2, gpu="h100").simulations[0]
    assert frame[(frame["batch"] == 2) & (frame["gpu"] == "h100-sxm")]["time_s"].item() == alone.totals.time_s


def test_as_many_processes_as_cores_make_the_same_rows_and_files(mlp, tmp_path, monkeypatch):
    """As this process alone; those of Dask are compared in test_sweep_dask.py."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    vary = {"batch": [1, 2, 4], "mode": ["inference", "training"], "gpu": ["a100", "h100"]}
    alone, several = (memwall.sweep(mlp, vary, keep=tmp_path / kept, **options)
                      for kept, options in (("alone", {"workers": 0}), ("several", {})))  # fmt: skip
    assert several.equals(alone)
    files = [{path.name: path.read_bytes() for path in (tmp_path / kept).iterdir()} for kept in ("alone", "several")]
    assert files[0] == files[1]


@pytest.mark.skipif(importlib.util.find_spec("distributed") is not None, reason="Dask is installed")
def test_without_dask_a_line_says_what_to_install(run, mlp):
    result = run("sweep", mlp, "--vary", "batch=1,2", "--engine", "dask")
    assert result.code == 3 and "pip install 'memwall-roofline[dask]'" in result.error
