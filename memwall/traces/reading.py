"""From a file to a :class:`Trace`: read, sort, link, measure the GPU's time, note what was left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.hardware.lookup import Gpu, load_gpu, match_device, match_hardware
from memwall.traces.events import Activity, Recording
from memwall.traces.matching import Match, match
from memwall.traces.nesting import Nesting
from memwall.traces.owners import Owners
from memwall.traces.records import Device, Step, Trace, TracedKernel
from memwall.traces.stream import read_events
from memwall.traces.timeline import busy_us, exposed_communication_us, gaps
from memwall.traces.values import printable, whole_number

#: the second name of the devices is that of early 2021
_DEVICES = ("deviceProperties", "computeProperties")
_RANKS = "distributedInfo"

#: the order of GPU rows
_ON_THE_GPU = attrgetter("start", "device", "stream", "dur", "correlation", "name")

#: CUPTI writes 0 for a kernel that it could not time; none starts this long before the first CPU event
_TIMED_US = 1e7

#: rows of one stream that overlap by less than this share of their time are only rounding
_OVERLAP = 0.01

#: if kernels begin this long before their launch, the clocks of CPU and GPU disagree
_CLOCKS_AGREE_US = 1000.0


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Read a PyTorch profiler (Kineto) trace, ``.json`` or ``.json.gz``, and link its kernels to ops.

    The file is streamed; memory grows with the ops and kernels in it, not with its size.

    Raises:
        UsageError: no such file, truncated, damaged, not JSON, or not a profiler trace; says where.
    """
    recording = Recording()
    header = read_events(path, recording.keep, frozenset((*_DEVICES, _RANKS)))
    if not (recording.activities or len(recording.spans) or recording.calls.start):
        raise UsageError(
            f"{path} holds no event of the PyTorch profiler (cpu_op, cuda_runtime, kernel, ...): "
            "export one with torch.profiler.profile(...).export_chrome_trace(path)"
        )
    return _linked(recording, header, printable(Path(path).name))


def _linked(recording: Recording, header: Mapping[str, Any], name: str) -> Trace:
    _drop_untimed(recording)
    base, end = _extent(recording)
    activities = sorted(set(recording.activities), key=_ON_THE_GPU)
    nesting = Nesting(recording)
    matches = match(recording, activities, nesting)
    owners = Owners(recording, nesting, {m.span for m in matches if m.span is not None}, base)
    ops = owners.ops()
    kernels = tuple(
        _kernel(number, activity, found, owners, nesting, recording, base)
        for number, (activity, found) in enumerate(zip(activities, matches, strict=True))
    )
    properties = next((header[key] for key in _DEVICES if key in header), None)
    devices = _devices(properties, Counter(kernel.device for kernel in kernels))
    return Trace(
        path_name=name, devices=devices, ops=ops, kernels=kernels, gaps=gaps(kernels, ops, recording, nesting, base),
        steps=tuple(Step(text, start - base, dur) for start, dur, text in sorted(recording.steps)), span_us=end - base,
        busy_us=busy_us(kernels), exposed_communication_us=exposed_communication_us(kernels),
        notes=tuple(_notes(recording, len(recording.activities) - len(activities), kernels, devices)),
        ranks=_ranks(header.get(_RANKS)),
    )  # fmt: skip


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
    if begins:
        earliest = min(begins) - _TIMED_US
        timed = [row for row in recording.activities if row.start >= earliest]
        recording.dropped["that the profiler could not time"] += len(recording.activities) - len(timed)
        recording.activities = timed


def _extent(recording: Recording) -> tuple[float, float]:
    """First begin and last end of what was kept; steps do not count, they may exceed the recording."""
    spans, calls, rows = recording.spans, recording.calls, recording.activities
    columns = [(spans.start, spans.dur), (calls.start, calls.dur), ([r.start for r in rows], [r.dur for r in rows])]
    starts = [min(times) for times, _ in columns if times]
    return min(starts), max(max(map(float.__add__, times, durations)) for times, durations in columns if times)


def _kernel(
    number: int, activity: Activity, found: Match, owners: Owners, nesting: Nesting, recording: Recording, base: float
) -> TracedKernel:
    detail = recording.details[activity.detail]
    calls = recording.calls
    outside = None if found.call is None or found.span is not None else nesting.outside.get(found.call)
    path, frame = outside or (-1, -1)
    texts = recording.names.texts
    return TracedKernel(
        id=number, name=texts[activity.name], category=activity.category,
        device=activity.device, stream=activity.stream, start_us=activity.start - base, dur_us=activity.dur,
        op=None if found.span is None else owners.ids[found.span], module=owners.module_of(path),
        source=texts[frame] if frame >= 0 else "",
        launch="" if found.call is None else texts[calls.name[found.call]],
        launch_us=None if found.call is None else calls.start[found.call] - base,
        grid=detail.grid, block=detail.block, bytes=detail.bytes, attributes=detail.attributes,
    )  # fmt: skip


def _notes(
    recording: Recording, duplicates: int, kernels: Sequence[TracedKernel], devices: Sequence[Device]
) -> list[str]:
    """What was left out or cannot be known, one line each, in a fixed order."""
    notes = [f"{count} events {what} were left out" for what, count in sorted(recording.dropped.items()) if count]
    if duplicates:
        notes.append(f"{duplicates} GPU rows stand twice in the file and were counted once")
    if not kernels:
        notes.append("no GPU row: the profiler ran without a GPU or without ProfilerActivity.CUDA")
    notes += _launch_notes(kernels)
    overlap, total = _overlap_us(kernels), sum(kernel.dur_us for kernel in kernels)
    if overlap > _OVERLAP * total:
        notes.append(f"GPU rows run {overlap:.0f} us into the next row of their stream: their durations are too long")
    notes += _nameless([device for device in devices if device.kernels])
    return notes


