"""The models of ``conformance_torch`` in JAX: functions of a tree of weights and of the same inputs."""

import jax
import jax.numpy as jnp

from tests.unit.conformance_torch import EXPERTS, HEADS, IMAGE, KEY_HEADS, SIZE, TOKENS, WIDTH


def linear(p, x):
    made = x @ p["w"]
    return made + p["b"] if "b" in p else made


def mlp(p, x):
    return linear(p["down"], jax.nn.relu(linear(p["up"], x)))


def conv(p, x, stride=1, padding=1):
    made = jax.lax.conv_general_dilated(x, p["w"], (stride, stride), ((padding, padding),) * 2)
    return made + p["b"][None, :, None, None] if "b" in p else made


def batch_norm(p, x):
    scale = p["scale"] * jax.lax.rsqrt(p["var"] + 1e-5)
    return (x - p["mean"][None, :, None, None]) * scale[None, :, None, None] + p["b"][None, :, None, None]


def resnet(p, x):
    h = jax.nn.relu(batch_norm(p["n0"], conv(p["first"], x, 2)))
    short = batch_norm(p["n2"], conv(p["short"], x, 2, 0))
    return jax.nn.relu(batch_norm(p["n1"], conv(p["second"], h)) + short)


def layer_norm(p, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p["w"] + p["b"]


def attend(q, k, v, mask):
    scores = jnp.einsum("bhsd,bhtd->bhst", q, k) * SIZE**-0.5 + mask
    return jnp.einsum("bhst,bhtd->bhsd", jax.nn.softmax(scores, -1), v)


def heads(x, count):
    return x.reshape(*x.shape[:2], count, SIZE).transpose(0, 2, 1, 3)


def merged(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], TOKENS, WIDTH)


def gpt(p, x, mask):
    q, k, v = (heads(part, HEADS) for part in jnp.split(linear(p["qkv"], layer_norm(p["before"], x)), 3, -1))
    x = x + linear(p["out"], merged(attend(q, k, v, mask)))
    return x + mlp(p["mlp"], layer_norm(p["after"], x))


def rms_norm(p, x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["w"]


def turned(x, cos, sin):
    low, high = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate((-high, low), -1) * sin


def llama(p, x, mask, cos, sin):
    h = rms_norm(p["before"], x)
    q, k = turned(heads(linear(p["q"], h), HEADS), cos, sin), turned(heads(linear(p["k"], h), KEY_HEADS), cos, sin)
    v = heads(linear(p["v"], h), KEY_HEADS)
    k, v = (jnp.repeat(part, HEADS // KEY_HEADS, 1) for part in (k, v))
    x = x + linear(p["out"], merged(attend(q, k, v, mask)))
    h = rms_norm(p["after"], x)
    return x + linear(p["down"], jax.nn.silu(linear(p["gate"], h)) * linear(p["up"], h))


def moe(p, x):
    chances = jax.nn.softmax(linear(p["router"], x), -1)
    least = jax.lax.top_k(chances, 2)[0][:, -1:]
    shares = chances * (chances >= least)
    made = jnp.einsum("etf,efd->etd", jax.nn.relu(jnp.einsum("td,edf->etf", x, p["up"])), p["down"])
    return (made * shares.T[:, :, None]).sum(0)


def vit(p, image, mask):
    x = jax.lax.conv_general_dilated(image, p["patch"]["w"], (4, 4), "VALID") + p["patch"]["b"][None, :, None, None]
    x = x.reshape(x.shape[0], WIDTH, -1).transpose(0, 2, 1)
    return linear(p["head"], gpt(p["block"], x, mask).mean(1))


def unet(p, x):
    h = jax.nn.silu(conv(p["first"], x))
    low = jax.nn.silu(conv(p["lower"], h, 2))
    back = jnp.repeat(jnp.repeat(low, 2, 2), 2, 3)
    return conv(p["last"], jnp.concatenate((h, back), 1))


def lstm(p, x):
    def step(carry, one):
        h, c = carry
        gates = one @ p["w"] + h @ p["r"] + p["b"] + p["b2"]
        i, f, g, o = jnp.split(gates, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    state = jnp.zeros((x.shape[1], WIDTH))
    return jax.lax.scan(step, (state, state), x)[1]


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def _linear(inputs, outputs, bias=True):
    return {"w": shape(inputs, outputs), **({"b": shape(outputs)} if bias else {})}


def _norm():
    return {"w": shape(WIDTH), "b": shape(WIDTH)}


def models():
    """name → a function, its weights and its inputs."""
    x, mask, image = shape(2, TOKENS, WIDTH), shape(TOKENS, TOKENS), shape(2, 16, IMAGE, IMAGE)
    p_mlp = {"up": _linear(WIDTH, 4 * WIDTH), "down": _linear(4 * WIDTH, WIDTH)}
    p_gpt = {"before": _norm(), "after": _norm(), "qkv": _linear(WIDTH, 3 * WIDTH), "out": _linear(WIDTH, WIDTH),
             "mlp": p_mlp}  # fmt: skip
    norms = {f"n{i}": {name: shape(32) for name in ("scale", "b", "mean", "var")} for i in range(3)}
    p_resnet = {"first": {"w": shape(32, 16, 3, 3)}, "second": {"w": shape(32, 32, 3, 3)},
                "short": {"w": shape(32, 16, 1, 1)}, **norms}  # fmt: skip
    small, wide = KEY_HEADS * SIZE, 2 * WIDTH
    p_llama = {
        "before": {"w": shape(WIDTH)}, "after": {"w": shape(WIDTH)},
        **{name: _linear(*sizes, bias=False) for name, sizes in {
            "q": (WIDTH, WIDTH), "k": (WIDTH, small), "v": (WIDTH, small), "out": (WIDTH, WIDTH),
            "gate": (WIDTH, wide), "up": (WIDTH, wide), "down": (wide, WIDTH)}.items()},
    }  # fmt: skip
    p_moe = {"router": _linear(WIDTH, EXPERTS, bias=False), "up": shape(EXPERTS, WIDTH, wide),
             "down": shape(EXPERTS, wide, WIDTH)}  # fmt: skip
    p_vit = {"patch": {"w": shape(WIDTH, 3, 4, 4), "b": shape(WIDTH)}, "block": p_gpt, "head": _linear(WIDTH, 10)}
    p_unet = {"first": {"w": shape(32, 16, 3, 3), "b": shape(32)}, "lower": {"w": shape(32, 32, 3, 3), "b": shape(32)},
              "last": {"w": shape(16, 64, 3, 3), "b": shape(16)}}  # fmt: skip
    p_lstm = {"w": shape(WIDTH, 4 * WIDTH), "r": shape(WIDTH, 4 * WIDTH), "b": shape(4 * WIDTH),
              "b2": shape(4 * WIDTH)}  # fmt: skip
    table = shape(TOKENS, SIZE)
    return {
        "mlp": (mlp, p_mlp, (x,)),
        "resnet": (resnet, p_resnet, (image,)),
        "gpt": (gpt, p_gpt, (x, mask)),
        "llama": (llama, p_llama, (x, mask, table, table)),
        "moe": (moe, p_moe, (shape(TOKENS, WIDTH),)),
        "vit": (vit, p_vit, (shape(2, 3, IMAGE, IMAGE), mask)),
        "unet": (unet, p_unet, (image,)),
        "lstm": (lstm, p_lstm, (shape(8, 2, WIDTH),)),
    }
