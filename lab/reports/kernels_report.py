"""reports/kernels.md: the generated kernels of every reference workload, compiled for GPUs that are not there.

    python lab/reports/kernels_report.py [ARCHITECTURE...]

Needs Triton, no GPU. Each architecture gets the kernels that our planner makes for a GPU of it. Compiling all takes
some ten minutes on two idle cores, a second time seconds (results are kept, see MEMWALL_CACHE), so the report is
written by this command and not by every run of the tests, which compile a few kernels for every architecture.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402
from memwall.codegen import Kernel, generate  # noqa: E402
from memwall.codegen.compiling import Resources, compile_all  # noqa: E402
from memwall.codegen.planned import CompiledPlan, compiled_plan, distinct_kernels  # noqa: E402
from memwall.core.flow import Flow  # noqa: E402
from memwall.core.progress import listening  # noqa: E402
from memwall.fusion.planner import memwall_plan  # noqa: E402
from memwall.hardware.lookup import Gpu  # noqa: E402
from memwall.record.kernels import short_name  # noqa: E402
from memwall.record.profile import Profile  # noqa: E402

#: architecture -> a GPU of it, which the kernels are planned for
BOARDS = {
    "sm_60": "p100-sxm2-16gb", "sm_61": "p4", "sm_70": "v100-sxm2-16gb", "sm_75": "t4", "sm_80": "a100-80gb-sxm",
    "sm_86": "a10", "sm_89": "l4", "sm_90": "h100-sxm", "sm_100": "b200", "gfx942": "mi300x",
}  # fmt: skip
WORKLOADS = (
    "bert_layer", "bert_large", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "vit_l16", "unet", "dlrm",
)  # fmt: skip
MODES = ("inference", "training")
#: of the rest without a kernel, and of what failed, so many reasons are listed
LISTED = 20


class Row(NamedTuple):
    """One workload in one mode on one architecture."""

    workload: str
    mode: str
    architecture: str
    made: CompiledPlan

    @property
    def launches(self) -> list[Resources]:
        return [r for kernel in self.made.kernels for some in kernel.resources.values() for r in some]


def compile_workloads(names: Sequence[str]) -> list[Row]:
    """All workloads on some architectures. All first plans are compiled at once; few are planned again."""
    boards = {name: memwall.load_gpu(BOARDS[name]) for name in names}
    traced = [
        (workload, mode, memwall.profile(ROOT / "profiles" / workload / "model.py", gpu=[*boards.values()], mode=mode))
        for workload in WORKLOADS
        for mode in MODES
    ]
    pairs = [(kernel, name) for *_, record in traced for name in names for kernel in kernels(record, boards[name])]
    with listening(lambda message: print(message, flush=True)):
        compile_all(pairs)
    rows = []
    for workload, mode, record in traced:
        for name, gpu in boards.items():
            number = record.graph_for(gpu)
            made = compiled_plan(record.graphs[number], record.costs[number], gpu)
            rows.append(Row(workload, mode, name, made))
            print(f"{workload} {mode} {name}: {len(made.kernels)} kernels, {made.coverage:.2%}", flush=True)
    return rows


def kernels(record: Profile, gpu: Gpu) -> list[Kernel]:
    """The kernels of the first plan of a workload."""
    number = record.graph_for(gpu)
    graph = record.graphs[number]
    plan = memwall_plan(graph, record.costs[number], gpu)
    return [made.kernel for made in distinct_kernels(graph, Flow.of(graph), plan, gpu, generate, {})[0]]


# -- tables ------------------------------------------------------------------------------------------------------------


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; every column but the first to the right."""
    lines = [f"| {' | '.join(heads)} |", f"|:---|{'---:|' * (len(heads) - 1)}"]
    return [*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows), ""]


def by_architecture(rows: Sequence[Row]) -> list[str]:
    found = []
    for name in dict.fromkeys(row.architecture for row in rows):
        own = [row for row in rows if row.architecture == name]
        launches = [r for row in own for r in row.launches]
        ok = [r for r in launches if r.status == "ok"]
        spilling = sum(kernel.spilled is not None for row in own for kernel in row.made.kernels)
        refused = sum(r.rule == "register spill" for row in own for r in row.made.plan.refusals)
        found.append((
            name, BOARDS[name], sum(len(row.made.kernels) for row in own), len(launches),
            max((r.registers for r in ok), default="-"), f"{statistics.median(r.occupancy for r in ok):.0%}",
            max((r.shared_bytes for r in ok), default="-"),
            sum(kernel.has_other_blocks for row in own for kernel in row.made.kernels), spilling, refused,
            sum(r.status == "failed" for r in launches), sum(r.status == "vendor library" for r in launches),
            f"{min(row.made.coverage for row in own):.2%}",
        ))  # fmt: skip
    heads = ("architecture", "GPU", "kernels", "launches", "most registers", "median occupancy", "most shared, B",
             "other blocks", "spill", "refused as they spilled", "failed", "vendor library", "least coverage")  # fmt: skip
    return table(heads, found)


