"""DLRM (Naumov et al. 2019) in plain JAX: 26 tables, a bottom and a top MLP, dot interactions; the step is that of
binary cross entropy with SGD, the tables' gradients scattered."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import optax

TABLES, ROWS, SIZE = 26, 100_000, 64
BOTTOM, TOP = (13, 512, 256, SIZE), (SIZE + (TABLES + 1) * TABLES // 2, 512, 256, 1)


def mlp(layers, x):
    for number, p in enumerate(layers):
        with jax.named_scope(str(number)):
            x = x @ p["kernel"] + p["bias"]
            x = jax.nn.relu(x) if number + 1 < len(layers) else x
    return x


def loss(params, numbers, ids, labels):
    with jax.named_scope("bottom"):
        x = mlp(params["bottom"], numbers)
    with jax.named_scope("tables"):
        rows = jax.vmap(lambda table, ids: table[ids], in_axes=(0, 1), out_axes=1)(params["tables"], ids)
    with jax.named_scope("interactions"):
        vectors = jnp.concatenate([x[:, None], rows], axis=1)
        dots = jnp.einsum("bif,bjf->bij", vectors, vectors)
        below = jnp.tril_indices(TABLES + 1, -1)
        features = jnp.concatenate([x, dots[:, below[0], below[1]]], axis=1)
    with jax.named_scope("top"):
        logits = mlp(params["top"], features)[:, 0]
    return optax.sigmoid_binary_cross_entropy(logits, labels).mean()


def model():
    return loss


def optimizer():
    return optax.sgd(0.1)


def inputs(batch=2048):
    def array(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def layers(sizes):
        return [{"kernel": array(a, b), "bias": array(b)} for a, b in pairwise(sizes)]

    params = {"bottom": layers(BOTTOM), "tables": array(TABLES, ROWS, SIZE), "top": layers(TOP)}
    return params, array(batch, 13), jax.ShapeDtypeStruct((batch, TABLES), jnp.int32), array(batch)
