"""Files of kernel contests: ``ref_kernel(data)`` states what a kernel has to do, ``generate_input(**sizes)`` makes the
data of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwall.core.errors import UsageError
from memwall.frontend.targets.contract import Source, Workload, parameters_of, required
from memwall.frontend.targets.loading import at_home

#: names of what states the work
_REFERENCES = ("ref_kernel", "reference")


def of_reference(source: Source) -> Workload | None:
    """The workload of a file that has both; None of another file. Raises UsageError: a size is missing or unknown."""
    reference: Any = next((source.get(name) for name in _REFERENCES if callable(source.get(name))), None)
    generate = source.get("generate_input")
    if reference is None or not callable(generate):
        return None
    from torch import nn

    if source.input_specs or source.sizes:
        name = "input" if source.input_specs else next(iter(source.sizes))
        raise UsageError(f"--{name} has no effect with generate_input(): its arguments are given by --dim NAME=N")
    parameters, given = parameters_of(generate), {"seed": 0, **source.dims}
    given = {name: value for name, value in given.items() if name in parameters or name in source.dims}
    if unknown := [name for name in source.dims if name not in parameters]:
        raise UsageError(f"generate_input() of {source.shown} takes no {unknown[0]!r}; {_takes(parameters)}")
    if missing := [name for name in required(generate) if name not in given]:
        asked = " ".join(f"--dim {name}=N" for name in missing)
        raise UsageError(f"generate_input() of {source.shown} needs {', '.join(missing)}: give {asked}")

    def inputs() -> tuple[Any, ...]:
        data = generate(**given)
        return tuple(data) if len(required(reference)) > 1 else (data,)

    class ReferenceModule(nn.Module):
        def forward(self, *data: Any) -> Any:
            return reference(*data)

    return Workload(
        at_home(ReferenceModule, source.folder), at_home(inputs, source.folder), name=source.name, target=source.target
    )


def _takes(parameters: Mapping[str, Any]) -> str:
    return f"it takes {', '.join(parameters)}" if parameters else "it takes nothing"
