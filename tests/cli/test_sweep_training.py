"""Training layouts as axes of ``memwall sweep``; points of programs that send to other GPUs."""

import json
import os
import random

import pytest

import memwall
from tests.cli.test_layouts import MODEL

RANKED = """
import torch
import torch.distributed as dist

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, x):
        y = self.linear(x)
        dist.all_reduce(y)
        return y

def model():
    if not dist.is_initialized():
        dist.init_process_group("nccl")
    return Model()

def inputs(batch=512):
    return (torch.zeros(batch, 512),)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """One core, on which a sweep starts no processes: each takes some seconds to import torch."""
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


@pytest.fixture
def gpt(tmp_path):
    (tmp_path / "gpt.py").write_text(MODEL.replace("LAYERS", "4"), encoding="utf-8")
    return str(tmp_path / "gpt.py")


def test_a_training_step_at_each_point_is_that_of_its_layout_alone(gpt):
    vary = {"gpu": ["h100-sxm", "b200"], "batch": [4], "parallel.tp": [1, 2], "parallel.sp": [False, True],
            "parallel.pp": [1, 2], "parallel.dp": [1, 4], "parallel.microbatches": [4],
            "parallel.fsdp": ["none", "full"], "parallel.schedule": ["1f1b", "interleaved:2"],
            "parallel.recompute": ["full"]}  # fmt: skip
    frame = memwall.sweep(gpt, vary, workers=0, price={"b200": 3.6})
    assert len(frame) == 128 and frame["id"].is_unique
    refused = frame[frame["error"] != ""]
    assert (refused["parallel.sp"] & (refused["parallel.tp"] == 1)).all() and len(refused) == 32
    ran = frame[frame["error"] == ""]
    for place in random.Random(7).sample(range(len(ran)), 3):
        row = ran.iloc[place]
        keys = ("tp", "pp", "dp", "microbatches", "fsdp", "schedule", "recompute")
        layout = ",".join(["sp"] * int(row["parallel.sp"]) + [f"{key}={row[f'parallel.{key}']}" for key in keys])
        cluster = {"h100-sxm": "dgx-h100", "b200": "aws-p6-b200"}[row["gpu"]]
        alone = memwall.parallel(gpt, layout=layout, cluster=cluster, batch=int(row["batch"]))
        assert row["time_s"] == alone.step.time_s and row["mfu"] == alone.mfu and row["hfu"] == alone.hfu, layout
        assert row["gpus"] == row["parallel.tp"] * row["parallel.pp"] * row["parallel.dp"]
        assert row["peak_memory"] == max(memory.total for memory in alone.step.memory)
        assert row["fits"] == alone.fits() and row["bubble_s"] == alone.step.bubble_s
        tokens = row["batch"] * 512 * 4 * row["parallel.dp"]  # of the model's default length, in all microbatches
        assert row["tokens_per_s_per_gpu"] == pytest.approx(tokens / row["time_s"] / row["gpus"], rel=1e-12)
        cost = 1e6 * 3.6 / 3600 * row["gpus"] * row["time_s"] / tokens
        assert row["usd_per_million_tokens"] == pytest.approx(cost) if row["gpu"] == "b200" else True


def test_layouts_on_the_command_line(run, gpt, tmp_path):
    words = ("sweep", gpt, "--vary", "batch=1,2", "gpu=a100,h100", "dtype=bf16,fp8", "parallel.tp=1,2",
             "--where", "fits", "time_s<0.2", "--best", "tokens_per_s_per_gpu", "--top", "5")  # fmt: skip
    result = run(*words, *(word for kind in ("html", "svg", "json") for word in ("-o", f"{tmp_path}/layouts.{kind}")))
    assert result.code == 0, result.err
    assert "a training step on many GPUs" in result.out and "and 3 more rows" in result.out
    assert "No result of 8 points: no floating dtype named 'fp8'" in result.out
    found = json.loads((tmp_path / "layouts.json").read_text(encoding="utf-8"))
    speeds = {point["id"]: point["tokens_per_s_per_gpu"] for point in found["points"] if not point["error"]}
    assert [speeds[key] for key in found["left"]] == sorted(speeds.values(), reverse=True) and found["of"] == "training"


def test_a_world_is_filled_with_replicas(gpt):
    frame = memwall.sweep(gpt, {"world": [8], "parallel.tp": [1, 2, 3], "parallel.pp": [1, 2]}, workers=0)
    assert frame["gpus"].tolist()[:4] == [8, 8, 8, 8]
    alone = memwall.parallel(gpt, layout="tp=2,pp=2,dp=2")
    assert frame["time_s"][3] == alone.step.time_s
    assert frame["error"][4].startswith("tp=3,dp=2 needs 6 GPUs, not 8")


@pytest.mark.parametrize(("words", "said"), [
    (("parallel.pt=2",), "no option 'parallel.pt'; did you mean parallel.tp?"),
    (("parallel.tp=-2",), "tp of a layout is a whole number above 0"),
    (("parallel.sp=maybe",), "--vary parallel.sp: 'maybe' is neither yes nor no"),
    (("parallel.schedule=1g1b",), "no schedule '1g1b'"),
    (("parallel.tp=2", "context=8"), "training has no context"),
])  # fmt: skip
def test_one_line_says_what_is_wrong_with_a_layout(run, gpt, words, said):
    result = run("sweep", gpt, "--vary", *words)
    assert result.code == 2 and said in result.error


@pytest.mark.parametrize("vary", [
    {"world": [8], "cluster": ["dgx-h100", "hgx-b200"]}, {"world": [8, 16], "gpu": ["h100"]},
    {"world": [8], "gpu": ["b200"], "cluster": ["dgx-h100"]},
])  # fmt: skip
def test_a_rank_of_a_program_sends_over_the_links_of_its_point(tmp_path, vary):
    (tmp_path / "ranked.py").write_text(RANKED, encoding="utf-8")
    frame = memwall.sweep(str(tmp_path / "ranked.py"), vary, of="profile", workers=0)
    assert frame["time_s"].nunique() == len(frame)
    for _, row in frame.iterrows():
        options = {name: row[name] for name in vary} | {"world": int(row["world"])}
        alone = memwall.profile(str(tmp_path / "ranked.py"), **options).simulations[0].totals
        assert row["time_s"] == alone.time_s
