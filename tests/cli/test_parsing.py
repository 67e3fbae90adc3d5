"""The parts of the command line that decide before any work is done."""

import click
import pytest

from memwall.cli import COMMANDS, group
from memwall.cli.options import parse_prices, profile_options, words_given
from memwall.cli.output import SUFFIXES, Out, plan_output
from memwall.cli.parsing import spread
from memwall.core.errors import MissingError, UsageError
from memwall.report.pages.profile import ProfileReport


@pytest.mark.parametrize(("given", "wanted"), [
    ("--gpu a100 h100", "--gpu a100 --gpu h100"),
    ("m.py --gpu v100 h100 --mode training", "m.py --gpu v100 --gpu h100 --mode training"),
    ("--gpu v100 h100 m.py", "--gpu v100 --gpu h100 m.py"),
    ("--gpu v100 h100 m.py:Net t4", "--gpu v100 --gpu h100 m.py:Net t4"),
    ("--gpu v100 pkg.mod:Net", "--gpu v100 pkg.mod:Net"),
    ("--gpu v100 old.json new.json", "--gpu v100 old.json new.json"),
    ("--gpu v100 a100 trace.json.gz", "--gpu v100 --gpu a100 trace.json.gz"),
    ("--gpu dir/mine.toml other.toml", "--gpu dir/mine.toml --gpu other.toml"),
    ("--gpu=a100 h100", "--gpu=a100 --gpu h100"),
    ("--gpu a100 --gpu h100 t4", "--gpu a100 --gpu h100 --gpu t4"),
    ("--gpu a100 -- h100", "--gpu a100 -- h100"),
    ("--gpu a100 -q h100", "--gpu a100 -q h100"),
    ("--gpu", "--gpu"),
    ("--batch 3 net", "--batch 3 net"),
])  # fmt: skip
def test_several_values_after_one_flag(given, wanted):
    assert spread(given.split(), {"--gpu"}) == wanted.split()


def test_a_device_name_with_blanks_is_one_value():
    assert spread(["--gpu", "NVIDIA H100 80GB HBM3", "t4"], {"--gpu"}) == [
        "--gpu", "NVIDIA H100 80GB HBM3", "--gpu", "t4",
    ]  # fmt: skip


def test_the_tables_agree():
    assert set(SUFFIXES.values()) == set(ProfileReport.kinds)
    assert {name: group.get_command(None, name).name for name in COMMANDS} == {name: name for name in COMMANDS}


def test_only_what_was_given_is_passed_on():
    nothing = {"mode": None, "batch": None, "input_specs": (), "strict": False, "no_replay": False, "optimizer": None}
    assert profile_options(nothing) == {}
    assert profile_options({**nothing, "no_replay": True, "policies": ("eager",)}) == {
        "replay": False, "policy": ["eager"],
    }  # fmt: skip
    training = {"mode": "training", "optimizer": "sgd"}
    assert profile_options({**nothing, **training}) == training


def test_an_adamw_asked_for_replaces_the_file_s_own_optimizer():
    asked = profile_options({"mode": "training", "optimizer": "adamw"})
    assert asked == {"mode": "training", "optimizer": "adamw:foreach"}


def test_the_suffix_says_the_kind(tmp_path):
    names = ["a.json", "a.trace.json", "A.HTML", "a.b.png", "a.txt"]
    out = Out([str(tmp_path / name) for name in [*names, "a.txt"]])  # the last one is named twice
    out.plan(ProfileReport)
    assert [output.kind for output in out.files] == ["json", "trace.json", "html", "png", "text"]


@pytest.mark.parametrize(("name", "says"), [
    ("a.gif", "end the name in one of .trace.json .json"),
    ("a", "end the name in one of"),
    ("none/a.png", "there is no folder"),
    ("d.png", "it is a folder"),
])  # fmt: skip
def test_a_file_that_cannot_be_written_is_refused_early(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.png").mkdir()
    with pytest.raises(UsageError, match=r"cannot") as caught:
        plan_output(name, ProfileReport.kinds)
    assert says in str(caught.value)


def test_parquet_without_pyarrow(monkeypatch):
    monkeypatch.setattr("memwall.cli.output.find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"pip install 'memwall-roofline\[parquet\]'"):
        plan_output("a.parquet", ProfileReport.kinds)


def test_prices():
    assert parse_prices(["h100=2.5", "a100 = 1"]) == {"h100": 2.5, "a100 ": 1.0}
    for text in ("h100", "=3", "h100=", "h100=cheap", "h100=-1", "h100=0", "h100=nan", "h100=inf"):
        with pytest.raises(UsageError, match="NAME=USD above 0"):
            parse_prices([text])


@pytest.mark.defect("19")
@pytest.mark.parametrize("command", ["compare", "serve", "search", "sweep"])
def test_a_price_of_nothing_is_refused_by_every_command(run, command):
    """Two parsers of prices had two rules: one command dropped a price of 0 without a word, another refused it."""
    words = {"compare": ("--gpu", "h100", "a100"), "sweep": ("--vary", "gpu=h100")}.get(command, ())
    result = run(command, "net.py", *words, "--price", "h100=0")
    assert result.code == 2
    assert "--price takes NAME=USD above 0, such as h100=2.5, not 'h100=0'" in result.err


def test_the_words_that_were_given_make_the_command_again():
    """What says where the result goes is left out, and so is what is named; a flag has no value."""

    @click.command()
    @click.option("--gpu", multiple=True)
    @click.option("--batch", type=int, default=1)
    @click.option("--measured", is_flag=True)
    @click.option("--mode", default="inference")
    @click.option("--update", is_flag=True)
    @click.option("-q", "--quiet", is_flag=True)
    def asked(**_):
        return words_given(but=("update",))

    line = ["--gpu", "a100", "--gpu", "my gpu.toml", "--batch", "4", "--measured", "--update", "-q"]
    words = asked.main(line, standalone_mode=False)
    assert words == ("--gpu", "a100", "--gpu", "my gpu.toml", "--batch", "4", "--measured")
