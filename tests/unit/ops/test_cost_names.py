"""Every registered name is an op of torch, and the argument names that formulas ask for are those of its schema."""

import re
from pathlib import Path

import pytest

from memwall.ops import registry
from memwall.ops.schemas import library_schemas

torch = pytest.importorskip("torch", reason="needs torch: compares names with its operators")

#: ops that one of the supported torch versions lacks
NOT_EVERYWHERE = {
    "aten._flash_attention_forward_no_dropout_inplace", "aten._foreach_clone", "aten._foreach_mm",
}  # fmt: skip
#: argument names by which the tracer records calls that no schema has
RECORDED = {"grad_output", "state"}
#: a name in quotes that is asked of a call
ASKED = re.compile(r'\b(?:need|arg|args)\("(\w+)"\)')


def _registered():
    return [name for name, row in registry.rows() if row.cost is not None and name.startswith("aten.")]


def _overloads(name):
    _, packet, *overload = name.split(".")
    found = getattr(torch.ops.aten, packet, None)
    if found is None:
        return None
    return [getattr(found, each) for each in overload or found.overloads() if each in found.overloads()]


def test_every_name_is_an_op():
    missing = {name for name in _registered() if not _overloads(name)}
    assert missing <= NOT_EVERYWHERE


def test_every_argument_that_is_asked_for_exists_in_some_schema():
    known = {
        argument.name
        for name in _registered()
        for overload in _overloads(name) or ()
        for argument in overload._schema.arguments
    }
    for name in (name for name, _ in registry.rows() if name.startswith("c10d.")):  # torch.distributed's
        packet = getattr(torch.ops.c10d, name.split(".")[1])
        known |= {argument.name for each in packet.overloads() for argument in getattr(packet, each)._schema.arguments}
    for schema in (schema for row in library_schemas().values() for schema in row):
        known |= {argument.name for argument in schema.arguments}
    folder = Path(registry.__file__).parent
    others = ("lax.py", "onnx.py")  # whose operands have the names of JAX and of ONNX
    of_torch = (path for path in folder.glob("*.py") if path.name not in others)
    asked = {name for path in of_torch for name in ASKED.findall(path.read_text(encoding="utf-8"))}
    assert len(asked) > 30
    assert asked <= known | RECORDED


@pytest.mark.parametrize("family", ["contraction", "convolution", "attention"])
def test_the_core_families_are_complete(family):
    names = [name for name in _registered() if registry.classify(name) == family]
    assert len(names) >= 15


def _record(function, *tensors):
    """The calls that a function dispatches, costed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from memwall.core.graph import TensorSpec
    from memwall.ops.base import Call

    def spec(tensor):
        return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype).removeprefix("torch."))

    costs = {}

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            name = str(func).removesuffix(".default")
            if registry.classify(name) != "other":
                given = [(a.name, v) for a, v in zip(func._schema.arguments, args, strict=False)]
                given += list((kwargs or {}).items())
                pairs = [(n, v) for n, v in given if isinstance(v, torch.Tensor)]
                attributes = {n: v for n, v in given if v is not None and not isinstance(v, torch.Tensor)}
                outs = [o for o in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(o, torch.Tensor)]
                inputs = tuple(spec(v) for _, v in pairs)
                outputs = tuple(map(spec, outs))
                costs[name] = registry.cost_of(
                    Call(name, inputs, tuple(n for n, _ in pairs), outputs, attributes,
                         sum(s.nbytes for s in inputs), sum(s.nbytes for s in outputs))
                )  # fmt: skip
            return out

    with Mode():
        function(*tensors)
    return costs


def test_real_calls_of_a_small_network():
    x = torch.empty(4, 3, 8, 8, device="meta", requires_grad=True)
    weight = torch.empty(6, 3, 3, 3, device="meta", requires_grad=True)

    def run(x, weight):
        y = torch.conv2d(x, weight, padding=1)  # [4, 6, 8, 8]
        y = torch.nn.functional.group_norm(y, 2).relu()
        torch.nn.functional.max_pool2d(y, 2).flatten(1).log_softmax(-1).sum().backward()

    costs = _record(run, x, weight)
    assert costs["aten.convolution"].total_flops == 82_944  # 2 * (4*6*64 = 1536) * 27
    assert costs["aten.convolution_backward"].total_flops == 165_888
    assert costs["aten.native_group_norm"].total_flops == 10_752  # 7 * 1536
    assert costs["aten.max_pool2d_with_indices"].total_flops == 0
    assert costs["aten._log_softmax"].total_flops == 1_920  # 5 * 4 * 96


def test_real_attention_call():
    q = torch.empty(1, 2, 16, 8, device="meta", dtype=torch.bfloat16)
    costs = _record(lambda q: torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.0, True), q)
    # 2 heads * 136 pairs * 32; the dense count has 256 pairs
    (result,) = costs.values()
    assert (result.total_flops, result.dense_flops) == (8_704, 16_384)
