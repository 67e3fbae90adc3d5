"""A/B benchmark: two versions of a model timed in turns on this machine; is the head slower, or is it undecided?

``run_ab`` starts both sides again and again, each in a process of its own checkout, times blocks of steps in
turns (:mod:`.sides`) and stops when the samples decide (:mod:`.run`, where to start reading). In: two :class:`Side`;
out: an :class:`ABResult` whose verdict is ``pass``, ``fail`` or ``inconclusive``.
"""

from memwall.bench.ab.run import ABResult, Rules, run_ab
from memwall.bench.ab.sides import Side

__all__ = ["ABResult", "Rules", "Side", "run_ab"]
