"""``memwall fuse``: what it prints and writes, what it refuses, and with which code it ends."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from memwall.core.errors import MissingError
from memwall.fusion import POLICIES
from tests.unit.places import ROOT

BROKEN = """\
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x):
        x = functional.gelu(self.up(x))
        torch._dynamo.graph_break()
        return self.down(functional.relu(x * 2.0))

def model():
    return Net()

def inputs(batch=512):
    return (torch.randn(batch, 256),)
"""

#: policies that need no compiler: most tests ask for no more
PLAIN = ("--policy", "eager", "memwall", "ideal")


@pytest.fixture
def broken(folder) -> str:
    (folder / "broken.py").write_text(BROKEN, encoding="utf-8")
    return "broken.py"


def test_the_page_of_a_model(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "118")
    result = run("fuse", "--all", "net.py", "--mode", "training", "--gpu", "a100", *PLAIN)
    assert result.code == 0
    assert result.err == "memwall: record kept in .memwall/last.json; memwall compare --gpu a100 h100 uses it\n"
    for heading in ("a100-80gb-sxm", "a100-80gb-sxm, memwall: groups and refusals", "Capture by TorchDynamo",
                    "Ops by IR level"):  # fmt: skip
        assert f"\n── {heading}\n" in result.out
    assert "eager, memwall: groups" not in result.out
    assert "breaks     none: one graph" in result.out
    assert max(map(len, result.out.splitlines())) <= 118


def test_json_is_one_record(run):
    # as a CUDA graph, since shorter launches save nothing of an eager step that waits for the host
    flags = ("--cuda-graph", "--json", "-q", "--what-if", "launch_overhead_s=0")
    result = run("fuse", "net.py", "--gpu", "a100", *PLAIN, *flags)
    assert result.err == ""
    record = json.loads(result.out)
    assert record["schema"] == "memwall.fusion/1"
    (gpu,) = record["gpus"]
    eager, memwall, ideal = gpu["policies"]
    assert [row["policy"] for row in (eager, memwall, ideal)] == ["eager", "memwall", "ideal"]
    assert ideal["dram_bytes"] <= memwall["dram_bytes"] <= eager["dram_bytes"]
    # 4 x 64 floats in, two products with weights and biases, 4 x 64 and 4 x 8 out; a ReLU over 4 x 64
    assert eager["dram_bytes"] == 4 * (256 + 4096 + 64 + 256 + (256 + 256) + 256 + 512 + 8 + 32)
    assert record["capture"]["regions"] == [[0, 3]]
    assert [o["policy"] for o in record["what_if"]] == ["eager", "memwall", "ideal"]
    seconds = [(o["before"]["time_s"], o["after"]["time_s"]) for o in record["what_if"]]
    assert seconds[0][1] < seconds[0][0] and all(after <= before * (1 + 1e-9) for before, after in seconds)


def test_a_cuda_graph_leaves_out_the_host_and_free_launches_lose_nothing(run):
    """Fuse ignored --cuda-graph. A planner that pays nothing for launches makes more of them, which the host pays."""
    graph = ("--cuda-graph", "--json", "-q", "--what-if", "launch_overhead_s=0", "--no-capture")
    plain = json.loads(run("fuse", "net.py", "--gpu", "a100", *PLAIN, *graph[1:]).out)
    captured = json.loads(run("fuse", "net.py", "--gpu", "a100", *PLAIN, *graph).out)
    seconds = [[row["time_s"] for row in made["gpus"][0]["policies"]] for made in (plain, captured)]
    assert seconds[1][0] < seconds[0][0] / 2  # eager: four short kernels, each issued by the host
    for outcome in (*plain["what_if"], *captured["what_if"]):
        assert outcome["after"]["time_s"] <= outcome["before"]["time_s"] * (1 + 1e-9)


def test_by_module(run):
    result = run(
        "fuse", "net.py", "--mode", "training", "--gpu", "a100", *PLAIN, "--by", "module", "--no-capture", "-q"
    )
    assert "Modules by what they save" in result.out
    assert "Groups by what they save" not in result.out
    assert "Capture by TorchDynamo" not in result.out


def test_files(run, folder):
    files = ("-o", "a.md", "-o", "a.json", "-o", "a.png", "-o", "a.txt")
    result = run("fuse", "net.py", "--gpu", "a100", *PLAIN, "--no-capture", *files)
    assert result.code == 0
    assert (folder / "a.md").read_text().startswith("# net: what fusion wins\n")
    assert json.loads((folder / "a.json").read_text())["schema"] == "memwall.fusion/1"
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "a.txt").read_text() == result.out


def test_a_break_with_its_place_and_price_is_kept_in_the_record(run, broken, folder):
    """The break parts gelu from mul: 512 x 256 floats written and read again, 2 x 0.524 MB, and one launch."""
    out = run("fuse", broken, "--gpu", "a100", *PLAIN, "-q").out
    assert "breaks     1, at 1 line\n" in out
    row = next(line for line in out.splitlines() if "broken.py:12" in line)
    assert row.split()[:2] == ["broken.py:12", "1"]
    text = " ".join(out.split())
    assert "All breaks together cost 1.05 MB of DRAM traffic" in text
    assert "and 1 more launch on a100-80gb-sxm" in text
    assert "graph break" in out  # among the refusals
    (folder / "broken.py").unlink()
    assert run("fuse", ".memwall/last.json", *PLAIN, "-q").out == out
    whole = (folder / ".memwall" / "last.json").read_text()
    damages = {"graphs": 3, "cuts": ["here"], "lost_from": -1, "after_op": 1.5, "regions": [[0, 10**12]],
               "behind": "last"}  # fmt: skip
    for part, damage in damages.items():
        saved = json.loads(whole)
        captured = saved["capture"]["dynamo"]
        (captured if part in captured else captured["breaks"][0])[part] = damage
        (folder / "damaged.json").write_text(json.dumps(saved))
        assert "capture is damaged" in run("fuse", "damaged.json", *PLAIN).error, part


#: Dynamo leaves a function whose loop breaks to Python
LOOP = """\
import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = x[x > 0].relu() * 2
        return x

