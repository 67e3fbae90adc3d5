"""One self-contained HTML file: works offline, nothing is fetched, every name from a model is escaped.

Tables of few rows are written by the template. The kernels, which a reader sorts and filters, are JSON in the page
that ``report.js`` renders with ``textContent`` alone. Repeated kernels are one row, and at most ``MAX_ROWS`` rows are
embedded, so a page of a large model stays under 2 MB.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from memwall.analysis.compare import Comparison
from memwall.analysis.savings import PolicySet, by_gpu, policy_sets
from memwall.analysis.table import KernelRow, class_rows, kernel_rows, phase_rows
from memwall.analysis.validation import Point, measured_points
from memwall.analysis.verdict import verdict
from memwall.analysis.whatif import Outcome
from memwall.core.units import duration, percent, size
from memwall.record.kernels import WALLS, schedule_label, wall_shares
from memwall.record.profile import Profile
from memwall.report.document import Document, clean
from memwall.report.figures.palette import CLASS_COLORS, MEMORY_COLORS, WALL_COLORS, class_color
from memwall.report.figures.roofs import Roof, compute_roofs, memory_roofs
from memwall.report.figures.waterfall import axis_start_s, fall_and_bars, label, time_unit
from memwall.report.pages.comparison import comparison_document
from memwall.report.pages.fusion import explained, fusion_tables, is_several, policy_table, sentences
from memwall.report.pages.profile import class_table, gpu_title, header_facts, memory_table, share_table, totals_table
from memwall.report.pages.validation import measured_sections
from memwall.report.pages.whatif import what_if_section
from memwall.simulate.schedule import Schedule

#: rows of kernels in a page, the slowest on any GPU first
MAX_ROWS = 2000
#: rows of a table of measured kernels, and measured points in a roofline
MAX_MEASURED, MAX_POINTS = 20, 500


def render_html(profile: Profile, *, what_ifs: Sequence[Outcome] = ()) -> str:
    """The report of a profile as a page."""
    profile = profile.with_simulations(by_gpu(profile))
    tables = [kernel_rows(profile, schedule) for schedule in profile.simulations]
    data, left_out = _data(profile, tables)
    return environment().get_template("report.html.j2").render(
        title=clean(profile.workload.name),
        facts=header_facts(profile),
        totals=totals_table(profile) if profile.simulations and not is_several(profile) else None,
        fusions=[_fusion(policies) for policies in policy_sets(profile)] if is_several(profile) else [],
        measured=measured_sections(profile, top=MAX_MEASURED),
        what_if=what_if_section(what_ifs) if what_ifs else None,
        panels=[_panel(profile, schedule, i) for i, schedule in enumerate(profile.simulations)],
        data=embed(data),
        left_out=left_out,
    )  # fmt: skip


def render_document_html(document: Document, bars: Sequence[dict[str, Any]] = ()) -> str:
    """A document as a page, with bars above its tables."""
    return environment().get_template("document.html.j2").render(document=document, bars=bars)


def render_comparison_html(comparison: Comparison) -> str:
    """The report of a comparison as a page."""
    longest = max((entry.time_s for entry in comparison.entries), default=0.0)
    bars = [
        {
            "label": clean(entry.label),
            "text": duration(entry.time_s),
            "parts": [
                {"name": wall, "color": WALL_COLORS[wall], "width": 100 * share * entry.time_s / longest}
                for wall, share in entry.wall_shares.items()
            ],
        }
        for entry in comparison.entries
        if longest
    ]
    return render_document_html(comparison_document(comparison), bars)


def embed(data: Any) -> str:
    """JSON that may stand inside a script element: no ``<`` can close it or open a comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _panel(profile: Profile, schedule: Schedule, index: int) -> dict[str, Any]:
    """What the template shows for one simulation."""
    phases = phase_rows(profile, schedule)
    return {
        "index": index,
        "label": clean(schedule_label(profile, schedule)),
        "title": gpu_title(profile, schedule),
        "verdict": clean(verdict(profile, schedule)),
        "bars": _class_bars(profile, schedule),
        "classes": class_table(profile, schedule),
        "phases": share_table("Phases", "phase", phases) if len(phases) > 1 else None,
        "memory": memory_table(profile, schedule),
        "memory_bar": _memory_bar(schedule),
        "is_measured": bool(measured_points(profile, schedule)),
    }


def _fusion(policies: PolicySet) -> dict[str, Any]:
    """What the template shows of the policies of one GPU."""
    return {
        "title": gpu_title(policies.profile, policies.schedules[0]),
        "policies": policy_table(policies.rows()),
        "sentences": sentences(policies),
        "explained": [
            {
                "title": f"{schedule.policy}: what fusion saves",
                "fall": _waterfall(policies, schedule),
                "tables": fusion_tables(policies, schedule),
            }
            for schedule in explained(policies)
        ],
    }


def _waterfall(policies: PolicySet, schedule: Schedule) -> dict[str, Any]:
    """Bars from the eager time down to the policy's; places in percent of the axis."""
    fall, rows = fall_and_bars(policies, schedule)
    start, (scale, unit) = axis_start_s(fall), time_unit(fall.eager_s)
    most = max(max(bar.start_s, bar.end_s) for bar in rows)

    def place(seconds: float) -> float:
        return round(100 * (max(seconds, start) - start) / (most - start), 3)

    bars = [
        {"name": bar.name, "where": bar.where, "color": bar.color, "text": f"{label(bar, scale, fall.eager_s)} {unit}",
         "left": min(place(bar.start_s), place(bar.end_s)), "right": max(place(bar.start_s), place(bar.end_s))}
        for bar in rows
    ]  # fmt: skip
    note = f"The dashed line is ideal, {duration(fall.ideal_s)}."
    if start:
        note += f" The axis begins at {duration(start)}."
    return {"bars": bars, "ideal": place(fall.ideal_s), "note": note}


