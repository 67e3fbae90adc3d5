"""Pictures: labels at the slope of their roof, titles, sizes, axes from zero, colours, phones, what can be drawn."""

import math
import re

import pytest

import memwall

CLASSES = {"contraction", "convolution", "attention", "normalization", "reduction", "elementwise", "movement"}
WALLS = {"compute", "bandwidth", "latency", "overhead"}

#: a product that no policy makes faster, and little next to it that fusion saves
HEAVY = """\
import torch

def model():
    wide = [torch.nn.Linear(4096, 4096) for _ in range(3)]
    return torch.nn.Sequential(*wide, torch.nn.GELU(), torch.nn.LayerNorm(4096))

def inputs(batch=4096):
    return (torch.randn(batch, 4096),)
"""


@pytest.fixture
def record(run, folder):
    assert run("profile", "net.py", "--gpu", "h100", "-q", "-o", "net.json").code == 0
    return memwall.Profile.load(folder / "net.json")


def test_d32_a_title_says_mode_and_dtype(record):
    """Titles lacked the mode, the dtype and the batch."""
    every = record.roofline().axes
    said = " ".join(
        part for axes in every for part in (axes.get_title(loc="left"), *(t.get_text() for t in axes.texts))
    )
    for word in ("inference", "float32", "batch 4", "h100-sxm"):
        assert word in said


def test_d32_a_comparison_says_mode_and_dtype(run, folder):
    """A comparison named the workload alone, on its page and in its picture: neither mode nor dtype nor batch."""
    assert run("profile", "net.py", "--gpu", "h100", "-q", "-o", "net.json").code == 0
    result = run("compare", "net.json", "--gpu", "a100", "h100", "-q", "-o", "c.svg", "-o", "c.html")
    assert result.code == 0
    title = "net, inference, float32, batch 4"
    assert title in result.out
    for name in ("c.svg", "c.html"):
        assert title in (folder / name).read_text(encoding="utf-8")


def test_a11_bars_have_their_intervals(run, folder):
    """The bars of a comparison drew no interval: "b200 3.33 times as fast" stood bare."""
    assert run("compare", "net.py", "--gpu", "h100", "b200", "-q", "-o", "c.svg").code == 0
    assert "80 % range" in (folder / "c.svg").read_text(encoding="utf-8")


def test_d32_several_gpus_are_no_tower(run, folder):
    """Each GPU had a roofline below the last one's: four of them made a picture of 4,200 pixels."""
    gpus = ("h100", "a100", "v100", "t4")
    assert run("profile", "net.py", "--gpu", *gpus, "-q", "-o", "net.svg").code == 0
    svg = (folder / "net.svg").read_text(encoding="utf-8")
    width, height = (float(re.search(rf'\b{side}="([\d.]+)', svg)[1]) for side in ("width", "height"))
    assert height < 2 * width


def test_d35_a_colour_means_one_thing(run, folder):
    """A colour meant an op class and a wall at once: green element-wise and compute, purple attention and overhead."""
    (folder / "heavy.py").write_text(HEAVY, encoding="utf-8")
    assert run("profile", "heavy.py", "--gpu", "h100", "--dtype", "fp16", "-q", "-o", "heavy.html").code == 0
    page = (folder / "heavy.html").read_text(encoding="utf-8")
    named = re.findall(r'background:(#\w{6})" title="(\w+)', page)
    named += re.findall(r'fill="(?:var\(--\w+,)?(#\w{6})\)?"[^>]*><title>(\w+)', page)
    meanings: dict[str, set[str]] = {}
    for color, name in named:
        meanings.setdefault(color, set()).add(name)
    assert any(names & CLASSES for names in meanings.values()) and any(names & WALLS for names in meanings.values())
    assert [names for names in meanings.values() if names & CLASSES and names & WALLS] == []


def test_d35_a_phone_gets_pictures_of_its_width(run, folder):
    """The page had one picture for all widths: on a phone the roofline was a thumbnail."""
    assert run("profile", "net.py", "--gpu", "h100", "-q", "-o", "net.html").code == 0
    page = (folder / "net.html").read_text(encoding="utf-8")
    widths = [float(width) for width in re.findall(r'viewBox="0 0 ([\d.]+) ', page)]
    assert min(widths, default=math.inf) <= 400


def test_d35_the_machines_page_has_the_growth_chart(run, folder):
    """The page of machines had no picture of their growth."""
    assert run("compare", "--gpu", "p100", "h100", "-q", "-o", "machines.html").code == 0
    assert "<svg" in (folder / "machines.html").read_text(encoding="utf-8")


def test_d36_modules_and_memory_are_drawn(run, folder):
    """There was no flame graph or treemap of modules, and memory over time only in a trace for another viewer."""
    assert run("profile", "net.py", "--gpu", "h100", "-q", "-o", "net.html").code == 0
    page = (folder / "net.html").read_text(encoding="utf-8")
    for words in ("flame graph", "treemap", "memory alive over the step", "peak "):
        assert words in page
