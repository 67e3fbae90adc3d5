"""What a report says about walls, gains, the host and the bound agrees with its own numbers."""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.gating import run_here

GPUS = ("p100-sxm2-16gb", "t4", "h100-sxm", "mi300x")
MODELS = Path(__file__).resolve().parents[1] / "models"
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
_NAMES = ("bert_layer", "bert_large", "resnet50", "gpt2_xl", "dlrm", "vit_l16", "conv3d.py", "norms.py", "losses.py",
          "transformer_encoder.py")  # fmt: skip
_MODES = ("training", "inference") * 5
#: ten workloads, each in one mode and then in the other
WORKLOADS = (*zip(_NAMES, _MODES, strict=True), *zip(_NAMES, reversed(_MODES), strict=True))
#: its tests share one run of each workload: they are sampled alike
EACH = pytest.mark.parametrize("workload", WORKLOADS, ids="-".join)
CHANGES = ("dram_bytes_per_s*=2", "peak_flop_per_s*=2")
#: one of these limits a kernel -> its seconds in the record
TERMS = {"bandwidth": "memory_s", "compute": "compute_s", "latency": "latency_s", "overhead": "overhead_s"}

#: a layer norm of 8192 rows, whose clocks take an H100 about five times as long as its bytes
NORM = """\
import torch

def model():
    return torch.nn.LayerNorm(1024)

def inputs():
    return (torch.randn(8192, 1024),)
"""

#: thirty small ops: the CPU issues them more slowly than a GPU runs them
TINY = """\
import torch

def model():
    return torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(30)])

def inputs():
    return (torch.randn(64, 64),)
"""


class Run(NamedTuple):
    """What is said of a workload: the record, its page, and the sentences on all kernels."""

    record: dict
    page: str
    told: str


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """``profiled((name, mode))``: traced once, and priced on all GPUs."""

    @cache
    def go(workload: tuple[str, str]) -> Run:
        name, mode = workload
        target = MODELS / name if name.endswith(".py") else PROFILES / name / "model.py"
        folder = tmp_path_factory.mktemp("walls")
        changes = [word for change in CHANGES for word in ("--what-if", change)]
        asked = ("--gpu", *GPUS, "-q")
        code, out, err = run_here(folder, "profile", str(target), "--mode", mode, *asked, *changes, "--json",
                                  "-o", "page.md", "-o", "page.json")  # fmt: skip
        assert code == 0, err
        told = run_here(folder, "profile", "page.json", *asked, "--explain", "*")[1]
        return Run(json.loads(out), (folder / "page.md").read_text(encoding="utf-8"), told)

    return go


def seconds(text: str) -> tuple[float, float]:
    """A printed duration, and half of its last digit."""
    if text == "<0.1 ns":
        return 0.0, 0.05e-9
    number, unit = text.split()
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    digits = len(number.partition(".")[2])
    return float(number) * scale, 0.5000001 * 10**-digits * scale


@pytest.mark.sampled(7)
@EACH
def test_a01_the_verdict_saves_what_the_what_if_saves(profiled, workload):
    """The verdict halved all memory and compute seconds of the kernels, also those that bandwidth and FLOP/s cannot
    move."""
    record = profiled(workload).record
    for gpu, told in zip(GPUS, record["verdicts"], strict=True):
        saved = {lever["options"]: lever["saved_s"] for lever in told["levers"]}
        for change in CHANGES:
            (what_if,) = (row for row in record["what_if"] if row["gpu"] == gpu and row["what_if"] == [change])
            assert saved[f"--what-if '{change}'"] == what_if["before"]["time_s"] - what_if["after"]["time_s"]


@pytest.mark.sampled(7)
@EACH
def test_a02_the_label_is_the_largest_term(profiled, workload):
    """Instructions, dependent steps and clocks of row kernels were charged to memory, so that kernels were called
    limited by bandwidth which no bandwidth would have helped."""
    record = profiled(workload).record
    assert any("latency_s" in kernel for simulation in record["simulations"] for kernel in simulation["kernels"])
    for simulation in record["simulations"]:
        for kernel in simulation["kernels"]:
            terms = {wall: kernel.get(key, 0.0) for wall, key in TERMS.items()}
            assert terms[kernel["limited_by"]] == max(terms.values())
            longest_s = max(terms[wall] for wall in ("bandwidth", "compute", "latency"))
            assert kernel["time_s"] == pytest.approx(longest_s + terms["overhead"], rel=1e-9)


def test_a02_explain_names_the_term_of_the_label(run, folder):
    """``--explain`` said 29 us of SM clocks and 5.55 us of memory of a layer norm, and that bandwidth limits it."""
    (folder / "norm.py").write_text(NORM, encoding="utf-8")
    asked = ("profile", "norm.py", "--gpu", "h100", "--dtype", "bf16", "-q", "--explain", "native_layer_norm")
    told = " ".join(run(*asked).out.split())
    assert "limited by bandwidth" not in told
    terms = re.search(
        r"(\S+ \w*s) of arithmetic, (\S+ \w*s) of traffic and (\S+ \w*s) of latency overlap; (\S+ \w*s) of overhead"
        r".*limited by (\w+)", told
    )  # fmt: skip
    assert terms, told
    spent = dict(zip(("compute", "bandwidth", "latency", "overhead"), map(seconds, terms.groups()[:4]), strict=True))
    assert terms[5] == max(spent, key=lambda wall: spent[wall][0])


