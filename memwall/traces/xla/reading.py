"""A file of XLA's profiler → what is kept of it, in Kineto's words, with the GPUs or TPUs that ran and the programs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError
from memwall.traces.events import Recording
from memwall.traces.stream import read_events
from memwall.traces.values import whole_number
from memwall.traces.xla import XSPACE
from memwall.traces.xla.lanes import XlaLanes, lane_of
from memwall.traces.xla.linking import Instructions
from memwall.traces.xla.programs import dumped, dumped_beside, programs_of
from memwall.traces.xla.space import XPlane, read_space, refusing

#: stat of a plane → property of a device in Kineto's words
_PROPERTIES: Mapping[str, str] = {
    "gpu_device_name": "name", "device_type_string": "name", "core_count": "numSms", "memory_size": "totalGlobalMem",
    "compute_cap_major": "computeMajor", "compute_cap_minor": "computeMinor", "device_vendor": "vendor",
}  # fmt: skip
#: XLA's JSON has no more events than these (``GetTraceViewerMaxEvents``)
_MOST_EVENTS = 1_000_000
_CUT_OFF = f"XLA leaves out of its JSON what exceeds {_MOST_EVENTS:,} events: the .xplane.pb has them all"
_RECORD = "record one on a GPU or TPU with jax.profiler.trace(DIR)"


@dataclass(frozen=True)
class XlaRecording:
    """What was kept of a file; ``header``: its devices; ``instructions``: what links kernels to programs."""

    recording: Recording
    header: Mapping[str, Any]
    instructions: Instructions


def read_xla(path: str | os.PathLike[str], hlo: str | None = None) -> XlaRecording:
    """Read ``.xplane.pb`` or ``.trace.json(.gz)``. Of the JSON, devices and programs are the XSpace's beside it.

    Args:
        hlo: a dump of XLA, a file or a folder; else the programs of the XSpace count, else a dump beside the file.

    Raises:
        UsageError: no such file, damaged or cut off, nothing ran on a GPU or TPU, or the dump is of other programs.
    """
    with refusing(path):
        return _read(Path(path), hlo)


def _read(source: Path, hlo: str | None) -> XlaRecording:
    lanes = XlaLanes()
    planes: Sequence[XPlane]
    if planes_are_whole := source.name.lower().endswith(XSPACE):
        planes = read_space(source)
        for plane in planes:
            lanes.keep_plane(plane)
    else:
        read_events(source, lanes.keep, frozenset())
        planes = _beside(source)
    recording = lanes.finished()
    if not len(recording.activities):
        lacks = "it was recorded on a CPU, whose kernels memwall does not compare" if lanes.ran_on_host else _RECORD
        raise UsageError(f"{source} holds no kernel of a GPU or TPU: {lacks}")
    header = {"deviceProperties": [*filter(None, map(_properties, planes))]}
    programs = dumped(Path(hlo)) if hlo else [*programs_of(planes)] or dumped_beside(source)
    notes = [_CUT_OFF] if not planes_are_whole and recording.events >= _MOST_EVENTS else []
    return XlaRecording(recording, header, Instructions(programs, lanes.runs, hlo or "", notes))


def _beside(source: Path) -> Sequence[XPlane]:
    """The planes of the XSpace that lies next to a trace: of the same host, or the only one."""
    host = re.sub(r"\.trace\.json(\.gz)?$", "", source.name)
    own = source.with_name(host + XSPACE)
    found = [own] if own.is_file() else [*source.parent.glob(f"*{XSPACE}")]
    return read_space(found[0]) if len(found) == 1 else ()


def _properties(plane: XPlane) -> dict[str, Any] | None:
    """A device in Kineto's words; None for another plane."""
    lane = lane_of(plane.name, "Steps")
    if lane is None or lane.device < 0:
        return None
    said = {name: plane.stats[stat] for stat, name in _PROPERTIES.items() if stat in plane.stats}
    found = {**said, "id": lane.device}
    if "totalGlobalMem" in found:
        found["totalGlobalMem"] = whole_number(found["totalGlobalMem"])
    return found
