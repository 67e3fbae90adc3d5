"""The package: public names, versions, and that it runs from a checkout, a wheel and an editable install alike."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import typing
import venv
import zipfile
from pathlib import Path

import pytest

import memwall
from tests.unit.places import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

FUNCTIONS = {
    "bound", "comm", "compare", "fuse", "gate", "load_gpu", "on_host", "parallel", "profile", "register_cost", "search",
    "search_layouts", "serve", "sweep", "trace",
}  # fmt: skip
PUBLIC = FUNCTIONS | {
    "Call", "Comparison", "Cost", "Gpu", "MemwallError", "Pipe", "Profile", "Workload", "__version__",
}  # fmt: skip


def python(code: str, **options) -> str:
    """What a fresh interpreter prints, run in the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_resolve():
    assert set(memwall.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(memwall, name) is not None
    assert set(dir(memwall)) >= PUBLIC
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        memwall.nonsense  # noqa: B018


def test_importing_memwall_imports_nothing_else():
    loaded = python("import sys, memwall; print(*sorted(m for m in sys.modules if m.startswith('memwall')))")
    assert loaded == "memwall memwall.core memwall.core.version"


@pytest.mark.parametrize("code", [
    "import memwall.pipeline, memwall; print(callable(memwall.profile), callable(memwall.compare))",
    "from memwall import profile, compare; import memwall.pipeline; print(callable(profile), callable(compare))",
    "import memwall as m; m.Profile, m.Comparison; print(callable(m.profile), callable(m.compare))",
])  # fmt: skip
def test_profile_and_compare_are_functions_whatever_was_imported(code):
    assert python(code) == "True True"


def test_no_module_stands_in_the_way_of_a_public_name():
    modules = {path.stem for path in (ROOT / "memwall").iterdir() if path.suffix or (path / "__init__.py").is_file()}
    assert PUBLIC & modules == {"gate"}  # which can be called: see below


def test_the_folder_of_the_gate_is_called_as_the_function():
    code = """
import inspect
import memwall
before = callable(memwall.gate)
import memwall.gate.question
from memwall import gate
options = inspect.signature(gate).parameters
print(before, callable(gate), gate is memwall.gate, "baseline_ref" in options, memwall.gate.question.__name__)
"""
    assert python(code) == "True True True True memwall.gate.question"
    assert python("import memwall.gate.question, memwall; print(callable(memwall.gate))") == "True"


def test_a_function_says_its_options_to_an_editor():
    """They are keywords of typed dictionaries, which ``inspect.signature`` did not have."""
    for name, option in {"profile": "batch", "fuse": "mode", "bound": "measured", "serve": "concurrency",
                         "search": "weights", "search_layouts": "cluster", "parallel": "seq", "comm": "library",
                         "sweep": "where"}.items():  # fmt: skip
        parameter = inspect.signature(getattr(memwall, name)).parameters[option]
        assert parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation is not parameter.empty, name


def test_the_version_stands_in_one_place():
    assert re.fullmatch(r"\d+\.\d+\.\d+", memwall.__version__)
    assert "version" in PROJECT["dynamic"]
    assert "version" not in PROJECT


#: what would install the program that has the name ``memwall`` on the package index: an extra, a pin, a command
FOREIGN = re.compile(
    r"""\bmemwall\[[a-z]|\bmemwall[=~<>!]=?\d"""
    r"""|\b(?:pip[3x]?|uvx?|poetry|pdm|conda)\b[^\n`&|;]*\b(?:install|add|run|download)\b[^\n`&|;]*[\s'"]memwall(?![\w./@-])"""
)


@pytest.mark.parametrize(("line", "foreign"), [
    ("pip install memwall", True), ("python -m pip install -q -r requirements.txt memwall", True),
    ("uv add 'memwall'", True), ("pipx install memwall && memwall gpus", True), ("'memwall[triton]'", True),
    ("memwall==0.1.0", True), ("pip install .; memwall gpus", False), ("pip install memwall-roofline", False),
    ("pip install 'memwall-roofline[hf]'", False), ("pip install ./memwall", False), ('table["memwall"]', False),
])  # fmt: skip
def test_text_that_would_install_the_other_memwall_is_recognised(line, foreign):
    assert bool(FOREIGN.search(line)) == foreign


@pytest.mark.defect("3")
def test_nothing_in_the_repository_installs_the_other_memwall():
    """Messages, documents and examples of CI named ``memwall``, which on the package index is another program."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name and ROOT / name != Path(__file__)]
    assert ROOT / "examples/ci/gitlab.yml" in paths
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in paths
        if path.is_file()
        for match in FOREIGN.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


@pytest.mark.defect("3")
def test_the_distribution_has_a_name_of_its_own_and_every_hint_says_it():
    """There was no one place for the name of the distribution; each message spelled it."""
    from memwall.core.errors import install
    from memwall.core.version import DISTRIBUTION

    assert PROJECT["name"] == DISTRIBUTION == "memwall-roofline"
    assert PROJECT["scripts"] == {"memwall": "memwall.cli:main"}
    assert install("hf") == "pip install 'memwall-roofline[hf]'"
    extras = set(re.findall(r"""install\(['"](\w+)['"]\)""", _all_source()))
    assert {"parquet", "triton"} <= extras <= set(PROJECT["optional-dependencies"])


def test_the_public_functions_are_typed():
    for name in FUNCTIONS:
        function = inspect.unwrap(typing.cast("typing.Any", getattr(memwall, name)))
        assert "return" in function.__annotations__, name
    assert (ROOT / "memwall" / "py.typed").is_file()


def test_every_extra_and_pin_is_consistent():
    """What `make` installs is pinned, and the floor of each requirement lies at or under its pin."""
    pins = _pins("constraints.txt")
    needed = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]
    for requirement in needed:
        name, _, floor = requirement.partition(";")[0].partition(">=")
        if not floor:
            continue
        pin = [int(n) for n in pins[name].split(".")]
        assert [int(n) for n in floor.split(".")] <= pin, requirement
    for module, extra in re.findall(r'need\("(\w+)", "(\w+)"\)', _all_source()):
        assert any(module in r.partition(">=")[0] for r in PROJECT["optional-dependencies"][extra])  # yaml of pyyaml


