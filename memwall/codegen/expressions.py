"""The arithmetic of elementwise ops: name → Triton expression of its arguments, for the compute dtype of its result.

Floats of 32 bits or less are computed in float32. Names in braces are the schema's arguments. Only functions that
Triton's interpreter has too are used, so every rule can be checked without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.codegen.kernel import NotGenerated

#: how the tensors among the arguments are cast before: to the result's dtype, to their common one, or not at all
RESULT, COMMON, NONE = "result", "common", "none"

SQRT_HALF = 1 / math.sqrt(2)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
GELU_TANH_SCALE = math.sqrt(2 / math.pi)
GELU_TANH_CUBE = 0.044715
#: tanh(x) / x in powers of x²
TANH_SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925)

#: packet -> expression
EXPRESSIONS: Mapping[str, str] = {
    "abs": "tl.abs({self})",
    "add": "{self} + {alpha} * {other}",
    "addcdiv": "{self} + {value} * ({tensor1} / {tensor2})",
    "addcmul": "{self} + {value} * ({tensor1} * {tensor2})",
    "bitwise_and": "{self} & {other}",
    "bitwise_or": "{self} | {other}",
    "bitwise_xor": "{self} ^ {other}",
    "ceil": "tl.ceil({self})",
    "clone": "{self}",
    "contiguous": "{self}",
    "copy": "{src}",
    "cos": "tl.cos({self})",
    "_to_copy": "{self}",
    "erf": "tl.erf({self})",
    "exp": "tl.exp({self})",
    "exp2": "tl.exp2({self})",
    "floor": "tl.floor({self})",
    "gelu": f"0.5 * {{self}} * (1.0 + tl.erf({{self}} * {SQRT_HALF}))",
    "gelu_backward": f"{{grad_output}} * (0.5 * (1.0 + tl.erf({{self}} * {SQRT_HALF}))"
    f" + {{self}} * tl.exp(-0.5 * {{self}} * {{self}}) * {INV_SQRT_2PI})",
    "leaky_relu": "tl.where({self} > 0, {self}, {self} * {negative_slope})",
    "lerp": "{self} + {weight} * ({end} - {self})",
    "log": "tl.log({self})",
    "log2": "tl.log2({self})",
    "masked_fill": "tl.where({mask}, {value}, {self})",
    "mul": "{self} * {other}",
    "native_dropout_backward": "{grad_output} * {mask}.to(tl.float32) * {scale}",
    "reciprocal": "1.0 / {self}",
    "relu": "tl.where({self} < 0, 0, {self})",
    "rsqrt": "1.0 / tl.sqrt({self})",
    "rsub": "{other} - {alpha} * {self}",
    "sigmoid": "tl.sigmoid({self})",
    "sigmoid_backward": "{grad_output} * (1.0 - {output}) * {output}",
    "silu": "{self} * tl.sigmoid({self})",
    "silu_backward": "{grad_output} * tl.sigmoid({self}) * (1.0 + {self} * (1.0 - tl.sigmoid({self})))",
    "sin": "tl.sin({self})",
    "sqrt": "tl.sqrt({self})",
    "square": "{self} * {self}",
    "sub": "{self} - {alpha} * {other}",
    "tanh_backward": "{grad_output} * (1.0 - {output} * {output})",
    "threshold_backward": "tl.where({self} <= {threshold}, 0.0, {grad_output})",
    "where": "tl.where({condition}, {self}, {other})",
    "mse_loss_backward": "2.0 * ({self} - {target}) * {grad_output} / {count}",
}

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}

#: arguments that the schema gives a value to where the call gives none
DEFAULTS: Mapping[str, Any] = {
    "alpha": 1, "value": 1, "negative_slope": 0.01, "approximate": "none", "beta": 1, "threshold": 20, "scale": 1,
}  # fmt: skip


def expression(packet: str, arguments: Mapping[str, str], attributes: Mapping[str, Any], dtype: str) -> str:
    """The expression of an op.

    Args:
        packet: the op's name without library, overload and trailing underscore.
        arguments: its tensors, as expressions by the schema's names.
        attributes: its other arguments.
        dtype: of its result.

    Raises:
        NotGenerated: no rule knows the op, or not with these arguments.
    """
    special = _SPECIAL.get(packet)
    names = _Names(arguments, attributes, dtype)
    text = special(names) if special else EXPRESSIONS.get(packet)
    if text is None:
        raise NotGenerated(f"no expression for {packet}")
    if packet in ("add", "sub", "rsub") and names.number("alpha") == 1:
        text = text.replace("{alpha} * ", "")
    return text.format_map(names)


def casts(packet: str) -> str:
    """How the op's tensors are cast before its expression: :data:`RESULT`, :data:`COMMON` or :data:`NONE`."""
    if packet in _COMPARISONS:
        return COMMON
    return NONE if packet in _LOGICAL or packet in ("logical_not", "isnan") else RESULT


