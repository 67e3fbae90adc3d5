"""``memwall profile --parallel``: a training step on many GPUs, from the command line and from Python."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
from torch import nn

import memwall
from memwall.core.errors import UsageError
from tests.unit.report.test_report_chrome import faults

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def model():
    return nn.Sequential(nn.Linear(64, 64), nn.Sequential(*(Block() for _ in range(4)))).bfloat16()

def inputs(batch=2):
    return (torch.randn(batch, 16, 64, dtype=torch.bfloat16),)
"""


@pytest.fixture
def profile(run, tmp_path):
    """``profile(*words)``: what the command left behind."""
    path = tmp_path / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    return lambda *words: run("profile", path, "-q", *words)


def test_the_page(profile):
    result = profile("--parallel", "tp=2,sp,pp=2,dp=4,microbatches=8", "--cluster", "dgx-h100")
    assert result.code == 0, result.err
    for text in ("16 of NVIDIA DGX H100", "bubble of the pipeline", "Memory of a GPU by stage", "It fits in the"):
        assert text in result.out


def test_the_record(profile):
    words = ("--parallel", "pp=2,dp=4,microbatches=8", "--cluster", "dgx-h100", "--batch", "3", "--world", "8")
    found = json.loads(profile(*words, "--json").out)
    assert (found["schema"], found["world"], found["samples"]) == ("memwall.training.run/1", 8, 3 * 8 * 4)
    # six FLOPs a parameter and token for each product
    assert found["model_flops"] == 6 * (3 * 16 * 8 * 4) * (64 * 64 + 4 * 2 * 64 * 256) - 2 * (3 * 16 * 8 * 4) * 64 * 64
    assert sum(found["parts_s"].values()) == pytest.approx(found["time_s"])
    assert [stage["held"] for stage in found["stages"]] == [2, 1]


@pytest.mark.defect("10")
def test_what_would_help_is_what_its_option_shows(profile):
    """The page of a layout knew other layouts and a faster network as what would help: fused kernels, the host and the
    GPU were left out."""
    words = ("--cluster", "dgx-h100", "--json", "--parallel")
    layout = "pp=2,dp=4,microbatches=8"
    found = json.loads(profile(*words, layout).out)
    saved = {change["options"]: change["saved_s"] for change in found["changes"]}
    *done, (last, _) = saved.items()
    assert last == "--policy ideal"  # a bound, which no compiler reaches
    assert done == sorted(done, key=lambda change: -change[1])
    changes = [option for option in saved if option.startswith("--what-if")]
    again = json.loads(profile(*words, layout, *shlex.split(" ".join(changes))).out)
    shown = dict(zip(changes, (found["time_s"] - row["time_s"] for row in again["what_if"]), strict=True))
    for option in saved.keys() - shown.keys():
        asked = (layout, *shlex.split(option)) if option.startswith("--policy") else (option.split()[1],)
        shown[option] = found["time_s"] - json.loads(profile(*words, *asked).out)["time_s"]
    assert shown == saved
    largest = max(changes, key=saved.__getitem__)  # tiny layers: the CPU issues them more slowly than they run
    assert (largest, found["bound_by"]) == ("--what-if dispatch_s/=2", "host")
    assert "Host-bound: twice the host's speed would save" in " ".join(profile("--parallel", layout).out.split())


@pytest.mark.defect("10")
def test_one_stage_has_no_schedule_to_change(profile):
    """Schedules of a pipeline were named as what would help where there is one stage."""
    found = json.loads(profile("--parallel", "dp=4,microbatches=8", "--cluster", "dgx-h100", "--json").out)
    assert found["changes"] and "schedule" not in json.dumps(found["changes"])


@pytest.mark.defect("7")
def test_how_often_gradients_are_summed(tmp_path):
    """Gradients of which each replica keeps a share were said to be summed once a step, whatever the microbatches."""
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    found = memwall.parallel(str(tmp_path / "model.py"), layout="dp=4", cluster="dgx-h100")
    layer = 4 * (2 * 64 + 2 * 64 * 256 + 256 + 64)  # four bytes each, of four layers
    for shared, sums in (("optimizer", 1), ("grad", 8), ("full", 8)):
        assert found.on(f"dp=4,fsdp={shared},microbatches=8").messages()["reduce_scatter", layer, 4] == 4 * sums


