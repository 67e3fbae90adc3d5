"""The question of ``memwall profile --parallel``: a training job, and how its GPUs share the work.

The keys of a layout are fields of :class:`memwall.training.layout.Parallelism`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypedDict

from memwall.core.question import Option
from memwall.hardware.links import Cluster
from memwall.step import HostOption, SampleInputs
from memwall.training.states import STATES

#: the cluster of training steps where none is named
DEFAULT_CLUSTER = "dgx-h100"


class StateOptions(TypedDict, total=False):
    """How a rank keeps parameters and sends what others wait for."""

    state: Annotated[str | None, Option(
        None, "Bytes of a parameter, its gradient and its optimizer's state. [default: mixed of 16-bit weights, else"
        " float32]", choices=tuple(STATES))]  # fmt: skip
    overlap: Annotated[bool, Option(
        True, "Messages between replicas and stages wait for kernels, and kernels for messages.")]  # fmt: skip


class LayoutSearch(SampleInputs, HostOption, StateOptions, total=False):
    """A training step whose layout is searched for, on all GPUs of a cluster or some of them."""

    policy: Annotated[str, Option("eager", "How kernels are fused: eager, memwall or ideal.", metavar="NAME")]
    cluster: Annotated[str | Path | Cluster, Option(
        DEFAULT_CLUSTER, f"How the GPUs are joined. [default: {DEFAULT_CLUSTER}]", metavar="NAME",
        completes="clusters")]  # fmt: skip


class Microbatch(SampleInputs, total=False):
    """What a rank is traced with."""

    batch: Annotated[int | None, Option(None, "Samples of a microbatch.", least=1, metavar="N")]


class Job(LayoutSearch, Microbatch, total=False):
    """A training step under a layout of many GPUs, as keywords of :func:`memwall.parallel`.

    Attributes:
        cluster: a name of ``memwall clusters``, or the path of a TOML file.
        world: GPUs, to be compared with the GPUs of the layout.
        dtype, autocast, seq, host: as for :func:`memwall.profile`.
        batch: samples of a microbatch.
        policy: how kernels are fused: ``eager``, ``memwall`` or ``ideal``.
        state: what a parameter takes, a key of :data:`memwall.training.memory.STATES`; None: ``mixed`` for 16-bit
            weights, else ``float32``.
        overlap: whether gradients are summed, and shards of weights gathered, while blocks run, or in between.
    """

    world: Annotated[int | None, Option(None, "GPUs that the layout has to fill.", least=1, metavar="N")]
