"""What a notebook shows: a record as a data frame, a figure, or a small piece of HTML.

The HTML is a fragment for another page: its style touches nothing outside it, it has no script, fetches nothing, and
every name from a model is escaped. It is small for any model: the ``TOP`` longest kernels of at most ``MAX_PANELS``
simulations.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.analysis.savings import by_gpu
from memwall.analysis.table import TableRow, class_rows, kernel_rows, module_rows, phase_rows
from memwall.analysis.verdict import verdict
from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.hardware.lookup import load_gpu
from memwall.record.profile import Profile
from memwall.report.document import Picture, Section, Sentence
from memwall.report.figures.canvas import saved, to_figure
from memwall.report.figures.picture import KINDS, picture, sheet
from memwall.report.figures.profile import schedule_roofline, walls_chart
from memwall.report.figures.roofline import roofline_charts
from memwall.report.html import blocks_html, escape, resource, section_html
from memwall.report.kinds import Report, report_of
from memwall.report.pages.profile import KERNEL_COLUMNS, profile_rows
from memwall.report.pages.profile_tables import kernel_table, totals_table
from memwall.report.pages.profile_text import full_title, header_facts
from memwall.report.pages.validation import measured_sections
from memwall.simulate.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

#: kernels and simulations that a notebook shows in full
TOP, MAX_PANELS = 10, 8

#: facts of the header that stand under the title
_FACTS = ("inputs", "parameters", "FLOPs", "DRAM bytes", "coverage")


#: columns of a frame by module, class or phase, behind the column of its key -> attribute of a row
SHARE_COLUMNS = {"launches": "launches", "flops": "flops", "dram_bytes": "bytes", "bound_s": "bound_s",
                 "time_s": "time_s", "limited_by": "limited_by", "flop_share": "flop_share",
                 "byte_share": "byte_share", "time_share": "time_share"}  # fmt: skip

#: columns of a frame by op -> attribute of a row
_OP_COLUMNS = {"class" if name == "op_class" else name: name for name in (
    "name", "op_class", "phase", "module", "shapes", "count", "flops", "read_bytes", "write_bytes", "bound_s", "time_s",
    "compute_s", "memory_s", "latency_s", "overhead_s", "limited_by", "time_share", "modeled", "low_s",
    "high_s")}  # fmt: skip

#: what a frame has a row for -> its columns, and the rows of a simulation
_TABLES: dict[str, tuple[Mapping[str, str], Callable[[Profile, Schedule], Sequence[TableRow]]]] = {
    "op": (_OP_COLUMNS, kernel_rows),
    "module": ({"module": "key", **SHARE_COLUMNS}, module_rows),
    "class": ({"class": "key", **SHARE_COLUMNS}, class_rows),
    "phase": ({"phase": "key", **SHARE_COLUMNS}, phase_rows),
}


def profile_frame(profile: Profile, by: str) -> DataFrame:
    """The simulations of a profile as rows; see :meth:`memwall.Profile.to_pandas`.

    Raises:
        UsageError: no such ``by``.
    """
    from pandas import DataFrame

    if by == "kernel":
        launches = (kernel.launches for schedule in profile.simulations for kernel in schedule.kernels)
        rows = [(*row, n) for row, n in zip(profile_rows(profile), launches, strict=True)]
        return DataFrame.from_records(rows, columns=[*KERNEL_COLUMNS, "launches"])
    if by not in _TABLES:
        raise UsageError(f"to_pandas() cannot group by {by!r}; choose one of kernel, {', '.join(_TABLES)}")
    columns, rows_of = _TABLES[by]
    rows = [
        (s.gpu.name, s.policy, *(getattr(row, name) for name in columns.values()))
        for s in profile.simulations
        for row in rows_of(profile, s)
    ]
    return DataFrame.from_records(rows, columns=["gpu", "policy", *columns])


def roofline(profile: Profile, path: str | os.PathLike[str] | None, gpu: str | None, policy: str | None) -> Figure:
    """The roofline of one simulation; see :meth:`memwall.Profile.roofline`.

    Raises:
        UsageError: there is no such simulation, or no such kind of file.
    """
    schedule = _chosen(profile, gpu, policy)
    kind = "" if path is None else Path(path).suffix.removeprefix(".").lower()
    if path is not None and kind not in KINDS:
        raise UsageError(f"cannot draw {Path(path).name}; give it one of .{', .'.join(KINDS)}")
    import matplotlib
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows though pyplot does not know it."""

        def _repr_png_(self) -> bytes:
            return saved(self, "png")

    (chart,) = roofline_charts([schedule_roofline(profile, schedule)])
    with matplotlib.rc_context():
        figure = to_figure(sheet(chart), Shown)
    if path is not None:
        write_whole(path, picture(kind, chart))
    return figure


