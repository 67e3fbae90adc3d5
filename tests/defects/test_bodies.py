"""Ops whose Python body PyTorch looks into: Triton ops, attention over packed sequences, products of int8."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall


class Call(nn.Module):
    """A module around a function, which is not copied with it."""

    def __init__(self, call):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, dtype=torch.bfloat16))
        self.call = call

    def forward(self, *tensors):
        return self.call(*tensors)


def _ops(profile):
    return [(op.name, cost.total_flops) for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True)]


def test_attention_over_sequences_of_several_lengths_counts_its_products():
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def attend(packed):
        ends = torch.tensor([0, 128, 256], dtype=torch.int32, device=packed.device)
        return varlen.varlen_attn(*packed.unbind(1), ends, ends, 128, 128)

    packed = torch.randn(256, 3, 4, 64, dtype=torch.bfloat16, requires_grad=True)
    forward = memwall.profile(Call(attend), (packed,))
    assert _ops(forward)[0] == ("aten._flash_attention_forward", 33_554_432)  # 2 * 4 heads * 128*128 * 2*(64 + 64)
    assert forward.coverage.unmodeled == ()


def test_its_gradient_is_twice_that():
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def attend(packed, weight):
        ends = torch.tensor([0, 128, 256], dtype=torch.int32, device=packed.device)
        return varlen.varlen_attn(*(packed * weight).unbind(1), ends, ends, 128, 128)

    class Weighted(Call):
        def forward(self, packed):
            return self.call(packed, self.weight)

    packed = torch.randn(256, 3, 4, 64, dtype=torch.bfloat16)
    step = memwall.profile(Weighted(attend), (packed,), mode="training", optimizer=None)
    assert dict(_ops(step))["aten._flash_attention_backward"] == 67_108_864


def test_keys_in_pages_count_to_the_longest_sequence_and_no_page_that_none_fills():
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def decode(query, keys, values, table, used):
        starts = torch.arange(5, dtype=torch.int32, device=query.device)
        return varlen.varlen_attn(
            query, keys, values, starts, None, 1, 100, enable_gqa=True, seqused_k=used, block_table=table
        )

    pages = torch.randn(64, 16, 2, 16, dtype=torch.bfloat16)  # 64 pages of 16 tokens, 2 heads of 16
    table = torch.arange(32, dtype=torch.int32).view(4, 8)
    used = torch.full((4,), 100, dtype=torch.int32)
    query = torch.randn(4, 8, 16, dtype=torch.bfloat16)
    profile = memwall.profile(Call(decode), (query, pages, pages.clone(), table, used))
    ours = {op.name: cost for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True)}
    cost = ours["aten._flash_attention_forward"]
    assert cost.total_flops == 204_800  # 4 sequences * 8 heads * 100 keys * 2*(16 + 16)
    # queries 4*8*16*2, keys and values 2 * 4*100*2*16*2, the table 32*4, offsets and lengths (5 + 4)*4
    assert cost.read_bytes == 1_024 + 51_200 + 128 + 36


def test_a_product_of_int8_runs_on_the_engine_of_int8():
    from torch._higher_order_ops.out_dtype import out_dtype

    def product(x, weight):
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, weight)

    x, weight = torch.ones(64, 512, dtype=torch.int8), torch.ones(512, 1024, dtype=torch.int8)
    profile = memwall.profile(Call(product), (x, weight))
    (op,), (cost,) = profile.graph.ops, profile.costs[0]
    assert op.name == "aten._int_mm"
    assert cost.flops == {memwall.Pipe("tensor", "int8"): 67_108_864}  # 2 * 64 * 512 * 1024
    assert (cost.read_bytes, cost.write_bytes) == (64 * 512 + 512 * 1024, 64 * 1024 * 4)


def test_a_triton_op_is_recorded_as_its_kernels_and_calls():
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")
    from torch.library import triton_op, wrap_triton

    @triton.jit
    def doubled(x_ptr, y_ptr, n, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        tl.store(y_ptr + at, tl.load(x_ptr + at, at < n) * 2, at < n)

    def twice(x):
        y = torch.empty_like(x)
        wrap_triton(doubled)[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
        return y

    @triton_op("memwall_tests::attend_twice", mutates_args={})
    def attend(x: torch.Tensor) -> torch.Tensor:
        rows = F.linear(twice(x), torch.ones(64, 64, dtype=x.dtype, device=x.device)).view(1, 4, 64, 64)
        return F.scaled_dot_product_attention(rows, rows, rows)

    x = torch.randn(256, 64, dtype=torch.bfloat16)
    assert _ops(memwall.profile(Call(lambda x: attend(x)), (x,))) == [
        ("triton.doubled", 16_384),  # 256 * 64
        ("aten.ones", 0), ("aten.mm", 2_097_152),  # 2 * 256 * 64 * 64
        ("aten._scaled_dot_product_cudnn_attention", 4_194_304),  # 4 heads * 64*64 * 2*(64 + 64)
    ]  # fmt: skip
    outside = memwall.profile(Call(lambda x: twice(x)), (x,))
    assert [op.name for op in outside.graph.ops] == ["triton.doubled"]
    assert outside.costs[0][0].bytes == 2 * 256 * 64 * 2


def test_pointers_behind_descriptors_keywords_and_helpers_are_found():
    from memwall.frontend.torch.dispatch.triton_calls import pointer_use

    source = """
    def kernel(a_ptr, b_desc, c_ptr, d_ptr, out_ptr, n, block: tl.constexpr):
        a = tl.make_tensor_descriptor(a_ptr, shape=[n], strides=[1], block_shape=[block])
        out = tl.make_tensor_descriptor(out_ptr, shape=[n], strides=[1], block_shape=[block])
        x = a.load([0]) + b_desc.load([0]) + tl.load(pointer=c_ptr + tl.arange(0, block))
        lib.add_one(d_ptr, n)
        out.store([0], x)
    """
    reads, writes = pointer_use(source, frozenset(("a_ptr", "b_desc", "c_ptr", "d_ptr", "out_ptr")))
    assert reads == {"a_ptr", "b_desc", "c_ptr", "d_ptr"}
    assert writes == {"d_ptr", "out_ptr"}


def test_pinned_memory_is_the_hosts():
    def forward(x):
        rows = torch.tensor([1, 3, 5], pin_memory=True).to(x.device, non_blocking=True)
        more = torch.arange(3, pin_memory=True).cuda(non_blocking=True)
        return x[rows] + x[more]

    profile = memwall.profile(Call(forward), (torch.randn(64, 64),))
    names = [op.name for op in profile.graph.ops]
    assert names.count("aten.index.Tensor") == 2
    assert "aten.arange" not in names
