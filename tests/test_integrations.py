"""The GitHub Action, the examples for CI and the pre-commit hook: valid by their consumers' own rules, and really run.

The scripts of the composite action are taken from ``action.yml`` and run by bash as the runner does, in clones of a
repository made here, with ``gh``, ``pip`` or ``memwall`` replaced by recorders where the network or time is saved.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.places import ROOT

EXAMPLES = ROOT / "examples" / "ci"
WORKFLOWS = ROOT / ".github" / "workflows"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = ACTION["runs"]["steps"]
SCRIPTS = {step["id"]: step["run"] for step in STEPS if "run" in step}
BIN = Path(sys.executable).parent

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, x):
        return torch.relu(self.fc(x))


def model():
    return Net()


def inputs():
    return (torch.zeros(8, 64),)
"""
WORSE = NET.replace("torch.relu(self.fc(x))", "torch.relu(self.fc(x)) + 1")
LIMITS = 'kernels = "+0"\ndram_bytes = "+0.5%"\n'  # not all that there are: graph breaks take seconds to look for
CONFIG = f'[gate]\ngpu = "h100"\n{LIMITS}\n[gate.workloads.net]\ntarget = "net.py"\n'


def tool(name: str) -> str:
    """The path of a program that is installed beside this Python, or in PATH."""
    found = shutil.which(name, path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


# -- their consumers' rules --------------------------------------------------------------------------------------------

SCHEMAS = {
    "action.yml": ("vendor.github-actions",),
    ".github/workflows/ci.yml": ("vendor.github-workflows",),
    ".github/workflows/release.yml": ("vendor.github-workflows",),
    "examples/ci/memwall.yml": ("vendor.github-workflows",),
    "examples/ci/gitlab.yml": ("vendor.gitlab-ci", "--data-transform", "gitlab-ci"),
}


def check_schema(path: Path, schema: str, *options: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.parametrize("name", SCHEMAS)
def test_it_is_valid_by_the_published_schema(name):
    done = check_schema(ROOT / name, *SCHEMAS[name])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("name", "old", "new"), [
    ("action.yml", "using: composite", "using: something"),
    ("examples/ci/memwall.yml", "contents: read", "contents: maybe"),
    ("examples/ci/gitlab.yml", "when: always", "when: sometimes"),
])  # fmt: skip
def test_the_schema_does_refuse(tmp_path, name, old, new):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "file.yml").write_text(text.replace(old, new), encoding="utf-8")
    assert check_schema(tmp_path / "file.yml", *SCHEMAS[name]).returncode == 1


def test_pre_commit_takes_the_hooks_and_the_example():
    pytest.importorskip("pre_commit")
    for command, path in (
        ("validate-manifest", ROOT / ".pre-commit-hooks.yaml"),
        ("validate-config", EXAMPLES / "pre-commit-config.yaml"),
    ):
        subprocess.run([sys.executable, "-m", "pre_commit", command, str(path)], check=True)


