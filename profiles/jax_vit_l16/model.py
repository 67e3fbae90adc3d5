"""ViT-L/16 (Dosovitskiy et al. 2020) in flax's nnx, bfloat16: images to logits."""

import jax
import jax.numpy as jnp
from flax import nnx

LAYERS, WIDTH, HEADS = 24, 1024, 16


class Attention(nnx.Module):
    def __init__(self, rngs):
        how = {"dtype": jnp.bfloat16, "rngs": rngs}
        self.qkv, self.out = nnx.Linear(WIDTH, 3 * WIDTH, **how), nnx.Linear(WIDTH, WIDTH, **how)

    def __call__(self, x):
        q, k, v = jnp.split(self.qkv(x).reshape(*x.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape))


class Block(nnx.Module):
    def __init__(self, rngs):
        how = {"dtype": jnp.bfloat16, "rngs": rngs}
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, **how), nnx.LayerNorm(WIDTH, **how)
        self.attention = Attention(rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, **how), nnx.Linear(4 * WIDTH, WIDTH, **how)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    def __init__(self, rngs):
        self.patches = nnx.Conv(3, WIDTH, (16, 16), strides=16, padding="VALID", dtype=jnp.bfloat16, rngs=rngs)
        self.class_token = nnx.Param(jnp.zeros((1, 1, WIDTH)))
        self.places = nnx.Param(jnp.zeros((1, 197, WIDTH)))
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 1000, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, images):
        x = self.patches(images).reshape(images.shape[0], -1, WIDTH)
        first = jnp.broadcast_to(self.class_token[...].astype(x.dtype), (x.shape[0], 1, WIDTH))
        x = jnp.concatenate([first, x], axis=1) + self.places[...].astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def model():
    return nnx.eval_shape(lambda: ViT(nnx.Rngs(0)))


def inputs(batch=32):
    return (jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.bfloat16),)