def by_workload(rows: Sequence[Row], architecture: str) -> list[str]:
    found = []
    for row in (row for row in rows if row.architecture == architecture):
        made = row.made
        ok = [r for r in row.launches if r.status == "ok"]
        paths = ", ".join(f"{name} {count}" for name, count in made.schedules().items())
        found.append((
            row.workload, row.mode, len(made.plan.groups), len(made.kernels), f"{made.dram_bytes / 1e9:.2f}",
            f"{made.coverage:.2%}", max(r.registers for r in ok), sum(r.spilled_bytes for r in ok),
            sum(r.status == "failed" for r in row.launches), paths,
        ))  # fmt: skip
    heads = ("workload", "mode", "groups", "distinct kernels", "GB without products", "coverage", "most registers",
             "spilled, B", "failed", "paths")  # fmt: skip
    return table(heads, found)


def coverages(rows: Sequence[Row]) -> list[str]:
    names = list(dict.fromkeys(row.architecture for row in rows))
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        found.setdefault((row.workload, row.mode), []).append(f"{100 * row.made.coverage:.2f}")
    return table(("workload, %", "mode", *names), ((*key, *cells) for key, cells in found.items()))


def left(rows: Sequence[Row]) -> list[str]:
    """What has no kernel, by ops and reason: the largest share of a workload's bytes, and where."""
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        for some in row.made.left:
            key = ", ".join(map(short_name, some.ops)), some.reason
            share = some.dram_bytes / row.made.dram_bytes
            worst[key] = max(worst.get(key, (0.0, "")), (share, f"{row.workload} {row.mode}, {row.architecture}"))
    ranked = sorted(worst.items(), key=lambda item: (-item[1][0], item[0]))[:LISTED]
    return table(
        ("ops", "reason", "most of a step's bytes", "where"),
        ((ops, reason, f"{share:.3%}", where) for (ops, reason), (share, where) in ranked),
    )


def bad(rows: Sequence[Row]) -> list[str]:
    """What failed or spills, by reason."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        for kernel in row.made.kernels:
            for r in (r for some in kernel.resources.values() for r in some):
                if r.status == "failed":
                    counts[kernel.kernel.schedule, f"{r.architecture}: {_reason(r.reason)}"] += 1
                elif r.spilled_bytes:
                    counts[kernel.kernel.schedule, f"{r.architecture}: {r.spilled_bytes} bytes spilled"] += 1
    if not counts:
        return ["None: every launch compiles, and none spills.", ""]
    return table(("path", "what", "launches"), ((*key, count) for key, count in counts.most_common(LISTED)))


def _reason(text: str) -> str:
    """Without the path of a scratch file."""
    return text.rpartition("; ")[2].replace("|", "\\|")


def report(rows: Sequence[Row], versions: Mapping[str, str]) -> str:
    names = [row.architecture for row in rows]
    main = "sm_90" if "sm_90" in names else names[0]
    with_versions = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [
        "# Generated kernels, compiled ahead of time", "",
        "Every distinct kernel of every reference workload under the `memwall` policy, compiled without a GPU by"
        f" `python lab/reports/kernels_report.py` ({with_versions}). Coverage: the share of the DRAM bytes of groups"
        " without a matrix product, convolution or attention that are in groups with a generated kernel. Registers and"
        " spills are of a thread. Other blocks: kernels that spill, or do not fit, at the first of their block sizes, and not"
        " at another.", "",
        "## By architecture", "",
        *by_architecture(rows),
        f"## By workload, {main}", "",
        *by_workload(rows, main),
        "## Coverage by architecture", "",
        *coverages(rows),
        "## Without a kernel", "",
        *left(rows),
        "## Failed or spilling", "",
        *bad(rows),
    ]  # fmt: skip
    return "\n".join(lines)


def main(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in BOARDS]
    if unknown:
        raise SystemExit(f"no architecture {', '.join(unknown)}; there is {', '.join(BOARDS)}")
    rows = compile_workloads(names or list(BOARDS))
    versions = {"triton": version("triton"), "torch": version("torch").partition("+")[0]}
    (Path(__file__).parent / "kernels.md").write_text(report(rows, versions), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
