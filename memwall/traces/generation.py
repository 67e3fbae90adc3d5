"""Products in kernels of an earlier GPU's instructions: a reason why they may be slower than the model says.

The model knows products as a board's own library kernels run them. Kernels of an earlier generation run on a later
board (a library too old for it, operands that the later kernels do not take), at the earlier instructions' rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from memwall.hardware.gpu import Gpu
from memwall.traces.records import TracedKernel

#: generation that a name of a product on tensor cores states -> major compute capability
_NAMED = {"volta": 7, "turing": 7, "ampere": 8}
_STATED = re.compile(
    r"\b(?:cutlass_(?P<cutlass>\d\d)_\w*tensorop\w*?gemm|sm(?P<sm>\d\d)_xmma_gemm"
    r"|(?P<name>volta|turing|ampere)_\w*?[hsi](?:884|1688|16816|8816|16832)gemm)"
)


def older_kernels_note(kernels: Iterable[TracedKernel], gpu: Gpu) -> str:
    """How long products ran in kernels of an earlier generation than the board's; empty where none did."""
    capability = (gpu.compute_capability or "").partition(".")[0]
    if not capability.isdecimal():
        return ""
    older = [kernel for kernel in kernels if 0 < _generation(kernel.name) < int(capability)]
    if not older:
        return ""
    count = "1 kernel" if len(older) == 1 else f"{len(older):,} kernels"
    taken = f"{sum(kernel.dur_us for kernel in older):,.0f} us of products ran in {count}"
    return f"{taken} of an earlier GPU generation ({_name(older)}): the model takes {gpu.name}'s own"


def _name(kernels: list[TracedKernel]) -> str:
    """The kernel that took the longest, as far as its name states its generation."""
    match = _STATED.search(max(kernels, key=lambda kernel: kernel.dur_us).name)
    return match[0] if match else ""


def _generation(name: str) -> int:
    """The major compute capability that a kernel's name states; 0 where it states none."""
    match = _STATED.search(name)
    if match is None:
        return 0
    digits = match["cutlass"] or match["sm"]
    return int(digits) // 10 if digits else _NAMED[match["name"]]
