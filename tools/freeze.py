"""Keep every kind of output byte for byte, and compare later states with it.

    python tools/freeze.py keep DIR [--fast] [--only PATTERN]       run the commands, keep their output in DIR
    python tools/freeze.py compare DIR [--fast] [--only PATTERN]    run them again and list what differs

``--fast`` leaves out Inductor's plans, measured tables and profiler traces; ``--only`` takes a shell pattern of names.
Commands run in a folder of their own where ``profiles`` leads to the reference workloads, two at a time. MEMWALL_SHARED
names a folder with measured tables (``truth/``) and profiler traces (``traces/``); without it those are left out.
"""

from __future__ import annotations

import argparse
import difflib
import filecmp
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("MEMWALL_SHARED", ROOT.parent / "shared"))

WORKLOADS = {
    "bert_large": "training", "bert_layer": "training", "dlrm": "training", "gpt2_xl": "inference",
    "llama3_8b": "inference", "llama3_70b": "training", "mixtral_8x7b": "inference", "resnet50": "training",
    "unet": "inference", "vit_l16": "training",
}  # fmt: skip
GPUS = "h100-sxm a100-80gb-sxm v100-sxm2-16gb"
COMPILED_GPUS = "h100-sxm a100-80gb-sxm rtx-3090"
KINDS = "txt md html csv parquet png svg trace.json"
ALL_KINDS = ("bert_layer", "resnet50", "dlrm")