def _pins(name: str) -> dict[str, str]:
    return dict(line.split("==") for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if "==" in line)


@pytest.mark.defect("2")
def test_the_floors_are_what_the_oldest_set_installs():
    """pyproject.toml promised floors that no environment ever had.

    A pin has more digits than its floor, as the first release of a floor has; torch is pinned as in constraints.txt.
    """
    extras = PROJECT["optional-dependencies"]
    promised = [*PROJECT["dependencies"], *(each for name in ("parquet", "dask", "fit", "hf", "triton")
                                            for each in extras[name])]  # fmt: skip
    floors = dict(requirement.partition(";")[0].split(">=") for requirement in promised)
    pins = _pins("constraints-oldest.txt")
    assert pins.pop("torch") == _pins("constraints.txt")["torch"] and floors.pop("torch")
    assert floors.keys() <= pins.keys()
    assert {name for name, floor in floors.items() if not f"{pins[name]}.".startswith(f"{floor}.")} == set()


@pytest.mark.defect("2")
def test_the_newest_set_is_resolved_and_what_changed_is_said():
    """Nobody was told that a library had a newer version than the one that is tested."""
    from tools.newest import resolved

    known = {"torch": ["2.15.0", "2.14.0+cpu", "2.14.0", "2.13.0"], "rich": ["16.0.1", "15.0.0"], "click": ["8.5.1"]}
    text, changed = resolved("# why\ntorch==2.13.0\nrich==15.0.0\nclick==8.5.1\n", known.__getitem__)
    assert text == "# why\ntorch==2.14.0\nrich==16.0.1\nclick==8.5.1\n"
    assert changed == ["torch 2.13.0 -> 2.14.0", "rich 15.0.0 -> 16.0.1"]


def _all_source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "memwall").rglob("*.py"))


