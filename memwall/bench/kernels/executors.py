"""A group as a callable, by each executor: eager torch, a generated Triton kernel, torch.compile.

Each of a generated kernel's few settings is tried on the device, and the best one is kept in a file by the source's
hash, the GPU and the driver: another GPU, driver or source is tuned again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from memwall.bench.cuda import put_off
from memwall.bench.device import Device, Ready
from memwall.bench.kernels.eager_forms import as_eager
from memwall.core.cache import cache_folder, keep, kept
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.sources import load_source, source_hash
from memwall.fusion import Group
from memwall.fusion.reference import Reference, reference
from memwall.fusion.rules import is_library_call
from memwall.hardware.lookup import Gpu
from memwall.ops.evaluate import Operators
from memwall.ops.expressions import NotGenerated
from memwall.wings import part


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel that can be run: takes the tensors of ``inputs`` (value ids) and returns the tensors of ``outputs``.
    ``configs`` are settings to choose from by :attr:`configure`; ``is_ours``: a generated kernel, which takes ``seed``
    and ``empty``, and gives the same bits on every run."""

    run: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    schedule: str = ""
    source: str = ""
    configs: tuple[Mapping[str, int], ...] = ()
    configure: Callable[[Mapping[str, int]], None] = field(default=lambda config: None)
    is_ours: bool = False


@dataclass
class KernelBuilder:
    """Builds the groups of one graph for one executor."""

    graph: Graph
    gpu: Gpu
    device: str
    folder: Path

    def __post_init__(self) -> None:
        self.flow = Flow.of(self.graph)
        self.operators = Operators()
        #: text → its function, made once
        self._functions: dict[str, Callable[..., Any]] = {}
        #: text and the tensors that it takes → compiled
        self._compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def eager(self, group: Group) -> BuiltKernel:
        """The ops of a group as calls of torch's operators, one after another, which choose libraries as eager PyTorch
        does. Raises ``Unsupported``: an op is no operator of torch's."""
        text = reference(self.graph, self.flow, group, self.operators)
        text = replace(text, source=as_eager(text.source))
        if text.source not in self._functions:
            self._functions[text.source] = self._executed(text)
        return BuiltKernel(self._functions[text.source], text.inputs, text.outputs, source=text.source)

    def inductor(self, group: Group) -> BuiltKernel:
        """The same function compiled by torch.compile."""
        text = reference(self.graph, self.flow, group, self.operators)
        key = text.source, tuple(self.graph.values[i].spec for i in text.inputs)
        if key not in self._compiled:
            # code of its own for each group: Dynamo leaves code that it has compiled for several shapes to eager
            self._compiled[key] = torch.compile(self._executed(text), dynamic=False, fullgraph=True)
        return BuiltKernel(self._compiled[key], text.inputs, text.outputs, source=text.source)

    def generated(self, group: Group) -> BuiltKernel:
        """The generated kernel. Raises ``NotGenerated``: no kernel can be generated for the group, or its library keeps
        it."""

        if is_library_call(self.graph, group.op_ids):
            raise NotGenerated("the library keeps it: a matmul, convolution or attention alone")
        kernel = part("codegen.generate")(self.graph, self.flow, group, self.gpu)
        module = load_source(kernel.source, self.folder)

        def configure(config: Mapping[str, int]) -> None:
            for name, value in config.items():
                setattr(module, name, value)

        return BuiltKernel(
            put_off(module.run),
            kernel.inputs,
            kernel.outputs,
            kernel.schedule,
            kernel.source,
            kernel.configs or ((kernel.config,) if kernel.config else ()),
            configure,
            True,
        )

    def _executed(self, text: Reference) -> Callable[..., Any]:
        """The ``run`` of a reference; a number on the host, which no graph holds, is 1."""
        namespace: dict[str, Any] = {}
        # a file that is there: code without one Dynamo takes for a library's, and wraps in one function for all
        place = self.folder / f"reference_{source_hash(text.source)}.py"
        place.write_text(text.source, encoding="utf-8")
        exec(compile(text.source, str(place), "exec"), namespace)
        run = namespace["run"]
        parameters = inspect.signature(run).parameters.values()
        if any(p.kind is p.KEYWORD_ONLY for p in parameters):
            run = partial(run, device=self.device)
        hosts = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters) - len(text.inputs)
        if not hosts:
            return run
        numbers = [torch.ones(()) for _ in range(hosts)]
        return lambda *tensors: run(*tensors, *numbers)


#: executor -> how it builds a group
BUILDERS: Mapping[str, Callable[[KernelBuilder, Group], BuiltKernel]] = {
    "eager": KernelBuilder.eager,
    "generated": KernelBuilder.generated,
    "inductor": KernelBuilder.inductor,
}


# -- settings ----------------------------------------------------------------------------------------------------------

SCHEMA = "memwall.autotune/1"
#: timings of each setting, and the seconds that they may take
SAMPLES, BUDGET_S = 7, 2.0


@dataclass(frozen=True)
class Choices:
    """The settings chosen on one device, as the file has them."""

    path: Path
    device: str

    @classmethod
    def here(cls, environment: Mapping[str, Any]) -> Choices:
        """The choices made on a device: its name, driver and the versions that compile."""
        names = [environment.get(key) for key in ("device", "driver", "triton")]
        return cls(cache_folder() / "autotune.kept", ", ".join(str(name) for name in names))

    def get(self, source: str) -> Mapping[str, int] | None:
        """The setting chosen for a source; None if none was chosen yet."""
        return self._read().get(f"{source_hash(source)} {self.device}")

    def put(self, source: str, config: Mapping[str, int]) -> None:
        """Keep a choice; a folder that refuses it is no failure."""
        choices = {**self._read(), f"{source_hash(source)} {self.device}": dict(config)}
        record = {"schema": SCHEMA, "choices": dict(sorted(choices.items()))}
        keep(self.path, json.dumps(record, indent=1) + "\n")

    def _read(self) -> dict[str, Mapping[str, int]]:
        """All choices; none where the file is missing or not ours."""
        try:
            record = json.loads(kept(self.path) or "{}")
            found = record["choices"] if record["schema"] == SCHEMA else {}
            return {str(k): {str(n): int(v) for n, v in config.items()} for k, config in found.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}


def choose(built: BuiltKernel, ready: Callable[[], Ready], device: Device) -> Mapping[str, int]:
    """The setting with the lowest median; one that fails to run is skipped; where none runs, the first error is
    raised."""
    times: list[tuple[float, Mapping[str, int]]] = []
    first: Exception | None = None
    for config in built.configs:
        built.configure(config)
        try:
            samples, _ = device.samples(ready(), SAMPLES, BUDGET_S)
            times.append((sorted(samples)[len(samples) // 2], config))
        except Exception as error:  # too many registers, too much shared memory: another setting may do
            first = first or error
    if not times:
        raise first or RuntimeError("there is no setting to try")
    return min(times, key=lambda each: each[0])[1]
