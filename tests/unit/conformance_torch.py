"""Eight models in PyTorch that are written in JAX as well (``conformance_jax``): the same products, the same arrays."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, WIDTH, HEADS, KEY_HEADS, EXPERTS, IMAGE = 64, 128, 4, 2, 4, 32
SIZE = WIDTH // HEADS


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.relu(self.up(x)))


class ResNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.short = nn.Conv2d(16, 32, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in range(3))

    def forward(self, x):
        h = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(h)) + self.norms[2](self.short(x)))


def attend(q, k, v, mask):
    scores = q @ k.transpose(-1, -2) * SIZE**-0.5
    return (scores + mask).softmax(-1) @ v


def heads(x, count):
    return x.reshape(x.shape[0], x.shape[1], count, SIZE).transpose(1, 2)


def merged(x):
    return x.transpose(1, 2).reshape(x.shape[0], TOKENS, WIDTH)


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out, self.mlp = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), Mlp()

    def forward(self, x, mask):
        q, k, v = (heads(part, HEADS) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(merged(attend(q, k, v, mask)))
        return x + self.mlp(self.after(x))


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def turned(x, cos, sin):
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat((-high, low), -1) * sin


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = RmsNorm(), RmsNorm()
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, KEY_HEADS * SIZE, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x, mask, cos, sin):
        h = self.before(x)
        q, k, v = heads(self.q(h), HEADS), heads(self.k(h), KEY_HEADS), heads(self.v(h), KEY_HEADS)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (
            part[:, :, None].expand(-1, -1, HEADS // KEY_HEADS, -1, -1).reshape(-1, HEADS, TOKENS, SIZE)
            for part in (k, v)
        )
        x = x + self.out(merged(attend(q, k, v, mask)))
        h = self.after(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Moe(nn.Module):
    """Every expert computes every token; two of them count."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH))
        self.down = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH))

    def forward(self, x):
        chances = self.router(x).softmax(-1)
        least = chances.topk(2, -1).values[:, -1:]
        shares = chances * (chances >= least)
        made = F.relu(x @ self.up) @ self.down
        return (made * shares.t()[:, :, None]).sum(0)


class VitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.block = GptBlock()
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image, mask):
        x = self.patch(image).flatten(2).transpose(1, 2)
        return self.head(self.block(x, mask).mean(1))


class UNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.lower = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.last = nn.Conv2d(64, 16, 3, padding=1)

    def forward(self, x):
        h = F.silu(self.first(x))
        low = F.silu(self.lower(h))
        back = F.interpolate(low, scale_factor=2)
        return self.last(torch.cat((h, back), 1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=False)

    def forward(self, x):
        return self.layer(x)[0]


def models():
    """name → a module and its inputs. Weights differ from each other: an exporter may merge those that are equal."""
    made = _models()
    for module, _ in made.values():
        for weight in (*module.parameters(), *module.buffers()):
            if weight.is_floating_point():
                torch.nn.init.uniform_(weight)
    return made


def _models():
    x, mask = torch.randn(2, TOKENS, WIDTH), torch.zeros(TOKENS, TOKENS)
    cos, sin = torch.randn(TOKENS, SIZE), torch.randn(TOKENS, SIZE)
    image = torch.randn(2, 16, IMAGE, IMAGE)
    return {
        "mlp": (Mlp(), (x,)),
        "resnet": (ResNetBlock(), (image,)),
        "gpt": (GptBlock(), (x, mask)),
        "llama": (LlamaBlock(), (x, mask, cos, sin)),
        "moe": (Moe(), (x[0],)),
        "vit": (VitBlock(), (image[:, :3], mask)),
        "unet": (UNetBlock(), (image,)),
        "lstm": (Lstm(), (torch.randn(8, 2, WIDTH),)),
    }
