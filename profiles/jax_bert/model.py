"""BERT-large's encoder (Devlin et al. 2018) in haiku, bfloat16: sequences of 512 tokens to hidden states."""

import haiku as hk
import jax
import jax.numpy as jnp

LAYERS, WIDTH, HEADS, VOCABULARY = 24, 1024, 16, 30522


def norm(x):
    return hk.LayerNorm(-1, create_scale=True, create_offset=True)(x)


def encoder(tokens, mask):
    places = hk.get_parameter("places", (512, WIDTH), init=jnp.zeros)
    x = hk.Embed(VOCABULARY, WIDTH)(tokens) + places[: tokens.shape[1]]
    x = norm(x).astype(jnp.bfloat16)
    for layer in range(LAYERS):
        with hk.experimental.name_scope(f"layer_{layer}"):
            attention = hk.MultiHeadAttention(HEADS, WIDTH // HEADS, w_init=jnp.zeros, model_size=WIDTH)
            x = norm(x + attention(x, x, x, mask[:, None, None]))
            x = norm(x + hk.Linear(WIDTH)(jax.nn.gelu(hk.Linear(4 * WIDTH)(x), approximate=False)))
    return x


def model():
    return hk.without_apply_rng(hk.transform(encoder))


def inputs(batch=8):
    return jax.ShapeDtypeStruct((batch, 512), jnp.int32), jax.ShapeDtypeStruct((batch, 512), jnp.bool_)
