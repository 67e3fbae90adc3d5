"""What the terminal shows: widths, legends, the order of what is said, rows that can be told from each other."""

import re
import sys

import pytest

ENCODER = """\
import torch

def model():
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2)

def inputs(batch=2):
    return (torch.randn(batch, 16, 64),)
"""

#: Inductor takes two kernels for the weight gradient of each layer norm, and eager one call
NORMS = """\
import torch

def model():
    block = lambda: torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU())
    return block()

def inputs(batch=512):
    return (torch.randn(batch, 256),)
"""


@pytest.fixture
def encoder(folder) -> str:
    (folder / "encoder.py").write_text(ENCODER, encoding="utf-8")
    return "encoder.py"


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_e37_a_pipe_obeys_columns(run, encoder, monkeypatch):
    """The width of a text that is not for a terminal was fixed, whatever COLUMNS said."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("profile", encoder, "--mode", "training", "--gpu", "h100", "a100")
    assert shown.code == 0
    assert widest(shown.out) <= 80


def test_e37_a_pipe_without_columns_cuts_nothing(run, encoder, monkeypatch):
    """Names were cut to a page of 118 characters where no page was."""
    monkeypatch.delenv("COLUMNS", raising=False)
    out = run("profile", encoder, "--mode", "training").out
    assert "layers.*.self_attn" in out
    assert "…" not in out


def test_e37_a_dropped_column_takes_its_legend_with_it(run, encoder, monkeypatch):
    """The note below a table explained columns that were left out where the page was narrow."""
    for name, value in (("COLUMNS", "80"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out = run("profile", encoder, "--gpu", "h100").out
    totals = " ".join(out.partition("Op classes")[0].partition("workload  ")[2].split())
    assert totals.count(" bound") in (0, 2)  # a heading and its legend, or neither


def test_e37_rows_can_be_told_from_each_other(run, encoder):
    """The products of a layer's backward had the same name and place, and nothing said which was which.

    32 tokens of 64 features go to 128 and back: M, N, K of the products of ``linear1`` and ``linear2``.
    """
    out = run("profile", encoder, "--mode", "training", "--gpu", "h100", "--top", "60").out
    found = set(re.findall(r"((?:d[XW] )?\d+x\d+x\d+) +(layers\.\*\.linear[12])", out))
    assert found >= {
        ("32x128x64", "layers.*.linear1"), ("dX 32x64x128", "layers.*.linear1"), ("dW 128x64x32", "layers.*.linear1"),
        ("32x64x128", "layers.*.linear2"), ("dX 32x128x64", "layers.*.linear2"), ("dW 64x128x32", "layers.*.linear2"),
    }  # fmt: skip


def test_e37_modules_are_a_tree(run, encoder):
    """Modules were one flat list, in which nothing said what is inside of what."""
    shown = run("profile", encoder, "--gpu", "h100", "--by", "module", "--depth", "2")
    assert shown.code == 0
    rows = {line.split("  ")[1].strip(): line for line in shown.out.splitlines() if line.startswith("  ")}
    assert {"(whole step)", "· layers.*", "· · linear1"} <= rows.keys()
    assert not any(name.startswith("· · ·") for name in rows)


def test_e38_fuse_is_brief_by_default(run, encoder, monkeypatch):
    """Fuse printed every group, guard and op count whether asked for them or not."""
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("fuse", encoder, "--mode", "training", "--gpu", "h100", "--policy", "eager", "memwall", "ideal")
    assert shown.code == 0
    assert len(shown.out.splitlines()) <= 60
    assert "TENSOR_MATCH" not in shown.out
    gpus = ("a10", "a100-80gb-sxm", "h100-sxm", "l4", "mi300x", "t4")
    several = run("fuse", encoder, "--gpu", *gpus, "--policy", "memwall", "ideal", "--no-capture").out
    assert len(several.splitlines()) <= 60
    assert all(gpu in several for gpu in gpus)
    whole = run("fuse", encoder, "--gpu", "h100", "--policy", "eager", "memwall", "--all").out
    assert "TENSOR_MATCH" in whole
    assert "Ops by IR level" in whole


def test_e38_no_count_is_negative(run, folder):
    """What a plan saves was printed as it came, also where it launches more kernels than eager."""
    (folder / "norms.py").write_text(NORMS, encoding="utf-8")
    out = run("fuse", "norms.py", "--mode", "training", "--gpu", "h100", "--policy", "eager", "inductor").out
    said = " ".join(out.partition("inductor saves ")[2].partition("──")[0].split())
    assert said
    assert not re.search(r"(and|,) -\d", said)
    assert "launches" in said


def test_e39_a_gpu_that_is_assumed_is_said(run, folder):
    """Without a GPU the H100 was taken in silence, and the help called it this machine's."""
    shown = run("profile", "net.py").out
    assert "h100-sxm is assumed: this machine has no GPU" in shown
    assert "is assumed" not in run("profile", "net.py", "--gpu", "h100-sxm").out
    usage = " ".join(run("profile", "--help").out.split())
    assert "[default: this machine's GPU, else h100-sxm" in usage


