"""Sweep → Document: the best points, what each condition took away, the front, and where to stop adding batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import memwall.report.columns as col
from memwall.analysis.quantities import ANSWERS, QUANTITIES, Quantity
from memwall.core.errors import UsageError
from memwall.core.units import counted, duration, few, percent, si, size
from memwall.frontend.targets.target import title_of
from memwall.report.document import (
    Block,
    Document,
    Glance,
    Markup,
    Picture,
    PictureChoice,
    Section,
    Sentence,
    ShellCommand,
    Table,
    known_facts,
)
from memwall.report.figures.picture import time_unit
from memwall.report.figures.scene import Chart, stacked
from memwall.report.html import embed, resource
from memwall.report.kinds import Report
from memwall.sweeping.figure import OptionPair, front_chart, growth_chart, heat_chart, pairs_of
from memwall.sweeping.growth import GROWS_ON, Growth, growth
from memwall.sweeping.vary import command_of

if TYPE_CHECKING:
    from pandas import DataFrame

    from memwall.sweeping.run import Swept

SCHEMA = "memwall.sweep/1"
#: points of the front that the page lists, and reasons why points have no result
_FRONT, _REASONS = 20, 5
#: lines of the parallel coordinates at most
_LINES = 3000
#: units of quantities that have an axis of them
_DRAWN = ("s", "B", "count", "fraction", "per s", "USD", "J", "W", "g", "flag")


@dataclass(frozen=True, slots=True)
class SweepReport(Report):
    """A sweep: the ``top`` points, the front, and what became of the others."""

    noun = "a sweep"
    kinds = ("text", "md", "html", "csv", "parquet", "json", "png", "svg", "pdf")
    found: Swept
    top: int = 20

    def document(self, kind: str) -> Document:
        blocks: list[Block] = [self._facts(), *map(Sentence, self._pruned()), *map(Sentence, self._failed())]
        sections = [Section("What was swept", tuple(blocks))]
        answer: list[Block] = []
        if len(self.found.left):
            best = QUANTITIES[self.found.best]
            heading = f"The best by {best.title}"
            shown = self.found.left.head(self.top)
            first, *others = self._best()
            if kind == "html":  # a glance has the command
                others = [self._glance(), *(each for each in others if not isinstance(each, ShellCommand))]
            answer += [first, *others]
            sections.insert(0, Section(heading, (self._table(shown, len(self.found.left) - len(shown)),)))
            sections += self._further(shown)
        if (grown := self.growth()) is not None:
            shown = _growth(grown)
            if kind == "html":
                shown = (Picture(growth_chart(grown), f"{_title(grown.quantity)} over {grown.across}"), *shown)
            sections.append(Section(f"Where to stop: {_title(grown.quantity)} over {grown.across}", shown))
        if len(self.found.front) > 1 or (self.found.question.pareto and len(self.found.front)):
            names = " and ".join(_title(name) for name in self.found.axes)
            front = self.found.front.head(_FRONT)
            if kind == "html":
                answer.append(Picture(self._front(), f"the front of {names}"))
            table = self._table(front, len(self.found.front) - len(front))
            lone = (Sentence("One point is the best in all of them."),) if len(self.found.front) == 1 else ()
            sections.append(Section(f"Pareto front of {names}", (*lone, table)))
        if kind == "html":
            sections += self._maps()
        return Document(f"{self._title()}: sweep", tuple(sections), answer)

    def figure(self) -> Chart:
        charts = [] if (grown := self.growth()) is None else [growth_chart(grown)]
        charts += [heat_chart(pair, self.found.best) for pair in self._pairs()[:1]]
        if len(self.found.front) > 1:
            charts.append(self._front())
        if not charts:
            raise UsageError("there is nothing to draw: no option takes two values")
        return stacked(charts)

    def _front(self) -> Chart:
        found = self.found
        names = [name for name in found.varied if found.front[name].nunique() > 1] or found.varied
        name_of = lambda row: " ".join(map(_labelled, names, (row[name] for name in names)))  # noqa: E731
        return front_chart(found.left.dropna(subset=list(found.axes)), found.front, found.axes, name_of)

    def _pairs(self) -> list[OptionPair]:
        return pairs_of(self.found.left, self.found.varied, self.found.best)

    def _maps(self) -> list[Section]:
        """Heat maps of pairs of options, and parallel coordinates of all."""
        found, pairs, sections = self.found, self._pairs(), []
        if pairs:
            pictures = [
                (f"{pair.down} and {pair.across}", Picture(heat_chart(pair, found.best), "a heat map"))
                for pair in pairs
            ]
            sections.append(Section("Two options at a time", (PictureChoice(pictures),)))
        if len(found.left) > 1 and found.varied:
            lines = Markup(self._parallel(), resource("coordinates.js"))
            use = "Drag along an axis to keep the points within; click it to take all."
            told = Sentence("The thick line is the best left."), Sentence(use, screens=True)
            sections.append(Section("All options at once", (lines, *told)))
        return sections

    def _parallel(self) -> str:
        """A canvas with its points, the best ones, as JSON for its script."""
        found, kind = self.found, self.found.question.kind
        shown = found.left.head(_LINES)
        names = [name for name in ANSWERS[kind.name][""].replace("?", "").split() if QUANTITIES[name].unit in _DRAWN]
        names = [name for name in dict.fromkeys((*names, *found.axes, found.best)) if shown[name].nunique() > 1]
        axes, columns = [], []
        for name in (*found.varied, *names):
            values, axis = _axis(name, [_plain(value) for value in shown[name].tolist()])
            is_number = all(value is None or type(value) in (int, float) for value in values)
            words = None if is_number else sorted({str(value) for value in values})
            axes.append({"name": axis, "words": words})
            columns.append(values if words is None else [words.index(str(value)) for value in values])
        data = embed({"axes": axes, "points": list(zip(*columns, strict=True))})
        return (
            f'<div id="parallel"><div><canvas></canvas></div><p></p>'
            f'<script type="application/json">{data}</script></div>'
        )

    def growth(self) -> Growth | None:
        """What the best quantity does along the option that grows."""
        found = self.found
        return growth(found.frame, found.left, found.varied, found.question.kind.across, found.best)

    def _title(self) -> str:
        targets = dict.fromkeys(space.target for space in self.found.spaces)
        names = dict.fromkeys(map(title_of, targets))
        return few(names if len(names) == len(targets) else targets)

    def _facts(self) -> Block:
        found = self.found
        failed = int((found.frame["error"] != "").sum())
        fixed = {name: found.frame[name].iloc[0] for name in found.options if name not in found.varied}
        fixed |= found.question.kind.usual_of(found.options)
        return known_facts(
            ("a point", found.question.kind.title),
            ("points", f"{len(found.frame):,}" + (f", {failed:,} without a result" if failed else "")),
            ("axes", ", ".join(f"{name} ({found.frame[name].nunique(dropna=False)})" for name in found.varied)),
            ("fixed", ", ".join(f"{name} {value}" for name, value in fixed.items())),
            ("evaluated in", duration(found.seconds)),
        )

    def _pruned(self) -> list[str]:
        """What each condition took away, in the order given."""
        lines = []
        for number, each in enumerate(self.found.pruned):
            further = " more" if number else ""
            alone = f" ({each.alone:,} alone)" if each.alone != each.further else ""
            lines.append(f"{each.condition.text} takes away {counted(each.further, 'point')}{further}{alone}.")
        return [*lines, f"Left: {counted(len(self.found.left), 'point')}."] if lines else []

    def _failed(self) -> list[str]:
        """Each reason once, with how many points have it."""
        errors = self.found.frame["error"]
        counts = Counter(errors[errors != ""]).most_common()
        lines = [f"No result of {counted(count, 'point')}: {reason}." for reason, count in counts[:_REASONS]]
        rest = counts[_REASONS:]
        if rest:
            lines.append(f"No result of {counted(sum(n for _, n in rest), 'point')} for {len(rest)} other reasons.")
        return lines

    def _best(self) -> list[Block]:
        row, quantity = self.found.left.iloc[0], QUANTITIES[self.found.best]
        where = ", ".join(f"{name} {row[name]}" for name in self.found.varied) or "the only point"
        said = f"The best by {quantity.title}: {where}, {value_text(quantity, row[quantity.name])}"
        walled = f"; limited by {row['limited_by']}" if row.get("limited_by") else ""
        fits = "; it fits" if row.get("fits") else ""
        lines: list[Block] = [Sentence(f"{said}{walled}{fits}.", strong=True)]
        if "fits" in row and not row["fits"]:
            lines.append(Sentence("Its memory does not hold it: --where fits leaves such points out."))
        if self._command:
            lines.append(ShellCommand("This point alone", self._command))
        if (grown := self.growth()) is not None and (stop := _stop(grown, row)):
            lines.append(Sentence(stop))
        return lines

    @property
    def _command(self) -> str:
        """What asks for the best point alone; empty where no command does."""
        question = self.found.question
        return command_of(question.kind, *self.found.best_point, question.prices)

    def _glance(self) -> Glance:
        """What limits the best point, the command that asks for it alone, and whether it fits."""
        row = self.found.left.iloc[0]
        best = ", ".join(f"{name} {row[name]}" for name in self.found.varied) or "the only point"
        wall = str(row.get("limited_by") or "")
        share = row.get(f"{wall}_share")
        most = percent(share) if share and share == share else "most"
        facts = [("limited by", wall, f"{most} of the time of the best point"), ("do first", best, self._command)]
        if "fits" in row:
            parts = [row.get(name) for name in ("peak_memory", "reserved_bytes", "gpu_bytes")]
            peak, reserved, whole = (part if part == part else None for part in parts)
            held = f"{size(peak + (reserved or 0))}{f' of {size(whole)}' if whole else ''}" if peak else ""
            facts.append(("memory", "fits" if row["fits"] else "DOES NOT FIT", held))
        return Glance([fact for fact in facts if fact[1]])

    def _table(self, rows: DataFrame, left: int = 0) -> Table:
        """The first table of an answer, with what was asked for and is not in it."""
        found = self.found
        asked = dict.fromkeys((found.best, *found.axes, *(each.condition.column for each in found.pruned)))
        names = ANSWERS[found.question.kind.name][""]
        more = [name for name in asked if name in QUANTITIES and f" {name} " not in f" {names.replace('?', '')} "]
        return col.table("", self._columns(rows, " ".join((names, *more))), left=left)

    def _further(self, rows: DataFrame) -> list[Section]:
        """The further tables of an answer, of the points that the first one lists."""
        answer, own = ANSWERS[self.found.question.kind.name], len(self.found.varied)
        tables = [(title, self._columns(rows, names)) for title, names in answer.items()]
        return [Section(title, (col.table("", columns),)) for title, columns in tables if title and len(columns) > own]

    def _columns(self, rows: DataFrame, names: str) -> list[col.CellColumn]:
        options = [_option(name, rows[name].tolist()) for name in self.found.varied]
        return [*options, *col.answer(names, lambda name: rows[name].tolist())]

    def record(self) -> Iterable[str]:
        from memwall.core.files import json_pieces

        found = self.found
        columns, rows = self.rows()
        return json_pieces(
            {
                "schema": SCHEMA,
                "of": found.question.kind.name,
                "targets": [*dict.fromkeys(found.frame["target"])],
                "options": found.options,
                "best": found.best,
                "conditions": [{"text": p.condition.text, "pruned": p.further, "alone": p.alone} for p in found.pruned],
                "front": {"quantities": found.axes, "ids": found.front["id"].tolist()},
                "left": found.left["id"].tolist(),
                "points": (dict(zip(columns, row, strict=True)) for row in rows),
            }
        )

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        frame = self.found.frame
        cells = ([_plain(value) for value in frame[name].tolist()] for name in frame.columns)
        return tuple(frame.columns), zip(*cells, strict=True)


def _plain(value: Any) -> Any:
    """None for what is not known."""
    return None if isinstance(value, float) and value != value else value


def _labelled(name: str, value: Any) -> str:
    """``tp 4``, or ``h100``."""
    return f"{name} {value:g}" if isinstance(value, (int, float)) else str(value)


def _title(name: str) -> str:
    return QUANTITIES[name].title


def _axis(name: str, values: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """The values of an axis and what it is called: ``time (ms)``, ``MFU (%)``; an option's own name."""
    if name not in QUANTITIES:
        return values, name
    quantity = QUANTITIES[name]
    label, unit = quantity.heading or quantity.title, quantity.unit_text or quantity.unit
    if unit == "s":  # as in tables
        scale, unit = time_unit(max((value for value in values if value is not None), default=0.0))
        values = [None if value is None else value / scale for value in values]
    if unit == "fraction":
        values, unit = [None if value is None else 100 * value for value in values], "%"
    return values, label if unit in ("count", "flag") else f"{label} ({unit})"


