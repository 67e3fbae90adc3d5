"""reports/funnel.md and funnel.svg: how many ops the reference workloads have at each level of lowering.

    python lab/reports/funnel_report.py

The last three levels are Inductor's and need Triton; which torch and Triton wrote the report is in it. CI does not write
it anew, as it takes minutes; a test compares the levels above Inductor.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]

import memwall  # noqa: E402
import memwall.report.columns as col  # noqa: E402
from memwall.fusing.op_counts import PUBLISHED, PUBLISHED_SOURCE, OpCounts, op_counts  # noqa: E402
from memwall.inductor.compiled import kernels_of  # noqa: E402
from memwall.report.document import Document, Section, Sentence, Table, clean  # noqa: E402
from memwall.report.markdown import to_markdown  # noqa: E402
from reports.funnel_figure import funnel_figure  # noqa: E402

HERE = ROOT / "reports"
GPU = "a100-80gb-sxm"
WORKLOADS = (
    "bert_layer", "bert_large", "gpt2_xl", "llama3_8b", "mixtral_8x7b", "resnet50", "vit_l16", "unet", "dlrm",
)  # fmt: skip
LEVELS = ("ATen", "core ATen", "prims", "Inductor graph", "loop IR", "kernels")
#: operators listed by name before the rest is counted
LISTED = 16


#: Methods of Inductor's ops handler that are not ops: the ends of a traced loop body.
NO_LOOP_OPS = frozenset(("output", "placeholder"))


@cache
def counted() -> Mapping[str, OpCounts]:
    """The op counts of a training step of each reference workload, on one GPU."""
    gpu = memwall.load_gpu(GPU)
    found = {}
    for name in WORKLOADS:
        print(f"lowering {name}", file=sys.stderr)
        profile = memwall.profile(ROOT / "profiles" / name / "model.py", mode="training", gpu=gpu)
        graph = profile.graphs[profile.graph_for(gpu)]
        lowered = kernels_of(graph, gpu, source=True)
        found[name] = op_counts(graph, lowered)
    return found


def report() -> str:
    """The report as Markdown."""
    made = counted()
    sections = (
        Section("", (Sentence(_INTRODUCTION), Sentence(_versions()), _sets())),
        Section("Distinct operators", (_distinct(made),)),
        Section("Calls in a training step", (_calls(made),)),
        Section("What has no decomposition", (_undecomposed(made),)),
    )
    text = to_markdown(Document("The lowering funnel", sections))
    return text + "\n![distinct operators and calls at each level](funnel.svg)\n"


_INTRODUCTION = (
    f"Announced: {PUBLISHED_SOURCE}. Those are all operators that a backend may meet; a model calls few of them, and as "
    "operators get fewer, calls get more, until fusion makes few kernels of many. Counted are forward and backward; "
    "calls that move nothing (views, allocations) are left out. At the loop level a call counts once for each loop "
    "that it stands in, not once for each element; loads, stores and index arithmetic are among them."
)


def _versions() -> str:
    return f"Written with torch {version('torch').partition('+')[0]} and Triton {version('triton')}, for {GPU}."


def _sets() -> Table:
    """What was announced, and what the installed torch has."""
    have = operator_sets()
    names = [name for name in (*LEVELS, "ATen overloads") if name in have]
    columns = [
        col.text("level", names),
        col.text("announced", [PUBLISHED.get(name, "-") for name in names]),
        col.plain("this torch has", [have[name] for name in names]),
    ]
    return col.table("", columns)


def operator_sets() -> dict[str, int]:
    """How many operators the installed torch has at each level, for all models together. ``ATen`` counts names in the
    dispatcher, ``ATen overloads`` their overloads, ``core ATen`` the names tagged core, ``prims`` the primitives of PrimTorch,
    ``loop IR`` the methods of Inductor's ops handler."""
    import torch
    from torch._inductor.ops_handler import OpsHandler

    import_module("torch._prims")
    known = [name.partition("::") for name in torch._C._dispatch_get_all_op_names()]
    aten = [name.partition(".") for namespace, _, name in known if namespace == "aten"]
    core = {
        packet for packet, _, overload in aten
        if torch.Tag.core in getattr(getattr(torch.ops.aten, packet), overload or "default").tags
    }  # fmt: skip
    loop = {name for name, item in vars(OpsHandler).items() if callable(item) and not name.startswith("_")}
    return {
        "ATen": len({packet for packet, _, _ in aten}), "ATen overloads": len(aten), "core ATen": len(core),
        "prims": sum(namespace == "prims" for namespace, _, _ in known), "loop IR": len(loop - NO_LOOP_OPS),
    }  # fmt: skip


def _distinct(made: Mapping[str, OpCounts]) -> Table:
    """A row for each workload, and one for all of them together."""
    together = [len({op for f in made.values() if (level := f.level(name)) for op in level.ops}) for name in LEVELS]
    rows = [[_level(f, name, "distinct") for name in LEVELS] for f in made.values()]
    note = "All together: operators that at least one of them calls. Kernels are told apart by name and workload."
    together[-1] = sum(row[-1] for row in rows)
    return _by_level([*made, "all together"], [*rows, together], note)


def _calls(made: Mapping[str, OpCounts]) -> Table:
    rows = [[_level(f, name, "calls") for name in LEVELS] for f in made.values()]
    return _by_level(list(made), rows, "Kernels: launches.")


def _level(made: OpCounts, name: str, count: str) -> int:
    level = made.level(name)
    assert level is not None
    number: int = getattr(level, count)
    return number


def _by_level(names: list[str], rows: list[list[int]], note: str) -> Table:
    columns = [col.plain(name, [row[i] for row in rows]) for i, name in enumerate(LEVELS)]
    return col.table("", [col.text("workload", names), *columns], note)


def _undecomposed(made: Mapping[str, OpCounts]) -> Table:
    """What stays an ATen call at the level of prims, and what Inductor calls a library for besides products."""
    columns = [
        col.text("workload", list(made)),
        col.text("still ATen at the level of prims", [_listed(f.no_decomposition) for f in made.values()]),
        col.text("a library's in Inductor, beside products, convolutions and attention",
                    [clean(", ".join(f.fallbacks)) or "none" for f in made.values()]),
    ]  # fmt: skip
    return col.table("", columns)


def _listed(ops: Mapping[str, int]) -> str:
    names = [f"{op} {calls:,}" for op, calls in list(ops.items())[:LISTED]]
    more = [f"and {len(ops) - LISTED} more"] if len(ops) > LISTED else []
    return clean(", ".join((*names, *more)))


if __name__ == "__main__":
    (HERE / "funnel.md").write_text(report(), encoding="utf-8")
    (HERE / "funnel.svg").write_bytes(funnel_figure(counted(), "svg"))
