"""Attention is one op whose kernel is that of the GPU, and of the model's own choice."""

import json

import pytest

NET = """\
import torch
import torch.nn.functional as F
{head}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(256, 768), torch.nn.Linear(256, 256)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 4, 64).transpose(1, 2) for t in self.qkv(x).split(256, -1))
        {choice}
        return self.out(y.transpose(1, 2).reshape(b, n, 256))

def model():
    return Net()

def inputs(batch=2):
    return (torch.randn(batch, 512, 256),)
"""
PLAIN = "y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)"


def write(path, choice=PLAIN, head=""):
    path.write_text(NET.format(head=head, choice=choice), encoding="utf-8")


def simulations(path):
    return json.loads(path.read_text(encoding="utf-8"))["simulations"]


def test_a03_compare_takes_the_kernels_of_each_gpu(run, folder):
    """Comparing a saved profile gave another speed-up than comparing the model itself."""
    write(folder / "net.py")
    how = ("--mode", "training", "--dtype", "bf16")
    assert run("profile", "net.py", *how, "--gpu", "h100", "-o", "h100.json").code == 0
    saved = json.loads(run("compare", "h100.json", "--gpu", "h100", "v100-sxm2-16gb", "--json").out)
    direct = json.loads(run("compare", "net.py", *how, "--gpu", "h100", "v100-sxm2-16gb", "--json").out)
    # on the V100 the scores of 2 batches, 4 heads and 512x512 positions are stored, in forward and for backward
    assert _figures(saved) == _figures(direct)
    h100, v100 = _figures(saved)
    assert v100[1] > h100[1] + 2 * 4 * 512 * 512 * 4


def _figures(comparison):
    return [(entry["time_s"], entry["dram_bytes"], entry["kernels"]) for entry in comparison["entries"]]


@pytest.mark.parametrize(
    ("choice", "head"),
    [
        (f"with sdpa_kernel(SDPBackend.MATH):\n            {PLAIN}",
         "from torch.nn.attention import SDPBackend, sdpa_kernel"),
        (PLAIN, "for name in ('flash', 'mem_efficient', 'cudnn'):\n"
                "    getattr(torch.backends.cuda, f'enable_{name}_sdp')(False)"),
    ],
    ids=["sdpa_kernel", "enable_flash_sdp"],
)  # fmt: skip
def test_a09_the_models_own_choice_of_a_backend_holds(shell, folder, choice, head):
    """The trace chose the attention kernel by shapes and GPU alone, whatever the model had allowed."""
    write(folder / "net.py", choice, head)
    assert shell("profile", "net.py", "--dtype", "bf16", "--gpu", "h100", "-o", "chosen.json").code == 0
    names = [kernel["name"] for kernel in simulations(folder / "chosen.json")[0]["kernels"]]
    assert names.count("aten.bmm") == 2
    assert not any("flash" in name for name in names)


def test_a09_the_second_choice_runs_where_the_first_is_switched_off(shell, folder):
    """Switching flash attention off left it in the profile, where torch takes the memory-efficient kernel."""
    write(folder / "net.py", head="torch.backends.cuda.enable_flash_sdp(False)")
    assert shell("profile", "net.py", "--dtype", "bf16", "--gpu", "h100", "-o", "chosen.json").code == 0
    names = [kernel["name"] for kernel in simulations(folder / "chosen.json")[0]["kernels"]]
    assert "aten._scaled_dot_product_efficient_attention" in names
