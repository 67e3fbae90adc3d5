"""Bounds next to what others published: the speed of light of contests, and measured times, which none may beat."""

import csv
import io
import json
import re
import tarfile
from functools import cache

import pytest

from memwall import Profile, bound
from memwall.bounding.run import bounds, profiled
from memwall.hardware.lookup import load_gpus
from tests.unit.places import truth

SOL, TIMES, RECORDS = map(truth, ("gpumode_sol.csv", "kernelbench_v0_times.csv", "kernelbench_v0_records.tar.xz"))


def scaled(m: int, n: int, k: int, a: str = "") -> str:
    """A product of NVFP4 operands, whose scales are padded to tiles of 128 rows."""
    rows = [-(-size // 128) * 128 for size in (m, n)]
    a = a or f"fp4x2[{m},{k // 2}]"
    return (
        f"aten._scaled_mm({a}, fp4x2[{n},{k // 2}].t(), fp8[{rows[0] * k // 16}], fp8[{rows[1] * k // 16}],"
        " out_dtype=torch.float16)"
    )


def expression(row: dict[str, str]) -> str:
    """The call of a row of the table, of one GPU and without the messages between GPUs."""
    name = row["file"].split("/")[-2]
    if name == "nvfp4_group_gemm":
        shapes = (list(map(int, each.split(","))) for each in re.findall(r"\[(.*?)\]", row["values"]))
        return ", ".join(scaled(*shape) for shape in zip(*shapes, strict=True))
    m, n, k = (int(word) for word in row["values"].split()[:3])
    if name == "fp8-mm":
        operands = f"float8_e4m3fnuz[{m},{k}], float8_e4m3fnuz[{n},{k}].t()"
        return f"aten._scaled_mm({operands}, f32[{m},1], f32[1,{n}], out_dtype=torch.bfloat16)"
    if name in ("ag-gemm", "gemm-rs"):
        n, k = (n // 8, k) if name == "ag-gemm" else (n, k // 8)
        return f"mm(bf16[{m},{k}], bf16[{k},{n}])"
    if name == "nvfp4_gemv":  # m, k, batch: the vector is one row of the sixteen that a product has at least
        return ", ".join([scaled(m, 16, n)] * k)
    if "dual" in name:
        return f"a = fp4x2[{m},{k // 2}]; silu({scaled(m, n, k, 'a')}) * {scaled(m, n, k, 'a')}"
    return scaled(m, n, k)


@cache
def published() -> list[dict[str, str]]:
    if SOL is None:
        return []
    lines = (line for line in SOL.read_text().splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines))


#: contests whose figures are those of messages between GPUs, or of a whole layer, and rows of theirs that no message
#: bounds
OTHERS = ("all2all", "mla-decode")
NO_MESSAGES = ("64 18432 7168", "64 7168 18432", "8192 8192 29568")


def alone() -> list[dict[str, str]]:
    rows = [row for row in published() if not any(name in row["file"] for name in OTHERS)]
    return [row for row in rows if "distributed" not in row["file"] or row["values"].startswith(NO_MESSAGES)]


@pytest.mark.skipif(SOL is None, reason="the published bounds are not here")
@pytest.mark.parametrize("row", alone(), ids=lambda row: f"{row['file'].split('/')[-2]} {row['values'][:24]}")
def test_the_bound_of_a_contest(row):
    """Within 5 %, or as the answer says: with every byte from DRAM, which contests count though L2 would hold them."""
    gpu, _, clock = row["gpu"].partition("@")
    (found,) = bound(expression(row), gpu=gpu, policy="eager", clock=clock or None).answers
    told = {"": found.bound_s, **{other.name: other.bound_s for other in found.others}}
    counted_s = told.get("every byte from DRAM", found.bound_s)
    # at 1.5 GHz the contests' peak is 6.90 PFLOP/s; 148 multiprocessors of 32,768 FLOP a clock have 7.27
    allowed = 0.054 if found.bound_by.endswith("fp4") and counted_s == found.bound_s else 0.05
    assert counted_s * 1e6 == pytest.approx(float(row["sol_us"]), rel=allowed)


SENT = """
import torch, torch.distributed as dist
from torch import nn

class Part(nn.Module):
    def forward(self, x, weight):
        rows = x.shape[0]
        if {gathers}:
            whole = x.new_empty(8 * rows, x.shape[1])
            dist.all_gather_into_tensor(whole, x)
            return whole @ weight
        out = x.new_empty(rows // 8, weight.shape[1])
        dist.reduce_scatter_tensor(out, x @ weight)
        return out

def model():
    dist.is_initialized() or dist.init_process_group("nccl")
    return Part()

def inputs():
    rows, n, k = {shapes}
    return torch.empty(rows, k, dtype=torch.bfloat16), torch.empty(k, n, dtype=torch.bfloat16)
"""
#: rows that messages bound; of three more rows of ag-gemm the contest counts the result's columns, and not those of
#: what is gathered
MESSAGES = [("ag-gemm", 2048, 2880, 2880, 23.04), ("ag-gemm", 4096, 4096, 4096, 65.54),
            ("gemm-rs", 512, 4096, 12288, 8.19), ("gemm-rs", 2048, 2880, 2880, 23.04),
            ("gemm-rs", 4096, 4096, 4096, 65.54),
            ("gemm-rs", 8192, 4096, 14336, 131.07)]  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("name", "m", "n", "k", "sol_us"), MESSAGES)
def test_the_bound_of_a_contest_of_eight_gpus(name, m, n, k, sol_us, tmp_path):
    gathers = name == "ag-gemm"
    file = tmp_path / "part.py"
    shapes = (m // 8, n // 8, k) if gathers else (m, n, k // 8)
    file.write_text(SENT.format(gathers=gathers, shapes=shapes))
    (found,) = bound(str(file), policy="eager", cluster="mi300x-8", world=8).answers
    assert found.bound_by == "link"
    assert found.bound_s * 1e6 == pytest.approx(sol_us, rel=0.05)


GPUS = {"NVIDIA T4 (Modal)": "t4", "NVIDIA A10G (Modal)": "a10g", "NVIDIA L40S (bare machine)": "l40s",
        "NVIDIA A100 80GB (Modal)": "a100-80gb-sxm"}  # fmt: skip


@cache
def measured() -> dict[str, dict[str, float]]:
    """Module -> GPU -> the shortest time of any way to run it, in seconds."""
    found: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(line for line in TIMES.read_text().splitlines() if not line.startswith("#")):
        of = found.setdefault(row["module"], {})
        gpu = GPUS[row["gpu"]]
        of[gpu] = min(of.get(gpu, 1.0e9), float(row["min_ms"]) * 1e-3)
    return found


@pytest.mark.skipif(RECORDS is None or TIMES is None, reason="the profiles of small modules are not here")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("part", range(16))
def test_no_measured_time_beats_the_bound(part):
    with tarfile.open(RECORDS) as records:
        names = [item for item in records.getmembers() if item.name.endswith(".json")][part::16]
        texts = {item.name.split("/")[-1][:-5]: records.extractfile(item).read() for item in names}
    assert texts
    for name, text in texts.items():
        times = measured().get(name, {})
        gpus = load_gpus(list(times) or ["h100"])
        made = profiled(Profile.from_dict(json.load(io.BytesIO(text))), gpus, {})
        for answer in bounds(made, ("eager",), "eager", brief=True):
            assert answer.bound_s <= times.get(answer.gpu, 1.0), (name, answer.gpu)
