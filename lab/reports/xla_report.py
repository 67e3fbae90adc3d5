"""Write reports/xla.md: the twelve JAX programs of profiles/ as XLA compiles them for seven devices.

    python lab/reports/xla_report.py            # needs memwall-roofline[xla-cuda,xla-tpu]; 40 minutes, then cached

For each program and device: kernels as memwall's plan has them, and as a second reader counts them in the text of the
optimized HLO (instructions of the entry and of loop bodies, as often as those run); compulsory bytes next to the
primitives' and to the least that any fusion moves; the plan's peak next to the peak of XLA's buffer assignment; modeled
time. Then the collectives of a sharded program next to the collectives of its HLO.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "lab")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import memwall  # noqa: E402
from memwall.core.errors import MemwallError  # noqa: E402
from memwall.core.files import write_whole  # noqa: E402
from memwall.core.ranks import ranks_text  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.wings import part  # noqa: E402

PROGRAMS: Mapping[str, str] = {
    "bert": "inference", "dlrm": "training", "gnn": "training", "gpt2": "training", "llama3_1b": "training",
    "llama3_3b_decode": "inference", "lstm": "training", "moe": "inference", "resnet50": "training", "s5": "inference",
    "unet": "inference", "vit_l16": "inference",
}  # fmt: skip
DEVICES = ("p100-sxm2-16gb", "v100-sxm2-16gb", "a100-80gb-sxm", "h100-sxm", "b200", "l4", "tpu-v5e")

# -- a second reader ---------------------------------------------------------------------------------------------------

#: instructions that launch nothing of their own: the end of an asynchronous pair, names, numbers, control flow
QUIET = re.compile(
    r"parameter|constant|tuple|get-tuple-element|bitcast|while|conditional|call|after-all|partition-id|replica-id"
    r"|opt-barrier|.*-done|.*-update|iota|add-dependency|domain"
)
LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (?:\((?:[^()]|\([^()]*\))*\)|\S+) ([\w\-]+)\(")


def computations(text: str) -> dict[str, list[str]]:
    """The lines of each computation by its name, the entry's under an empty one."""
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if head := re.match(r"^(ENTRY )?%?([\w.\-]+) (?:\([^{]*)?.*\{$", line):
            name = "" if head[1] else head[2]
            found[name] = []
        elif line.startswith("}"):
            name = None
        elif name is not None:
            found[name].append(line)
    return found


def launched(text: str) -> Counter[str]:
    """How often each kind of instruction runs as a kernel: in the entry, and in the bodies of its loops."""
    bodies = computations(text)

    def count(name: str, times: int) -> Iterator[tuple[str, int]]:
        for line in bodies[name]:
            found = LINE.match(line)
            if found is None:
                continue
            if found[2] == "while":
                trips = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                body = re.search(r"body=%?([\w.\-]+)", line)
                yield from count(body[1], times * int(trips[1] if trips else 1)) if body else ()
            elif found[2] in ("call", "async-start") and (to := re.search(r"(?:to_apply|calls)=%?([\w.\-]+)", line)):
                yield from count(to[1], times)
            elif not QUIET.fullmatch(found[2]):
                yield found[2].removesuffix("-start"), times

    total: Counter[str] = Counter()
    for opcode, times in count("", 1):
        total[opcode] += times
    return total


def collectives(text: str) -> Counter[tuple[str, str, int]]:
    """(kind, group of device 0, bytes of the largest operand or result) of each collective of the entry."""
    sizes = {"bf16": 2, "f32": 4, "s32": 4, "f16": 2, "u32": 4, "pred": 1}
    found: Counter[tuple[str, str, int]] = Counter()
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    for line in computations(text)[""]:
        match = re.match(rf"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ({kinds})(?:-start)?\(", line)
        if match is None:
            continue
        arrays = re.findall(r"\b(bf16|f32|s32|f16|u32|pred)\[([\d,]*)\]", match[1])
        nbytes = sum(sizes[kind] * _product(dims) for kind, dims in arrays)
        found[match[2], _first_group(line, text[:4000]), nbytes] += 1
    return found


def _product(dims: str) -> int:
    total = 1
    for size in filter(None, dims.split(",")):
        total *= int(size)
    return total


