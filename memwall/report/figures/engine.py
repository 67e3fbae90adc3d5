"""The pictures of a server's engines: memory of a GPU by the sequences that it holds, the roofline of both phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from memwall.core.graph import Pipe
from memwall.core.units import bandwidth, counted, duration, flop_rate, percent, size
from memwall.fusion.server import Step
from memwall.fusion.server.kernels import Collective
from memwall.ops import Cost
from memwall.report.figures.axes import Axis, draw_frame, draw_x, draw_y, plain
from memwall.report.figures.colors import MEMORY_COLORS, series_color
from memwall.report.figures.labels import Box
from memwall.report.figures.roofline import Roof, Roofline, Spot, roofline_charts
from memwall.report.figures.scene import Chart, Scene, side_by_side, text_width

if TYPE_CHECKING:
    from memwall.serving import Point

#: what follows a name of a kernel's class
KERNELS: Mapping[str, str] = {
    "Product": "products", "Attention": "attention", "Latent": "latent attention", "Index": "index", "State": "states",
    "Experts": "experts", "Encoded": "encoder", "Between": "norms, activations", "Collective": "messages",
    "Sampling": "sampling",
}  # fmt: skip
#: engines that are drawn, and pixels of a panel at least, and down
MOST_ENGINES, _LEAST, _HIGH = 4, 340.0, 210.0
#: what a GPU holds, from the bottom
_PARTS = (("weights", "parameters"), ("activations and buffers", "activations"), ("KV cache", "kv_cache"))


def engines_of(points: Sequence[Point]) -> list[Point]:
    """The last point that runs of each engine, of the first engines."""
    last = {point.name: point for point in points if point.candidate is not None}
    return list(last.values())[:MOST_ENGINES]


def decodes(point: Point) -> Step:
    """The decode step of a point's mean batch."""
    assert point.candidate is not None
    batch = max(round(point.candidate.run.batch), 1)
    return Step(batch, round(batch * point.context))


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_chart(points: Sequence[Point]) -> Chart:
    """A panel for each engine: weights, activations and buffers, and a cache that grows with the sequences, up to what
    the server may take; each sequence as long as the longest request."""
    panels = [_memory(point) for point in engines_of(points)]
    return side_by_side(panels, _LEAST, 20)


