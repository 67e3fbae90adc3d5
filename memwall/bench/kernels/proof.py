"""Whether a kernel computes what it should, before it is timed: a wrong one gets no time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from memwall.bench.kernels.devices import Device
from memwall.bench.kernels.evaluate import NotRun
from memwall.bench.kernels.executors import Built
from memwall.bench.kernels.oracle import Oracle
from memwall.codegen import Kernel

#: PyTorch's own kernels, compiled ones too, round and sum as they like: one that is off by up to so many tolerances is
#: timed, and it is said
FOREIGN_TOLERANCES = 8.0


@dataclass(frozen=True)
class Verdict:
    """``error`` is the worst deviation from float64 in units of the tolerance, None where it was not checked;
    ``message`` says what is wrong, or why it was not checked."""

    passed: bool
    error: float | None = None
    message: str = ""


def prove(oracle: Oracle, built: Built, seed: int, device: Device, *, with_eager: bool) -> Verdict:
    """Run a kernel on poisoned memory and hold it against float64, and with ``with_eager`` against eager too; without,
    the kernel is eager's own.

    Where there is nothing to compare with, or no room for it, the kernel passes unchecked, which the message says.
    """
    try:
        return _proved(oracle, built, seed, device, with_eager)
    except NotRun as error:
        return Verdict(True, None, f"not checked: {error}")
    except (torch.OutOfMemoryError, MemoryError):
        verdict = Verdict(True, None, "not checked: float64 takes more memory than there is")
    device.clear()
    return verdict


def _proved(oracle: Oracle, built: Built, seed: int, device: Device, with_eager: bool) -> Verdict:
    kernel = Kernel("", built.source, built.inputs, built.outputs, oracle.group.op_ids, (), built.schedule)

    specs = [oracle.graph.values[i].spec for i in built.outputs]
    #: what a CPU's kernel gives in another precision than a GPU's
    other: dict[str, None] = {}

    def run(*tensors: torch.Tensor, seed: int, empty: Any) -> Any:
        if built.is_ours:
            return built.run(*tensors, seed=seed, empty=empty)
        made = built.run(*tensors)
        if device.kind == "cpu":
            for tensor, spec in zip(made, specs, strict=True):
                own = str(tensor.dtype).removeprefix("torch.")
                if tensor.is_floating_point() and own != spec.dtype:
                    other[f"{own} where a GPU gives {spec.dtype}"] = None
        return made

    found = oracle.verify(
        kernel, run, seed=seed, device=device.torch_device, repeatable=built.is_ours, with_eager=with_eager
    )
    message = "" if found.passed else f"{found.where}: {found.message}"
    if other:
        return Verdict(True, None, f"not checked: gives {', '.join(other)}")
    if not found.passed and not built.is_ours and found.error <= FOREIGN_TOLERANCES:
        return Verdict(True, found.error, f"PyTorch's kernel rounds more than expected: {message}")
    return Verdict(found.passed, found.error, message)
