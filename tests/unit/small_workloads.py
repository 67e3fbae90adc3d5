"""The reference workloads twice: at their own size, which is what is planned, and tiny, which is what can be run.

Both have few layers and the same ops in the same order, so a group of the plan at full size is, by the ids of its
ops, a group of the tiny graph.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import memwall
from memwall.core.flow import Flow
from memwall.core.graph import Graph, TensorSpec
from memwall.frontend.targets.loading import load_file
from memwall.fusion import Group, Plan, plan_graph
from memwall.fusion.plan import Placement
from memwall.fusion.pricing import Pricer
from memwall.hardware.lookup import Gpu

PROFILES = Path(__file__).parents[2] / "profiles"
GPU = "h100-sxm"
MODES = ("inference", "training")
#: first, middle and last: enough for every kind of layer boundary
LAYERS = 3


@dataclass(frozen=True)
class Tiny:
    """Constants of a model file in place of its own, and the sizes that ``inputs`` takes."""

    constants: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    #: constants at full size that are not the file's own
    full: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[], Any] | None = None
    model: Callable[[ModuleType], Any] | None = None


def _images() -> tuple[Any]:
    import torch

    return (torch.randn(2, 3, 40, 40),)


def _latents() -> tuple[Any, ...]:
    """Half an image, so that the smallest level is no single pixel; time steps and text."""
    import torch

    half = torch.float16
    return torch.randn(2, 4, 16, 8, dtype=half), torch.randint(1000, (2,)), torch.randn(2, 7, 24, dtype=half)


def _thin_resnet(module: ModuleType) -> Any:
    """ResNet-50 with an eighth of its channels, which stand in no constant."""
    from torch import nn

    model = module.ResNet50()
    model.stem[0], model.stem[1] = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
    for number, channels in enumerate((8, 32, 64, 128)):
        blocks, stride = (3, 4, 6, 3)[number], 1 if number == 0 else 2
        setattr(model, f"stage{number + 1}", module.stage(channels, 8 << number, blocks, stride))
    model.head = nn.Linear(256, 11)
    return model


WORKLOADS: Mapping[str, Tiny] = {
    "bert_large": Tiny(
        {"VOCAB": 101, "POSITIONS": 16, "WIDTH": 32, "HEADS": 4, "FFN": 56, "LAYERS": LAYERS},
        {"batch": 3, "seq": 11}, {"LAYERS": LAYERS},
    ),
    "bert_layer": Tiny({"WIDTH": 32, "HEADS": 4, "HEAD_DIM": 8, "FFN": 56}, {"batch": 3, "seq": 13}),
    "dlrm": Tiny(
        {"TABLE_ROWS": tuple(range(3, 29)), "WIDTH": 16, "BOTTOM_MLP": (13, 32, 24, 16),
             "TOP_MLP": (16 + 351, 32, 32, 24, 16, 1)},
        {"batch": 19},
    ),
    "gpt2_xl": Tiny(
        {"VOCAB": 101, "POSITIONS": 16, "WIDTH": 40, "HEADS": 5, "LAYERS": LAYERS},
        {"batch": 3, "seq": 11}, {"LAYERS": LAYERS},
    ),
    "llama3_8b": Tiny(
        {"Config": {"width": 32, "layers": LAYERS, "heads": 4, "kv_heads": 2, "ffn": 56, "vocab": 101}},
        {"batch": 1, "seq": 13}, {"Config": {"layers": LAYERS}},
    ),
    "mixtral_8x7b": Tiny(
        {"VOCAB": 101, "WIDTH": 32, "LAYERS": LAYERS, "FFN": 48, "HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": 8,
         "EXPERTS": 4},
        {"batch": 1, "seq": 13}, {"LAYERS": LAYERS},
    ),
    "resnet50": Tiny(inputs=_images, model=_thin_resnet),
    "unet": Tiny(
        {"CHANNELS": (16, 32, 64, 64), "HEADS": 2, "GROUPS": 8, "TIME_WIDTH": 64, "TEXT_WIDTH": 24},
        inputs=_latents,
    ),
    "vit_l16": Tiny(
        {"IMAGE": 32, "PATCH": 8, "CLASSES": 11, "WIDTH": 32, "HEADS": 4, "FFN": 56, "LAYERS": LAYERS},
        {"batch": 3}, {"LAYERS": LAYERS},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Small:
    """A workload's tiny graph, and the groups of the full-size plan as groups of it."""

    graph: Graph
    flow: Flow
    gpu: Gpu
    groups: tuple[Group, ...]
    full: Graph
    plan: Plan