#: arguments that stay what they are whatever the result is
UNCAST = frozenset(("mask", "condition"))


class _Names(dict):
    """Looks argument names up among tensors, then numbers."""

    def __init__(self, arguments: Mapping[str, str], attributes: Mapping[str, Any], dtype: str) -> None:
        super().__init__(arguments)
        self.attributes, self.dtype = attributes, dtype

    def number(self, name: str) -> Any:
        """The value of an argument that is no tensor; None where it is one or is not given."""
        if name in self:
            return None
        return self.attributes.get(name, DEFAULTS.get(name))

    def __missing__(self, name: str) -> str:
        value = self.number(name)
        if value is None:
            raise NotGenerated(f"the value of {name} is not in the trace")
        return literal(value, self.dtype)


def literal(value: Any, dtype: str) -> str:
    """A number as an expression of the dtype that it is computed in."""
    if isinstance(value, str):
        value = float(value)
    if dtype == "bool":
        return str(bool(value))
    if not _is_float(dtype):
        if not isinstance(value, bool) and float(value) != int(value):
            raise NotGenerated(f"{value} in arithmetic of {dtype}")
        return str(int(value))
    value = float(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if value >= 0 else f"({value!r})"


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def log1p(text: str, dtype: str = "float32") -> str:
    """``log(1 + text)`` for text ≥ 0; float32 loses a small one in the sum, so there its series is taken."""
    if dtype == "float64":
        return f"tl.log(1.0 + {text})"
    series = _polynomial(text, [(-1) ** n / (n + 1) for n in range(6)])
    return f"tl.where({text} < 0.05, {text} * {series}, tl.log(1.0 + {text}))"


def _polynomial(text: str, coefficients: Sequence[float]) -> str:
    """``c0 + text * (c1 + text * (...))``, in parentheses."""
    first, *rest = coefficients
    return f"({first!r} + {text} * {_polynomial(text, rest)})" if rest else repr(first)


def _tanh(names: _Names) -> str:
    """By the sigmoid, which near 0 leaves no more than the last digits: by its series there."""
    far = "2.0 * tl.sigmoid(2.0 * {self}) - 1.0"
    if names.dtype == "float64":
        return far
    near = "{self} * " + _polynomial("({self} * {self})", TANH_SERIES)
    return f"tl.where(tl.abs({{self}}) < 0.3, {near}, {far})"


def _softplus(names: _Names) -> str:
    grown = log1p("tl.exp({self} * {beta})", names.dtype)
    return f"tl.where({{self}} * {{beta}} > {{threshold}}, {{self}}, {grown} / {{beta}})"


def _neg(names: _Names) -> str:
    """Triton subtracts from zero, which makes 0.0 of 0.0."""
    return "{self} * -1.0" if _is_float(names.dtype) else "-{self}"


def _sign(names: _Names) -> str:
    """0 of what is no number."""
    return f"(({{self}} > 0).to(tl.{names.dtype}) - ({{self}} < 0).to(tl.{names.dtype}))"


def _bitwise_not(names: _Names) -> str:
    return "{self} ^ 255" if names.dtype == "uint8" else "~{self}"


def _add(names: _Names) -> str:
    """Of booleans: either. Triton would add them as numbers of one bit."""
    return "{self} | {other}" if names.dtype == "bool" else EXPRESSIONS["add"]


def _mul(names: _Names) -> str:
    return "{self} & {other}" if names.dtype == "bool" else EXPRESSIONS["mul"]


def _pow(names: _Names) -> str:
    base, power = names.number("self"), names.number("exponent")
    if power is not None:
        power = float(power)
        if power in (1, 2, 3, 4):
            return " * ".join(["{self}"] * int(power))
        if power in _ROOTS:
            return _ROOTS[power]
    elif base is not None and float(base) > 0 and _is_float(names.dtype):
        return f"tl.exp({{exponent}} * {math.log(float(base))!r})"
    raise NotGenerated("a power that is no small whole number")


_ROOTS = {0.5: "tl.sqrt({self})", -0.5: "1.0 / tl.sqrt({self})", -1.0: "1.0 / {self}", -2.0: "1.0 / ({self} * {self})"}


def _div(names: _Names) -> str:
    rounding = names.attributes.get("rounding_mode")
    if rounding == "floor":
        return _floor_divide(names)
    if rounding == "trunc":
        raise NotGenerated("division that rounds to zero")
    return "{self} / {other}"


def _floor_divide(names: _Names) -> str:
    if _is_float(names.dtype):
        raise NotGenerated("floats divided and rounded down")
    divisor = names.number("other")
    if divisor is None or int(divisor) <= 0:
        raise NotGenerated("whole numbers divided by a tensor or a negative number")
    down = int(divisor) - 1
    return f"tl.where({{self}} < 0, {{self}} - {down}, {{self}}) // {{other}}" if down else "{self}"


def _gelu(names: _Names) -> str:
    if names.number("approximate") == "none":
        return EXPRESSIONS["gelu"]
    inner = f"{GELU_TANH_SCALE!r} * ({{self}} + {GELU_TANH_CUBE} * {{self}} * {{self}} * {{self}})"
    return f"{{self}} * tl.sigmoid(2.0 * ({inner}))"


def _gelu_backward(names: _Names) -> str:
    if names.number("approximate") == "none":
        return EXPRESSIONS["gelu_backward"]
    inner = f"{GELU_TANH_SCALE!r} * ({{self}} + {GELU_TANH_CUBE} * {{self}} * {{self}} * {{self}})"
    slope = f"{GELU_TANH_SCALE!r} * (1.0 + {3 * GELU_TANH_CUBE!r} * {{self}} * {{self}})"
    gate = f"tl.sigmoid(2.0 * ({inner}))"
    return f"{{grad_output}} * ({gate} + 2.0 * {{self}} * {gate} * (1.0 - {gate}) * {slope})"


def _lerp(names: _Names) -> str:
    """As torch computes it: from the end that is nearer."""
    weight = names.number("weight")
    if weight is not None and abs(float(weight)) >= 0.5:
        return "{end} - ({end} - {self}) * (1.0 - {weight})"
    if weight is None:
        return (
            "tl.where(tl.abs({weight}) < 0.5, {self} + {weight} * ({end} - {self}),"
            " {end} - ({end} - {self}) * (1.0 - {weight}))"
        )
    return EXPRESSIONS["lerp"]


def _nan_aware(function: str) -> Callable[[_Names], str]:
    def rule(names: _Names) -> str:
        if names.dtype == "bool":
            return "{self} | {other}" if function == "maximum" else "{self} & {other}"
        if not _is_float(names.dtype):
            return f"tl.{function}({{self}}, {{other}})"
        return f"tl.{function}({{self}}, {{other}}, propagate_nan=tl.PropagateNan.ALL)"

    return rule


def _clamp(names: _Names) -> str:
    text = "{self}"
    for bound, sign in (("min", "<"), ("max", ">")):
        if bound in names:  # what is no number comes through, from the bound too
            text = f"tl.where(({text} {sign} {{{bound}}}) | ({{{bound}}} != {{{bound}}}), {{{bound}}}, {text})"
        elif names.number(bound) is not None:
            text = f"tl.where({text} {sign} {{{bound}}}, {{{bound}}}, {text})"
    return text


def _comparison(sign: str) -> Callable[[_Names], str]:
    def rule(names: _Names) -> str:
        other = names.number("other")
        if other is None:
            return f"{{self}} {sign} {{other}}"
        number = literal(other, "int64" if isinstance(other, int) else "float32")
        return f"{{self}} {sign} {number}"

    return rule


def _truth(name: str) -> str:
    return f"({{{name}}} != 0)"


_SPECIAL: Mapping[str, Callable[[_Names], str]] = {
    "add": _add,
    "mul": _mul,
    "neg": _neg,
    "sign": _sign,
    "bitwise_not": _bitwise_not,
    "tanh": _tanh,
    "softplus": _softplus,
    "pow": _pow,
    "div": _div,
    "true_divide": _div,
    "floor_divide": _floor_divide,
    "gelu": _gelu,
    "gelu_backward": _gelu_backward,
    "lerp": _lerp,
    "maximum": _nan_aware("maximum"),
    "minimum": _nan_aware("minimum"),
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "logical_not": lambda names: "{self} == 0",
    "isnan": lambda names: "{self} != {self}",
    **{name: _comparison(sign) for name, sign in _COMPARISONS.items()},
    **{
        name: (lambda names, sign=sign: f"{_truth('self')} {sign} {_truth('other')}")  # type: ignore[misc]
        for name, sign in _LOGICAL.items()
    },
}

#: packets that have an expression
KNOWN = frozenset((*EXPRESSIONS, *_SPECIAL))
