"""From a file to a :class:`ProfilerTrace`: read, sort, link, measure the GPU's time, note what was left out."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.core.units import size
from memwall.hardware.lookup import Gpu, load_gpu, match_device, match_hardware, nearest_hardware
from memwall.traces.events import CATEGORIES, Activities, Recording, in_order
from memwall.traces.matching import Matches, match
from memwall.traces.nesting import Nesting
from memwall.traces.owners import Owners
from memwall.traces.records import Gaps, KernelKind, Ops, ProfilerStep, ProfilerTrace, TraceDevice, TraceKernels
from memwall.traces.stream import read_events
from memwall.traces.timeline import busy_us, exposed_communication_us, gaps
from memwall.traces.values import printable, whole_number
from memwall.traces.xla import is_xla, recorded_in

#: the second name of the devices is from early 2021
_DEVICES = ("deviceProperties", "computeProperties")
_RANKS = "distributedInfo"

#: CUPTI writes 0 for a kernel that it could not time; none starts this long before the first CPU event
_TIMED_US = 1e7

#: rows of one stream that overlap by less than this share of their time are only rounding
_OVERLAP = 0.01

#: if kernels begin this long before their launch, the clocks of CPU and GPU disagree
_CLOCKS_AGREE_US = 1000.0


def read_trace(path: str | os.PathLike[str], hlo: str | None = None) -> ProfilerTrace:
    """Read a trace of PyTorch's profiler (Kineto), ``.json`` or ``.json.gz``, and link its kernels to ops; or one of
    XLA's (``.xplane.pb``, ``.trace.json.gz``), and link them to instructions of HLO.

    The file is streamed; what is kept is some 70 bytes for each event that counts, and what is distinct among them.

    Args:
        hlo: with a trace of XLA, its dump of optimized programs: a file, or a folder.

    Raises:
        UsageError: no such file, truncated, damaged, not JSON, or not a profiler trace; says where.
    """
    path = recorded_in(path) or path
    name = printable(Path(path).name)
    if is_xla(path):
        from memwall.traces.xla.reading import read_xla  # with it comes the reader of HLO

        found = read_xla(path, hlo)
        trace = _linked(found.recording, found.header, name, found.instructions.link)
        return replace(trace, of_xla=True, programs=tuple(found.instructions.programs))
    if hlo is not None:
        raise UsageError(f"--hlo goes with a trace of XLA's profiler, and {path} is one of PyTorch's")
    recording = Recording()
    header = read_events(path, recording.keep, frozenset((*_DEVICES, _RANKS)))
    if not (len(recording.activities) or len(recording.spans) or recording.calls.start):
        raise UsageError(
            f"{path} holds no event of the PyTorch profiler (cpu_op, cuda_runtime, kernel, ...): "
            "export one with torch.profiler.profile(...).export_chrome_trace(path)"
        )
    return _linked(recording, header, name, _by_launch)


#: kernels, the ops around their launches, gaps, and what their starts are relative to -> the ops that own the kernels,
#: and what there is to say of it
Link = Callable[[TraceKernels, Ops, Gaps, float], tuple[Ops, list[str]]]


def _by_launch(kernels: TraceKernels, ops: Ops, idle: Gaps, base: float) -> tuple[Ops, list[str]]:
    return ops, _launch_notes(kernels, ops)


def _linked(recording: Recording, header: Mapping[str, Any], name: str, link: Link) -> ProfilerTrace:
    _drop_untimed(recording)
    base, end = _extent(recording)
    duplicates = _sort(recording)
    nesting = Nesting(recording)
    matches = match(recording, nesting)
    owners = Owners(recording, nesting, matches.span, base)
    ops = owners.ops()
    kernels = _kernels(recording, matches, owners, nesting, base)
    recording.activities = Activities()  # the kernels hold what is needed of them
    properties = next((header[key] for key in _DEVICES if key in header), None)
    counts = {device: len(own) for device, own in kernels.by_device().items()}
    devices = _devices(properties, counts)
    idle = gaps(kernels, ops, recording, nesting, base)
    ops, said = link(kernels, ops, idle, base)
    return ProfilerTrace(
        path_name=name,
        devices=devices,
        ops=ops,
        kernels=kernels,
        gaps=idle,
        steps=tuple(ProfilerStep(text, start - base, dur) for start, dur, text in sorted(recording.steps)),
        span_us=end - base,
        busy_us=busy_us(kernels),
        exposed_communication_us=exposed_communication_us(kernels),
        notes=tuple(_notes(recording, duplicates, kernels, said, devices)),
        ranks=_ranks(header.get(_RANKS)),
        events=recording.events,
    )


def _sort(recording: Recording) -> int:
    """Put the rows of the GPU in order, each once; how many stood twice."""
    rows, lanes = recording.activities, recording.lanes.values
    columns = (rows.dur, rows.correlation, rows.name, rows.external, rows.thread, rows.detail, rows.category)

    def whole(row: int) -> tuple[Any, ...]:
        return rows.start[row], *lanes[rows.lane[row]], *(column[row] for column in columns)

    order = in_order(rows.start, range(len(rows)), whole)
    unique = array("i", (row for at, row in enumerate(order) if not at or not _same(rows, whole, order[at - 1], row)))
    rows.take(unique)
    return len(order) - len(unique)


def _same(rows: Activities, whole: Callable[[int], Any], first: int, second: int) -> bool:
    return rows.start[first] == rows.start[second] and bool(whole(first) == whole(second))


def _ranks(info: object) -> dict[str, int]:
    """The ranks of each process group of ``distributedInfo``, by name and, if there is but one, by ""."""
    if not isinstance(info, dict):
        return {}
    listed = info.get("pg_config")
    groups = [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []
    found = {str(group.get("pg_name", "")): whole_number(group.get("pg_size")) for group in groups}
    if len(groups) <= 1:
        found[""] = whole_number(info.get("world_size"))
    return {name: ranks for name, ranks in found.items() if ranks > 0}


def _drop_untimed(recording: Recording) -> None:
    """Leave out GPU rows without a valid time, and count them."""
    begins = [min(times) for times in (recording.spans.start, recording.calls.start) if times]
    rows, earliest = recording.activities, min(begins, default=-math.inf) - _TIMED_US
    timed = array("i", (row for row, start in enumerate(rows.start) if start >= earliest))
    if len(timed) < len(rows):
        recording.dropped["that the profiler could not time"] += len(rows) - len(timed)
        rows.take(timed)


def _extent(recording: Recording) -> tuple[float, float]:
    """First begin and last end of what was kept; steps do not count, they may exceed the recording."""
    columns = [kept for kept in (recording.spans, recording.calls, recording.activities) if kept.start]
    return min(min(kept.start) for kept in columns), max(max(map(add, kept.start, kept.dur)) for kept in columns)


def _kernels(recording: Recording, matches: Matches, owners: Owners, nesting: Nesting, base: float) -> TraceKernels:
    """The linked kernels, in the order of the activities."""
    rows, calls, texts = recording.activities, recording.calls, recording.names.texts
    made, known = TraceKernels(), dict[tuple[int, ...], int]()
    for row, (call, span) in enumerate(zip(*matches, strict=True)):
        launch, outside = calls.name[call] if call >= 0 else -1, call >= 0 and span < 0
        path, frame = (nesting.outer_module[row], nesting.outer_frame[row]) if outside else (-1, -1)
        key = (rows.name[row], rows.category[row], rows.lane[row], path, frame, launch, rows.detail[row])
        kind = known.setdefault(key, len(made.kinds))
        if kind == len(made.kinds):
            made.kinds.append(
                KernelKind(
                    texts[rows.name[row]],
                    CATEGORIES[rows.category[row]],
                    *recording.lanes.values[rows.lane[row]],
                    owners.module_of(path),
                    texts[frame] if frame >= 0 else "",
                    texts[launch] if launch >= 0 else "",
                    recording.details[rows.detail[row]],
                )
            )
        made.kind.append(kind)
        made.op.append(owners.numbers[span] if span >= 0 else -1)
        made.start_us.append(rows.start[row] - base)
        made.dur_us.append(rows.dur[row])
        made.launch_us.append(calls.start[call] - base if call >= 0 else math.nan)
    return made


def _notes(
    recording: Recording,
    duplicates: int,
    kernels: TraceKernels,
    of_links: Sequence[str],
    devices: Sequence[TraceDevice],
) -> list[str]:
    """What was left out or cannot be known, one line each, in a fixed order."""
    notes = [f"{count} events {what} were left out" for what, count in sorted(recording.dropped.items()) if count]
    if duplicates:
        notes.append(f"{duplicates} GPU rows stand twice in the file and were counted once")
    if not kernels:
        notes.append("no GPU row: the profiler ran without a GPU or without ProfilerActivity.CUDA")
    notes += of_links
    overlap, total = _overlap_us(kernels), sum(kernels.dur_us)
    if overlap > _OVERLAP * total:
        notes.append(f"GPU rows run {overlap:.0f} us into the next row of their stream: their durations are too long")
    notes += _nameless([device for device in devices if device.kernels])
    return notes


def _nameless(ran: Sequence[TraceDevice]) -> list[str]:
    """What is known of the GPU of a trace that does not name it."""
    if not ran or any(device.name for device in ran):
        return []
    label = next((device.label for device in ran if device.label), "")
    if not label:
        return ["the trace does not name its GPU (no deviceProperties)"]
    found = next((gpu for device in ran if (gpu := _gpu_of(device))), None)
    return [f"the trace does not name its GPU: {label}" + (f", as {found} has" if found else "")]


def _overlap_us(kernels: TraceKernels) -> float:
    """Time by which rows overlap the next of their stream; rows of one graph launch may run concurrently."""
    last: dict[tuple[int, int], float] = {}
    overlap = 0.0
    for number in range(len(kernels)):
        kind, end = kernels.kind_of(number), kernels.end_us(number)
        before = last.get((kind.device, kind.stream))
        if before is not None and "Graph" not in kind.launch:
            overlap += max(0.0, min(before, end) - kernels.start_us[number])
        if before is None or end > before:
            last[kind.device, kind.stream] = end
    return overlap


def _launch_notes(kernels: TraceKernels, ops: Ops) -> list[str]:
    notes, linked = [], ops.linked()
    bare = array("i", (number for number, op in enumerate(kernels.op) if op < 0 or not linked[op]))
    lost = array("i", (number for number in bare if not kernels.kind_of(number).launch))
    if lost:
        notes.append(
            f"{len(lost)} GPU rows ({kernels.total_us(lost):.0f} us) have no launch in the trace: "
            "they were launched before the recording began, or by a library that it did not see"
        )
    outside = array("i", (number for number in bare if kernels.kind_of(number).launch))
    if outside:
        notes.append(f"{len(outside)} GPU rows ({kernels.total_us(outside):.0f} us) were launched outside any op")
    graphs = array("i", (n for n in range(len(kernels)) if "GraphLaunch" in kernels.kind_of(n).launch))
    if graphs:
        launches = len({(kernels.launch_us[number], kernels.op[number]) for number in graphs})
        notes.append(
            f"{len(graphs)} GPU rows belong to {launches} CUDA graph launches: a graph keeps no op of its kernels, "
            "so the op around the launch owns them"
        )
    # no launch is not a number, and nothing is early of it
    times = zip(kernels.start_us, kernels.launch_us, strict=True)
    early = sum(start < launch - _CLOCKS_AGREE_US for start, launch in times)
    if early:
        notes.append(f"{early} GPU rows begin over 1 ms before their launch: CPU and GPU clocks disagree")
    return notes


# ---- which GPUs it ran on

#: a device with fewer of its GPU's multiprocessors is a part of it: a MIG slice, a partition of an MI300X
_WHOLE_GPU = 0.9


def _devices(properties: object, kernels_of: Mapping[int, int]) -> tuple[TraceDevice, ...]:
    """The devices of ``deviceProperties`` and devices that only kernels name, by index.

    ROCm numbers a kernel's device among all agents of the machine and ``deviceProperties`` among visible GPUs; if all
    of these are of one kind, a device without properties is one of them.
    """
    listed = [entry for entry in properties if isinstance(entry, dict)] if isinstance(properties, list) else []
    numbers = [whole_number(entry.get("id")) for entry in listed]
    known = {place if n < 0 else n: entry for place, (n, entry) in enumerate(zip(numbers, listed, strict=True))}
    kinds = {str(entry.get("name", "")) for entry in listed}
    only = listed[0] if len(kinds) == 1 else {}
    indices = sorted({*known, *kernels_of})
    return tuple(_device(index, known.get(index, only), kernels_of.get(index, 0)) for index in indices)


def gpu_name(trace: ProfilerTrace) -> str | None:
    """memwall's name of the GPU that ran the kernels; None if it has no spec or no name, or several ran.

    A device with a part of the multiprocessors (a MIG slice) is not that GPU.
    """
    names = {_gpu_of(device) for device in used(trace)}
    return names.pop() if len(names) == 1 else None


def nearest_gpu(trace: ProfilerTrace) -> str | None:
    """memwall's name of the GPU most like that which ran the kernels; None if nothing is known of it."""
    found = [nearest_hardware(device.vendor, _capability(device), device.sm_count) for device in used(trace)]
    return found[0].name if found and found[0] else None


