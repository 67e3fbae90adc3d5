"""Llama 3 405B on 1,024 GPUs: tensor and sequence parallel inside a node, 16 stages of a pipeline, FSDP2 over the rest.

As Llama 3 was trained (Grattafiori et al. 2024, section 3.3.2): the first and the last stage have a block less; shards
are gathered once a step and kept; blocks compute their activations again in backward; 1F1B over micro-batches of one
sequence of 8,192 tokens.

    memwall profile profiles/llama3_405b_3d/model.py --mode training --cluster dgx-h100 --world 1024
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
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

optimizer = llama.optimizer

CONFIG = llama.Config(width=16384, layers=126, heads=128, kv_heads=8, ffn=53248)
SEQ, STAGES, MICRO_BATCHES = 8192, 16, 16

#: module of the first and the last stage, and of a block → how its weight is cut
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


class Part(nn.Module):
    """The blocks of one stage; the first one embeds tokens, the last one scores them."""

    def __init__(self, stage: int):
        super().__init__()
        first, last = stage == 0, stage == STAGES - 1
        self.embedding = nn.Embedding(CONFIG.vocab, CONFIG.width) if first else None
        self.blocks = nn.ModuleList(llama.Block(CONFIG) for _ in range(-(-CONFIG.layers // STAGES) - (first or last)))
        self.norm = llama.RMSNorm(CONFIG.width) if last else None
        self.head = nn.Linear(CONFIG.width, CONFIG.vocab, bias=False) if last else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        cos, sin = llama.rotary_tables(SEQ, CONFIG.head_dim, x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x if self.head is None else self.head(self.norm(x))


def sharded(part: Part, tp, dp) -> nn.Module:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    parallelize_module(part, tp, {name: how for name, how in OUTER.items() if getattr(part, name) is not None})
    for i, block in enumerate(part.blocks):
        parallelize_module(block, tp, BLOCK)
        block = checkpoint_wrapper(block)
        part.blocks[i] = fully_shard(block, mesh=dp, mp_policy=policy, reshard_after_forward=False)
    return fully_shard(part, mesh=dp, mp_policy=policy, reshard_after_forward=False)


class Rank(nn.Module):
    """What one rank runs: a step of the schedule."""

    def __init__(self):
        super().__init__()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        per_node = int(os.environ["LOCAL_WORLD_SIZE"])
        shape = (STAGES, int(os.environ["WORLD_SIZE"]) // STAGES // per_node, per_node)
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("pp", "dp", "tp"))
        number = mesh["pp"].get_local_rank()
        self.first, self.last = number == 0, number == STAGES - 1
        self.part = sharded(Part(number), mesh["tp"], mesh["dp"])
        hidden = torch.empty(1, SEQ // per_node, CONFIG.width, dtype=torch.bfloat16, device=device, requires_grad=True)
        logits = torch.empty(1, SEQ, CONFIG.vocab, dtype=torch.bfloat16, device=device, requires_grad=True)
        tokens = torch.empty(1, SEQ, dtype=torch.long, device=device)
        stage = PipelineStage(
            self.part, number, STAGES, device, group=mesh["pp"].get_group(),
            input_args=(tokens if self.first else hidden,), output_args=(logits if self.last else hidden,),
        )
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda logits, labels: llama.loss(logits))

    def forward(self, ids):
        given = (ids,) if self.first else ()
        return self.schedule.step(*given, **({"target": ids} if self.last else {}))


def model() -> nn.Module:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return Rank()


def inputs(batch=MICRO_BATCHES):
    return (torch.randint(CONFIG.vocab, (batch, SEQ)),)
