"""ResNet-50 v1.5 (He et al. 2015) in flax's linen, images channels last, bfloat16 on float32 weights, as in flax's
ImageNet example. The step is that of cross entropy with momentum."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

STAGES = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    channels: int
    strides: int

    @nn.compact
    def __call__(self, x):
        conv = partial(nn.Conv, use_bias=False, dtype=jnp.bfloat16)
        norm = partial(nn.BatchNorm, use_running_average=False, momentum=0.9, dtype=jnp.bfloat16)
        y = nn.relu(norm()(conv(self.channels, (1, 1))(x)))
        y = nn.relu(norm()(conv(self.channels, (3, 3), strides=self.strides)(y)))
        y = norm()(conv(4 * self.channels, (1, 1))(y))
        if x.shape != y.shape:
            x = norm(name="norm_proj")(conv(4 * self.channels, (1, 1), strides=self.strides, name="conv_proj")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.Conv(64, (7, 7), strides=2, use_bias=False, dtype=jnp.bfloat16)(images)
        x = nn.relu(nn.BatchNorm(use_running_average=False, dtype=jnp.bfloat16)(x))
        x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for stage, blocks in enumerate(STAGES):
            for block in range(blocks):
                x = Bottleneck(64 * 2**stage, 2 if stage and not block else 1)(x)
        return nn.Dense(1000, dtype=jnp.bfloat16)(x.mean((1, 2))).astype(jnp.float32)


NET = ResNet()


def loss(params, statistics, images, labels):
    variables = {"params": params, "batch_stats": statistics}
    logits, changed = NET.apply(variables, images, mutable=["batch_stats"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed


def model():
    return loss


def optimizer():
    return optax.sgd(0.1, momentum=0.9, nesterov=True)


def inputs(batch=64):
    images = jax.ShapeDtypeStruct((batch, 224, 224, 3), jnp.bfloat16)
    key = jax.eval_shape(lambda: jax.random.key(0))
    variables = jax.eval_shape(lambda key, images: NET.init(key, images), key, images)
    return variables["params"], variables["batch_stats"], images, jax.ShapeDtypeStruct((batch,), jnp.int32)
