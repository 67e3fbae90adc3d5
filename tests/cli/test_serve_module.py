"""``memwall serve`` of a hand-written module, whose cache is an argument of forward."""

import json

#: 2 layers of 4 heads of 64 in bfloat16; keys and values are concatenated, and returned
MODULE = """\
import torch
from torch import nn
from torch.nn import functional as F

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768, bias=False), nn.Linear(256, 256, bias=False)

    def forward(self, x, keys, values):
        q, k, v = (part.unflatten(-1, (4, 64)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        return self.out(F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(2)), (keys, values)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 256), nn.Linear(256, 1000, bias=False)
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(256) for _ in range(2))

    def forward(self, ids, CACHE):
        x, made = self.embedding(ids), []
        for layer, norm, (keys, values) in zip(self.layers, self.norms, CACHE):
            mixed, kept = layer(norm(x), keys, values)
            x = x + mixed
            made.append(kept)
        return self.head(x), made

def model():
    return Model().to(torch.bfloat16)

def decode_inputs(batch=1, context=16):
    held = [tuple(torch.empty(batch, 4, context, 64, dtype=torch.bfloat16) for _ in range(2)) for _ in range(2)]
    return torch.zeros(batch, 1, dtype=torch.long), held
"""
ASKED = ("serve", "net.py", "--gpu", "h100", "--prompt", "100", "--generate", "28", "--concurrency", "1", "--json")


def test_arguments_by_position_have_forwards_names(run, folder):
    (folder / "net.py").write_text(MODULE.replace("CACHE", "cache"), encoding="utf-8")
    result = run(*ASKED)
    assert result.code == 0, result.err
    # keys and values of 2 layers, 4 heads of 64 numbers of 2 bytes each
    assert json.loads(result.out)["kv_bytes_per_token"] == 2 * 2 * 4 * 64 * 2


def test_a_module_whose_cache_has_no_known_name_is_refused(run, folder):
    """Its keys passed for those of each new token, so that one took the cache of all."""
    (folder / "net.py").write_text(MODULE.replace("CACHE", "held"), encoding="utf-8")
    result = run(*ASKED)
    assert (result.code, result.error) == (2, (
        "net is given no cache: decode_inputs() hands it to forward under a name that says so (cache, past_key_values)"
    ))  # fmt: skip
