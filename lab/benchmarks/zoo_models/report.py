"""The zoo's report: what works, what is refused and with which message, FLOPs, seconds, and what has changed."""

from __future__ import annotations

import csv
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "transformers", "timm", "diffusers", "torchvision", "torchaudio", "torch_geometric")
#: what says nothing about memwall
_APART = ("not buildable", "not runnable")
_INTRODUCTION = """# The zoo: the models of six libraries, as it comes

`python lab/benchmarks/zoo.py` builds each model from its default configuration, layers cut to two, and profiles it on
an H100. Where a default is missing without which the model cannot run, it is the published models' (`NEEDED` in
lab/benchmarks/zoo_models/suites.py). A model that its own library cannot build from what it ships, or cannot run on
real tensors with the same inputs, or in training has no parameters, is counted apart. The FLOPs are of matrix
products and convolutions by memwall's formulas, compared with torch's FlopCounterMode over the same step, attention
run as products. Its counts are corrected: gradients of a grouped convolution take the forward's FLOPs each, a product
of complex numbers four real ones; where the counter cannot run the step, nothing is compared. Seconds are CPU seconds
of `memwall.profile` after imports.
"""


def summary(rows: Sequence[Any]) -> str:
    """Markdown: a table by suite and mode."""
    titles = ("buildable", "runnable", "works", "refused", "crash", "time-out", "with assumptions", "FLOPs equal",
              "median s")  # fmt: skip
    lines = [f"| suite | mode | {' | '.join(titles)} |", "|---|---|" + "---:|" * len(titles)]
    for suite, mode in dict.fromkeys((row.suite, row.mode) for row in rows):
        built = [row for row in rows if (row.suite, row.mode) == (suite, mode) and row.status != "not buildable"]
        own = [row for row in built if row.status != "not runnable"]
        count = Counter(row.status for row in own)
        works = [row for row in own if row.status == "works"]
        compared = [row for row in works if row.counter_flops is not None]
        equal = sum(row.flops == row.counter_flops for row in compared)
        share = f"{len(works)} ({100 * len(works) / max(len(own), 1):.1f} %)"
        cells = (
            len(built), len(own), share, count["refused"], count["crash"] + count["out of memory"], count["timeout"],
            sum(bool(row.assumed) for row in works), f"{equal} of {len(compared)}",
            f"{statistics.median([row.seconds for row in works] or [0.0]):.2f}",
        )  # fmt: skip
        lines.append(f"| {suite} | {mode} | {' | '.join(map(str, cells))} |")
    return "\n".join((*lines, *_samples(rows)))


def _samples(rows: Sequence[Any]) -> list[str]:
    """What was not run of a suite in one mode, though in the other."""
    run = Counter((row.suite, row.mode) for row in rows)
    most = {suite: max(run[s, mode] for s, mode in run if s == suite) for suite, _ in run}
    parts = [
        f"{suite} in {mode}: {n} of {most[suite]} were run." for (suite, mode), n in run.items() if n < most[suite]
    ]
    return ["", *parts] if parts else []


def report(rows: Sequence[Any], before: Sequence[Any]) -> str:
    """The whole report; ``before``: the rows of the last one."""
    versions = ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    parts = [_INTRODUCTION, f"{versions}.\n", summary(rows), ""]
    parts += ["## What has changed since the last run", "", *_changes(rows, before), ""]
    parts += ["## What does not work, and why", "", *_causes(rows), ""]
    parts += ["## FLOPs that differ from the counter's", "", *_differences(rows), ""]
    parts += ["## What was assumed", "", *_assumed(rows), ""]
    for status in _APART:
        parts += [f"## {status.capitalize()} by their library", "", *_apart(rows, status), ""]
    return "\n".join(parts)


def _cause(message: str) -> str:
    """A message without what differs from model to model."""
    return re.sub(r"\b\w*\d[\w.]*\b", "N", message.partition(" (at ")[0])[:160].replace("|", "\\|")


def _causes(rows: Iterable[Any]) -> list[str]:
    found = defaultdict(list)
    for row in rows:
        if row.status not in ("works", *_APART):
            found[row.status, _cause(row.message)].append(f"{row.name} ({row.mode[0]})")
    if not found:
        return ["Nothing."]
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    lines = ["i: inference, t: training.", "", "| status | cause | models |", "|---|---|---|"]
    return lines + [f"| {status} | {cause} | {', '.join(names)} |" for (status, cause), names in ranked]


def _differences(rows: Iterable[Any]) -> list[str]:
    lines = ["| suite | model | mode | memwall | counter | ratio |", "|---|---|---|---:|---:|---:|"]
    for row in rows:
        if row.status == "works" and row.counter_flops is not None and row.flops != row.counter_flops:
            ratio = row.flops / row.counter_flops if row.counter_flops else float("inf")
            lines.append(
                f"| {row.suite} | {row.name} | {row.mode} | {row.flops:,} | {row.counter_flops:,} | {ratio:.4f} |"
            )
    return lines if len(lines) > 2 else ["None."]


def _assumed(rows: Iterable[Any]) -> list[str]:
    """Each assumption with the models that it was made for."""
    found = defaultdict(list)
    for row in rows:
        for text in {re.sub(r" \(.*", "", part) for part in row.assumed.split("; ") if row.assumed}:
            found[text].append(f"{row.name} ({row.mode[0]})")
    ranked = sorted(found.items(), key=lambda item: -len(item[1]))
    return [f"- {text}: {', '.join(names)}" for text, names in ranked] or ["Nothing."]


def _apart(rows: Iterable[Any], status: str) -> list[str]:
    once = {(row.suite, row.name): row.message for row in rows if row.status == status}
    return [f"- {suite} {name}: {message[:160]}" for (suite, name), message in once.items()] or ["None."]


def _changes(rows: Iterable[Any], before: Iterable[Any]) -> list[str]:
    """What a model became that was something else, or has other FLOPs."""
    known = {row.key: row for row in before}
    lines = []
    for row in rows:
        old = known.get(row.key)
        if old is None or row.status in _APART:
            continue
        if old.status != row.status:
            lines.append(f"- {' '.join(row.key)}: {old.status} → {row.status} {row.message[:120]}")
        elif old.flops != row.flops and row.status == "works":
            lines.append(f"- {' '.join(row.key)}: {old.flops:,} → {row.flops:,} FLOPs")
    if not known:
        return ["There was no last run."]
    return lines or ["Nothing."]


def write_csv(path: Path, rows: Sequence[Any]) -> None:
    """The rows, sorted, a line each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = list(rows[0].__dataclass_fields__)
        writer.writerow(names)
        for row in sorted(rows, key=lambda row: row.key):
            writer.writerow(["" if (value := getattr(row, name)) is None else value for name in names])


def read_csv(path: Path, kind: Any) -> list[Any]:
    """The rows that :func:`write_csv` wrote; none where there is no file."""
    if not path.exists():
        return []
    counts = ("ops", "parameters", "flops")
    with path.open(encoding="utf-8", newline="") as file:
        return [
            kind(**{
                **row, **{name: int(row[name]) for name in counts}, "seconds": float(row["seconds"]),
                "counter_flops": int(row["counter_flops"]) if row["counter_flops"] else None,
            })
            for row in csv.DictReader(file)
        ]  # fmt: skip
