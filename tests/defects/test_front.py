"""Models that people have: what they ask of CUDA, what they do in forward, and how they fail."""

import json
import os
import resource
import subprocess
import sys

import pytest

from tests.unit.places import ROOT

#: What a model written for a GPU asks of torch.cuda; {} is a line of forward.
CUDA = """\
import torch
{top}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 64)

    def forward(self, x):
        {line}
        return self.up(x)

def model():
    return Net()

def inputs():
    return (torch.randn(8, 64),)
"""

ASKED = (
    "torch.cuda.synchronize()",
    "s = torch.cuda.Stream(); s.wait_stream(torch.cuda.current_stream()); x.record_stream(s)",
    "e = torch.cuda.Event(enable_timing=True); e.record(); e.synchronize(); assert e.elapsed_time(e) > 0",
    "assert torch.cuda.get_device_properties(0).multi_processor_count == 80",
    "assert 'V100' in torch.cuda.get_device_name(0)",
    "assert torch.cuda.get_device_capability() == (7, 0) and not torch.cuda.is_bf16_supported(False)",
    "assert torch.cuda.mem_get_info()[1] > 15e9 and torch.cuda.max_memory_allocated() >= 0",
    "x = x + torch.cuda.FloatTensor(8, 64).fill_(1)",
    "assert x.is_cuda and self.up.weight.is_cuda",
    "assert torch.cuda.is_available() and torch.cuda.device_count() == 1",
    "torch.cuda.nvtx.range_push('up'); torch.cuda.nvtx.range_pop()",
    "assert torch.accelerator.is_available()",
    "torch.cuda.set_device(0); torch.cuda.empty_cache(); torch.cuda.manual_seed(1)",
)


def test_c24_cuda_answers_as_the_gpu_asked_for(run, folder):
    """Nothing stood for torch.cuda: streams, events, properties and statistics ended in advice to install CUDA."""
    (folder / "cuda.py").write_text(CUDA.format(top="", line="\n        ".join(ASKED)), encoding="utf-8")
    done = run("profile", "cuda.py", "--gpu", "v100-sxm2-16gb")
    assert done.code == 0, done.err


def test_c24_a_file_may_ask_while_it_is_loaded(run, folder):
    """A file that asks for CUDA at its top was loaded before anything could stand for it."""
    top = "assert torch.cuda.is_available()\ntorch.set_default_tensor_type(torch.cuda.FloatTensor)"
    (folder / "cuda.py").write_text(CUDA.format(top=top, line="pass"), encoding="utf-8")
    done = run("profile", "cuda.py", "--gpu", "v100-sxm2-16gb")
    assert done.code == 0, done.err


def test_c24_the_record_says_what_was_asked_of_which_gpu(run, folder):
    """A graph that depends on the GPU's own numbers could not be had, let alone told from one that does not."""
    line = "x = x if torch.cuda.get_device_capability() >= (8, 0) else x.float() * 2"
    (folder / "cuda.py").write_text(CUDA.format(top="", line=line), encoding="utf-8")
    ops = {}
    for gpu in ("v100-sxm2-16gb", "a100-80gb-sxm"):
        done = run("profile", "cuda.py", "--gpu", gpu, "-o", f"{gpu}.json")
        assert done.code == 0, done.err
        record = json.loads((folder / f"{gpu}.json").read_text(encoding="utf-8"))
        assert record["capture"]["asked_gpu"] == {"gpu": gpu, "asked": ["get_device_capability"]}
        ops[gpu] = len(record["graph"]["ops"])
    done = run("profile", "a100-80gb-sxm.json", "--gpu", "v100")
    assert done.code == 0 and "a100-80gb-sxm answered" in done.err
    assert ops == {"v100-sxm2-16gb": 2, "a100-80gb-sxm": 1}  # a product, and where asked an elementwise multiply
    done = run("profile", "net.py", "-o", "net.json")
    assert "asked_gpu" not in json.loads((folder / "net.json").read_text(encoding="utf-8"))["capture"]


def test_c24_a_captured_graph_is_refused_with_what_to_do(run, folder):
    """A model that captures a CUDA graph got torch's own error."""
    (folder / "cuda.py").write_text(CUDA.format(top="", line="g = torch.cuda.CUDAGraph()"), encoding="utf-8")
    done = run("profile", "cuda.py")
    assert done.code == 2 and "--cuda-graph" in done.err, done.err


