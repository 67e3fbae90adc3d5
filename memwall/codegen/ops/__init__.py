"""How each op's result is computed, as a table: packet → rule. Ops that are not in it have an expression."""

from __future__ import annotations

from collections.abc import Mapping

from memwall.codegen.ops import bags, elementwise, losses, norms, places, reductions, scatters, windows
from memwall.codegen.ops.base import OpRule

#: packet -> rule; ops that are not here have an expression in :mod:`memwall.codegen.expressions`
RULES: Mapping[str, OpRule] = {
    name: rule
    for module in (elementwise, places, scatters, bags, reductions, norms, losses, windows)
    for name, rule in module.RULES.items()
}