def test_actionlint_finds_nothing():
    files = [EXAMPLES / "memwall.yml", *sorted(WORKFLOWS.glob("*.yml"))]
    done = subprocess.run([tool("actionlint"), *map(str, files)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("step", SCRIPTS)
def test_shellcheck_finds_nothing(step):
    done = subprocess.run([tool("shellcheck"), "--shell=bash", "-"], input=f"set -eo pipefail\n{SCRIPTS[step]}",
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stdout


# -- their own rules ---------------------------------------------------------------------------------------------------


def test_no_expression_stands_inside_a_script():
    assert SCRIPTS and not [step for step, script in SCRIPTS.items() if "${{" in script]
    workflow = yaml.safe_load((EXAMPLES / "memwall.yml").read_text(encoding="utf-8"))
    assert not [step for step in workflow["jobs"]["gate"]["steps"] if "run" in step]


def test_every_input_is_used_and_every_used_one_is_declared():
    used = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text(encoding="utf-8")))
    assert used == set(ACTION["inputs"])
    assert all("default" in row and row["description"] for row in ACTION["inputs"].values())


def test_a_script_reads_what_its_step_hands_it():
    runner = {"GITHUB_OUTPUT", "GITHUB_REPOSITORY", "GITHUB_SHA", "RUNNER_TEMP"}
    for step in STEPS:
        read = set(re.findall(r"\$\{?([A-Z_]{3,})", step.get("run", "")))
        given = set(step.get("env", {})) - {"GH_TOKEN", "PIP_DISABLE_PIP_VERSION_CHECK"}
        assert given <= read <= given | runner, step["name"]


def test_the_example_uses_inputs_and_outputs_that_there_are():
    text = (EXAMPLES / "memwall.yml").read_text(encoding="utf-8")
    (step,) = [s for s in yaml.safe_load(text)["jobs"]["gate"]["steps"] if s.get("id") == "gate"]
    assert set(step["with"]) <= set(ACTION["inputs"])
    assert set(re.findall(r"steps\.gate\.outputs\.(\w+)", text)) <= set(ACTION["outputs"])


def test_the_example_asks_for_no_more_than_it_needs():
    workflow = yaml.safe_load((EXAMPLES / "memwall.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert "permissions" not in workflow["jobs"]["gate"]
    assert "pull_request_target" not in str(workflow[True])  # YAML reads the key "on" as true


@pytest.mark.parametrize(
    "path", [ROOT / "action.yml", ROOT / ".pre-commit-hooks.yaml", *sorted(EXAMPLES.iterdir())], ids=lambda p: p.name
)
def test_every_option_of_memwall_gate_there_is_one(path):
    from memwall.gate.command import command

    known = {flag for parameter in command.params for flag in parameter.opts}
    text = path.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.search(r"memwall gate --|each -|arguments\+?=\(|^ +-o ", line)]
    used = {flag for line in lines for flag in re.findall(r"(?<=[\s(\"])(--?[a-z][a-z-]*)", line)}
    assert used <= known, used - known
    assert used or path.name in (".pre-commit-hooks.yaml", "memwall.yml")


def test_the_comment_is_found_by_the_line_that_the_report_begins_with():
    from memwall.gate.comment import MARKER

    assert f"mark='{MARKER}'" in SCRIPTS["comment"]


# -- the workflows of this repository ----------------------------------------------------------------------------------


def jobs(name: str) -> dict[str, Any]:
    """The jobs of a workflow; YAML reads the key ``on`` as true."""
    return yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))["jobs"]


def commands(job: dict[str, Any]) -> list[str]:
    """What a job runs, with each value of its matrix in place."""
    matrix = job.get("strategy", {}).get("matrix", {})
    made = [step["run"] for step in job.get("steps", ()) if "run" in step]
    for key, values in matrix.items():
        place = f"${{{{ matrix.{key} }}}}"
        made = [text.replace(place, str(value)) for text in made for value in (values if place in text else [place])]
    return made


