"""The arithmetic of optimizers that torch has as one op each (``fused=True``), for the tensors of one position.

It follows fused_adam_utils.cuh and FusedSgdKernel.cu. What depends only on the step is computed once per thread block,
in float64: ``1 - beta2 ** step`` loses its digits in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from memwall.codegen.kernel import NotGenerated
from memwall.codegen.multi_text import Row

#: arguments that are one number on the device for all elements of a tensor
NUMBERS = frozenset(("state_steps",))

#: (row whose lines to write, argument → variable, attributes) → argument → the variable that it becomes
Rule = Callable[[Row, Mapping[str, str], Mapping[str, Any]], dict[str, str]]


def _gradient(names: Mapping[str, str], given: Mapping[str, Any], decay: float) -> str:
    """The gradient with its sign, and weight decay where that is added to it."""
    for name in ("lr", "grad_scale", "found_inf"):
        if name in names:
            raise NotGenerated(f"a fused optimizer whose {name} is a tensor")
    sign = "-" if given.get("maximize") else ""
    decayed = f" + {decay!r} * {names['self']}" if decay else ""
    return f"grad = {sign}{names['grads']}{decayed}"


def _adam(is_decoupled: bool) -> Rule:
    """Adam; with decoupled weight decay AdamW."""

    def rule(row: Row, names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
        lr, decay = float(given["lr"]), float(given.get("weight_decay", 0))
        row.lines.append(_gradient(names, given, 0.0 if is_decoupled else decay))
        for name, beta, text in (
            ("step_size", given["beta1"], f"{lr!r} / (1.0 - {{power}})"),
            ("scale", given["beta2"], "tl.sqrt(1.0 - {power})"),
        ):
            steps = f"{names['state_steps']}.to(tl.float64)"
            power = f"tl.exp2({steps} * ({math.log2(beta)!r}))" if beta else f"0.0 * {steps}"
            row.before.append(f"{name} = ({text.format(power=power)}).to(tl.{row.dtype})")
        shrunk = f" * {1 - lr * decay!r}" if is_decoupled and decay else ""
        first, second = names["exp_avgs"], names["exp_avg_sqs"]
        row.lines += [
            f"exp_avg = {first} + {1 - given['beta1']!r} * (grad - {first})",
            f"exp_avg_sq = {second} + {1 - given['beta2']!r} * (grad * grad - {second})",
        ]
        results = {"exp_avgs": "exp_avg", "exp_avg_sqs": "exp_avg_sq", "self": "param"}
        square = "exp_avg_sq"
        if given.get("amsgrad"):
            square = results["max_exp_avg_sqs"] = "max_exp_avg_sq"
            largest = f"{names['max_exp_avg_sqs']}, exp_avg_sq, propagate_nan=tl.PropagateNan.ALL"
            row.lines.append(f"{square} = tl.maximum({largest})")
        row.lines += [
            f"denominator = tl.sqrt({square}) / scale + {float(given['eps'])!r}",
            f"param = {names['self']}{shrunk} - step_size * exp_avg / denominator",
        ]
        return results

    return rule


def _sgd(row: Row, names: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    momentum, results = float(given.get("momentum", 0)), {}
    row.lines.append(_gradient(names, given, float(given.get("weight_decay", 0))))
    direction = "grad"
    if momentum:
        kept = 1 - float(given.get("dampening", 0))
        speed = f"{momentum!r} * {names['momentum_buffer_list']} + {f'{kept!r} * ' * (kept != 1)}grad"
        row.lines.append(f"speed = {'grad' if given.get('is_first_step') else speed}")
        results["momentum_buffer_list"] = direction = "speed"
        if given.get("nesterov"):
            row.lines.append(f"ahead = grad + {momentum!r} * speed")
            direction = "ahead"
    row.lines.append(f"param = {names['self']} - {float(given['lr'])!r} * {direction}")
    return results | {"self": "param"}


#: op → rule
FUSED: Mapping[str, Rule] = {
    "_fused_adam": _adam(is_decoupled=False),
    "_fused_adamw": _adam(is_decoupled=True),
    "_fused_sgd": _sgd,
}
