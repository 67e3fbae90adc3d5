"""How numbers are reduced: in one tile, lane by lane over a loop, and at its end.

A tile is ``[XBLOCK, RBLOCK]``; results are ``[XBLOCK, 1]``. ``moments`` gives mean and sum of squared deviations by
Welford's steps in each lane, lanes combined as by Chan, Golub and LeVeque (1983); ``softmax`` gives the maximum and the
sum of exponentials below it in one pass (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from memwall.codegen.tensors import Body, TensorReduction, triton_dtype

_LEAST = 'float("-inf")'


@dataclass(frozen=True)
class LaneKind:
    """``identities`` of the numbers that a lane keeps (``lanes``), in the order of its names; the first ``results`` of
    them are results, the others counts.

    ``tile(body, value, mask, count)`` reduces one tile of ``count`` elements a row; ``step(body, lanes, value, mask)``
    gives the lanes after another tile and ``join(body, lanes)`` the results.
    """

    identities: tuple[str, ...]
    results: int
    tile: Callable[[Body, str, str, int], list[str]]
    step: Callable[[Body, Sequence[str], str, str], list[str]]
    join: Callable[[Body, Sequence[str]], list[str]]


def _extremum(function: str, identity: str) -> LaneKind:
    reduce = {"maximum": "tl.max", "minimum": "tl.min"}[function]

    def whole(body: Body, text: str) -> list[str]:
        """The result of a row, NaN if any element is NaN."""
        lanes = body.name(text)
        none = f"tl.max(({lanes} != {lanes}).to(tl.int32), axis=1)[:, None]"
        return [f'tl.where({none} > 0, float("nan"), {reduce}({lanes}, axis=1)[:, None])']

    def step(body: Body, lanes: Sequence[str], value: str, mask: str) -> list[str]:
        return [f"tl.{function}({lanes[0]}, tl.where({mask}, {value}, {identity}), propagate_nan=tl.PropagateNan.ALL)"]

    return LaneKind(
        (identity,),
        1,
        lambda body, value, mask, count: whole(body, f"tl.where({mask}, {value}, {identity})"),
        step,
        lambda body, lanes: whole(body, lanes[0]),
    )


def _moments_tile(body: Body, value: str, mask: str, count: int) -> list[str]:
    share = 1 / max(count, 1)
    mean = body.name(f"tl.sum(tl.where({mask}, {value}, 0), axis=1)[:, None] * {share!r}")
    apart = body.name(f"tl.where({mask}, {value} - {mean}, 0)")
    return [mean, f"tl.sum({apart} * {apart}, axis=1)[:, None]"]


def _moments_step(body: Body, lanes: Sequence[str], value: str, mask: str) -> list[str]:
    mean, squares, count = lanes
    more = body.name(f"{count} + ({mask}).to(tl.float32)")
    apart = body.name(f"tl.where({mask}, {value} - {mean}, 0)")
    moved = body.name(f"{mean} + {apart} / tl.maximum({more}, 1.0)")
    return [moved, f"{squares} + {apart} * tl.where({mask}, {value} - {moved}, 0)", more]


def _moments_join(body: Body, lanes: Sequence[str]) -> list[str]:
    mean, squares, count = lanes
    total = body.name(f"tl.maximum(tl.sum({count}, axis=1)[:, None], 1.0)")
    middle = body.name(f"tl.sum({mean} * {count}, axis=1)[:, None] / {total}")
    apart = body.name(f"{mean} - {middle}")
    return [middle, f"tl.sum({squares} + {count} * {apart} * {apart}, axis=1)[:, None]"]


def _softmax_tile(body: Body, value: str, mask: str, count: int) -> list[str]:
    most = body.name(f"tl.max(tl.where({mask}, {value}, {_LEAST}), axis=1)[:, None]")
    return [most, f"tl.sum(tl.where({mask}, tl.exp({value} - {most}), 0), axis=1)[:, None]"]


def _softmax_step(body: Body, lanes: Sequence[str], value: str, mask: str) -> list[str]:
    most, total = lanes
    more = body.name(f"tl.maximum({most}, tl.where({mask}, {value}, {_LEAST}))")
    before = f"tl.where({most} == {_LEAST}, {total}, {total} * tl.exp({most} - {more}))"
    fresh = f"tl.where({mask}, tl.where({value} != {_LEAST}, tl.exp({value} - {more}), 0), 0)"
    return [more, f"{before} + {fresh}"]


def _softmax_join(body: Body, lanes: Sequence[str]) -> list[str]:
    most, total = lanes
    top = body.name(f"tl.max({most}, axis=1)[:, None]")
    return [top, f"tl.sum(tl.where({most} == {_LEAST}, {total}, {total} * tl.exp({most} - {top})), axis=1)[:, None]"]


KINDS: Mapping[str, LaneKind] = {
    "sum": LaneKind(
        ("0",), 1,
        lambda body, value, mask, count: [f"tl.sum(tl.where({mask}, {value}, 0), axis=1)[:, None]"],
        lambda body, lanes, value, mask: [f"{lanes[0]} + tl.where({mask}, {value}, 0)"],
        lambda body, lanes: [f"tl.sum({lanes[0]}, axis=1)[:, None]"],
    ),
    "max": _extremum("maximum", _LEAST),
    "min": _extremum("minimum", 'float("inf")'),
    "moments": LaneKind(("0", "0", "0"), 2, _moments_tile, _moments_step, _moments_join),
    "softmax": LaneKind((_LEAST, "0"), 2, _softmax_tile, _softmax_step, _softmax_join),
}  # fmt: skip


def accumulate(
    before: Body, body: Body, reductions: Sequence[TensorReduction], value: Callable[[TensorReduction], str]
) -> list[tuple[TensorReduction, list[str]]]:
    """Reductions lane by lane over a loop: the initial lanes go ``before`` it, their steps into its body.

    Args:
        value: the element that is reduced at (x, r).

    Returns:
        The names of the lanes of each.
    """
    found, steps = [], []
    for reduction in reductions:
        kind, dtype = KINDS[reduction.kind], triton_dtype(reduction.dtype)
        lanes = [body.writer.unique() for _ in kind.identities]
        before.lines += [
            f"{name} = tl.full([XBLOCK, RBLOCK], {identity}, {dtype})"
            for name, identity in zip(lanes, kind.identities, strict=True)
        ]
        after = [body.name(text) for text in kind.step(body, lanes, value(reduction), "x_mask & r_mask")]
        steps += [f"{name} = {new}" for name, new in zip(lanes, after, strict=True)]
        found.append((reduction, lanes))
    body.lines += steps
    return found


def know(body: Body, reduction: TensorReduction, results: Sequence[str]) -> None:
    """Name a reduction's results, for all that needs them in this function."""
    for component, text in enumerate(results[: KINDS[reduction.kind].results]):
        body.writer.local[id(reduction), component] = body.name(text)