def test_a_workflow_makes_what_the_makefile_has():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^([\w -]+):(?!=)", makefile, re.MULTILINE) for name in line.split()}
    lines = re.findall(r"^make (.*?)(?: \|\| .*)?$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    called = [word for line in lines for word in line.split() if not word.startswith("-") and "=" not in word]
    assert called == ["xla", "check", "test-newest", "test-oldest", "gate", "test"]
    texts = [text for job in jobs("ci.yml").values() for text in commands(job)]
    assert [text for text in texts if not text.startswith(("make ", "python -m pip install "))] == []
    made = {target for text in texts for target in re.findall(r"\bmake ([a-z-]+)", text)}
    assert made >= {"check", "gate", "docs", "test", "test-fast", "demo", "release-check", *SETS}
    assert {*called} | made <= targets


#: tests with the newest and with the oldest versions of what memwall needs
SETS = {"test-newest", "test-oldest"}


def test_the_tests_run_on_every_python_that_is_promised():
    import tomllib

    said = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    promised = {text.rpartition(" ")[2] for text in said if text.startswith("Programming Language :: Python :: 3.")}
    matrix = jobs("ci.yml")["test"]["strategy"]["matrix"]
    assert set(matrix["python"]) >= promised >= {"3.11", "3.12"}
    assert "macos" in jobs("ci.yml")["macos"]["runs-on"]


def test_only_a_tag_publishes_and_only_what_was_checked():
    release = yaml.safe_load((WORKFLOWS / "release.yml").read_text(encoding="utf-8"))
    assert release[True] == {"push": {"tags": ["v*"]}} and release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == "ci"
    assert release["jobs"]["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip
    *_, checked, kept = jobs("ci.yml")["wheel"]["steps"]
    assert checked["run"].startswith("make release-check") and kept["with"] == publish["steps"][0]["with"]


@pytest.mark.parametrize(("tag", "code"), [("v{}", 0), ("v{}.1", 1), ("{}", 0), ("v9", 1)])
def test_a_tag_of_another_version_is_refused(tag, code):
    from memwall import __version__

    (script,) = [step["run"] for step in jobs("release.yml")["version"]["steps"] if "run" in step]
    environment = {**os.environ, "GITHUB_REF_NAME": tag.format(__version__)}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment, capture_output=True)
    assert done.returncode == code


# -- the scripts, run --------------------------------------------------------------------------------------------------


class Runner:
    """A job's machine: folders of its own, programs that record how they were called, and files that steps write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.temp = folder / "runner temp"
        for made in (self.bin, self.temp):
            made.mkdir()
        self.environment = {
            "PATH": f"{self.bin}:{BIN}:{os.environ['PATH']}", "HOME": str(folder), "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(self.temp), "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_SHA": "none", "GIT_CONFIG_GLOBAL": "/dev/null",
        }  # fmt: skip

    def program(self, name: str, script: str) -> Path:
        """A program in PATH that writes its arguments, one a line, into a file and runs a script."""
        path, record = self.bin / name, self.folder / f"{name}.called"
        path.write_text(f"#!/bin/bash\n{{ printf '%s\\n' \"$@\"; echo ---; }} >>'{record}'\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IEXEC)
        return record

    def step(self, name: str, place: Path, **variables: str) -> tuple[int, dict[str, str], str]:
        """Exit code, outputs and standard output of a step; inputs that are not given have their defaults."""
        (step,) = [row for row in STEPS if row.get("id") == name]
        output, summary = self.folder / f"{name}.output", self.folder / f"{name}.summary"
        output.write_text("")
        given = {
            key: ACTION["inputs"][found[1]]["default"] if (found := re.search(r"inputs\.([\w-]+)", value)) else ""
            for key, value in step["env"].items()
        }
        files = {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        script = self.folder / f"{name}.sh"
        script.write_text(step["run"])
        done = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], cwd=place,
                              env={**self.environment, **given, **files, **variables}, capture_output=True,
                              text=True)  # fmt: skip
        rows = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done.returncode, rows, done.stdout + done.stderr


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)


class Remote:
    """A repository as a forge has it: main with three commits, a pull request from the second, merged into the last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        }  # fmt: skip
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "uploadpack.allowAnySHA1InWant", "true")
        self.first = self.commit("net.py", NET, "memwall.toml", CONFIG)
        self.second = self.commit("readme", "1")
        self.git("switch", "-qc", "change")
        self.change = self.commit("net.py", WORSE)
        self.git("switch", "-q", "main")
        self.third = self.commit("readme", "2")
        self.git("switch", "-q", "--detach")
        self.git("merge", "-q", "--no-ff", "--no-edit", "change")
        self.merged = self.git("rev-parse", "HEAD")
        self.git("update-ref", "refs/pull/1/merge", "HEAD")
        self.git("switch", "-q", "main")

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd or self.folder, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, *files: str) -> str:
        for name, text in zip(files[::2], files[1::2], strict=True):
            (self.folder / name).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-qm", files[0])
        return self.git("rev-parse", "HEAD")

    def checkout(self, place: Path, commit: str, depth: int = 1) -> Path:
        """What actions/checkout leaves: one commit, detached, no history unless depth is 0."""
        place.mkdir()
        self.git("init", "-q", ".", cwd=place)
        self.git("remote", "add", "origin", self.folder.as_uri(), cwd=place)
        deep = [f"--depth={depth}"] if depth else []
        wanted = [commit] if depth else ["+refs/heads/*:refs/remotes/origin/*", commit]
        self.git("fetch", "-q", "--no-tags", *deep, "origin", *wanted, cwd=place)
        self.git("checkout", "-q", "--detach", commit, cwd=place)
        return place


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    return Remote(tmp_path_factory.mktemp("forge") / "remote")


