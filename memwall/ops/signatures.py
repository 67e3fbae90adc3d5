"""What the recorder needs to know of an operator, from its schema and from tables of names."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from memwall.core import compat
from memwall.ops.registry import find_row
from memwall.ops.schemas import library_schemas

#: Calls that launch nothing: allocations, metadata, aliases that ``func.is_view`` does not know.
FREE = frozenset(
    "aten." + name
    for name in (
        "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "alias", "detach",
        "detach_", "_reshape_alias", "_unsafe_view", "lift", "lift_fresh", "set_", "resize_", "record_stream",
        "is_same_size", "_local_scalar_dense", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk",
        "_nested_tensor_size", "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_pinned",
        "_indices", "_values", "indices", "values", "crow_indices", "col_indices", "_nnz", "_coalesced_",
        "is_coalesced",
        "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe",
        "sparse_compressed_tensor", "_sparse_compressed_tensor_with_dims", "sparse_dim", "dense_dim",
        "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "as_strided_", "_conj", "_neg_view",
        "_has_compatible_shallow_copy_type", "_version", "result_type", "is_nonzero",
        "_has_same_storage_numel", "_efficientzerotensor",
    )
) | {"_c10d_functional.wait_tensor", "_c10d_functional._wrap_tensor_autograd"}  # fmt: skip

#: Libraries whose calls are no kernels.
_SKIPPED_NAMESPACES = frozenset(("prim", "profiler"))

#: Libraries whose calls send to other ranks.
_COLLECTIVES = frozenset(("c10d", "_c10d_functional", "_dtensor"))

DROPPED_ATTRIBUTES = frozenset(("device", "layout", "pin_memory", "generator", "non_blocking", "memory_format"))


class SignatureArgument(NamedTuple):
    """One schema argument: its name, type and default, and whether the op writes it, or overwrites it unread."""

    name: str
    kind: str
    keyword_only: bool
    default: Any
    written: bool
    unread: bool


class Signature(NamedTuple):
    """What is known of an operator, looked up once. ``updates`` marks multi-tensor ops that only write their arguments:
    they need not be run to know their result, ``composite`` ops that autograd splits into others before they run,
    ``sends`` ops that send to other ranks."""

    function: Any
    name: str
    free: bool
    skipped: bool
    updates: bool
    composite: bool
    sends: bool
    arguments: tuple[SignatureArgument, ...]


@cache
def signature_of(func: Any) -> Signature:
    """Read an operator's schema."""
    schema = compat.schema(func)
    name = str(func).removesuffix(".default")
    packet = ".".join(name.split(".")[:2])
    row = find_row(name)
    renamed = _known_names(schema)
    overwrites, shape_only = (row.overwrites, row.shape_only) if row else (False, False)
    arguments = []
    for argument in schema.arguments:
        updated, filled = _changed(packet, argument.name) if func.namespace == "c10d" else (False, False)
        written = updated or (argument.alias_info is not None and argument.alias_info.is_write)
        unread = filled or (written and (argument.is_out or overwrites)) or (argument.name == "self" and shape_only)
        default = argument.default_value if argument.has_default_value() else None
        kind = str(argument.real_type)
        stated = renamed.get(argument.name, argument.name)
        arguments.append(SignatureArgument(stated, kind, argument.kwarg_only, default, written, unread))
    free = func.is_view or packet in FREE
    updates = packet.startswith(("aten._foreach_", "aten._fused_")) and not schema.returns
    skipped = func.namespace in _SKIPPED_NAMESPACES
    composite = not skipped and compat.can_decompose(func)
    sends = func.namespace in _COLLECTIVES
    return Signature(func, name, free, skipped, updates, composite, sends, tuple(arguments))


def _changed(packet: str, argument: str) -> tuple[bool, bool]:
    """Whether a collective writes an argument, and whether it does not read it: its schema states neither."""
    result = argument.startswith("output")
    return result or (argument == "tensors" and packet != "c10d.send"), result or "recv" in packet


def _known_names(schema: Any) -> dict[str, str]:
    """The arguments of another library's op → the names that its rule asks for: names of the version whose tensors
    stand in the same places."""
    versions = library_schemas().get(schema.name, ()) if not schema.name.startswith("aten::") else ()
    own = ["Tensor" in str(argument.real_type) for argument in schema.arguments]
    fitting = [
        [argument.name for argument in version.arguments]
        for version in versions
        if all(a == (b.kind != "value") for a, b in zip(own, version.arguments, strict=False))
    ]
    best = min(fitting, key=lambda names: abs(len(names) - len(own)), default=[])
    return {argument.name: name for argument, name in zip(schema.arguments, best, strict=False)}
