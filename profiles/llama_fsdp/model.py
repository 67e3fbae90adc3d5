"""One rank of a Llama of 8 layers, sharded by FSDP2 over nodes and tensor-parallel inside one, as under torchrun.

    memwall profile profiles/llama_fsdp/model.py --mode training --cluster dgx-h100 --world 64
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)

inputs, loss, optimizer = llama.inputs, llama.loss, llama.optimizer

#: GPUs of a node that share each layer
TENSOR_PARALLEL = 2
#: module of a block -> how its weight is cut
PLAN = {
    **dict.fromkeys(("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"), ColwiseParallel()),
    **dict.fromkeys(("attention.out", "mlp.down"), RowwiseParallel()),
}


def model() -> nn.Module:
    world = int(os.environ.get("WORLD_SIZE", "8"))
    mesh = init_device_mesh("cuda", (world // TENSOR_PARALLEL, TENSOR_PARALLEL), mesh_dim_names=("dp", "tp"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = llama.Llama(llama.Config(width=2048, layers=8, heads=32, kv_heads=8, ffn=8192))
    for block in net.blocks:
        parallelize_module(block, mesh["tp"], PLAN)
        fully_shard(block, mesh=mesh["dp"], mp_policy=policy)
    return fully_shard(net, mesh=mesh["dp"], mp_policy=policy)
