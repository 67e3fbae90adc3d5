"""A GPT of 24 layers as one stage for each GPU, 1F1B over micro-batches of one sequence (torch.distributed.pipelining).

The first stage holds the embeddings, the last the head; layers are dealt out as evenly as they can be. The schedule
runs forward and backward itself.

    memwall profile profiles/gpt_pipeline/model.py --mode training --cluster dgx-a100-80gb --world 8
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional as F

VOCAB, WIDTH, HEADS, LAYERS, SEQ = 50304, 2560, 32, 24, 2048
MICRO_BATCHES = 16


class Block(nn.Module):
    """Pre-norm decoder block."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Part(nn.Module):
    """The layers of one stage; the first one embeds tokens, the last one scores them."""

    def __init__(self, stage: int, stages: int):
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        if self.first:
            self.word, self.position = nn.Embedding(VOCAB, WIDTH), nn.Embedding(SEQ, WIDTH)
        mine = LAYERS // stages + (stage < LAYERS % stages)
        self.blocks = nn.ModuleList(Block() for _ in range(mine))
        if self.last:
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, x):
        if self.first:
            x = self.word(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


class Rank(nn.Module):
    """What one rank runs: a step of the schedule."""

    def __init__(self):
        super().__init__()
        rank, stages = dist.get_rank(), dist.get_world_size()
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.part = Part(rank, stages).to(device, torch.bfloat16)
        hidden = torch.empty(1, SEQ, WIDTH, dtype=torch.bfloat16, device=device, requires_grad=True)
        tokens = torch.empty(1, SEQ, dtype=torch.long, device=device)
        logits = torch.empty(1, SEQ, VOCAB, dtype=torch.bfloat16, device=device, requires_grad=True)
        stage = PipelineStage(
            self.part, rank, stages, device,
            input_args=(hidden if rank else tokens,), output_args=(logits if self.part.last else hidden,),
        )
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=loss_of)

    def forward(self, ids, labels):
        given = (ids,) if self.part.first else ()
        return self.schedule.step(*given, **({"target": labels} if self.part.last else {}))


def model() -> nn.Module:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    return Rank()


def inputs(batch=MICRO_BATCHES):
    return torch.randint(VOCAB, (batch, SEQ)), torch.randint(VOCAB, (batch, SEQ))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
