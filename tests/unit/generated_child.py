"""Runs generated kernels in Triton's interpreter and holds them against float64; one line of JSON for each kernel.

``python -m tests.unit.generated_child FOLDER workloads MODE EVERY NAME...``, or ``... cases NAME...``, or ``... planted
NAME...``.
It is a process of its own because the interpreter has to be asked for before Triton is imported.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter

from memwall.bench.kernels.arena import Arena
from memwall.bench.kernels.numerics import NumericsCheck
from memwall.bench.kernels.oracle import Oracle
from memwall.codegen import Kernel, NotGenerated, generate
from memwall.codegen.generate import generate_nests
from memwall.core.errors import Unsupported
from memwall.core.flow import Flow
from memwall.core.graph import Graph
from memwall.core.sources import load_source
from memwall.fusion import Group
from memwall.hardware.lookup import Gpu
from memwall.ops.evaluate import Operators
from tests.unit import mutants, odd_cases, small_workloads

#: of each guard band: more than a block of any kernel here
GUARD_BYTES = 16 * 1024
#: bytes and allocations that may be copied to set each program of a launch apart from the others
MAX_COPIED, MAX_COPIES = 1 << 26, 1 << 12


def round_to_nearest() -> None:
    """Let the interpreter round float32 to bfloat16 as GPUs do, to the nearest and then even: it cuts off."""
    builder = type(interpreter.interpreter_builder)
    cast = builder.cast_impl

    def cast_impl(self: Any, source: Any, wanted: Any) -> Any:
        pair = source.dtype.scalar, wanted.scalar
        if pair == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16).view(torch.int16).numpy()
            return interpreter.TensorHandle(rounded.view(np.uint16), wanted.scalar)
        if pair == (tl.bfloat16, tl.float32):
            wide = (source.data.astype(np.uint32) << 16).view(np.float32)
            return interpreter.TensorHandle(wide, wanted.scalar)
        return cast(self, source, wanted)

    builder.cast_impl = cast_impl


class Apart:
    """Programs of one launch that see nothing of what the others write, as if all loaded before any stored.

    Those of a correct kernel cannot tell. They run in the order of falling indices, too. Launches with atomics are
    left as they are.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.before: list[torch.Tensor] = []
        self.after: list[torch.Tensor] = []
        self.blocks: list[torch.Tensor] = []

    def start(self, programs: int) -> bool:
        self.blocks = self.arena.blocks
        if len(self.blocks) * programs > MAX_COPIES:
            return False
        if sum(block.numel() for block in self.blocks) * programs > MAX_COPIED:
            return False
        self.before = [block.clone() for block in self.blocks]
        self.after = [block.clone() for block in self.blocks]
        return True

    def next(self) -> None:
        """Take what the last program wrote, and put memory back as it was."""
        for block, before, after in zip(self.blocks, self.before, self.after, strict=True):
            changed = block != before
            after[changed] = block[changed]
            block.copy_(before)

    def end(self) -> None:
        self.next()
        for block, after in zip(self.blocks, self.after, strict=True):
            block.copy_(after)


@contextmanager
def programs_apart(arena: Arena) -> Iterator[None]:
    """Launches within run their programs apart."""
    builder, call = interpreter.interpreter_builder, interpreter.GridExecutor.__call__
    set_index = builder.set_grid_idx

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        grid = self.grid({**kwargs}) if callable(self.grid) else self.grid
        sizes = (*grid, 1, 1)[:3]
        apart = Apart(arena)
        if "atomic" in _source_of(self.fn) or not apart.start(sizes[0] * sizes[1] * sizes[2]):
            call(self, *args, **kwargs)
            return

        def set_reversed(*index: int) -> None:
            apart.next()
            set_index(*(size - 1 - i for size, i in zip(sizes, index, strict=True)))

        builder.set_grid_idx = set_reversed
        try:
            call(self, *args, **kwargs)
        finally:
            builder.set_grid_idx = set_index
        apart.end()

    interpreter.GridExecutor.__call__ = launch
    try:
        yield
    finally:
        interpreter.GridExecutor.__call__ = call


def _source_of(function: Any) -> str:
    return Path(function.__code__.co_filename).read_text(encoding="utf-8")


def apart(arena: Arena, call: Callable[[], Any]) -> Any:
    """How the second run of a proof is called."""
    with programs_apart(arena):
        return call()


