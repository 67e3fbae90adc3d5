"""Every mistake a user can make: one line that says what, where and the way out, the right code, nothing written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.commands import MODEL
from tests.unit.configs import SHORT_LLAMA
from tests.unit.places import ROOT

BAD_FILES = {
    "syntax.py": "def model(:\n",
    "empty.py": "",
    "boom.py": (
        "import torch\n\n\ndef model():\n    return torch.nn.Linear(4, 4)\n\n\n"
        "def inputs():\n    raise ValueError('no data today')\n"
    ),
    "shape.py": (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x @ torch.ones(3, 3)\n\ndef model(): return Net()\n\ndef inputs(): return (torch.ones(2, 2),)\n"
    ),
    "item.py": (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n"
        "        return x * torch.histogram(x, 4).hist.sum()\n\n"
        "def model(): return Net()\n\ndef inputs(): return (torch.ones(2, 2),)\n"
    ),
    "odd.py": "def model(): return 3\n\ndef inputs(): return ()\n",
    "bad.toml": "schema = 'memwall.gpu/1'\nname = \n",
    "key.toml": "schema = 'memwall.gpu/1'\nname = 'x'\nwarp_speed = 9\n",
    "truncated.json": '{"schema": "memwall.profile/1", "graph": {',
    "wrong.json": '{"a": 1}',
    "newer.json": '{"schema": "memwall.profile/7"}',
    "nan.json": '{"schema": "memwall.profile/1", "x": NaN}',
    "deep.json": "[" * 200_000,
    "binary.json": "\x00",
}  # fmt: skip

#: command line -> what its one line says, exit code 2 unless stated
CASES = {
    "profile none.py": "no such file: none.py",
    "profile nett.py": "did you mean net.py?",
    "profile syntax.py": "syntax.py:1: invalid syntax in 'def model(:'",
    "profile boom.py": "ValueError: no data today (at boom.py:9 in inputs: raise ValueError('no data today'))",
    "profile shape.py": "shape.py:5 in forward: return x @ torch.ones(3, 3)",
    "profile item.py": "item.py:5",
    "profile odd.py": "returned int, not a torch.nn.Module",
    "profile net.py:Nett": "net.py has no 'Nett'",
    "profile no.such:thing": "there is no module 'no'",
    "profile net.py --batch 0": "--batch",
    "profile net.py --batch many": "--batch",
    "profile net.py --seconds 0": "--seconds must be a number above 0, not 0.0",
    "profile net.py --seq 5": "takes no 'seq'",
    "profile net.py --dtype fp7": "fp7",
    "profile net.py --autocast int8": "int8",
    "profile net.py --mode flying": "--mode",
    "profile net.py --policy wishful": "no policy named 'wishful'",
    "profile net.py --optimizer lion --mode training": "lion",
    "profile net.py --attention slow": "--attention",
    "profile net.py --input f33[8]": "no dtype 'f33'",
    "profile net.py --input f32[8": "want [NAME=]DTYPE",
    "profile net.py --gpu h10": "did you mean h100-sxm",
    "profile net.py --gpu zzz": "no GPU named 'zzz'",
    "profile net.py --gpu a100 none.toml": "none.toml",
    "profile net.py --gpu bad.toml": "bad.toml:2",
    "profile net.py --gpu key.toml": "key.toml:3: warp_speed",
    "profile net.py --gpu": "--gpu",
    "profile net.py -o a.gif": "end the name in one of",
    "profile net.py -o none/a.json": "there is no folder none",
    "profile net.py --top 0": "--top",
    "profile net.py --sort colour": "--sort",
    "profile net.py --by colour": "--by",
    "profile net.py --max-ops 0": "--max-ops",
    "profile net.py --bogus": "No such option '--bogus'",
    "profile": "Missing argument 'TARGET'",
    "profile truncated.json": "truncated.json is not JSON",
    "profile wrong.json": 'wrong.json is not a memwall.profile record: it has no "schema"',
    "profile newer.json": "newer.json was written by a newer memwall",
    "profile nan.json": "NaN",
    "profile deep.json": "nested too deep",
    "profile binary.json": "not JSON",
    "profile none.json": "no such file: none.json",
    "profile saved.json --batch 3": "--batch says how to trace a model, but saved.json is already traced",
    "profile saved.json --no-replay --input f32[3]": "--input, --no-replay says how to trace",
    "report none.json": "no such file: none.json",
    "report net.py": "net.py is not JSON",
    "report newer.json": "newer memwall",
    "open none.json": "no such file or folder: none.json",
    "open net.py": "net.py is no record that memwall report reads, and no history",
    "compare net.py": "name the GPUs to compare",
    "compare none.json --gpu h100": "no such file: none.json",
    "compare saved.json --gpu h100 --price h100": "--price takes NAME=USD above 0",
    "compare saved.json --gpu h100 --price zzz=3": "no GPU named 'zzz'",
    "compare saved.json --gpu h100 --price t4=3": "t4",
    "compare --gpu h100 --price h100=3": "--price goes with a workload",
    "compare --gpu h100 --batch 3": "--batch says how to trace a model, but no target and no profile is compared",
    "compare saved.json --gpu h100 -o a.trace.json": "end the name in one of .json .html",
    "gpus zzz": "no GPU named 'zzz'",
    "gpus --check bad.toml": "bad.toml:2",
    "gpus --check none.toml": "none.toml",
    "clusters dgx-h10": "no cluster named 'dgx-h10'; did you mean dgx-h100?",
    "clusters none.toml": "none.toml",
    "clusters bad.toml": "bad.toml",
    "clusters key.toml": "schema is 'memwall.gpu/1'; want 'memwall.cluster/1'",
    "comm": "Missing option '--cluster'",
    "comm --cluster dgx": "no cluster named 'dgx'",
    "comm --cluster dgx-h100 --gpus 0": "dgx-h100 joins 1 to 1,000,000 GPUs, not 0",
    "comm --cluster a100-4-pairs --gpus 8": "a100-4-pairs joins 1 to 4 GPUs, not 8",
    "comm --cluster dgx-h100 --gpus 9 --per-node 8": "9 GPUs are not equally many on each of 2 nodes of 8",
    "comm --cluster dgx-h100 --op allreduce": "no op 'allreduce'; did you mean all_reduce?",
    "comm --cluster dgx-h100 --library mpi": "no library 'mpi'; there is nccl, custom, trtllm",
    "comm --cluster dgx-h100 --min 4Q": "--min: a size is as in 512, 1K, 8M or 1G, not '4Q'",
    "comm --cluster dgx-h100 --min 2M --max 1M": "is larger than the largest",
    "comm --cluster dgx-h100 -o page.xls": "end the name in one of .json .html .md .csv .txt",
    "gpu": "no command 'gpu'; did you mean gpus?",
    "frobnicate": "no command 'frobnicate'; there is profile, compare, bound, fuse, serve, sweep,",
    "--bogus": "No such option",
}


@pytest.fixture
def bad_folder(folder, record) -> Path:
    for name, text in BAD_FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def left_behind(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("line", CASES)
def test_one_line_and_nothing_written(run, bad_folder, line):
    before = left_behind(bad_folder)
    result = run(*line.split())
    assert result.code == 2
    assert CASES[line] in result.error
    assert left_behind(bad_folder) == before


def test_negative_peak(run, folder, record):
    text = record.read_text(encoding="utf-8")
    data = json.loads(text)
    peak = data["simulations"][0]["totals"]["peak_memory_bytes"]
    record.write_text(text.replace(f'"peak_memory_bytes":{peak}', f'"peak_memory_bytes":-{peak}'), encoding="utf-8")
    assert "peak_memory_bytes must be a whole number that is not negative" in run("report", record).error


def test_a_hostile_record_runs_nothing(run, folder, record):
    text = record.read_text(encoding="utf-8").replace("tiny", "__import__('os').system('touch owned')")
    record.write_text(text, encoding="utf-8")
    assert run("report", record, "-o", "a.html", "-o", "a.md").code == 0
    assert not (folder / "owned").exists()


def test_strict_refuses_ops_without_a_formula(run, record):
    assert "--strict: no formula models" in run("profile", record, "--strict", "-o", "a.json").error
    assert run("profile", "net.py", "--gpu", "h100", "--strict").code == 0


def test_a_runaway_trace_warns_and_stops(run):
    result = run("profile", "net.py", "--gpu", "h100", "--max-ops", "1")
    assert (result.code, result.out) == (2, "")
    first, last = result.err.splitlines()
    assert first.startswith("memwall: warning: ")
    assert "the trace passed 1 ops" in last
    assert "--max-ops" in last


def test_debug_shows_where(run, bad_folder):
    result = run("profile", "boom.py", "--gpu", "h100", "--debug")
    assert result.code == 2
    assert "Traceback" in result.err
    assert "boom.py" in result.err
    assert result.err.splitlines()[-1].startswith("memwall: ")


def test_a_bug_of_ours_says_so(run, record, monkeypatch):
    def broken(*_, **__):
        raise AssertionError("first\nsecond")

    monkeypatch.setattr("memwall.report.render_pieces", broken)
    result = run("report", record)
    assert result.code == 70
    assert result.error == "internal error: AssertionError: first (a bug of memwall; --debug shows where)"


def test_a_renderer_that_fails_leaves_no_file(run, folder, record, monkeypatch):
    import memwall.report

    render = memwall.report.render_pieces

    def fails_on_csv(thing, kind, **options):
        from memwall.core.errors import MissingError

        if kind == "csv":
            raise MissingError("no csv today")
        return render(thing, kind, **options)

    monkeypatch.setattr(memwall.report, "render_pieces", fails_on_csv)
    result = run("report", record, "-o", "a.json", "-o", "a.csv")
    assert (result.code, result.error) == (3, "no csv today")
    assert left_behind(folder) == {"net.py", "saved.json"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
class TestFullDisk:
    def test_standard_output(self, shell):
        for args in (["gpus"], ["gpus", "--json"], ["--help"]):
            with Path("/dev/full").open("w") as full:
                result = shell(*args, stdout=full, stderr=subprocess.PIPE, capture_output=False)
            assert result.code == 2
            assert result.error == "cannot write the result: No space left on device"

    @pytest.mark.parametrize(("files", "end"), [
        (["full.json"], "nothing was written"), (["a.json", "full.json"], "already written: a.json"),
    ])  # fmt: skip
    def test_a_file_says_what_was_written(self, run, folder, record, files, end):
        (folder / "full.json").symlink_to("/dev/full")
        result = run("report", record, "-q", *(word for file in files for word in ("-o", file)))
        assert result.error == f"cannot write full.json: No space left on device; {end}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(run, folder):
    (folder / "locked").mkdir(mode=0o500)
    assert "permission denied" in run("profile", "net.py", "-o", "locked/a.json").error


def test_a_record_that_cannot_be_kept_is_a_warning(run, folder):
    (folder / ".memwall").write_text("in the way", encoding="utf-8")
    result = run("profile", "net.py", "--gpu", "h100", "-q")
    assert result.code == 0
    assert "h100-sxm" in result.out
    assert result.err.startswith("memwall: warning: the record is not kept for memwall compare: ")


def test_ctrl_c_is_one_line_and_130(folder):
    (folder / "slow.py").write_text(
        "import time\nprint('ready', flush=True)\ndef model():\n    while True: time.sleep(1)\ndef inputs(): pass\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "memwall", "profile", "slow.py", "--gpu", "h100", "-o", "a.json"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in a background job
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "memwall: interrupted\n")
    assert left_behind(folder) == {"net.py", "slow.py"}


def test_a_reader_that_went_away(folder):
    command = f"{sys.executable} -m memwall gpus --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_a_terminal_without_the_characters(shell):
    result = shell("gpus", env={"PYTHONIOENCODING": "ascii"})
    assert (result.code, result.err) == (0, "")


NOISY = """\
import os, sys, torch

