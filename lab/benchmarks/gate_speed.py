"""How long a gate of ten workloads against a git ref takes, and whether unchanged code ever raises an alert.

    python lab/benchmarks/gate_speed.py [--repeat 100] [--through-cli 3]

Makes a repository of ten of this one's reference workloads with a change of the docs on top, and gates it against the
commit before with the default limits, graph breaks among them. With ``--repeat`` the profiles of that run are judged
again so many times in this process, and the whole command runs ``--through-cli`` times on other hash seeds; all text
and JSON must be byte-identical and without an alert. Standard output is Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memwall.gate.page import GateReport
from memwall.gate.reading import read_config
from memwall.gate.run import run_gate
from memwall.report import render

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = 10


def make_repository(folder: Path) -> None:
    """Two commits: the models, and a change of the docs."""
    places = sorted(path.parent for path in (ROOT / "profiles").glob("*/model.py"))[-WORKLOADS:]
    for place in places:
        shutil.copytree(place, folder / "profiles" / place.name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "memwall.toml").write_text('[gate]\nworkloads = ["profiles/*/model.py"]\n')
    commit(folder, "init", "-q")
    (folder / "README.md").write_text("A change of the docs.\n")
    commit(folder)


def commit(folder: Path, *first: str) -> None:
    person = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    for words in (first, ("add", "."), ("commit", "-q", "-m", "a change")):
        if words:
            subprocess.run(["git", *person, *words], cwd=folder, check=True)


def gate(folder: Path, seed: int) -> tuple[float, str, str]:
    """Wall seconds, text and JSON of one run of the command."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "memwall", "gate", "-q", "--baseline-ref", "HEAD~1", "-o", "gate.json"], cwd=folder,
        check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return time.perf_counter() - start, done.stdout, (folder / "gate.json").read_text()


def judged_again(folder: Path, times: int) -> set[str]:
    """JSON of as many gates of saved profiles against themselves, each read from its files."""
    subprocess.run(
        [sys.executable, "-m", "memwall", "gate", "-q", "--baseline", "base", "--update"], cwd=folder, check=True,
        stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    files = sorted((folder / "base").iterdir())
    (folder / "memwall.toml").write_text("[gate]\nworkloads = ['base/*.json.gz']\n")
    config = read_config(folder / "memwall.toml")
    assert len(config.workloads) == len(files) == WORKLOADS
    found = set()
    for _ in range(times):
        result = run_gate(config, config.workloads, folder / "base").result
        assert result.verdict == "pass", render(GateReport(result), "text")
        found.add(result.to_json() + render(GateReport(result), "text"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--through-cli", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_repository(folder)
        load = os.getloadavg()[0]
        runs = [gate(folder, seed) for seed in range(max(1, options.through_cli))]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = json.loads(runs[0][2])
        assert record["verdict"] == "pass"
        alerts = sum(check["verdict"] != "pass" for check in record["checks"]) + len(record["problems"])
        cpu_s = (used.ru_utime + used.ru_stime) / len(runs)
        print("| what | figure |\n|---|---|")
        print(f"| workloads, checks | {len({c['workload'] for c in record['checks']})}, {len(record['checks'])} |")
        print(f"| wall seconds of each run of the command | {', '.join(f'{s:.1f}' for s, _, _ in runs)} |")
        print(f"| CPU seconds a run | {cpu_s:.1f} |")
        print(f"| cores, load average before the first run | {os.cpu_count()}, {load:.1f} |")
        print(f"| alerts on unchanged code | {alerts} |")
        print(f"| different outputs of {len(runs)} runs, a hash seed each | {len({row[1:] for row in runs})} |")
        if options.repeat:
            start = time.perf_counter()
            found = judged_again(folder, options.repeat)
            took_s = time.perf_counter() - start
            print(f"| different outputs of {options.repeat} gates of saved profiles | {len(found)} ({took_s:.0f} s) |")


if __name__ == "__main__":
    main()