COMMANDS = {"profile": ["net.py"], "compare": ["net.py", "--gpu", "a100", "h100"], "fuse": ["net.py"],
            "measure": ["net.py"], "gate": ["net.py"], "report": ["step.json"], "accuracy": ["rows.csv"]}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_e39_help_lists_what_is_accepted(run, command):
    """One list of suffixes stood in the help of every command, and each accepts its own."""
    refused = run(command, *COMMANDS[command], "-o", "x.bogus")
    assert refused.code == 2
    accepted = set(refused.err.partition("one of ")[2].split())
    assert accepted
    usage = " ".join(run(command, "--help").out.split())
    said = usage.partition("its suffix says what: ")[2].partition(". May be repeated")[0]
    assert set(said.replace("- ", "-").split()) == accepted


def test_e39_an_option_has_one_default(run):
    """The gate's help gave one default of the policies with the option and another one above it."""
    usage = " ".join(run("gate", "--help-all").out.split())
    assert "[default: eager; a saved profile's own]" not in usage
    assert "[default: eager and memwall; a saved profile's own]" in usage


def test_e39_report_renders_what_fuse_wrote(run, encoder):
    """A saved fusion report could be read by nothing: report took profiles alone."""
    made = run("fuse", encoder, "--gpu", "h100", "--policy", "eager", "memwall", "--no-capture", "-o", "fusion.json")
    assert made.code == 0
    shown = run("report", "fusion.json")
    assert shown.code == 0
    answer, row = (line for line in made.out.splitlines() if line.startswith("  memwall "))
    assert answer.split()[:3] == ["memwall", "saves", "196.80"] and answer in shown.out.splitlines()
    assert row.split()[:5] in [line.split()[:5] for line in shown.out.splitlines()]
    assert "Groups by what they save: memwall" in shown.out
    assert run("report", "fusion.json", "-o", "fusion.md").code == 0


def test_e39_a_hub_id_says_how_to_get_a_configuration(run):
    """A model's name on huggingface.co was a missing file, with no word of how to get what is needed."""
    refused = run("profile", "hf:Qwen/Qwen2-7B", "--gpu", "h100")
    assert refused.code == 2
    assert len(refused.err.splitlines()) == 1
    assert "hf download Qwen/Qwen2-7B config.json --local-dir Qwen2-7B" in refused.err
    assert "hf:Qwen2-7B" in refused.err