def commands() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> (arguments, names that it waits for); NAME.json of a name is what it wrote."""
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    for workload, mode in WORKLOADS.items():
        target = f"profiles/{workload}/model.py --mode {mode}"
        kinds = KINDS if workload in ALL_KINDS else "txt"
        outputs = " ".join(f"-o {workload}.{kind}" for kind in ("json", *kinds.split()))
        rows[workload] = (f"profile {target} --gpu {GPUS} --policy eager memwall ideal {outputs}", ())
        rows[f"{workload}-emit"] = (
            f"fuse ../{workload}/{workload}.json --policy memwall --gpu h100-sxm --emit kernels -o fused.md",
            (workload,),
        )
        rows[f"{workload}-inductor"] = (
            f"profile {target} --gpu {COMPILED_GPUS} --policy inductor -o inductor.json",
            (),
        )
    for workload in ALL_KINDS:
        saved = f"../{workload}/{workload}.json"
        for by in ("op", "module", "class", "phase"):
            rows[f"{workload}-by-{by}"] = (f"report {saved} --by {by} --top 40", (workload,))
        for sort in ("flops", "bytes", "intensity", "bound", "count"):
            rows[f"{workload}-sort-{sort}"] = (f"report {saved} --sort {sort}", (workload,))
        outputs = " ".join(f"-o compared.{kind}" for kind in ("json", *KINDS.split()) if kind != "trace.json")
        rows[f"{workload}-compare"] = (
            f"compare {saved} --gpu h100 b200 mi300x p100-sxm2 t4 --price h100-sxm=3 {outputs}",
            (workload,),
        )
        rows[f"{workload}-explain"] = (
            f"profile {saved} --gpu a100-80gb-sxm --explain 0 --explain 5 --explain mm "
            "--what-if dram_bytes_per_s*=2 --what-if fuse:* --cuda-graph -o explained.json",
            (workload,),
        )
        rows[f"{workload}-fuse"] = (
            f"fuse {saved} --gpu h100-sxm mi300x --policy eager memwall ideal --no-capture "
            "--alternatives -o fused.md -o fused.json -o fused.png -o fused.svg",
            (workload,),
        )
        rows[f"{workload}-capture"] = (
            f"fuse profiles/{workload}/model.py --mode {WORKLOADS[workload]} --gpu h100-sxm "
            "--policy eager memwall inductor -o captured.json -o captured.md",
            (),
        )
        rows[f"{workload}-gate"] = (
            f"gate profiles/{workload}/model.py --mode {WORKLOADS[workload]} --gpu h100-sxm --batch 3 "
            f"--baseline profiles/baselines/{workload}.json.gz --limit time_s=1us kernels=+0 peak_memory=1MB "
            + " ".join(f"-o gate.{kind}" for kind in ("json", "md", "txt", "xml", "sarif", "gitlab.json")),
            (),
        )
    rows["compare-records"] = (
        "compare ../bert_layer/bert_layer.json ../resnet50/resnet50.json -o compared.json -o compared.md",
        ("bert_layer", "resnet50"),
    )
    rows["compare-machines"] = (
        "compare --gpu p100-sxm2 v100-sxm2-16gb a100-80gb-sxm h100-sxm -o machines.json -o machines.md "
        "-o machines.png -o machines.html",
        (),
    )
    rows["gate"] = ("gate", ())
    rows["gpus"] = ("gpus", ())
    rows["gpus-json"] = ("gpus --json", ())
    rows["rules"] = ("profile --rules", ())
    for gpu in ("h100-sxm", "mi300x", "t4", "l4", "b200"):
        rows[f"gpus-{gpu}"] = (f"gpus {gpu}", ())
    for name in ("", *["profile", "compare", "fuse", "measure", "gate", "report", "accuracy", "gpus", "calibrate"]):
        rows[f"help-{name}"] = (f"{name} --help", ())
    for trace in sorted(SHARED.glob("traces/*.json.gz")):
        outputs = " ".join(f"-o trace.{kind}" for kind in ("json", "md", "html", "csv"))
        rows[f"trace-{trace.name.removesuffix('.json.gz')}"] = (f"profile {trace} {outputs}", ())
    tables = [
        str(path)
        for path in sorted(SHARED.glob("truth/*.csv"))
        if re.match(
            "neusight_(ops|conv)|aiconfigurator_(gemm|attention)|vidur|deepbench|liger_pairs|gemm_peak|bandwidth",
            path.name,
        )
    ]
    if tables:
        rows["accuracy"] = (f"accuracy {' '.join(tables)} --split -o accuracy.json -o accuracy.md -o accuracy.csv", ())
    return rows


#: names that ``--fast`` leaves out
SLOW = ("*-inductor", "*-capture", "trace-*", "accuracy", "gate")


def run(name: str, arguments: str, folder: Path) -> None:
    """Run one command in ``folder/name``; its streams and exit code become files there."""
    inside = folder / name
    inside.mkdir(parents=True)
    (inside / "profiles").symlink_to(ROOT / "profiles")
    where = ROOT if name == "gate" else inside
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "memwall", *arguments.split()],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    (inside / "profiles").unlink()
    shutil.rmtree(inside / ".memwall", ignore_errors=True)
    for stream in ("stdout", "stderr"):
        (inside / stream).write_text(getattr(done, stream))
    for file in inside.rglob("*.json"):
        file.write_text(file.read_text(encoding="utf-8").replace(str(ROOT), "ROOT"), encoding="utf-8")
    (inside / "exit_code").write_text(f"{done.returncode}\n")


def keep(folder: Path, names: list[str]) -> None:
    """Run the named commands, each after those that it waits for."""
    rows = commands()
    with ThreadPoolExecutor(2) as pool:
        for first in (True, False):
            stage = [name for name in names if (not rows[name][1]) == first]
            list(pool.map(lambda name: run(name, rows[name][0], folder), stage))


def chosen(fast: bool, only: str) -> list[str]:
    """Names of the commands asked for and of those that they wait for."""
    rows = commands()
    found = [
        name
        for name in rows
        if fnmatch.fnmatch(name, only) and not (fast and any(fnmatch.fnmatch(name, slow) for slow in SLOW))
    ]
    return list(dict.fromkeys([*(before for name in found for before in rows[name][1]), *found]))


def same(before: Path, after: Path) -> bool:
    """Whether two files have the same bytes; HTML, but for blanks between its tags, which no page shows."""
    if filecmp.cmp(before, after, shallow=False):
        return True
    if before.suffix != ".html":
        return False
    texts = [re.sub(r"\s*(<[^>]*>)\s*", r"\1", path.read_text()) for path in (before, after)]
    return texts[0] == texts[1]


def compare(kept: Path, now: Path, names: list[str]) -> int:
    """Print what differs; the number of files that do."""
    differing = 0
    for name in names:
        files = {path.relative_to(kept) for path in (kept / name).rglob("*") if path.is_file()}
        files |= {path.relative_to(now) for path in (now / name).rglob("*") if path.is_file()}
        for file in sorted(files):
            before, after = kept / file, now / file
            if before.is_file() and after.is_file() and same(before, after):
                continue
            differing += 1
            both = before.is_file() and after.is_file()
            print(f"{'differs' if both else 'gone' if before.is_file() else 'new'}: {file}")
            if file.suffix not in (".png", ".parquet") and both:
                lines = difflib.unified_diff(
                    before.read_text().splitlines(), after.read_text().splitlines(), lineterm="", n=0
                )
                print(*(f"    {line[:200]}" for line, _ in zip(lines, range(14), strict=False)), sep="\n")
    print(f"{differing} files differ, {len(names)} commands")
    return differing


def main() -> int:
    """Run what the command line asks for; 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--only", default="*")
    options = parser.parse_args()
    names = chosen(options.fast, options.only)
    if options.what == "keep":
        keep(options.folder, names)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        keep(Path(folder), names)
        return int(compare(options.folder, Path(folder), names) > 0)


if __name__ == "__main__":
    sys.exit(main())