@pytest.mark.defect("5")
def test_utilization_is_of_what_the_cast_multiplies_with(run, tmp_path):
    """The peak of a layout was looked up by the option's name of a dtype, which no pipe has, and float32's taken."""
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace(".bfloat16()", "").replace(", dtype=torch.bfloat16", ""), encoding="utf-8")
    words = ("--parallel", "dp=8", "--cluster", "dgx-h100", "--autocast", "bf16", "--json")
    found = json.loads(run("profile", path, "-q", *words).out)
    used = found["model_flops"] / found["time_s"] / 8 / 989.4e12  # the H100's datasheet
    assert (found["mfu"], found["hfu"]) == pytest.approx((used, used))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--parallel", "dp=8", "--world", "16"), "dp=8 needs 8 GPUs, not 16: dp=16 would"),
        (("--parallel", "tp=3"), "tp=3 does not divide the 256 of"),
        (("--parallel", "dp=2", "--mode", "inference"), "--parallel is of a training step"),
        (("--parallel", "dp=2", "--gpu", "h100"), "--gpu has no effect with --parallel"),
    ],
)
def test_bad_input_gets_one_line(profile, words, said):
    result = profile(*words)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.strip().count("\n") == 0


def test_from_python():
    """Two GPUs do twice the work of one; a module without a list of layers has nothing to divide by."""
    layers = nn.Sequential(*(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(4)))
    one, two = (memwall.parallel(layers, (torch.ones(4, 64),), layout=f"dp={n}") for n in (1, 2))
    assert (one.samples, two.samples) == (4, 8)
    assert two.step.model_flops == 2 * one.step.model_flops
    assert two.step.time_s >= one.step.time_s
    assert one.options["state"] == "float32"
    with pytest.raises(memwall.MemwallError, match="no list of layers"):
        memwall.parallel(nn.Linear(64, 64), (torch.ones(4, 64),), layout="dp=2")


def test_more_gpus(profile, tmp_path):
    """Twice the GPUs do the work of a step in half of the time if replicas wait for nothing, and no faster."""
    page = tmp_path / "page.html"
    words = ("--parallel", "pp=2,dp=2,microbatches=8", "--cluster", "dgx-h100", "--scale", "64")
    result = profile(*words, "-o", page)
    assert result.code == 0, result.err
    assert "More GPUs" in result.out
    assert "speed on more GPUs" in page.read_text(encoding="utf-8")
    rows = json.loads(profile(*words, "--json").out)["scaling"]
    assert [row["world"] for row in rows] == [4, 8, 16, 32, 64]
    assert [row["strong_layout"] for row in rows[:2]] == ["pp=2,dp=2,microbatches=8", "pp=2,dp=4,microbatches=4"]
    assert rows[4]["strong_time_s"] is None  # half a microbatch
    assert all(row["weak_time_s"] >= rows[0]["weak_time_s"] for row in rows)


def test_the_largest_microbatch_fits_and_one_more_sample_does_not(tmp_path):
    """What one sample more would take is known from another trace, with that sample."""
    path = tmp_path / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    found = memwall.parallel(str(path), layout="pp=2,dp=2,microbatches=4", batch=2)
    small = replace(found, gpu=replace(found.gpu, dram_bytes=2_000_000_000))
    most = small.largest_microbatch
    for batch, fits in ((most, True), (most + 1, False)):
        again = memwall.parallel(str(path), layout="pp=2,dp=2,microbatches=4", batch=batch)
        assert replace(again, gpu=small.gpu).fits() is fits
        assert replace(again, gpu=small.gpu).largest_microbatch == most
    assert replace(found, gpu=replace(found.gpu, dram_bytes=1_000_000)).largest_microbatch == 0


