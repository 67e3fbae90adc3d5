"""Machine-readable forms: the JSON record, CSV and Parquet, one row per kernel (not grouped) or per entry."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memwall.analysis import kernel_module, kernel_phase, shapes_text
from memwall.compare import Comparison
from memwall.errors import need
from memwall.profile import Profile
from memwall.roofline import Estimate
from memwall.simulate import Schedule

#: columns of a kernel's row; seconds and bytes in base units
KERNEL_COLUMNS = (
    "gpu", "policy", "id", "name", "class", "phase", "module", "shapes", "flops", "read_bytes", "write_bytes",
    "arithmetic_intensity", "bound_s", "time_s", "compute_s", "memory_s", "overhead_s", "limited_by", "modeled",
)  # fmt: skip

#: a spreadsheet takes a cell that starts so for a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def profile_json(profile: Profile) -> str:
    """``memwall.profile/1``."""
    return profile.to_json()


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
        kernel.flops, kernel.read_bytes, kernel.write_bytes, kernel.arithmetic_intensity, kernel.bound_s, kernel.time_s,
        kernel.compute_s, kernel.memory_s, kernel.overhead_s, kernel.limited_by,
        all(costs[i].modeled for i in kernel.op_ids),
    )  # fmt: skip


def profile_csv(profile: Profile) -> str:
    """The kernels as CSV."""
    return _csv(KERNEL_COLUMNS, profile_rows(profile))


def profile_parquet(profile: Profile) -> bytes:
    """The kernels as Parquet.

    Raises:
        MissingError: pyarrow is not installed.
    """
    return _parquet(KERNEL_COLUMNS, list(profile_rows(profile)))


def comparison_csv(comparison: Comparison) -> str:
    """One row per entry, or per machine."""
    columns, rows = _comparison_rows(comparison)
    return _csv(columns, rows)


def comparison_parquet(comparison: Comparison) -> bytes:
    """One row per entry, or per machine.

    Raises:
        MissingError: pyarrow is not installed.
    """
    columns, rows = _comparison_rows(comparison)
    return _parquet(columns, rows)


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


def _csv(columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> str:
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


def _parquet(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> bytes:
    arrow: Any = need("pyarrow", "parquet")
    parquet: Any = need("pyarrow.parquet", "parquet")
    arrays = {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    buffer = io.BytesIO()
    parquet.write_table(arrow.table(arrays), buffer)
    return buffer.getvalue()
