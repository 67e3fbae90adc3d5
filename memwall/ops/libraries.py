"""Ops of inference and attention libraries without a counterpart in torch: what each must do, met as custom ops in
modules and in the traces of profilers.

``library_schemas.txt`` says which rule counts which op, and its arguments' names. If contexts are in a paged cache, a
call does not contain their lengths, and its work is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from memwall.core.errors import Unsupported
from memwall.core.graph import Graph, TensorSpec
from memwall.ops import sequence_rules as sequence
from memwall.ops import table_calls
from memwall.ops.base import Call, Cost
from memwall.ops.contraction import product_pipe
from memwall.ops.launches import Plain, Stream
from memwall.ops.passes import streamed, vector_flops
from memwall.ops.product_launches import Gemm
from memwall.ops.recorded import Recorded, Specs
from memwall.ops.registry import Formula, call_of, classify, cost_of, define
from memwall.ops.results import attributes_of
from memwall.ops.results.products import attention, attention_backward
from memwall.ops.routing import expected_active
from memwall.ops.schemas import library_schemas
from memwall.ops.sequence_rules import Counted, Rule


@cache
def library_rule(name: str) -> Rule | None:
    """The rule of an op, as a trace names it; None if it has no rule."""
    key = name if "::" in name else f"autograd_function::{name}"
    counted_as = next((schema.counted_as for schema in library_schemas().get(key, ())), "")
    verb, _, rest = counted_as.partition(" ")
    if verb in ("moves", "converts", "activation"):
        tensors, _, kind = rest.partition(", ")
        reads, _, writes = tensors.partition(" -> ")
        op_class, _, flops = kind.partition(" ")
        if verb == "activation":
            return _activation(tensors, int(flops))
        if verb == "converts":
            return _converts(reads.split(), float(writes), op_class, int(flops or 0))
        return _moves(reads.split(), writes.split(), op_class, int(flops or 0))
    return _RULES.get(counted_as)


def not_recorded(name: str) -> str:
    """Why the work of an op does not follow from its record; empty if nothing is known of it."""
    return next((why for start, why in _NOT_RECORDED.items() if name.startswith(start)), "")


def _moves(reads: Sequence[str], writes: Sequence[str], op_class: str, per_element: int) -> Rule:
    """An op that reads and writes the given tensors whole, with these FLOPs for each element written."""

    def rule(call: Recorded) -> Counted:
        read, written = ([spec for name in names if (spec := call.tensor(name))] for names in (reads, writes))
        if not written:
            raise Unsupported("the shape of the result was not recorded")
        first = written[0]
        flops = vector_flops(first, per_element * sum(spec.numel for spec in written))
        cost = Cost(flops, sum(s.nbytes for s in read), sum(s.nbytes for s in written))
        return Counted(streamed(cost, first.numel), op_class)

    return rule


def _activation(like: str, per_element: int) -> Rule:
    """A function of each element of ``input``, or of a pair of its halves, into ``out``: so many FLOPs for each result,
    in the kernel of the torch op ``like``. Gates count their product: silu's 4 and 1, gelu's 5 (erf) or 9 (tanh) and 1.
    """

    def rule(call: Recorded) -> Counted:
        data, made = call.need("input"), call.need("out")
        flops = vector_flops(made, per_element * made.numel)
        kernel = cost_of(Call(like, (data,), ("self",), (made,), {}, data.nbytes, made.nbytes))
        total = sum(flops.values())
        launches = tuple(replace(one, flops=total) if isinstance(one, Stream) else one for one in kernel.launches)
        return Counted(replace(kernel, flops=flops, launches=launches), "elementwise")

    return rule


def _converts(reads: Sequence[str], width: float, op_class: str, per_element: int) -> Rule:
    """An op that reads the given tensors whole and writes ``width`` bytes for each element of the first."""

    def rule(call: Recorded) -> Counted:
        count = call.need(reads[0]).numel
        read = sum(spec.nbytes for name in reads if (spec := call.tensor(name)))
        cost = Cost(vector_flops(call.need(reads[0]), per_element * count), read, int(width * count))
        return Counted(streamed(cost, count), op_class)

    return rule


def _unpacks(call: Recorded) -> Counted:
    """Two numbers of 4 bits in each byte, written as half floats at least."""
    packed, scales = call.need("input"), call.need("absmax")
    count = 2 * packed.nbytes
    cost = Cost(vector_flops(scales, count), packed.nbytes + scales.nbytes, 2 * count)
    return Counted(streamed(cost, count), "elementwise")


def _half_byte_product(call: Recorded) -> Counted:
    """A product with weights of 4 bits, two in each byte; the arithmetic is in the dtype of the activations."""
    left, packed = call.need("left"), call.need("packed")
    if not left.shape or not left.shape[-1]:
        raise Unsupported("not a matmul with packed weights")
    depth = left.shape[-1]
    m, n = left.numel // depth, 2 * packed.nbytes // depth
    more = sum(spec.nbytes for name in ("absmax", "code", "w_scale", "w_zp", "bias") if (spec := call.tensor(name)))
    read = left.nbytes + packed.nbytes + more
    cost = Cost({product_pipe(left.dtype, {}): 2 * m * n * depth}, read, m * n * left.itemsize)
    return Counted(cost, "contraction")


def _cache_write(call: Recorded) -> Counted:
    """Keys and values written to the cache, in its dtype."""
    tensors = [(call.need(name), call.need(f"{name}_cache")) for name in ("key", "value")]
    write = sum(tensor.distinct_elements * store.itemsize for tensor, store in tensors)
    return Counted(streamed(Cost({}, sum(tensor.nbytes for tensor, _ in tensors), write), write), "movement")


def _cache_write_latent(call: Recorded) -> Counted:
    """The latent of keys and values, followed by the rotated part of the keys."""
    parts, cache = (call.need("kv_c"), call.need("k_pe")), call.need("kv_cache")
    read = sum(part.nbytes for part in parts)
    write = min(sum(part.distinct_elements for part in parts) * cache.itemsize, read)
    return Counted(streamed(Cost({}, read, write), write), "movement")


def _attention(call: Recorded) -> Counted:
    """Attention whose keys and values are arguments, and no cache of contexts."""
    query, key = call.need("query"), call.tensor("key")
    if key is None or len(key.shape) != len(query.shape) or call.packet.startswith("unified"):
        raise Unsupported("the lengths of cached contexts were not recorded")
    return _counted(call, "aten._flash_attention_forward.default", _operands(call), attention(call))


def _flash_backward(call: Recorded) -> Counted:
    """The gradient of attention; its autograd node recorded only the result's gradient, the rest is its forward's."""
    before = call.forward
    if before is None:
        raise Unsupported("its forward op is not in the trace")
    out, sums = attention(before)
    inputs = [("grad_out", call.need("grad_out")), *_operands(before), ("out", out), ("logsumexp", sums)]
    return _counted(before, "aten._flash_attention_backward.default", inputs, attention_backward(before))


def _operands(call: Recorded) -> list[tuple[str, TensorSpec]]:
    names = ("query", "key", "value", "cum_seq_q", "cum_seq_k")
    return [(name, spec) for name in names if (spec := call.tensor(name)) is not None]


def _counted(call: Recorded, name: str, inputs: list[tuple[str, TensorSpec]], outputs: Specs) -> Counted:
    found = table_calls.cost(name, inputs, outputs, **attributes_of(call))
    return Counted(found, "attention", notes=("; ".join(call.notes),) if call.notes else ())


def _experts(call: Recorded) -> Counted:
    """A mixture's two products for each token and expert it was routed to. The weights are read of the experts that are
    expected to be chosen by chance, and of one token's at least. If a map says that some experts are on other GPUs,
    those take their share."""
    hidden, first, second = (call.need(name) for name in ("hidden", "w1", "w2"))
    chosen = call.tensor("topk_ids") or call.need("topk_weights")  # of one shape
    if len(first.shape) != 3 or not first.shape[0] or not chosen.shape:
        raise Unsupported("not the weights of a mixture of experts")
    count = first.shape[0]
    maps = [spec.numel for spec in call.beyond if len(spec.shape) == 1 and spec.dtype == "int32"]
    everywhere = max([count, *maps])
    top_k, tokens = min(chosen.shape[-1], everywhere), math.prod(chosen.shape[:-1])
    fewest = min(top_k, count) if everywhere == count else 0
    active = max(round(expected_active(tokens, everywhere, top_k) * count / everywhere), fewest)
    expert_bytes = (first.nbytes + second.nbytes) // count
    pipe = product_pipe(first.dtype, {})
    flops = {pipe: 2 * chosen.numel * (first.numel + second.numel) // everywhere}
    read_bytes = hidden.nbytes + active * expert_bytes + chosen.nbytes
    both = Plain(flops=flops, read_bytes=read_bytes, write_bytes=hidden.nbytes, count=2)
    spared = (active - fewest) * expert_bytes
    cost = Cost(flops, read_bytes, hidden.nbytes, launches=(both,), spared_read_bytes=spared)
    note = "which experts were chosen was not recorded: as many are read as by chance, in the bound the fewest"
    if everywhere > count:
        note += f", and {count} of {everywhere} are taken to have had their share of the tokens"
    return Counted(cost, "contraction", notes=(note,))


def _product(call: Recorded) -> Counted:
    """``[m, k] x [n, k]`` or ``[m, k] x [k, n]``, by the shapes."""
    left, right = call.need("left"), call.need("right")
    if len(right.shape) != 2 or not left.shape:
        raise Unsupported("not a matmul")
    depth = left.shape[-1]
    if depth not in right.shape:
        raise Unsupported("the shapes make no matmul")
    m, n = left.numel // max(depth, 1), right.numel // max(depth, 1)
    itemsize = left.itemsize if left.itemsize > 1 else 2
    pipe = product_pipe(left.dtype, {})
    read, write = left.nbytes + right.nbytes, m * n * itemsize
    work = Gemm(pipe=pipe, batch=1, m=m, n=n, k=depth, itemsize=left.itemsize, read_bytes=read, write_bytes=write)
    return Counted(Cost({pipe: 2 * m * n * depth}, read, write, launches=(work,)), "contraction")


def _engine_product(call: Recorded) -> Counted:
    """A product of Transformer Engine: ``left`` [m, k], [k, m] if ``transa`` is 0, with ``right``, into ``out``; bytes
    are FP8. Forward adds a bias and keeps the gelu's input; backward reads that and sums the bias's gradient."""
    left, right, out = (call.need(name) for name in ("left", "right", "out"))
    depth = left.shape[-1] if call.value("transa", 1) else left.shape[0]
    if len(left.shape) != 2 or not depth or left.numel * right.numel != out.numel * depth**2:
        raise Unsupported("the shapes make no matmul")
    dtype = "float8_e4m3fn" if left.itemsize == 1 else left.dtype
    pipe, m, n = product_pipe(dtype, {}, allow_tf32=True), left.numel // depth, right.numel // depth
    bias, gelu = (spec.nbytes if (spec := call.tensor(name)) else 0 for name in ("bias", "pre_gelu"))
    backward = bool(call.value("grad", 0))
    read = left.nbytes + right.nbytes + (gelu if backward else bias) + out.nbytes * bool(call.value("accumulate", 0))
    write = out.nbytes + (bias if backward else gelu)
    work = Gemm(pipe=pipe, batch=1, m=m, n=n, k=depth, itemsize=left.itemsize, read_bytes=read, write_bytes=write)
    return Counted(Cost({pipe: 2 * m * n * depth}, read, write, launches=(work,)), "contraction")


def _packed_product(call: Recorded) -> Counted:
    """A product with weights of 4 or 8 bits, packed in a library's own layout: the scales have a column for each column
    of the result, and the arithmetic is in the dtype of the activations."""
    left, packed, scales = (call.need(name) for name in ("left", "packed", "scales"))
    if not left.shape or len(scales.shape) != 2:
        raise Unsupported("not a matmul with packed weights")
    depth, n = left.shape[-1], scales.shape[-1]
    m = left.numel // max(depth, 1)
    read = left.nbytes + packed.nbytes + scales.nbytes
    cost = Cost({product_pipe(left.dtype, {}): 2 * m * n * depth}, read, m * n * left.itemsize)
    return Counted(cost, "contraction")


#: rules by their names in ``library_schemas.txt``; ``moves`` takes what is read and written
_RULES: Mapping[str, Rule] = {
    "attention": _attention, "flash_backward": _flash_backward, "experts": _experts, "product": _product,
    "packed_product": _packed_product, "half_byte_product": _half_byte_product, "unpacks": _unpacks,
    "cache_write": _cache_write, "cache_write_latent": _cache_write_latent, "engine_product": _engine_product,
    "selective_scan": sequence.selective_scan, "recursive_filter": sequence.recursive_filter,
    "linear_attention": sequence.linear_attention, "linear_recurrence": sequence.linear_recurrence,
    "linear_attention_backward": sequence.linear_attention_backward,
    "causal_convolution": sequence.causal_convolution,
    "causal_convolution_backward": sequence.causal_convolution_backward,
}  # fmt: skip

_OF_LAYER = "the layer's weights and state are not among its arguments"
#: how the name of an op begins -> why its work does not follow from its record
_NOT_RECORDED: Mapping[str, str] = {
    "vllm::moe_forward": "the weights of the experts are not among its arguments",
    "vllm::mamba_mixer": _OF_LAYER, "vllm::linear_attention": _OF_LAYER, "vllm::short_conv": _OF_LAYER,
    "vllm::gdn_attention": _OF_LAYER, "vllm::kda_attention": _OF_LAYER, "vllm::plamo2_mamba_mixer": _OF_LAYER,
    "sglang::unified_attention": "the cached keys and values are not among its arguments",
    "fbgemm::split_embedding": "which rows of which tables were read is not recorded",
    "fbgemm::dense_embedding": "which rows of which tables were read is not recorded",
    **dict.fromkeys(("_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear"),
                    "a Transformer Engine module records neither its arithmetic (FP8 or not) nor all its tensors"),
    "FusedAttnFunc": "a Transformer Engine module records neither its mask nor the layout of its tensors",
}  # fmt: skip


# -- the same ops, met in modules --------------------------------------------------------------------------------------

#: arguments of other libraries' ops that only receive the result
RESULTS_ONLY = frozenset(("out", "dq", "dk", "dv"))
#: the classes of rules that have one
_CLASSES: Mapping[str, str] = {
    "attention": "attention", "flash_backward": "attention", "unpacks": "elementwise", "cache_write": "movement",
    "cache_write_latent": "movement", "selective_scan": "other", "recursive_filter": "other",
    "causal_convolution": "convolution",
    "causal_convolution_backward": "convolution",
}  # fmt: skip


def recorded_of(call: Call) -> Recorded:
    """A module's call as a trace would have it; its arguments have the names of ``library_schemas.txt``."""
    space, _, rest = call.name.partition(".")
    given = {name: call.args(name) for name in dict.fromkeys(call.arguments)}
    return Recorded(
        name=call.name if "." in rest else f"{call.name}.default",
        recorded_name=f"{space}::{rest.partition('.')[0]}",
        given=given,
        arguments=(*given, *call.attributes),
        values=call.attributes,
        defaults=dict.fromkeys(call.attributes),
        results=len(call.outputs),
    )