def _first_group(line: str, head: str) -> str:
    """The ranks that device 0 exchanges with: of a list of groups, or of an iota that is reshaped and transposed; all
    ranks that the head of the module counts where no group is listed."""
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return ranks_text([int(rank) for rank in listed[1].split(",")])
    groups = re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line)
    if groups is None:  # none is listed: all
        return ranks_text(range(int(re.search(r"num_partitions=(\d+)", head)[1])))
    import numpy as np

    shape = [int(size) for size in groups[3].split(",")]
    ranks = np.arange(int(np.prod(shape))).reshape(shape)
    if groups[4]:
        ranks = ranks.transpose([int(axis) for axis in groups[4].split(",")])
    return ranks_text(ranks.reshape(int(groups[1]), int(groups[2]))[0].tolist())


# -- the report --------------------------------------------------------------------------------------------------------


def row(name: str, device: str) -> str:
    """One program on one device."""
    began = time.perf_counter()
    target, mode = ROOT / "profiles" / f"jax_{name}" / "model.py", PROGRAMS[name]
    try:
        made = memwall.profile(target, mode=mode, gpu=device, policy=("eager", "xla", "ideal"))
    except MemwallError as error:
        return f"| {name} | {device} | {str(error)[:160]} | | | | | |"
    eager, xla, ideal = (schedule.totals for schedule in made.simulations)
    compiled = part("xla.compiled")(made.program, load_gpu(device))  # cached
    counted = sum(launched(compiled.text).values())
    peak = xla.peak_memory_bytes / compiled.peak
    to_ideal, to_eager = xla.dram_bytes / ideal.dram_bytes, xla.dram_bytes / eager.dram_bytes
    print(name, device, xla.kernels, counted, f"{time.perf_counter() - began:.1f} s", flush=True)
    return (
        f"| {name} | {device} | {xla.kernels:,} | {counted:,} | {to_ideal:.2f} | {to_eager:.2f} | {peak:.3f} |"
        f" {1e3 * xla.time_s:.2f} |"
    )


def sharded() -> list[str]:
    """The collectives of the program on 4 x 4 H100, by memwall and by the second reader."""
    target = ROOT / "profiles" / "jax_gpt_4x4" / "model.py"
    made = memwall.profile(target, mode="training", gpu="h100-sxm", cluster="dgx-h100", policy="xla")
    (schedule,) = made.simulations
    graph = made.graphs[schedule.graph]
    ours: Counter[tuple[str, str, int]] = Counter()
    for op in graph.ops:
        if op.op_class == "communication":
            (launch,) = made.costs[schedule.graph][op.id].launches
            ours[op.name.removeprefix("lax.").replace("_", "-"), op.attributes["group"], launch.nbytes] += 1
    text = part("xla.compiled")(made.program, load_gpu("h100-sxm")).text
    theirs = collectives(text)
    rows = [
        f"| {kind} | {group} | {nbytes:,} | {ours[kind, group, nbytes]} | {theirs[kind, group, nbytes]} |"
        for kind, group, nbytes in sorted(ours | theirs)
    ]
    return ["| collective | ranks | bytes | memwall | HLO |", "|---|---|---|---|---|", *rows]


def report(names: list[str], devices: list[str]) -> str:
    rows = [row(name, device) for device in devices for name in names]
    return "\n".join([
        "# JAX programs as XLA compiles them",
        "",
        "Written by `python lab/reports/xla_report.py`. Kernels: of memwall's plan, and as a second reader counts them"
        " in the text of the optimized HLO; of ideal and of primitives: compulsory bytes over the bytes of the policies `ideal` and"
        " `eager`; peak: of the plan over XLA's buffer assignment; ms: modeled time of a step. The second reader counts a loop"
        " once where the HLO does not state its trips, as on TPUs; memwall reads them from the loop's condition.",
        "",
        "| program | device | kernels | second reader | of ideal | of primitives | peak | ms |",
        "|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "## Collectives of a GPT of four layers on 4 x 4 H100",
        "",
        *sharded(),
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    asked = sys.argv[1:]
    names = [name for name in PROGRAMS if not asked or name in asked]
    devices = [device for device in DEVICES if not {*asked} & {*DEVICES} or device in asked]
    text = report(names or [*PROGRAMS], devices)
    if asked:
        print(text)
    else:
        write_whole(ROOT / "reports" / "xla.md", text)
