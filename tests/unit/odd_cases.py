"""Small functions on odd shapes, layouts, dtypes and numbers, each with the path that its kernel should take."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import memwall
from memwall.core.flow import Flow
from memwall.core.graph import PHASES, Graph
from memwall.fusion import Group, plan_graph
from memwall.fusion.pricing import Pricer
from memwall.hardware.lookup import Gpu
from memwall.ops import graph_costs
from tests.unit.one_call import Call
from tests.unit.small_workloads import GPU, traced

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
#: row functions that are no reduction where a row is one element
ONE_BY_ONE = {"rms-norm": "pointwise"}
#: a row of this many float32 is more than a thread block holds
LONG = 65_537
#: elements of several programs of a launch
SEVERAL = 4_099


@dataclass(frozen=True)
class Case:
    """A function of tensors, or in training a module, and what is expected of its kernels.

    In inference all ops are one group. In training the planner forms the groups; products are left out, and
    ``schedules`` are those of the rest, in launch order.
    """

    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    schedules: tuple[str, ...]
    special: bool = False
    mode: str = "inference"
    optimizer: Any = None
    #: arguments of ``generate_nests``
    path: Mapping[str, bool] = field(default_factory=dict)
    #: in training, only the groups of this phase
    phase: str = ""


def traced_case(case: Case) -> tuple[Graph, Flow, tuple[Group, ...], Gpu]:
    """The graph of a case, and the groups whose kernels are to be proved."""
    module = case.function() if case.mode == "training" else Call(case.function)
    graph = traced(module, case.inputs(), case.mode, optimizer=case.optimizer)
    gpu, costs = memwall.load_gpu(GPU), list(graph_costs(graph))
    pricer = Pricer(graph, costs, gpu)
    if case.mode == "inference":
        return graph, pricer.flow, (pricer.group([op.id for op in graph.ops]),), gpu
    groups = plan_graph("memwall", graph, costs, gpu).groups
    first = [(group, graph.ops[group.op_ids[0]]) for group in groups]
    kept = [g for g, op in first if op.op_class != "contraction" and op.phase in (case.phase or PHASES)]
    return graph, pricer.flow, tuple(kept), gpu


class _Weights(nn.Module):
    """Parameters of odd shapes, each with a gradient."""

    def __init__(self, *shapes: tuple[int, ...], dtype: torch.dtype = F32) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes)

    def forward(self, x: Tensor) -> Tensor:
        return sum((w * x).sum() for w in self.weights)


class _Chain(nn.Module):
    """A layer on a linear one: its gradients, and the bias's by a column sum."""

    def __init__(self, width: int, out: int, layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(width, out), layer(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.linear(x))


def of(*shapes: tuple[int, ...], dtype: torch.dtype = F32) -> Callable[[], tuple[Tensor, ...]]:
    """Tensors of some shapes."""
    return lambda: tuple(torch.empty(shape, dtype=dtype) for shape in shapes)


def mixed(*specs: tuple[tuple[int, ...], torch.dtype]) -> Callable[[], tuple[Tensor, ...]]:
    """Tensors of some shapes and dtypes."""
    return lambda: tuple(
        torch.empty(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
        for shape, dtype in specs
    )


def chain(x: Tensor, y: Tensor) -> Tensor:
    return F.gelu(x * 2 + y) - torch.sigmoid(y)


def functions(x: Tensor) -> tuple[Tensor, ...]:
    """Elementary functions, each a result of its own."""
    return (
        torch.exp(x), torch.tanh(x), F.silu(x), F.gelu(x), F.gelu(x, approximate="tanh"), F.relu(x), torch.abs(x),
        torch.neg(x), torch.sigmoid(x), x.clamp(-1, 1), torch.maximum(x, -x), torch.where(x > 0, x, x * 0.1),
    )  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x[:, 1:4], y, x[:, :1]), dim=1)


