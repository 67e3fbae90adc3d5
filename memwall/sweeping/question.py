"""The question of ``memwall sweep``, apart from targets and axes: what a point is, which are kept, where it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

from memwall.core.question import Option

ENGINES = ("local", "dask")


class SweepOptions(TypedDict, total=False):
    """Which points there are and which are kept, as keywords of :func:`memwall.sweep`.

    Attributes:
        of: what a point is: ``profile`` (as :func:`memwall.profile`), ``decode`` (one decode step of a server: gpu, tp,
            cluster, batch, context, weights, kv, engine, utilization), ``serve`` (as :func:`memwall.serve`, with one
            concurrency) or ``training`` (as :func:`memwall.parallel`; keys of its layout are options such as
            ``parallel.tp``); None takes the first that has all options and quantities named.
        where: conditions such as ``fits``, ``time_s<200ms`` or ``tp==8``; only points that satisfy all are returned.
        best: sort by this quantity, the best first; None keeps the order of the points, the last axis fastest.
        pareto: return only the points that no other beats in one of these quantities without being worse in another.
        price: USD per hour of a GPU, by name.
        engine: ``local``: this process, or a pool of processes where several traces are needed; ``dask``.
        workers: processes; 0 evaluates all in this one.
        scheduler: address of a Dask scheduler; None starts one here.
        keep: a folder to which finished points are written as they come; with ``resume`` points in it are not evaluated
            again.
        cache: keep traces in the user's cache folder, and use the traces that are there.
        large: go on without asking where there are more than 200,000 points.
    """

    where: Annotated[Sequence[str], Option(
        (), "Points to keep: fits, 'time_s<200ms', 'tp==8', limited_by==compute.", metavar="CONDITION...",
        several="words")]  # fmt: skip
    best: Annotated[str | None, Option(
        None, "Order the points by this, the best first. [default: samples/s, or a GPU's tokens/s]",
        metavar="QUANTITY")]  # fmt: skip
    pareto: Annotated[Sequence[str], Option(
        (), "Two or three quantities: list the points that no other beats in all of them.", metavar="QUANTITY...",
        several="words")]  # fmt: skip
    of: Annotated[str | None, Option(
        None, "What a point is: profile, decode (a server's step), serve or training. [default: the first with all"
        " options]", metavar="KIND")]  # fmt: skip
    price: Annotated[Mapping[str, float] | None, Option(None, "USD per hour of a GPU, by name.")]
    engine: Annotated[str, Option("local", "local or dask.", metavar="NAME", shown=True)]
    scheduler: Annotated[str | None, Option(
        None, "Of a Dask scheduler, tls://...; without one, a cluster here.", metavar="ADDRESS")]  # fmt: skip
    workers: Annotated[int | None, Option(
        None, "Processes; 0: this one alone. [default: the cores, where several traces are needed]", least=0,
        metavar="N")]  # fmt: skip
    keep: Annotated[str | Path | None, Option(None, "Write finished points there as they come.", metavar="FOLDER")]
    resume: Annotated[bool, Option(False, "Evaluate only the points that the folder of --keep lacks.")]
    cache: Annotated[bool, Option(True, "Use no trace of the cache folder, and leave none there.")]
    large: Annotated[bool, Option(False, "Go on with more than 200,000 points.", flag="yes")]
