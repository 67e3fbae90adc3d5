"""The docs: the tutorial prints what it shows, the notebook runs, the site builds with no warning and loads nothing."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from tests.cli.test_fuse import fuses_nothing
from tests.unit import gate_repo, traces_fixture
from tests.unit.gating import run_here
from tests.unit.places import CHROMIUM, ROOT, shared
from tests.unit.processes import HANGS_S

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """(language, rest of the first line, text) of each fenced block of a page."""
    return _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def assert_shown(shown: str, printed: str) -> None:
    """What is shown was printed; a line ``...`` stands for any lines, ``...`` at a line's end for its rest."""
    parts = []
    for line in shown.rstrip().splitlines():
        if line == "...":
            parts.append(r"(?:.*\n)*?")
        elif line.endswith("..."):
            parts.append(re.escape(line[:-3].rstrip("\n")) + r".*\n")
        else:
            parts.append(re.escape(line.rstrip()) + r"\n")
    text = "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())
    matched = re.fullmatch("".join(parts), text)
    assert matched, f"the page shows\n{shown}\nand this was printed\n{text}"


def test_the_guide_for_contributors_names_files_that_are_there():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.findall(r"`((?:memwall|tests|tools)/[\w/.]+)`", text)
    named = {path for path in found if "NAME" not in path}  # what is written anew
    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
    folders = {path.name for path in (ROOT / "memwall").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert {f"| `{name}` |" in text for name in folders} == {True}


def test_the_comparison_can_fail():
    assert_shown("a\n...\nb", "a\n1\n2\nb\n")
    assert_shown("a...", "abc\n")
    for shown, printed in (("a\n...\nb", "a\nc\n"), ("a", "a\nb\n"), ("a\nb", "a\n"), ("a", "ab\n")):
        with pytest.raises(AssertionError, match="the page shows"):
            assert_shown(shown, printed)


#: words of a bullet and of another paragraph, and numbers of both, at most: what has more belongs into a table
MOST_WORDS, MOST_NUMBERS = {"- ": 60, "": 200}, 12
PROSE = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def paragraphs(page: Path) -> list[str]:
    """The paragraphs and bullets of a page without its code and its tables."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = [part.strip() for part in re.split(r"\n(?=\s*\n|\s*- |\s*\|)", prose)]
    return [part for part in found if not part.startswith("|")]


@pytest.mark.defect("35")
@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_no_paragraph_of_the_docs_is_a_table_in_disguise(page):
    """A bullet of docs/accuracy.md had 613 words and 107 numbers, which nobody reads."""
    for paragraph in paragraphs(page):
        words, numbers = len(paragraph.split()), len(re.findall(r"\b\d[\d,.]*", paragraph))
        most = next(most for mark, most in MOST_WORDS.items() if paragraph.startswith(mark))
        assert words <= most and numbers <= MOST_NUMBERS, f"{words} words, {numbers} numbers: {paragraph[:60]}"


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_sentences_name_what_they_speak_of(page):
    """A noun stands where "those of" or "those that" would send the reader back to look for it."""
    found = re.findall(
        r"\bthose\s+(?:of|that|who|which|whose|in|on|with)\b[^.]{0,40}", page.read_text(encoding="utf-8")
    )
    assert found == []


(NET,) = re.findall(r"```python\n# net\.py\n(.*?)```", README, re.DOTALL)


def folder_of(page: str, folder: Path) -> Path:
    """A folder with README's model, the files that a page writes out, and what it names of the reference workloads and
    of the traces of others."""
    text = (DOCS / page).read_text(encoding="utf-8")
    (folder / "net.py").write_text(NET, encoding="utf-8")
    for place in (ROOT / "profiles", *(shared("traces") or folder).glob("*.json.gz")):
        if place.name in text:
            (folder / place.name).symlink_to(place)
    for _, rest, text in blocks(page):
        if title := re.search(r'title="([^"]+)"', rest):
            (folder / title[1]).write_text(text, encoding="utf-8")
    return folder


#: pages of one command each, and of one reader each
OF_COMMANDS = ("profile", "compare", "fuse", "bound", "triton", "serving", "load", "engines", "sweep", "clusters",
               "training", "distributed", "jax", "tpus", "xla", "measure", "gate", "traces", "open")  # fmt: skip
OF_READERS = ("optimise", "deploy", "many_gpus", "guard", "xla", "agents")


@pytest.mark.parametrize("page", OF_COMMANDS)
def test_the_page_of_a_command_begins_with_an_example(page):
    """A command and what it prints, before any prose."""
    begins = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    assert re.match(r"# [^\n]+\n\n```(console)?\n\$ memwall (?:(?!```).*\n){4,}```\n", begins)


@pytest.mark.parametrize("page", OF_READERS)
def test_the_path_of_a_reader_ends_with_five_questions(page):
    """Each with a command or a page that answers it."""
    _, _, questions = (DOCS / f"{page}.md").read_text(encoding="utf-8").partition("## Next questions\n")
    rows = re.findall(r"^\| (?!Question|-)(.+?) \| (.+) \|$", questions, re.MULTILINE)
    assert len(rows) >= 5
    assert all("](" in answer or "`memwall " in answer for _, answer in rows)
    assert f"({page}.md)" in README or f"(docs/{page}.md)" in README


def test_every_setting_of_a_gate_is_documented():
    from memwall.gate.reading import OPTIONS

    page = (DOCS / "gate.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"`{name}`" not in page] == []


def test_the_figures_of_the_comparison_stand_in_their_reports():
    """Each number of a row is one of the report that the row names."""
    page = (DOCS / "comparison.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| ([^|]*\d[^|]*) \| \[[^\]]+\]\((.+)\) \|$", page, re.MULTILINE)
    assert len(rows) >= 15
    for figure, path in rows:
        report = (DOCS / path).read_text(encoding="utf-8")
        for number in re.findall(r"\d[\d.,]*", figure):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", report), f"{path} has no {number}"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """A folder with the tutorial's files."""
    return folder_of("tutorial.md", tmp_path_factory.mktemp("tutorial"))


#: how wide the pages show what is printed, and who commits in the repositories that they make
ENVIRONMENT = {"COLUMNS": "100", **{f"GIT_{who}_{what}": "you@localhost" for who in ("AUTHOR", "COMMITTER")
                                    for what in ("NAME", "EMAIL")}}  # fmt: skip
#: what a command needs, by a word in it
NEEDS = {"--emit": "triton", "hf:": "transformers", "xla": "libtpu", "inductor": "triton", "jax": "jax"}


def lacks(command: str) -> list[str]:
    """Libraries that a command needs and that are not installed, and traces that are not at hand."""
    traces = [word for word in command.split() if word.endswith(".json.gz") and not shared(f"traces/{word}")]
    return traces + [library for word, library in NEEDS.items() if word in command and not find_spec(library)]


@pytest.fixture
def shell(forks, tmp_path):
    """``shell(folder, line)``: what a command prints in a folder, and its exit code."""

    def run(folder: Path, line: str) -> tuple[str, int]:
        words = shlex.split(line.removesuffix(ECHO))
        environment = {**os.environ, **ENVIRONMENT, "MPLCONFIGDIR": str(tmp_path / "matplotlib")}
        if words[0] == "memwall":
            ran = forks.start(*words[1:], folder=folder, environment=environment)
            out, err = ran.communicate()
            printed, code = err + out, ran.returncode  # what it does, then what came of it
        else:
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            printed, code = done.stdout + done.stderr, done.returncode
        return (f"{printed}{code}\n", 0) if line.endswith(ECHO) else (printed, code)

    return run


#: what prints the exit code of the command before
ECHO = "; echo $?"
_COMMAND = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def commands(page: str) -> list[tuple[str, str]]:
    """The commands of a page and what it shows of their output."""
    return [found for language, _, text in blocks(page) if language == "console" for found in _COMMAND.findall(text)]


def shape(line: str) -> str:
    """A line without its numbers and the widths that follow from them."""
    return re.sub(r"[\d,.]*\d", "0", re.sub(r"─+", "─", re.sub(r"\s+", " ", line))).strip()


def refreshed(shown: str, printed: str) -> str:
    """What is shown, as it is printed now: each run of lines between two ``...`` keeps its length, and begins at the
    next line that differs from its first in nothing but numbers.

    Raises:
        AssertionError: there is no such line.
    """
    now, kept, follows = iter(printed.rstrip().splitlines()), [], False
    for line in shown.rstrip().splitlines():
        if line == "...":
            kept.append(line)
        else:
            begins, whole = line.removesuffix("..."), not line.endswith("...")
            alike = (each for each in now if follows or shape(each if whole else each[: len(begins)]) == shape(begins))
            found = next(alike, None)
            assert found is not None, f"nothing like {line!r} is printed in\n{printed}"
            kept.append(found if whole else f"{found[: len(begins)]}...")
        follows = line != "..."
    return "".join(f"{line.rstrip()}\n" for line in kept)


def test_lines_are_found_again_by_all_but_their_numbers():
    printed = "net\n\ntotals\n\n  time  10.5 ms\n  ────\nmore\nends here\n"
    assert refreshed("...\ntotals\n\n  time  9 ms\n...\nends...\n", printed) == (
        "...\ntotals\n\n  time  10.5 ms\n...\nends...\n"
    )
    with pytest.raises(AssertionError, match="nothing like"):
        refreshed("...\nmean\n", printed)


PICTURES = DOCS / "pictures"
#: pages with commands, each of which runs in a folder of its own
SHOWING = tuple(sorted(path.name for path in DOCS.glob("*.md") if commands(path.name)))


@pytest.mark.parametrize("page", SHOWING)
def test_every_command_of_a_page_prints_what_it_shows(shell, page, tmp_path, request):
    """In the order of the page: later ones read what earlier ones wrote. Where nothing is shown or written, it is
    enough that the command is one. A picture on the page is the one that a command there wrote. ``--update-golden``
    writes what is printed and drawn now into the page."""
    folder, path = folder_of(page, tmp_path), DOCS / page
    update = request.config.getoption("--update-golden")
    for command, shown in commands(page):
        if lacks(command) or (shown.strip() == "..." and " -o " not in command):
            continue
        printed, code = shell(folder, command)
        assert code == 0, f"{command}: exit code {code}\n{printed}"
        if update:
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(f"$ {command}\n{shown}", f"$ {command}\n{refreshed(shown, printed)}"), "utf-8")
        else:
            assert_shown(shown, printed)
    for name in re.findall(r"\]\(pictures/([\w.]+)\)", path.read_text(encoding="utf-8")):
        drawn = (folder / name).read_text(encoding="utf-8")
        if update:
            PICTURES.mkdir(exist_ok=True)
            (PICTURES / name).write_text(drawn, encoding="utf-8")
        assert drawn == (PICTURES / name).read_text(encoding="utf-8"), f"{page}: {name} is drawn otherwise now"


