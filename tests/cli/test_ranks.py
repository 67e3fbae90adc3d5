"""``memwall profile --cluster --world``: programs of many GPUs on the command line."""

import json
import re

import pytest

#: how a rank of class Rank runs its schedule, whose micro-batches have one of SAMPLES each
RUN = """
    def forward(self, x):
        last = dist.get_rank() == dist.get_world_size() - 1
        self.schedule.step(*([] if dist.get_rank() else [x]), **({"target": x} if last else {}))
        return x

def model():
    dist.init_process_group("nccl")
    return Rank()

def inputs():
    return (torch.randn(SAMPLES, 64),)
"""
PROGRAM = """\
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

class Rank(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part, (rank, world) = torch.nn.Linear(64, 64), (dist.get_rank(), dist.get_world_size())
        example = torch.empty(1, 64, device="cuda", requires_grad=True)
        stage = PipelineStage(self.part, rank, world, torch.device("cuda"), input_args=(example,),
                              output_args=(example,))
        self.schedule = ScheduleGPipe(stage, 4, loss_fn=lambda y, target: (y - target).sum())
"""


@pytest.fixture
def program(folder):
    (folder / "rank.py").write_text(PROGRAM + RUN.replace("SAMPLES", "4"))
    return ("profile", "rank.py", "--mode", "forward", "--cluster", "dgx-h100", "-q")


def test_ranks_that_differ_are_a_table(run, program):
    """Of sixteen stages on two nodes the first, one in the middle and the last; the page says which are alike."""
    page = run(*program, "--world", "16").out
    assert run(*program, "--nodes", "2").out == page  # of 8 GPUs each
    assert "rank 0 of 16" in page and "h100-sxm" in page
    assert "traced: 0, 1, 15; 2-14 build modules like rank 1's" in " ".join(page.split())
    table = page.partition("Ranks\n")[2].partition("──\n")[2]
    assert [line.split()[0] for line in table.splitlines()[:3]] == ["0", "1", "15"]
    sent = page.partition("Collectives\n")[2].partition("──\n")[2].splitlines()[:2]
    assert {tuple(line.split()[:4]) for line in sent} == {
        ("c10d.send", "0-1", "nvlink", "4"), ("c10d.recv_", "0-1", "nvlink", "4")}  # fmt: skip


def test_one_rank_that_is_asked_for_is_traced_alone(run, program):
    page = run(*program, "--world", "16", "--rank", "7").out
    assert "rank 7 of 16" in page and "Ranks\n" not in page
    assert "7-8" in page and "network" in page  # node 0 ends with rank 7


def test_a_model_that_knows_nothing_of_others_says_so(run, folder):
    """The page of ``--world 16`` was that of one GPU, without a word; ``--rank`` alone was ignored."""
    page = run("profile", "net.py", "--cluster", "dgx-h100", "--world", "16", "-q").out
    assert "the step of one GPU, not of 16; --parallel dp=16 puts a model on so many" in " ".join(page.split())
    assert "no process group" not in run("profile", "net.py", "--cluster", "dgx-h100", "-q").out
    alone = run("profile", "net.py", "--rank", "3", "-q")
    assert alone.code == 2 and alone.err.strip().endswith("--rank is one of --world N, or of --nodes N; name that too")


def test_a_gate_limits_the_rank_with_the_most(run, gates, folder):
    """Rank 2 of four has four layers where others have one: the peak that counts is its own."""
    layers = "torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4 if dist.get_rank() == 2 else 1)])"
    wide = PROGRAM.replace("torch.nn.Linear(64, 64)", layers) + RUN.replace("SAMPLES", "4")
    (folder / "wide.py").write_text(wide)
    (folder / "memwall.toml").write_text("""\
[tool.memwall.gate.workloads.wide]
target = "wide.py"
mode = "forward"
cluster = "dgx-h100"
world = 4
policy = "eager"
peak_memory = "100 kB"
communication_bytes = "+0%"
""")
    said = gates(folder, "--update", "--baseline", "base.json", "-q")
    page = " ".join(gates(folder, "--baseline", "base.json", "-q")[1].split())
    options = "--mode", "forward", "--cluster", "dgx-h100", "--world", "4", "--json", "-q"
    ranks = json.loads(run("profile", "wide.py", *options).out)
    peaks = {row["rank"]: row["peak_bytes"] for row in ranks["ranks"]}
    assert peaks[2] == max(peaks.values()) > 100_000 > peaks[0], said
    assert "of rank 2, which has the most" in page and "peak_memory" in page
    # the first rank sends four messages forward, those in the middle as many backward too
    sent = ranks["capture"]["ranks"][0]["communication_bytes"]
    assert sent == 2 * 4 * 64 * 4 and "communication_bytes" in page