def _class_bars(profile: Profile, schedule: Schedule) -> list[dict[str, Any]]:
    rows = class_rows(profile, schedule)
    bars = [
        {"label": label, "parts": [share_part(r.key, getattr(r, share), class_color(r.key)) for r in rows]}
        for label, share in (("FLOPs", "flop_share"), ("bytes", "byte_share"), ("time", "time_share"))
    ]
    walls = wall_shares(schedule)
    bars.append({"label": "wall", "parts": [share_part(wall, walls[wall], WALL_COLORS[wall]) for wall in WALLS]})
    return bars


def share_part(name: str, share: float, color: str) -> dict[str, Any]:
    return {"name": clean(name), "width": round(100 * share, 3), "text": percent(share, 2), "color": color}


def _memory_bar(schedule: Schedule) -> dict[str, Any]:
    memory, board = schedule.memory, schedule.gpu.dram_bytes
    whole = max(memory.total, board)
    values = (memory.parameters, memory.gradients, memory.optimizer_state, memory.activations)
    parts = [
        {"name": name, "width": round(100 * value / whole, 3), "text": size(value), "color": color}
        for (name, color), value in zip(MEMORY_COLORS.items(), values, strict=True)
    ]
    return {"parts": parts, "board": round(100 * board / whole, 3), "fits": schedule.fits}


# -- the data that the page's script shows -----------------------------------------------------------------------------


def _data(profile: Profile, tables: Sequence[Sequence[KernelRow]]) -> tuple[dict[str, Any], int]:
    """Rows shared by all simulations, and each simulation's times for them; and how many rows were left out."""
    slowest: dict[tuple, float] = {}
    for table in tables:
        for row in table:
            key = _identity(row)
            slowest[key] = max(slowest.get(key, 0.0), row.time_share)
    keys = sorted(slowest, key=lambda key: (-slowest[key], key))
    number = {key: i for i, key in enumerate(keys[:MAX_ROWS])}
    sims = [
        {
            "label": clean(schedule_label(profile, schedule)),
            "roofs": [_roof(r) for r in compute_roofs(profile, schedule)],
            "slopes": [_roof(r) for r in memory_roofs(schedule)],
            "rows": [_times(number[_identity(r)], r) for r in table if _identity(r) in number],
            "measured": [_point(p) for p in measured_points(profile, schedule)[:MAX_POINTS]],
        }
        for schedule, table in zip(profile.simulations, tables, strict=True)
    ]
    data = {"kernels": [list(key) for key in number], "sims": sims, "walls": WALLS, "colors": CLASS_COLORS}
    return data, len(keys) - len(number)


def _identity(row: KernelRow) -> tuple:
    """Columns of ``kernels`` in the page: name, class, phase, module, shapes, count, FLOPs, bytes read, written."""
    return (
        clean(row.name), clean(row.op_class), row.phase, clean(row.module), clean(row.shapes)[:160], row.count,
        row.flops if row.modeled else -1, row.read_bytes, row.write_bytes,
    )  # fmt: skip


def _times(number: int, row: KernelRow) -> list[float | int]:
    """Columns of ``rows``: kernel, then seconds (bound, time, compute, memory, overhead), then the wall's number."""
    seconds = (row.bound_s, row.time_s, row.compute_s, row.memory_s, row.overhead_s)
    return [number, *(float(f"{s:.4g}") for s in seconds), WALLS.index(row.limited_by)]


def _point(point: Point) -> list[str | float]:
    """Columns of ``measured``: executor, kernel, class, FLOP/B, modeled and measured FLOP/s, share, seconds of each."""
    numbers = (
        point.arithmetic_intensity, point.modeled_flop_per_s, point.measured_flop_per_s, point.share, point.modeled_s,
        point.measured_s,
    )  # fmt: skip
    return [point.executor, clean(point.name), clean(point.op_class), *(float(f"{number:.4g}") for number in numbers)]


def _roof(roof: Roof) -> dict[str, Any]:
    return {"label": roof.label, "rate": roof.rate, "used": roof.used}


@cache
def environment() -> Any:
    """The templates, with autoescape on and the style and script files at hand."""
    from jinja2 import BaseLoader, Environment, StrictUndefined, TemplateNotFound
    from markupsafe import Markup

    folder = files("memwall.report") / "templates"

    class Packaged(BaseLoader):
        def get_source(self, environment: Any, template: str) -> Any:
            path = folder / template
            if not path.is_file():
                raise TemplateNotFound(template)
            return path.read_text(encoding="utf-8"), template, lambda: True

    environment = Environment(
        loader=Packaged(), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("report.css", "report.js"):
        key = name.replace("report.", "")
        environment.globals[key] = Markup((folder / name).read_text(encoding="utf-8"))
    environment.filters["raw_json"] = Markup
    environment.globals["wall_colors"] = WALL_COLORS
    return environment
