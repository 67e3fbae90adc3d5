"""Functions of transformers' models that a library's kernel does where the library is installed: the delta rule, the
scan of Mamba-2, and causal convolutions. Whether it is, ``--assume kernels=`` says; a trace runs their PyTorch else.

transformers decorates each such function with the names of the kernel and of its package
(``use_kernel_func_from_hub_with_fallback`` of ``integrations/hub_kernels.py``, since 5.20), by which they are found.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import Any
from unittest.mock import patch

import torch

from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.process.loaded import modules_below

#: what a kernel takes and what it makes: (its arguments by the kernel's names, results, what transformers is handed)
Recorded = tuple[Mapping[str, Any], tuple[torch.Tensor, ...], Any]
_HALF = (torch.float16, torch.bfloat16)
_FALLBACK = (
    "linear attention and scans run as transformers' own PyTorch, as without flash-linear-attention, mamba-ssm and"
    " causal-conv1d: --assume kernels=installed has their kernels"
)
_NOT_MODELED = (
    "kernels of linear attention and scans are modeled forward and in 16 bits alone: transformers' own PyTorch is"
    " traced"
)


def _conv(given: Mapping[str, Any]) -> Recorded:
    x = given["hidden_states"]
    made = torch.empty_like(x)
    return {"x": x, "weight": given["weight"], "bias": given.get("bias")}, (made,), made


def _conv_update(given: Mapping[str, Any]) -> Recorded:
    taken, (made,), _ = _conv(given)
    state = given["conv_state"]
    return {**taken, "conv_state": state}, (made, state), made


def _delta(given: Mapping[str, Any]) -> Recorded:
    k, v, before = given["key"], given["value"], given.get("initial_state")
    made = torch.empty(v.shape, dtype=given["query"].dtype, device=v.device)
    state = None
    if given.get("output_final_state"):
        state = torch.empty((v.shape[0], v.shape[2], k.shape[3], v.shape[3]), dtype=torch.float32, device=v.device)
    taken = {"q": given["query"], "k": k, "v": v, "g": given["g"], "beta": given["beta"], "initial_state": before}
    return taken, (made, *([] if state is None else [state])), (made, state)


def _scan(given: Mapping[str, Any]) -> Recorded:
    x, shared = given["hidden_states"], given["B"]
    made = torch.empty_like(x)
    taken = {"x": x, "dt": given["dt"], "B": shared, "C": given["C"], "initial_states": given.get("initial_states")}
    if not given.get("return_final_states"):
        return taken, (made,), made
    state = torch.empty((x.shape[0], *x.shape[2:], shared.shape[3]), dtype=torch.float32, device=x.device)
    return taken, (made, state), (made, state)


def _scan_update(given: Mapping[str, Any]) -> Recorded:
    state, x = given["state"], given["hidden_states"]
    made = torch.empty_like(x)
    return {"x": x, "dt": given["dt"], "B": given["B"], "C": given["C"], "state": state}, (made, state), made


#: kernel → its package, and what it takes and makes
KERNELS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Recorded]]] = {
    "causal_conv1d_fn": ("causal_conv1d", _conv),
    "causal_conv1d_update": ("causal_conv1d", _conv_update),
    "chunk_gated_delta_rule": ("fla", _delta),
    "chunk_kda": ("fla", _delta),
    "fused_recurrent_gated_delta_rule": ("fla", _delta),
    "fused_recurrent_kda": ("fla", _delta),
    "mamba_chunk_scan_combined": ("mamba_ssm", _scan),
    "selective_state_update": ("mamba_ssm", _scan_update),
}


@contextlib.contextmanager
def state_kernels(recorder: Recorder, note: Callable[[str], None]) -> Iterator[None]:
    """While open, these functions are their kernels where they are assumed to be installed; ``note`` is called with
    what runs in their stead."""
    with contextlib.ExitStack() as stack:
        if recorder.device == "meta":
            for module in modules_below("transformers.models"):
                for key, function in list(vars(module).items()):
                    if (name := _kernel_of(function)) in KERNELS:
                        stack.enter_context(patch.object(module, key, _in_stead(recorder, note, name, function)))
        yield


def _kernel_of(function: Any) -> str:
    """The name of the kernel that a function of transformers stands for; empty for others."""
    if not isinstance(function, FunctionType) or "func_name" not in function.__code__.co_freevars:
        return ""
    name = inspect.getclosurevars(function).nonlocals.get("func_name")
    return name if isinstance(name, str) else ""


def _in_stead(recorder: Recorder, note: Callable[[str], None], name: str, function: Any) -> Callable[..., Any]:
    signature, (package, made_by) = inspect.signature(function), KERNELS[name]

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs).arguments
        given = {**bound, **bound.pop("kwargs", {})}
        tokens = given["hidden_states" if "hidden_states" in given else "query"]
        of_mamba_1 = name == "selective_state_update" and given["state"].dim() < 4
        assumptions = recorder.known.assumptions if recorder.known is not None else None
        installed = assumptions is not None and assumptions.unasked("kernels")[0]
        if of_mamba_1 or not installed:
            note(_FALLBACK)
            return function(*args, **kwargs)
        trained = any(isinstance(each, torch.Tensor) and each.requires_grad for each in given.values())
        if tokens.dtype not in _HALF or (trained and torch.is_grad_enabled()):
            note(_NOT_MODELED)
            return function(*args, **kwargs)
        assert assumptions is not None
        assumptions.value("kernels")
        with recorder.unrecorded():
            taken, results, handed = made_by(given)
        inputs = {key: tensor for key, tensor in taken.items() if tensor is not None}
        if not recorder.paused:
            attributes = [(key, given[key]) for key in ("chunk_size",) if key in given]
            recorder.emit(f"{package}.{name}", list(inputs), list(inputs.values()), list(results), attributes)
        if recorder.known is not None:
            recorder.known.forget(results)
        return handed

    return run