def _chosen(profile: Profile, gpu: str | None, policy: str | None) -> Schedule:
    """The first simulation on a GPU under a policy; None takes any."""
    own = {schedule.gpu.name for schedule in profile.simulations}
    name = gpu if gpu is None or gpu in own else load_gpu(gpu).name
    for schedule in profile.simulations:
        if name in (None, schedule.gpu.name) and policy in (None, schedule.policy):
            return schedule
    known = ", ".join(dict.fromkeys(f"{s.gpu.name} {s.policy}" for s in profile.simulations)) or "none"
    wanted = " ".join(word for word in (name, policy) if word) or "any GPU"
    raise UsageError(f"the profile has no simulation on {wanted} to draw; it has {known}")


def profile_fragment(profile: Profile) -> str:
    """A profile as HTML: totals, walls, verdict and the longest kernels of each simulation."""
    facts = dict(header_facts(profile).items)
    profile = profile.with_simulations(by_gpu(profile))
    sims = profile.simulations
    left_out = len(sims) - MAX_PANELS
    parts = [f'<p class="facts">{escape("; ".join(f"{key} {facts[key]}" for key in _FACTS if key in facts))}</p>']
    parts += [blocks_html((totals_table(profile),))] if sims else []
    for i, schedule in enumerate(sims[:MAX_PANELS]):
        summary = f"<summary>{escape(full_title(profile, schedule))}</summary>"
        rows = kernel_rows(profile, schedule)
        note = "xN: so many equal kernels, their figures summed"
        note = f"and {len(rows) - TOP:,} more rows; {note}" if len(rows) > TOP else note
        inside = blocks_html(
            (
                Picture(walls_chart(profile, (schedule,)), "share of the time under each wall"),
                Sentence(verdict(profile, schedule).text, strong=True),
                kernel_table("", rows[:TOP], note),
            )
        )
        parts.append(f"<details{' open' if i == 0 else ''}>{summary}\n{inside}</details>")
    if not sims or left_out > 0:
        note = f"{left_out} more simulations are in the table alone." if sims else "Not simulated on any GPU."
        parts.append(f'<p class="note">{note}</p>')
    parts += map(section_html, measured_sections(profile, top=TOP))
    return fragment(facts["workload"], parts)


def result_fragment(result: Any) -> str:
    """A result as HTML: what its page says as text, with its picture, if it has one, below the answer."""
    page: Any = report_of(type(result).__name__)
    report: Report = page(result)
    document = report.document("text")
    parts = [section_html(section) for section in document.whole if isinstance(section, Section)]
    if {"html", "svg"} <= {*report.kinds}:
        with contextlib.suppress(UsageError):  # nothing to draw
            parts.insert(bool(document.answer), blocks_html((Picture(report.figure(), document.title),)))
    return fragment(document.title, parts)


def fragment(title: str, parts: Sequence[str]) -> str:
    """Pieces of HTML as one for another page."""
    style = f"<style>\n{resource('notebook.css')}</style>"
    return "\n".join(['<div class="memwall">', style, f'<p class="title">{escape(title)}</p>', *parts, "</div>"])