def _option(name: str, values: Sequence[Any]) -> col.CellColumn:
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return col.plain(name, values)
    return col.names(name, ["-" if value is None or value != value else value for value in values])


def value_text(quantity: Quantity, value: float) -> str:
    """A figure with its unit."""
    texts = {"s": duration, "B": size, "fraction": percent}
    if quantity.unit in texts:
        return texts[quantity.unit](value)
    if quantity.unit == "per s":
        return f"{value:,.1f} {quantity.title} per second"
    return si(value, quantity.unit) if quantity.unit not in ("count", "flag") else f"{value:,.0f}"


def _stop(grown: Growth, row: Mapping[str, Any]) -> str:
    """What little more the best point has, where its series says to stop before it."""
    x, y = row[grown.across], row[grown.quantity]
    series = next((each for each in grown.series if (x, y) in zip(each.xs, each.ys, strict=True)), None)
    stop, why = series.stop if series else (None, "")
    if series is None or stop is None or stop >= x:
        return ""
    less = value_text(QUANTITIES[grown.quantity], series.ys[series.xs.index(stop)])
    return f"From {grown.across} {stop:,.0f} on ({less}) {why}."


def _growth(grown: Growth) -> tuple[Block, ...]:
    """A row for each series."""
    series = grown.series
    stops = [each.stop for each in series]
    changes = ["; ".join(f"{wall} from {x:,.0f}" for x, wall in each.wall_changes) or "none" for each in series]
    table = col.table(
        "",
        [
            col.names("series", [each.name or "all" for each in series]),
            col.plain("stop at", [None if why == GROWS_ON else x for x, why in stops]),
            col.text("because", [why for _, why in stops]),
            col.text("first wall", [each.walls[0] for each in series]),
            col.text("changes", changes),
        ],
    )
    fixed = ", ".join(f"{name} {value}" for name, value in grown.fixed)
    lines = [Sentence(f"With {fixed}, as at the best point.")] if fixed else []
    if grown.others:
        lines.append(Sentence(f"The {len(series)} best series of {len(series) + grown.others}."))
    return (*lines, table)