FORCE = """\
import torch

class Force(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def forward(self, positions):
        positions.requires_grad_(True)
        energy = self.net(positions).sum()
        return energy, -torch.autograd.grad(energy, positions)[0]

def model():
    return Force()

def inputs():
    return (torch.randn(16, 3),)
"""


def test_c22_a_gradient_taken_in_forward_is_traced(run, folder):
    """Inference ran under no_grad, where a force field's own autograd.grad has nothing to differentiate."""
    (folder / "force.py").write_text(FORCE, encoding="utf-8")
    done = run("profile", "force.py", "-o", "force.json")
    assert done.code == 0, done.err
    ops = json.loads((folder / "force.json").read_text(encoding="utf-8"))["graph"]["ops"]
    # forward 16x3x64 and 16x64x1; backward the same two products, of gradients with weights; none for the weights
    assert sum(op["flops"] for op in ops if op["class"] == "contraction") == 2 * 2 * 16 * (3 * 64 + 64 * 1)
    assert [op["module"] for op in ops if op["phase"] == "backward"] == ["net.2", "net.1", "net.0"]


def test_c21_an_exception_that_cannot_be_shown(run, folder):
    """An exception of the model's own whose __str__ raises was asked again after it had been dealt with once."""
    (folder / "rude.py").write_text(
        "import torch\n\n\nclass Rude(Exception):\n    def __str__(self):\n        raise ValueError('no')\n\n\n"
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        raise Rude\n",
        encoding="utf-8",
    )
    done = run("profile", "rude.py:Net", "--input", "f32[4,8]")
    assert done.code == 2 and "Rude" in done.err and "rude.py:11" in done.err, done.err


def test_c21_four_hundred_nested_modules(run, folder):
    """Naming each module's calls takes frames of Python's, whose usual limit 400 nested modules reached."""
    (folder / "deep.py").write_text(
        "import torch\n\n\ndef model():\n    made = torch.nn.Linear(8, 8)\n    for _ in range(400):\n"
        "        made = torch.nn.Sequential(made)\n    return made\n\n\n"
        "def inputs():\n    return (torch.randn(4, 8),)\n",
        encoding="utf-8",
    )
    done = run("profile", "deep.py", "--mode", "training", "--policy", "memwall", "-o", "deep.html")
    assert done.code == 0, done.err


QUANTISED = """\
import torch

def model():
    from torch.ao import quantization as q
    made = torch.nn.Sequential(q.QuantStub(), torch.nn.Linear(8, 8), q.DeQuantStub()).eval()
    made.qconfig = q.get_default_qconfig("x86")
    q.prepare(made, inplace=True)
    made(torch.randn(4, 8))
    return q.convert(made)

def inputs():
    return (torch.randn(4, 8),)
"""


@pytest.mark.filterwarnings("ignore")
def test_c21_a_quantised_model_on_real_tensors(run, folder):
    """The sizes of quantised dtypes were missing from the table of dtypes."""
    (folder / "quantised.py").write_text(QUANTISED, encoding="utf-8")
    done = run("profile", "quantised.py", "--real", "-o", "q.json")
    assert done.code == 0, done.err
    record = json.loads((folder / "q.json").read_text(encoding="utf-8"))
    assert "quantized.linear" in record["coverage"]["unmodeled"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_c21_a_nested_input_is_traced_if_jagged_else_refused_with_what_to_do(run, folder, layout):
    """A nested tensor of strided layout passed for a dense one, and has no sizes."""
    (folder / "nested.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n\n\n"
        "def model():\n    return Net()\n\n\ndef inputs():\n    rows = [torch.randn(3, 8), torch.randn(5, 8)]\n"
        f"    return (torch.nested.nested_tensor(rows, layout=torch.{layout}),)\n",
        encoding="utf-8",
    )
    done = run("profile", "nested.py", "--real")
    assert done.code == (0 if layout == "jagged" else 2) and ("pad it" in done.err) == (layout == "strided"), done.err


def test_c25_an_unbuffered_stream_on_a_full_disk(folder):
    """An unbuffered stream writes what fits on the disk and says nothing of the rest."""

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (folder / "out.txt").open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "memwall", "gpus"], stdout=out, stderr=subprocess.PIPE, env=environment,
            preexec_fn=full, text=True, check=False,
        )  # fmt: skip
    assert (folder / "out.txt").stat().st_size == 1000  # the list is longer
    assert done.returncode == 2 and "cannot write the result" in done.stderr


