"""A joint FX graph -> the forward and backward graphs that would be compiled -> Inductor's schedule of each.

The passes are torch's own, in the order in which ``torch.compile`` runs them; compilation stops after the scheduler's
fusion, or, where source is wanted, after code generation. Nothing is loaded, launched or cached.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from memwall.core import compat
from memwall.core.compat import (
    BoxedBool,
    FakeTensor,
    FakeTensorMode,
    GraphLowering,
    InductorScheduler,
    WhyNoFuse,
    destroy_library,
    dispatch_cache,
    min_cut_partition,
    recursive_joint_graph_passes,
    tree_map,
    update_scheduler,
    use_lazy_graph_module,
)
from memwall.core.compat import InductorVirtualized as V
from memwall.core.compat import inductor_compile_fx as compile_fx
from memwall.core.compat import inductor_config as config
from memwall.core.compat import inductor_joint_graph as joint_graph
from memwall.core.compat import inductor_post_grad as post_grad
from memwall.core.progress import CountedLine, tell
from memwall.frontend.torch.dispatch.attention import attend, call_of
from memwall.hardware.torch_versions import NEWEST, TORCH
from memwall.inductor.replay import Joint
from memwall.ops.sdpa import GENERATIONS, Backends

Read = TypeVar("Read")

#: Settings that need timing, other processes or a disk, and decide nothing that a model of the GPU could.
_SETTINGS = {
    "force_disable_caches": False,  # would create a folder and leave it behind
    "fx_graph_cache": False, "fx_graph_remote_cache": False, "compile_threads": 1,
    "max_autotune": False, "max_autotune_gemm": False, "coordinate_descent_tuning": False,
    "cpp_wrapper": False, "triton.cudagraphs": False, "triton.unique_kernel_names": True,
}  # fmt: skip


@dataclass
class Scheduled:
    """One compiled graph after fusion: the scheduler's nodes in launch order.

    ``results`` holds what each FX node was lowered to (a buffer, or a loop that its users inline), ``real_names`` the
    buffer's name behind the name of a mutated one. ``sources`` maps the name of a node's first buffer to the name and
    the source of its kernel. ``refusals`` counts the reasons why two nodes were not fused.
    """

    nodes: Sequence[Any]
    refusals: Counter[str]
    results: Mapping[Node, Any]
    real_names: Mapping[str, str]
    sources: dict[str, tuple[str, str]] = field(default_factory=dict)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inductor's configuration while memwall uses it, limited to the settings that this torch knows. As under
    ``torch.compile``, the Python code of a graph is not written before it is called; here it never is."""
    known = {}
    for key, value in _SETTINGS.items():
        owner: Any = config
        *parts, name = key.split(".")
        for part in parts:
            owner = getattr(owner, part, None)
        if hasattr(owner, name):
            known[key] = value
    with config.patch(known), use_lazy_graph_module(True):
        yield


@contextlib.contextmanager
def patterns_loaded() -> Iterator[None]:
    """Register Inductor's graph patterns once, before any device is faked: they are traced from samples on the CPU."""
    joint_graph.lazy_init()
    post_grad.lazy_init()

    with patch.object(joint_graph, "lazy_init"), patch.object(post_grad, "lazy_init"):
        yield


