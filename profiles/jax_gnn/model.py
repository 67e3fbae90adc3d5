"""A graph network (GraphSAGE, Hamilton et al. 2017) on ogbn-arxiv's sizes: rows gathered along edges and summed by
``segment_sum``; three layers, float32. The step is that of cross entropy over all nodes with Adam."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import optax

NODES, EDGES, FEATURES, WIDTH, CLASSES = 169_343, 1_166_243, 128, 256, 40
SIZES = (FEATURES, WIDTH, WIDTH, CLASSES)


def loss(params, x, senders, receivers, labels):
    degree = jax.ops.segment_sum(jnp.ones(EDGES), receivers, NODES)[:, None]
    for number, p in enumerate(params):
        with jax.named_scope(f"layers/{number}"):
            mean = jax.ops.segment_sum(x[senders], receivers, NODES) / jnp.maximum(degree, 1)
            x = x @ p["own"] + mean @ p["others"] + p["bias"]
            x = jax.nn.relu(x) if number + 1 < len(params) else x
    return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()


def model():
    return loss


def optimizer():
    return optax.adam(1e-2)


def inputs():
    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct(shape, dtype)

    params = [
        {"own": array(a, b), "others": array(a, b), "bias": array(b)} for a, b in pairwise(SIZES)
    ]
    edges = array(EDGES, dtype=jnp.int32)
    return params, array(NODES, FEATURES), edges, edges, array(NODES, dtype=jnp.int32)
