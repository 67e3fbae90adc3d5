"""A mixture of experts whose experts lie on all GPUs of a node: tokens go to theirs and back by all-to-all.

Attention and the router are the same on every rank, where DistributedDataParallel sums their gradients; of the experts
each rank of a node holds an eighth, and the same ranks of other nodes sum theirs. Every rank sends each other one as
many rows: the router's choice is taken to be even.

    memwall profile profiles/moe_ep/model.py --mode training --cluster dgx-h100 --world 16
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

spec = spec_from_file_location("mixtral_model", Path(__file__).parents[1] / "mixtral_8x7b" / "model.py")
mixtral = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(mixtral)

inputs, loss = mixtral.inputs, mixtral.loss

LAYERS, EXPERTS, CHOSEN = 8, mixtral.EXPERTS, mixtral.EXPERTS_PER_TOKEN


class Exchange(torch.autograd.Function):
    """Row group i to rank i of the group; backward the same, the other way."""

    @staticmethod
    def forward(ctx, rows, group):
        ctx.group = group
        received = torch.empty_like(rows)
        dist.all_to_all_single(received, rows.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx, gradient):
        sent = torch.empty_like(gradient)
        dist.all_to_all_single(sent, gradient.contiguous(), group=ctx.group)
        return sent, None


class Expert(nn.Module):
    """SwiGLU."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(mixtral.WIDTH, mixtral.FFN, bias=False)
        self.up = nn.Linear(mixtral.WIDTH, mixtral.FFN, bias=False)
        self.down = nn.Linear(mixtral.FFN, mixtral.WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoE(nn.Module):
    """Each token to its two best experts, wherever they are, and back; the router's weights add them up."""

    def __init__(self, group):
        super().__init__()
        self.group, self.ranks = group, dist.get_world_size(group)
        self.router = nn.Linear(mixtral.WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS // self.ranks))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).float().topk(CHOSEN)
        weights = scores.softmax(dim=-1).to(x.dtype)
        order = chosen.flatten().argsort()  # expert by expert: as many rows for each
        received = Exchange.apply(tokens[order // CHOSEN], self.group)
        # from each rank the rows of my experts, one after the other
        mine = received.unflatten(0, (self.ranks, len(self.experts), -1)).unbind(1)
        pairs = zip(self.experts, mine, strict=True)
        done = [expert(rows.flatten(0, 1)).unflatten(0, (self.ranks, -1)) for expert, rows in pairs]
        back = Exchange.apply(torch.stack(done, 1).flatten(0, 2), self.group)
        rows = back * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, rows).view_as(x)


class Block(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(mixtral.WIDTH), nn.RMSNorm(mixtral.WIDTH)
        self.attention, self.moe = mixtral.Attention(), MoE(group)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.moe(self.norm2(x))


class Net(nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.embedding = nn.Embedding(mixtral.VOCAB, mixtral.WIDTH)
        self.blocks = nn.ModuleList(Block(mesh["ep"].get_group()) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(mixtral.WIDTH)
        self.head = nn.Linear(mixtral.WIDTH, mixtral.VOCAB, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        cos, sin = mixtral.rotary_tables(ids.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def summed_over(group):
    """A hook that sums an expert's gradient as soon as it is there, and waits for it."""

    def hook(parameter):
        dist.all_reduce(parameter.grad, group=group)

    return hook


def model() -> nn.Module:
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]) // per_node, per_node), mesh_dim_names=("dp", "ep"))
    net = Net(mesh).to("cuda", torch.bfloat16)
    experts = [(name, weight) for name, weight in net.named_parameters() if ".experts." in name]
    for _, weight in experts:
        weight.register_post_accumulate_grad_hook(summed_over(mesh["dp"].get_group()))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, [name for name, _ in experts])
    return DistributedDataParallel(net)


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