#: compute capability that ROCm reports -> compile target
_GFX = {"9.0": "gfx90a", "9.4": "gfx942", "9.5": "gfx950", "11.0": "gfx1100"}


def _capability(device: TraceDevice) -> str:
    capability = device.compute_capability
    return _GFX.get(capability, capability) if device.vendor == "AMD" else capability


#: a GPU whose memory differs by more from its name's is another board; ECC in GDDR takes a sixteenth
_OTHER_MEMORY = 0.07


def memory_note(trace: ProfilerTrace, gpu: Gpu) -> str:
    """A sentence where the GPU that ran has another amount of memory than its name's, so other memory."""
    sizes = {device.dram_bytes for device in used(trace) if device.dram_bytes}
    own = sizes.pop() if len(sizes) == 1 and gpu_name(trace) == gpu.name else gpu.dram_bytes
    if abs(own / gpu.dram_bytes - 1) <= _OTHER_MEMORY:
        return ""
    return (
        f"the GPU has {size(own)} of memory and {gpu.name} {size(gpu.dram_bytes)}: it is another board, whose bandwidth"
        " may be another too"
    )


def ran_on(trace: ProfilerTrace) -> str:
    """What ran the kernels: memwall's name of the GPU, else what the trace says of it; empty if it says nothing."""
    labels = dict.fromkeys(device.label for device in used(trace) if device.label)
    return gpu_name(trace) or ", ".join(labels)


