"""One measured row as the model sees it: what ran, on which GPU, how it was timed, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass

from memwall.hardware.lookup import Gpu
from memwall.ops import Cost


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured launch, or the launches of one op.

    ``launch`` names the way of timing (:class:`memwall.hardware.constants.LaunchConstants`): ``graph``, ``kernel`` or
    ``call``. ``resident_bytes`` of what it reads were in L2 before it began. ``shape`` is what tells it from other
    shapes, for the split into rows to fit and rows to score.
    """

    dataset: str
    #: as the data name it, and the board that it is
    label: str
    gpu: Gpu
    op_class: str
    dtype: str
    shape: str
    cost: Cost
    launch: str
    resident_bytes: int
    measured_s: float
    #: seconds to which the data are rounded
    resolution_s: float = 0.0
    #: what tells the half that it belongs to; empty: its shape
    split: str = ""

    @property
    def split_by(self) -> str:
        """What tells the half that it belongs to: rows of one shape, whatever their board, are in one half."""
        return self.split or self.shape
