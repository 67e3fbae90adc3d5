# ruff: noqa: E501  a table of edits
"""What ``gate_trials.py`` gates: ten odd repositories of small models, and regressions of small models."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


def git(folder: Path, *words: str) -> str:
    person = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false",
              "-c", "protocol.file.allow=always")  # fmt: skip
    done = subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


# -- repositories ------------------------------------------------------------------------------------------------------

NET = """\
import torch
{imports}


def width():
    value = {width}
    return value


def model():
    value = width()
    return torch.nn.Sequential(torch.nn.Linear(64, value), torch.nn.ReLU(), torch.nn.Linear(value, 8))


def inputs():
    return (torch.randn(4, 64),)
"""


def net(width: str = "32", imports: str = "") -> str:
    return NET.format(width=width, imports=imports)


def _committed(folder: Path, files: dict[str, str], *targets: str) -> Path:
    rows = ", ".join(f"{target!r}" for target in targets or ("net.py",))
    write(folder, {"memwall.toml": f"[gate]\nworkloads = [{rows}]\n", **files})
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def seeded_structure(place: Path) -> Path:
    files = {
        "a.py": net("random.randrange(8, 800)", "import random"),
        "b.py": net("int(numpy.random.randint(8, 800))", "import numpy"),
        "c.py": net("8 + list({f'k{i}' for i in range(90)}).index('k7')"),
    }  # fmt: skip
    return _committed(place, files, "a.py", "b.py", "c.py")


def entropy(place: Path) -> Path:
    """No verdict is right on such a model unless it happens to be equal."""
    return _committed(place, {"net.py": net("8 + int.from_bytes(os.urandom(2), 'big') % 800", "import os")})


def submodule(place: Path) -> Path:
    _committed(place / "inner", {"width.json": "48"})
    folder = place / "repo"
    _committed(folder, {"net.py": net("json.loads(open('part/width.json').read())", "import json")})
    git(folder, "submodule", "add", "-q", str(place / "inner"), "part")
    return _committed(folder, {})


def large_files(place: Path) -> Path:
    """Git LFS stood in for by a filter that keeps contents in a folder of the clone."""
    _committed(place, {"net.py": net("json.loads(open('width.dat').read())", "import json")})
    write(place, {".gitattributes": "*.dat filter=kept\n", "width.dat": json.dumps(56)})
    git(place, "config", "filter.kept.clean", "cat > .git/kept.dat; echo pointer")
    git(place, "config", "filter.kept.smudge", f"cat > /dev/null; cat '{place}/.git/kept.dat'")
    return _committed(place, {})


def neighbours(place: Path) -> Path:
    """The first sets TF32, default dtype, environment, folder and a patch; the others notice them."""
    sets = (
        "import os\ntorch.set_float32_matmul_precision('high')\ntorch.set_default_dtype(torch.float64)\n"
        "torch.nn.Linear.forward = lambda self, x: torch.nn.functional.linear(x.double(), self.weight.double())\n"
        "os.environ['WIDE'] = '1'\nos.makedirs('elsewhere', exist_ok=True)\nos.chdir('elsewhere')\n"
    )
    files = {"a.py": net(imports=sets), "b.py": net("32 + len(os.environ.get('WIDE', ''))", "import os"), "c.py": net()}
    return _committed(place, files, "a.py", "b.py", "c.py")


def side_effects(place: Path) -> Path:
    """Imports that write files, print, warn, close the output and start a thread."""
    imports = (
        "import pathlib, sys, threading, warnings\npathlib.Path('made.txt').write_text('x')\nprint('loading')\n"
        "warnings.warn('old')\nthreading.Thread(target=threading.Event().wait, daemon=False).start()\nsys.stdout.close()"
    )
    return _committed(place, {".gitignore": "made.txt\n", "net.py": net(imports=imports)})


def ignored_data(place: Path) -> Path:
    files = {".gitignore": "data/\n_version.py\n", "pack/__init__.py": "from ._version import WIDTH\n"}
    _committed(place, {**files, "net.py": net("len(open('data/words.txt').read()) + WIDTH", "from pack import WIDTH")})
    write(place, {"data/words.txt": "a b c d", "pack/_version.py": "WIDTH = 32\n"})
    return place


def untracked_helper(place: Path) -> Path:
    """A helper that only one clone has: git does not list it, and no commit has it. The base gets it, as git ignores
    it there."""
    _committed(place, {"net.py": net("helper.WIDTH", "import helper")})
    write(place, {"helper.py": "WIDTH = 32\n", ".git/info/exclude": "helper.py\n"})
    return place


def links_and_spaces(place: Path) -> Path:
    """Names with spaces and accents, a linked file, and a package without an ``__init__``."""
    folder = place / "dépôt of mine"
    write(folder, {"réseau net.py": net("WIDTH", "from espace.noms import WIDTH"), "espace/noms.py": "WIDTH = 40\n"})
    (folder / "linked.py").symlink_to("réseau net.py")
    return _committed(folder, {}, "réseau net.py", "linked.py")


def long_history(place: Path) -> Path:
    """A thousand commits, many files, the gate in a folder of its own."""
    _committed(place / "x", {"net.py": net()})
    stream = "".join(
        f"commit refs/heads/main\ncommitter a <a@example.org> {i + 10**9} +0000\ndata 1\nc\n"
        f"M 100644 inline many/{i % 400}.txt\ndata {len(str(i))}\n{i}\n" for i in range(1000)
    )  # fmt: skip
    folder = place / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=stream, text=True, check=True)
    git(folder, "reset", "-q", "--hard")
    return _committed(folder, {"net.py": net()})


REPOSITORIES: dict[str, Callable[[Path], Path]] = {
    "structure from random, numpy and sets": seeded_structure, "structure from os.urandom": entropy,
    "submodule": submodule, "LFS, by a filter": large_files, "TF32 and more set by a neighbour": neighbours,
    "side effects of imports": side_effects, "ignored data and _version.py": ignored_data,
    "untracked helper": untracked_helper, "links, spaces, accents, namespace package": links_and_spaces,
    "a thousand commits": long_history,
}  # fmt: skip

# -- regressions -------------------------------------------------------------------------------------------------------

TEXT = """\
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, VOCABULARY = 256, 4, 8192


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def attend(self, x):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, -1).transpose(1, 2)
        k, v = self.kv(x).view(b, s, 2, HEADS // 2, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(b, s, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        with torch.no_grad():
            x = self.frozen(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, -1:])