def model():
    return Net()

def inputs():
    return (torch.rand(512),)
"""


@pytest.mark.defect("19c")
@pytest.mark.parametrize("policy", ["memwall", "inductor"])
def test_ops_outside_all_graphs_take_as_long_as_without_a_compiler(policy, run, folder, monkeypatch):
    """Ops that no captured graph held were issued as kernels of compiled code, which take the CPU longer than ops, so
    that a plan that changes nothing was slower than nothing."""
    monkeypatch.setattr("memwall.inductor.compiled.lower", fuses_nothing)
    (folder / "loop.py").write_text(LOOP, encoding="utf-8")
    record = json.loads(run("fuse", "loop.py", "--gpu", "h100", "--policy", "eager", policy, "-q", "--json").out)
    eager, planned = record["gpus"][0]["policies"]
    assert record["capture"]["graphs"] == []
    assert (planned["kernels"], planned["time_s"]) == (eager["kernels"], eager["time_s"])
    page = " ".join(run("profile", "loop.py", "--gpu", "h100", "--policy", policy, "-q").out.split())
    assert f"graph breaks assumed absent under {policy}; memwall fuse finds them" in page


ATTENTION = """\
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)

    def forward(self, x):
        q, k, v = self.qkv(x).view(2, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)
        x = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 128, 256)
        x = functional.gelu(self.out(x))
        torch._dynamo.graph_break()
        return x * 2.0

def model():
    return Net().half()

def inputs():
    return (torch.randn(2, 128, 256).half(),)