def run(folder: Path, *command: object, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | env
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of what a clone would hold, so that building leaves nothing in the real one."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 is not installed")
    copy = tmp_path_factory.mktemp("checkout") / "memwall"
    copy.mkdir()
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("memwall", "hardware_specs"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture
def bare(tmp_path) -> Path:
    """A virtual environment that sees this one's packages, and no memwall."""
    folder = tmp_path / "venv"
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    packages = [entry for entry in sys.path if entry.endswith("site-packages")]
    # as plain path entries, so that an editable install of memwall in there does not take part
    (site / "outer.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
    return folder


PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
PROBE = (
    "import memwall, memwall.hardware.lookup as h; from pathlib import Path; "
    "print(Path(memwall.__file__).parent); print(len(h.gpu_names())); print(memwall.load_gpu('h100').dram_bytes_per_s)"
)


def same_everywhere(python: Path, where: Path, home: Path, tmp_path: Path) -> None:
    """The installed memwall lies in ``home``, finds all GPUs, and writes the record that the checkout writes."""
    place, count, bandwidth = run(where, python, "-c", PROBE).stdout.split()
    assert Path(place).resolve().is_relative_to(home.resolve())
    assert int(count) == len(list((ROOT / "hardware_specs").glob("*.toml")))
    assert float(bandwidth) == memwall.load_gpu("h100").dram_bytes_per_s
    (tmp_path / "net.py").write_text(
        "import torch\ndef model(): return torch.nn.Linear(8, 8)\ndef inputs(): return (torch.randn(2, 8),)\n",
        encoding="utf-8",
    )
    script = python.parent / "memwall"
    command = [script] if script.is_file() else [python, "-m", "memwall"]
    run(tmp_path, *command, "profile", "net.py", "--gpu", "t4", "-q", "-o", "installed.json", "-o", "installed.html")
    run(tmp_path, sys.executable, "-m", "memwall", "profile", "net.py", "--gpu", "t4", "-q", "-o", "checkout.json",
        PYTHONPATH=str(ROOT), PYTHONHASHSEED="7")  # fmt: skip
    assert (tmp_path / "installed.json").read_bytes() == (tmp_path / "checkout.json").read_bytes()


@pytest.mark.slow
def test_wheel(checkout, bare, tmp_path):
    run(tmp_path, sys.executable, *PIP, "wheel", checkout, "--no-deps", "--no-build-isolation", "-w", tmp_path / "dist")
    (wheel,) = (tmp_path / "dist").glob("memwall_roofline-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    specs = {f"memwall/hardware_specs/{path.name}" for path in (ROOT / "hardware_specs").glob("*.toml")}
    templates = {
        f"memwall/report/templates/{p.name}" for p in (ROOT / "memwall/report/templates").iterdir() if p.is_file()
    }
    assert names >= specs | templates | {"memwall/py.typed", "memwall/cli/__init__.py"}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]
    run(tmp_path, sys.executable, *PIP, "--python", bare / "bin/python", "install", "--no-deps", "--no-index", wheel)
    same_everywhere(bare / "bin" / "python", tmp_path, bare, tmp_path)
    assert run(tmp_path, bare / "bin" / "memwall", "gpus", "h100").stdout.startswith("NVIDIA H100")


@pytest.mark.slow
def test_editable(checkout, bare, tmp_path):
    interpreter = bare / "bin" / "python"
    run(tmp_path, sys.executable, *PIP, "--python", interpreter, "install", "--no-deps", "--no-build-isolation",
        "--no-index", "--editable", checkout)  # fmt: skip
    same_everywhere(interpreter, tmp_path, checkout, tmp_path)


@pytest.mark.slow
def test_source_distribution_holds_the_specs(checkout, tmp_path):
    code = f"from setuptools import build_meta; print(build_meta.build_sdist({str(tmp_path)!r}))"
    run(checkout, sys.executable, "-c", code)
    (path,) = tmp_path.glob("memwall_roofline-*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"hardware_specs/{path.name}" for path in (ROOT / "hardware_specs").glob("*.toml")} <= names
    assert "memwall/py.typed" in names
