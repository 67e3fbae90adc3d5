"""Machine-readable forms: the JSON record, CSV and Parquet, one row per kernel (not grouped) or per entry.

Of a profile that was measured the rows are the measured kernels: ``memwall.analysis.validation.COLUMNS``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from memwall.analysis.compare import Comparison
from memwall.analysis.quantities import columns_of
from memwall.analysis.savings import PolicySet, policy_sets
from memwall.analysis.validation import COLUMNS as MEASURED_COLUMNS
from memwall.analysis.validation import rows as measured_rows
from memwall.analysis.validation import summary
from memwall.analysis.whatif import Outcome
from memwall.core.errors import need
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module, kernel_phase, shapes_text
from memwall.record.profile import Profile
from memwall.report.pages.explanation import Explained, explanation_dict
from memwall.report.pages.fusion import is_several
from memwall.simulate.schedule import Schedule

_CSV = columns_of("csv")

#: columns of a kernel's row; seconds and bytes in base units
KERNEL_COLUMNS = (
    "gpu", "policy", "id", "name", "class", "phase", "module", "shapes",
    *(quantity.name for quantity in _CSV), "modeled",
)  # fmt: skip

#: what a kernel's row says besides where there are several policies: the eager kernels of the same ops
SAVING_COLUMNS = ("ops", "launches", "eager_launches", "eager_bytes", "eager_time_s", "saved_bytes", "saved_s")

#: a spreadsheet takes a cell that starts so for a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def profile_json(profile: Profile, *, what_ifs: Sequence[Outcome] = (), explained: Explained = ()) -> str:
    """``memwall.profile/1``; what-ifs, explanations and the sums of what was measured, which readers pass over, under
    keys of their own."""
    further: dict[str, Any] = {"what_if": [o.to_dict() for o in what_ifs]} if what_ifs else {}
    if explained:
        further["explanations"] = [explanation_dict(schedule, told) for schedule, told in explained]
    if profile.measurements:
        further["measured"] = summary(profile)
    return profile.to_json(further)


def comparison_json(comparison: Comparison) -> str:
    """``memwall.comparison/1``."""
    return comparison.to_json()


def profile_rows(profile: Profile) -> Iterator[tuple[Any, ...]]:
    """One tuple of ``KERNEL_COLUMNS`` per kernel of each simulation, in launch order."""
    for schedule in profile.simulations:
        for kernel in schedule.kernels:
            yield _kernel(profile, schedule, kernel)


def _kernel(profile: Profile, schedule: Schedule, kernel: Estimate) -> tuple[Any, ...]:
    graph, costs = profile.graphs[schedule.graph], profile.costs[schedule.graph]
    specs = [graph.values[i].spec for op_id in kernel.op_ids for i in graph.ops[op_id].inputs]
    return (
        schedule.gpu.name, schedule.policy, kernel.id, kernel.name, kernel.op_class,
        kernel_phase(profile, schedule, kernel), kernel_module(profile, schedule, kernel), shapes_text(specs),
        *(quantity.of(kernel) for quantity in _CSV),
        all(costs[i].modeled for i in kernel.op_ids),
    )  # fmt: skip


def saving_rows(profile: Profile) -> Iterator[tuple[Any, ...]]:
    """One tuple of ``KERNEL_COLUMNS`` and ``SAVING_COLUMNS`` per kernel, GPU by GPU."""
    for policies in policy_sets(profile):
        for schedule in policies.schedules:
            for kernel in schedule.kernels:
                yield (*_kernel(profile, schedule, kernel), *_saving(policies, kernel))


def _saving(policies: PolicySet, kernel: Estimate) -> tuple[Any, ...]:
    eager = policies.replaced(kernel)
    eager_bytes, eager_s = sum(k.bytes for k in eager), sum(k.time_s for k in eager)
    return (
        len(kernel.op_ids), kernel.launches, sum(k.launches for k in eager), eager_bytes, eager_s,
        eager_bytes - kernel.bytes, eager_s - kernel.time_s,
    )  # fmt: skip


def _rows(profile: Profile) -> tuple[tuple[str, ...], Iterator[tuple[Any, ...]]]:
    if profile.measurements:
        return MEASURED_COLUMNS, (tuple(row.values()) for row in measured_rows(profile))
    if is_several(profile):
        return KERNEL_COLUMNS + SAVING_COLUMNS, saving_rows(profile)
    return KERNEL_COLUMNS, profile_rows(profile)


def profile_csv(profile: Profile) -> str:
    """The kernels as CSV; of several policies with what each kernel saves, of a measured profile the measured ones."""
    return csv_text(*_rows(profile))


def profile_parquet(profile: Profile) -> bytes:
    """The kernels as Parquet, the columns those of the CSV.

    Raises:
        MissingError: pyarrow is not installed.
    """
    columns, rows = _rows(profile)
    return to_parquet(columns, list(rows))


def comparison_csv(comparison: Comparison) -> str:
    """One row per entry, or per machine."""
    columns, rows = _comparison_rows(comparison)
    return csv_text(columns, rows)


def comparison_parquet(comparison: Comparison) -> bytes:
    """One row per entry, or per machine.

    Raises:
        MissingError: pyarrow is not installed.
    """
    columns, rows = _comparison_rows(comparison)
    return to_parquet(columns, rows)


def _comparison_rows(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    record = comparison.to_dict()
    flat = [_flat(row) for row in record["entries"] or record["machines"]]
    columns = tuple(dict.fromkeys(key for row in flat for key in row))
    return columns, [tuple(row.get(column) for column in columns) for row in flat]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A record with its inner tables as columns: ``wall_shares.compute``."""
    result: dict[str, Any] = {}
    for key, value in row.items():
        result |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value}
    return result


def csv_text(columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table as CSV; a text that a spreadsheet would take for a formula gets an apostrophe before it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value


def to_parquet(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> bytes:
    arrow: Any = need("pyarrow", "parquet")
    parquet: Any = need("pyarrow.parquet", "parquet")
    arrays = {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(arrays), buffer)
    return buffer.getvalue()
