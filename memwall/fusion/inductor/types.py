"""What Inductor decided, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoweredKernel:
    """One kernel of Inductor's schedule.

    ``op_ids`` are the ops that it owns, ``recomputes`` those that it computes too though another kernel owns them.
    ``kind`` is ``triton`` (``cpp`` on a CPU), ``extern`` (a library's), ``template`` or ``none`` (nothing runs).
    ``read_bytes`` and ``write_bytes`` are Inductor's own count over all ``launches``.
    """

    name: str
    kind: str
    op_ids: tuple[int, ...]
    recomputes: tuple[int, ...]
    launches: int
    read_bytes: int
    write_bytes: int
    source: str = ""


@dataclass(frozen=True)
class Lowered:
    """A graph's forward and backward ops as Inductor would run them: each op is owned by exactly one kernel.

    ``kernels`` stand in launch order. ``why_not_fused`` counts refused pairs by reason, ``ir_nodes`` the loop-level
    nodes before fusion, ``fx_ops`` the calls of each operator after decomposition. ``fallbacks`` names operators, other
    than products, convolutions and attention, for which Inductor has no lowering and calls a library.
    """

    kernels: tuple[LoweredKernel, ...]
    why_not_fused: Mapping[str, int]
    ir_nodes: int
    fx_ops: Mapping[str, int]
    fallbacks: tuple[str, ...]
