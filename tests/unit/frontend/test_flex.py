"""flex_attention as torch.compile makes it: the blocks of its mask that are computed, by hand."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import memwall
from memwall.core.graph import Pipe
from memwall.ops.product_launches import BlockAttention

COMPILED = torch.compile(flex_attention)
FORWARD, BACKWARD = "higher_order.flex_attention", "higher_order.flex_attention_backward"
#: four documents of 256 tokens
DOCUMENTS = torch.arange(4).repeat_interleave(256)


def causal(batch, head, query, key):
    return query >= key


class Attention(nn.Module):
    """Two heads of 64 numbers under a mask, by a function that may be compiled."""

    def __init__(self, function, mask=causal, **options):
        super().__init__()
        self.function, self.mask, self.options = function, mask, options
        self.qkv = nn.Linear(128, 384)
        self.register_buffer("documents", DOCUMENTS.clone())

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 64)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        length = x.shape[1]
        mask = self.mask and create_block_mask(self.mask, None, None, length, length, device=x.device)
        function = torch.compile(flex_attention) if self.function == "inside" else self.function
        return function(q, k, v, block_mask=mask, **self.options).transpose(1, 2).flatten(2)


def flex_costs(net, length, **options):
    made = memwall.profile(net, (torch.empty(1, length, 128),), gpu="h100-sxm", dtype="bfloat16", **options)
    return {op.name: c for op, c in zip(made.graph.ops, made.costs[0], strict=True) if "flex" in op.name}


@pytest.mark.parametrize("net", [Attention(COMPILED), Attention("inside"), torch.compile(Attention(flex_attention))])
def test_what_is_compiled_is_one_kernel_of_the_blocks_that_the_mask_keeps(net):
    (found,) = flex_costs(net, 1024).values()
    # 8 rows of blocks of 128, of which the causal mask keeps 1 + 2 + ... + 8; two products of 64 for two heads
    assert found.total_flops == 36 * 128 * 128 * 2 * (64 + 64) * 2
    assert found.dense_flops == 1024 * 1024 * 2 * (64 + 64) * 2
    assert [type(work) for work in found.launches] == [BlockAttention]


def test_what_is_not_compiled_computes_all_scores():
    assert not flex_costs(Attention(flex_attention), 1024)


def test_a_policy_that_compiles_all_compiles_it():
    assert list(flex_costs(Attention(flex_attention), 1024, policy="inductor")) == [FORWARD]


def test_a_mask_of_a_tensor_keeps_the_blocks_of_each_document():
    net = Attention(COMPILED)
    net.mask = lambda batch, head, query, key: net.documents[query] == net.documents[key]
    (found,) = flex_costs(net, 1024).values()
    # two blocks of 128 for each of 8 rows
    assert found.total_flops == 16 * 128 * 128 * 2 * (64 + 64) * 2


def test_without_a_mask_all_pairs_are_computed():
    (found,) = flex_costs(Attention(COMPILED, None), 1024).values()
    assert found.total_flops == found.dense_flops


def test_a_mask_that_is_too_large_to_be_known_is_computed_row_by_row():
    (found,) = flex_costs(Attention(COMPILED), 4096).values()
    # 32 rows: 1 + 2 + ... + 32
    assert found.total_flops == 528 * 128 * 128 * 2 * (64 + 64) * 2


def test_backward_computes_scores_and_their_gradients_twice():
    found = flex_costs(Attention(COMPILED), 1024, mode="training", loss=lambda out: (out * out).sum())
    assert list(found) == [FORWARD, BACKWARD]
    cost = found[BACKWARD]
    pairs = 36 * 128 * 128 * 2
    assert cost.total_flops == pairs * 4 * (64 + 64)
    delta, kernel = cost.launches
    # flex_backwards.py.jinja: three products for the queries' gradient, four for those of keys and values
    assert kernel.pipe_flops == {Pipe("tensor", "bfloat16"): pairs * 7 * 2 * 64}
    assert delta.pipe_flops == {}


def test_few_queries_are_decoded():
    class Step(nn.Module):
        def forward(self, q, k, v):
            return COMPILED(q, k, v, enable_gqa=True)

    inputs = torch.empty(4, 8, 1, 64), torch.empty(4, 2, 2048, 64), torch.empty(4, 2, 2048, 64)
    made = memwall.profile(Step(), inputs, gpu="h100-sxm", dtype="bfloat16")
    (cost,) = [c for op, c in zip(made.graph.ops, made.costs[0], strict=True) if op.name == FORWARD]
    assert cost.launches[0].variant == "decode"


def test_the_backend_flash_is_flash_attention_4():
    (found,) = flex_costs(Attention(COMPILED, kernel_options={"BACKEND": "FLASH"}), 1024).values()
    assert found.launches[0].variant == "flash4"
