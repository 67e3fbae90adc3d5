"""Search of engines → its page: the cheapest engines that keep the objectives, and the candidates next to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import memwall.report.columns as col
from memwall.analysis.quantities import QUANTITIES, SERVED
from memwall.core.units import counted, duration
from memwall.hardware.engine import ENGINES
from memwall.report.document import Table
from memwall.report.figures.axes import draw_frame, draw_x, draw_y, engineering, plain
from memwall.report.figures.colors import series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.scene import Chart, Scene
from memwall.report.pages.glance import MemoryFact, glance
from memwall.report.pages.search import SearchReport
from memwall.serving.candidates import objective_text
from memwall.serving.figure import fitted_axis
from memwall.serving.launch.writing import launch_line, options_of_point
from memwall.serving.wording import WAITED, capacity_text, held_text, priced_text, requests_text

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
    read = lambda name: QUANTITIES[name].read("serve", found.best.candidate)  # noqa: E731
    times = " and ".join(f"{said} {duration(read(name))}" for name, said in (("ttft_s", "TTFT"), ("tpot_s", "TPOT")))
    point = found.best.point
    free_bytes = point.steps.capacity_bytes - point.weights_bytes - point.reserved_bytes
    held = held_text(point.gpu.dram_bytes, point.weights_bytes, free_bytes)
    held += f"; up to {read('largest_batch'):,.0f} sequences of an engine run at once"
    wall, commands = read("limited_by"), commands_of(found.best, found.target)
    started = commands.get(point.layout.engine, "")
    load = f"{found.best.point.load}, {requests_text(found.best.point, found.best.point.asked.model)}"
    priced = priced_text([found.best.usd_per_million]) if found.best.candidate.rates.is_priced else ""
    return SearchReport(
        title=f"{found.name}: search",
        best=f"The cheapest{f' that keeps {wanted}' if wanted else ''}: {_text(found.best)}{priced}.",
        glance=glance(
            (WAITED.get(wall, wall), "most of a decode step waits for it"),
            (f"serve on {_text(found.best)}", started),
            MemoryFact(
                True, capacity_text(point.steps.capacity_bytes, point.gpu.dram_bytes, point.weights_bytes, free_bytes)
            ),
        ),
        figures=f"It fits: of each GPU's {held}. {times}; limited by {wall}.",
        counted=f"Under {load}: {counted(found.count, 'candidate')}, {simulated:,} of which were simulated{said}.",
        pruned=found.pruned,
        heading="The cheapest that keep all objectives" if found.objectives else "The cheapest",
        table=lambda: _table(found, top),
        head={
            "schema": SCHEMA,
            "target": found.target,
            "load": load,
            "objectives": [limit.text for limit in found.objectives],
            "candidates": found.count,
            "commands": commands,
        },
        picture=(_candidates(found), "engines that keep the objectives: tokens of a GPU against tokens of a user"),
        listed="simulated",
        commands=_told(commands, point.layout.engine),
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


def _told(lines: Mapping[str, str], own: str) -> dict[str, str]:
    """The command lines, the simulated engine's ``own`` first, each under what it starts."""
    first = sorted(lines, key=lambda engine: engine != own)
    return {f"{engine}, {'' if engine == own else 'not '}simulated": lines[engine] for engine in first}


#: pixels of the picture down
_HIGH = 260.0


def _candidates(found: Found) -> Chart:
    """Tokens of a GPU against tokens of a user of each engine that was simulated and keeps the objectives, the best
    ringed."""
    gpus = list(dict.fromkeys(each.options["gpu"] for each in found.simulated))
    read = lambda each, name: QUANTITIES[name].read("serve", each.candidate)  # noqa: E731
    points = [
        (each, x, y)
        for each in found.simulated
        if (x := read(each, "tokens_per_s_per_user")) and (y := read(each, "tokens_per_s_per_gpu"))
    ]

    def draw(scene: Scene) -> float:
        top = scene.title("Engines that keep the objectives") + 22
        frame = Box(52.0, top, scene.width - 8, top + _HIGH)
        x = fitted_axis([each[1] for each in points], frame.left, frame.right)
        y = fitted_axis([each[2] for each in points], frame.lower, frame.upper)
        draw_x(scene, frame, x, engineering, "tokens/s of a user")
        draw_y(scene, frame, y, plain, "tokens/s of a GPU")
        draw_frame(scene, frame)
        for each, across, up in points:
            color = series_color(gpus.index(each.options["gpu"]))
            if each is found.best:
                scene.dot(x(across), y(up), 7.0, "ink", hollow=True)
            title = f"{_text(each)}: {across:,.1f} tokens/s of a user, {up:,.1f} of a GPU"
            scene.dot(x(across), y(up), 3.6, color, title=title)
        entries = [(gpu, series_color(i), "circle") for i, gpu in enumerate(gpus)]
        return frame.lower + 40 + scene.legend(frame.lower + 40, entries, "ringed: the cheapest")

    return draw


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
    each = f"{counted(choice.engines, 'engine')} of {choice.gpus // choice.engines} {options['gpu']}"
    return f"{each}: {how}" if how else each