def test_c29_a_linked_folder_of_records_is_not_followed(run, folder):
    """The folder of the last record was taken for a folder although a link led it anywhere."""
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    elsewhere.mkdir()
    (folder / ".memwall").symlink_to(elsewhere)
    done = run("profile", "net.py")
    assert done.code == 0 and "is a link" in done.err, done.err
    assert list(elsewhere.iterdir()) == []


def test_c29_a_linked_record_is_not_followed(run, folder):
    """The same where the record itself is a link, or the folder's .gitignore."""
    elsewhere = folder.parent / f"{folder.name}-else.json"
    elsewhere.write_text("mine", encoding="utf-8")
    (folder / ".memwall").mkdir()
    (folder / ".memwall" / "last.json").symlink_to(elsewhere)
    done = run("profile", "net.py")
    assert done.code == 0 and "is a link" in done.err, done.err
    assert elsewhere.read_text(encoding="utf-8") == "mine"


def test_c29_an_output_that_is_a_link_stays_one(run, folder):
    """Writing whole renamed a new file over the link instead of writing what it leads to."""
    (folder / "kept").mkdir()
    (folder / "link.html").symlink_to("kept/page.html")
    assert run("profile", "net.py", "-o", "link.html").code == 0
    assert (folder / "link.html").is_symlink()
    assert "<html" in (folder / "kept" / "page.html").read_text(encoding="utf-8")


def optimized(folder, made: str, top: str = "") -> str:
    """A model file with an optimizer."""
    text = (folder / "net.py").read_text(encoding="utf-8")
    lines = top.splitlines() or ["pass"]
    text = text.replace("def model():\n", "def model():\n" + "".join(f"    {line}\n" for line in lines))
    (folder / "opt.py").write_text(f"{text}\ndef optimizer(parameters):\n    return {made}\n", encoding="utf-8")
    return "opt.py"


@pytest.mark.parametrize("name", ["Adafactor", "ASGD"])
def test_c30_optimizers_that_read_a_number_back(run, folder, name):
    """Adafactor and ASGD read a number of the device's in Python, which a tensor without data does not have."""
    target = optimized(folder, f"torch.optim.{name}(parameters)")
    done = run("profile", target, "--mode", "training", "-o", "opt.json")
    assert done.code == 0, done.err
    record = json.loads((folder / "opt.json").read_text(encoding="utf-8"))
    steps = [op for op in record["graph"]["ops"] if op["phase"] == "optimizer"]
    # every parameter is written: the two weights and two biases of the model
    values = record["graph"]["values"]
    written = {values[str(i)]["storage"] if isinstance(values, dict) else values[i]["storage"]
               for op in steps for i in op["outputs"]}  # fmt: skip
    roles = [storage[1] for storage in record["graph"]["storages"]]
    assert {i for i, role in enumerate(roles) if role == "parameter"} <= written


def test_c30_a_process_group_made_by_the_model(run, folder):
    """A model that is built again after a first try made its process group twice."""
    top = (
        "import torch.distributed as group\n"
        f"group.init_process_group('gloo', rank=0, world_size=1, init_method='file://{folder}/group')"
    )
    target = optimized(folder, "torch.optim.SGD(parameters)", top)
    for _ in range(2):  # in one process
        done = run("profile", target)
        assert done.code == 0, done.err


FUNCTIONS = """\
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch._higher_order_ops.while_loop import while_loop

class Flex(torch.nn.Module):
    def forward(self, x):
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device=x.device)
        return flex_attention(x, x, x, block_mask=mask)

class Cond(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.yes, self.no = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: self.yes(y), lambda y: self.no(y).relu(), (x,))

class While(torch.nn.Module):
    def forward(self, x):
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.tensor(0), x))[1]
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Flex", "Cond"])
def test_c23_flex_attention_and_cond_are_traced(run, folder, name):
    """Operators that take Python functions ended in torch's advice to its own developers."""
    (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    done = run("profile", f"functions.py:{name}", "--input", "f32[2,4,256,64]", "-o", "f.json")
    assert done.code == 0, done.err
    assert "warning" in done.err or "assumed: condition=true" in done.out
    record = json.loads((folder / "f.json").read_text(encoding="utf-8"))
    products = sum(op["flops"] for op in record["graph"]["ops"] if op["class"] == "contraction")
    rows = 2 * 4 * 256
    # unfused attention: scores and their product with the values, 2 x rows x 256 x 64 each; cond: one of the layers
    assert products == (2 * 2 * rows * 256 * 64 if name == "Flex" else 2 * rows * 64 * 64)