def _rows(
    name: str, function: Callable[..., Any], extra: Callable[[int], tuple[tuple[int, ...], ...]]
) -> dict[str, Case]:
    """A row function on rows of one, few, prime, and too many elements, on none, and with odd numbers."""

    long = 2 if name == "softmax" else 1  # rows of seconds each

    def case(rows: int, cols: int, schedule: str, dtype: torch.dtype = F32, **options: Any) -> Case:
        return Case(function, of((rows, cols), *extra(cols), dtype=dtype), (schedule,), **options)

    return {
        f"{name}-1x1": case(1, 1, ONE_BY_ONE.get(name, "persistent")),
        f"{name}-5x7": case(5, 7, "persistent"),
        f"{name}-7x1031-bf16": case(7, 1031, "persistent", BF16),
        f"{name}-2x{LONG}": case(2, LONG, "looped", path={"split": False}),
        f"{name}-{long}x{LONG}-f16": case(long, LONG, "split + pointwise", F16),
        f"{name}-5x7-looped": case(5, 7, "looped", path={"persistent": False}),
        f"{name}-0x7": case(0, 7, "nothing"),
        f"{name}-37x101-odd": case(37, 101, "persistent", special=True),
    }  # fmt: skip


def _slice_gradient(start: int, end: int, step: int, grad: Tensor) -> Tensor:
    return torch.ops.aten.slice_backward(grad, [4, 5], 1, start, end, step)


def not_a_number_first(x: Tensor) -> Tensor:
    """A softmax of rows that begin with what is no number and end with minus infinity."""
    place = torch.arange(x.shape[1], device=x.device)
    return F.softmax(torch.where(place == 1, math.nan, torch.where(place > 1000, -math.inf, x)), -1)


def read_then_grown(x: Tensor) -> tuple[Tensor, Tensor]:
    before = x.sum(0)
    x.mul_(2)
    return before, x.sum(0)


def centred(x: Tensor) -> Tensor:
    return x.sub_(x.mean(-1, keepdim=True))


def part_grown(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :3].add_(1)
    return y


def scales_used_then_grown(x: Tensor, scales: Tensor) -> Tensor:
    used = F.softmax(x, -1) * scales
    scales.mul_(2)
    return used


