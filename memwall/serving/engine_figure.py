"""The pictures of a server's engines: memory of a GPU by the sequences that it holds, the roofline of both phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.report.figures.axes import PlotAxis, draw_frame, draw_x, draw_y, plain
from memwall.report.figures.colors import MEMORY_COLORS, series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.roofline import Roof, Roofline, Spot, roofline_charts
from memwall.report.figures.scene import Chart, Scene, side_by_side, text_width
from memwall.serving.saved import SavedEngine

#: what follows a name of a kernel's class
KERNELS: Mapping[str, str] = {
    "Product": "products", "Attention": "attention", "Latent": "latent attention",
    "Compressed": "compressed attention", "Index": "index", "State": "states",
    "Experts": "experts", "Encoded": "encoder", "Between": "norms, activations", "Collective": "messages",
    "Sampling": "sampling",
}  # fmt: skip
#: engines that are drawn, and pixels of a panel at least, and down
MOST_ENGINES, _LEAST, _HIGH = 4, 340.0, 210.0
#: what a GPU holds, from the bottom
_PARTS = (("weights", "parameters"), ("activations and buffers", "activations"), ("KV cache", "kv_cache"))


def engines_of(engines: Sequence[SavedEngine]) -> list[SavedEngine]:
    """The first engines that run."""
    return [engine for engine in engines if engine.decode][:MOST_ENGINES]


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_chart(engines: Sequence[SavedEngine]) -> Chart:
    """A panel for each engine: weights, activations and buffers, and a cache that grows with the sequences, up to what
    the server may take; each sequence as long as the longest request."""
    panels = [_memory(engine) for engine in engines_of(engines)]
    return side_by_side(panels, _LEAST, 20)


def _memory(engine: SavedEngine) -> Chart:
    tokens, each, held = (
        engine.sequence_tokens,
        engine.kv_bytes_per_sequence,
        (engine.weights_bytes, engine.reserved_bytes),
    )
    most = max(engine.free_bytes // max(each, 1), 1) if each else 256
    tops = [held[0], sum(held)]
    sides = [(0, top, top) for top in tops] + [(0, sum(held), sum(held) + most * each)]

    def draw(scene: Scene) -> float:
        scene.text(0, 12, f"{engine.name}: memory of a GPU", 12, bold=True)
        frame = Box(52.0, 50.0, scene.width - 8, 50.0 + _HIGH)
        x = PlotAxis(0.0, 1.15 * most, frame.left, frame.right)
        y = PlotAxis(0.0, 1.08 * engine.dram_bytes / 1e9, frame.lower, frame.upper)
        draw_x(scene, frame, x, plain, f"sequences of {tokens:,} tokens that the GPU holds")
        draw_y(scene, frame, y, plain, "GB")
        whole = y(engine.dram_bytes / 1e9)
        scene.rect(x(0), whole, x(most) - x(0), frame.lower - whole, "line", title="free")
        for (name, role), (_, start, end) in reversed([*zip(_PARTS, sides, strict=True)]):
            outline = [(x(0), frame.lower), (x(0), y(start / 1e9)), (x(most), y(end / 1e9)), (x(most), frame.lower)]
            scene.area(outline, MEMORY_COLORS[role], f"{name} {size(end)}")
            scene.line(outline[1], outline[2], color="card")
        draw_frame(scene, frame)
        _level(scene, frame, y(engine.dram_bytes / 1e9), f"memory {size(engine.dram_bytes)}", ())
        _level(scene, frame, y(engine.capacity_bytes / 1e9), "", (5, 3))
        scene.line((x(most), frame.upper), (x(most), frame.lower), color="dim", dash=(2, 3))
        last = f"{most:,} at their longest"
        scene.text(min(x(most), scene.width - text_width(last, 10) / 2), frame.upper - 4, last, 10, "middle", halo=True)
        entries = [(name, MEMORY_COLORS[role], "square") for name, role in reversed(_PARTS)]
        entries += [("free", "line", "square"), (f"usable {size(engine.capacity_bytes)}", "ink", "dashed")]
        return frame.lower + 40 + scene.legend(frame.lower + 40, entries)

    return draw


def _level(scene: Scene, frame: Box, place: float, text: str, dash: tuple[float, ...]) -> None:
    scene.line((frame.left, place), (frame.right, place), color="ink", dash=dash)
    if text:
        scene.text(frame.left + 4, place - 4, text, 10, halo=True)


# -- roofline ----------------------------------------------------------------------------------------------------------


def phases_charts(engines: Sequence[SavedEngine]) -> Chart:
    """A roofline for each engine, all with the same axes: kernels of a decode step, and kernels of a prompt alone.
    Messages, which move no DRAM bytes to speak of, are left out."""
    return side_by_side(roofline_charts([_phases(engine) for engine in engines_of(engines)]), 440)


def _phases(engine: SavedEngine) -> Roofline:
    sequences, tokens = counted(engine.batch, "sequence"), counted(engine.prompt_tokens, "token")
    said = {"decode": f"a decode step of {sequences}", "prompt": f"a prompt of {tokens}"}
    spots: list[Spot] = []
    bare: list[Spot] = []
    legend, used = [], set[Pipe]()
    for number, (phase, step) in enumerate((("decode", engine.decode), ("prompt", engine.prompt))):
        kinds = {name: made for name, made in step.items() if name != "Collective"}
        total_s = sum(made.time_s for made in kinds.values())
        alone = " without messages" if len(kinds) < len(step) else ""
        legend.append((f"{said[phase]}, {duration(total_s)}{alone}", series_color(number), "circle"))
        used |= {pipe for made in kinds.values() for pipe in made.flops}
        for kind, made in kinds.items():
            name, share = KERNELS.get(kind, kind), made.time_s / total_s
            title = f"{name} of {said[phase]}: {duration(made.time_s)}, {percent(share)}"
            rate, intensity = made.total_flops / made.time_s, made.total_flops / max(made.bytes, 1)
            spot = Spot(intensity, rate, share, series_color(number), f"{name}, {phase}", title)
            (spots if made.total_flops else bare).append(spot)
    rates = sorted(((rate, pipe) for pipe, rate in engine.peaks.items()), reverse=True, key=lambda row: row[0])
    return Roofline(
        f"{engine.name}: roofline of decodes and prompts",
        [Roof(str(pipe), f"{pipe}  {flop_rate(rate, pipe)}", rate, pipe in used) for rate, pipe in rates],
        [Roof("DRAM", f"DRAM  {bandwidth(engine.dram_bytes_per_s)}", engine.dram_bytes_per_s, True)],
        sorted(spots, key=lambda spot: -spot.share),
        "modeled FLOP/s",
        legend=legend,
        legend_heading="share of the step",
        bare=sorted(bare, key=lambda spot: -spot.share),
    )
