"""The wiring of the ``inductor`` policy: graph -> regions -> joint graphs -> schedules -> kernels."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwall.core import compat
from memwall.core.errors import MemwallError, MissingError, UsageError, need
from memwall.core.files import uncollected
from memwall.core.flow import Flow
from memwall.core.graph import EAGER, Graph, Op
from memwall.core.progress import tell
from memwall.fusion.ideal import attention_scores
from memwall.fusion.rules import MATRIX_CLASSES
from memwall.hardware.lookup import Gpu
from memwall.inductor.owners import Lowered, ScheduleNode, own
from memwall.inductor.scope import scope_of
from memwall.ops import classify
from memwall.ops.registry import is_recurrent

if TYPE_CHECKING:
    from memwall.inductor.compiling import Scheduled


def lower(
    graph: Graph, gpu: Gpu, *, device: str = "cuda", source: bool = False, regions: Sequence[int] | None = None
) -> Lowered:
    """What Inductor would make of the graph's forward and backward ops.

    Args:
        gpu: what it would run on; unused where ``device`` is ``cpu``.
        device: ``cuda``, or ``cpu`` for Inductor's C++ backend on this machine.
        source: write the kernels' Triton code too, which takes as long again.
        regions: for each op, the number of the partial graph that it was captured in, or -1 where it ran eagerly
            between two; nothing is fused across. One graph for all when None.

    Raises:
        UsageError: Inductor refuses this graph or this GPU.
        MissingError: Triton is not installed, or this torch lacks the internals that memwall needs.
    """
    if device != "cpu":
        need("triton", "triton")
    tell(f"compiling {len(graph.ops):,} ops by Inductor")
    try:
        if device != "cpu":
            _check_dtypes(graph, gpu)
        with _unnoticed(), uncollected():
            return _lower(graph, gpu, device, source, _regions(graph, regions))
    except MemwallError:
        raise
    except (AttributeError, ImportError, TypeError) as error:
        import torch

        version = torch.__version__.partition("+")[0]
        raise MissingError(
            f"the inductor policy needs internals that torch {version} does not have ({_one_line(error)}); "
            "--policy memwall works without them"
        ) from error
    except Exception as error:
        raise UsageError(
            f"Inductor cannot compile this graph ({_one_line(error)}); --policy memwall works without it"
        ) from error


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__


def _check_dtypes(graph: Graph, gpu: Gpu) -> None:
    """Triton has no bfloat16 below compute capability 8.0, and ``torch.compile`` then leaves the model to eager."""
    from memwall.inductor.fake_gpu import capability_of

    if capability_of(gpu) >= (8, 0):
        return
    used = {graph.values[i].spec.dtype for op in graph.ops if op.phase != "optimizer" for i in op.outputs}
    if "bfloat16" in used:
        raise UsageError(
            f"torch.compile leaves a bfloat16 model to eager on {gpu.name} (compute capability "
            f"{gpu.compute_capability}, 8.0 is needed); profile it in float16, or use --policy memwall"
        )


@contextlib.contextmanager
def _unnoticed() -> Iterator[None]:
    """Suppress Inductor's advice, and restore Python's recursion limit, which it raises."""
    loggers = [logging.getLogger(name) for name in map(compat.name_of, ("inductor", "dynamo", "functorch"))]
    levels = [logger.level for logger in loggers]
    depth = sys.getrecursionlimit()
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.setrecursionlimit(depth)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _regions(graph: Graph, given: Sequence[int] | None) -> list[int]:
    """The region of each op. The caller of the compiled graph makes the gradient that backward starts from."""
    regions = _between_recurrent_layers(graph) if given is None else list(given)
    started = False
    for op in graph.ops:
        if op.phase == "optimizer":
            regions[op.id] = EAGER
        elif op.phase == "backward" and not started:
            started = True
            if op.name == "aten.ones_like":
                regions[op.id] = EAGER
    return regions


def _between_recurrent_layers(graph: Graph) -> list[int]:
    """Regions without a capture: Dynamo breaks the graph at each recurrent layer, which runs eagerly
    (``torch._dynamo.config.allow_rnn`` is off). Backward goes through the regions in reverse."""
    flow = Flow.of(graph)
    regions: list[int] = []
    before: dict[int, int] = {}  # recurrent layer -> the region that ends at it
    number = 0
    for op in graph.ops:
        if not is_recurrent(op.name):
            regions.append(number)
            continue
        regions.append(EAGER)
        layers = before.keys() & {flow.writer[version] for _, version in flow.reads[op.id]}
        if "backward" in op.name and layers:
            number = before[max(layers)]
        else:
            before[op.id] = number
            number = len(before)
    return regions


def _lower(graph: Graph, gpu: Gpu, device: str, source: bool, regions: list[int]) -> Lowered:
    from memwall.inductor.compiling import patterns_loaded, quiet
    from memwall.inductor.fake_gpu import device_for
    from memwall.inductor.replay import OpaqueKernels
    from memwall.ops.evaluate import Operators

    import_module(compat.name_of("inductor_lowering"))  # whose operators come before decompositions are selected
    operators, table = Operators(), {**_interpolations(), **compat.select_decomp_table()}
    with OpaqueKernels() as opaque, patterns_loaded(), quiet(), device_for(gpu, device) as target:
        lowering = _Lowering(graph, gpu, target, source, operators, table, opaque)
        for region in sorted(set(regions) - {EAGER}):
            scope = scope_of(graph, [number == region for number in regions], operators.overwritten)
            if scope.forward_keeps or scope.backward_keeps or scope.mutated:  # else nothing is left to compile
                lowering.compile(scope)
    for op in graph.ops:
        if op.phase != "optimizer" and regions[op.id] == EAGER:
            lowering.schedules[op.phase == "backward", op.id] = [_eager(graph, op)]
    return lowering.gathered()


def _interpolations() -> dict[Any, Any]:
    """Decompositions of interpolations as a graph of eager calls has them. ``torch.compile`` traces the calls that take
    ``scale_factors`` (``.vec``) by their Python implementations (torch/_decomp/decompositions.py), so that no mode
    reaches Inductor as a call of the library; its own table has those calls alone."""
    import torch

    names = ("upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")
    calls = [getattr(torch.ops.aten, name).default for name in names]
    return {call: compat.decomposition_table[call] for call in calls}


@dataclass
class _Lowering:
    """What the regions of a graph are lowered with, and what they become."""

    graph: Graph
    gpu: Gpu
    target: Any
    source: bool
    operators: Any
    table: Any
    kernels: Any
    #: launches of each compiled graph under (backward?, first op)
    schedules: dict[tuple[bool, int], list[ScheduleNode]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    fx_ops: dict[int, Counter[str]] = field(default_factory=dict)
    opaque: list[str] = field(default_factory=list)

    def compile(self, scope: Any) -> None:
        """Add what a region becomes."""
        from memwall.inductor.compiling import joint_passes, keep_strides, partition, schedule, write_back
        from memwall.inductor.origins import assign_origins, mark_results
        from memwall.inductor.padding import modeled_padding
        from memwall.inductor.replay import replay

        graph, mode = self.graph, compat.FakeTensorMode()
        with mode:
            joint = replay(graph, scope, self.operators, self.table, self.kernels, str(self.target))
        self.opaque.extend(joint.opaque)
        self.fx_ops.update(joint.calls())
        with modeled_padding(graph, self.gpu) if self.target.type != "cpu" else contextlib.nullcontext():
            module = joint_passes(joint.module, mode, self.target, graph.attention)
        assign_origins(graph, module, scope.op_ids)
        mark_results(module)
        forward, backward = partition(joint, module, mode)
        visible = write_back(joint, forward)
        for compiled, is_backward in ((forward, False), (backward, True)):
            ops = [i for i in scope.op_ids if (graph.ops[i].phase == "backward") == is_backward]
            if compiled is not None and ops:
                keep_strides(compiled, len(scope.backward_keeps) if is_backward else visible)
                self.schedules[is_backward, ops[0]] = schedule(
                    compiled, mode, self._read, backward=is_backward, inference=backward is None, source=self.source
                )

    def _read(self, scheduled: Scheduled) -> list[ScheduleNode]:
        from memwall.inductor.reading import launches

        for text, count in scheduled.refusals.items():  # a reason, without the numbers of its pair
            self.refusals[text.partition("%")[0].rstrip(" (:,")] += count
        return [_named(self.graph, launch) for launch in launches(scheduled)]

    def gathered(self) -> Lowered:
        """All regions and what is between them."""
        graph, schedules = self.graph, [self.schedules[key] for key in sorted(self.schedules)]
        compiled = [op.id for op in graph.ops if op.phase != "optimizer"]
        kernels = own(graph, compiled, schedules, self.fx_ops)
        launched = [launch for schedule in schedules for launch in schedule if launch.kind != "none"]
        called = {launch.library_op.removesuffix(".default") for launch in launched if launch.computes}
        named = (called | set(self.opaque)) - {""}
        by_library = [op for kernel in kernels if kernel.kind in ("extern", "eager") for op in kernel.op_ids]
        return Lowered(
            kernels=tuple(kernels),
            why_not_fused=dict(self.refusals.most_common()),
            fallbacks=tuple(sorted(name for name in named if classify(name) not in MATRIX_CLASSES)),
            notes=_notes(graph, by_library),
        )


def _named(graph: Graph, launch: ScheduleNode) -> ScheduleNode:
    """A launch of an op that is in the graph by name only, under that name."""
    if not launch.library_op.startswith("memwall."):
        return launch
    name = graph.ops[min(launch.computes)].name
    return replace(launch, name=name, library_op=name)


def _eager(graph: Graph, op: Op) -> ScheduleNode:
    """An op outside of all regions: a kernel of its own, with its compulsory bytes."""
    alone = frozenset((op.id,))
    read = sum(graph.values[i].spec.nbytes for i in dict.fromkeys(op.inputs))
    written = sum(graph.values[i].spec.nbytes for i in dict.fromkeys(op.outputs))
    return ScheduleNode(
        op.name, "eager", {op.id: 1}, alone, {op.id: written}, alone, read_bytes=read, write_bytes=written
    )


_DECOMPOSED = (
    "the attention is decomposed; torch.compile replaces some forms of it by one fused kernel in "
    "training, and this plan keeps the matmuls and the softmax apart"
)


def _notes(graph: Graph, replaced: Iterable[int]) -> tuple[str, ...]:
    """Notes on a training step in which attention stays decomposed; ``replaced`` ops became one call."""
    training = any(op.phase == "backward" for op in graph.ops)
    decomposed = {op.id for op, *_ in attention_scores(graph, Flow.of(graph)) if op.name == "aten._softmax"}
    return (_DECOMPOSED,) if training and decomposed.difference(replaced) else ()
