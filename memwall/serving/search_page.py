"""Search of engines → its page: the cheapest engines that keep the objectives, and the candidates next to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import memwall.report.columns as col
from memwall.analysis.quantities import QUANTITIES, SERVED
from memwall.core.units import counted
from memwall.hardware.engine import ENGINES
from memwall.report.document import Table
from memwall.report.pages.search import SearchReport
from memwall.serving.candidates import objective_text
from memwall.serving.launch.writing import launch_line, options_of_point

if TYPE_CHECKING:
    from memwall.serving.search import EngineChoice, Found

SCHEMA = "memwall.search/1"
_FIGURES = (
    "ttft_s ttft_p99_s tpot_s tokens_per_s_per_user tokens_per_s_per_gpu watts_per_gpu? energy_per_token_j?"
    " usd_per_million_tokens_spot? grams_per_million_tokens?"
)
_OPTIONS = ("gpu", "weights", "kv", "tp", "ep", "dp", "pp")


def engines_page(found: Found, top: int = 10) -> SearchReport:
    """The page of a search of engines; ``top`` candidates are listed."""
    wanted = ", ".join(map(objective_text, found.objectives))
    simulated = found.count - sum(found.pruned.values())
    missed = simulated - len(found.simulated)
    said = f", and {missed:,} of these miss an objective" if missed else ""
    return SearchReport(
        title=f"{found.target}: search",
        best=f"The cheapest{f' that keeps {wanted}' if wanted else ''}: {_text(found.best)}.",
        counted=f"{counted(found.count, 'candidate')}, {simulated:,} of which were simulated{said}.",
        pruned=found.pruned,
        heading="The cheapest that keep all objectives" if found.objectives else "The cheapest",
        table=lambda: _table(found, top),
        head={
            "schema": SCHEMA,
            "target": found.target,
            "objectives": [limit.text for limit in found.objectives],
            "candidates": found.count,
            "commands": commands_of(found.best, found.target),
        },
        listed="simulated",
        commands=commands_of(found.best, found.target),
        columns=(*_OPTIONS, "engines", "gpus", "cost", *SERVED),
        values=[
            (
                *(each.options[name] for name in _OPTIONS),
                each.engines,
                each.gpus,
                each.usd_per_million,
                *(row.read("serve", each.candidate) for row in SERVED.values()),
            )
            for each in found.simulated
        ],
    )


def commands_of(best: EngineChoice, target: str) -> dict[str, str]:
    """The command line that starts the winner, by engine."""
    said = {name: best.options[name] for name in ("weights", "kv")}
    return {
        engine: launch_line(
            engine,
            target if target.startswith("hf:") else "MODEL",
            {**options_of_point(best.point, engine=engine), **said},
        )
        for engine in ENGINES
    }


def _table(found: Found, top: int) -> Table:
    shown = found.simulated[:top]
    columns = [col.names(name, [each.options[name] for each in shown]) for name in _OPTIONS[:3]]
    columns += [col.plain(name, [each.options[name] for each in shown]) for name in _OPTIONS[3:]]
    columns += [col.plain("engines", [each.engines for each in shown]), col.plain("GPUs", [e.gpus for e in shown])]
    read = lambda name: [QUANTITIES[name].read("serve", each.candidate) for each in shown]  # noqa: E731
    columns += col.answer(_FIGURES, read)
    priced = found.best.candidate.rates.is_priced
    heading, unit = ("1 M tokens", "USD") if priced else ("a token", "GPU s")
    columns.append(col.fixed(heading, unit, [each.usd_per_million for each in shown], 1.0, 3 if priced else 6))
    return col.table("", columns, left=len(found.simulated) - len(shown))


def _text(choice: EngineChoice) -> str:
    """``2 engines of 4 h100-sxm: tp 4, weights fp8``."""
    options = choice.options
    layout = [f"{name} {options[name]}" for name in ("tp", "ep", "dp", "pp") if options[name] > 1]
    stored = [f"{name} {options[name]}" for name in ("weights", "kv") if options[name] != "model"]
    how = ", ".join((*layout, *stored))
    each = f"{counted(choice.engines, 'engine')} of {choice.candidate.gpus} {options['gpu']}"
    return f"{each}: {how}" if how else each
