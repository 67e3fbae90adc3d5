"""Bytes of memwall's own generated kernels: as the planner states them, and as the reader of Triton kernels finds them
in the IR of the kernel's code."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from memwall.codegen import Kernel, NotGenerated, generate
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.sources import load_source
from memwall.frontend.triton.launch import launch_of, target_of_gpu
from memwall.frontend.triton.work import rooms_of, work_of_launch
from memwall.hardware.lookup import load_gpu
from memwall.record.profile import Profile


@dataclass(frozen=True, slots=True)
class TwoCounts:
    """Bytes that a kernel reads and writes, by the planner and by the reader; ``extra_bytes`` are what the planner adds
    for further passes and partial sums, which the reader counts in each launch. ``by_address``: it loads addresses."""

    name: str
    schedule: str
    launches: int
    planned: tuple[int, int]
    extra_bytes: int
    read: tuple[int, int]
    by_address: bool

    @property
    def agree(self) -> bool:
        return self.planned == self.read


def counted(profile: Profile, gpu: str) -> Iterator[TwoCounts]:
    """The distinct generated kernels of a profile under policy memwall, counted twice."""
    graph, plan, known = profile.graph, profile.simulations[0].plan, load_gpu(gpu)
    assert plan is not None  # it was simulated here
    flow, seen = Flow.of(graph), set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for group in plan.groups:
            if len(group.op_ids) < 2:
                continue
            try:
                kernel = generate(graph, flow, group, known)
            except NotGenerated:
                continue
            if kernel.source in seen:
                continue
            seen.add(kernel.source)
            read, written, by_address = launches_of(graph, kernel, Path(folder))
            cost = group.cost
            yield TwoCounts(kernel.name, kernel.schedule, len(kernel.launches), (cost.read_bytes, cost.write_bytes),
                            cost.extra_bytes, (read, written), by_address)  # fmt: skip


def launches_of(graph: Graph, kernel: Kernel, folder: Path) -> tuple[int, int, bool]:
    """Different bytes that the launches of a generated kernel read and write, each launch by itself, and whether one
    loads the addresses of its tensors."""
    from triton.runtime.jit import JITFunction

    module, made, target = load_source(kernel.source, folder), [], target_of_gpu(None)

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        launch = launch_of(function, grid, args, options, target)
        pairs = zip(function.arg_names, args, strict=False)
        tensors = {name: value for name, value in pairs if isinstance(value, torch.Tensor)}
        made.append(work_of_launch(launch, rooms_of(tensors)))

    def empty(shape: Any, strides: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

    with patch.object(JITFunction, "run", run):
        module.run(*_given(graph, kernel), empty=empty)
    by_address = any(not each.argument for work in made for each in work.accesses)
    return sum(work.read_bytes for work in made), sum(work.write_bytes for work in made), by_address


def _given(graph: Graph, kernel: Kernel) -> Iterator[torch.Tensor]:
    memory: dict[int, torch.Tensor] = {}
    for value in (graph.values[i] for i in kernel.inputs):
        size = graph.storages[value.storage].nbytes
        flat = memory.setdefault(value.storage, torch.empty(size, dtype=torch.uint8, device="meta"))
        typed = flat.view(getattr(torch, value.spec.dtype))
        yield typed.as_strided(value.spec.shape, value.spec.strides, value.offset)
