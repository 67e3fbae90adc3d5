"""The results of a recorded call, shapes and dtypes, without torch: a trace holds the inputs of an op, not its outputs.

In: a :class:`memwall.ops.recorded.Recorded`. Out: the specs of its results, or an ``Unsupported`` that says what the
trace lacks. The rule is in the op's row. Where it needs a value that was not recorded (a stride, a dim), the op's
autograd node has the shape of the result (it took a gradient of that shape), else what the next op read if unambiguous,
else the least possible result is assumed and noted.
"""

from __future__ import annotations

from typing import Any

from memwall.core.errors import Unsupported
from memwall.core.graph import TensorSpec
from memwall.ops.recorded import Recorded, Specs
from memwall.ops.registry import find_row
from memwall.ops.results.pointwise import like_list
from memwall.ops.results.windows import LONE_GRADIENTS, WINDOWED, gradient_mask, inferred_window, input_of, weight_of


def results_of(call: Recorded) -> Specs:
    """The results of a call, or what it writes.

    Raises:
        Unsupported: the trace does not say; names what is missing.
    """
    if call.out:
        return call.out
    written = tuple(spec for name in call.given if name in call.written for spec in call.tensors(name))
    if written and (call.packet.endswith("_") or not call.results):
        return written
    row = find_row(call.name)
    rule = row.results if row else None
    if rule is None and call.packet.startswith("_foreach_"):
        rule = like_list
    if rule is None:
        raise Unsupported(f"the result of {call.recorded_name} cannot be derived from its arguments")
    return rule(call) + (written if call.results else ())


def attributes_of(call: Recorded) -> dict[str, Any]:
    """The values of a call that formulas read, by name; where one was not recorded, what counts least."""
    known: dict[str, Any] = {"allow_tf32": call.allow_tf32}
    for name in call.defaults:
        if name != "allow_tf32" and (value := call.value(name)) is not None:
            known[name] = value
    if "softmax" in call.packet:
        known.setdefault("dim", -1)
    if "is_causal" in call.arguments and "is_causal" not in call.values:
        known["is_causal"] = True
        call.notes.append("whether attention is causal was not recorded: counted as causal")
    row = find_row(call.name)
    if row and row.results in WINDOWED and "transpose" not in call.packet and "stride" not in call.values:
        known |= inferred_window(call)
    if call.packet.endswith("convolution_backward"):
        known["output_mask"] = gradient_mask(call, 3)
    known |= LONE_GRADIENTS.get(call.packet, {})
    return known


def unrecorded_inputs(call: Recorded) -> list[tuple[str, TensorSpec]]:
    """(argument, tensor) of what a formula reads and the call was given only in size."""
    if call.packet not in LONE_GRADIENTS:
        return []
    if call.packet.endswith("_input"):
        return [("input", input_of(call))]
    return [("weight", weight_of(call))]
