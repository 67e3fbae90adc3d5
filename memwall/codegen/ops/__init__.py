"""How each op's result is computed, as a table: packet → rule. Other ops have an expression in their row."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.codegen.ops import elementwise, norms, places, reductions, windows
from memwall.codegen.ops.base import OpRule

#: packet -> rule; ops that are not here have an expression in their row
RULES: Mapping[str, OpRule] = {
    name: rule for module in (elementwise, places, reductions, norms, windows) for name, rule in module.RULES.items()
}
