"""What the experts of a mixture must do on one GPU: formats of weights, and the cost of the rows that they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from memwall.core.errors import unknown
from memwall.core.graph import Pipe
from memwall.ops.base import Cost
from memwall.ops.quantised import MXFP8, Scheme, StoredMatrix
from memwall.ops.quantised import SCHEMES as QUANTISED
from memwall.ops.routing import Loads
from memwall.ops.serving import ExpertsLaunch

#: launches of a layer: sort the rows, the first product, the activation, the second product, the sum
KERNELS = 5
#: bytes of a number that enters or leaves the layer
_ROW_ITEMSIZE = 2


_MXFP4, _INT4 = QUANTISED["mxfp4"], QUANTISED["int4_wo"]
#: name -> format of weights and activations; the name of a dtype, or as aiconfigurator's ``moe_dtype``
SCHEMES: Mapping[str, Scheme] = {
    **{name: Scheme(weights=StoredMatrix(bits=16), pipe=name) for name in ("bfloat16", "float16")},
    **{name: QUANTISED[name] for name in ("fp8", "fp8_block", "int8_wo", "sq", "int4_wo", "nvfp4", "w4a16_nvfp4")},
    "w4afp8": replace(_INT4, activations=QUANTISED["fp8"].activations, pipe="fp8"),
    "w4a16_mxfp4": _MXFP4,
    "w4a8_mxfp4_mxfp8": replace(_MXFP4, activations=MXFP8, pipe="fp8"),
}


@lru_cache(maxsize=1 << 16)
def cost_of_experts(
    tokens: int, hidden: int, inter: int, loads: Loads, scheme: str, engine: str, *, gates: int = 2, moved_rows: int = 0
) -> Cost:
    """The experts of one GPU with their ``loads``; ``inter`` are its columns of each, ``moved_rows`` the rows around
    the products if they are more. Raises UsageError: the format is not known."""
    if scheme not in SCHEMES:
        raise unknown("format of experts", scheme, SCHEMES)
    stored, acts = SCHEMES[scheme].weights, SCHEMES[scheme].activations
    work = ExpertsLaunch(
        pipe=Pipe("tensor", SCHEMES[scheme].pipe),
        engine=engine,
        scheme=scheme,
        tokens=tokens,
        hidden=hidden,
        inter=inter,
        gates=gates,
        loads=loads,
        itemsize=acts.itemsize,
        count=KERNELS,
        expert_bytes=stored.nbytes(gates * inter, hidden) + stored.nbytes(hidden, inter),
        moved_rows=max(moved_rows, sum(rows * experts for rows, experts in loads)),
    )
    moved = _ROW_ITEMSIZE * min(tokens, work.rows) * hidden
    work = replace(work, read_bytes=work.active * work.expert_bytes + moved, write_bytes=moved)
    return Cost(work.pipe_flops, work.read_bytes, work.write_bytes, launches=(work,))