def scattered_then_read(x: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    x.index_put_((rows,), values, accumulate=True)
    return x * 3


#: what arithmetic does to infinities, NaN and both zeros, to whole numbers and to booleans
ODD_NUMBERS = {
    **{
        name: Case(function, of((37, 29)), ("pointwise",), special=True)
        for name, function in {
            "sign-odd": torch.sign, "neg-odd": torch.neg, "softplus-odd": F.softplus,
            "dropout-odd": lambda x: torch.native_dropout(x, 0.3, True)[0],
        }.items()
    },
    "clamp-by-tensors-odd": Case(
        lambda x, low, high: x.clamp(low, high), of((37, 29), (37, 29), (37, 29)), ("pointwise",), special=True
    ),
    "dropout-backward-odd": Case(
        lambda g, kept: torch.ops.aten.native_dropout_backward(g, kept, 1.5),
        mixed(((37, 29), F32), ((37, 29), torch.bool)), ("pointwise",), special=True,
    ),
    "tanh-near-zero": Case(lambda x: torch.tanh(x * 1e-4) / x, of((37, 29)), ("pointwise",)),
    "softplus-far-below-zero": Case(lambda x: F.softplus(x - 15) * 3e6, of((37, 29)), ("pointwise",)),
    "cross-entropy-far-from-zero": Case(
        lambda x: F.binary_cross_entropy_with_logits(x + 15, torch.ones_like(x), reduction="none") * 3e6,
        of((37, 29)), ("pointwise",),
    ),
    "softmax-nan-first": Case(
        not_a_number_first, of((2, 3000)), ("looped",), path={"split": False, "persistent": False}
    ),
    "relu-of-2^40": Case(lambda x: F.relu(x + (1 << 40)), mixed(((37, 29), torch.int64)), ("pointwise",)),
    "not-of-uint8": Case(lambda x: ~x, mixed(((37, 29), torch.uint8)), ("pointwise",)),
    "uint8-and-int8": Case(
        lambda x, y: x + 100 > y, mixed(((37, 29), torch.uint8), ((37, 29), torch.int8)), ("pointwise",)
    ),
    "mean-of-none": Case(lambda x: (x.mean(), x.mean(0)), of((0, 3)), ("split",)),
    "sum-of-empty-rows": Case(lambda x: x.sum(1), of((3, 0)), ("split",)),
    "mean-square-of-none": Case(F.mse_loss, of((0, 3), (0, 3)), ("split",)),
}  # fmt: skip

#: arguments that are seldom given, or negative, or beyond the end
ODD_ARGUMENTS = {
    **{
        f"slice-gradient-{start}:{end}:{step}": Case(
            functools.partial(_slice_gradient, start, end, step), of((4, size)), ("pointwise",)
        )
        for start, end, step, size in ((-7, 5, 1, 5), (-3, 5, 1, 3), (1, -1, 1, 3), (2, 9, 2, 2))
    },
    "pool-of-minus-infinity": Case(
        lambda x: F.max_pool2d(x * 0 - math.inf, 3, 2, 1, return_indices=True), of((2, 3, 8, 9)), ("pointwise",)
    ),
    "last-by-negative-index": Case(
        lambda x, i: x[i * 0 - 1], mixed(((13, 5), F32), ((3, 4), torch.int64)), ("pointwise",)
    ),
    "rows-by-int32": Case(lambda x, i: x[i], mixed(((13, 5), F32), ((3, 4), torch.int32)), ("pointwise",)),
}  # fmt: skip

#: what is overwritten is read before, and read again after
IN_PLACE = {
    "in-place-sum-before-and-after": Case(read_then_grown, of((13, 7)), ("split",)),
    "in-place-centred": Case(centred, of((13, 7)), ("persistent",)),
    "in-place-centred-looped": Case(centred, of((3, 2100)), ("looped",), path={"split": False, "persistent": False}),
    "in-place-part": Case(part_grown, of((13, 7)), ("pointwise",)),
    "in-place-scales": Case(scales_used_then_grown, of((37, 101), (37, 1)), ("persistent",)),
    "in-place-scatter": Case(
        scattered_then_read, mixed(((13, 5), F32), ((4,), torch.int64), ((4, 5), F32)), ("pointwise",)
    ),
}  # fmt: skip


def by_windows(x: Tensor) -> tuple[Tensor, Tensor]:
    """A norm's rows, moved to windows of 3 x 3, and the sum that it normalises."""
    y = x + 1
    rows, columns = x.shape[1] // 3, x.shape[2] // 3
    windows = F.layer_norm(y, x.shape[-1:]).view(x.shape[0], rows, 3, columns, 3, x.shape[-1])
    return y, windows.permute(0, 1, 3, 2, 4, 5).contiguous()


CASES: dict[str, Case] = {
    # elementwise: sizes, layouts, dtypes
    **{f"pointwise-{n}": Case(chain, of((n,), (n,)), ("pointwise",)) for n in (1, 7, 1031, SEVERAL)},
    "pointwise-scalar": Case(chain, of((), ()), ("pointwise",)),
    "pointwise-empty": Case(chain, of((0, 5), (0, 5)), ("nothing",)),
    "pointwise-3x5x7": Case(chain, of((3, 5, 7), (3, 5, 7)), ("pointwise",)),
    "broadcast-7x1-1x13": Case(chain, of((7, 1), (1, 13)), ("pointwise",)),
    "broadcast-3x1x7-5x1": Case(chain, of((3, 1, 7), (5, 1)), ("pointwise",)),
    "transposed-13x31": Case(lambda x, y: chain(x.t(), y), of((31, 13), (13, 31)), ("pointwise",)),
    "every-other-7x11": Case(lambda x, y: chain(x[:, ::2], y[1:]), of((7, 22), (8, 11)), ("pointwise",)),
    "expanded-5x7": Case(lambda x: x.expand(5, 7) * 2, of((1, 7)), ("pointwise",)),
    "mixed-f16-bf16-f32": Case(
        lambda x, y, z: (x * y + z).to(BF16), mixed(((7, 13), F16), ((7, 13), BF16), ((13,), F32)), ("pointwise",)
    ),
    **{
        f"functions-{str(dtype)[6:]}-odd": Case(functions, of((37, 29), dtype=dtype), ("pointwise",), special=True)
        for dtype in (F32, F16, BF16)
    },
    # rows
    **_rows("softmax", lambda x: F.softmax(x, -1), lambda cols: ()),
    **_rows("log-softmax", lambda x: F.log_softmax(x, -1), lambda cols: ()),
    **_rows("layer-norm", layer_norm, lambda cols: ((cols,), (cols,))),
    **_rows("rms-norm", rms_norm, lambda cols: ((cols,),)),
    "layer-norm-copied-transposed": Case(
        lambda x, y: F.layer_norm(x + y, (31,)).transpose(1, 2).clone(memory_format=torch.contiguous_format),
        of((3, 13, 31), (3, 13, 31)), ("persistent",),
    ),
    "layer-norm-copied-by-windows-looped": Case(
        by_windows, of((2, 6, 6, 35), dtype=BF16), ("looped",), path={"split": False, "persistent": False},
    ),
    "softmax-of-columns-copied": Case(
        lambda x: F.softmax(x, 1).permute(2, 0, 1).contiguous(), of((3, 11, 7)), ("persistent",)
    ),
    "embedding-copied-transposed": Case(
        lambda i, w: F.embedding(i, w).transpose(0, 1).contiguous() + 1, mixed(((7,), torch.int64), ((13, 5), F32)),
        ("pointwise",),
    ),
    "softmax-columns": Case(lambda x: F.softmax(x, 0), of((31, 13)), ("persistent",)),
    "cross-entropy-11x7": Case(cross_entropy, mixed(((11, 7), F32), ((11,), torch.int64)), ("persistent + split",)),
    "cross-entropy-3xLONG": Case(
        cross_entropy, mixed(((3, LONG), BF16), ((3,), torch.int64)), ("looped + split",), path={"split": False}
    ),
    # columns, and all of it
    **{
        f"column-sum-{rows}x{cols}": Case(lambda x: x.sum(0), of((rows, cols), dtype=BF16), ("split",))
        for rows, cols in ((1031, 17), (LONG, 3), (7, 5))
    },
    "column-sum-1x1": Case(lambda x: x.sum(0), of((1, 1)), ("pointwise",)),
    "row-sum-37x101": Case(lambda x: (x * 2).sum(1), of((37, 101)), ("persistent",)),
    "row-sum-37x101-odd": Case(lambda x: (x * 2).sum(1), of((37, 101)), ("persistent",), special=True),
    "softmax-37x101": Case(lambda x: F.softmax(x, -1), of((37, 101)), ("persistent",)),
    **{f"full-sum-{n}": Case(lambda x: x.sum(), of((n,), dtype=F16), ("split",)) for n in (7, LONG)},
    "full-sum-1": Case(lambda x: x.sum(), of((1,), dtype=F16), ("pointwise",)),
    "full-mean-37x1031": Case(lambda x: (x * x).mean(), of((37, 1031)), ("split",)),
    "empty-sum": Case(lambda x: x.sum(0), of((0, 7)), ("split",)),
    # places
    "embedding": Case(
        lambda table, ids: F.embedding(ids, table) * 2, mixed(((13, 31), BF16), ((7, 3), torch.int64)), ("pointwise",)
    ),
    "cat-and-slices": Case(joined, of((7, 5), (7, 11)), ("pointwise",), special=True),
    "cat-empty": Case(joined, of((7, 5), (7, 0)), ("pointwise",)),
    "rope-3x13x14-bf16": Case(rope, of((3, 13, 14), (13, 14), (13, 14), dtype=BF16), ("pointwise",)),
    "dropout": Case(lambda x: torch.native_dropout(x, 0.3, True), of((13, 101)), ("pointwise",)),
    **ODD_NUMBERS,
    **ODD_ARGUMENTS,
    **IN_PLACE,
    # training
    "layer-norm-gradients": Case(
        functools.partial(_Chain, 13, 31, nn.LayerNorm), of((37, 13)),
        ("persistent + split",), mode="training",
    ),
    "dropout-gradients": Case(
        functools.partial(_Chain, 13, 31, lambda n: nn.Dropout(0.3)), of((37, 13)), ("split",),
        mode="training",
    ),
    **{
        f"{name}-{str(dtype)[6:]}": Case(
            functools.partial(_Weights, (1,), (7,), (3, 5, 7), (SEVERAL,), dtype=dtype), of((1,), dtype=dtype),
            ("tensor list",), mode="training", optimizer=name, phase="optimizer",
        )
        for name in ("adamw:foreach", "adamw:fused", "sgd", "adam")
        for dtype in (F32, BF16)
    },
}  # fmt: skip