def _nameless(ran: Sequence[Device]) -> list[str]:
    """What is known of the GPU of a trace that does not name it."""
    if not ran or any(device.name for device in ran):
        return []
    label = next((device.label for device in ran if device.label), "")
    if not label:
        return ["the trace does not name its GPU (no deviceProperties)"]
    found = next((gpu for device in ran if (gpu := _gpu_of(device))), None)
    return [f"the trace does not name its GPU: {label}" + (f", as {found} has" if found else "")]


def _overlap_us(kernels: Sequence[TracedKernel]) -> float:
    """Time by which rows overlap the next of their stream; those of one graph launch may run concurrently."""
    last: dict[tuple[int, int], TracedKernel] = {}
    overlap = 0.0
    for kernel in kernels:
        before = last.get((kernel.device, kernel.stream))
        if before is not None and "Graph" not in kernel.launch:
            overlap += max(0.0, min(before.end_us, kernel.end_us) - kernel.start_us)
        if before is None or kernel.end_us > before.end_us:
            last[kernel.device, kernel.stream] = kernel
    return overlap


def _launch_notes(kernels: Sequence[TracedKernel]) -> list[str]:
    notes = []
    lost = [kernel for kernel in kernels if not kernel.launch and kernel.op is None]
    if lost:
        notes.append(
            f"{len(lost)} GPU rows ({sum(k.dur_us for k in lost):.0f} us) have no launch in the trace: "
            "they were launched before the recording began, or by a library that it did not see"
        )
    bare = [kernel for kernel in kernels if kernel.launch and kernel.op is None]
    if bare:
        notes.append(f"{len(bare)} GPU rows ({sum(k.dur_us for k in bare):.0f} us) were launched outside any op")
    graphs = [kernel for kernel in kernels if "GraphLaunch" in kernel.launch]
    if graphs:
        launches = len({(kernel.launch_us, kernel.op) for kernel in graphs})
        notes.append(
            f"{len(graphs)} GPU rows belong to {launches} CUDA graph launches: a graph keeps no op of its kernels, "
            "so the op around the launch owns them"
        )
    early = sum(k.launch_us is not None and k.start_us < k.launch_us - _CLOCKS_AGREE_US for k in kernels)
    if early:
        notes.append(f"{early} GPU rows begin over 1 ms before their launch: CPU and GPU clocks disagree")
    return notes


# ---- which GPUs it ran on

#: a device with fewer of its GPU's multiprocessors is a part of it: a MIG slice, a partition of an MI300X
_WHOLE_GPU = 0.9


def _devices(properties: object, kernels_of: Mapping[int, int]) -> tuple[Device, ...]:
    """The devices of ``deviceProperties`` and those that only kernels name, by index.

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


def gpu_name(trace: Trace) -> str | None:
    """memwall's name of the GPU that ran the kernels; None if it has no spec or no name, or several ran.

    A device with a part of the multiprocessors (a MIG slice) is not that GPU.
    """
    names = {_gpu_of(device) for device in used(trace)}
    return names.pop() if len(names) == 1 else None


def ran_elsewhere(trace: Trace, gpu: Gpu) -> bool:
    """Whether a trace is known to be of another kind of GPU: another vendor, compute capability or size."""
    if vendors_of(trace) - {gpu.vendor}:
        return True
    own = gpu_name(trace)
    known = load_gpu(own) if own else gpu
    return (known.compute_capability, known.sm_count) != (gpu.compute_capability, gpu.sm_count)


def vendors_of(trace: Trace) -> set[str]:
    """Who made the GPUs that ran the kernels, as far as the trace shows it."""
    return {device.vendor for device in used(trace) if device.vendor}


def used(trace: Trace) -> Sequence[Device]:
    """The devices that ran something."""
    return [device for device in trace.devices if device.kernels]


def _gpu_of(device: Device) -> str | None:
    gpu = (
        match_device(device.name) if device.name else match_hardware(device.vendor, device.sm_count, device.dram_bytes)
    )
    if gpu is None:
        return None
    whole = load_gpu(gpu.name).sm_count
    part = device.sm_count is not None and device.sm_count < _WHOLE_GPU * whole
    return None if part else gpu.name


def _device(index: int, entry: Mapping[str, Any], kernels: int) -> Device:
    counts = (whole_number(entry.get(name)) for name in ("numSms", "multiProcessorCount"))  # the second: early 2021
    sm_count = next((count for count in counts if count >= 0), None)
    name = printable(str(entry.get("name", "")))[:200]
    nbytes = whole_number(entry.get("totalGlobalMem"))
    version = [whole_number(entry.get(f"compute{part}")) for part in ("Major", "Minor")]
    return Device(
        index=index, name=name, sm_count=sm_count, kernels=kernels, dram_bytes=nbytes if nbytes > 0 else None,
        vendor=_vendor(name, whole_number(entry.get("warpSize"))),
        compute_capability=".".join(map(str, version)) if min(version) >= 0 else "",
    )  # fmt: skip


#: threads of a warp -> who makes such GPUs; AMD's that train have 64
_WARPS = {32: "NVIDIA", 64: "AMD"}


def _vendor(name: str, warp_size: int) -> str:
    """The vendor of a device by its name, else by its warps."""
    gpu = match_device(name) if name else None
    return gpu.vendor if gpu else _WARPS.get(warp_size, "")
