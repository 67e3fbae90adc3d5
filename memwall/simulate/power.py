"""The power limit over steps that follow each other: what products sustain next to other kernels.

A lone float32 product starts at the boost clock, and slows down once it has drawn more than the board may
(:class:`memwall.hardware.constants.VectorGemmConstants`). The products of a lone call share that start, and steps in a
loop have none. There the limit holds on average over their kernels, ``looped`` says what is left of it after seconds,
and products may draw what others do not::

    limit x (products_s + others_s) = energy of the products + OTHERS x limit x others_s

Products on tensor cores, matmuls and convolutions, are held likewise on boards whose short ones, or ones of zeros, draw
more than lasts: ``looped_products`` of a GPU is the share of their rate that the whole limit holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from memwall.hardware.constants import Constants, GemmConstants, VectorGemmConstants
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.ops.product_launches import Convolution, Gemm, VectorGemm
from memwall.perfmodel.base import constants, tables_of
from memwall.perfmodel.families import as_run

C = TypeVar("C", bound=Constants)

#: ways of issuing kernels that repeat the step, and ways of a lone call, of :data:`memwall.simulate.issue.LAUNCHES`
LOOPS, LONE = ("eager", "graph"), ("call", "replay")
#: share of its power limit that a board draws outside of products: three float32 BERT encoders on an A10, which holds
#: their products at a third of the peak, ask for 0.54, 0.57 and 0.65 (fastertransformer.csv)
OTHERS = 0.6
#: times the limit that short products among longer other kernels draw at most: more than any peak asks for
_MOST = 10.0


def multiplies(cost: Cost, gpu: Gpu) -> bool:
    """Whether a kernel is a float32 or float64 product on vector units."""
    return any(isinstance(as_run(launch, gpu), VectorGemm) for launch in cost.launches)


def is_held(cost: Cost, gpu: Gpu) -> bool:
    """Whether a kernel is a product whose rate in a loop the power of the GPU holds."""
    if multiplies(cost, gpu):
        return True
    products = [launch.pipe for launch in cost.launches if isinstance(launch, (Gemm, Convolution))]
    return gpu.looped_products < 1 and any(gpu.ceiling_pipe(pipe).engine == "tensor" for pipe in products)


def in_call(gpu: Gpu, products: int) -> Gpu:
    """The GPU in a lone call of so many products, which share the time at the boost clock."""
    return _held(gpu, VectorGemmConstants, lambda known: {"burst_s": known.burst_s / max(products, 1)})


def in_loop(gpu: Gpu, products_s: float = 0.0, others_s: float = 0.0) -> Gpu:
    """The GPU whose products are held by its power from their start, with what other kernels leave of it.

    Args:
        products_s: seconds of a step that products take where nothing is left of it.
        others_s: seconds of a step that its other kernels take.
    """
    spared_s = min((1 - OTHERS) * others_s, (1 - 1 / _MOST) * products_s)
    draw = products_s / (products_s - spared_s) if spared_s else 1.0
    lasting = min(draw * gpu.looped_products, 1.0)
    gpu = _held(gpu, GemmConstants, lambda known: {"sustained": lasting * known.sustained})
    return _held(
        gpu,
        VectorGemmConstants,
        lambda known: {"burst_s": 0.0, "flop_per_joule": draw * known.looped * known.flop_per_joule},
    )


def _held(gpu: Gpu, kind: type[C], change: Callable[[C], Mapping[str, float]]) -> Gpu:
    """The GPU with other constants of a family's tables that its file states some of."""
    held: dict[str, float] = {}
    stated = tables_of(gpu)
    for variant in kind.VARIANTS:
        table = f"{kind.FAMILY}.{variant}"
        if table in stated:
            changed = change(constants(kind, gpu, variant))
            held |= {f"{table}.{name}": value for name, value in changed.items()}
    return replace(gpu, utilization={**gpu.utilization, **held})
