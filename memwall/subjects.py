"""What is profiled: a target, or a module or function with its inputs → a workload of PyTorch, or another program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memwall.core.errors import UsageError
from memwall.frontend.program import Program, not_a_module
from memwall.frontend.targets.sizes import split_sizes
from memwall.hardware.lookup import Gpu

if TYPE_CHECKING:
    from memwall.frontend.targets import Workload


def workload_of(
    target: Any, step: Mapping[str, Any], gpu: Gpu, inputs: Any = None, loss: Callable[[Any], Any] | None = None
) -> Workload:
    """The workload of a target, as :func:`subject_of`; a UsageError where it is another program."""
    found = subject_of(target, step, gpu, inputs, loss)
    if isinstance(found, Program):
        raise not_a_module(found)
    return found


def _with_optimizer(program: Program, optimizer: Any) -> Program:
    """The program with the optimizer that is asked for in place of its own. Raises ``UsageError``: it has none."""
    if optimizer == "adamw":
        return program
    if not hasattr(program, "optimizer"):
        raise UsageError(f"{program.target or program.name} is {program.kind}, which has no use for --optimizer")
    changed: Program = replace(program, optimizer=optimizer)  # type: ignore[call-arg]
    return changed


def subject_of(
    target: Any, step: Mapping[str, Any], gpu: Gpu, inputs: Any = None, loss: Callable[[Any], Any] | None = None
) -> Workload | Program:
    """The workload or the program of a target, made for a GPU; ``step`` has options of a step, the others are arguments
    and errors as of :func:`profile`."""
    from memwall.frontend.targets import Workload, named
    from memwall.frontend.targets.contract import is_of_jax
    from memwall.frontend.targets.target import is_saved

    sizes, optimizer = split_sizes(step)[0], step.get("optimizer", "adamw")
    specs, mode, dims = step.get("input_specs") or (), step.get("mode") or "inference", step.get("dims") or ()
    given = [name for name, size in {**sizes, "input_specs": specs, "dims": dims}.items() if size not in (None, ())]
    if given and not isinstance(target, (str, Path)):
        raise UsageError(
            f"{', '.join(given)} belongs to a model file or to hf:, whose inputs are made to it: give a module inputs"
            " of that size"
        )
    if isinstance(target, (str, Path)):
        if is_saved(str(target)):
            raise UsageError(
                f"{target} is a saved profile, traced already: read it with memwall.Profile.load({str(target)!r}), and"
                " put it on other GPUs with memwall.compare(profile, gpu=[...])"
            )
        workload = named(str(target), **sizes, input_specs=specs, mode=mode, gpu=gpu, dims=dims)
        if isinstance(workload, Program):
            return _with_optimizer(workload, optimizer)
        if inputs is not None:
            workload = replace(workload, inputs=inputs, samples=None)
    elif isinstance(target, Program):
        return target
    elif isinstance(target, Workload):
        workload = target
    else:
        if inputs is None:
            raise UsageError("profile() needs inputs for a module: a tuple or a dict of tensors")
        if is_of_jax(target, inputs):
            from memwall.frontend.jax.targets import program_of

            name = getattr(target, "__name__", type(target).__name__)
            return program_of(target, inputs, name=name, target="", loss=loss, optimizer=optimizer)
        workload = Workload(target, inputs, name=type(target).__name__, optimizer=optimizer)
    changes: dict[str, Any] = {}
    if loss is not None:
        changes["loss"] = loss
    if optimizer != "adamw" or workload.optimizer is None:
        changes["optimizer"] = optimizer
    return replace(workload, **changes) if changes else workload