"""


def test_a_gpu_with_another_attention_kernel_has_the_same_breaks(run, folder):
    """T4 runs memory-efficient attention, a graph of its own: gelu and mul stay apart there as on the A100.

    2 x 128 x 256 halves written and read again, 2 x 0.131 MB, and one launch.
    """
    (folder / "attention.py").write_text(ATTENTION, encoding="utf-8")
    result = run("fuse", "attention.py", "--gpu", "a100", "t4", "--policy", "memwall", "-q", "--json",
                 "--what-if", "launch_overhead_s*=2")  # fmt: skip
    record = json.loads(result.out)
    for gpu in record["gpus"]:
        (price,) = gpu["breaks"]["each"]
        assert (price["dram_bytes"], price["kernels"]) == (2 * 2 * 128 * 256 * 2, 1)
        assert gpu["breaks"]["together"] == price
    assert all(o["before"]["kernels"] == o["after"]["kernels"] for o in record["what_if"])


def test_a_clean_training_step_has_no_price_to_pay(run):
    """The sum that stands for a loss, and the one that backward begins with, are outside by nature."""
    result = run("fuse", "net.py", "--mode", "training", "--gpu", "a100", "--policy", "memwall", "--json", "-q")
    record = json.loads(result.out)
    assert record["capture"]["breaks"] == []
    assert record["gpus"][0]["breaks"] is None


def test_what_another_input_recaptures(run, broken):
    out = " ".join(run("fuse", broken, "--gpu", "a100", *PLAIN, "-q", "--second-batch", "64").out.split())
    assert "With float32[64, 256] Dynamo captures 2 graphs again" in out
    assert "expected 512, actual 64" in out
    assert "dimension 0 of x" in out


def test_a_saved_profile_without_a_capture_says_so(run):
    run("profile", "net.py", "--gpu", "t4", "a100")
    result = run("fuse", "--all", ".memwall/last.json", *PLAIN)
    assert (result.code, result.err) == (0, "")
    assert "no capture: it needs the model" in result.out
    assert "── t4, memwall: groups and refusals" in result.out
    assert "── a100-80gb-sxm, memwall: groups and refusals" in result.out
    assert "Capture by" not in result.out
    assert "no capture" not in run("fuse", ".memwall/last.json", *PLAIN, "--no-capture").out


@pytest.fixture
def no_inductor(monkeypatch):
    def fail(*args, **options):
        raise MissingError("this needs triton, which is not installed")

    monkeypatch.setattr("memwall.inductor.compiled.lower", fail)


def test_without_inductor_the_rest_is_shown(run, no_inductor):
    result = run("fuse", "net.py", "--gpu", "a100", "--no-capture", "-q")
    assert result.code == 0
    text = " ".join(result.out.split())
    assert "note no inductor policy on a100-80gb-sxm: this needs triton, which is not installed" in text
    rows = [line.split()[0] for line in result.out.partition("Policies")[2].splitlines() if line.strip()]
    assert [word for word in rows[:6] if word in POLICIES] == ["eager", "memwall", "ideal"]


def test_a_runaway_loop_is_neither_compiled_nor_captured_unasked(run, monkeypatch):
    for place in ("memwall.fusing.run", "memwall.fusion.repeats"):
        monkeypatch.setattr(f"{place}.MOST_UNASKED", 2)  # the model has three ops
    result = run("fuse", "net.py", "--gpu", "a100", "-q")
    text = " ".join(result.out.split())
    assert "no inductor policy on a100-80gb-sxm: it would compile 3 ops; --policy inductor does so" in text
    assert "no capture: TorchDynamo would take 3 ops one by one" in text


def test_inductor_by_name_must_be_there(run, no_inductor):
    result = run("fuse", "net.py", "--gpu", "a100", "--policy", "eager", "inductor", "--no-capture", "-q")
    assert result.code == 3
    assert result.error == "this needs triton, which is not installed"


def test_a_reason_is_said_once_for_all_gpus(run, no_inductor):
    out = run("fuse", "net.py", "--gpu", "a100", "t4", "--no-capture", "-q").out
    assert "no inductor policy on a100-80gb-sxm, t4: this needs triton" in " ".join(out.split())


def test_without_torch_a_record_is_planned_and_a_model_is_not(folder, run):
    """A process in which torch and triton cannot be imported."""
    run("profile", "net.py", "--gpu", "a100", "-o", "net.json", "-q")
    code = (
        "import sys; sys.modules.update(torch=None, triton=None); from memwall.cli import main; "
        "print(*[main(['fuse', *line.split(), '-q']) for line in sys.argv[1:]])"
    )
    lines = (f"net.json {' '.join(PLAIN)} --what-if l2_bytes=1GB", "net.py", "net.json --policy memwall --emit out")
    done = subprocess.run([sys.executable, "-c", code, *lines], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.stderr == "memwall: this needs torch, which is not installed\n" * 2
    assert "── What if" in done.stdout and "no op counts by IR level" in done.stdout
    assert done.stdout.endswith("0 3 3\n") and not (folder / "out").exists()


@pytest.mark.slow
def test_inductor_where_it_is(run, folder):
    pytest.importorskip("triton", reason="triton is not installed")
    result = run("fuse", "--all", "net.py", "--gpu", "a100", "--no-capture", "-q", "--emit", "out")
    assert "── a100-80gb-sxm, inductor: groups and refusals" in result.out
    for path in (folder / "out").rglob("*.py"):
        ast.parse(path.read_text())  # no name of the compiler's is left open
    index = json.loads((folder / "out" / "index.json").read_text())
    assert [(entry["gpu"], entry["policy"]) for entry in index["sets"]] == [
        ("a100-80gb-sxm", "inductor"), ("a100-80gb-sxm", "memwall"),
    ]  # fmt: skip
    texts = [(folder / "out" / kernel["file"]).read_text() for kernel in index["sets"][0]["kernels"]]
    assert any("@triton.jit" in text and "aten.relu" in text for text in texts)


def test_kernels_are_written_and_replaced(run, folder):
    args = (
        "fuse", "net.py", "--mode", "training", "--gpu", "a100", "--policy", "memwall", "--no-capture", "--emit", "out",
    )  # fmt: skip
    result = run(*args)
    assert result.code == 0
    files = sorted(path.name for path in (folder / "out").glob("*.py"))
    assert files[0].startswith("000_")
    assert f"memwall: wrote {len(files)} kernels to out, listed in out/index.json\n" in result.err
    for name in files:
        compile((folder / "out" / name).read_text(), name, "exec")
    before = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
    assert run(*args).code == 0
    assert {path.name: path.read_bytes() for path in (folder / "out").iterdir()} == before


def test_several_plans_get_a_folder_each(run, folder):
    run("fuse", "net.py", "--gpu", "a100", "t4", "--policy", "memwall", "--no-capture", "--emit", "out", "-q")
    assert {path.name for path in (folder / "out").iterdir()} == {
        "README.md", "index.json", "a100-80gb-sxm-memwall", "t4-memwall",
    }  # fmt: skip


def test_what_ifs_are_listed_alone_and_together(run):
    result = run("fuse", "net.py", "--gpu", "a100", "--policy", "eager", "--no-capture", "-q", "--what-if",
                 "dram_bytes_per_s*=2", "--what-if", "fuse:0")  # fmt: skip
    section = result.out.partition("── What if\n")[2]
    assert "  dram_bytes_per_s*=2 " in section
    assert "  fuse:0 " in section
    assert "dram_bytes_per_s*=2 and fuse:0" in " ".join(section.split())


CASES = {
    "fuse": "Missing argument 'TARGET|PROFILE'",
    "fuse none.py": "no such file: none.py",
    "fuse none.json": "no such file: none.json",
    "fuse net.py --policy memwal": "no policy named 'memwal'; did you mean memwall?",
    "fuse net.py --policy wishful": "there is eager, inductor, max-autotune, xla, memwall, server, ideal",
    "fuse net.py --what-if dram_bytes*2": "cannot read the what-if 'dram_bytes*2'",
    "fuse net.py --what-if dram_byte_per_s*=2": "did you mean dram_bytes_per_s?",
    "fuse net.py --gpu a100 --policy eager --no-capture --what-if fuse:layers": "no module fits 'layers'",
    "fuse net.py --gpu a100 --policy eager --no-capture --what-if sm_count=0.5": "sm_count must be a positive whole",
    "fuse net.py --emit net.py": "cannot write kernels into net.py: it is no folder",
    "fuse net.py --emit none/out": "there is no folder none",
    "fuse net.py --emit .": "holds net.py, which memwall did not write; name another folder",
    "fuse net.py --no-capture --second-batch 2": "--second-batch captures again, and --no-capture captures nothing",
    "fuse net.py --emit /": "which memwall did not write; name another folder",
    "fuse net.py --emit out --policy eager ideal": "--emit writes kernels of inductor or memwall",
    "fuse net.py -o a.csv": "end the name in one of",
    "fuse net.py --by class": "--by",
    "fuse net.py --top 0": "--top",
    "fuse net.py --second-batch 0": "--second-batch",
    "fuse net.py --gpu a100 --policy eager --second-seq 5": "takes no 'seq'",
    "fuse saved.json --batch 3": "--batch says how to trace a model, but saved.json is already traced",
    "fuse saved.json --second-batch 3": "--second-batch says how to trace a model",
}  # fmt: skip


@pytest.mark.parametrize("line", CASES)
def test_one_line_and_nothing_written(run, record, folder, line):
    before = {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in str(path)}
    result = run(*line.split())
    assert result.code == 2
    assert CASES[line] in result.error
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in str(path)} == before


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc: a folder that nobody can write")
def test_a_folder_that_cannot_be_written(run):
    result = run("fuse", "net.py", "--gpu", "a100", "--policy", "memwall", "--no-capture", "--emit", "/proc/out")
    assert result.code == 2
    assert "cannot write /proc/out" in result.error


@pytest.mark.defect("30")
@pytest.mark.parametrize("policies", [(), ("--policy", "inductor", "memwall")])
def test_a_gpu_that_is_too_old_for_the_compiler_leaves_the_others_their_answers(run, monkeypatch, policies):
    """What-ifs, even none, planned every policy again on every GPU, so that one that torch.compile does not know ended
    the command after all its work."""
    monkeypatch.setattr("memwall.inductor.compiled.lower", fuses_nothing)
    result = run("fuse", "net.py", "--gpu", "p100", "h100", "--no-capture", "-q", *policies)
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    assert "no inductor policy on p100-sxm2-16gb: torch.compile needs compute capability 7.0" in text
    policy_tables = result.out.partition("── p100-sxm2-16gb")[2].partition("── h100-sxm")
    assert ["\n  inductor " in table for table in policy_tables] == [False, False, True]


@pytest.mark.defect("30")
@pytest.mark.parametrize("command", ["fuse", "profile"])
def test_a_policy_that_no_gpu_has_is_refused_before_any_work(run, folder, command):
    """That a compiler does not know a GPU was found out when its plan was made, behind all other work."""
    (folder / "slow.py").write_text("raise SystemExit('the model was loaded')\n")
    result = run(command, "slow.py", "--gpu", "p100", "--policy", "inductor")
    assert result.code == 2
    assert "torch.compile needs compute capability 7.0, and p100-sxm2-16gb has 6.0" in result.err


def fuses_nothing(graph, gpu, **options):
    """In the place of Inductor."""
    from memwall.inductor import Lowered
    from memwall.inductor.fake_gpu import capability_of

    capability_of(gpu)
    return Lowered((), {}, ())


TRITON_MODEL = """\
import torch, triton
import triton.language as tl
from torch import nn

@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

class Net(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        doubled[(4,)](x.relu(), y, x.numel(), BLOCK=1024)
        return y.exp()

def model():
    return Net()

def inputs():
    return (torch.randn(4096),)
"""


@pytest.mark.defect("31")
def test_the_page_says_that_a_triton_kernel_of_the_users_is_opaque(run, folder):
    """Nothing said that fusion stops at a kernel that the model brings along."""
    pytest.importorskip("triton", reason="triton is not installed")
    (folder / "own.py").write_text(TRITON_MODEL)
    result = run("fuse", "own.py", "--gpu", "h100", "--no-capture", "-q", *PLAIN, "-o", "own.html")
    assert result.code == 0
    said = (
        "kernels of the user's own (Triton, custom ops), into which no compiler looks, so that nothing fuses with them"
    )
    assert f"{said}: triton.doubled" in " ".join(result.out.split())
    assert "triton.doubled is a kernel of the user" in (folder / "own.html").read_text()  # a refusal
