"""How values pass through operators: tables of those that are not as most are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from memwall.ops.signatures import Signature

#: Ops that take tensors on the host and the device alike.
COPIES = frozenset(("aten.copy_", "aten._to_copy"))
#: Ops that keep some of their rows, and whose schemas do not say so.
UNTAGGED = ("torchvision.nms", "torchvision.qnms")
#: Ops that take masks as indices, which the recorder turns into places first; and the dtypes of masks.
INDEXED = frozenset(
    ("aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
     "aten._unsafe_index_put")
)  # fmt: skip
MASKS = (torch.bool, torch.uint8)
#: Ops that move elements one by one.
COPYING = frozenset(("aten._to_copy", "aten.clone"))
#: Reductions to one number that of equal elements is that of one.
SAME_OF_ONE = frozenset(getattr(torch.ops.aten, name).default for name in ("all", "any", "max", "min"))
#: What activations are, element by element: finite.
FINITE: Mapping[str, bool] = {"aten.isnan": False, "aten.isinf": False, "aten.isfinite": True}
#: What makes tensors of one number -> that number.
FILLS: Mapping[str, Callable[[tuple], Any]] = {
    "zeros": lambda args: 0, "ones": lambda args: 1, "full": lambda args: args[-1],
}  # fmt: skip
#: Ops that choose among scores -> the axis.
CHOICES: Mapping[str, Callable[[tuple, Mapping[str, Any]], int | None]] = {
    "aten.topk": lambda args, kwargs: args[2] if len(args) > 2 else kwargs.get("dim", -1),
    "aten.argmax": lambda args, kwargs: args[1] if len(args) > 1 else kwargs.get("dim"),
    "aten.max.dim": lambda args, kwargs: args[1],
}


class Kind(NamedTuple):
    """How values pass through an operator: the arguments (by position and name) that it reads and those that it writes;
    whether it moves no data, whether its result or its result's shape depends on values, whether it draws random
    numbers, whether it treats element by element; whether its results are always new tensors."""

    reads: tuple[tuple[int, str], ...]
    writes: tuple[tuple[int, str], ...]
    free: bool
    asks: bool
    random: bool
    pointwise: bool
    fresh: bool

    @classmethod
    def of(cls, signature: Signature) -> Kind:
        tags = signature.function.tags
        tagged = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        asks = (tagged and signature.name not in INDEXED) or signature.name in UNTAGGED
        schema = signature.function._schema
        aliases = any(item.alias_info is not None for item in (*schema.arguments, *schema.returns))
        plain = signature.function.namespace == "aten" and not (signature.composite or signature.free or tagged)
        numbered = [(place, argument.name, argument) for place, argument in enumerate(signature.arguments)]
        return cls(
            tuple((place, name) for place, name, a in numbered if not a.unread and "Tensor" in a.kind),
            tuple((place, name) for place, name, a in numbered if a.written),
            signature.free and not asks, asks, torch.Tag.nondeterministic_seeded in tags,
            torch.Tag.pointwise in tags or signature.name in COPYING, plain and not aliases,
        )  # fmt: skip
