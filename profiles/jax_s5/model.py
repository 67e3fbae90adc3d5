"""Six layers of a diagonal state-space model (S5, Smith et al. 2023) by ``lax.associative_scan``; complex states."""

import jax
import jax.numpy as jnp

LAYERS, WIDTH, STATES, TOKENS = 6, 512, 256, 4096


def combined(one, two):
    return two[0] * one[0], two[0] * one[1] + two[1]


def layer(p, x):
    centred = x - x.mean(-1, keepdims=True)
    h = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6) * p["scale"]
    step = jnp.exp(p["log_step"])
    poles = jnp.exp(p["poles"] * step)
    driven = jnp.einsum("btd,ds->bts", h.astype(jnp.complex64), p["b"]) * step
    _, states = jax.lax.associative_scan(combined, (jnp.broadcast_to(poles, driven.shape), driven), axis=1)
    y = 2 * jnp.einsum("bts,sd->btd", states, p["c"]).real + p["d"] * h
    return x + jax.nn.gelu(y) * jax.nn.sigmoid(y @ p["gate"])


def forward(params, x):
    for number, p in enumerate(params):
        with jax.named_scope(f"layers/{number}"):
            x = layer(p, x)
    return x


def model():
    return jax.jit(forward)


def inputs(batch=8):
    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    p = {
        "scale": array(WIDTH), "log_step": array(STATES), "poles": array(STATES, dtype=jnp.complex64),
        "b": array(WIDTH, STATES, dtype=jnp.complex64), "c": array(STATES, WIDTH, dtype=jnp.complex64),
        "d": array(WIDTH), "gate": array(WIDTH, WIDTH),
    }
    return [p] * LAYERS, array(batch, TOKENS, WIDTH)
