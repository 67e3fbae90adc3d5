"""Llama 3.2 1B (Grattafiori et al. 2024) as large models are written in JAX: weights stacked over the layers, one block
scanned over them and rematerialized; bfloat16. The step is one of plain SGD on one sequence.
"""

import jax
import jax.numpy as jnp
import optax

LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY, TOKENS = 16, 2048, 32, 8, 8192, 128256, 2048
SIZE = WIDTH // HEADS


def rms_norm(scale, x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def rotated(x, sin, cos):
    low, high = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def block(p, x, sin, cos):
    batch, tokens, _ = x.shape
    with jax.named_scope("attention"):
        h = rms_norm(p["norm1"], x)
        q = jnp.einsum("btd,dhe->bthe", h, p["q"])
        k = jnp.einsum("btd,dhe->bthe", h, p["k"])
        v = jnp.einsum("btd,dhe->bthe", h, p["v"])
        q, k = rotated(q, sin, cos), rotated(k, sin, cos)
        q = q.reshape(batch, tokens, KEY_HEADS, HEADS // KEY_HEADS, SIZE)
        scores = jnp.einsum("bqgre,bkge->bgrqk", q, k) * SIZE**-0.5
        causal = jnp.arange(tokens)[:, None] >= jnp.arange(tokens)
        chances = jax.nn.softmax(jnp.where(causal, scores.astype(jnp.float32), -1e30)).astype(x.dtype)
        mixed = jnp.einsum("bgrqk,bkge->bqgre", chances, v)
        x = x + jnp.einsum("bthe,hed->btd", mixed.reshape(batch, tokens, HEADS, SIZE), p["out"])
    with jax.named_scope("mlp"):
        h = rms_norm(p["norm2"], x)
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def loss(params, tokens):
    x = params["embedding"][tokens[:, :-1]]
    angles = jnp.arange(x.shape[1])[:, None, None] * 500000.0 ** (-jnp.arange(0, SIZE, 2) / SIZE)
    sin, cos = jnp.sin(angles).astype(x.dtype), jnp.cos(angles).astype(x.dtype)

    @jax.checkpoint
    def body(x, p):
        return block(p, x, sin, cos), None

    with jax.named_scope("layers"):
        x, _ = jax.lax.scan(body, x, params["layers"])
    with jax.named_scope("head"):
        logits = (rms_norm(params["norm"], x) @ params["embedding"].T).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def model():
    return loss


def optimizer():
    return optax.sgd(1e-3)


def inputs(batch=1):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    layers = {
        "norm1": array(LAYERS, WIDTH), "q": array(LAYERS, WIDTH, HEADS, SIZE), "out": array(LAYERS, HEADS, SIZE, WIDTH),
        "k": array(LAYERS, WIDTH, KEY_HEADS, SIZE), "v": array(LAYERS, WIDTH, KEY_HEADS, SIZE),
        "norm2": array(LAYERS, WIDTH), "gate": array(LAYERS, WIDTH, HIDDEN), "up": array(LAYERS, WIDTH, HIDDEN),
        "down": array(LAYERS, HIDDEN, WIDTH),
    }
    params = {"embedding": array(VOCABULARY, WIDTH), "layers": layers, "norm": array(WIDTH)}
    return params, jax.ShapeDtypeStruct((batch, TOKENS + 1), jnp.int32)
