"""An inference engine as data, by version: the seconds that its CPU adds to what its GPUs do, and how it fills a step
where nobody says.

``hardware_specs/engines`` holds a TOML file for each engine, with a source next to each number: a base, and under
``[[version]]`` what changed ``since`` a version. ``vllm@0.11`` names a version, ``vllm`` the newest; a file of a user's
own has a ``base`` and what differs from it, as ``memwall calibrate --engine`` writes it. The machines are from the
deployments that the numbers are fitted to: servers of H100 to GB300.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from memwall.core.errors import UsageError, unknown
from memwall.core.structure import BadRecord, one_line, one_of, read, shown
from memwall.hardware.checks import Line, NotNegative, Positive, Size, Whole, numbers
from memwall.hardware.files import packaged, read_stated
from memwall.hardware.gpu import Gpu

SCHEMA = "memwall.engine/1"
ENGINES = ("vllm", "sglang", "trtllm")
#: how steps take prompts: ``chunked``, cut where the tokens of a step end, next to decodes; ``whole``, next to decodes;
#: ``apart``, whole in steps of their own, while decodes wait
PREFILLS = ("chunked", "whole", "apart")

_VERSION = re.compile(r"\d{1,6}(?:\.\d{1,6}){0,4}")
#: more sequences than any engine runs in a step
_MOST_GRAPH = 1 << 16
_share = numbers("a share from 0 to 1", lambda number: 0 <= number <= 1)


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Seconds of the CPU that no kernel hides: ``step_s`` for each step (scheduling, sampling, sending of tokens) and
    ``sequence_s`` for each sequence of it, ``launch_s`` for each kernel of a step that no CUDA graph holds, and
    ``request_s`` between a client and the queue of the engine (HTTP, tokens of the prompt, the first token's way back).
    The kernels of a step take ``kernels_factor`` times what is modeled: 1 where nobody measured it on the machine that
    is meant. ``ttft_low`` to ``ttft_high`` and ``tpot_low`` to ``tpot_high`` are the 80 % intervals of a server's
    times, measured over modeled; ``tpot_apart_low`` to ``tpot_apart_high`` is that of the latter where prompts have
    engines of their own."""

    name: Line
    step_s: NotNegative = 0.0
    launch_s: NotNegative = 0.0
    request_s: NotNegative = 0.0
    ttft_low: NotNegative = 1.0
    ttft_high: NotNegative = 1.0
    tpot_low: NotNegative = 1.0
    tpot_high: NotNegative = 1.0
    tpot_apart_low: NotNegative = 1.0
    tpot_apart_high: NotNegative = 1.0
    sequence_s: NotNegative = 0.0
    kernels_factor: Positive = 1.0

    def scaled(self, factor: float) -> EngineHost:
        """With all seconds of the CPU by a factor."""
        seconds = ("step_s", "launch_s", "request_s", "sequence_s")
        return replace(self, **{name: factor * getattr(self, name) for name in seconds})

    @property
    def apart(self) -> EngineHost:
        """With the intervals of prompts and decodes apart."""
        return replace(self, tpot_low=self.tpot_apart_low, tpot_high=self.tpot_apart_high)

    @property
    def of_draft(self) -> EngineHost:
        """The engine of a draft, whose kernels are in the step of the model that it guesses for."""
        return EngineHost(self.name, kernels_factor=self.kernels_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimit:
    """What a group of GPUs takes in a step: sequences, tokens, and decodes in the largest CUDA graph. It holds for GPUs
    of at least ``least_gib`` of memory and of a compute ``capability`` that begins so, whose name lacks ``but``, in
    groups of at least ``least_tp``."""

    max_batch: Whole
    token_budget: Whole
    largest_graph: Whole
    least_gib: Size = 0
    least_tp: Size = 0
    capability: str = ""
    but: str = ""

    def holds(self, gpu: Gpu, tp: int) -> bool:
        """Whether it is of a GPU, ``tp`` of which share a matmul."""
        is_large = gpu.dram_bytes >= self.least_gib << 30 and tp >= self.least_tp
        is_other = bool(self.but) and self.but in gpu.name
        return is_large and (gpu.compute_capability or "").startswith(self.capability) and not is_other


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine of a version, by the ``name`` under which it was asked for: whose ``kernels`` run, its CPU, and how its
    scheduler fills a step where nobody says.

    Attributes:
        limit: the first row that holds for a GPU says what a step takes.
        graph: batches of decodes that CUDA graphs hold, in rows of the first, the last and the step; the last row goes
            on to the largest.
        prefill: how steps take prompts, of :data:`PREFILLS`.
        divided: the tokens of a step are of all groups with sequences of their own.
        reserve: as of :class:`memwall.serving.simulation.engine.Policy`.
        attention_apart: CUDA graphs hold what lies between the attention kernels, which the CPU launches.
    """

    name: Line
    kernels: Annotated[str, one_of(ENGINES)]
    title: Line
    version: Line
    host: EngineHost
    limit: tuple[StepLimit, ...]
    graph: tuple[tuple[int, ...], ...]
    prefill: Annotated[str, one_of(PREFILLS)] = "chunked"
    divided: bool = False
    reserve: Annotated[float, _share] = 0.0
    attention_apart: bool = False

    def limits(self, gpu: Gpu, tp: int = 1, dp: int = 1) -> StepLimit:
        """What each of ``dp`` groups of ``tp`` GPUs takes in a step."""
        found = next(row for row in self.limit if row.holds(gpu, tp * dp if self.divided else tp))
        return replace(found, token_budget=max(found.token_budget // dp, 1)) if self.divided else found

    def captured(self, most: int) -> tuple[int, ...]:
        """The batches of decodes that CUDA graphs hold, up to the largest."""
        *rows, (first, _, step) = self.graph
        most = min(most, _MOST_GRAPH)
        ranges = [range(begin, min(end, most) + 1, by) for begin, end, by in rows] + [range(first, most + 1, step)]
        return tuple(size for each in ranges for size in each)

    def check(self) -> None:
        """Raises BadRecord: some GPU has no limit, or graphs or intervals are no ranges."""
        last = self.limit[-1] if self.limit else StepLimit(max_batch=1, token_budget=1, largest_graph=1, least_gib=1)
        if last.least_gib or last.least_tp or last.capability or last.but:
            raise BadRecord(": the last limit has no condition, so that every GPU has one")
        if not self.graph or any(len(row) != 3 or not min(row) for row in self.graph):
            raise BadRecord(": graph has rows of a first batch, a last one and a step, all above 0")
        for name in ("ttft", "tpot", "tpot_apart"):
            if getattr(self.host, f"{name}_low") > getattr(self.host, f"{name}_high"):
                raise BadRecord(f": {name}_low is above {name}_high")


_KNOWN = {item.name for cls in (EngineHost, EngineSpec) for item in fields(cls)} - {"host", "name", "kernels"}


def load_engine(name: str | Path | EngineSpec) -> EngineSpec:
    """The engine of that name (``vllm``, ``vllm@0.11``), or of that TOML file.

    Raises:
        UsageError: no engine has that name, memwall does not know its version, or the file is wrong.
    """
    if isinstance(name, EngineSpec):
        return name
    if isinstance(name, Path) or "/" in name or name.lower().endswith(".toml"):
        return _own(Path(name))
    return _packaged(name)


def is_packaged(engine: EngineSpec) -> bool:
    """Whether it is memwall's own, and no file of a user's."""
    return engine.name.partition("@")[0] == engine.kernels


def engine_host(name: str) -> EngineHost:
    """The CPU of an engine. Raises UsageError: as :func:`load_engine`."""
    return load_engine(name).host


@cache
def _packaged(name: str) -> EngineSpec:
    return _made(name, _stated(name))


def _own(path: Path) -> EngineSpec:
    """A file of a user's own: what differs from its base."""
    stated, label = read_stated(path, SCHEMA, "engines"), one_line(path)
    base = stated.pop("base", None)
    if not isinstance(base, str):
        raise UsageError(f"{label}: base is {shown(base)}; want the engine that it differs from, such as 'vllm@0.11'")
    for key in stated:
        if key not in _KNOWN:
            raise unknown("number of an engine named", one_line(key), _KNOWN, where=label)
    return _made(label, {**_stated(base), **stated})


def _made(name: str, stated: Mapping[str, Any]) -> EngineSpec:
    try:
        return read(EngineSpec, {**stated, "kernels": stated["name"], "name": name, "host": dict(stated)}, name)
    except BadRecord as error:
        raise UsageError(str(error)) from None


@cache
def _stated(name: str) -> dict[str, Any]:
    """What is stated of an engine of a version: the base, and what changed up to it."""
    engine, at, version = name.partition("@")
    if engine not in ENGINES:
        raise unknown("engine", name, ENGINES)
    stated = read_stated(packaged("hardware_specs/engines")[engine], SCHEMA, "engines")
    newest, rows = stated.pop("newest"), stated.pop("version")
    if not at:
        version = newest
    oldest, last = rows[0]["since"], _key(newest)
    # a later patch of the newest version counts as it
    if not _VERSION.fullmatch(version) or not _key(oldest) <= _key(version)[: len(last)] <= last:
        changes = ", ".join(row["since"] for row in rows[1:])
        raise UsageError(
            f"no version {one_line(version, 40)!r} of {engine}; there is {oldest} to {newest}"
            + f", which differ from {changes} on" * bool(changes)
        )
    for row in rows:
        if _key(row["since"]) <= _key(version):
            stated |= row
    return {**stated, "version": version}


def _key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