def prove(oracle: Oracle, kernel: Kernel, folder: Path, special: bool = False) -> dict[str, Any]:
    """Run a kernel and say how that ended."""
    start = time.perf_counter()
    try:
        run = load_source(kernel.source, folder).run
        before = oracle.inputs(special=special, guard_bytes=GUARD_BYTES)
        check = oracle.verify(kernel, run, before, around=apart)
        status, message = ("ok" if check.passed else "wrong", f"{check.where}: {check.message}" * (not check.passed))
    except Unsupported as error:
        check, status, message = NumericsCheck(False), "not checked", str(error)
    except Exception as error:  # one kernel lost, not the rest
        check, status, message = NumericsCheck(False), "crashed", f"{type(error).__name__}: {str(error)[:400]}"
    return {
        "ops": [name.removeprefix("aten.") for name in small_workloads.names_of(oracle.graph, oracle.group)],
        "schedule": kernel.schedule, "status": status, "message": message, "error": check.error,
        "seconds": round(time.perf_counter() - start, 3),
    }  # fmt: skip


def not_generated(graph: Graph, group: Group, reason: str) -> dict[str, Any]:
    """The line of a group that no kernel is generated for."""
    ops = [name.removeprefix("aten.") for name in small_workloads.names_of(graph, group)]
    return {"ops": ops, "schedule": "", "status": "not generated", "message": reason, "error": 0.0, "seconds": 0.0}


def workloads(mode: str, folder: Path, every: int, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Every n-th kind of kernel of some reference workloads, by the path that it takes at full size."""
    operators, seen = Operators(), set()
    for name in names:
        made = small_workloads.small(name, mode)
        flow = Flow.of(made.full)

        def path(group: Group, made: small_workloads.Small = made, flow: Flow = flow) -> str:
            try:
                return generate(made.full, flow, group, made.gpu).schedule
            except NotGenerated as error:
                return f"not generated: {error}"

        for group, wanted in small_workloads.distinct(made, path):
            kind = small_workloads.kind_of(made.graph, group, sizes=False), wanted
            if kind in seen:
                continue
            seen.add(kind)
            if len(seen) % every:
                continue
            oracle = Oracle(made.graph, made.flow, group, operators)
            try:
                kernel = by_path(made.graph, made.flow, group, made.gpu, wanted)
            except NotGenerated as error:
                yield {"workload": name, **not_generated(made.graph, group, str(error)), "full": wanted}
                continue
            yield {"workload": name, **prove(oracle, kernel, folder), "full": wanted}


def by_path(graph: Graph, flow: Flow, group: Group, gpu: Gpu, wanted: str) -> Kernel:
    """The kernel of a small group by the path that the large one takes, where it can be had by asking for it."""
    kernel = generate(graph, flow, group, gpu)
    if kernel.schedule == wanted or kernel.schedule in ("matmul", "tensor list"):
        return kernel
    for persistent, split in itertools.product((True, False), (True, False)):
        try:
            other = generate_nests(graph, flow, group, gpu, persistent=persistent, split=split)
        except NotGenerated:
            continue
        if other.schedule == wanted:
            return other
    return kernel


def cases(names: tuple[str, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """Every kernel of some odd cases."""
    for name in names:
        case = odd_cases.CASES[name]
        graph, flow, groups, gpu = odd_cases.traced_case(case)
        for group in groups:
            oracle = Oracle(graph, flow, group)
            try:
                kernel = kernel_of(case, graph, flow, group, gpu)
            except NotGenerated as error:
                yield {"name": name, **not_generated(graph, group, str(error))}
                continue
            yield {"name": name, **prove(oracle, kernel, folder, case.special)}


def kernel_of(case: odd_cases.Case, graph: Graph, flow: Flow, group: Group, gpu: Gpu) -> Kernel:
    """By the path that the case names."""
    if case.path:
        return generate_nests(graph, flow, group, gpu, **case.path)
    return generate(graph, flow, group, gpu)


def planted(names: tuple[str, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """Kernels with faults: their sources are those of odd cases, changed."""
    for name in names:
        mutant = mutants.MUTANTS[name]
        case = odd_cases.CASES[mutant.case]
        graph, flow, (group,), gpu = odd_cases.traced_case(case)
        kernel = kernel_of(case, graph, flow, group, gpu)
        changed = replace(kernel, source=mutant.apply(kernel.source))
        yield {"name": name, **prove(Oracle(graph, flow, group), changed, folder, case.special)}


def main(folder: str, what: str, *names: str) -> None:
    """Print the results of ``workloads MODE EVERY NAME...``, ``cases NAME...`` or ``planted NAME...``."""
    torch.set_num_threads(1)
    round_to_nearest()
    if what == "workloads":
        results = workloads(names[0], Path(folder), int(names[1]), names[2:])
    else:
        results = {"cases": cases, "planted": planted}[what](names, Path(folder))
    for result in results:
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
