"""A layer of experts as Switch and GShard dispatch them (Lepikhin et al. 2020): two experts of 8 for each token, at
most ``CAPACITY`` tokens for each, one-hot tensors to the experts and back; sizes of Mixtral 8x7B's layer, bfloat16."""

import jax
import jax.numpy as jnp

WIDTH, HIDDEN, EXPERTS, CHOSEN, TOKENS = 4096, 14336, 8, 2, 1024
CAPACITY = 2 * CHOSEN * TOKENS // EXPERTS


def layer(params, x):
    with jax.named_scope("router"):
        chances = jax.nn.softmax((x @ params["router"]).astype(jnp.float32))
        weights, experts = jax.lax.top_k(chances, CHOSEN)
        weights = weights / weights.sum(-1, keepdims=True)
        chosen = jax.nn.one_hot(experts, EXPERTS, dtype=jnp.float32)
        order = jnp.cumsum(chosen.reshape(-1, EXPERTS), axis=0).reshape(chosen.shape) * chosen - 1
        slots = jax.nn.one_hot(order.astype(jnp.int32), CAPACITY, dtype=jnp.bfloat16)
        dispatch = slots.sum(1)
        combine = jnp.einsum("tk,tkes->tes", weights.astype(jnp.bfloat16), slots)
    with jax.named_scope("experts"):
        rows = jnp.einsum("tes,td->esd", dispatch, x)
        gate, up = (jnp.einsum("esd,edh->esh", rows, params[name]) for name in ("gate", "up"))
        hidden = jax.nn.silu(gate) * up
        made = jnp.einsum("esh,ehd->esd", hidden, params["down"])
    return jnp.einsum("tes,esd->td", combine, made)


def model():
    return jax.jit(layer)


def inputs():
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    params = {
        "router": array(WIDTH, EXPERTS), "gate": array(EXPERTS, WIDTH, HIDDEN), "up": array(EXPERTS, WIDTH, HIDDEN),
        "down": array(EXPERTS, HIDDEN, WIDTH),
    }
    return params, array(TOKENS, WIDTH)
