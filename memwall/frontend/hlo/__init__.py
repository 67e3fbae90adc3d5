"""A program as XLA prints it, before or after optimization → Graph. Needs neither JAX nor XLA.

:mod:`~memwall.frontend.hlo.parsing` reads the text into a :mod:`~memwall.frontend.hlo.module`; ``graph`` writes its
instructions by the ``rules`` of each; ``program`` is a file as a target.
"""

from memwall.frontend.hlo.module import HloArray, HloComputation, HloInstruction, HloModule, HloShape
from memwall.frontend.hlo.parsing import parse

__all__ = ["HloArray", "HloComputation", "HloInstruction", "HloModule", "HloShape", "parse"]
