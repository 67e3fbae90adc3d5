"""Reading Nsight Compute's CSV (``ncu --csv --page raw`` or ``details``) and joining it to a trace's kernels.

``raw`` has a column per metric and a second row of units; ``details`` a row per kernel and metric, with columns
"Metric Name", "Metric Unit" and "Metric Value". Lines such as ``==PROF== Connected`` may precede the table, numbers
follow the locale of the machine ("1,048,576" or "1.048.576"), units are scaled unless ``--print-units base``.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from memwall.core.errors import UsageError
from memwall.core.files import read_text
from memwall.traces.records import ProfilerTrace, TracedKernel
from memwall.traces.values import printable

#: a report of a long run is some MB; a larger file is not a report
_MAX_BYTES = 1 << 28

#: metric -> the field that it fills; the second name of a quantity is used if the first is missing
_METRICS: Mapping[str, str] = {
    "dram__bytes_read.sum": "dram_read_bytes",
    "dram__bytes_write.sum": "dram_write_bytes",
    "dram__bytes.sum": "dram_total_bytes",
    "gpu__time_duration.sum": "duration_s",
    "gpu__time_duration.avg": "duration_s",
    "Duration": "duration_s",
}

_PREFIXES: Mapping[str, float] = {
    "": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip
_SECONDS: Mapping[str, float] = {
    "second": 1, "s": 1, "msecond": 1e-3, "ms": 1e-3, "usecond": 1e-6, "us": 1e-6, "nsecond": 1e-9, "ns": 1e-9,
}  # fmt: skip
_BYTES = re.compile(r"(?P<prefix>[kmgt]i?|)(byte|bytes|b)", re.IGNORECASE)

#: 27.595.520 or 1.234,5: dots part thousands; 1,048,576.5: commas do
_DOTTED = re.compile(r"-?\d{1,3}(\.\d{3}){2,}|-?\d{1,3}(\.\d{3})+,\d+|-?\d+,(\d{1,2}|\d{4,})")


@dataclass(frozen=True, slots=True)
class NcuRow:
    """One kernel that Nsight Compute measured; None if not collected."""

    id: int
    kernel: str
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    dram_total_bytes: float | None = None
    duration_s: float | None = None

    @property
    def dram_bytes(self) -> float | None:
        """Bytes read and written; None if neither the sum nor both parts were collected."""
        if self.dram_read_bytes is not None and self.dram_write_bytes is not None:
            return self.dram_read_bytes + self.dram_write_bytes
        return self.dram_total_bytes


@dataclass(frozen=True, slots=True)
class NcuJoin:
    """Which row measured which kernel of a trace."""

    row_of: Mapping[int, NcuRow]  # TracedKernel.id -> row
    notes: tuple[str, ...]  # what did not fit, a line each


def read_ncu_csv(path: str | os.PathLike[str]) -> tuple[NcuRow, ...]:
    """The kernels of a report, in the order of their launch.

    Raises:
        UsageError: no such file, no table of Nsight Compute, or a malformed number or unit; says which line.
    """
    lines = read_text(path, _MAX_BYTES, "report of Nsight Compute", errors="replace").splitlines()
    head = next((i for i, line in enumerate(lines) if line.lstrip().startswith('"ID"')), None)
    if head is None:
        raise UsageError(
            f'{path} has no table of Nsight Compute (a line that begins with "ID"): '
            "write one with ncu --csv --page raw --metrics dram__bytes_read.sum,dram__bytes_write.sum"
        )
    table = [line for line in lines[head:] if not line.startswith("==")]
    try:
        rows = [row for row in csv.reader(table, strict=True) if row]
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {error}") from None
    header = [cell.strip() for cell in rows[0]]
    if "Kernel Name" not in header:
        raise UsageError(f'{path}: the table has no column "Kernel Name"')
    records = [dict(zip(header, row, strict=False)) for row in rows[1:]]
    cells = list(_long(records) if "Metric Name" in header else _wide(records, header))
    if not cells:
        raise UsageError(
            f"{path} has none of the metrics {', '.join(list(_METRICS)[:3])}, gpu__time_duration.sum: "
            "name them in ncu --metrics"
        )
    return _rows(path, cells)


class _Cell(NamedTuple):
    """One metric of one kernel, as written."""

    record: Mapping[str, str]
    field: str
    unit: str
    text: str

    @property
    def launch(self) -> tuple[str, str]:
        """Process and ID."""
        return self.record.get("Process ID", ""), self.record.get("ID", "")


def _long(records: Iterable[Mapping[str, str]]) -> Iterator[_Cell]:
    for record in records:
        field = _METRICS.get(record.get("Metric Name", ""))
        if field is not None:
            yield _Cell(record, field, record.get("Metric Unit", ""), record.get("Metric Value", ""))


def _wide(records: Sequence[Mapping[str, str]], header: Sequence[str]) -> Iterator[_Cell]:
    units: Mapping[str, str] = {}
    if records and not records[0].get("ID", "").strip():
        units, records = records[0], records[1:]
    for record in records:
        for metric in header:
            if metric in _METRICS:
                yield _Cell(record, _METRICS[metric], units.get(metric, ""), record.get(metric, ""))


def _rows(path: str | os.PathLike[str], cells: Sequence[_Cell]) -> tuple[NcuRow, ...]:
    dotted = any(_DOTTED.fullmatch(cell.text.strip()) for cell in cells)
    launches: dict[tuple[str, str], tuple[_Cell, dict[str, float]]] = {}
    for cell in cells:
        _, values = launches.setdefault(cell.launch, (cell, {}))
        if (value := _value(path, cell, dotted)) is not None:
            values[cell.field] = value
    return tuple(sorted((_row(path, *known) for known in launches.values()), key=lambda row: row.id))


def _row(path: str | os.PathLike[str], cell: _Cell, values: Mapping[str, Any]) -> NcuRow:
    number = cell.launch[1].strip()
    if not (number.isdecimal() and len(number) < 19):
        raise UsageError(f'{path}: "ID" {number[:40]!r} is no number')
    if "Kernel Name" not in cell.record:
        raise UsageError(f"{path}: the row of ID {number} ends before the kernel's name; is the file cut off?")
    return NcuRow(
        id=int(number),
        kernel=printable(cell.record["Kernel Name"]),
        grid=_sizes(cell.record.get("Grid Size", "")),
        block=_sizes(cell.record.get("Block Size", "")),
        **values,
    )


def _value(path: str | os.PathLike[str], cell: _Cell, dotted: bool) -> float | None:
    """In bytes or seconds; None for "n/a" and the like."""
    text = cell.text.strip()
    if text in ("", "n/a", "N/A", "nan", "(!) nan", "inf"):
        return None
    plain = text.replace(".", "").replace(",", ".") if dotted else text.replace(",", "")
    scale = _scale(cell.unit.strip(), cell.field)
    try:
        number = float(plain)
    except ValueError:
        number = -1.0
    if scale is None or not 0 <= number < 1e18:
        wrong = f"unit {cell.unit[:20]!r}" if scale is None else f"value {text[:40]!r}"
        raise UsageError(f"{path}: kernel of ID {cell.launch[1]}: {cell.field} has the {wrong}")
    return number * scale


def _scale(unit: str, field: str) -> float | None:
    if field == "duration_s":
        return _SECONDS.get(unit.lower() or "nsecond")
    found = _BYTES.fullmatch(unit or "byte")
    return _PREFIXES[found["prefix"].lower()] if found else None


def _sizes(text: str) -> tuple[int, ...] | None:
    """(128, 1, 1) of "(128, 1, 1)" or "128,1,1"."""
    numbers = re.findall(r"\d{1,10}", text)
    return tuple(map(int, numbers)) if numbers else None


def join_ncu(trace: ProfilerTrace, rows: Sequence[NcuRow]) -> NcuJoin:
    """Rows joined to the kernels of a trace: by name, grid and block, in order of launch.

    A report of one step fits a trace of several equal ones: if the trace has a whole multiple of a kernel's rows, they
    repeat. With any other count nothing of that name is joined, and a note says so.
    """
    ran = [k for k in trace.kernels if k.category in ("kernel", "communication")]
    ran.sort(key=lambda k: (k.start_us if k.launch_us is None else k.launch_us, k.start_us))
    sized = all(row.grid and row.block for row in rows) and all(k.grid and k.block for k in ran)
    measured, traced = _grouped(rows, sized), _grouped(ran, sized)
    row_of: dict[int, NcuRow] = {}
    notes: list[str] = []
    for key, kernels in traced.items():
        found = measured.get(key, ())
        if found and len(kernels) % len(found) == 0:
            row_of.update((kernels[i].id, found[i % len(found)]) for i in range(len(kernels)))
    for key, found in measured.items():
        count = len(traced.get(key, ()))
        if not count or count % len(found):
            notes.append(f"{key[0]}: {len(found)} in the Nsight Compute report, {count} in the trace; not joined")
    if len(row_of) < len(ran):
        notes.append(f"{len(ran) - len(row_of)} of {len(ran)} kernels of the trace have no measured row")
    return NcuJoin(row_of, tuple(notes))


_Named = TypeVar("_Named", NcuRow, TracedKernel)


def _grouped(items: Iterable[_Named], sized: bool) -> dict[tuple[Any, ...], list[_Named]]:
    """Items of one function, and of one grid and block if all have them."""
    groups: dict[tuple[Any, ...], list[_Named]] = {}
    for item in items:
        name = function_name(item.kernel if isinstance(item, NcuRow) else item.name)
        groups.setdefault((name, item.grid, item.block) if sized else (name,), []).append(item)
    return groups


def function_name(kernel: str) -> str:
    """The bare function of a demangled kernel: "softmax_forward" of "void at::native::softmax_forward<...>(...)".

    Demanglers differ in arguments and templates ("char*" and "char *", "<4" and "<(int)4"); ncu can leave them out.
    """
    text = kernel.replace("(anonymous namespace)", "").replace("<unnamed>", "").replace("operator()", "operator")
    bare, depth = [], 0
    for char in text:
        depth += char in "<{"
        if char == "(" and not depth:
            break
        if not depth:
            bare.append(char)
        depth -= char in ">}" and depth > 0
    words = "".join(bare).split()
    return words[-1].rpartition("::")[2] if words else kernel