#: what --explain says of one launch -> the wall that those words name
WORDS = {
    "inside a tile an SM reaches": "compute", "holds the chip at": "compute", "the matmuls take longest": "compute",
    "go through DRAM at": "bandwidth", "the memory is busy": "bandwidth", "an SM loads": "latency",
    "alone on its SM waits": "latency", "an SM stores": "latency", "the memory waits": "latency",
}  # fmt: skip
TERMS_SAID = re.compile(
    r"(\S+ \w*s) of arithmetic, (\S+ \w*s) of traffic and (\S+ \w*s) of latency overlap; (\S+ \w*s) of overhead,"
    r" ([\d,]+) launch.*?limited by (\w+)"
)


@pytest.mark.sampled(7)
@EACH
def test_a02_explain_names_the_wall_of_every_kernel(profiled, workload):
    """The sentence about a kernel took its wall from other seconds than the label did."""
    record = profiled(workload).record
    kernels = {simulation["gpu"]: simulation["kernels"] for simulation in record["simulations"]}
    told = dict.fromkeys(GPUS, 0)
    for block in re.split(r"(?=── \S+: kernel \d)", profiled(workload).told)[1:]:
        title, _, page = block.partition("\n")
        gpu, number, count = re.match(r"── (\S+): kernel (\d+), \S.*?(?: x([\d,]+))?(?: in .*)?$", title).groups()
        told[gpu] += int((count or "1").replace(",", ""))
        text = " ".join(page.split())
        found = TERMS_SAID.search(text)
        assert found, text
        printed = dict(zip(("compute", "bandwidth", "latency", "overhead"), found.groups()[:4], strict=True))
        wall, spent = found[6], {key: seconds(value) for key, value in printed.items()}
        assert wall == kernels[gpu][int(number)]["limited_by"]
        assert all(spent[wall][0] + spent[wall][1] >= value - half for value, half in spent.values()), text
        named = {WORDS[words] for words in WORDS if words in text}
        if wall != "overhead" and found[5] == "1":
            assert named <= {wall}, text
    assert told == {gpu: len(rows) for gpu, rows in kernels.items()}


def test_a02_a_time_that_is_the_bound_is_said(run, models):
    """A kernel whose model is faster than its bound takes the bound, which its explanation did not say: the sentence
    gave 15 us of traffic, the terms 20 us."""
    asked = ("profile", models / "bert_large" / "model.py", "--gpu", "h100", "-q")
    told = " ".join(run(*asked, "--explain", "gelu").out.split())
    record = json.loads(run(*asked, "--json").out)
    kernel = next(k for k in record["simulations"][0]["kernels"] if k["name"] == "aten.gelu")
    assert kernel["memory_s"] - kernel["bound_s"] < 0.5e-6  # no more than its latency
    assert "the bound is taken in its place" in told


