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
from tests.unit.places import CHROMIUM, ROOT
from tests.unit.processes import HANGS_S

DOCS = ROOT / "docs"

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


#: words and numbers of a paragraph, or of a bullet, at most: what has more belongs into a table
MOST_WORDS, MOST_NUMBERS = 360, 50


@pytest.mark.defect("35")
def test_no_paragraph_of_the_docs_is_a_table_in_disguise():
    """A bullet of docs/accuracy.md had 613 words and 107 numbers, which nobody reads."""
    for page in sorted(DOCS.glob("*.md")):
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for paragraph in re.split(r"\n(?=\s*\n|\s*- |\s*\|)", prose):
            if not paragraph.lstrip().startswith("|"):
                words, numbers = len(paragraph.split()), len(re.findall(r"\b\d[\d,.]*", paragraph))
                assert words <= MOST_WORDS and numbers <= MOST_NUMBERS, f"{page.name}: {paragraph.strip()[:60]}"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """A folder with the tutorial's files."""
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "profiles").symlink_to(ROOT / "profiles")
    for _, rest, text in blocks("tutorial.md"):
        if title := re.search(r'title="([^"]+)"', rest):
            (folder / title[1]).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def shell(forks, tutorial):
    """``shell(line)``: what a command prints in the tutorial's folder, and its exit code."""

    def run(line: str) -> tuple[str, int]:
        words = shlex.split(line.removesuffix(ECHO))
        environment = {**os.environ, "COLUMNS": "118", "MPLCONFIGDIR": str(tutorial / "matplotlib")}
        if words[0] == "memwall":
            ran = forks.start(*words[1:], folder=tutorial, environment=environment)
            out, err = ran.communicate()
            printed, code = err + out, ran.returncode  # what it does, then what came of it
        else:
            done = subprocess.run(words, cwd=tutorial, capture_output=True, text=True, check=False)
            printed, code = done.stdout + done.stderr, done.returncode
        return (f"{printed}{code}\n", 0) if line.endswith(ECHO) else (printed, code)

    return run


#: what prints the exit code of the command before
ECHO = "; echo $?"


def commands(page: str) -> list[tuple[str, str]]:
    """The commands of a page and what it shows of their output."""
    return [
        found
        for language, _, text in blocks(page)
        if language == "console"
        for found in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE)
    ]


@pytest.mark.parametrize(("page", "least"), [("tutorial.md", 9), ("profile.md", 2), ("fuse.md", 1)])
def test_every_command_of_a_page_prints_what_it_shows(shell, page, least):
    """In the order of the page, in one folder: later ones read what earlier ones wrote. Where nothing is shown or
    written, it is enough that the command is one."""
    assert len(commands(page)) >= least
    for command, shown in commands(page):
        if shown.strip() != "..." or " -o " in command:
            printed, code = shell(command)
            assert code == 0, f"{command}: exit code {code}\n{printed}"
            assert_shown(shown, printed)


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


def test_the_tutorials_python_prints_what_it_shows(tutorial):
    """All blocks in one interpreter, a mark printed behind each."""
    found = blocks("tutorial.md")
    pieces, expected = [], []
    for i, (language, rest, text) in enumerate(found):
        if language == "python" and "title=" not in rest:
            follows = found[i + 1] if i + 1 < len(found) else ("", "", "")
            pieces.append(text)
            expected.append(follows[2] if follows[0] == "text" else "")
    assert len(pieces) >= 6
    code = "\nprint('=' * 40)\n".join(pieces)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "118",
        "MPLCONFIGDIR": str(tutorial / "matplotlib"),
    }
    done = subprocess.run([sys.executable, "-"], input=code, cwd=tutorial, env=environment, capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for shown, part in zip(expected, done.stdout.split("=" * 40 + "\n"), strict=True):
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


README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.defect("E 40")
def test_the_readme_is_for_a_newcomer_and_its_links_lead_somewhere():
    """README held what belongs into the docs: 473 lines, in sentences that only their authors could read."""
    assert len(README.splitlines()) <= 180
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
    (model,) = re.findall(r"```python\n# net\.py\n(.*?)```", README, re.DOTALL)
    gate_repo.commit(tmp_path, net=model)
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
    assert len(tasks) == 25 and sum(MANY in task for task in tasks) == 1
    (tmp_path / "DIR").mkdir()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 99, "max_position_embeddings": 8192, **sizes}
    (tmp_path / "DIR" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "vit.py").write_text(model, encoding="utf-8")
    page = (ROOT / "docs" / "jax.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n# step\.py\n(.*?)```", page, re.DOTALL)
    for name in ("step.py", "jax_vit.py"):
        (tmp_path / name).write_text(program, encoding="utf-8")
    needs = {"--emit": "triton", "hf:": "transformers", "xla": "libtpu"}
    gate_repo.git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    for task in tasks:
        if "measure" not in task and all(find_spec(library) for word, library in needs.items() if word in task):
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
