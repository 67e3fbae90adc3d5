"""FLOP of the reference workloads in profiles/, counted by hand from published dimensions.

No torch and no memwall here: tests hold memwall's counts against these numbers. Counted are matrix products,
convolutions and attention; a fused multiply-add is 2. Attention is dense, causal or not: both of its products
over all pairs of positions. Backward, each product needs two more of its own size, one for each operand's
gradient, and attention twice its forward; so training is three times forward, less what nobody needs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class HandCount:
    forward_flop: int  # with attention
    training_flop: int  # forward and backward, no optimizer
    attention_forward_flop: int = 0


def matmul(m: int, n: int, k: int) -> int:
    """[m, k] times [k, n]."""
    return 2 * m * n * k


def attention(batch: int, heads: int, seq: int, head_dim: int) -> int:
    """Per query head: scores [seq, head_dim] x [head_dim, seq], then [seq, seq] x [seq, head_dim]."""
    return batch * heads * (matmul(seq, seq, head_dim) + matmul(seq, head_dim, seq))


def convolution(batch: int, size: int, channels_out: int, channels_in: int, kernel: int) -> int:
    """`size` is the width and height of the output."""
    return 2 * batch * size * size * channels_out * channels_in * kernel * kernel


def bert_large(batch: int = 8, seq: int = 512) -> HandCount:
    width, heads, ffn, layers, vocab = 1024, 16, 4096, 24, 30522
    tokens = batch * seq
    projections = matmul(tokens, 3 * width, width) + matmul(tokens, width, width)  # query, key, value; out
    feed_forward = matmul(tokens, ffn, width) + matmul(tokens, width, ffn)
    mixing = layers * attention(batch, heads, seq, head_dim=64)
    head = matmul(tokens, width, width) + matmul(tokens, vocab, width)  # dense; decoder, at every position
    forward = layers * (projections + feed_forward) + mixing + head
    return HandCount(forward, 3 * forward, mixing)


def gpt2_xl(batch: int = 1, seq: int = 1024) -> HandCount:
    width, heads, layers, vocab = 1600, 25, 48, 50257
    tokens = batch * seq
    projections = matmul(tokens, 3 * width, width) + matmul(tokens, width, width)  # query, key, value; out
    feed_forward = matmul(tokens, 4 * width, width) + matmul(tokens, width, 4 * width)
    mixing = layers * attention(batch, heads, seq, head_dim=64)
    head = matmul(tokens, vocab, width)
    forward = layers * (projections + feed_forward) + mixing + head
    return HandCount(forward, 3 * forward, mixing)


def llama3(width: int, layers: int, heads: int, ffn: int, batch: int = 1, seq: int = 4096) -> HandCount:
    head_dim, kv_heads, vocab = 128, 8, 128256
    tokens = batch * seq
    query_and_out = 2 * matmul(tokens, width, width)
    key_and_value = 2 * matmul(tokens, kv_heads * head_dim, width)
    feed_forward = 3 * matmul(tokens, ffn, width)  # gate, up, down
    mixing = layers * attention(batch, heads, seq, head_dim)
    head = matmul(tokens, vocab, width)
    forward = layers * (query_and_out + key_and_value + feed_forward) + mixing + head
    return HandCount(forward, 3 * forward, mixing)


def llama3_8b() -> HandCount:
    return llama3(width=4096, layers=32, heads=32, ffn=14336)


def llama3_70b() -> HandCount:
    return llama3(width=8192, layers=80, heads=64, ffn=28672)


def llama3_405b() -> HandCount:
    return llama3(width=16384, layers=126, heads=128, ffn=53248)


def mixtral_8x7b(batch: int = 1, seq: int = 4096) -> HandCount:
    width, layers, heads, kv_heads, head_dim, ffn, vocab = 4096, 32, 32, 8, 128, 14336, 32000
    experts, experts_per_token = 8, 2
    tokens = batch * seq
    query_and_out = 2 * matmul(tokens, width, width)
    key_and_value = 2 * matmul(tokens, kv_heads * head_dim, width)
    router = matmul(tokens, experts, width)
    # Each token goes through exactly two experts, whichever they are; gate, up and down in each.
    feed_forward = experts_per_token * 3 * matmul(tokens, ffn, width)
    mixing = layers * attention(batch, heads, seq, head_dim)
    head = matmul(tokens, vocab, width)
    forward = layers * (query_and_out + key_and_value + router + feed_forward) + mixing + head
    return HandCount(forward, 3 * forward, mixing)


def resnet50(batch: int = 32) -> HandCount:
    """ResNet-50 v1.5 on 224x224 images: a stage's first block reads the larger image; its 3x3 strides."""
    stem = convolution(batch, size=112, channels_out=64, channels_in=3, kernel=7)
    forward = stem
    # (channels in, width, blocks, output size, size that the first block is fed)
    stages = (64, 64, 3, 56, 56), (256, 128, 4, 28, 56), (512, 256, 6, 14, 28), (1024, 512, 3, 7, 14)
    for channels_in, width, blocks, size, size_in in stages:
        channels_out = 4 * width
        expand = convolution(batch, size, channels_out, width, kernel=1)
        spatial = convolution(batch, size, width, width, kernel=3)
        forward += blocks * (spatial + expand)
        first_reduce = convolution(batch, size_in, width, channels_in, kernel=1)  # before the stride
        shortcut = convolution(batch, size, channels_out, channels_in, kernel=1)
        other_reduce = convolution(batch, size, width, channels_out, kernel=1)
        forward += first_reduce + shortcut + (blocks - 1) * other_reduce
    forward += matmul(batch, 1000, 2048)  # classifier
    return HandCount(forward, 3 * forward - stem)  # no gradient with respect to the images