def printed_walls(page: str) -> list[list[str]]:
    """The percentages under the walls of each row of the first table that has them, in Markdown."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.splitlines() if "|" in line]
    at = next(i for i, row in enumerate(rows) if any(cell.startswith("bandwidth") for cell in row))
    names = ("compute", "bandwidth", "latency", "overhead", "link")
    places = [i for i, cell in enumerate(rows[at]) if cell.startswith(names)]
    body = next(
        rows[at + 2 : end] for end in range(at + 2, len(rows) + 1) if [*map(len, rows), 0][end] != len(rows[at])
    )
    return [[row[i] for i in places] for row in body]


@pytest.mark.sampled(7)
@EACH
def test_a02_shares_of_the_walls_add_up(profiled, workload):
    """Each share was rounded to a whole percent alone: a row of the table added up to 99 or 101 %. Rounding a share so
    that its row adds up to 100 makes it another one than the same share elsewhere; one digit more does not."""
    made = profiled(workload)
    for row, simulation in zip(printed_walls(made.page), made.record["simulations"], strict=True):
        under_s = dict.fromkeys(("compute", "bandwidth", "latency", "overhead"), 0.0)
        for kernel in simulation["kernels"]:
            under_s[kernel["limited_by"]] += kernel["time_s"]
        shares = [100 * seconds / sum(under_s.values()) for seconds in under_s.values()]
        assert row == ["&lt;0.1" if 0 < share < 0.05 else f"{share:.1f}" for share in shares]
        assert sum(float(cell) for cell in row if "lt" not in cell) == pytest.approx(100, abs=0.25)


def test_a01_the_power_limit_is_named(run):
    """Products that the power limit holds were said to need FLOP/s: 70 W are why a T4 reaches 42 % of its float32
    peak."""
    asked = ("profile", MODELS / "transformer_encoder.py", "--gpu", "t4", "-q")
    assert "twice the power limit" in run(*asked).out
    record = json.loads(run(*asked, "--json", "--what-if", "tdp_w*=2").out)
    (what_if,), (told,) = record["what_if"], record["verdicts"]
    (saved_s,) = (lever["saved_s"] for lever in told["levers"] if "tdp_w" in lever["options"])
    assert saved_s == what_if["before"]["time_s"] - what_if["after"]["time_s"]
    assert "power limit of 70 W" in " ".join(run(*asked, "--explain", "mm").out.split())


def test_a05_no_compiler_fuses_a_recurrent_network(run):
    """What fusion could save was that of a floor, which merges the steps of cuDNN's LSTM: torch.compile leaves them to
    the library."""
    record = json.loads(run("profile", MODELS / "lstm.py", "--gpu", "h100", "-q", "--json").out)
    (simulation,), (told,) = record["simulations"], record["verdicts"]
    saved = {lever["options"]: lever["saved_s"] for lever in told["levers"]}
    assert "--policy ideal" not in saved
    others_s = sum(k["time_s"] for k in simulation["kernels"] if "rnn" not in k["name"])
    assert saved["--policy memwall"] <= others_s < 0.05 * simulation["totals"]["time_s"]


def test_a05_one_op_has_nothing_to_fuse_with(run, folder):
    """A model of one embedding was told to fuse it: a compiler can only write another kernel for it."""
    (folder / "one.py").write_text(
        "import torch\n\ndef model():\n    return torch.nn.Embedding(50000, 1024)\n\n"
        "def inputs():\n    return (torch.randint(0, 50000, (64, 512)),)\n", encoding="utf-8"
    )  # fmt: skip
    page = run("profile", "one.py", "--gpu", "h100", "-q").out
    assert "generated kernels by memwall" in page
    assert "fusion" not in page.replace("perfect fusion: what no compiler can beat", "")


def test_a05_cuda_graphs_are_not_proposed_where_they_are_on(run, folder):
    """One text served every schedule that overhead limits: it proposed CUDA graphs where they were on, and called the
    shortest kernel a launch that was not hidden."""
    (folder / "tiny.py").write_text(TINY, encoding="utf-8")
    plain = run("profile", "tiny.py", "--gpu", "h100", "-q").out
    assert "minimum kernel time" in " ".join(plain.split())
    assert "a CUDA graph" in plain
    graph = run("profile", "tiny.py", "--gpu", "h100", "-q", "--cuda-graph").out
    assert "--cuda-graph" not in graph


def test_a06_the_interval_knows_the_host(run, folder):
    """5 us of CPU time for an op are an assumption, and the 80 % interval left it out."""
    (folder / "tiny.py").write_text(TINY, encoding="utf-8")
    asked = ("profile", "tiny.py", "--gpu", "h100", "-q")
    record = json.loads(run(*asked, "--json", "--what-if", "dispatch_s=15us").out)
    (what_if,) = record["what_if"]
    assert what_if["before"]["low_s"] < what_if["after"]["time_s"] < what_if["before"]["high_s"]
    page = " ".join(run(*asked).out.split())
    assert "host time assumed" in page
    assert "of CPU time to issue an op" in page


def test_a06_a_full_queue_hides_the_host(run, models):
    """The host was in no interval; where the queue is never empty it adds nothing to one either."""
    asked = ("profile", models / "bert_layer" / "model.py", "--gpu", "p100-sxm2-16gb", "-q", "--mode", "training")
    record = json.loads(run(*asked, "--json", "--what-if", "dispatch_s=0").out)
    (what_if,) = record["what_if"]
    for end in ("low_s", "high_s"):  # times in a CUDA graph know no host
        assert what_if["before"][end] == pytest.approx(what_if["after"][end], rel=1e-3)
    assert "of CPU time to issue an op" in run(*asked).out


def test_a08_the_bound_says_which_bandwidth_it_takes(run):
    """The bound takes the bandwidth of L2 where a kernel's operands fit there, and nothing on the page said so; MBU
    counted bytes from L2 as DRAM's."""
    page = " ".join(run("profile", "net.py", "--gpu", "h100", "-q").out.split())
    assert re.search(r"bound: (?:the kernels' )?speeds? of light[^;]*DRAM bandwidth[^;]*L2", page)
    simulation = json.loads(run("profile", "net.py", "--gpu", "h100", "-q", "--json").out)["simulations"][0]
    # the ReLU reads what the product wrote, 4 x 64 floats, and the last product what the ReLU wrote
    assert simulation["totals"]["resident_bytes"] == 2 * 4 * 64 * 4


def test_a13_a_prediction_is_not_attained(run):
    """The roofline of a model's prediction said that the FLOP/s were attained."""
    run("profile", "net.py", "--gpu", "h100", "-q", "-o", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "modeled FLOP/s" in page
    assert "attained FLOP/s" not in page
