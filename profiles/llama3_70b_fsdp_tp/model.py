"""Llama 3 70B trained with FSDP2 over nodes and tensor and sequence parallelism over the eight GPUs of each.

As torchtitan cuts it: the residual stream lies in parts of the sequence on the GPUs of a node, gathered before
attention and the MLP and scattered as it is summed after them; blocks compute their activations again in backward.

    memwall profile profiles/llama3_70b_fsdp_tp/model.py --mode training --cluster dgx-h100 --world 256
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
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)

loss, optimizer = llama.loss, llama.optimizer

#: module of the model, and of a block → how its weight is cut
OUTER = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "norm": SequenceParallel(use_local_output=True),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
}
BLOCK = {
    "norm1": SequenceParallel(use_local_output=True),
    "norm2": SequenceParallel(use_local_output=True),
    "attention": PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    ),
    "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    **dict.fromkeys(("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"), ColwiseParallel()),
    **dict.fromkeys(("attention.out", "mlp.down"), RowwiseParallel(output_layouts=Shard(1))),
}


def model(layers=80) -> nn.Module:
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    shape = (int(os.environ["WORLD_SIZE"]) // per_node, per_node)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = llama.Llama(llama.Config(width=8192, layers=layers, heads=64, kv_heads=8, ffn=28672))
    parallelize_module(net, mesh["tp"], OUTER)
    for i, block in enumerate(net.blocks):
        parallelize_module(block, mesh["tp"], BLOCK)
        net.blocks[i] = fully_shard(checkpoint_wrapper(block), mesh=mesh["dp"], mp_policy=policy)
    return fully_shard(net, mesh=mesh["dp"], mp_policy=policy)


def eight_blocks() -> nn.Module:
    """A part of it that is quick to trace."""
    return model(layers=8)


def inputs(batch=4, seq=4096):
    return llama.inputs(batch, seq)
