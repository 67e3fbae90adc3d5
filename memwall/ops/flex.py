"""``flex_attention`` as ``torch.compile`` makes it: one kernel that goes over the blocks of pairs that its mask keeps.

- ``pairs`` is what a trace found of the mask: the (query, key) pairs of a head in the blocks that are computed, whole
  ones. FLOPs are counted of them, ``dense_flops`` of all pairs.
- Forward is the Triton template ``flex_attention``, or ``flex_decoding`` for fewer than 128 queries, which splits the
  keys (torch's ``_inductor/kernel/flex``); backward ``flex_backwards``, after a pass that sums ``out * grad_out``. The
  backend ``FLASH`` of ``kernel_options`` is FlashAttention-4.
- What ``score_mod`` and ``mask_mod`` compute of a score is not counted.
"""

from __future__ import annotations

from functools import partial

from memwall.ops.base import Call, Cost
from memwall.ops.contraction import product_pipe
from memwall.ops.launches import Stream
from memwall.ops.product_launches import BlockAttention
from memwall.ops.registry import formula

op = partial(formula, "attention")

FLEX = "higher_order.flex_attention"


def _launch(call: Call, read_bytes: int, write_bytes: int, backward: bool) -> BlockAttention:
    """The kernel; of a few new tokens each is a head of its own, as the kernel packs them with a group's heads."""
    query, value, pairs = call.need("query"), call.need("value"), call.attributes["pairs"]
    batch, heads, queries, size = query.shape
    tokens = queries if call.attributes.get("decoding") and not backward else 1
    return BlockAttention(
        pipe=product_pipe(query.dtype, call.attributes),
        kernel=call.attributes["implementation"],
        backward=backward,
        batch=batch,
        heads=heads * tokens,
        kv_heads=value.shape[1],
        queries=queries // tokens,
        keys=value.shape[2],
        head_size=size,
        value_size=value.shape[-1],
        pairs=pairs // tokens,
        itemsize=query.itemsize,
        read_bytes=read_bytes,
        write_bytes=write_bytes,
    )


def _flops(call: Call, products: int) -> tuple[int, int]:
    """FLOPs of so many products of the pairs that are computed, and of all."""
    query, value = call.need("query"), call.need("value")
    batch, heads, queries, size = query.shape
    per_pair = products * batch * heads * (size + value.shape[-1])
    return per_pair * call.attributes["pairs"], per_pair * queries * value.shape[2]


@op("higher_order::flex_attention")
def flex(call: Call) -> Cost:
    """``query`` [b, h, s, d], ``key`` [b, hk, t, d], ``value`` [b, hk, t, dv]: two products."""
    flops, dense = _flops(call, 2)
    work = _launch(call, call.read_bytes, call.write_bytes, backward=False)
    return call.cost({work.pipe: flops}, dense_flops=dense, launches=(work,))


@op("higher_order::flex_attention_backward")
def flex_backward(call: Call) -> Cost:
    """Four products, and what is computed again of forward in the launch."""
    flops, dense = _flops(call, 4)
    grad, out = call.need("grad_out"), call.need("out")
    row_bytes = 4 * out.numel // out.shape[-1]
    before = Stream(read_bytes=grad.nbytes + out.nbytes, write_bytes=row_bytes, elements=out.numel)
    work = _launch(call, call.read_bytes - out.nbytes + row_bytes, call.write_bytes, backward=True)
    return call.cost({work.pipe: flops}, dense_flops=dense, launches=(before, work))