def small(name: str, mode: str) -> Small:
    """Plan a reference workload at full size; its groups on the tiny graph.

    Raises:
        ValueError: the two graphs differ in their ops, or two groups in how many tensors they read.
    """
    tiny = WORKLOADS[name]
    full = _trace(name, mode, Tiny(tiny.full))
    graph = _trace(name, mode, tiny)
    if [op.name for op in full.ops] != [op.name for op in graph.ops]:
        raise ValueError(f"{name} does other things when it is tiny")
    gpu = memwall.load_gpu(GPU)
    plan = plan_graph("memwall", full, _costs(full), gpu)
    pricer = Pricer(graph, _costs(graph), gpu)
    pricer.placement = Placement(plan.groups)
    groups = tuple(pricer.group(group.op_ids, group.recomputes) for group in plan.groups)
    if [len(group.reads) for group in groups] != [len(group.reads) for group in plan.groups]:
        raise ValueError(f"{name} reads other tensors when it is tiny")
    return Small(graph, pricer.flow, gpu, groups, full, plan)


def distinct(small: Small, full_size: Callable[[Group], Any]) -> list[tuple[Group, Any]]:
    """Pairs of a group and what ``full_size`` says of it at full size, one of each kind.

    Groups that do the same, are laid out alike and of which the same is said are one kind, whatever their sizes.
    """
    found: dict[Any, tuple[Group, Any]] = {}
    seen: dict[Any, Any] = {}
    for group, full in zip(small.groups, small.plan.groups, strict=True):
        exact = kind_of(small.full, full, sizes=True)
        if exact not in seen:
            seen[exact] = full_size(full)
        found.setdefault((kind_of(small.graph, group, sizes=False), seen[exact]), (group, seen[exact]))
    return list(found.values())


def kind_of(graph: Graph, group: Group, sizes: bool) -> Any:
    """What a group does, without saying to which tensors: ops, layouts, and which op takes what from which."""
    numbers: dict[int, int] = {}
    ops = []
    for op_id in sorted((*group.op_ids, *group.recomputes)):
        op = graph.ops[op_id]
        if op.name.startswith("aten._foreach"):
            ops.append(op.name)
            continue
        tensors = []
        for value_id in (*op.inputs, *op.outputs):
            value = graph.values[value_id]
            number = numbers.setdefault(value.storage, len(numbers))
            layout = (value.spec, value.offset) if sizes else (_layout(value.spec), bool(value.offset))
            tensors.append((number, layout, value_id in group.writes))
        attributes = repr(op.attributes) if sizes else tuple(op.attributes)
        ops.append((op.name, op.arguments, attributes, tuple(tensors)))
    return tuple(ops)


def _layout(spec: TensorSpec) -> Any:
    """Dtype and, for each axis, whether it is one long, and its place in the order of strides."""
    order = sorted(spec.strides)
    return spec.dtype, tuple((size == 1, order.index(s)) for size, s in zip(spec.shape, spec.strides, strict=True))


def names_of(graph: Graph, group: Group) -> tuple[str, ...]:
    """The ops of a group by name, those that it computes again among them."""
    return tuple(graph.ops[i].name for i in sorted((*group.op_ids, *group.recomputes)))


def traced(module: Any, inputs: Sequence[Any], mode: str = "inference", **options: Any) -> Graph:
    """The graph of any module."""
    return memwall.profile(module, tuple(inputs), mode=mode, gpu=GPU, **options).graphs[0]


def _costs(graph: Graph) -> list[Any]:
    from memwall.ops import graph_costs

    return list(graph_costs(graph))


def _trace(name: str, mode: str, tiny: Tiny) -> Graph:
    module = _module(name, tiny.constants)
    workload = memwall.Workload(
        functools.partial(tiny.model, module) if tiny.model else module.model,
        tiny.inputs or functools.partial(module.inputs, **tiny.sizes),
        getattr(module, "loss", None),
        getattr(module, "optimizer", "adamw"),
        name,
    )
    return memwall.profile(workload, mode=mode, gpu=GPU).graphs[0]


def _module(name: str, constants: Mapping[str, Any]) -> ModuleType:
    """A fresh copy of a model file, its constants overwritten; those of a class are arguments for it."""
    module = load_file(PROFILES / name / "model.py")
    for constant, value in constants.items():
        own = getattr(module, constant)
        setattr(module, constant, functools.partial(own, **value) if isinstance(own, type) else value)
    return module
