"""U-Net of Stable Diffusion 1.5 (Rombach et al. 2022; stable-diffusion-v1-5 unet/config.json), fp16.

One denoising step: noisy latents [batch, 4, 64, 64] (a 512x512 image), time steps [batch] and CLIP text
states [batch, 77, 768] give the predicted noise.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

LATENT_CHANNELS, LATENT_SIZE = 4, 64
CHANNELS = (320, 640, 1280, 1280)  # one level each; every level but the last halves the image
ATTENTION_LEVELS = 3  # the first three levels have transformers, the smallest image has none
BLOCKS_PER_LEVEL, HEADS, GROUPS = 2, 8, 32
TIME_WIDTH = 4 * CHANNELS[0]
TEXT_WIDTH, TEXT_TOKENS = 768, 77


class ResBlock(nn.Module):
    """Two 3x3 convolutions; the time embedding is added between them."""

    def __init__(self, channels_in: int, channels: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.time = nn.Linear(TIME_WIDTH, channels)
        self.norm2 = nn.GroupNorm(GROUPS, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Identity() if channels_in == channels else nn.Conv2d(channels_in, channels, 1)

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        y = self.conv2(F.silu(self.norm2(y)))
        return y + self.shortcut(x)


class Attention(nn.Module):
    """Attention of x [batch, seq, width] over source, which is x itself or the text."""

    def __init__(self, width: int, source_width: int):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(source_width, width, bias=False)
        self.value = nn.Linear(source_width, width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, source):
        q, k, v = heads(self.query(x)), heads(self.key(source)), heads(self.value(source))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


def heads(x):
    """[batch, seq, width] -> [batch, heads, seq, width / heads]"""
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class GEGLU(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * F.gelu(gate))


class Transformer(nn.Module):
    """Self-attention, cross-attention to the text and a GEGLU over the pixels of an image."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels, eps=1e-6)
        self.project_in = nn.Conv2d(channels, channels, 1)
        self.norm1 = nn.LayerNorm(channels)
        self.self_attention = Attention(channels, channels)
        self.norm2 = nn.LayerNorm(channels)
        self.cross_attention = Attention(channels, TEXT_WIDTH)
        self.norm3 = nn.LayerNorm(channels)
        self.mlp = GEGLU(channels)
        self.project_out = nn.Conv2d(channels, channels, 1)

    def forward(self, image, text):
        y = self.project_in(self.norm(image)).flatten(2).transpose(1, 2)
        z = self.norm1(y)
        y = y + self.self_attention(z, z)
        y = y + self.cross_attention(self.norm2(y), text)
        y = y + self.mlp(self.norm3(y))
        return image + self.project_out(y.transpose(1, 2).unflatten(2, image.shape[2:]))


class Block(nn.Module):
    """A residual block, and a transformer on the levels that have one."""

    def __init__(self, channels_in: int, channels: int, attention: bool):
        super().__init__()
        self.residual = ResBlock(channels_in, channels)
        self.transformer = Transformer(channels) if attention else None

    def forward(self, x, time, text):
        x = self.residual(x, time)
        return x if self.transformer is None else self.transformer(x, text)


class UNet(nn.Module):
    """Encoder and decoder mirror each other; the decoder concatenates each encoder output, last one first."""

    def __init__(self):
        super().__init__()
        width = CHANNELS[0]
        self.time = nn.Sequential(nn.Linear(width, TIME_WIDTH), nn.SiLU(), nn.Linear(TIME_WIDTH, TIME_WIDTH))
        self.conv_in = nn.Conv2d(LATENT_CHANNELS, width, 3, padding=1)
        skips = [width]

        self.down, self.downsample = nn.ModuleList(), nn.ModuleList()
        for level, channels in enumerate(CHANNELS):
            blocks = nn.ModuleList()
            for _ in range(BLOCKS_PER_LEVEL):
                blocks.append(Block(width, channels, level < ATTENTION_LEVELS))
                width = channels
                skips.append(width)
            self.down.append(blocks)
            if level < len(CHANNELS) - 1:
                self.downsample.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
                skips.append(width)

        self.middle = nn.ModuleList((Block(width, width, True), Block(width, width, False)))

        self.up, self.upsample = nn.ModuleList(), nn.ModuleList()
        for level, channels in reversed(list(enumerate(CHANNELS))):
            blocks = nn.ModuleList()
            for _ in range(BLOCKS_PER_LEVEL + 1):
                blocks.append(Block(width + skips.pop(), channels, level < ATTENTION_LEVELS))
                width = channels
            self.up.append(blocks)
            if level > 0:
                self.upsample.append(nn.Conv2d(width, width, 3, padding=1))

        self.norm_out = nn.GroupNorm(GROUPS, width)
        self.conv_out = nn.Conv2d(width, LATENT_CHANNELS, 3, padding=1)

    def forward(self, latents, steps, text):
        time = self.time(sinusoids(steps, CHANNELS[0]).to(latents.dtype))
        x = self.conv_in(latents)
        skips = [x]
        for level, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x, time, text)
                skips.append(x)
            if level < len(self.downsample):
                x = self.downsample[level](x)
                skips.append(x)
        for block in self.middle:
            x = block(x, time, text)
        for level, blocks in enumerate(self.up):
            for block in blocks:
                x = block(torch.cat((x, skips.pop()), dim=1), time, text)
            if level < len(self.upsample):
                x = self.upsample[level](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.conv_out(F.silu(self.norm_out(x)))


def sinusoids(steps, width: int):
    """[batch] time steps -> [batch, width] cosines and sines at width / 2 frequencies, in fp32."""
    exponents = torch.arange(width // 2, device=steps.device) / (width // 2)
    angles = steps[:, None] * torch.exp(-math.log(10_000) * exponents)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def model():
    return UNet().to(torch.float16)


def inputs(batch=8):
    latents = torch.randn(batch, LATENT_CHANNELS, LATENT_SIZE, LATENT_SIZE, dtype=torch.float16)
    steps = torch.randint(1000, (batch,))
    text = torch.randn(batch, TEXT_TOKENS, TEXT_WIDTH, dtype=torch.float16)
    return latents, steps, text


def loss(noise):
    return F.mse_loss(noise.float(), torch.zeros_like(noise, dtype=torch.float32))


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01)
