"""What each command prints, writes and returns when all is well."""

import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest

from memwall import __version__
from memwall.cli import COMMANDS, group
from memwall.cli.parsing import FIRST_OPTIONS, OPTION_GROUPS
from memwall.cli.target import DEFAULT_GPU
from memwall.fusion import POLICIES
from memwall.gate.history import append, entry_of
from memwall.hardware.cluster import cluster_names
from memwall.hardware.host import HostWork
from memwall.hardware.lookup import gpu_names, load_gpus
from tests.unit import traces_fixture
from tests.unit.measured_fixture import make_measured
from tests.unit.places import ROOT
from tests.unit.report_fixture import make_profile


def test_version_and_help(run):
    assert run("--version").out == f"memwall {__version__}\n"
    for args in (["--help"], ["-h"], *([name, "--help"] for name in COMMANDS)):
        result = run(*args)
        assert (result.code, result.err) == (0, "")
        assert "Usage: memwall" in result.out
    for name, text in COMMANDS.items():
        assert f"{name}  " in run("--help").out
        assert text.split()[0] in run("--help").out


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_examples_that_its_parser_takes(name):
    parent = click.Context(group, **group.context_settings)  # a command keeps the help option of whom it is called by
    command = group.get_command(parent, name)
    assert command.examples
    for line, answer in command.examples:
        program, called, *words = shlex.split(line)
        given = command.make_context(name, words, parent).params
        for param in command.params:
            if "--gpu" in param.opts and given[param.name]:
                load_gpus(given[param.name] if param.multiple else [given[param.name]])
        assert (program, called, answer[-1]) == ("memwall", name, ".")


def test_the_help_of_a_command_ends_with_its_examples(run):
    said = run("comm", "--help").out
    assert said.endswith(
        "Examples:\n"
        "  memwall comm --cluster dgx-h100 --gpus 16 --min 1M\n"
        "    All-reduces over two nodes, from a megabyte on.\n"
        "  memwall comm --cluster dgx-h100 --op all_gather reduce_scatter -o collectives.csv\n"
        "    Two collectives as a table.\n"
    )


@pytest.mark.parametrize("name", ["profile", "compare", "bound", "fuse", "gate"])
def test_the_help_names_every_policy(run, name):
    listed = "".join(run(name, "--help-all").out.split()).partition("--policyNAME...")[2].partition("[default")[0]
    assert re.split(",|or(?=ideal)", listed.rpartition(":")[2].rstrip(".")) == [*POLICIES]


def test_no_command_at_all_shows_the_help_and_fails(run):
    result = run()
    assert (result.code, result.out) == (2, "")
    assert "Where the time of a model goes:" in result.err