def _memory(point: Point) -> Chart:
    steps, asked = point.steps, point.workload.longest
    tokens = asked.prompt_tokens + asked.generated_tokens
    each, held = point.kv_bytes(tokens), (point.weights_bytes, point.reserved_bytes)
    most = max((steps.capacity_bytes - sum(held)) // max(each, 1), 1) if each else 256
    tops = [held[0], sum(held)]
    sides = [(0, top, top) for top in tops] + [(0, sum(held), sum(held) + most * each)]

    def draw(scene: Scene) -> float:
        scene.text(0, 12, f"{point.name}: memory of a GPU", 12, bold=True)
        frame = Box(52.0, 50.0, scene.width - 8, 50.0 + _HIGH)
        x = Axis(0.0, 1.15 * most, frame.left, frame.right)
        y = Axis(0.0, 1.08 * steps.gpu.dram_bytes / 1e9, frame.lower, frame.upper)
        draw_x(scene, frame, x, plain, f"sequences of {tokens:,} tokens that the GPU holds")
        draw_y(scene, frame, y, plain, "GB")
        whole = y(steps.gpu.dram_bytes / 1e9)
        scene.rect(x(0), whole, x(most) - x(0), frame.lower - whole, "line", title="free")
        for (name, role), (_, start, end) in reversed([*zip(_PARTS, sides, strict=True)]):
            outline = [(x(0), frame.lower), (x(0), y(start / 1e9)), (x(most), y(end / 1e9)), (x(most), frame.lower)]
            scene.area(outline, MEMORY_COLORS[role], f"{name} {size(end)}")
            scene.line(outline[1], outline[2], color="card")
        draw_frame(scene, frame)
        _level(scene, frame, y(steps.gpu.dram_bytes / 1e9), f"memory {size(steps.gpu.dram_bytes)}", ())
        _level(scene, frame, y(steps.capacity_bytes / 1e9), "", (5, 3))
        scene.line((x(most), frame.upper), (x(most), frame.lower), color="dim", dash=(2, 3))
        last = f"{most:,} fit"
        scene.text(min(x(most), scene.width - text_width(last, 10) / 2), frame.upper - 4, last, 10, "middle", halo=True)
        entries = [(name, MEMORY_COLORS[role], "square") for name, role in reversed(_PARTS)]
        entries += [("free", "line", "square"), (f"usable {size(steps.capacity_bytes)}", "ink", "dashed")]
        return frame.lower + 40 + scene.legend(frame.lower + 40, entries)

    return draw


def _level(scene: Scene, frame: Box, place: float, text: str, dash: tuple[float, ...]) -> None:
    scene.line((frame.left, place), (frame.right, place), color="ink", dash=dash)
    if text:
        scene.text(frame.left + 4, place - 4, text, 10, halo=True)


# -- roofline ----------------------------------------------------------------------------------------------------------


def phases_charts(points: Sequence[Point]) -> Chart:
    """A roofline for each engine, all with the same axes: kernels of a decode step, and those of a prompt alone."""
    return side_by_side(roofline_charts([_phases(point) for point in engines_of(points)]), 440)


def _phases(point: Point) -> Roofline:
    gpu, step = point.steps.gpu, decodes(point)
    prompt = point.workload.longest.prompt_tokens
    steps = {"decode": step, "prompt": Step(0, 0, ((prompt, 0),))}
    sequences, tokens = counted(step.decodes, "sequence"), counted(prompt, "token")
    said = {"decode": f"a decode step of {sequences}", "prompt": f"a prompt of {tokens}"}
    spots: list[Spot] = []
    bare: list[Spot] = []
    legend, pipes = [], {Pipe("vector", "float32"): False}
    for number, (phase, of) in enumerate(steps.items()):
        kinds = _kinds(point, of)
        total_s = sum(time_s for _, time_s in kinds.values())
        alone = " without messages" if point.steps.layout.tp > 1 else ""
        legend.append((f"{said[phase]}, {duration(total_s)}{alone}", series_color(number), "circle"))
        pipes |= {gpu.ceiling_pipe(pipe): True for cost, _ in kinds.values() for pipe in cost.flops}
        for name, (cost, time_s) in kinds.items():
            title = f"{KERNELS[name]} of {said[phase]}: {duration(time_s)}, {percent(time_s / total_s)}"
            rate, intensity = cost.total_flops / time_s, cost.total_flops / max(cost.bytes, 1)
            spot = Spot(intensity, rate, time_s / total_s, series_color(number), f"{KERNELS[name]}, {phase}", title)
            (spots if cost.total_flops else bare).append(spot)
    rates = sorted(((gpu.peak(pipe), pipe, used) for pipe, used in pipes.items()), reverse=True, key=lambda row: row[0])
    return Roofline(
        f"{point.name}: roofline of decodes and prompts",
        [Roof(str(pipe), f"{pipe}  {flop_rate(rate)}", rate, used) for rate, pipe, used in rates],
        [Roof("DRAM", f"DRAM  {bandwidth(gpu.dram_bytes_per_s)}", gpu.dram_bytes_per_s, True)],
        sorted(spots, key=lambda spot: -spot.share), "modeled FLOP/s", legend=legend,
        legend_heading="share of the step", bare=sorted(bare, key=lambda spot: -spot.share),
    )  # fmt: skip


def _kinds(point: Point, step: Step) -> dict[str, tuple[Cost, float]]:
    """Cost and seconds of a step by the class of its kernels; messages, which move no DRAM bytes to speak of, aside."""
    found: dict[str, tuple[Cost, float]] = {}
    for kernel, n, own in point.steps.each(step):
        if isinstance(kernel, Collective):
            continue
        cost, time_s = found.get(type(kernel).__name__, (Cost(launches=()), 0.0))
        made = _times(kernel.cost(own, point.steps.layout), n)
        found[type(kernel).__name__] = cost + made, time_s + n * point.steps.kernel_s(kernel, own)
    return {name: (cost, time_s) for name, (cost, time_s) in found.items() if time_s}


def _times(cost: Cost, n: int) -> Cost:
    """The FLOPs and bytes of several equal kernels."""
    flops = {pipe: n * each for pipe, each in cost.flops.items()}
    return Cost(flops, n * cost.read_bytes, n * cost.write_bytes, launches=())
