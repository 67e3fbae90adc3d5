"""What a step cannot beat, what the planner fuses, and what is advised where a library's line needs data."""

from __future__ import annotations

import json
import re

import pytest

CHAIN = """\
import torch

def model():
    return torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(40))).to(torch.bfloat16)

def inputs():
    return (torch.randn(8, 4096, dtype=torch.bfloat16),)
"""


def test_f44_the_bound_of_a_step_knows_what_l2_can_keep(run, folder):
    """Each kernel was bounded at L2's speed where what it touches fits in L2, although other kernels pass between two
    uses of it: no bound was that of the whole step."""
    (folder / "chain.py").write_text(CHAIN, encoding="utf-8")
    done = run("profile", "chain.py", "--gpu", "h100", "-o", "chain.json")
    assert done.code == 0, done.err
    (simulation,) = json.loads((folder / "chain.json").read_text(encoding="utf-8"))["simulations"]
    stated = [simulation["totals"]["bound_s"]]
    stated += [float(us) * 1e-6 for us in re.findall(r"step bound\s+([\d.]+) us", done.out)]
    # forty weights of 4096 x 4096 in bf16; 50 MiB of L2 may hold some of them already
    assert max(stated) * (1 + 1e-4) >= (40 * 4096 * 4096 * 2 - 50 * 2**20) / 3.35e12
    assert max(stated) <= simulation["totals"]["time_s"]


READING = """\
import torch

def threshold(x):
    return x * torch.histogram(x, 4).hist.sum()
"""

CALLING = """\
import sys
import torch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site-packages"))
import reading_library

class Net(torch.nn.Module):
    def forward(self, x):
        return reading_library.threshold(x) if {inside} else x * torch.histogram(x, 4).hist.sum()

def model():
    return Net()

def inputs():
    return (torch.randn(8, 8),)
"""


def test_f56_the_advice_for_a_librarys_line_is_an_option(run, folder):
    """Who uses a library was told to rewrite its line."""
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "reading_library.py").write_text(READING, encoding="utf-8")
    said = {}
    for inside in (True, False):
        (folder / "calling.py").write_text(CALLING.format(inside=inside), encoding="utf-8")
        done = run("profile", "calling.py", "--gpu", "h100")
        assert done.code == 2 and "--real" in done.err, done.err
        said[inside] = done.err
        assert run("profile", "calling.py", "--gpu", "h100", "--real").code == 0
    assert "rewrite" not in said[True] and "reading_library.py:4" in said[True]
    assert "rewrite it without" in said[False]


MIXER = """\
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(3))
        self.mixes = nn.ModuleList(nn.Linear(192, 192) for _ in range(3))

    def forward(self, x):
        for norm, mix in zip(self.norms, self.mixes):
            x = x + mix(norm(x).transpose(1, 2).contiguous()).transpose(1, 2)
        return x

def model():
    return Mixer()

def inputs():
    return (torch.randn(64, 192, 512),)
"""


def test_f55_the_planner_moves_no_more_bytes_than_inductor(run, folder):
    """A norm that is read transposed, as a mixer's, was stored and copied: Inductor writes it transposed."""
    pytest.importorskip("triton")
    (folder / "mixer.py").write_text(MIXER, encoding="utf-8")
    done = run("profile", "mixer.py", "--gpu", "a100", "--policy", "memwall", "inductor", "-o", "mixer.json")
    assert done.code == 0, done.err
    simulations = json.loads((folder / "mixer.json").read_text(encoding="utf-8"))["simulations"]
    nbytes = {made["policy"]: made["totals"]["dram_bytes"] for made in simulations}
    assert nbytes["memwall"] <= nbytes["inductor"]
    # norms: x read and its rows written turned, then twice two tensors read and two written; a product reads and writes
    # one; the last sum reads two and writes one
    tensor, weights = 64 * 192 * 512 * 4, 4 * (192 * 192 + 192 + 2 * 512)
    assert nbytes["memwall"] == (2 + 4 + 4 + 3 * 2 + 3) * tensor + 3 * weights
