"""Llama 3 8B trained with FSDP2: fp32 shards of every block, gathered in bf16, gradients summed in fp32.

Blocks compute their activations again in backward; 4,096 tokens a GPU.

    memwall profile profiles/llama3_8b_fsdp/model.py --mode training --cluster dgx-h100 --world 64
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

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)

inputs, loss, optimizer = llama.inputs, llama.loss, llama.optimizer


def model(layers=32) -> nn.Module:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = llama.Llama(llama.Config(layers=layers))
    for i, block in enumerate(net.blocks):
        net.blocks[i] = fully_shard(checkpoint_wrapper(block), mesh=mesh, mp_policy=policy)
    return fully_shard(net, mesh=mesh, mp_policy=policy)


def eight_blocks() -> nn.Module:
    """A part of it that is quick to trace."""
    return model(layers=8)