@pytest.mark.parametrize(("shell_name", "file"), [
    ("bash", ".local/share/bash-completion/completions/memwall"),
    ("zsh", ".local/share/zsh/site-functions/_memwall"),
    ("fish", ".config/fish/completions/memwall.fish"),
])  # fmt: skip
def test_e41_completion_is_installed_once(run, folder, monkeypatch, shell_name, file):
    """There was no way to complete memwall's commands in a shell."""
    monkeypatch.setenv("HOME", str(folder))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    first = run("--install-completion", shell_name)
    assert first.code == 0
    assert first.out.startswith(f"wrote {folder / file}")
    assert (folder / file).read_text().rstrip() == run("--show-completion", shell_name).out.rstrip()
    again = run("--install-completion", shell_name)
    assert again.code == 0
    assert "is up to date" in again.out


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("memwall prof", {"profile"}),
        ("memwall profile net.py --gpu h100-s", {"h100-sxm"}),
        ("memwall profile net.py --gpu a100 h100-s", {"h100-sxm"}),
        ("memwall profile net.py --policy ind", {"inductor"}),
        ("memwall profile net.py --mode tr", {"training"}),
        ("memwall profile net.py --sort by", {"bytes"}),
    ],
)
def test_e41_words_are_completed(run, monkeypatch, line, completed):
    """A shell that asked for completions got the help of memwall."""
    for name, value in (("_MEMWALL_COMPLETE", "bash_complete"), ("COMP_WORDS", line),
                        ("COMP_CWORD", str(len(line.split()) - 1))):  # fmt: skip
        monkeypatch.setenv(name, value)
    asked = run()
    assert asked.code == 0
    assert {row.partition(",")[2] for row in asked.out.split()} == completed


@pytest.mark.parametrize(("question", "says"), [
    ("bash_complete", "which a shell sets"), ("bash_foo", "did you mean"), ("csh_source", "no shell 'csh'"),
])  # fmt: skip
def test_e41_a_question_that_no_shell_asks_is_one_line(run, monkeypatch, question, says):
    """A question that no shell asks was answered with the help of memwall."""
    for name in ("COMP_WORDS", "COMP_CWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("_MEMWALL_COMPLETE", question)
    asked = run()
    assert asked.code == 2
    assert len(asked.err.splitlines()) == 1
    assert says in asked.err


def test_e37_a_page_of_no_columns_can_be_read(run, monkeypatch):
    """A width of 5 columns left nothing but dots; a narrow page is 40 columns wide."""
    monkeypatch.setenv("COLUMNS", "5")
    shown = run("profile", "net.py", "-q").out
    assert "parameters" in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_e41_pyproject_has_defaults(run, folder):
    """Options could be given on the command line alone."""
    (folder / "pyproject.toml").write_text('[tool.memwall]\ngpu = ["a100", "t4"]\nmode = "training"\nbatch = 3\n')
    shown = run("profile", "net.py")
    assert shown.code == 0
    assert "pyproject.toml: [tool.memwall]: gpu = a100, t4; mode = training; batch = 3" in shown.out
    assert "net, training, float32" in shown.out
    assert "float32[3,64]" in shown.out
    assert "\n  t4 " in shown.out
    over = run("profile", "net.py", "--batch", "5", "--gpu", "h100").out  # the command line goes first
    assert "float32[5,64]" in over
    assert "t4" not in over
    assert run("profile", ".memwall/last.json", "-q").code == 0  # a record is made already


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('modee = "training"', "no setting 'modee'; did you mean mode?"),
        ('mode = "trainig"', "mode: 'trainig' is not one of"),
        ("batch = true", "batch is True"),
        ("batch = [1]", "batch is [1]"),
        ("batch = 2.5", "batch: '2.5' is not a valid integer"),
        ('policy = "memwal"', "did you mean memwall?"),
        ("gpu = [", "is not TOML"),
    ],
)
def test_e41_a_wrong_default_is_one_line(run, folder, line, message):
    """What stood in [tool.memwall] was read by nobody, right or wrong."""
    (folder / "pyproject.toml").write_text(f"[tool.memwall]\n{line}\n")
    refused = run("profile", "net.py")
    assert refused.code == 2
    assert refused.out == ""
    assert len(refused.err.splitlines()) == 1
    assert "pyproject.toml" in refused.err
    assert message in refused.err
