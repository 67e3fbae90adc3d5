"""A language model of two LSTM layers in equinox, each scanned over the tokens; float32. The step is that of next
tokens' cross entropy with Adam."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

WIDTH, VOCABULARY, TOKENS = 650, 10000, 35


class Lstm(eqx.Module):
    cell: eqx.nn.LSTMCell

    def __init__(self, key):
        self.cell = eqx.nn.LSTMCell(WIDTH, WIDTH, key=key)

    def __call__(self, rows):
        def step(state, x):
            state = self.cell(x, state)
            return state, state[0]

        zeros = jnp.zeros(WIDTH)
        return jax.lax.scan(step, (zeros, zeros), rows)[1]


class Model(eqx.Module):
    table: eqx.nn.Embedding
    layers: list
    head: eqx.nn.Linear

    def __init__(self, key):
        first, second, third, fourth = jax.random.split(key, 4)
        self.table = eqx.nn.Embedding(VOCABULARY, WIDTH, key=first)
        self.layers = [Lstm(second), Lstm(third)]
        self.head = eqx.nn.Linear(WIDTH, VOCABULARY, key=fourth)

    def __call__(self, tokens):
        x = jax.vmap(self.table)(tokens)
        for number, layer in enumerate(self.layers):
            with jax.named_scope(f"layers/{number}"):
                x = layer(x)
        return jax.vmap(self.head)(x)


def loss(params, tokens):
    logits = jax.vmap(eqx.combine(params, STATIC))(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


PARAMS, STATIC = eqx.partition(eqx.filter_eval_shape(Model, jax.random.key(0)), lambda leaf: hasattr(leaf, "shape"))


def model():
    return loss


def optimizer():
    return optax.adam(1e-3)


def inputs(batch=20):
    return PARAMS, jax.ShapeDtypeStruct((batch, TOKENS + 1), jnp.int32)
