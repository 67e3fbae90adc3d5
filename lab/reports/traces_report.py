"""Read real profiler traces and write reports/traces.md: what of each is linked, has figures, and beats the roof.

    python lab/reports/traces_report.py --traces ../shared/traces

Seconds are of a whole process, ``memwall profile FILE --json``, on the machine that runs this; ``--no-seconds``
leaves them out, so that the rest is the same on any machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = ROOT / "reports"
sys.path[:0] = [str(ROOT)]

from memwall.core.errors import UsageError  # noqa: E402
from memwall.core.files import write_whole  # noqa: E402
from memwall.core.units import duration, percent  # noqa: E402
from memwall.traces.analysis import TraceAnalysis  # noqa: E402
from memwall.traces.command import analyse_file  # noqa: E402

HEAD = """# Real profiler traces

Traces that others recorded, from public repositories' test data, read by `memwall profile FILE`. Rendered by
`python lab/reports/traces_report.py`; the traces are not in this repository.

- *linked*: GPU time whose launch is linked to an op. *sizes*: GPU time whose op, copy or collective recorded its sizes.
- *of it with figures*: of the time with sizes, what has FLOPs, bytes and a wall; *in all*: of the whole GPU time.
- *over the roof*: rows faster than the GPU's speed of light, which would be an error of memwall's.
- *other reading*: rows whose time proves the plainest reading of the trace wrong: operands in L2, or one tensor twice.
- *modeled*: predicted over measured time, of the kernels that have figures and cross no link.

| trace | GPU | kernels | GPU time | linked | sizes | of it with figures | in all | over the roof | other reading | modeled |{more}
|:---|:---|---:|---:|---:|---:|---:|---:|---:|---:|---:|{line}
"""


def row(path: Path, analysis: TraceAnalysis, seconds: float | None) -> str:
    """The line of a trace."""
    modeled = f"{analysis.modeled_s / analysis.modeled_of_s:.2f}x" if analysis.modeled_of_s else "-"
    cells = [
        path.name, analysis.gpu.name, f"{len(analysis.trace.kernels):,}", duration(analysis.measured_s),
        percent(analysis.matched_share), percent(analysis.shaped_share),
        percent(analysis.costed_of_shaped) if analysis.shaped_share else "no sizes", percent(analysis.costed_share),
        str(len(analysis.over_roof)), f"{sum(bool(r.assumed) for r in analysis.rows):,}", modeled,
    ]  # fmt: skip
    return f"| {' | '.join([*cells, *([f'{seconds:.1f}'] if seconds is not None else [])])} |"


def process_s(path: Path) -> float:
    """Seconds of a whole process that reads the trace."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "memwall", "profile", str(path), "--json"]
    subprocess.run(command, cwd=HERE.parent, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def unlinked(analysis: TraceAnalysis) -> list[str]:
    """What has no figures and takes at least 1 % of the GPU time, with the reason."""
    found: dict[str, float] = {}
    for r in analysis.rows:
        if r.bound_s is None:
            found[r.reason] = found.get(r.reason, 0.0) + r.measured_s
    whole = analysis.measured_s or 1.0
    order = sorted(found.items(), key=lambda item: -item[1])
    return [f"{percent(time_s / whole)} {reason}" for reason, time_s in order if time_s / whole >= 0.01]


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=HERE.parent.parent / "shared" / "traces")
    parser.add_argument("--no-seconds", action="store_true")
    parser.add_argument("-o", "--output", type=Path, default=HERE / "traces.md")
    options = parser.parse_args()
    paths = sorted(options.traces.glob("*.json.gz")) if options.traces.is_dir() else []
    if not paths:
        sys.exit(f"no traces in {options.traces}: nothing was written; --traces FOLDER names another folder")
    timed = not options.no_seconds
    lines = [HEAD.format(more=" process, s |" if timed else "", line="---:|" if timed else "").rstrip()]
    gaps = []
    for path in paths:
        try:
            analysis = analyse_file(str(path), [])
        except UsageError as error:
            lines.append(f"| {path.name} | {error} |")
            continue
        lines.append(row(path, analysis, process_s(path) if timed else None))
        if missing := unlinked(analysis):
            gaps.append(f"- {path.name}: {'; '.join(missing)}")
    lines += ["", "Without figures, from 1 % of the GPU time:", "", *gaps, ""]
    write_whole(options.output, "\n".join(lines))
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