def documented() -> list[tuple[str, str]]:
    """Each page, and each command that is written there without a gap: within a sentence, or as a line of a block."""
    found = []
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        fenced = "".join(re.findall(r"^```.*?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
        lines = re.findall(r"`(memwall [^`\n]+)`", text)
        lines += re.findall(r"^(?:\$ )?(memwall [\w-]+(?: .*)?)$", fenced, re.MULTILINE)
        found += [(path.name, line) for line in dict.fromkeys(lines) if "..." not in line]
    return found


def parsed(line: str) -> None:
    """A command line as click reads it, a word in capitals as any; nothing runs. What a sentence leaves out may lack.

    Raises:
        click.ClickException: there is no such command, option or value.
    """
    from memwall.cli import group

    for part in line.split(" && "):
        words = shlex.split(part.removesuffix(ECHO), comments=True)[1:]
        left_out = contextlib.suppress(click.exceptions.Exit, click.MissingParameter)
        try:
            with left_out, group.make_context("memwall", words) as context:
                if not words[0].startswith("-"):
                    name, command, rest = group.resolve_command(context, words)
                    command.make_context(name, rest, parent=context)
        except click.BadOptionUsage as error:
            if words[-1] != error.option_name:
                raise
        except click.BadParameter:
            if not any(word.isupper() for word in words):
                raise


def test_every_documented_command_is_one(tmp_path, monkeypatch):
    """Its options are there, and take these values; the one that sets up completion does so for a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert len(documented()) > 100
    wrong = []
    for page, line in documented():
        try:
            parsed(line)
        except Exception as error:
            wrong.append(f"{page}: {line}: {error!r}")
    assert wrong == []


def test_a_command_that_is_none_is_found():
    for line in ("memwall profle net.py", "memwall profile net.py --gpus h100", "memwall profile net.py --mode train"):
        with pytest.raises(click.ClickException):
            parsed(line)


@pytest.mark.parametrize(("page", "least"), [("tutorial.md", 6), ("python.md", 4)])
def test_the_python_of_a_page_prints_what_it_shows(forks, tutorial, page, least):
    """All blocks in one interpreter, a mark printed behind each."""
    found = blocks(page)
    pieces, expected = [], []
    for i, (language, rest, text) in enumerate(found):
        if language == "python" and "title=" not in rest:
            follows = found[i + 1] if i + 1 < len(found) else ("", "", "")
            pieces.append(text)
            expected.append(follows[2] if follows[0] == "text" else "")
    assert len(pieces) >= least
    code = "\nprint('=' * 40)\n".join(pieces)
    printed = forks.printed(code, folder=tutorial, **ENVIRONMENT, MPLCONFIGDIR=tutorial / "matplotlib")
    for shown, part in zip(expected, printed.split("=" * 40 + "\n"), strict=True):
        assert_shown(shown, part) if shown else None


def test_the_notebook_runs_and_shows_what_it_should(tmp_path, monkeypatch):
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    book = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    nbformat.validate(book)
    assert not any(cell.get("outputs") for cell in book.cells)  # kept without outputs
    client = nbclient.NotebookClient(book, timeout=HANGS_S, resources={"metadata": {"path": str(tmp_path)}})
    client.kernel_name = "python3"
    client.execute()
    outputs = [cell["outputs"] for cell in book.cells if cell.cell_type == "code"]
    assert outputs[0] == []
    assert all(len(output) == 1 and output[0].output_type == "execute_result" for output in outputs[1:])
    record, figure, frame, comparison, traced = (output[0].data for output in outputs[1:])
    assert "v100-sxm2-16gb" in record["text/html"] and "of the time goes to kernels" in record["text/html"]
    assert figure["image/png"].startswith("iVBOR")  # PNG in base64
    assert "contraction" in frame["text/html"]
    assert "a100-80gb-sxm" in comparison["text/html"]
    assert "Sequential, training, float32, AdamW" in traced["text/html"]


class Links(HTMLParser):
    """What a page points at and what it loads, and the ids in it."""

    def __init__(self, page: str):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.ids.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag == "link" and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(attributes.get("href", ""))
        elif attributes.get("src"):
            self.loads.append(attributes["src"])


@cache
def links(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


@pytest.mark.defect("E 40")
def test_the_readme_is_for_a_newcomer_and_its_links_lead_somewhere():
    """README held what belongs into the docs: 473 lines, in sentences that only their authors could read."""
    assert len(README.splitlines()) <= 150
    assert "png" in README.partition("\n## ")[0]  # a picture comes first
    pages = [README, *(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))]
    for phrase in ("torch's decision and our price", "loses itself", "of what the tiles compute is asked for"):
        assert not [page for page in pages if phrase in page], phrase
    linked = re.findall(r"\]\((?!http|#)([^)#]+)", README)
    assert len(linked) > 10
    assert [path for path in linked if not (ROOT / path).exists()] == []


#: a search of many layouts, and one of some
MANY, FEW = "--gpus 64 --global-batch 512", "--gpus 2 --global-batch 2"


def test_every_task_of_the_readme_works(gates, tmp_path, monkeypatch):
    """In a repository with a branch. What is measured takes minutes, and is left to other tests as Inductor's kernels
    are."""
    monkeypatch.setattr("memwall.inductor.compiled.lower", fuses_nothing)
    gate_repo.commit(tmp_path, net=NET)
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import fully_shard\nfrom net import inputs, model as whole\n"
        "def model():\n    return fully_shard(whole())\n", encoding="utf-8",
    )  # fmt: skip
    events = [
        traces_fixture.op("aten::relu", 0, 9, Input__Dims=[[64, 64]], Input__type=["float"]),
        traces_fixture.call("cudaLaunchKernel", 2, 3, 1),
        traces_fixture.kernel("relu_kernel", 8, 4, 1),
    ]
    header = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]}
    traces_fixture.write(tmp_path, events, **header).rename(tmp_path / "trace.json.gz")  # known by its content
    tasks = re.findall(r"\| `(memwall .*?)` \|", README)
    assert len(tasks) == 24 and sum(MANY in task for task in tasks) == 1
    (tmp_path / "DIR").mkdir()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 99, "max_position_embeddings": 8192, **sizes}
    (tmp_path / "DIR" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "vit.py").write_text(NET, encoding="utf-8")
    page = (ROOT / "docs" / "jax.md").read_text(encoding="utf-8")
    (program,) = re.findall(r'```python title="step\.py"\n(.*?)```', page, re.DOTALL)
    for name in ("step.py", "jax_vit.py"):
        (tmp_path / name).write_text(program, encoding="utf-8")
    gate_repo.git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    for task in tasks:
        if "measure" not in task and not lacks(task):
            with gates.shared():
                code, out, err = run_here(tmp_path, *shlex.split(task.replace(MANY, FEW))[1:])
            assert (code, bool(out)) == (0, True), f"{task}: {err}"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in ("mkdocs", "material", "mkdocstrings", "mkdocs_click"):
        pytest.importorskip(name, reason=f"{name} is not installed (pip install 'memwall-roofline[docs]')")
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9",
                   "https_proxy": "http://127.0.0.1:9"}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
                          cwd=ROOT, env=environment, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return folder


PAGES = tuple(path.stem for path in DOCS.glob("*.md"))


def test_the_site_has_its_pages_and_they_load_nothing_from_elsewhere(site):
    assert {path.stem for path in site.glob("*.html")} == {*PAGES, "404"}
    assert not list(site.rglob("*.py"))
    for name in PAGES:
        found = links(site / f"{name}.html")
        assert found.loads
        assert not [load for load in found.loads if load.startswith(("http", "//"))]
        for link in found.links:
            if not link.startswith(("http", "mailto")):
                path, _, fragment = link.partition("#")
                target = site / (path or f"{name}.html")
                assert target.exists(), f"{name}.html points at {link}"
                if fragment and target.suffix == ".html":
                    assert fragment in links(target).ids, link
    for style in site.rglob("*.css"):
        assert "fonts.googleapis" not in style.read_text(encoding="utf-8")


def test_the_reference_has_every_command_and_every_public_name(site):
    import memwall
    from memwall.cli import COMMANDS as COMMAND_LINE

    commands = (site / "commands.html").read_text(encoding="utf-8")
    for name in COMMAND_LINE:
        assert f"memwall {name} [OPTIONS]" in commands, name
    assert "--explain" in commands
    ids = links(site / "python.html").ids
    last = {name.rpartition(".")[2] for name in ids if name and name.startswith("memwall.")}
    assert last >= set(memwall.__all__) - {"__version__"}
    assert last >= {"to_pandas", "roofline", "save", "load"}


def test_no_page_has_a_placeholder_or_raw_markup_left(site):
    for name in PAGES:
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        body = re.sub(r"<(script|style|code|pre)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"\{\{|\]\([a-z]|:func:|:class:|``|::: ", body), name


@pytest.mark.browser
def test_a_browser_shows_the_pages_without_a_network(site, tmp_path):
    if CHROMIUM is None:
        pytest.skip("needs a headless Chromium (apt-get install chromium)")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
        "--proxy-server=127.0.0.1:9", f"--user-data-dir={tmp_path}/user", "--dump-dom", f"file://{site}/python.html",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=True)
    assert 'class="js' in done.stdout or "js " in done.stdout  # the theme's script ran
    assert "to_pandas" in done.stdout
