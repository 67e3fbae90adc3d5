"""Run on this machine what was modeled, and time it: eager ops, our own kernels, torch.compile's."""

from memwall.bench.kernels.run import Interrupted, measure
from memwall.bench.kernels.workers import Crew

__all__ = ["Crew", "Interrupted", "measure"]