def test_a_saved_rank_is_put_on_other_links(run, program, folder):
    run(*program, "--world", "16", "--rank", "7", "-o", "rank.json")
    again = json.loads(run("profile", "rank.json", "--cluster", "hgx-b200", "--json").out)
    before = json.loads((folder / "rank.json").read_text())
    clusters = [record["gpus"]["h100-sxm"]["cluster"]["name"] for record in (before, again)]
    assert clusters == ["dgx-h100", "hgx-b200"]


def test_traces_of_two_ranks_say_who_waits(run, folder):
    from tests.unit.traces.test_trace_collectives import FIRST, SECOND, traced

    for name, times in (("one", FIRST), ("two", SECOND)):
        traced(folder / name, times)
        (folder / name / "trace.json").rename(folder / f"{name}.json")
    line = ("profile", "one.json", "--gpu", "a100", "--cluster", "dgx-a100-80gb", "--other-rank", "two.json", "-q")
    page = " ".join(run(*line).out.split())
    assert re.search(r"all_reduce 4 16.00 [^a-z]+ 238.81 ", page)  # MB; 3/2 of them in 100.5 us: GB/s
    assert "The others wait for one.json, which came last in 1 of 4 collectives and waits 40.00 us" in page
    record = json.loads(run(*line, "--json").out)
    assert [row["op"] for row in record["collectives"]] == ["all_reduce", "all_gather"]
    assert [row["last"] for row in record["ranks"]] == [1, 3]
    assert "which is no profiler's trace" in run("profile", "net.py", "--other-rank", "two.json").error


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--cluster dgx-h10 --world 8", "did you mean dgx-h100?"),
        ("--nodes 2", "--nodes goes with --cluster"),
        ("--cluster dgx-h100 --nodes 2 --world 8", "--nodes 2 of dgx-h100 are 16 GPUs, --world says 8"),
    ],
)
def test_worlds_that_cannot_be(run, program, line, error):
    assert error in run("profile", "rank.py", *line.split()).error


RING = """\
import torch
import torch.distributed as dist

class Ring(torch.nn.Module):
    def forward(self, x):
        rank, world, got = dist.get_rank(), dist.get_world_size(), torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % world), dist.P2POp(dist.irecv, got, (rank - 1) % world)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return got + x

def model():
    dist.init_process_group("nccl")
    return Ring()

def inputs():
    return (torch.randn(4, 64),)
"""


def test_messages_sent_together_in_a_process_of_its_own(shell, folder):
    """The first import of the fake backend states devices of its own, without the one that has no data."""
    (folder / "ring.py").write_text(RING)
    done = shell("profile", "ring.py", "--cluster", "dgx-h100", "--world", "8", "-q")
    assert (done.code, done.err) == (0, "")
    assert "c10d.send" in done.out and "c10d.recv_" in done.out


INTERLEAVED = """\
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part = torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + self.{part}(x)

class Rank(torch.nn.Module):
    def __init__(self):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.parts = torch.nn.ModuleList(torch.nn.Sequential(Block(), Block()) for _ in range(2))
        example = torch.empty(1, 64, device="cuda", requires_grad=True)
        stages = [PipelineStage(part, rank + i * world, 2 * world, torch.device("cuda"), input_args=(example,),
                                output_args=(example,)) for i, part in enumerate(self.parts)]
        self.schedule = ScheduleInterleaved1F1B(stages, 8, loss_fn=lambda y, target: (y - target).sum())
"""


@pytest.mark.parametrize("part", ["part", "missing"])
def test_stages_of_equal_blocks_are_quiet(shell, folder, part):
    """torch reports an error in a stage with all steps of its schedule: the one of a replayed block, which a stage is
    not, and the user's own, of which the line alone is said."""
    (folder / "parts.py").write_text(INTERLEAVED.replace("{part}", part) + RUN.replace("SAMPLES", "8"))
    done = shell("profile", "parts.py", "--mode", "training", "--cluster", "dgx-h100", "--world", "8", "-q")
    said = (
        "memwall: running the model: AttributeError: 'Block' object has no attribute 'missing'"
        " (at parts.py:11 in forward: return x + self.missing(x))\n"
    )
    assert (done.code, done.err) == ((0, "") if part == "part" else (2, said))
