"""Llama 3 8B on 131,072 tokens: context parallel over the GPUs of a node, FSDP2 over all of them.

As torchtitan writes it: each rank holds an eighth of the sequence, two parts of sixteen so that all have as much to do
under the causal mask; attention is torch's, which gathers keys and values while it attends to those it has, and hands
their gradients around. Blocks compute their activations again in backward.

    memwall profile profiles/llama3_8b_cp/model.py --mode training --cluster dgx-h100 --world 16
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _ContextParallel,
    _enable_context_parallel_dispatcher,
    _HeadTailLoadBalancer,
)
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional as F

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)

loss, optimizer = llama.loss, llama.optimizer

SEQ = 131072


class Scores(nn.Module):
    """Attention's core as a module of its own, for the ring to hook."""

    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(llama.Attention):
    def __init__(self, config):
        super().__init__(config)
        self.scores, self.groups = Scores(), config.heads // config.kv_heads

    def forward(self, x, cos, sin):
        q, k, v = (self.heads(project(x)) for project in (self.query, self.key, self.value))
        q, k = llama.rotate(q, cos, sin), llama.rotate(k, cos, sin)
        k, v = (each.repeat_interleave(self.groups, dim=1) for each in (k, v))
        return self.out(self.scores(q, k, v).transpose(1, 2).flatten(2))


class Llama(llama.Llama):
    def __init__(self, config, mesh):
        super().__init__(config)
        self.mesh = mesh
        for block in self.blocks:
            block.attention = Attention(config)

    def forward(self, ids):
        cos, sin = llama.rotary_tables(ids.shape[1], self.head_dim, self.norm.weight)
        balanced = _HeadTailLoadBalancer(ids.shape[1], self.mesh.size(), ids.device)
        ids, cos, sin = _context_parallel_shard(self.mesh, (ids, cos, sin), (1, 0, 0), balanced)
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def model(layers=32) -> nn.Module:
    world, per_node = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (world // per_node, per_node), mesh_dim_names=("dp", "cp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = Llama(llama.Config(layers=layers), mesh["cp"])
    ring = _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.SDPA)
    _enable_context_parallel_dispatcher()
    everyone = mesh["dp", "cp"]._flatten("dp_cp")
    for i, block in enumerate(net.blocks):
        parallelize_module(block.attention.scores, mesh["cp"], ring)
        net.blocks[i] = fully_shard(checkpoint_wrapper(block), mesh=everyone, mp_policy=policy)
    return fully_shard(net, mesh=everyone, mp_policy=policy)


def eight_blocks() -> nn.Module:
    """A part of it that is quick to trace."""
    return model(layers=8)


def inputs(batch=1, seq=SEQ):
    return (torch.randint(llama.Config().vocab, (batch, seq)),)
