"""What is counted is said: the pipes that do the products, what the peak of memory is made of, and what fits."""

import json
from pathlib import Path

import pytest

WIDE = """\
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048))

def inputs(batch=2048):
    return (torch.randn(batch, 2048),)
"""
ROOM = """\
import torch

class Double(torch.nn.Module):
    def forward(self, x):
        return x.mul_(2)

def model():
    return Double()

def inputs():
    return (torch.empty(3_900_000_000, device="meta"),)
"""
CONVOLUTIONS = """\
import torch

def model():
    return torch.nn.Conv2d(256, 256, 3, padding=1, bias=False)

def inputs(batch=64):
    return (torch.randn(batch, 256, 56, 56),)
"""


@pytest.fixture
def wide(folder):
    """A model whose time is matrix products."""
    (folder / "wide.py").write_text(WIDE, encoding="utf-8")
    return "wide.py"


def one_line(text: str) -> str:
    return " ".join(text.split())


def totals(run, *args) -> dict:
    (simulation,) = json.loads(run(*args, "--json").out)["simulations"]
    return simulation["totals"]


def test_a04_a_dtype_without_tensor_cores_is_said(run, wide):
    """The pipe that stands in for one that the GPU lacks was taken in silence."""
    gpu = "v100-sxm2-16gb"
    for command in ("profile", "compare"):
        said = one_line(run(command, wide, "--gpu", gpu, "--dtype", "bf16").out)
        assert f"{gpu} has no bfloat16 tensor cores: matmuls " in said
        assert " on vector.float32 at " in said
        assert f"{gpu} has no" not in run(command, wide, "--gpu", gpu, "--dtype", "fp32").out
    assert not run("profile", wide, "--gpu", gpu, "--dtype", "bf16", "-o", "page.html").code
    assert f"{gpu} has no bfloat16 tensor cores" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("option", "dtype"), [("--dtype", "fp16"), ("--autocast", "fp16")])
