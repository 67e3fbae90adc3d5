"""Gpu → Document: the hardware table, one GPU with its sources, and how GPUs grew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import memwall.report.columns as col
from memwall.analysis.machines import Machine, best_peak, machines_of
from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, duration, flop_rate, percent, rate_unit, si, size
from memwall.hardware.constants import CONSTANTS
from memwall.hardware.gpu import DTYPES
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.perfmodel.base import OTHER_INSTRUCTIONS, calibrated
from memwall.report.document import Document, Section, Sentence, Table, clean, known_facts
from memwall.report.kinds import Report

#: rows of the growth table: key of ``Machine.growth`` -> what a reader sees
GROWTH = {
    "float16": "fp16 peak", "bfloat16": "bf16 peak", "tf32": "tf32 peak", "float32": "fp32 peak",
    "float64": "fp64 peak", "fp8": "fp8 peak", "fp4": "fp4 peak", "int8": "int8 peak", "bandwidth": "bandwidth",
    "capacity": "capacity", "l2": "last cache", "link": "link", "ridge_float16": "fp16 ridge point", "tdp": "TDP",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpusReport(Report):
    """All GPUs in one table."""

    noun = "the hardware table"
    kinds = ("text", "json")
    gpus: Sequence[Gpu]

    def document(self, kind: str) -> Document:
        rows = []
        for g in self.gpus:
            peaks = [best_peak(g, dtype) for dtype in ("float64", "float32", "tf32", "float16", "fp8")]
            peaks[3] = peaks[3] or best_peak(g, "bfloat16")
            rows.append(
                (
                    g.name,
                    g.release or col.NOTHING,
                    *(peak or None for peak in peaks),
                    g.dram_bytes_per_s,
                    g.dram_bytes,
                    g.l2_bytes or None,
                    g.ridge_point(Pipe("tensor", "float16")),
                    g.tdp_w or None,
                )
            )
        specs = (
            "name: 0, release: 1, fp64: 2 TFLOP/s1, fp32: 3 TFLOP/s1, tf32: 4 TFLOP/s0?, 16 bit: 5 TFLOP/s1,"
            "fp8: 6 TFLOP/s0?, DRAM: 7 GB/s0, memory: 8 GB0, cache: 9 MB1?, ridge@FLOP/B: 10 count, TDP@W: 11 count?"
        )
        return Document("GPUs", (Section("", (col.listing("", rows, specs, _GPUS_NOTE),)),))

    def record(self) -> str:
        return json.dumps([gpu.to_dict() for gpu in self.gpus], indent=2)


_GPUS_NOTE = (
    "peaks are dense, of the faster engine; ridge: FLOP per byte above which 16-bit matrix work is limited by "
    "compute; one GPU with its sources: memwall gpus NAME"
)


@dataclass(frozen=True, slots=True)
class GpuReport(Report):
    """One GPU, each number with its source."""

    noun = "a GPU"
    kinds = ("text",)
    gpu: Gpu

    def document(self, kind: str) -> Document:
        gpu = self.gpu
        facts = known_facts(
            ("name", gpu.name),
            ("also", ", ".join(gpu.aliases) or col.NOTHING),
            ("vendor", gpu.vendor),
            ("architecture", f"{gpu.architecture} {gpu.compute_capability or ''}"),
            ("release", gpu.release or col.NOTHING),
            ("calibration", gpu.calibration),
        )
        tables = [
            _peaks_table(gpu),
            _numbers_table(gpu),
            *_tpu_tables(gpu),
            *([_utilization_table(gpu)] if gpu.utilization else []),
        ]
        return Document(gpu.full_name, (Section("", (facts, *tables)),))


def _utilization_table(gpu: Gpu) -> Table:
    """The constants of the models of kernels, all of one table and source in a row: this GPU's own with their rows,
    and whose the others are."""
    rows: dict[tuple[str, str], list[str]] = {}
    for key, value in gpu.utilization.items():
        kernels, _, name = key.rpartition(".")
        fitted = gpu.fitted_on.get(kernels, "")
        family, _, variant = kernels.partition(".")
        how = calibrated(CONSTANTS[family], gpu, variant)
        how = how if how == OTHER_INSTRUCTIONS else "by architecture"
        whose = f"{how}: {fitted}" if fitted not in ("", gpu.name) else how
        source = gpu.sources.get(f"utilization.{key}") or whose
        rows.setdefault((kernels, source), []).append(f"{name} {value:.4g}")
    table = [(kernels, ", ".join(values), source) for (kernels, source), values in rows.items()]
    note = (
        "interval: measured over modeled time, from the 10th to the 90th percentile;"
        " what each constant means: memwall/hardware/constants.py"
    )
    return col.listing("Utilization", table, "kernels: 0, constants: 1 prose, source: 2 prose", note)


def _peaks_table(gpu: Gpu) -> Table:
    pipes = sorted(gpu.peak_flop_per_s, key=lambda pipe: (pipe.engine, -gpu.peak_flop_per_s[pipe], pipe.dtype))
    rows = [
        (
            pipe,
            flop_rate(gpu.peak_flop_per_s[pipe], pipe),
            percent(gpu.achievable_fraction(pipe)),
            gpu.ridge_point(pipe),
            _source(gpu, f"peak_flop_per_s.{pipe}"),
        )
        for pipe in pipes
    ]
    specs = "ceiling: 0, peak: 1 right, achievable: 2 right, ridge@FLOP/B: 3 count1, source of the peak: 4 prose"
    return col.listing("Compute", rows, specs)


def _source(gpu: Gpu, key: str) -> str:
    return gpu.sources.get(key) or col.NOTHING


def _numbers_table(gpu: Gpu) -> Table:
    rows = [
        ("bandwidth", bandwidth(gpu.dram_bytes_per_s), "memory.dram_bytes_per_s"),
        ("achievable of it", percent(gpu.achievable["dram"]), "achievable.dram"),
        ("memory", size(gpu.dram_bytes), "memory.dram_bytes"),
        ("last cache", size(gpu.l2_bytes), "memory.l2_bytes"),
        ("its bandwidth", bandwidth(gpu.l2_bytes_per_s), "memory.l2_bytes_per_s"),
        ("link, both directions", bandwidth(gpu.link_bytes_per_s), "link.link_bytes_per_s"),
        ("units (SM, CU)", str(gpu.sm_count), "compute.sm_count"),
        ("boost clock", si(gpu.boost_clock_hz, "Hz"), "compute.boost_clock_hz"),
        *(
            (f"clock of {what}", si(clock_hz, "Hz"), f"compute.{key}")
            for what, key, clock_hz in (
                ("kernels", "run_clock_hz", gpu.run_clock_hz),
                ("bounds", "max_clock_hz", gpu.max_clock_hz),
            )
            if clock_hz
        ),
        ("TDP", f"{gpu.tdp_w:.0f} W" if gpu.tdp_w else col.NOTHING, "power.tdp_w"),
        ("launch latency", duration(gpu.launch_overhead_s), "host.launch_overhead_s"),
        *((f"achievable {key}", percent(f), f"achievable.{key}") for key, f in gpu.achievable.items() if key != "dram"),
    ]
    table = [(name, value, _source(gpu, key)) for name, value, key in rows]
    return col.listing("Memory, power, host", table, "number: 0, value: 1 right, source: 2 prose")


#: how a number of a TPU is written, by the end of its name
_WRITTEN = {"_bytes_per_s": bandwidth, "_bytes": size, "_s": duration}


def _tpu_tables(gpu: Gpu) -> list[Table]:
    """The units and links of a TPU."""
    rows = []
    for name, value in asdict(gpu.tpu).items() if gpu.tpu else ():
        write = next((write for end, write in _WRITTEN.items() if name.endswith(end)), str)
        rows.append((name.replace("_", " "), write(value), _source(gpu, f"tpu.{name}")))
    listed = col.listing("TensorCore and links", rows, "number: 0, value: 1 right, source: 2 prose")
    return [listed] if rows else []


#: the two GPUs between which the wall is usually shown
WALL = ("p100-sxm2-16gb", "h100-sxm")


def machine_sections(machines: Sequence[Machine]) -> list[Section]:
    """Datasheets side by side, then their growth, and that from P100 to H100 unless it is among them."""
    grown = [machines]
    if machines[0].name != WALL[0] or WALL[1] not in [m.name for m in machines]:
        grown.append(machines_of([load_gpu(name) for name in WALL]))
    told = [() if each is machines else moral(each) for each in grown]
    growth = [
        Section(f"Growth over {clean(each[0].name)}", (_growth_table(each), *said))
        for each, said in zip(grown, told, strict=True)
    ]
    return [Section("Datasheets", (_datasheet(machines),)), *growth]


def _peak(machine: Machine, dtype: str) -> float | None:
    return max(machine.peak_flop_per_s.get(f"{engine}.{dtype}", 0.0) for engine in ("tensor", "vector")) or None


def _datasheet(machines: Sequence[Machine]) -> Table:
    ridge = [fp16 / m.dram_bytes_per_s if (fp16 := _peak(m, "float16")) else None for m in machines]
    rows = [
        (m.name, m.release or col.NOTHING, m.dram_bytes_per_s, m.dram_bytes, r, m.tdp_w or None)
        for m, r in zip(machines, ridge, strict=True)
    ]
    columns = col.of(rows, "GPU: 0, release: 1?")
    for dtype in DTYPES:
        if any(peaks := [_peak(m, dtype) for m in machines]):
            column = col.fixed(_SHORT.get(dtype, dtype), f"T{rate_unit(dtype)}", peaks, 1e12, 1)
            columns.append(column if dtype in _CORE else col.optional(column))
    columns += col.of(rows, "bandwidth: 2 B/s, memory: 3 GB0, ridge fp16@FLOP/B: 4 count, TDP@W: 5 count?")
    return col.table("", columns, "dense peaks of the faster engine")


_SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
#: with more machines than this, each is a row of the growth table
MAX_WIDE = 5


def _growth_table(machines: Sequence[Machine]) -> Table:
    """One row per quantity, or, for many machines, one row per machine."""
    keys = [key for key in GROWTH if any(m.growth.get(key) for m in machines[1:])]
    if len(machines) <= MAX_WIDE:
        columns = [col.text("quantity", [GROWTH[key] for key in keys])]
        columns += [col.ratio(clean(m.name), [m.growth.get(key) for key in keys]) for m in machines[1:]]
        return col.table("", columns)
    columns = [col.text("GPU", [m.name for m in machines])]
    for key in keys:
        column, cells = col.ratio("", [m.growth.get(key) for m in machines])
        heading, _, unit = GROWTH[key].partition(" ")
        columns.append((replace(column, heading=heading, unit=unit, optional=key not in _CORE), cells))
    return col.table("", columns)


#: what a narrow page keeps
_CORE = ("float16", "float32", "bandwidth", "capacity", "ridge_float16")


def moral(machines: Sequence[Machine]) -> tuple[Sentence, ...]:
    """The memory wall in one sentence, from the first machine to the last."""
    first, last = machines[0], machines[-1]
    flop, moved, held = (last.growth.get(key) for key in ("float16", "bandwidth", "capacity"))
    if len(machines) < 2 or not (flop and moved and held):
        return ()
    text = (
        f"From {clean(first.name)} to {clean(last.name)} fp16 FLOP/s grew {flop:.1f} times, bandwidth {moved:.1f} "
        f"times, capacity {held:.1f} times: a kernel must do {flop / moved:.1f} times as many FLOP per byte "
        "to keep the machine busy."
    )
    return (Sentence(text, strong=True),)
