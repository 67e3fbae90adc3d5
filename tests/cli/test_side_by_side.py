"""One model in two frameworks on one page: policies where they apply, and what each fuses."""

import json

import pytest

from memwall.analysis.kernel_kinds import kernel_kinds
from memwall.record.profile import Profile

pytest.importorskip("jax", reason="needs jax: traces its programs")

TORCH = """
import torch
def model():
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Tanh())
def inputs():
    return (torch.randn(32, 64),)
"""
JAX = """
import jax, jax.numpy as jnp
def model():
    return lambda p, x: jnp.tanh(jax.nn.relu(x @ p["kernel"] + p["bias"]))
def inputs():
    s = jax.ShapeDtypeStruct
    return {"kernel": s((64, 256), jnp.float32), "bias": s((256,), jnp.float32)}, s((32, 64), jnp.float32)
"""


@pytest.fixture
def files(tmp_path):
    found = []
    for name, text in {"one.py": TORCH, "other.py": JAX}.items():
        (tmp_path / name).write_text(text)
        found.append(str(tmp_path / name))
    return found


def test_each_target_runs_under_the_policies_that_it_can(run, files):
    pytest.importorskip("triton", reason="needs Triton: Inductor writes its kernels in it")
    made = json.loads(run("compare", *files, "--gpu", "h100", "--policy", "eager", "inductor", "--json").out)
    assert [(entry["workload"], entry["policy"]) for entry in made["entries"]] == [
        ("one", "eager"), ("one", "inductor"), ("other", "eager"),
    ]  # fmt: skip


def test_of_two_frameworks_the_pipes_of_float32_are_told_and_kernels_of_other_names_are_not(run, files):
    done = run("compare", *files, "--gpu", "h100")
    assert "float32 matmuls run on vector lanes in one and in TF32 in other" in " ".join(done.out.split())
    made = json.loads(run("compare", *files, "--gpu", "h100", "--json").out)
    assert {change["kind"] for change in made["changes"]} == {"class"}


def test_no_policy_that_a_target_can_run_under_is_a_usage_error(run, files):
    found = run("compare", *reversed(files), "--gpu", "h100", "--policy", "server")
    assert found.code == 2
    assert found.error.startswith("policy server is of PyTorch modules, and other is another program")


def test_kinds_say_what_stands_alone_and_what_is_fused(run, files, tmp_path):
    record = tmp_path / "made.json"
    run("profile", files[1], "--gpu", "h100", "--policy", "eager", "memwall", "-q", "-o", str(record))
    profile = Profile.load(record)
    eager, fused = (kernel_kinds(profile, schedule) for schedule in profile.simulations)
    # the product; the bias spread over the rows; sum, relu and tanh
    assert {name: kind.kernels for name, kind in eager.items()} == {"matmuls": 1, "element-wise": 3, "copies": 1}
    assert {name: kind.kernels for name, kind in fused.items()} == {"matmuls": 1, "element-wise fused": 1}
    assert sum(kind.time_s for kind in eager.values()) == pytest.approx(profile.simulations[0].totals.time_s)
