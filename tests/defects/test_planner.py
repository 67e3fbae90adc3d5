"""What the planner fuses, and what is advised where a library's line needs data."""

import json

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


def test_f55_a_norm_that_is_read_transposed_is_written_so(run, folder):
    """A norm that is read transposed, as a mixer's, was stored and copied: Inductor writes it transposed."""
    (folder / "mixer.py").write_text(MIXER, encoding="utf-8")
    done = run("profile", "mixer.py", "--gpu", "a100", "--policy", "memwall", "--json")
    assert done.code == 0, done.err
    (simulation,) = json.loads(done.out)["simulations"]
    # norms: x read and its rows written turned, then twice two tensors read and two written; a product reads and writes
    # one; the last sum reads two and writes one
    tensor, weights = 64 * 192 * 512 * 4, 4 * (192 * 192 + 192 + 2 * 512)
    assert simulation["totals"]["dram_bytes"] == (2 + 4 + 4 + 3 * 2 + 3) * tensor + 3 * weights
