"""Runs the FX graph that was made from a traced graph, on real tensors, and the module that was traced, for comparison.

The graph is traced without data, so equal numbers say that views, in-place writes and the order of things were kept.
"""

import copy

import torch
from torch.utils._pytree import tree_flatten

import memwall
from memwall.core.graph import Graph


def joint_of(graph: Graph, device: str = "cpu"):
    """The joint graph of all forward and backward ops, and its scope."""
    import torch._inductor.lowering  # noqa: F401
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode

    from memwall.inductor.lowering import EAGER, _regions
    from memwall.inductor.replay import OpaqueKernels, replay
    from memwall.inductor.scope import scope_of
    from memwall.ops.evaluate import Operators

    operators = Operators()
    inside = [region != EAGER for region in _regions(graph, None)]
    scope = scope_of(graph, inside, operators.overwritten)
    with OpaqueKernels() as opaque, FakeTensorMode():
        return replay(graph, scope, operators, select_decomp_table(), opaque, device)


def run_joint(graph: Graph, joint, module, args) -> dict[int, torch.Tensor]:
    """Storage -> what the FX graph leaves there, laid out as it was traced, given a module's data and its inputs."""
    held = {name: p.detach() for name, p in module.named_parameters()} | dict(module.named_buffers())
    inputs = {f"input{i}": t for i, t in enumerate(tree_flatten(args)[0]) if isinstance(t, torch.Tensor)}
    given = []
    for feed in joint.feeds_in_order():
        storage = graph.storages[feed.storage]
        source = held.get(storage.name, inputs.get(storage.name))
        if source is None:
            assert feed.tangent, f"nothing to feed for {storage}"
            given.append(torch.ones(feed.spec.shape, dtype=getattr(torch, feed.spec.dtype)))
        else:
            assert source.dtype is getattr(torch, feed.spec.dtype)
            given.append(source.detach().clone().as_strided(feed.spec.shape, feed.spec.strides))
    kept = (*joint.scope.forward_keeps, *joint.scope.mutated, *joint.scope.backward_keeps)
    return dict(zip(kept, joint.module(*given), strict=True))


def as_value(graph: Graph, tensor: torch.Tensor, value_id: int) -> torch.Tensor:
    """A value of a storage, out of the tensor that the replay left for that storage."""
    value = graph.values[value_id]
    base = next(
        v for v in graph.values
        if v.storage == value.storage and v.spec.shape == tuple(tensor.shape) and v.offset == 0
        and v.spec.dtype == str(tensor.dtype).removeprefix("torch.")
    )  # fmt: skip
    laid_out = torch.empty_strided(base.spec.shape, base.spec.strides, dtype=tensor.dtype).copy_(tensor)
    return laid_out.as_strided(value.spec.shape, value.spec.strides, value.offset)


def compare(module, args, *, training: bool, loss=None, tolerance: float = 2e-4) -> Graph:
    """Assert that replay and eager module agree on outputs, gradients and buffers; returns the traced graph."""
    module.train(training)
    record = memwall.profile(copy.deepcopy(module), args, mode="training" if training else "inference",
                             attention="math", optimizer="sgd" if training else None, loss=loss,
                             gpu="a100")  # fmt: skip
    graph = record.graph
    joint = joint_of(graph)
    assert joint.opaque == ()
    found = run_joint(graph, joint, module, args)
    eager = copy.deepcopy(module)
    with torch.set_grad_enabled(training):
        output = eager(*args)
        if training:
            output = total(output) if loss is None else loss(output)
            output.backward()
    close = {"rtol": tolerance, "atol": tolerance}
    for value_id, expected in zip(graph.outputs, dict.fromkeys(tensors(output)), strict=True):
        storage = graph.values[value_id].storage
        if storage in found:  # an output that is an input is not computed
            torch.testing.assert_close(as_value(graph, found[storage], value_id), expected.detach(), **close)
    names = {storage.name: storage.id for storage in graph.storages}
    for name, buffer in eager.named_buffers():
        if names.get(name) in joint.scope.mutated:
            torch.testing.assert_close(found[names[name]].reshape(buffer.shape), buffer, **close)
    if training:
        check_gradients(graph, found, eager, close)
    return graph


def check_gradients(graph: Graph, found, eager, close) -> None:
    """The gradients as the optimizer reads them."""
    read = {
        graph.values[i].storage: i for op in graph.ops if op.phase == "optimizer" for i in op.inputs
    }  # fmt: skip
    checked = 0
    for storage in graph.storages:
        if storage.role == "gradient" and not storage.name.startswith("input"):  # those of inputs are not read again
            expected = eager.get_parameter(storage.name).grad
            torch.testing.assert_close(as_value(graph, found[storage.id], read[storage.id]), expected, **close)
            checked += 1
    assert checked == sum(p.grad is not None for p in eager.parameters())


def total(output):
    """The sum of all floating outputs, which is what memwall differentiates without a loss."""
    floating = [t for t in tensors(output) if t.is_floating_point() and t.requires_grad]
    return sum((t.sum() for t in floating[1:]), start=floating[0].sum())


def tensors(output):
    return [t for t in tree_flatten(output)[0] if isinstance(t, torch.Tensor)]