def vit_l16(batch: int = 32) -> HandCount:
    width, heads, ffn, layers, classes = 1024, 16, 4096, 24, 1000
    patch_embedding = convolution(batch, size=14, channels_out=width, channels_in=3, kernel=16)
    seq = 14 * 14 + 1  # patches and the class token
    tokens = batch * seq
    projections = matmul(tokens, 3 * width, width) + matmul(tokens, width, width)
    feed_forward = matmul(tokens, ffn, width) + matmul(tokens, width, ffn)
    mixing = layers * attention(batch, heads, seq, head_dim=64)
    head = matmul(batch, classes, width)
    forward = patch_embedding + layers * (projections + feed_forward) + mixing + head
    return HandCount(forward, 3 * forward - patch_embedding, mixing)  # no gradient with respect to the images


def dlrm(batch: int = 2048) -> HandCount:
    first = matmul(batch, 512, 13)
    bottom = first + matmul(batch, 256, 512) + matmul(batch, 128, 256)
    interaction = batch * matmul(27, 27, 128)  # all pairs of 26 table rows and the bottom output, both triangles
    features = 128 + 27 * 26 // 2  # the bottom output, and each pair once
    top = sum(matmul(batch, n, k) for k, n in ((features, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)))
    forward = bottom + interaction + top
    return HandCount(forward, 3 * forward - first)  # no gradient with respect to the dense features


def bert_layer(batch: int = 8, seq: int = 512) -> HandCount:
    """One layer as plain products, its attention too; its input has a gradient."""
    width, heads, head_dim, ffn = 1024, 16, 64, 4096
    tokens = batch * seq
    mixing = attention(batch, heads, seq, head_dim)
    forward = matmul(tokens, 3 * width, width) + mixing + matmul(tokens, width, width)
    forward += matmul(tokens, ffn, width) + matmul(tokens, width, ffn)
    return HandCount(forward, 3 * forward, mixing)


# Folder in profiles/ -> count at the model file's default batch and sequence.
HAND_COUNTS = {
    "bert_large": bert_large(), "bert_layer": bert_layer(), "dlrm": dlrm(), "gpt2_xl": gpt2_xl(),
    "llama3_8b": llama3_8b(), "llama3_70b": llama3_70b(), "llama3_405b": llama3_405b(), "mixtral_8x7b": mixtral_8x7b(),
    "resnet50": resnet50(), "vit_l16": vit_l16(),
}  # fmt: skip
