"""What a trace found beside the graph: what was traced, and facts that a record keeps under ``capture``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from memwall.core.structure import read


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str


def _input(value: Any) -> dict[str, Any]:
    read(_Tensor, value, "")
    return dict(value)


@dataclass(frozen=True)
class WorkloadInfo:
    """What was profiled. ``parameters`` is a count of elements; ``samples`` and ``tokens`` are per step, the samples
    taken from the first axis of the inputs where they are ``samples_assumed``."""

    name: str
    target: str
    mode: str
    dtype: str
    inputs: tuple[Annotated[Mapping[str, Any], _input], ...]
    parameters: int
    samples: int | None = None
    tokens: int | None = None
    optimizer: str | None = None
    autocast: str | None = None
    samples_assumed: bool = False

    @property
    def configuration(self) -> str:
        """``training, float16, batch 8``: mode, dtype and batch."""
        dtype = f"{self.dtype} (autocast {self.autocast})" if self.autocast else self.dtype
        assumed = " (the first axis)" * self.samples_assumed
        return ", ".join((self.mode, dtype, *((f"batch {self.samples:,}{assumed}",) if self.samples else ())))


@dataclass(frozen=True, slots=True)
class RankJob:
    """The traced rank and the number of ranks."""

    rank: int
    world: int


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of a rank. Where ranks have several stages, ``orders`` are their tasks, as in ``0F0 0B0``: stage,
    forward, backward (``I``, ``W``: one half of it), micro-batch."""

    ranks: tuple[int, ...]
    schedule: str
    microbatches: int
    orders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskedGpu:
    """The GPU that answered for ``torch.cuda``, and the names that were asked for and depend on it."""

    gpu: str
    asked: tuple[str, ...]


@dataclass(frozen=True)
class ServingFacts:
    """What a server needs and the traced graph does not show. ``weights``, ``kept``, ``cache``, ``mixed`` and
    ``experts`` are :class:`memwall.frontend.hf.quantized.StoredWeights`, the others as in
    :class:`memwall.frontend.targets.Workload`."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    most_tokens: int | None = None
    context: int = 0
    guesses: int = 0
    encoder: int | None = None
    fronts: tuple[str, ...] = ()
    weights: str | None = None
    kept: tuple[str, ...] | None = None
    cache: str = ""
    mixed: Mapping[str, str] = field(default_factory=dict)
    experts: str = ""
    #: why the weights cannot be read: their format is not modeled
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """What a trace found beside the graph; what is None was not asked or not found."""

    OMIT_DEFAULTS: ClassVar[bool] = True

    #: type of the device on which the code of a :func:`memwall.trace` ran
    device: str | None = None
    #: the version of torch whose kernels are modeled
    torch: str | None = None
    #: repeated blocks that were not traced again
    replayed_blocks: int | None = None
    #: whether real CPU tensors were traced
    real: bool | None = None
    job: RankJob | None = None
    pipeline: Pipeline | None = None
    serving: ServingFacts | None = None
    #: lines that every page of the profile states: what was assumed, left out or counts as something else
    notes: tuple[str, ...] = ()
    asked_gpu: AskedGpu | None = None


def noted(notes: Iterable[str], assumed: Iterable[str]) -> tuple[str, ...]:
    """Notes and, once each, assumptions."""
    return (*notes, *(f"assumed: {text}" for text in dict.fromkeys(assumed)))