def can_compare(place: Path, base: str) -> bool:
    done = subprocess.run(["git", "merge-base", base, "HEAD"], cwd=place, capture_output=True, text=True)
    return done.returncode == 0


@pytest.mark.parametrize("depth", [1, 0])
def test_the_base_of_a_pull_request_is_what_it_would_land_on(runner, remote, tmp_path, depth):
    """Not the older base of the event: what others merged since would look like this change's doing."""
    place = remote.checkout(tmp_path / "work", remote.merged, depth)
    code, found, _ = runner.step("base", place, PULL_BASE=remote.second, GITHUB_SHA=remote.merged)
    assert (code, found) == (0, {"commit": remote.third})
    assert remote.git("merge-base", remote.third, "HEAD", cwd=place) == remote.third


def test_the_base_of_a_checked_out_branch_is_the_events(runner, remote, tmp_path):
    place = remote.checkout(tmp_path / "work", remote.change)
    code, found, _ = runner.step("base", place, PULL_BASE=remote.third, GITHUB_SHA=remote.merged)
    assert (code, found) == (0, {"commit": remote.third})
    assert remote.git("merge-base", remote.third, "HEAD", cwd=place) == remote.second  # fetched where it was missing


@pytest.mark.parametrize("ref", ["main", "origin/main", "HASH"])
@pytest.mark.parametrize("depth", [1, 0])
def test_a_named_base_is_fetched(runner, remote, tmp_path, ref, depth):
    place = remote.checkout(tmp_path / "work", remote.change, depth)
    code, found, said = runner.step("base", place, BASELINE_REF=ref.replace("HASH", remote.third))
    assert (code, found) == (0, {"commit": remote.third}), said
    assert can_compare(place, remote.third)
    shallow = remote.git("rev-parse", "--is-shallow-repository", cwd=place)
    assert depth or shallow == "false"  # a whole clone stays whole


def test_no_base_is_looked_for_where_there_is_none_or_a_file(runner, remote, tmp_path):
    place = remote.checkout(tmp_path / "work", remote.merged)
    assert runner.step("base", place)[:2] == (0, {"commit": ""})
    assert runner.step("base", place, BASELINE="profiles", PULL_BASE=remote.third)[:2] == (0, {"commit": ""})


@pytest.mark.parametrize("ref", ["--upload-pack=touch pwned", "$(touch pwned)", "nothing", "a;touch pwned"])
def test_a_base_that_there_is_not_fails_and_runs_nothing(runner, remote, tmp_path, ref):
    place = remote.checkout(tmp_path / "work", remote.merged)
    code, found, _ = runner.step("base", place, BASELINE_REF=ref)
    assert code != 0 and not found
    assert not list(tmp_path.rglob("pwned")) and not (remote.folder / "pwned").exists()


GATE = 'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo x >"$2"; fi; shift; done; exit "$CODE"'


@pytest.mark.parametrize(("code", "verdict"), [(0, "pass"), (1, "fail"), (4, "inconclusive")])
def test_the_verdict_is_an_output_and_fails_the_job_in_the_end(runner, tmp_path, code, verdict):
    runner.program("memwall", GATE)
    status, found, _ = runner.step("gate", tmp_path, CODE=str(code))
    assert status == 0 and (found["verdict"], found["code"]) == (verdict, str(code))
    assert set(ACTION["outputs"]) < set(found)
    assert all(Path(found[name]).is_file() for name in ("comment", "json", "sarif", "junit"))
    assert runner.step("verdict", tmp_path, CODE=found["code"])[0] == code


@pytest.mark.parametrize(("code", "step"), [(2, 2), (3, 3), (70, 70), (130, 130), (0, 1)])
def test_without_a_result_the_step_itself_fails_also_where_the_gate_says_pass(runner, tmp_path, code, step):
    runner.program("memwall", f"exit {code}")
    assert runner.step("gate", tmp_path)[:2] == (step, {})


def test_two_uses_in_one_job_keep_their_results(runner, tmp_path):
    """The second would overwrite the files that the first has named as its outputs."""
    runner.program("memwall", GATE)
    first, second = (runner.step("gate", tmp_path, CODE=code)[1] for code in ("0", "1"))
    assert (first["verdict"], second["verdict"]) == ("pass", "fail")
    assert first["json"] != second["json"]
    assert Path(first["json"]).is_file() and Path(second["json"]).is_file()


