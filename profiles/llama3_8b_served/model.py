"""Llama 3 8B of ../llama3_8b/model.py, one token of each sequence at a time: what a server decodes."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch.nn import functional as F

spec = spec_from_file_location("llama3_8b_model", Path(__file__).parents[1] / "llama3_8b" / "model.py")
llama = sys.modules[spec.name] = module_from_spec(spec)
spec.loader.exec_module(llama)


class Attention(llama.Attention):
    """Attends to the keys and values of a cache, and to those of the new tokens, which it adds."""

    def forward(self, x, cos, sin, cache):
        q, k, v = (self.heads(project(x)) for project in (self.query, self.key, self.value))
        q, k = llama.rotate(q, cos, sin), llama.rotate(k, cos, sin)
        cache = torch.cat((cache[0], k), dim=2), torch.cat((cache[1], v), dim=2)
        mixed = F.scaled_dot_product_attention(q, *cache, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2)), cache


class Block(llama.Block):
    def __init__(self, config):
        super().__init__(config)
        self.attention = Attention(config)

    def forward(self, x, cos, sin, cache):
        mixed, cache = self.attention(self.norm1(x), cos, sin, cache)
        x = x + mixed
        return x + self.mlp(self.norm2(x)), cache


class Llama(llama.Llama):
    def __init__(self, config):
        super().__init__(config)
        self.blocks = torch.nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, ids, cache):
        x = self.embedding(ids)
        before = cache[0][0].shape[2]
        cos, sin = (table[before:] for table in llama.rotary_tables(before + ids.shape[1], self.head_dim, x))
        caches = []
        for block, own in zip(self.blocks, cache, strict=True):
            x, own = block(x, cos, sin, own)
            caches.append(own)
        return self.head(self.norm(x)), caches


def model():
    return Llama(llama.Config()).to(torch.bfloat16)


def decode_inputs(batch=1, context=1024):
    config = llama.Config()
    kept = (batch, config.kv_heads, context, config.head_dim)
    cache = [tuple(torch.empty(kept, dtype=torch.bfloat16) for _ in range(2)) for _ in range(config.layers)]
    return {"ids": torch.randint(config.vocab, (batch, 1)), "cache": cache}
