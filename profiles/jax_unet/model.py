"""A U-Net for diffusion (Ho et al. 2020) in flax's linen, channels last, bfloat16: noisy images and times to noise."""

import flax.linen as nn
import jax
import jax.numpy as jnp

CHANNELS, BLOCKS = (128, 256, 256), 2


class Residual(nn.Module):
    channels: int

    @nn.compact
    def __call__(self, x, time):
        h = nn.Conv(self.channels, (3, 3), dtype=jnp.bfloat16)(nn.swish(nn.GroupNorm(32)(x)))
        h = h + nn.Dense(self.channels, dtype=jnp.bfloat16)(nn.swish(time))[:, None, None]
        h = nn.Conv(self.channels, (3, 3), dtype=jnp.bfloat16)(nn.swish(nn.GroupNorm(32)(h)))
        return h + (x if x.shape[-1] == self.channels else nn.Conv(self.channels, (1, 1), dtype=jnp.bfloat16)(x))


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        batch, height, width, channels = x.shape
        h = nn.GroupNorm(32)(x).reshape(batch, height * width, channels).astype(jnp.bfloat16)
        h = nn.MultiHeadDotProductAttention(4, dtype=jnp.bfloat16)(h)
        return x + h.reshape(x.shape)


class UNet(nn.Module):
    @nn.compact
    def __call__(self, images, times):
        angles = times[:, None] * jnp.exp(-jnp.arange(64) * (jnp.log(10000.0) / 63))
        time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1).astype(jnp.bfloat16)
        time = nn.Dense(512, dtype=jnp.bfloat16)(nn.swish(nn.Dense(512, dtype=jnp.bfloat16)(time)))
        x = nn.Conv(CHANNELS[0], (3, 3), dtype=jnp.bfloat16)(images)
        skips = [x]
        for level, channels in enumerate(CHANNELS):
            for _ in range(BLOCKS):
                x = Residual(channels)(x, time)
                if level == 1:
                    x = Attention()(x)
                skips.append(x)
            if level + 1 < len(CHANNELS):
                x = nn.Conv(channels, (3, 3), strides=2, dtype=jnp.bfloat16)(x)
                skips.append(x)
        x = Residual(CHANNELS[-1])(Attention()(Residual(CHANNELS[-1])(x, time)), time)
        for level, channels in reversed([*enumerate(CHANNELS)]):
            for _ in range(BLOCKS + 1):
                x = Residual(channels)(jnp.concatenate([x, skips.pop()], -1), time)
            if level:
                batch, height, width, _ = x.shape
                x = jax.image.resize(x, (batch, 2 * height, 2 * width, x.shape[-1]), "nearest")
                x = nn.Conv(channels, (3, 3), dtype=jnp.bfloat16)(x)
        return nn.Conv(3, (3, 3), dtype=jnp.bfloat16)(nn.swish(nn.GroupNorm(32)(x)))


def model():
    return UNet()


def inputs(batch=32):
    return jax.ShapeDtypeStruct((batch, 32, 32, 3), jnp.bfloat16), jax.ShapeDtypeStruct((batch,), jnp.float32)
