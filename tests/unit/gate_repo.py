"""A repository with one small model, and the regressions that a pull request may bring into it."""

import subprocess
from pathlib import Path
from typing import NamedTuple

MODEL = """\
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS = 256, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        h = F.gelu(self.up(self.norm2(x)))
        return x + self.down(h)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, 64))

    def forward(self, x):
        scores = torch.sigmoid(x) * x
        weights = scores.sum(-1, keepdim=True)
        return (x * weights) @ self.weight


def model():
    return nn.Sequential(*[Block() for _ in range(3)], Head()).bfloat16()


def inputs(batch=100):
    return (torch.randn(batch, 64, WIDTH, dtype=torch.bfloat16),)


def loss(output):
    return output.float().square().mean()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, fused=True)
"""


class Regression(NamedTuple):
    """An edit of the model, how it is gated, and what the gate must say: quantity, cause, op, module, line."""

    old: str
    new: str
    quantity: str
    kind: str
    op: str
    module: str
    #: text of the line that is named
    line: str
    settings: str = ""


_READS = "weights = scores.sum(-1, keepdim=True) * (2.0 if scores.max().item() > 9 else 1.0)"

REGRESSIONS = {
    "extra_cast": Regression(
        "return x + self.down(h)", "return x + self.down(h.float().bfloat16())", "kernels", "appeared", "_to_copy", "*",
        "return x + self.down(h.float().bfloat16())",
    ),
    "lost_fusion": Regression(
        "weights = scores.sum(-1, keepdim=True)", "weights = scores.sum(1, keepdim=True)", "kernels", "lost fusion",
        "mul+sum", "3", "return (x * weights) @ self.weight", 'policy = "memwall"',
    ),
    "contiguous": Regression(
        "mixed = F.scaled_dot_product_attention(q, k, v)",
        "mixed = F.scaled_dot_product_attention(q, k.contiguous(), v)", "kernels", "appeared", "clone", "*.attn",
        "mixed = F.scaled_dot_product_attention(q, k.contiguous(), v)",
    ),
    "upcast": Regression(
        "mixed = F.scaled_dot_product_attention(q, k, v)",
        "mixed = F.scaled_dot_product_attention(q.float(), k.float(), v.float()).bfloat16()", "time_s", "grew",
        "_scaled_dot_product_efficient_attention", "*.attn",
        "mixed = F.scaled_dot_product_attention(q.float(), k.float(), v.float()).bfloat16()",
    ),
    "doubled_norm": Regression(
        "self.attn(self.norm1(x))", "self.attn(self.norm1(self.norm1(x)))", "kernels", "appeared", "native_layer_norm",
        "*.norm1", "x = x + self.attn(self.norm1(self.norm1(x)))",
    ),
    "item": Regression(
        "weights = scores.sum(-1, keepdim=True)",
        _READS, "graph_breaks",
        "graph break", "Tensor.item()", "3", _READS,
        'gpu = "a100-80gb-sxm"\ngraph_breaks = "+0"\nkernels = "+0"',
    ),
    "weight_copy": Regression(
        "return (x * weights) @ self.weight", "return F.linear(x * weights, self.weight.t().contiguous())",
        "dram_bytes", "appeared", "clone", "3", "return F.linear(x * weights, self.weight.t().contiguous())",
        'dram_bytes = "+0"',
    ),
    "foreach": Regression(
        "fused=True", "foreach=True", "kernels", "appeared", "_foreach", "optimizer", "", 'mode = "training"',
    ),
    "batch": Regression(
        "def inputs(batch=100)", "def inputs(batch=101)", "dram_bytes", "grew", "", "", "", 'dram_bytes = "+0.5%"',
    ),
}  # fmt: skip


def configuration() -> str:
    """One workload per regression, each with a model of its own. Graph breaks, which take a second each to find, are
    limited where one is the regression."""
    limits = "".join(f'{name} = "+0.5%"\n' for name in ("dram_bytes", "flops", "time_s", "peak_memory"))
    rows = [f'[tool.memwall.gate]\ngpu = "h100-sxm"\npolicy = "eager"\nkernels = "+0"\n{limits}']
    for name, regression in REGRESSIONS.items():
        rows.append(f'[tool.memwall.gate.workloads.{name}]\ntarget = "models/{name}.py"\n{regression.settings}\n')
    return "\n".join(rows)


def git(folder: Path, *arguments: str) -> str:
    """Run git as somebody."""
    person = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false",
              "-c", "protocol.file.allow=always")  # fmt: skip
    done = subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, **files: str) -> str:
    """Write files (``net`` is net.py, with a dot in it what it says), commit everything, in a new repository where
    there is none, and return the commit."""
    for name, text in files.items():
        path = folder / (name if "." in name else f"{name}.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if not (folder / ".git").exists():
        git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a change")
    return git(folder, "rev-parse", "HEAD")


def only_tree(folder: Path) -> bool:
    """Whether no worktree is left over."""
    return git(folder, "worktree", "list", "--porcelain").count("worktree ") == 1


def make_repository(folder: Path) -> None:
    """Commit the models as they should be on ``main``."""
    models = {f"models/{name}.py": MODEL for name in REGRESSIONS}
    commit(folder, **models, **{"pyproject.toml": configuration(), "README.md": "A model.\n"})


def break_everything(folder: Path) -> None:
    """Bring each regression into its model, in the working tree."""
    for name, regression in REGRESSIONS.items():
        assert MODEL.count(regression.old) == 1 or name == "upcast" or name == "contiguous", name
        (folder / "models" / f"{name}.py").write_text(MODEL.replace(regression.old, regression.new))