def test_light_commands_import_nothing_heavy(folder, record):
    """One process runs them all, and says after which something heavy was there."""
    make_measured().save(folder / "measured.json")
    append(folder / "h.jsonl", entry_of({"small": make_profile()}, "a" * 40, "2026-01-01T00:00:00Z"))
    launch = [traces_fixture.call("cudaLaunchKernel", 5, 1, 1), traces_fixture.kernel("k", 8, 4, 1)]
    traces_fixture.write(folder, [traces_fixture.op("mine::op", 0, 9), *launch])
    code = """
import sys
from memwall.cli import main
for line in ("--help", "gpus", "gpus h100", "gpus --json", "ops", "fuse --help-all", "accuracy measured.json",
             "report --history h.jsonl", "profile trace.json --gpu h100",
             "gate saved.json --limit kernels=1000 coverage=90%"):
    code = main(line.split())
    own = ["numpy"] if line.startswith("gate") else []
    heavy = ({"torch", "pandas", "matplotlib", "numpy", "triton"} - {*own}) & set(sys.modules)
    if code or heavy:
        sys.exit(f"{line}: exit code {code}, imports {heavy}")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_profile_prints_a_report_and_keeps_the_record(run, folder):
    result = run("profile", "net.py", "--gpu", "v100", "h100")
    assert result.code == 0
    assert "v100-sxm2-16gb" in result.out
    assert "h100-sxm" in result.out
    assert result.err.splitlines()[-1].startswith("memwall: record kept in .memwall/last.json")
    assert json.loads((folder / ".memwall" / "last.json").read_text())["workload"]["name"] == "net"
    assert (folder / ".memwall" / ".gitignore").read_text() == "*\n"


def test_json_is_the_record_and_nothing_else(run, folder):
    (folder / "loud.py").write_text("print('hello')\n" + (folder / "net.py").read_text() + "print('there')\n")
    result = run("profile", "loud.py", "--gpu", "t4", "--json", "-q")
    record = json.loads(result.out)
    assert record["schema"] == "memwall.profile/1"
    assert [s["gpu"] for s in record["simulations"]] == ["t4"]
    assert result.err == "hello\nthere\n"


def test_a_warning_of_the_trace_reaches_standard_error(run, folder):
    width = "Linear(64, 8 + 0 * int(torch.nn.Linear(1, 1).weight.item()))"
    (folder / "net.py").write_text((folder / "net.py").read_text().replace("Linear(64, 8)", width))
    result = run("profile", "net.py", "--gpu", "t4", "-q")
    assert result.code == 0
    assert result.err.startswith("memwall: warning: building the model needs data")


def test_options_reach_the_trace(run):
    args = ("--mode", "training", "--batch", "6", "--dtype", "bf16", "--optimizer", "sgd", "--json", "-q")
    workload = json.loads(run("profile", "net.py", "--gpu", "h100", *args).out)["workload"]
    assert (workload["mode"], workload["dtype"], workload["optimizer"]) == ("training", "bfloat16", "SGD")
    assert workload["inputs"] == [{"shape": [6, 64], "dtype": "bfloat16"}]


def test_an_input_on_the_command_line(run):
    result = run("profile", "torch.nn:ReLU", "--input", "f16[8,3]", "--gpu", "h100", "--json", "-q")
    assert json.loads(result.out)["workload"]["inputs"] == [{"shape": [8, 3], "dtype": "float16"}]


def test_every_kind_of_file(run, folder, record):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    names = ["a.json", "a.html", "a.md", "a.csv", "a.parquet", "a.png", "a.svg", "a.trace.json", "a.txt"]
    result = run("report", record, *(word for name in names for word in ("-o", name)))
    assert result.code == 0
    assert result.err.splitlines() == [f"memwall: wrote {name}" for name in names]
    assert all((folder / name).stat().st_size > 100 for name in names)
    written = json.loads((folder / "a.json").read_text())
    assert len(written.pop("verdicts")) == 2 and written == json.loads(record.read_text())
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "a.txt").read_text() == result.out


def test_a_saved_profile_is_simulated_again(run, record):
    assert [s["gpu"] for s in json.loads(run("profile", record, "--json", "-q").out)["simulations"]] == ["old", "new"]
    again = json.loads(run("profile", record, "--gpu", "t4", "a100", "--json", "-q").out)
    assert [s["gpu"] for s in again["simulations"]] == ["t4", "a100-80gb-sxm"]


def test_another_host_issues_the_kernels(run, folder, record):
    bare, cloud = (run("profile", record, "--host", name, "--json", "-q") for name in ("bare-metal", "cloud-vm"))
    times = []
    for name, result in (("bare-metal", bare), ("cloud-vm", cloud)):
        made = json.loads(result.out)
        assert {gpu["host"]["name"] for gpu in made["gpus"].values()} == {name}
        times.append(made["simulations"][0]["totals"]["time_s"])
    assert times[0] < times[1]  # the net is small
    seconds = "".join(f"{kind}_s = {1e-3 if kind == 'op' else 0}\n" for kind in HostWork._fields)
    (folder / "mine.toml").write_text(f'schema = "memwall.host/1"\nname = "mine"\n{seconds}', encoding="utf-8")
    page = run("profile", "net.py", "--gpu", "t4", "--host", "mine.toml", "-q").out
    assert "mine: 1.00 ms of CPU time to issue an op" in " ".join(page.split())
    assert run("compare", record, "--gpu", "t4", "v100", "--host", "cloud-vm", "-q").code == 0
    assert run("profile", "net.py", "--host", "mine.tomb").error == (
        "no host named 'mine.tomb'; there is bare-metal, cloud-vm"
    )
    assert run("profile", "net.py", "--host", "other.toml").code == 2


def test_a_saved_profile_stays_on_its_host_unless_another_is_named(run):
    assert run("profile", "net.py", "--gpu", "t4", "--host", "cloud-vm", "-o", "cloud.json", "-q").code == 0
    for command in ("profile", "compare"):
        for named, wanted in (((), "cloud-vm"), (("--host", "bare-metal"), "bare-metal")):
            page = run(command, "cloud.json", "--gpu", "t4", "v100", *named, "-q").out
            assert [name in page for name in ("cloud-vm", "bare-metal")] == [name == wanted for name in (
                "cloud-vm", "bare-metal")]  # fmt: skip


def test_gpus_that_wait_for_the_same_host_are_equally_fast(run, folder):
    (folder / "normed.py").write_text(NORMED, encoding="utf-8")
    page = run("compare", "normed.py", "--gpu", "h100", "a100", "--host", "cloud-vm", "-q").out
    assert re.search(r"  h100-sxm, a100-80gb-sxm take [\d.]+ us a step each, and none is faster\.\n", page)
    assert "is the fastest" not in page


def test_the_gate_refuses_a_host_that_is_none(run):
    for name, why in (("nosuch", "no host named 'nosuch'; there is"), ("nosuch.toml", "no such file: nosuch.toml")):
        result = run("gate", "net.py", "--limit", "time_s=1s", "--host", name)
        assert result.code == 2
        assert result.error.startswith(why)


NORMED = """
import torch
from torch import nn
def model(): return nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.SiLU(), nn.Tanh(), nn.Linear(512, 512))
def inputs(): return (torch.randn(64, 512),)
"""


def test_what_one_module_saves_is_no_share_where_others_lose(run, folder):
    """The first kernel of a compiled net waits for the call: the norm and what follows it win more than the net."""
    (folder / "normed.py").write_text(NORMED, encoding="utf-8")
    page = " ".join(run("fuse", "normed.py", "--gpu", "h100", "--policy", "memwall", "-q").out.split())
    assert "% of the saved time in" not in page
    saved, unit, most, lost = re.search(
        r"memwall saves ([\d.]+) (ns|us) of .*?; what is outside of any module saves ([\d.]+) us,"
        r" and the rest takes ([\d.]+) us more",
        page,
    ).groups()
    saved_us = float(saved) / (1000 if unit == "ns" else 1)
    assert float(most) - float(lost) == pytest.approx(saved_us, abs=0.02)


def test_compare_uses_the_last_profile_made_here(run):
    assert run("profile", "net.py", "--gpu", "t4").code == 0
    result = run("compare", "--gpu", "a100", "h100")
    assert result.code == 0
    assert result.err == ""
    assert "a100-80gb-sxm" in result.out
    assert "h100-sxm" in result.out
    assert json.loads(run("compare", "--gpu", "a100", "h100", "--json").out)["schema"] == "memwall.comparison/1"


@pytest.mark.defect("32")
def test_compare_says_first_of_which_profile_it_is_and_machines_are_compared_where_asked_for(run):
    """Which of two questions is answered depended on a hidden file, and only standard error said so."""
    asked = ("compare", "--machines", "--gpu", "p100", "h100", "-q")
    before = run(*asked)
    assert (before.code, "46.7" in before.out) == (0, True)  # 990 by 21.2 TFLOP/s of float16
    assert run("compare", "--gpu", "p100", "h100", "-q").out == before.out and run("compare").code == 0
    assert run("profile", "net.py", "--gpu", "t4", "--mode", "training").code == 0
    assert run(*asked).out == before.out
    first, _, rest = run("compare", "--gpu", "p100", "h100", "-q").out.strip().partition("\n")
    assert first.startswith("compare: net") and first.endswith(", the last profile made in this folder")
    said = " ".join(rest.split())
    assert said.startswith("No target was named: this is net of net.py, training, profiled at 20")
    assert "memwall compare --machines" in said
    assert "leave net.py out" in run("compare", "net.py", "--machines").error


def test_compare_a_model_and_profiles(run, record):
    assert "h100-sxm" in run("compare", "net.py", "--gpu", "t4", "h100").out
    result = run("compare", record, "net.py", "--gpu", "t4", "h100", "--price", "h100=2.5")
    assert result.code == 0
    assert "tiny (torch 2.9) on t4" in result.out  # an older record, which says no version
    assert "net (torch 2.15) on h100-sxm" in result.out


def test_clusters(run, folder):
    assert all(name in run("clusters").out for name in cluster_names())
    one = run("clusters", "DGX-H100").out
    assert "450.00 GB/s" in one and "aiconfigurator" in one
    assert "as in dgx-h100" in run("clusters", "aws-p5").out
    assert json.loads(run("clusters", "dgx-h100", "--json").out)["link"]["nvlink"]["kind"] == "nvls"


def test_comm(run, folder):
    """More GPUs than a node has run on several; sizes double."""
    out = run("comm", "--cluster", "dgx-h100", "--gpus", "16", "--op", "all_gather", "send_recv", "--max", "4K").out
    assert "between 1 GPU of" in run("comm", "--cluster", "dgx-h100", "--gpus", "1").out
    assert "16 GPUs of dgx-h100" in out and out.count("4,096") == 2
    run("comm", "--cluster", "dgx-h100", "--max", "3K", "-o", "t.csv", "-o", "t.md", "-o", "t.json", "-o", "t.html")
    rows = json.loads((folder / "t.json").read_text())
    assert [row["nbytes"] for row in rows] == [1024, 2048]
    for row in rows:
        # nccl-tests: an all-reduce of 8 GPUs has 2 x 7/8 of the algorithm's bandwidth on the bus
        assert row["bus_bytes_per_s"] == pytest.approx(1.75 * row["nbytes"] / row["time_s"])
        assert row["link_share"] == pytest.approx(row["bus_bytes_per_s"] / 450e9)
    assert (folder / "t.csv").read_text().splitlines()[0].startswith("cluster,op,gpus,nbytes,time_s,")


def test_gpus(run, folder):
    assert all(name in run("gpus").out for name in gpu_names())
    one = run("gpus", "NVIDIA H100 80GB HBM3").out
    assert "3.35 TB/s" in one
    assert [gpu["name"] for gpu in json.loads(run("gpus", "h100", "t4", "--json").out)] == ["h100-sxm", "t4"]


def test_ops_says_what_is_covered(run):
    everything = run("ops").out
    assert all(family in everything for family in ("contraction", "elementwise", "movement"))
    found = {op["name"]: op for op in json.loads(run("ops", "elementwise", "--json").out)}
    assert found["silu"] == {"name": "silu", "family": "elementwise", "cost": True, "fusion": True, "codegen": True,
                             "traces": True}  # fmt: skip
    assert "silu_" not in found  # the same op
    assert (found["bucketize"]["fusion"], found["bucketize"]["codegen"]) == (False, False)
    assert "_softmax" in run("ops", "normalization").out
    failed = run("ops", "softmax")
    assert failed.code == 2
    assert "no family of ops named 'softmax'; one of contraction, " in failed.err


def test_check_a_file_of_the_user(run, folder):
    from memwall.hardware.lookup import spec_path

    text = spec_path("t4").read_text(encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")
    assert run("gpus", "--check", "mine.toml").out == "mine.toml: t4 is fine\n"
    assert run("gpus", "mine.toml").code == 0
    assert run("profile", "net.py", "--gpu", "mine.toml", "-q").code == 0


def test_rules(run):
    assert "one fused multiply-add is 2 FLOP" in run("profile", "--rules").out


class TestDefaultGpu:
    """Without ``--gpu``: this machine's where there is one that we know."""

    @pytest.mark.parametrize(("device", "gpu", "said"), [
        (None, DEFAULT_GPU, ""),
        ("Tesla T4", "t4", "on this machine's NVIDIA T4"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", DEFAULT_GPU, "is not among memwall gpus"),
    ])  # fmt: skip
    def test_none_known_and_unknown(self, run, monkeypatch, device, gpu, said):
        monkeypatch.setattr("memwall.cli.target.this_machine", lambda: device)
        result = run("profile", "net.py", "--json")
        assert [s["gpu"] for s in json.loads(result.out)["simulations"]] == [gpu]
        assert said in result.err

    def test_a_driver_that_fails_is_no_gpu(self, monkeypatch):
        from memwall.cli.target import this_machine

        pynvml = pytest.importorskip("pynvml")

        def fail():
            raise pynvml.NVMLError(999)

        monkeypatch.setattr(pynvml, "nvmlInit", fail)
        assert this_machine() is None


def test_a_module_of_the_folder_does_not_hide_an_installed_one(shell, folder):
    """``python -m`` puts the current folder first: memwall imported its math.py. A model still imports its own."""
    for name in ("math", "json", "random", "click"):
        (folder / f"{name}.py").write_text("raise RuntimeError('the module of the folder')\n", encoding="utf-8")
    (folder / "sizes.py").write_text("WIDTH = 24\n", encoding="utf-8")
    model = "import torch, sizes\n\ndef model():\n    return torch.nn.Linear(sizes.WIDTH, 8)\n\n"
    (folder / "net.py").write_text(model + "def inputs():\n    return (torch.randn(4, 24),)\n", encoding="utf-8")
    done = shell("profile", "net.py", "--gpu", "h100", "-q", fresh=True)
    assert done.code == 0, done.err
    assert "float32[4,24]" in done.out


@pytest.mark.parametrize("command", sorted(FIRST_OPTIONS))
def test_the_help_begins_with_what_people_use_first(run, command):
    def flags(asked: str) -> list[str]:
        _, _, options = run(command, asked).out.partition(":\n  -")  # a line of the text may begin with a flag
        return re.findall(r"^  (?:-\w, )?--([\w-]+)", f"  -{options}", re.MULTILINE)

    assert sorted(flags("--help")) == sorted([*FIRST_OPTIONS[command].split(), "help-all", "help"])
    assert set(flags("--help")) < set(flags("--help-all"))


@pytest.mark.defect("35")
@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_stands_in_a_titled_group_of_the_help(run, command):
    """Options were listed in the order in which code adds them, 47 of profile in one list."""
    lines = run(command, "--help-all" if command in FIRST_OPTIONS else "--help").out.splitlines()
    assert "Options:" not in lines
    title, under = "", {}
    for line in lines:
        if line and not line.startswith(" "):
            title = line.partition(":")[0]
        elif line.startswith("  -") and title != "Usage":  # the text may begin a line with a flag
            under.setdefault(title, []).append(line.split()[0].rstrip(","))
    assert list(under) == [title for title in (*OPTION_GROUPS, "More") if title in under]
    for flag, title in {"--mode": "Model and inputs", "--gpu": "Hardware", "--policy": "How it runs",
                        "--json": "Output"}.items():  # fmt: skip
        assert all(other == title for other, flags in under.items() if flag in flags)
    if command in FIRST_OPTIONS:  # what a command is asked for stood at its end, under "More"
        assert {*under["More"]} == {"--debug", "-h", "--help-all"}


@pytest.mark.parametrize("command", ["profile", "fuse", "compare"])
def test_a_page_of_a_step_that_runs_nothing_has_no_facts_at_a_glance(run, folder, command):
    """A policy before eager divided by eager's time, which is 0."""
    (folder / "same.py").write_text("import torch\n\nmodel = torch.nn.Identity()\n", encoding="utf-8")
    policies = ["--policy", "memwall", "eager"] if command == "profile" else []
    done = run(command, "same.py", "--input", "f32[4,4]", "--gpu", "h100", *policies, "-o", "same.html")
    assert done.code == 0, done.err
    assert 'class="glance"' not in (folder / "same.html").read_text(encoding="utf-8")
