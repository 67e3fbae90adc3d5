"""One token of each of 8 sequences by Llama 3.2 3B in JAX, with a cache of keys and values that is updated
in place."""

import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, KEY_HEADS, HIDDEN, VOCABULARY = 28, 3072, 24, 8, 8192, 128256
SIZE = WIDTH // HEADS


def rms_norm(scale, x):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + 1e-5)).astype(x.dtype) * scale


def attention(p, x, keys, values, place):
    q = jnp.einsum("bd,dgre->bgre", x, p["q"])
    k = jnp.einsum("bd,dge->bge", x, p["k"])
    v = jnp.einsum("bd,dge->bge", x, p["v"])
    keys = jax.lax.dynamic_update_slice_in_dim(keys, k[:, None], place, axis=1)
    values = jax.lax.dynamic_update_slice_in_dim(values, v[:, None], place, axis=1)
    scores = jnp.einsum("bgre,btge->bgrt", q, keys).astype(jnp.float32) * SIZE**-0.5
    scores = jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -1e30)
    mixed = jnp.einsum("bgrt,btge->bgre", jax.nn.softmax(scores).astype(x.dtype), values)
    return jnp.einsum("bgre,gred->bd", mixed, p["out"]), keys, values


def decode(params, cache, tokens, place):
    x = params["embedding"][tokens]

    def body(x, layer):
        p, keys, values = layer
        with jax.named_scope("attention"):
            mixed, keys, values = attention(p, rms_norm(p["norm1"], x), keys, values, place)
        x = x + mixed
        with jax.named_scope("mlp"):
            h = rms_norm(p["norm2"], x)
            x = x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return x, (keys, values)

    with jax.named_scope("layers"):
        x, cache = jax.lax.scan(body, x, (params["layers"], *cache))
    with jax.named_scope("head"):
        logits = (rms_norm(params["norm"], x) @ params["embedding"].T).astype(jnp.float32)
        return jnp.argmax(logits, -1), cache


def model():
    return jax.jit(decode, donate_argnums=1)


def inputs(batch=8, context=2048):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    group = HEADS // KEY_HEADS
    layers = {
        "norm1": array(LAYERS, WIDTH), "q": array(LAYERS, WIDTH, KEY_HEADS, group, SIZE),
        "k": array(LAYERS, WIDTH, KEY_HEADS, SIZE), "v": array(LAYERS, WIDTH, KEY_HEADS, SIZE),
        "out": array(LAYERS, KEY_HEADS, group, SIZE, WIDTH), "norm2": array(LAYERS, WIDTH),
        "gate": array(LAYERS, WIDTH, HIDDEN), "up": array(LAYERS, WIDTH, HIDDEN), "down": array(LAYERS, HIDDEN, WIDTH),
    }
    params = {"embedding": array(VOCABULARY, WIDTH), "layers": layers, "norm": array(WIDTH)}
    cache = tuple(array(LAYERS, batch, context, KEY_HEADS, SIZE) for _ in range(2))
    return params, cache, jax.ShapeDtypeStruct((batch,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