def test_the_inputs_become_arguments_and_stay_data(runner, tmp_path):
    record = runner.program("memwall", GATE)
    hostile = "`touch pwned`; touch pwned; $(touch pwned) \"'"
    runner.step("gate", tmp_path, CODE="0", BASE="abc", CONFIG="the gate.toml", GPUS="h100\na100\n",
                POLICIES=" \neager", LIMITS="dram_bytes=+2%\ntime_s=3.2 ms", TARGETS=f"-x.py\n\n{hostile}")  # fmt: skip
    called = record.read_text().splitlines()
    (out,) = runner.temp.iterdir()
    assert called == [
        "gate", "--github", "-o", f"{out}/comment.md", "-o", f"{out}/gate.json", "-o", f"{out}/gate.sarif",
        "-o", f"{out}/junit.xml", "--config", "the gate.toml", "--baseline-ref", "abc", "--gpu", "h100",
        "--gpu", "a100", "--policy", "eager", "--limit", "dram_bytes=+2%", "--limit", "time_s=3.2 ms", "--", "-x.py",
        hostile, "---",
    ]  # fmt: skip
    assert not list(tmp_path.rglob("pwned"))


def test_the_cpu_build_of_torch_is_installed_before_what_needs_it(runner, tmp_path):
    record = runner.program("python", "")
    index = "https://example.org/cpu"
    given = {"ACTION_PATH": "/the action", "REQUIREMENTS": "needs.txt", "TORCH_INDEX": index}
    assert runner.step("install", tmp_path, **given)[0] == 0
    calls = [call.split("\n")[2:-1] for call in record.read_text().split("---\n")[:-1]]
    assert calls == [
        ["install", "--quiet", "--index-url", index, "torch"],
        ["install", "--quiet", "-r", "needs.txt"],
        ["install", "--quiet", "/the action"],
    ]
    record.unlink()
    runner.step("install", tmp_path, TORCH="", ACTION_PATH="/the action", MEMWALL="memwall-roofline==1.2")
    assert record.read_text().splitlines() == ["-m", "pip", "install", "--quiet", "memwall-roofline==1.2", "---"]


COMMENTS = 'case "$*" in *--paginate*) printf "%b" "$KNOWN"; exit "$STATUS";; esac'


@pytest.mark.parametrize(("known", "call"), [
    ("", ["--method", "POST", "repos/owner/name/issues/7/comments"]),
    ("41\\n42\\n", ["--method", "PATCH", "repos/owner/name/issues/comments/41"]),
])  # fmt: skip
def test_the_comment_is_made_once_and_edited_then(runner, tmp_path, known, call):
    record = runner.program("gh", COMMENTS)
    code, _, said = runner.step("comment", tmp_path, COMMENT="/x/c.md", PULL_NUMBER="7", KNOWN=known, STATUS="0")
    assert code == 0 and not said
    listing, writing = [part.splitlines() for part in record.read_text().split("---\n")[:-1]]
    assert listing[:3] == ["api", "--paginate", "repos/owner/name/issues/7/comments?per_page=100"]
    assert writing == ["api", "--silent", *call, "-F", "body=@/x/c.md"]


def test_the_filter_takes_our_own_comments_alone():
    jq = tool("jq")
    (expression,) = re.findall(r"ours='(.*)'", SCRIPTS["comment"])
    ours, other = "<!-- memwall-gate -->\n### pass", "see <!-- memwall-gate -->"
    comments = [
        {"id": 1, "user": {"type": "User"}, "body": ours}, {"id": 2, "user": {"type": "Bot"}, "body": other},
        {"id": 3, "user": {"type": "Bot"}, "body": ours},
    ]  # fmt: skip
    done = subprocess.run([jq, expression], input=json.dumps(comments), capture_output=True, text=True, check=True,
                          env={**os.environ, "mark": "<!-- memwall-gate -->"})  # fmt: skip
    assert done.stdout.split() == ["3"]