def test_a04_the_other_half_is_offered_with_its_time(run, wide, option, dtype):
    """Nothing said that float16 has tensor cores where bfloat16 has none."""
    said = one_line(run("profile", wide, "--gpu", "v100-sxm2-16gb", "--mode", "training", option, "bf16").out)
    told = said.partition("; float16 would take ")[2]
    assert told.partition(").")[0].endswith(f"({option} {dtype}")
    number, unit = told.split()[:2]
    time_s = totals(run, "profile", wide, "--gpu", "v100-sxm2-16gb", "--mode", "training", option, dtype)["time_s"]
    assert float(number) * {"ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(time_s, rel=0.005)


def test_a04_mfu_is_below_one(run, folder):
    """Winograd's convolutions were counted at the FLOPs that it spares, so MFU was 140 to 230 %."""
    (folder / "net.py").write_text(CONVOLUTIONS, encoding="utf-8")
    made = json.loads(run("profile", "net.py", "--gpu", "v100-sxm2-16gb", "p100-sxm2-16gb", "t4", "--json").out)
    assert [0.1 < each["totals"]["mfu"] <= 1 for each in made["simulations"]] == [True] * 3


def memory(run, *args) -> dict:
    (simulation,) = json.loads(run(*args, "--json").out)["simulations"]
    return simulation["memory"]


def test_a07_what_an_optimizer_writes_is_temporary(run, wide):
    """Whatever the step wrote and was no gradient was called an activation, AdamW's intermediates among it."""
    training = ("profile", "wide.py", "--gpu", "h100-sxm", "--mode", "training", "--batch", 8, "--dtype", "bf16")
    parameters = 2 * 2 * (2048 * 2048 + 2048)
    held = memory(run, *training, "--optimizer", "adamw:foreach")
    # the step's foreach kernels write the denominators of all parameters at once
    assert held.get("temporaries", 0) >= parameters == held["parameters"]
    assert held["activations"] <= 8 * 8  # the loss, which the step returns
    said = one_line(run(*training, "--optimizer", "adamw:foreach").out)
    assert "peak in the optimizer step, at _foreach_" in said


def test_a07_the_place_of_the_peak_is_said(run, wide):
    """No report said in which phase and at which op most memory is alive."""
    training = ("wide.py", "--gpu", "v100", "--mode", "training", "--batch", 2048, "--optimizer", "sgd")
    for command in ("profile", "compare"):
        assert "peak in the backward pass, at " in one_line(run(command, *training).out)
    tight = one_line(run("profile", "wide.py", "--gpu", "v100", "--mode", "training", "--batch", 600_000).out)
    assert "It does not fit" in tight
    assert " at the peak (in the " in tight


def test_a12_the_capacity_is_what_the_driver_states(run):
    """The capacity was the number in the product's name, in powers of ten."""
    said = {  # by the driver: totalGlobalMem of public profiler traces, deviceQuery
        "h100-sxm": 85_018_279_936, "a100-80gb-sxm": 84_990_623_744, "rtx-2080-ti": 11_554_586_624,
        "t4": 15_843_721_216, "mi300x": 206_141_652_992,
    }  # fmt: skip
    entries = json.loads(run("compare", "net.py", "--gpu", *said, "--json").out)["entries"]
    assert {entry["gpu"]: entry["gpu_bytes"] for entry in entries} == said


def test_a12_what_fits_has_room_for_context_and_allocator(run, folder):
    """A peak of 15.7 of 15.8 GB was said to fit, with no room for the CUDA context and the allocator."""
    (folder / "net.py").write_text(ROOM, encoding="utf-8")
    said = one_line(run("profile", "net.py", "--gpu", "t4").out)
    # one tensor of 15.6 GB, and 0.5 GB + 2 % of it
    assert "DOES NOT FIT: 15.60 GB + 812.00 MB assumed for context and allocator of 15.84 GB" in said
    assert "It does not fit" in said
    small = one_line(run("profile", "net.py", "--gpu", "v100").out)
    assert "fits: 15.60 GB + 812.00 MB assumed for context and allocator of 16.95 GB" in small


def test_a11_prices_are_drawn(run, wide):
    """The picture of a comparison with prices had no cost."""
    args = ("compare", wide, "--gpu", "v100", "h100", "--price", "v100=2", "--price", "h100=4")
    assert not run(*args, "-o", "cost.html").code
    assert "cost of a million samples" in Path("cost.html").read_text(encoding="utf-8")


#: deviceProperties of an MI300X whose driver states no name
NAMELESS = {
    "id": 0, "name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64,
    "numSms": 304,
}  # fmt: skip


def trace(path, dur_us, properties, kernel, attributes=(), **header):
    """A profiler's trace of one op, [4096, 4096] float32, and its kernel."""
    op = {"External id": 1, "Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["float", "float"],
          "Input Strides": [[4096, 1], [4096, 1]], "Concrete Inputs": ["", ""]}  # fmt: skip
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add_", "pid": 1, "tid": 1, "ts": 0, "dur": 20, "args": op},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5,
         "args": {"correlation": 1, "External id": 1}},
        {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": 50.5, "dur": dur_us,
         "args": {"correlation": 1, "External id": 1, "device": 0, "stream": 7, **dict(attributes)}},
    ]  # fmt: skip
    document = {"schemaVersion": 1, "deviceProperties": [properties], **header, "traceEvents": events}
    Path(path).write_text(json.dumps(document), encoding="utf-8")
    return path


def test_c26_a_gpu_without_a_name_is_known_by_its_size(run):
    """A device was looked up by its name alone."""
    result = run("profile", trace("nameless.json", 100.25, NAMELESS, "add"), "--json")
    assert (result.code, json.loads(result.out)["gpu"]) == (0, "mi300x")
    assert "304 multiprocessors" in run("profile", "nameless.json").out


def test_c26_times_of_another_vendors_gpu_are_not_blamed_on_the_counting(run):
    """Whatever GPU was named, a time below its bound was called an error of the counting."""
    # 3 x 67.1 MB at 3.35 TB/s are 60.1 us; an MI300X with 5.3 TB/s takes 40
    path = trace("amd.json", 40.25, {**NAMELESS, "name": "AMD Instinct MI300X"}, "add")
    result = run("profile", path, "--gpu", "h100")
    assert result.code == 0
    assert "measured on a GPU of AMD, compared with h100-sxm of NVIDIA" in result.err
    assert "1 row ran faster than h100-sxm can: they ran on another GPU" in result.out
    assert "error of memwall" not in result.out


def test_c27_the_ranks_of_distributed_info_are_read(run):
    """A collective whose event does not say the size of its group was counted as if that were not known."""
    h100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}
    message = {"Collective name": "allgather", "In msg nelems": 8_000_000, "Out msg nelems": 64_000_000,
               "dtype": "BFloat16"}  # fmt: skip
    kernel, info = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", {"rank": 0, "world_size": 8}
    path = trace("ranks.json", 900.25, h100, kernel, message, distributedInfo=info)
    (row,) = json.loads(run("profile", path, "--json").out)["rows"]
    assert row["link_bytes"] == 64_000_000 * 2 * 7 // 8  # each of 8 ranks receives what 7 others have
    assert "number of ranks was not recorded" not in run("profile", path).out