def ran_elsewhere(trace: ProfilerTrace, gpu: Gpu) -> bool:
    """Whether a trace is known to be of another kind of GPU: another vendor, compute capability or size."""
    if vendors_of(trace) - {gpu.vendor}:
        return True
    own = gpu_name(trace)
    known = load_gpu(own) if own else gpu
    return (known.compute_capability, known.sm_count) != (gpu.compute_capability, gpu.sm_count)


def vendors_of(trace: ProfilerTrace) -> set[str]:
    """Who made the GPUs that ran the kernels, as far as the trace shows it."""
    return {device.vendor for device in used(trace) if device.vendor}


def used(trace: ProfilerTrace) -> Sequence[TraceDevice]:
    """The devices that ran something."""
    return [device for device in trace.devices if device.kernels]


def _gpu_of(device: TraceDevice) -> str | None:
    gpu = (
        match_device(device.name) if device.name else match_hardware(device.vendor, device.sm_count, device.dram_bytes)
    )
    if gpu is None:
        return None
    whole = load_gpu(gpu.name).sm_count
    part = device.sm_count is not None and device.sm_count < _WHOLE_GPU * whole
    return None if part else gpu.name


def _device(index: int, entry: Mapping[str, Any], kernels: int) -> TraceDevice:
    counts = (whole_number(entry.get(name)) for name in ("numSms", "multiProcessorCount"))  # the second: early 2021
    sm_count = next((count for count in counts if count >= 0), None)
    name = printable(str(entry.get("name", "")))[:200]
    nbytes = whole_number(entry.get("totalGlobalMem"))
    version = [whole_number(entry.get(f"compute{part}")) for part in ("Major", "Minor")]
    return TraceDevice(
        index=index,
        name=name,
        sm_count=sm_count,
        kernels=kernels,
        dram_bytes=nbytes if nbytes > 0 else None,
        vendor=_vendor(name, str(entry.get("vendor", "")), whole_number(entry.get("warpSize"))),
        compute_capability=".".join(map(str, version)) if min(version) >= 0 else "",
    )


#: threads of a warp -> who makes such GPUs; AMD's that train have 64
_WARPS = {32: "NVIDIA", 64: "AMD"}


def _vendor(name: str, vendor: str, warp_size: int) -> str:
    """The vendor of a device by its name, else as stated, else by its warps."""
    gpu = match_device(name) if name else None
    stated = next((known for known in _WARPS.values() if known in f"{name} {vendor.upper()}"), "")
    return gpu.vendor if gpu else stated or _WARPS.get(warp_size, "")