def test_the_peak_is_named(profile):
    """Stage 0 of two holds two microbatches in the backward pass of the second of its layers, where the activation's
    gradient is read and written."""
    out = " ".join(profile("--parallel", "pp=2,dp=2,microbatches=4", "--cluster", "dgx-h100").out.split())
    assert "The peak is in stage 0, in the backward pass at threshold_backward of 1.1, with 2 microbatches held." in out
    assert "The largest microbatch that fits has" in out


def test_the_timeline_of_a_layout(profile, tmp_path):
    """Two rows for each of two stages: F and B of each of 4 microbatches, and what they hand on; then the rest."""
    path = tmp_path / "step.trace.json"
    words = ("--parallel", "pp=2,dp=2,microbatches=4", "--cluster", "dgx-h100")
    assert profile(*words, "-o", path).code == 0
    text = path.read_text(encoding="utf-8")
    assert faults(text) == []
    events = json.loads(text)["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [*rows.values()] == ["stage 0", "stage 0: sends", "stage 1", "stage 1: sends", "all"]
    slices = [(rows[e["tid"]], e["cat"], e["dur"]) for e in events if e["ph"] == "X"]
    assert [sum(row == name for row, _, _ in slices) for name in rows.values()] == [8, 4, 8, 4, 2]
    record = json.loads(profile(*words, "--json").out)
    busy_us = [sum(dur for row, _, dur in slices if row == f"stage {k}") for k in (0, 1)]
    assert busy_us == pytest.approx([1e6 * stage["busy_s"] for stage in record["stages"]], rel=1e-3)
    end_us = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert end_us == pytest.approx(1e6 * record["time_s"], rel=1e-3)


def test_scale_is_of_a_layout_and_not_of_fewer_gpus(profile):
    assert "--scale has no effect without --parallel" in profile("--scale", "64").err
    words = ("--parallel", "dp=16", "--cluster", "dgx-h100", "--scale", "8")
    assert "dp=16 has 16 GPUs already, more than 8" in profile(*words).err


def test_another_layout_or_cluster_from_the_same_trace(tmp_path):
    """What is not traced again is what a trace would give, bit by bit."""
    path = tmp_path / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    found = memwall.parallel(str(path), layout="tp=2,dp=4,microbatches=4", cluster="dgx-h100")
    for layout, cluster in (("tp=2,pp=2,dp=2,microbatches=8", None), ("tp=2,dp=4,microbatches=4", "dgx-a100-80gb")):
        anew = memwall.parallel(str(path), layout=layout, cluster=cluster or "dgx-h100")
        assert found.on(layout, cluster).step == anew.step
    with pytest.raises(UsageError, match="a rank of tp=2 was traced"):
        found.on("tp=4,dp=2")


EXPERTS = """
import torch
from torch import nn

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = (nn.Parameter(torch.randn(8, 64, 64, dtype=torch.bfloat16)) for _ in range(2))

    def forward(self, x, ends):
        return torch._grouped_mm(torch._grouped_mm(x, self.up, offs=ends), self.down, offs=ends)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.experts = nn.LayerNorm(64, dtype=torch.bfloat16), Experts()

    def forward(self, x):
        ends = torch.arange(1, 9, dtype=torch.int32) * 4
        return x + self.experts(self.norm(x).flatten(0, 1), ends).view_as(x)

def model():
    return nn.Sequential(nn.Sequential(*(Block() for _ in range(4))), nn.LayerNorm(64, dtype=torch.bfloat16))

def inputs():
    return (torch.randn(2, 16, 64, dtype=torch.bfloat16),)
"""


def test_experts_on_other_ranks(run, tmp_path):
    """Each of eight GPUs has an expert of every layer: their gradients have nobody to be summed with."""
    path = tmp_path / "model.py"
    path.write_text(EXPERTS, encoding="utf-8")
    words = ("--parallel", "dp=8,ep=8", "--cluster", "dgx-h100", "--json")
    found = json.loads(run("profile", path, "-q", *words).out)
    assert found["stages"][0]["weights_bytes"] == 2 * (4 * (2 * 64 + 2 * 64 * 64) + 2 * 64)
    assert found["parts_s"]["communication within layers"] > 0
