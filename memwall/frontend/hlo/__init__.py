"""A program as XLA prints it, before or after optimization → Graph. Needs neither JAX nor XLA.

:mod:`~memwall.frontend.hlo.module` is what the text says, :mod:`~memwall.frontend.hlo.parsing` reads it.
"""

from memwall.frontend.hlo.module import HloArray, HloComputation, HloInstruction, HloModule, HloShape
from memwall.frontend.hlo.parsing import parse

__all__ = ["HloArray", "HloComputation", "HloInstruction", "HloModule", "HloShape", "parse"]
