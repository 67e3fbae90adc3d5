"""GPT-2 small (Radford et al. 2019) in plain JAX: a tree of weights, a Python loop over 12 blocks; bfloat16 arithmetic
on float32 weights. The step is that of next tokens' cross entropy with AdamW.
"""

import jax
import jax.numpy as jnp
import optax

LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS = 12, 768, 12, 50257, 1024


def norm(p, x):
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return (scaled * p["scale"] + p["bias"]).astype(x.dtype)


def dense(p, x):
    return x @ p["kernel"].astype(x.dtype) + p["bias"].astype(x.dtype)


def attention(p, x):
    batch, tokens, _ = x.shape
    q, k, v = jnp.split(dense(p["qkv"], x).reshape(batch, tokens, 3 * HEADS, WIDTH // HEADS), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (WIDTH // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((tokens, tokens), bool))
    scores = jnp.where(causal, scores.astype(jnp.float32), -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    return dense(p["out"], mixed.reshape(batch, tokens, WIDTH))


def mlp(p, x):
    return dense(p["down"], jax.nn.gelu(dense(p["up"], x)))


def loss(params, tokens):
    x = (params["tokens"][tokens[:, :-1]] + params["places"][: tokens.shape[1] - 1]).astype(jnp.bfloat16)
    for number, p in enumerate(params["blocks"]):
        with jax.named_scope(f"blocks/{number}"):
            with jax.named_scope("attention"):
                x = x + attention(p["attention"], norm(p["norm1"], x))
            with jax.named_scope("mlp"):
                x = x + mlp(p["mlp"], norm(p["norm2"], x))
    with jax.named_scope("head"):
        logits = (norm(params["norm"], x) @ params["tokens"].T.astype(x.dtype)).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def model():
    return jax.jit(loss)


def optimizer():
    return optax.adamw(3e-4, weight_decay=0.1)


def inputs(batch=8):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def linear(wide, tall):
        return {"kernel": array(wide, tall), "bias": array(tall)}

    affine = {"scale": array(WIDTH), "bias": array(WIDTH)}
    block = {
        "norm1": affine, "attention": {"qkv": linear(WIDTH, 3 * WIDTH), "out": linear(WIDTH, WIDTH)},
        "norm2": affine, "mlp": {"up": linear(WIDTH, 4 * WIDTH), "down": linear(4 * WIDTH, WIDTH)},
    }
    tables = {"tokens": array(VOCABULARY, WIDTH), "places": array(TOKENS, WIDTH)}
    params = {**tables, "blocks": [block] * LAYERS, "norm": affine}
    return params, jax.ShapeDtypeStruct((batch, TOKENS + 1), jnp.int32)
