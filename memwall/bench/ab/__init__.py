"""Two versions of a model timed against each other on this machine: is the head slower than the base, or not known?"""

from memwall.bench.ab.record import Contest
from memwall.bench.ab.run import run_contest
from memwall.bench.ab.side import Side

__all__ = ["Contest", "Side", "run_contest"]
