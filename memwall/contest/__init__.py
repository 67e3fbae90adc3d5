"""Two versions of a model timed against each other on this machine: is the head slower than the base, or not known?"""

from memwall.contest.record import Contest
from memwall.contest.run import run_contest
from memwall.contest.side import Side

__all__ = ["Contest", "Side", "run_contest"]