def test_each_part_of_a_repository_has_a_comment_of_its_own(runner, tmp_path):
    """Both jobs of a repository with two packages would edit one comment in turns, and the last would stand there."""
    record = runner.program("gh", 'case "$*" in *--paginate*) echo "$mark" >>marks; exit 0;; esac')
    comment = tmp_path / "c.md"
    comment.write_text("<!-- memwall-gate -->\n### pass\n")
    for place in (".", "pkg/a"):
        assert runner.step("comment", tmp_path, COMMENT=str(comment), PULL_NUMBER="7", PLACE=place)[0] == 0
    marks = (tmp_path / "marks").read_text().splitlines()
    assert marks == ["<!-- memwall-gate -->", "<!-- memwall-gate pkg/a -->"]
    bodies = [Path(path).read_text() for path in re.findall(r"body=@(.*)", record.read_text())]
    assert [body.splitlines()[0] for body in bodies] == marks and all("### pass" in body for body in bodies)
    assert not bodies[1].startswith(marks[0])


def test_pull_request_target_is_refused_before_anything_is_installed(runner, tmp_path):
    """Its checkout is the base: compared with itself it always passes."""
    assert STEPS[0]["id"] == "refuse" and STEPS[0]["if"] == "github.event_name == 'pull_request_target'"
    script = tmp_path / "refuse.sh"
    script.write_text(STEPS[0]["run"])
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert done.returncode == 2 and "use pull_request" in done.stdout


def test_a_merge_queue_has_a_base_too():
    (step,) = [row for row in STEPS if row.get("id") == "base"]
    assert "github.event.merge_group.base_sha" in step["env"]["PULL_BASE"]


def test_a_token_that_may_not_write_is_a_warning(runner, tmp_path):
    runner.program("gh", "exit 1")
    code, _, said = runner.step("comment", tmp_path, COMMENT="/x/c.md", PULL_NUMBER="7")
    assert code == 0 and said.startswith("::warning title=memwall::no comment was written")


def test_a_pull_request_from_checkout_to_comment(runner, remote, tmp_path):
    """The real gate: the change adds one kernel, and the commit that main has meanwhile is not taken for it."""
    runner.program("memwall", f'exec "{sys.executable}" -m memwall "$@"')
    place = remote.checkout(tmp_path / "work", remote.merged)
    _, base, _ = runner.step("base", place, PULL_BASE=remote.second, GITHUB_SHA=remote.merged)
    code, found, said = runner.step("gate", place, BASE=base["commit"])
    assert (code, found.get("verdict")) == (0, "fail"), said
    assert re.search(r"^::error file=net.py,line=12,.*add", said, re.MULTILINE), said
    record = json.loads(Path(found["json"]).read_text())
    assert record["baseline"]["commit"] == remote.third
    assert {c["quantity"] for c in record["checks"] if c["verdict"] == "fail"} >= {"kernels", "dram_bytes"}
    comment = Path(found["comment"]).read_text()
    assert comment.startswith("<!-- memwall-gate -->\n")
    assert "kernels" in (runner.folder / "gate.summary").read_text()
    assert remote.git("status", "--porcelain", "--untracked-files=no", cwd=place) == ""
    assert remote.git("worktree", "list", cwd=place).count("\n") == 0


# -- pre-commit --------------------------------------------------------------------------------------------------------


def test_the_hook_holds_a_push_back(runner, remote, tmp_path):
    """The example's own hook by ``pre-commit run``; its language is system, so nothing is downloaded."""
    pytest.importorskip("pre_commit")
    runner.program("memwall", f'exec "{sys.executable}" -m memwall "$@"')
    place = remote.checkout(tmp_path / "work", remote.change, 0)
    shutil.copy(EXAMPLES / "pre-commit-config.yaml", place / ".pre-commit-config.yaml")
    remote.git("add", "-A", cwd=place)
    environment = {**runner.environment, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "NO_COLOR": "1"}

    def hook(*files: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pre_commit", "run", "--hook-stage", "pre-push", "--files", *files]
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)

    done = hook("net.py")
    assert done.returncode == 1 and "memwall gate" in done.stdout and "exit code: 1" in done.stdout, done.stdout
    assert "kernels" in done.stdout and "net.py:12" in done.stdout
    prose = hook("readme")
    assert prose.returncode == 0 and "Skipped" in prose.stdout