def model():
    return Net().bfloat16()


def inputs(batch=8):
    return (torch.randint(0, VOCABULARY, (batch, 256)),)


def loss(output):
    return F.cross_entropy(output.flatten(0, 1), torch.zeros(output.shape[0] * output.shape[1], dtype=torch.long))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, fused=True)
"""

IMAGE = """\
import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(4, WIDTH, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.depth = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
        self.point = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(WIDTH)
        self.shrink = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1, groups=4, bias=False)
        self.head = nn.Linear(2 * WIDTH, 100)

    def forward(self, x):
        x = self.act(self.norm1(self.stem(x)))
        y = self.norm2(self.point(self.depth(x)))
        x = self.act(x + y)
        x = self.shrink(x)
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        scores = self.head(x.mean((2, 3)))
        return F.log_softmax(scores, -1).topk(5).values


def model():
    return Net().half().to(memory_format=torch.channels_last)


def inputs(batch=16):
    return (torch.randn(batch, 4, 64, 64).half().contiguous(memory_format=torch.channels_last),)
"""


class Regression(NamedTuple):
    """An edit of a model that makes it cost more."""

    what: str
    model: str
    old: str
    new: str
    mode: str = "inference"


_ATTEND = "mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)"
_GATED = "return x + self.down(F.silu(self.gate(h)) * self.up(h))"
_BLOCKS = "            x = block(x)"


def _attended(text: str) -> tuple[str, str]:
    return _ATTEND, text.replace("\n", "\n        ")


REGRESSIONS = {
    "dropout": Regression("dropout in training", TEXT, _GATED, _GATED.replace("x + ", "x + F.dropout(") + ", 0.1, self.training)", "training"),
    "silu": Regression("SiLU decomposed", TEXT, "F.silu(self.gate(h))", "self.gate(h) * torch.sigmoid(self.gate(h))"),
    "bias": Regression("a bias more", TEXT, "self.out = nn.Linear(WIDTH, WIDTH, bias=False)", "self.out = nn.Linear(WIDTH, WIDTH)"),
    "math": Regression("attention decomposed", TEXT, *_attended("k, v = (t.repeat_interleave(2, 1) for t in (k, v))\nmixed = (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v")),
    "mask": Regression("a mask tensor in place of is_causal", TEXT, "is_causal=True", "attn_mask=torch.ones(s, s, dtype=torch.bool).tril()"),
    "backend": Regression("the math backend asked for", TEXT, *_attended("with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):\n    " + _ATTEND)),
    "repeat_kv": Regression("keys and values repeated", TEXT, *_attended("k, v = (t.repeat_interleave(2, 1) for t in (k, v))\nmixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)")),
    "float_norm": Regression("a norm in float32", TEXT, "h = self.norm2(x)", "h = F.rms_norm(x.float(), (WIDTH,), self.norm2.weight.float()).bfloat16()"),
    "einsum": Regression("einsum with a transposed result", TEXT, "h = self.norm2(x)", "h = torch.einsum('bsd->sbd', self.norm2(x)).contiguous().transpose(0, 1)"),
    "untied": Regression("an output layer no longer tied", TEXT, "        self.head.weight = self.embed.weight\n", "", "training"),
    "wider": Regression("an MLP 6 % wider", TEXT, "self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)\n        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)", "self.gate = nn.Linear(WIDTH, 1088, bias=False)\n        self.up = nn.Linear(WIDTH, 1088, bias=False)\n        self.down = nn.Linear(1088, WIDTH, bias=False)"),
    "vocabulary": Regression("a vocabulary padded", TEXT, "VOCABULARY = 256, 4, 8192", "VOCABULARY = 256, 4, 8448"),
    "all_logits": Regression("logits of all positions", TEXT, "self.head(x[:, -1:])", "self.head(x)[:, -1:]"),
    "checkpoint": Regression("recomputation added", TEXT, _BLOCKS, "            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)", "training"),
    "loop": Regression("an optimizer in a loop", TEXT, "fused=True", "foreach=False", "training"),
    "amsgrad": Regression("amsgrad", TEXT, "fused=True", "fused=True, amsgrad=True", "training"),
    "float32": Regression("float32 in place of bfloat16", TEXT, "Net().bfloat16()", "Net()"),
    "thawed": Regression("a frozen layer trained", TEXT, "        with torch.no_grad():\n            x = self.frozen(x)", "        x = self.frozen.requires_grad_()(x)", "training"),
    "no_grad": Regression("no_grad given up", TEXT, "with torch.no_grad():", "if True:", "training"),
    "positions": Regression("positions recomputed in each block", TEXT, _BLOCKS, "            x = block(x + torch.arange(256).outer(torch.arange(WIDTH)).cos().bfloat16())"),
    "clone": Regression("a copy between blocks", TEXT, _BLOCKS, "            x = block(x.clone())"),
    "where": Regression("torch.where around a block", TEXT, _BLOCKS, "            x = torch.where(ids[..., None] >= 0, block(x), x)"),
    "one_hot": Regression("embedding by a product", TEXT, "x = self.embed(ids)", "x = F.one_hot(ids, VOCABULARY).bfloat16() @ self.embed.weight"),
    "break": Regression("a graph break", TEXT, _BLOCKS, "            torch._dynamo.graph_break(); x = block(x)"),
    "double": Regression("float64 by a constant", TEXT, "h = self.norm2(x)", "h = (self.norm2(x) * torch.ones(WIDTH, dtype=torch.float64)).bfloat16()"),
    "longer": Regression("a sequence 3 % longer", TEXT, "(batch, 256)", "(batch, 264)"),
    "float_loss": Regression("logits to float64 before the loss", TEXT, "F.cross_entropy(output.flatten(0, 1)", "F.cross_entropy(output.flatten(0, 1).double()", "training"),
    "layer": Regression("a block more", TEXT, "range(3)", "range(4)"),
    "full": Regression("a depthwise convolution made full", IMAGE, "padding=1, groups=WIDTH", "padding=1"),
    "groups": Regression("groups given up", IMAGE, "padding=1, groups=4", "padding=1"),
    "window": Regression("a window of 5", IMAGE, "WIDTH, 3, padding=1, groups=WIDTH", "WIDTH, 5, padding=2, groups=WIDTH"),
    "stride": Regression("a stride replaced by pooling", IMAGE, "stride=2, padding=1, groups=4", "padding=1, groups=4"),
    "both_layouts": Regression("channels_last given up", IMAGE, "    return Net().half().to(memory_format=torch.channels_last)\n\n\ndef inputs(batch=16):\n    return (torch.randn(batch, 4, 64, 64).half().contiguous(memory_format=torch.channels_last),)", "    return Net().half()\n\n\ndef inputs(batch=16):\n    return (torch.randn(batch, 4, 64, 64).half(),)"),
    "input_layout": Regression("an NCHW input", IMAGE, ".half().contiguous(memory_format=torch.channels_last),)", ".half(),)"),
    "inside_layout": Regression("NCHW inside of the network", IMAGE, "x = self.shrink(x)", "x = self.shrink(x.contiguous())"),
    "inplace": Regression("ReLU not in place", IMAGE, "inplace=True", "inplace=False", "inference"),
    "group_norm": Regression("GroupNorm for BatchNorm", IMAGE, "self.norm2 = nn.BatchNorm2d(WIDTH)", "self.norm2 = nn.GroupNorm(8, WIDTH)"),
    "bilinear": Regression("bilinear for nearest", IMAGE, 'mode="nearest"', 'mode="bilinear"'),
    "reflect": Regression("reflecting padding", IMAGE, "padding=1, groups=WIDTH, bias=False", 'padding=1, padding_mode="reflect", groups=WIDTH, bias=False'),
    "concatenate": Regression("a concatenation for a sum", IMAGE, "x = self.act(x + y)", "x = self.act(torch.cat([x, y], 1)[:, : x.shape[1]] + y)"),
    "sort": Regression("a sort for topk", IMAGE, ".topk(5).values", ".sort(descending=True).values[..., :5]"),
    "log_softmax": Regression("log of softmax", IMAGE, "F.log_softmax(scores, -1)", "F.softmax(scores, -1).log()"),
}  # fmt: skip
