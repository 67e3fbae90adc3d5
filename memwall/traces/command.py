"""``memwall profile trace.json(.gz)`` or ``run.xplane.pb``: a profiler trace as the target."""

from __future__ import annotations

import re
import stat
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from memwall.core.errors import UsageError
from memwall.traces.xla import XSPACE, recorded_in

if TYPE_CHECKING:
    from memwall.hardware.gpu import Gpu
    from memwall.traces.analysis import TraceAnalysis
    from memwall.traces.records import ProfilerTrace

#: how much of a file is read to distinguish a trace from a record, and how a record of memwall begins
_SNIFFED, _RECORD = 1 << 16, re.compile(r'\{\s*"schema":\s*"memwall\.')
#: what the first events of a bare list have, and what an object with events has
_KEYS = {"[": ("ph", "ts", "pid", "cat"), "{": ("traceEvents", "schemaVersion", "deviceProperties")}


def is_trace(path: str) -> bool:
    """Whether a target is a profiler trace: an XSpace or a folder with one, an object with ``traceEvents`` or a list of
    events, packed or not, or a packed file that is not a record of memwall. An unreadable file is not a trace: whoever
    opens it says why. Raises ``UsageError``: it is another profiler's file, or a pipe or a device, which cannot be
    looked into before it is read."""
    from memwall.frontend.targets.target import is_saved

    if path.lower().endswith(XSPACE) or recorded_in(path) is not None:
        return True
    if not is_saved(path) and not path.lower().endswith(tuple(_ENDINGS)):
        return False
    try:
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # to open a FIFO is to wait for who writes it
            raise UsageError(f"{path} is a pipe or a device: save it to a file first")
        with Path(path).open("rb") as file:
            head = file.read(_SNIFFED)
    except (OSError, ValueError):
        return False
    _refuse_other_profiler(path, head)
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, _SNIFFED)
        except zlib.error:
            return True
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    has_events = any(f'"{key}"' in text for key in _KEYS.get(text[:1], ()))
    return not _RECORD.match(text) and (path.lower().endswith(".gz") or has_events)


#: ending of another profiler's file -> what it is
_ENDINGS = {
    ".ncu-rep": "a report of Nsight Compute", ".nsys-rep": "a report of Nsight Systems",
    ".qdrep": "a report of Nsight Systems", ".sqlite": "a database that Nsight Systems exported",
    ".db": "a database, as rocprofv3 writes it", ".pftrace": "a Perfetto trace, as rocprofv3 writes it",
    ".otf2": "an OTF2 trace, as rocprofv3 writes it", ".csv": "a table",
}  # fmt: skip
#: ending -> what else is to be done with the file, beside a trace of torch.profiler
_BESIDE = {
    ".ncu-rep": "ncu --import {path} --csv --page raw > kernels.csv' writes the counters that memwall's --ncu takes",
    ".csv": "memwall profile trace.json --ncu {path}' adds the counters that Nsight Compute wrote",
}
#: how the JSON of rocprofv3 begins
_ROCPROF = b'"rocprofiler-sdk-tool"'


def _refuse_other_profiler(path: str, head: bytes) -> None:
    """Refuse what another profiler than PyTorch's wrote. Raises ``UsageError``: says what the file is, and how to get
    what can be read."""
    ending = next((ending for ending in _ENDINGS if path.lower().endswith(ending)), "")
    what = "a record of rocprofv3" if _ROCPROF in head else _ENDINGS.get(ending, "")
    if what:
        beside = f"; '{_BESIDE[ending].format(path=path)}" if ending in _BESIDE else ""
        raise UsageError(
            f"{path} is {what}, and no trace of torch.profiler: run the step in 'with torch.profiler.profile("
            f"record_shapes=True) as p:', then p.export_chrome_trace('trace.json'){beside}"
        )


def refuse_trace(path: str) -> None:
    """Refuse a profiler's trace where a saved profile or a model is wanted. Raises ``UsageError``: it is one; says
    which command reads it."""
    if is_trace(path):
        raise UsageError(f"{path} is a profiler's trace, not a saved profile; memwall profile {path} reads it")


class Beside(TypedDict, total=False):
    """Files next to a trace: Nsight Compute's report, XLA's dump of optimized programs, traces of other ranks."""

    ncu: str | None
    hlo: str | None
    others: Sequence[str]


def analyse_file(
    path: str,
    names: Sequence[str | Gpu],
    *,
    instead: Sequence[Gpu] = (),
    cluster: str | None = None,
    **beside: Unpack[Beside],
) -> TraceAnalysis:
    """The analysis of a trace's file, with the files ``beside`` it, on the GPU given, else on its own, and if that is
    not known on the first of those to take ``instead``. Raises ``UsageError``: a file is wrong, or its GPU is not
    known."""
    from memwall.traces.analysing import analyse
    from memwall.traces.reading import read_trace

    trace, ncu = read_trace(path, beside.get("hlo")), beside.get("ncu")
    if not trace.kernels:
        hint = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        raise UsageError(f"{path} has no GPU kernels: {hint}")
    from memwall.hardware.cluster import cluster_of, load_cluster
    from memwall.traces.reading import gpu_name

    gpu, notes = _gpu_of(trace, path, names or (instead[:1] if gpu_name(trace) is None else ()))
    dram_bytes: dict[int, int] = {}
    if ncu is not None:
        from memwall.traces.ncu import join_ncu, read_ncu_csv

        joined = join_ncu(trace, read_ncu_csv(ncu))
        rows = joined.row_of.items()
        dram_bytes = {kernel: round(row.dram_bytes) for kernel, row in rows if row.dram_bytes is not None}
        if not dram_bytes:
            raise UsageError(f"{ncu}: no kernel of it is one of {Path(path).name}; {'; '.join(joined.notes[:2])}")
        notes += joined.notes
    ranks = [read_trace(other) for other in beside.get("others", ())]
    links = load_cluster(cluster) if cluster else cluster_of(gpu)
    return analyse(trace, gpu, dram_bytes=dram_bytes, notes=notes, cluster=links, others=ranks)


def _gpu_of(trace: ProfilerTrace, path: str, names: Sequence[str | Gpu]) -> tuple[Gpu, tuple[str, ...]]:
    """The GPU to compare the trace with, and what there is to say of it."""
    from memwall.hardware.lookup import load_gpu, load_gpus
    from memwall.traces.reading import gpu_name, nearest_gpu, used

    own = gpu_name(trace)
    ran_on = ", ".join(dict.fromkeys(device.label for device in used(trace) if device.label))
    if names:
        gpus = load_gpus(names)
        if len(gpus) > 1:
            raise UsageError(f"a trace was measured on one GPU; give one --gpu, not {len(gpus)}")
        if own != gpus[0].name:
            return gpus[0], (f"measured on {ran_on or 'a GPU that is not named'}, compared with {gpus[0].name}",)
        return gpus[0], ()
    if own is None:
        device = f"ran on {ran_on}, which is not one of memwall gpus" if ran_on else "does not name its GPU"
        near = nearest_gpu(trace)
        known = f" ({near} is nearest by compute capability and multiprocessors)" if near else ""
        raise UsageError(f"{path} {device}: name the nearest GPU with --gpu NAME{known}, or describe it in a TOML file")
    return load_gpu(own), ()
