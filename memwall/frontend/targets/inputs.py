"""``--input 'f32[8,3,224,224]'``: input tensors by dtype and shape, positional or by name; and inputs on the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.core.graph import ITEMSIZE

if TYPE_CHECKING:
    from torch import Tensor

#: Short dtype names next to torch's own.
SHORT_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16",
    "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8", "u8": "uint8", "bool": "bool",
    "fp64": "float64", "fp32": "float32", "fp16": "float16",
    "fp8": "float8_e4m3fn", "f8": "float8_e4m3fn", "fp8e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu",
    "fp4x2": "float4_e2m1fn_x2",
    "double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32", "short": "int16",
}  # fmt: skip

GRAMMAR = (
    "want [NAME=]DTYPE[D0,D1,...][@host] as in f32[8,3,224,224], ids=i64[8,512] or lengths=i64[8]@host; "
    "DTYPE is one of f64 f32 f16 bf16 fp8 i64 i32 i8 u8 bool or a torch name"
)

_PATTERN = re.compile(
    r"(?:(?P<name>[^\W\d]\w*)\s*=\s*)?(?P<dtype>[A-Za-z][\w.]*)\s*\[(?P<dims>[\d\s,_]*)\](?P<host>@host)?"
)
_MAX_BYTES = 1 << 60
_ON_HOST = "memwall_on_host"
#: Integer inputs are drawn below this: small enough to index any table that a model is likely to have.
_INTEGERS_BELOW = 8


@dataclass(frozen=True)
class InputSpec:
    """One input tensor to make: torch dtype name, shape, the keyword that it is passed as, if any, and whether it stays
    on the host."""

    dtype: str
    shape: tuple[int, ...]
    name: str | None = None
    host: bool = False


def parse_input(text: str) -> InputSpec:
    """Read one input string; a UsageError where it is not of the grammar, or describes no tensor that could exist."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"cannot read the input {text[:80]!r}: {GRAMMAR}")
    short = match["dtype"].removeprefix("torch.")
    dtype = SHORT_DTYPES.get(short, short)
    if dtype not in ITEMSIZE:
        raise UsageError(f"cannot read the input {text[:80]!r}: there is no dtype {short!r}; {GRAMMAR}")
    dims = match["dims"].strip()
    try:
        shape = tuple(int(size) for size in dims.removesuffix(",").split(",")) if dims else ()
    except ValueError:
        raise UsageError(f"cannot read the input {text[:80]!r}: a size is not a whole number; {GRAMMAR}") from None
    count = 1
    for size in shape:
        count *= max(size, 1)
    if count * ITEMSIZE[dtype] > _MAX_BYTES:
        raise UsageError(f"the input {text[:80]!r} has more elements than any machine addresses")
    return InputSpec(dtype, shape, match["name"], match["host"] is not None)


def on_host(tensor: Tensor) -> Tensor:
    """An input that a CUDA run leaves on the host, such as the lengths of ``pack_padded_sequence``: it takes no memory
    of the GPU, and what is computed from it on the host launches no kernel.

    Args:
        tensor: the input as ``inputs()`` makes it, of any shape and dtype.
    """
    made = tensor.cpu()
    vars(made)[_ON_HOST] = True
    return made


def stays_on_host(tensor: Tensor) -> bool:
    """Whether :func:`on_host` made a tensor."""
    return _ON_HOST in vars(tensor)


def input_builder(texts: Sequence[str]) -> Callable[[], tuple[Any, ...] | dict[str, Any]]:
    """A function that makes the inputs described, on the device that is current when it is called; a UsageError where a
    string cannot be read, a name comes twice, or only some are named."""
    specs = [parse_input(text) for text in texts]
    names = [spec.name for spec in specs if spec.name is not None]
    if names and len(names) != len(specs):
        raise UsageError("name all inputs or none: --input takes either DTYPE[...] or NAME=DTYPE[...] throughout")
    if len(set(names)) != len(names):
        raise UsageError(f"the input {next(n for n in names if names.count(n) > 1)!r} is given twice")
    if names:
        return lambda: {str(spec.name): make_tensor(spec) for spec in specs}
    return lambda: tuple(make_tensor(spec) for spec in specs)


def make_tensor(spec: InputSpec) -> Tensor:
    """A tensor of a spec: normal numbers, small integers or coin flips; values never matter to a trace."""
    import torch

    dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        drawn = dtype if dtype.itemsize > 1 and dtype != torch.complex32 else torch.float32
        made = torch.randn(spec.shape, dtype=drawn).to(dtype)
    else:
        high = 2 if dtype == torch.bool else _INTEGERS_BELOW
        made = torch.randint(0, high, spec.shape, dtype=torch.int64).to(dtype)
    return on_host(made) if spec.host else made
