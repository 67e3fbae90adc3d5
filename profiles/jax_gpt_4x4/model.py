"""A training step of a GPT of four layers on 4 x 4 GPUs: batches divided over the axis ``data``, heads and hidden units
over ``model`` (Megatron's division), written with ``NamedSharding``; XLA's partitioner finds the collectives.

``memwall profile profiles/jax_gpt_4x4/model.py --gpu h100 --cluster dgx-h100 --world 16 --mode training --policy xla``
"""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS = 4, 2048, 16, 32000, 1024
SIZE = WIDTH // HEADS


def norm(scale, x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def block(p, x):
    h = norm(p["norm1"], x)
    q, k, v = (jnp.einsum("btd,dhe->bthe", h, p[name]) for name in "qkv")
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(jnp.float32) * SIZE**-0.5
    causal = jnp.arange(x.shape[1])[:, None] >= jnp.arange(x.shape[1])
    chances = jax.nn.softmax(jnp.where(causal, scores, -1e30)).astype(x.dtype)
    x = x + jnp.einsum("bqhe,hed->bqd", jnp.einsum("bhqk,bkhe->bqhe", chances, v), p["out"])
    return x + jax.nn.gelu(norm(p["norm2"], x) @ p["up"]) @ p["down"]


def loss(params, tokens):
    x = params["embedding"][tokens[:, :-1]]
    for number, p in enumerate(params["blocks"]):
        with jax.named_scope(f"blocks/{number}"):
            x = block(p, x)
    logits = (x @ params["head"]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def model():
    return loss


def optimizer():
    return optax.sgd(1e-3)


def inputs(batch=16):
    mesh = AbstractMesh((4, 4), ("data", "model"))

    def array(*shape, axes=(), dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    heads = array(WIDTH, HEADS, SIZE, axes=(None, "model"))
    block = {
        "norm1": array(WIDTH), "q": heads, "k": heads, "v": heads, "out": array(HEADS, SIZE, WIDTH, axes=("model",)),
        "norm2": array(WIDTH), "up": array(WIDTH, 4 * WIDTH, axes=(None, "model")),
        "down": array(4 * WIDTH, WIDTH, axes=("model",)),
    }
    tables = {"embedding": array(VOCABULARY, WIDTH), "head": array(WIDTH, VOCABULARY, axes=(None, "model"))}
    tokens = array(batch, TOKENS + 1, axes=("data",), dtype=jnp.int32)
    return {**tables, "blocks": [block] * LAYERS}, tokens