os.write(1, b"descriptor\\n")
sys.__stdout__.write("the original stream\\n")
os.system("echo a child process")

def model():
    print("print")
    return torch.nn.Linear(4, 4)

def inputs():
    return (torch.randn(2, 4),)
"""


def test_nothing_but_the_record_on_standard_output(shell, folder):
    (folder / "noisy.py").write_text(NOISY, encoding="utf-8")
    result = shell("profile", "noisy.py", "--json", "-q")
    assert result.code == 0
    assert json.loads(result.out)["schema"] == "memwall.profile/1"
    for said in ("descriptor", "the original stream", "a child process", "print"):
        assert said in result.err


@pytest.mark.parametrize("leave", ["import sys; sys.exit(0)", "raise SystemExit", "raise GeneratorExit"])
def test_a_model_that_leaves_is_no_success(run, folder, leave):
    text = BAD_FILES["item.py"].replace("return x * torch.histogram(x, 4).hist.sum()", leave)
    (folder / "leaves.py").write_text(text, encoding="utf-8")
    result = run("profile", "leaves.py")
    assert result.code == 2
    assert "leaves.py:5 in forward" in result.error


def test_what_is_there_but_no_file_is_not_called_missing(run, folder):
    (folder / "link.py").symlink_to("nowhere.py")
    assert "link.py is a link that leads nowhere" in run("profile", "link.py").error
    os.mkfifo(folder / "pipe.py")
    assert "pipe.py is not a regular file" in run("profile", "pipe.py").error


def test_standard_output_and_error_may_be_closed(folder):
    """All of them: what each alone does is seen with a command that imports less."""
    command = f"{sys.executable} -m memwall profile net.py -o out.json <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    assert json.loads((folder / "out.json").read_text(encoding="utf-8"))


def test_an_interrupt_that_a_library_swallows_is_still_an_interrupt(run, monkeypatch):
    def swallow(*args, **kwargs):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("module 'numpy' has no attribute 'matrix'") from None

    monkeypatch.setattr("memwall.pipeline.profile", swallow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run("profile", "net.py")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.code, result.err.splitlines()[-1]) == (130, "memwall: interrupted")


SPEC = """\
schema = "memwall.gpu/1"
name = "h100-sxm"
compute_capability = "9.0"
[memory]
dram_bytes_per_s = 1e12
dram_bytes = 16e9
[peak_flop_per_s.vector]
float32 = 1e13
"""


def test_two_boards_of_one_name_are_refused(run, folder):
    (folder / "mine.toml").write_text(SPEC, encoding="utf-8")
    for command in ("profile", "compare"):
        assert "two different GPUs are named 'h100-sxm'" in run(command, "net.py", "--gpu", "h100", "mine.toml").error


@pytest.mark.parametrize("capability", ["9.x", "9.0a", "-1", "nine point"])
def test_a_compute_capability_that_is_no_number(run, folder, capability):
    (folder / "mine.toml").write_text(SPEC.replace("9.0", capability), encoding="utf-8")
    result = run("gpus", "--check", "mine.toml")
    assert (result.code == 0) == capability[0].isalpha()
    assert result.code == 0 or "mine.toml:3: compute_capability" in result.error


LOOPS = """\
import torch
class Loops(torch.nn.Linear):
    def forward(self, x):
        out = {"y": super().forward(x)}
        out["again"] = out
        return out
