"""The reference pictures, and what is asked of the layout of any: overlaps, crossings, places off the sheet."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from memwall.analysis.savings import policy_sets
from memwall.bench.accuracy import TimedRow as Timed
from memwall.bench.accuracy.figure import scatter_chart
from memwall.gate.figure import trend_chart
from memwall.gate.history import HistoryRow
from memwall.hardware.lookup import load_gpu
from memwall.report.figures.colors import CLASS_COLORS
from memwall.report.figures.profile import profile_chart, shares_chart, walls_chart, waterfall_chart
from memwall.report.figures.scene import Area, Chart, Dot, Dust, Rect, Scene, Stroke, Text
from memwall.serving import Model, Serving, serve
from memwall.serving.engine_figure import memory_chart, phases_charts
from memwall.serving.figure import serving_chart
from memwall.serving.saved import saved
from memwall.serving.steps import ServedKernels
from memwall.serving.steps.attention import Attention
from memwall.serving.steps.kernels import Between, Collective, Product, Sampling
from memwall.sweeping.compare import compare_gpus, compare_profile, compare_profiles
from memwall.sweeping.comparison_figure import comparison_chart
from memwall.sweeping.figure import OptionPair, front_chart, heat_chart
from memwall.traces.analysing import analyse
from memwall.traces.analysis import TraceAnalysis
from memwall.traces.comparison import compare_traces
from memwall.traces.comparison_page import TraceComparisonReport
from memwall.traces.figure import trace_chart
from memwall.traces.reading import read_trace
from tests.unit.fused_fixture import make_fused
from tests.unit.measured_fixture import make_measured
from tests.unit.report_fixture import NEW, OLD, make_profile
from tests.unit.traces_fixture import call, kernel, op, write

Place = tuple[float, float]


def history() -> list[HistoryRow]:
    """Six commits on two GPUs: a step up, a new version, a step down."""
    kernels = (100, 100, 117, 117, 88, 88)
    return [
        HistoryRow(f"{i:x}" * 40, f"2026-01-{i + 1:02d}T00:00:00Z", "1.0" if i < 3 else "2.0", "net", "inference", gpu,
            "eager", {"kernels": count, "time_s": count * scale * 1e-6})
        for i, count in enumerate(kernels)
        for gpu, scale in (("old", 2.0), ("new", 1.0))
    ]  # fmt: skip


def _fall() -> Chart:
    (policies,) = policy_sets(make_fused())
    return waterfall_chart(policies, policies.schedules[1])


def served() -> Serving:
    """A model of 32 layers, 8 B weights and grouped attention on two GPUs, alone and shared by two, and objectives that
    the largest load misses."""
    product = partial(Product, dtype="bfloat16")
    kernels = (
        (product(n=6144, k=4096, split="column"), 32),
        (product(n=4096, k=4096, split="row"), 32),
        (product(n=28672, k=4096, split="column"), 32),
        (product(n=4096, k=14336, split="row"), 32),
        (Attention(heads=32, kv_heads=8, head_size=128, value_size=128, dtype="bfloat16"), 32),
        (Between(read_bytes=16384, write_bytes=8192, weight_bytes=8192, columns=4096, itemsize=2, shared=False), 64),
        (Collective(op="all_reduce", width=8192), 64),
        (Sampling(vocabulary=128256), 1),
    )
    model = Model(name="llama", served=ServedKernels(kernels, 2 * 128256 * 4096), max_context=8192)
    return serve(
        model, gpu=["h100", "b200"], tp=[1, 2], concurrency=[1, 8, 64], closed_form=True,
        slo=["ttft<1 s", "tpot<10 ms"],
    )  # fmt: skip


def timed() -> list[Timed]:
    """Rows of six GPUs, of every op class, from a microsecond to seconds; one GPU has few of them."""
    return [
        Timed("rows", f"NVIDIA {gpu} 80GB PCIe", name, "float16", 10.0**power * (1 + 0.2 * math.sin(i)), 10.0**power)
        for gpu in range(6)
        for i, name in enumerate(CLASS_COLORS)
        for power in range(-6, 1 - 3 * (gpu == 5))
    ]  # fmt: skip


def trace() -> TraceAnalysis:
    """Twelve calls on an H100: products of several sizes, sums and copies, one op without a formula."""
    events = []
    calls = [("aten::mm", 256 << i) for i in range(5)] + [("aten::add", 256 << i) for i in range(5)]
    for number, (name, size) in enumerate([*calls, ("aten::copy_", 4096), ("mine::op", 512)]):
        shapes = {"Input__Dims": [[size, size], [size, size]], "Input__type": ["float", "float"]}
        at = 1000 * number
        events += [op(name, at, 900, **shapes), call("cudaLaunchKernel", at + 5, 2, number),
                   kernel("k", at + 10, 5 + size**2 / 1e5, number)]  # fmt: skip
    with TemporaryDirectory() as folder:
        return analyse(read_trace(write(Path(folder), events)), load_gpu("h100-sxm"))


def _compared(*gpus: str) -> Chart:
    prices = dict.fromkeys(gpus, 2.0)
    return comparison_chart(compare_profile(make_profile(), [load_gpu(gpu) for gpu in gpus], price=prices))


#: name -> what makes the picture
def _front() -> Chart:
    """Two GPUs at three batches, of which one GPU has the front."""
    from pandas import DataFrame

    rows = [("h100-sxm", 1, 6e-3, 170.0), ("h100-sxm", 4, 7e-3, 670.0), ("h100-sxm", 16, 14e-3, 1130.0),
            ("a100-80gb-sxm", 1, 8e-3, 160.0), ("a100-80gb-sxm", 4, 10e-3, 390.0),
            ("a100-80gb-sxm", 16, 34e-3, 465.0)]  # fmt: skip
    points = DataFrame(rows, columns=["gpu", "batch", "time_s", "samples_per_s"])
    return front_chart(points, points[:3], ("time_s", "samples_per_s"), lambda row: f"batch {row['batch']}")


PICTURES: dict[str, Callable[[], Chart]] = {
    "roofline": lambda: profile_chart(make_profile(gpus=(OLD,)), "roofline"),
    "rooflines of two GPUs": lambda: profile_chart(make_profile(), "roofline"),
    "overlay": lambda: profile_chart(make_profile(), "overlay"),
    "fused roofline": lambda: profile_chart(make_fused(), "roofline"),
    "measured roofline": lambda: profile_chart(make_measured(), "roofline"),
    "waterfall": _fall,
    "flame graph": lambda: profile_chart(make_fused(), "flame"),
    "treemap": lambda: profile_chart(make_fused(), "treemap"),
    "memory": lambda: profile_chart(make_profile(gpus=(OLD,)), "memory"),
    "shares": lambda: shares_chart(make_profile(), make_profile().simulations),
    "walls": lambda: walls_chart(make_profile(), make_profile().simulations),
    "comparison": lambda: comparison_chart(compare_profile(make_profile(), [OLD, NEW])),
    "comparison with intervals and prices": lambda: _compared("v100-sxm2-16gb", "a100-80gb-sxm", "h100-sxm", "b200"),
    "comparison of profiles": lambda: comparison_chart(compare_profiles([make_profile(), make_profile(blocks=3)])),
    "trace": lambda: trace_chart(trace()),
    "traces compared": lambda: TraceComparisonReport(compare_traces([trace(), trace()])).figure(),
    "accuracy": lambda: scatter_chart(timed()),
    "machines": lambda: comparison_chart(
        compare_gpus([load_gpu(name) for name in ("p100-sxm2", "v100-sxm2-32gb", "a100-80gb-sxm", "h100-sxm", "b200")])
    ),
    "history": lambda: trend_chart(history(), ["kernels", "time_s"]),
    "loads of a server": lambda: serving_chart(saved(served())),
    "memory of a server": lambda: memory_chart(saved(served()).engines),
    "phases of a server": lambda: phases_charts(saved(served()).engines),
    "front of a sweep": _front,
    "heat map of options with long names": lambda: heat_chart(
        OptionPair("parallel.recompute", "parallel.tp", ["none", "full"], [1, 2, 4, 8], [[1.0, 2.0, 3.0, 4.0]] * 2),
        "time_s",
    ),
}


def overlapping(scene: Scene) -> list[tuple[str, str]]:
    """Pairs of texts that overlap."""
    texts = [mark for mark in scene.marks if isinstance(mark, Text) and mark.text]
    texts += [mark.text for mark in scene.marks if isinstance(mark, Rect) and mark.text]
    return [(a.text, b.text) for a, b in combinations(texts, 2) if _meet(_shrunk(a.corners), _shrunk(b.corners))]


def struck(scene: Scene) -> list[str]:
    """Texts that a line goes through; gridlines do not count, nor does the label of an axis on its own grid."""
    texts = [mark for mark in scene.marks if isinstance(mark, Text) and mark.text]
    lines = [
        pair for mark in scene.marks if isinstance(mark, Stroke) and not mark.faint for pair in pairwise(mark.places)
    ]
    return [text.text for text in texts if any(_meet(_shrunk(text.corners), line) for line in lines)]


def outside(scene: Scene) -> list[object]:
    """Marks of which some part lies off the sheet."""
    return [mark for mark in scene.marks for x, y in _corners(mark)
            if not (-0.5 <= x <= scene.width + 0.5 and -0.5 <= y <= scene.height + 0.5)]  # fmt: skip


def _corners(mark: object) -> Iterator[Place]:
    if isinstance(mark, Text):
        yield from mark.corners
    elif isinstance(mark, Rect):
        yield from ((mark.x, mark.y), (mark.x + mark.width, mark.y + mark.height))
    elif isinstance(mark, Dot):
        yield from ((mark.box.left, mark.box.upper), (mark.box.right, mark.box.lower))
    elif isinstance(mark, Stroke | Area | Dust):
        yield from mark.places


def _shrunk(corners: tuple[Place, ...]) -> tuple[Place, ...]:
    """A box but for a tenth of its height: what a box has above its letters and below them may touch."""
    cx, cy = sum(x for x, _ in corners) / 4, sum(y for _, y in corners) / 4
    return tuple((cx + (x - cx) * 0.97, cy + (y - cy) * 0.9) for x, y in corners)


def _meet(one: tuple[Place, ...], other: tuple[Place, ...]) -> bool:
    """Whether two convex shapes have a point in common: no edge's normal keeps them apart."""
    for shape in (one, other):
        for (x0, y0), (x1, y1) in zip(shape, (*shape[1:], shape[0]), strict=True):
            nx, ny = y0 - y1, x1 - x0
            a, b = ([x * nx + y * ny for x, y in corners] for corners in (one, other))
            if max(a) <= min(b) or max(b) <= min(a):
                return False
    return True
