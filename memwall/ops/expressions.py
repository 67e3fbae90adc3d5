"""What the Triton expressions of elementwise ops share, and expressions that depend on more than the op's name.

An expression is a text with the schema's arguments in braces (``tl.exp({self})``), or a function of the
:class:`Operands` that gives such a text. Floats of 32 bits or less are computed in float32. Only functions that
Triton's interpreter has too are used, so every expression can be checked without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memwall.core.errors import Unsupported


class NotGenerated(Unsupported):
    """No kernel is generated for a group; the message says why, in a few words."""


#: arguments that the schema gives a value to where the call gives none
DEFAULTS: Mapping[str, Any] = {
    "alpha": 1, "value": 1, "negative_slope": 0.01, "approximate": "none", "beta": 1, "threshold": 20, "scale": 1,
}  # fmt: skip

#: arguments that stay what they are whatever the result is
UNCAST = frozenset(("mask", "condition"))


class Operands(dict):
    """Looks argument names up among tensors (expressions by the schema's names), then numbers; ``dtype`` is that of
    the result."""

    def __init__(self, tensors: Mapping[str, str], attributes: Mapping[str, Any], dtype: str) -> None:
        super().__init__(tensors)
        self.attributes, self.dtype = attributes, dtype

    @property
    def is_float(self) -> bool:
        """Whether the result is of floats."""
        return is_float(self.dtype)

    def number(self, name: str) -> Any:
        """The value of an argument that is not a tensor; None where it is a tensor or is not given."""
        if name in self:
            return None
        return self.attributes.get(name, DEFAULTS.get(name))

    def __missing__(self, name: str) -> str:
        value = self.number(name)
        if value is None:
            raise NotGenerated(f"the value of {name} is not in the trace")
        return literal(value, self.dtype)


Expression = str | Callable[[Operands], str]


def write(expression: Expression, operands: Operands) -> str:
    """The Triton text of an expression.

    Raises:
        NotGenerated: these operands have no such expression.
    """
    text = expression if isinstance(expression, str) else expression(operands)
    return text.format_map(operands)


def literal(value: Any, dtype: str) -> str:
    """A number as an expression of the dtype that it is computed in."""
    if isinstance(value, str):
        value = float(value)
    if dtype == "bool":
        return str(bool(value))
    if not is_float(dtype):
        if not isinstance(value, bool) and float(value) != int(value):
            raise NotGenerated(f"{value} in arithmetic of {dtype}")
        return str(int(value))
    value = float(value)
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if value >= 0 else f"({value!r})"


def is_float(dtype: str) -> bool:
    """Whether elements of a dtype are floats."""
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


# -- arithmetic ------------------------------------------------------------------------------------------------------


def unless_bool(text: str, of_bool: str) -> Expression:
    """Another text for booleans, which Triton would add and multiply as numbers of one bit."""
    return lambda operands: of_bool if operands.dtype == "bool" else scaled(text)(operands)


def scaled(text: str) -> Callable[[Operands], str]:
    """Without a multiplication by ``alpha`` where that is 1."""
    return lambda operands: text.replace("{alpha} * ", "") if operands.number("alpha") == 1 else text


def neg(operands: Operands) -> str:
    """Triton subtracts from zero, which makes 0.0 of 0.0."""
    return "{self} * -1.0" if operands.is_float else "-{self}"


def sign(operands: Operands) -> str:
    """0 for NaN."""
    return f"(({{self}} > 0).to(tl.{operands.dtype}) - ({{self}} < 0).to(tl.{operands.dtype}))"


def bitwise_not(operands: Operands) -> str:
    """Triton has no ``~`` of uint8."""
    return "{self} ^ 255" if operands.dtype == "uint8" else "~{self}"


_ROOTS = {0.5: "tl.sqrt({self})", -0.5: "1.0 / tl.sqrt({self})", -1.0: "1.0 / {self}", -2.0: "1.0 / ({self} * {self})"}


def power(operands: Operands) -> str:
    """Small whole powers, roots and reciprocals; or a positive number to any power."""
    base, exponent = operands.number("self"), operands.number("exponent")
    if exponent is not None:
        exponent = float(exponent)
        if exponent in (1, 2, 3, 4):
            return " * ".join(["{self}"] * int(exponent))
        if exponent in _ROOTS:
            return _ROOTS[exponent]
    elif base is not None and float(base) > 0 and operands.is_float:
        return f"tl.exp({{exponent}} * {math.log(float(base))!r})"
    raise NotGenerated("a power that is no small whole number")


def divide(operands: Operands) -> str:
    """True division, or division that rounds down."""
    rounding = operands.attributes.get("rounding_mode")
    if rounding == "floor":
        return floor_divide(operands)
    if rounding == "trunc":
        raise NotGenerated("division that rounds to zero")
    return "{self} / {other}"


def floor_divide(operands: Operands) -> str:
    """Whole numbers by a positive number; Triton rounds to zero."""
    if operands.is_float:
        raise NotGenerated("floats divided and rounded down")
    divisor = operands.number("other")
    if divisor is None or int(divisor) <= 0:
        raise NotGenerated("whole numbers divided by a tensor or a negative number")
    down = int(divisor) - 1
    return f"tl.where({{self}} < 0, {{self}} - {down}, {{self}}) // {{other}}" if down else "{self}"


def lerp(operands: Operands) -> str:
    """As torch computes it: from the end that is nearer."""
    near, far = "{self} + {weight} * ({end} - {self})", "{end} - ({end} - {self}) * (1.0 - {weight})"
    weight = operands.number("weight")
    if weight is None:
        return f"tl.where(tl.abs({{weight}}) < 0.5, {near}, {far})"
    return far if abs(float(weight)) >= 0.5 else near


# -- functions -------------------------------------------------------------------------------------------------------

SQRT_HALF = 1 / math.sqrt(2)
INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
GELU_TANH_SCALE = math.sqrt(2 / math.pi)
GELU_TANH_CUBE = 0.044715
#: tanh(x) / x in powers of x²
TANH_SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925)
_GELU_INNER = f"{GELU_TANH_SCALE!r} * ({{self}} + {GELU_TANH_CUBE} * {{self}} * {{self}} * {{self}})"


def tanh(operands: Operands) -> str:
    """By the sigmoid, which near 0 leaves no more than the last digits: by its series there."""
    far = "2.0 * tl.sigmoid(2.0 * {self}) - 1.0"
    if operands.dtype == "float64":
        return far
    near = "{self} * " + _polynomial("({self} * {self})", TANH_SERIES)
    return f"tl.where(tl.abs({{self}}) < 0.3, {near}, {far})"


def softplus(operands: Operands) -> str:
    """``log(1 + exp(beta x)) / beta``, x where that is large."""
    grown = log1p("tl.exp({self} * {beta})", operands.dtype)
    return f"tl.where({{self}} * {{beta}} > {{threshold}}, {{self}}, {grown} / {{beta}})"


def gelu(operands: Operands) -> str:
    """By erf, or by tanh."""
    if operands.number("approximate") == "none":
        return f"0.5 * {{self}} * (1.0 + tl.erf({{self}} * {SQRT_HALF}))"
    return f"{{self}} * tl.sigmoid(2.0 * ({_GELU_INNER}))"


def gelu_backward(operands: Operands) -> str:
    """The gradient of either."""
    if operands.number("approximate") == "none":
        density = f"{{self}} * tl.exp(-0.5 * {{self}} * {{self}}) * {INV_SQRT_2PI}"
        return f"{{grad_output}} * (0.5 * (1.0 + tl.erf({{self}} * {SQRT_HALF})) + {density})"
    slope = f"{GELU_TANH_SCALE!r} * (1.0 + {3 * GELU_TANH_CUBE!r} * {{self}} * {{self}})"
    gate = f"tl.sigmoid(2.0 * ({_GELU_INNER}))"
    return f"{{grad_output}} * ({gate} + 2.0 * {{self}} * {gate} * (1.0 - {gate}) * {slope})"


SILU_BACKWARD = "{grad_output} * tl.sigmoid({self}) * (1.0 + {self} * (1.0 - tl.sigmoid({self})))"


# -- choices ---------------------------------------------------------------------------------------------------------


def extremum(function: str, of_bool: str) -> Expression:
    """``tl.maximum`` or ``tl.minimum``; NaN propagates."""

    def rule(operands: Operands) -> str:
        if operands.dtype == "bool":
            return of_bool
        if not operands.is_float:
            return f"tl.{function}({{self}}, {{other}})"
        return f"tl.{function}({{self}}, {{other}}, propagate_nan=tl.PropagateNan.ALL)"

    return rule


def clamp(operands: Operands) -> str:
    """Between the bounds that are given."""
    text = "{self}"
    for bound, sign in (("min", "<"), ("max", ">")):
        if bound in operands:  # NaN propagates, from the bound too
            text = f"tl.where(({text} {sign} {{{bound}}}) | ({{{bound}}} != {{{bound}}}), {{{bound}}}, {text})"
        elif operands.number(bound) is not None:
            text = f"tl.where({text} {sign} {{{bound}}}, {{{bound}}}, {text})"
    return text


def comparison(sign: str) -> Expression:
    """With a number in the dtype that it is written in."""

    def rule(operands: Operands) -> str:
        other = operands.number("other")
        if other is None:
            return f"{{self}} {sign} {{other}}"
        return f"{{self}} {sign} {literal(other, 'int64' if isinstance(other, int) else 'float32')}"

    return rule