def model():
    return Loops(8, 8)
def inputs():
    return (torch.randn(4, 8),)
"""
GONE = (
    MODEL
    + "\nimport sys\nfor name in [n for n in sys.modules if n.startswith('memwall')]:\n    del sys.modules[name]\n"
)


@pytest.mark.defect("40")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOOPS, "what the model returns holds itself"),
        (LOOPS.replace("return (", "x = [").replace("8),)", "8)]; x.append(x); return x"), "an input holds itself"),
        (GONE, "the model takes memwall's own modules out of sys.modules"),
    ],
    ids=["output", "input", "modules"],
)
def test_a_model_that_no_code_expects(text, says, shell, folder):
    """What a model hands over was walked through without an end where it holds itself, and memwall's modules were
    taken to be there after the model's code had run."""
    (folder / "odd.py").write_text(text, encoding="utf-8")
    done = shell("profile", "odd.py", "--gpu", "h100")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"memwall: {says}") and done.err.count("\n") == 1


@pytest.mark.defect("40", "41")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": 2}, "architectures is 2; want a list of names"),
        ({"num_hidden_layers": 2_000_000}, "num_hidden_layers is 2,000,000; at most 10,000 layers are built"),
    ],
    ids=["architectures", "layers"],
)
def test_a_configuration_that_no_model_has(change, says, run, folder):
    """Names of architectures were taken for a list without a look, and as many layers were built as a configuration
    states, for a minute without a word."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    (folder / "config.json").write_text(json.dumps({**SHORT_LLAMA, **change}), encoding="utf-8")
    assert run("profile", "hf:config.json", "--gpu", "h100").error.endswith(f"config.json: {says}")


@pytest.mark.defect("41")
def test_an_endless_message_is_cut():
    """Patterns were searched for in whole messages of exceptions, whose time grew with the square of their length."""
    from memwall.core.errors import message_of

    assert message_of(ValueError("x" * 1_000_000)) == "x" * 20_000


@pytest.mark.defect("44")
def test_more_gpus_than_any_cluster_has(run, folder):
    """A network that joins any number of GPUs was asked for the times of ten trillions, and answered."""
    result = run("comm", "--cluster", "dgx-h100", "--gpus", "10000000000000")
    assert (result.code, result.error) == (2, "dgx-h100 joins 1 to 1,000,000 GPUs, not 10,000,000,000,000")