def retarget(module: GraphModule, mode: FakeTensorMode, device: torch.device) -> None:
    """Move a graph of fake tensors to another device: values, and arguments that name a device."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device != device:
            moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            return FakeTensor(mode, moved, device)
        return value

    def rename(argument: Any) -> Any:
        return device if isinstance(argument, torch.device) else argument

    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = tree_map(move, node.meta["val"])
        node.meta.pop("tensor_meta", None)
        node.args = map_aggregate(node.args, rename)
        node.kwargs = map_aggregate(node.kwargs, rename)
    module.recompile()


def joint_passes(module: GraphModule, mode: Any, device: torch.device, attention: str) -> GraphModule:
    """Inductor's passes over the joint graph. They fold constants by computing them, so they run on the CPU.

    Decomposed attention becomes one call, of the kernel that a GPU with ``attention`` would take. torch 2.13 fails on
    some matches; these stay decomposed.
    """
    moved = device.type != "cpu"
    if moved:
        retarget(module, mode, torch.device("cpu"))
    untouched = copy.deepcopy(module)
    with V.set_fake_mode(mode), _attention_of_gpu(attention) if moved else contextlib.nullcontext():
        try:
            changed = recursive_joint_graph_passes(module)
        except RuntimeError:
            module = untouched
            with patch.object(joint_graph, "pass_patterns", []):
                changed = recursive_joint_graph_passes(module)
        module = module if changed is None else changed
    if moved:
        retarget(module, mode, device)
    return module


@contextlib.contextmanager
def _attention_of_gpu(preferred: str) -> Iterator[None]:
    """While open, attention on the CPU is traced as the call that CUDA would make."""
    library: Any = torch.library.Library("aten", "IMPL")
    backends = Backends(GENERATIONS[preferred], TORCH[NEWEST])

    def checked(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3]:
            raise RuntimeError(f"attention of {query.shape}, {key.shape} and {value.shape}")
        call = call_of(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return attend(call, call.backend(backends), query, key, value, attn_mask)

    remembered = dispatch_cache(torch.ops.aten.scaled_dot_product_attention.default)
    try:
        for key in ("AutogradCPU", "CPU"):
            library.m.impl("scaled_dot_product_attention", key, checked, False)
        remembered.clear()
        yield
    finally:
        destroy_library(library)
        remembered.clear()


def partition(joint: Joint, module: GraphModule, mode: Any) -> tuple[GraphModule, GraphModule | None]:
    """Split into the graph that runs forward and the one that runs backward, as AOTAutograd does."""
    outputs = module.graph.output_node().args[0]
    assert isinstance(outputs, (list, tuple))
    if len(outputs) == joint.forward_outputs:
        return module, None
    static = [i for i, feed in enumerate(joint.feeds_in_order()) if feed.static and not feed.tangent]
    values = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    primals = len(joint.tangents) - sum(joint.tangents)
    with V.set_fake_mode(mode):
        forward, backward = min_cut_partition(
            module,
            (values[:primals], values[primals:]),
            compiler="inductor",
            num_fwd_outputs=joint.forward_outputs,
            static_lifetime_input_indices=static,
        )
    return forward, backward


def write_back(joint: Joint, forward: GraphModule) -> int:
    """Copy the replacement of a mutated input into it at the end instead of returning it; returns the other outputs."""
    placeholders = {n.target: n for n in forward.graph.nodes if n.op == "placeholder"}
    names = joint.names()
    output = forward.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    kept = len(joint.scope.forward_keeps)
    mutated = results[kept : joint.forward_outputs]
    for storage, value in zip(joint.scope.mutated, mutated, strict=True):
        target = placeholders.get(names.get(storage))
        if target is not None and value is not target:
            with forward.graph.inserting_before(output):
                copied = forward.graph.call_function(torch.ops.aten.copy_.default, (target, value))
                copied.meta["val"] = target.meta["val"]
    del results[kept : joint.forward_outputs]
    output.args = (results,)
    output.meta.pop("val", None)
    forward.recompile()
    return kept


def keep_strides(module: GraphModule, visible: int) -> None:
    """Let the first ``visible`` outputs keep the strides that they were traced with."""
    module.graph.output_node().meta["user_visible_output_idxs"] = list(range(visible))


class _Stop(BaseException):
    """Stops Inductor at the point of interest."""


def schedule(
    module: GraphModule, mode: Any, read: Callable[[Scheduled], Read], *, backward: bool, inference: bool, source: bool
) -> Read:
    """Lower one graph, fuse, and return what ``read`` makes of the schedule while Inductor still knows the graph."""
    inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    refusals: Counter[str] = Counter()
    sources: dict[str, tuple[str, str]] = {}
    results: dict[Node, Any] = {}
    found: list[Read] = []

    def refuse(why: Any, reason: str, *args: Any) -> None:
        why.reason, why.args = reason, args
        refusals[reason] += 1

    original: Callable[[Any, Node], Any] = GraphLowering.run_node
    fuses: Callable[..., bool] = InductorScheduler.can_fuse
    tried = count(1)

    def run_node(lowering: Any, node: Node) -> Any:
        results[node] = original(lowering, node)
        tell(CountedLine("compiling calls by Inductor", len(results), len(lowering.module.graph.nodes)))
        return results[node]

    def can_fuse(*pair: Any, **how: Any) -> bool:
        tell(CountedLine("compiling by Inductor, pairs that it may fuse", next(tried)))
        return fuses(*pair, **how)

    def stop(lowering: Any) -> None:
        tell(f"compiling by Inductor, fusing {len(lowering.operations):,} loops and calls")
        if source:
            lowering.codegen()
        else:
            lowering.init_wrapper_code()
            update_scheduler(lowering)
        scheduler = lowering.scheduler
        names = scheduler.mutation_real_name
        found.append(read(Scheduled(scheduler.nodes, refusals, results, names, sources)))
        raise _Stop

    with (
        patch.object(GraphLowering, "compile_to_module", stop),
        patch.object(WhyNoFuse, "__call__", refuse),
        patch.object(InductorScheduler, "can_fuse", can_fuse),
        patch.object(GraphLowering, "run_node", run_node),
        _kept_sources(sources) if source else contextlib.nullcontext(),
        V.set_fake_mode(mode),
        contextlib.suppress(_Stop),
    ):
        compile_fx.compile_fx_inner(
            module,
            inputs,
            is_backward=backward,
            is_inference=inference,
            static_input_idxs=range(len(inputs)),
            cudagraphs=BoxedBool(False),
        )
    (result,) = found
    return result


@contextlib.contextmanager
def _kept_sources(sources: dict[str, tuple[str, str]]) -> Iterator[None]:
    """Record each Triton kernel's name and source under the first buffer that it writes."""
    original: Callable[..., str] = compat.TritonScheduling.define_kernel

    def define(scheduling: Any, code: str, nodes: Any, kernel: Any) -> str:
        name = original(scheduling, code, nodes, kernel)
        for placeholder in ("Placeholder.KERNEL_NAME", "Placeholder.DESCRIPTIVE_NAME"):
            code = code.replace(placeholder, name)
        for node in nodes:
            if hasattr(node, "get_name"):
                sources[node.get_name()] = (name, code)
        return name

    with patch.object(compat.TritonScheduling, "define_kernel", define):
        yield
