"""What a profile says of its trace beside the graph, under ``capture`` in a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from memwall.core.structure import BadRecord, read
from memwall.frontend.facts import TraceFacts
from memwall.hardware.torch_versions import UNSAID, TorchVersion, torch_version
from memwall.record.capture import Capture


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What was modeled of another rank, on a GPU of a cluster under a policy; ``alike``: further ones that are taken to
    do the same (:mod:`memwall.core.ranks`)."""

    rank: int
    alike: str
    gpu: str
    cluster: str
    policy: str
    peak_memory: int
    communication_bytes: float
    exposed_communication_s: float


@dataclass(frozen=True, kw_only=True)
class Traced(TraceFacts):
    """The facts of a trace, and what was found of the same step afterwards."""

    #: names of the parameters of which a rank has a share
    shares: tuple[str, ...] = ()
    #: what TorchDynamo made of the workload
    dynamo: Capture | None = None
    #: the other ranks of a pipeline that were traced
    ranks: tuple[RankFigures, ...] = ()

    @property
    def version(self) -> TorchVersion:
        """The version of torch whose kernels are modeled; of an older record, which says none, the one that memwall
        modeled then."""
        return torch_version(self.torch or UNSAID)


def read_traced(value: Any) -> Traced:
    """What a record has. Raises BadRecord: it is damaged; names the key."""
    try:
        return read(Traced, value, "")
    except BadRecord as error:
        raise BadRecord(f"is damaged: {error}") from None