def counted(call: Call) -> Counted | None:
    """What the rule of a module's call says; None if it has none.

    Raises:
        Unsupported: the call's arguments do not say what the op must do.
    """
    space, _, rest = call.name.partition(".")
    rule = library_rule(f"{space}::{rest.partition('.')[0]}")
    return None if rule is None else rule(recorded_of(call))


def library_notes(graph: Graph) -> list[str]:
    """What the calls of other libraries' ops do not say, and what is counted instead; once for each op."""
    found = []
    for op in {op.name: op for op in graph.ops if not op.name.startswith("aten.")}.values():
        try:
            said = counted(call_of(graph, op))
        except Unsupported as error:
            found.append(f"{op.name}: {error}")
        except LookupError:
            continue
        else:
            found += [f"{op.name}: {note}" for note in said.notes] if said else []
    return found


def _by_rule(call: Call) -> Cost:
    """The cost of a module's call by its rule."""
    try:
        found = counted(call)
    except Unsupported as error:
        raise LookupError(str(error)) from error
    if found is None:
        raise LookupError(f"{call.name} has no rule")
    return found.cost


def _like(other: str) -> Formula:
    """The cost of an op that another one's formula counts."""

    def cost(call: Call) -> Cost:
        kept = [
            (name, spec) for name, spec in zip(call.arguments, call.inputs, strict=True) if name not in RESULTS_ONLY
        ]
        names, specs = tuple(name for name, _ in kept), tuple(spec for _, spec in kept)
        unread = sum(spec.nbytes for spec in call.inputs) - sum(spec.nbytes for spec in specs)
        return cost_of(replace(call, name=other, arguments=names, inputs=specs, read_bytes=call.read_bytes - unread))

    return cost


for _name, (_version, *_) in library_schemas().items():
    _counted_as = _version.counted_as
    if not _counted_as or _name.startswith(("aten::", "autograd_function::")):
        continue
    if _counted_as.startswith("aten."):
        define(_name, op_class=classify(_counted_as), cost=_like(_counted_as))
    elif library_rule(_name) is not None:
        _stated = _counted_as.rpartition(", ")[2].partition(" ")[0] if ", " in _counted_as else ""
        define(_name, op_class=_stated or _CLASSES.get(_counted_as, "contraction"), cost=_by_rule)
