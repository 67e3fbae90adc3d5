"""Kernels as people write them, in the habit of Triton's tutorials and of the libraries that use it."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

# fmt: off
# ruff: noqa: N803  names of sizes and constants as tutorials write them


@triton.jit
def vector_add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@triton.jit
def softmax_row(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(in_ptr + row * in_stride + cols, mask=mask, other=-float("inf"))
    x = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + cols, x / tl.sum(x, axis=0), mask=mask)


@triton.jit
def softmax_persistent(out_ptr, in_ptr, stride, n_rows, n_cols, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(first, n_rows, step, num_stages=STAGES):
        cols = tl.arange(0, BLOCK)
        mask = cols < n_cols
        x = tl.load(in_ptr + row * stride + cols, mask=mask, other=-float("inf"))
        top = tl.exp(x - tl.max(x, axis=0))
        tl.store(out_ptr + row * stride + cols, top / tl.sum(top, axis=0), mask=mask)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr,
           BK: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr):
    pid = tl.program_id(axis=0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    group = pid // in_group
    first = group * GROUP
    size = min(tiles_m - first, GROUP)
    pm = first + ((pid % in_group) % size)
    pn = (pid % in_group) // size
    rows = (pm * BM + tl.arange(0, BM)) % M
    cols = (pn * BN + tl.arange(0, BN)) % N
    deep = tl.arange(0, BK)
    a_at = a_ptr + (rows[:, None] * sam + deep[None, :] * sak)
    b_at = b_ptr + (deep[:, None] * sbk + cols[None, :] * sbn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        a = tl.load(a_at, mask=deep[None, :] < K - k * BK, other=0.0)
        b = tl.load(b_at, mask=deep[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BK * sak
        b_at += BK * sbk
    if ACTIVATION == "leaky_relu":
        acc = leaky_relu(acc)
    c = acc.to(tl.float16)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    tl.store(c_ptr + scm * rows[:, None] + scn * cols[None, :], c, mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def dropout(x_ptr, keep_ptr, out_ptr, n, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.load(keep_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=mask)


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, tl.where(tl.rand(seed, offsets) > p, x / (1 - p), 0.0), mask=mask)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x_ptr += row * stride
    y_ptr += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        total += x * x
    rstd = 1 / tl.sqrt(tl.sum(total, axis=0) / N + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for off in range(0, N, BLOCK):
        cols = off + tl.arange(0, BLOCK)
        mask = cols < N
        w = tl.load(w_ptr + cols, mask=mask)
        b = tl.load(b_ptr + cols, mask=mask)
        x = tl.load(x_ptr + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + cols, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_partial_gradients(dy_ptr, dw_ptr, lock_ptr, N, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    dy = tl.load(dy_ptr + row * N + cols, mask=mask, other=0.0)
    turn = row % GROUP
    lock = lock_ptr + turn
    count = lock + GROUP
    place = dw_ptr + turn * N + cols
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    seen = tl.load(count)
    if seen == 0:
        tl.atomic_xchg(count, 1)
    else:
        dy += tl.load(place, mask=mask)
    tl.store(place, dy, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def column_sums(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, M, BM):
        rows = i + tl.arange(0, BM)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        acc += tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + cols, tl.sum(acc, axis=0), mask=cols < N)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, out_ptr, scale, H, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr,
              CAUSAL: tl.constexpr):
    start, head = tl.program_id(0), tl.program_id(1)
    base = head.to(tl.int64) * N * D
    rows = start * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    deep = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * D + deep[None, :])
    top = tl.zeros([BM], dtype=tl.float32) - float("inf")
    total = tl.zeros([BM], dtype=tl.float32)
    acc = tl.zeros([BM, D], dtype=tl.float32)
    end = (start + 1) * BM if CAUSAL else N
    for at in range(0, end, BN):
        k = tl.load(k_ptr + base + (at + cols)[None, :] * D + deep[:, None])
        scores = tl.dot(q, k)
        if CAUSAL:
            scores = tl.where(rows[:, None] >= (at + cols)[None, :], scores, -1.0e6)
        new = tl.maximum(top, tl.max(scores, 1) * scale)
        p = tl.math.exp2(scores * scale - new[:, None])
        old = tl.math.exp2(top - new)
        total = total * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        v = tl.load(v_ptr + base + (at + cols)[:, None] * D + deep[None, :])
        acc = tl.dot(p.to(tl.float16), v, acc)
        top = new
    acc = acc / total[:, None]
    tl.store(out_ptr + base + rows[:, None] * D + deep[None, :], acc.to(tl.float16))


@triton.jit
def grouped_matmul(a_ptrs, b_ptrs, c_ptrs, sizes, G: tl.constexpr, PROGRAMS: tl.constexpr, BM: tl.constexpr,
                   BN: tl.constexpr, BK: tl.constexpr):
    tile = tl.program_id(0)
    done = 0
    for g in range(G):
        m, n, k = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1), tl.load(sizes + g * 3 + 2)
        tiles = tl.cdiv(m, BM) * tl.cdiv(n, BN)
        while tile >= done and tile < done + tiles:
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            here = tile - done
            rows = (here // tl.cdiv(n, BN)) * BM + tl.arange(0, BM)
            cols = (here % tl.cdiv(n, BN)) * BN + tl.arange(0, BN)
            deep = tl.arange(0, BK)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for at in range(tl.cdiv(k, BK)):
                x = tl.load(a + rows[:, None] * k + deep[None, :] + at * BK)
                y = tl.load(b + (deep[:, None] + at * BK) * n + cols[None, :])
                acc += tl.dot(x, y)
            tl.store(c + rows[:, None] * n + cols[None, :], acc.to(tl.float16))
            tile += PROGRAMS
        done += tiles


@triton.jit
def matmul_persistent(a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                      BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, PROGRAMS, flatten=True):
        rows = (tile // tiles_n) * BM + tl.arange(0, BM)
        cols = (tile % tiles_n) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for at in range(tl.cdiv(K, BK)):
            deep = at * BK + tl.arange(0, BK)
            a = tl.load(a_ptr + rows[:, None] * K + deep[None, :], mask=(rows[:, None] < M) & (deep[None, :] < K))
            b = tl.load(b_ptr + deep[:, None] * N + cols[None, :], mask=(deep[:, None] < K) & (cols[None, :] < N))
            acc = tl.dot(a, b, acc)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask=mask)


@triton.jit
def matmul_descriptors(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    pm, pn = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(tl.cdiv(K, BK)):
        a = a_desc.load([pm * BM, at * BK])
        b = b_desc.load([pn * BN, at * BK])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([pm * BM, pn * BN], acc.to(tl.float16))


@triton.jit
def matmul_host_descriptors(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pm, pn = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, K, BK):
        acc = tl.dot(a_desc.load([pm * BM, at]), b_desc.load([at, pn * BN]), acc)
    c_desc.store([pm * BM, pn * BN], acc.to(tl.float16))


@triton.jit
def matmul_scaled(a_ptr, as_ptr, b_ptr, bs_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                  PACK: tl.constexpr, KIND: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(tl.cdiv(K, BK)):
        deep = at * (BK // PACK) + tl.arange(0, BK // PACK)
        scales = at * (BK // 32) + tl.arange(0, BK // 32)
        a = tl.load(a_ptr + rows[:, None] * (K // PACK) + deep[None, :])
        b = tl.load(b_ptr + deep[:, None] + cols[None, :] * (K // PACK))
        a_scale = tl.load(as_ptr + rows[:, None] * (K // 32) + scales[None, :])
        b_scale = tl.load(bs_ptr + cols[:, None] * (K // 32) + scales[None, :])
        acc = tl.dot_scaled(a, a_scale, KIND, b, b_scale, KIND, acc)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc)


@triton.jit
def sum_atomic(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)))


@triton.jit
def max_partial(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=-float("inf"))
    tl.store(out_ptr + tl.program_id(0), tl.max(x, axis=0))


@triton.jit
def embedding(table_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    row = tl.load(index_ptr + token)
    cols = tl.arange(0, BLOCK)
    mask = cols < width
    tl.store(out_ptr + token * width + cols, tl.load(table_ptr + row * width + cols, mask=mask), mask=mask)


@triton.jit
def gather_blocks(x_ptr, index_ptr, out_ptr, n, width, BLOCK: tl.constexpr, COLS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    rows = tl.load(index_ptr + at, mask=at < n, other=0)
    mask = (at[:, None] < n) & (cols[None, :] < width)
    x = tl.load(x_ptr + rows[:, None] * width + cols[None, :], mask=mask)
    tl.store(out_ptr + at[:, None] * width + cols[None, :], x, mask=mask)


@triton.jit
def scatter_rows(x_ptr, index_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + token * width + cols, mask=cols < width)
    tl.store(out_ptr + tl.load(index_ptr + token) * width + cols, x, mask=cols < width)


@triton.jit
def scatter_add(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    place = tl.load(index_ptr + at, mask=mask, other=0)
    tl.atomic_add(out_ptr + place, tl.load(x_ptr + at, mask=mask), mask=mask)


@triton.jit
def cumsum_rows(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(out_ptr + row * n_cols + cols, tl.cumsum(x, axis=0), mask=cols < n_cols)


@triton.jit
def _compose(a1, b1, a2, b2):
    return a2 * a1, a2 * b1 + b2


@triton.jit
def linear_recurrence(a_ptr, b_ptr, out_ptr, T, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + row * T + at)
    b = tl.load(b_ptr + row * T + at)
    _, h = tl.associative_scan((a, b), axis=0, combine_fn=_compose)
    tl.store(out_ptr + row * T + at, h)


@triton.jit
def histogram(x_ptr, out_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x_ptr + at, mask=at < n, other=0), BINS)
    tl.atomic_add(out_ptr + tl.arange(0, BINS), counts)


@triton.jit
def dequantize_int4(packed_ptr, scale_ptr, out_ptr, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    byte = tl.load(packed_ptr + at // 2, mask=mask, other=0)
    number = ((byte >> ((at % 2) * 4)) & 0xF) - 8
    scale = tl.load(scale_ptr + at // GROUP, mask=mask, other=0.0)
    tl.store(out_ptr + at, number.to(tl.float16) * scale, mask=mask)


@triton.jit
def matmul_int8_weights(a_ptr, w_ptr, scale_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(0, K, BK):
        deep = at + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + deep[None, :], mask=rows[:, None] < M, other=0.0)
        w = tl.load(w_ptr + deep[:, None] * N + cols[None, :]).to(tl.float16)
        acc = tl.dot(a, w, acc)
    acc = acc * tl.load(scale_ptr + cols)[None, :]
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(tl.float16), mask=rows[:, None] < M)


@triton.jit
def transpose(x_ptr, out_ptr, M, N, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    x = tl.load(x_ptr + rows[:, None] * N + cols[None, :], mask=mask)
    tl.store(out_ptr + cols[:, None] * M + rows[None, :], tl.trans(x), mask=tl.trans(mask))


@triton.jit
def copy_strided(x_ptr, out_ptr, n, step, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at * step, mask=at < n), mask=at < n)


@triton.jit
def rotary(x_ptr, cos_ptr, sin_ptr, T, HALF: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, HALF)
    place = x_ptr + (head * T + token) * 2 * HALF + at
    c = tl.load(cos_ptr + token * HALF + at)
    s = tl.load(sin_ptr + token * HALF + at)
    a = tl.load(place)
    b = tl.load(place + HALF)
    tl.store(place, a * c - b * s)
    tl.store(place + HALF, b * c + a * s)


@triton.jit
def rms_norm(x_ptr, w_ptr, out_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0).to(tl.float32)
    rms = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    w = tl.load(w_ptr + cols, mask=mask)
    tl.store(out_ptr + row * n_cols + cols, (x * rms).to(tl.float16) * w, mask=mask)


@triton.jit
def swiglu(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    a = tl.load(a_ptr + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + at, mask=mask, other=0.0)
    tl.store(out_ptr + at, (a * tl.sigmoid(a)).to(tl.float16) * b, mask=mask)


@triton.jit
def gelu_tanh(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    inner = 0.79788456 * (x + 0.044715 * x * x * x)
    tl.store(out_ptr + at, 0.5 * x * (1 + libdevice.tanh(inner)), mask=at < n)


@triton.jit
def cross_entropy(x_ptr, target_ptr, loss_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(target_ptr + row)
    top, total = -float("inf"), 0.0
    for at in range(0, n_cols, BLOCK):
        cols = at + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
        new = tl.maximum(top, tl.max(x))
        total = total * tl.exp(top - new) + tl.sum(tl.exp(x - new))
        top = new
    tl.store(loss_ptr + row, top + tl.log(total) - tl.load(x_ptr + row * n_cols + target))


@triton.jit
def depthwise_conv(x_ptr, w_ptr, out_ptr, T, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    channel = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for j in tl.static_range(WIDTH):
        place = at - (WIDTH - 1) + j
        x = tl.load(x_ptr + channel * T + place, mask=(place >= 0) & (place < T), other=0.0)
        acc += tl.load(w_ptr + channel * WIDTH + j) * x
    tl.store(out_ptr + channel * T + at, acc, mask=at < T)


@triton.jit
def matmul_split_k(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   SPLIT: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    part = tl.program_id(2)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for at in range(tl.cdiv(K, BK * SPLIT)):
        deep = at * BK * SPLIT + part * BK + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * K + deep[None, :])
        b = tl.load(b_ptr + deep[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], acc, sem="relaxed")


@triton.jit
def batched_matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(2)
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    a = tl.make_block_ptr(a_ptr + batch * M * K, (M, K), (K, 1), (m, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(b_ptr + batch * K * N, (K, N), (N, 1), (0, n), (BK, BN), (1, 0))
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(a, boundary_check=(0, 1)), tl.load(b, boundary_check=(0, 1)))
        a = tl.advance(a, (0, BK))
        b = tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(c_ptr + batch * M * N, (M, N), (N, 1), (m, n), (BM, BN), (1, 0))
    tl.store(c, acc.to(tl.float16), boundary_check=(0, 1))


@triton.jit
def paged_keys(q_ptr, cache_ptr, table_ptr, out_ptr, length, PAGE: tl.constexpr, D: tl.constexpr, PAGES: tl.constexpr):
    sequence = tl.program_id(0)
    deep = tl.arange(0, D)
    q = tl.load(q_ptr + sequence * D + deep)
    for i in range(tl.cdiv(length, PAGE)):
        page = tl.load(table_ptr + sequence * PAGES + i)
        slot = tl.arange(0, PAGE)
        k = tl.load(cache_ptr + page * PAGE * D + slot[:, None] * D + deep[None, :])
        scores = tl.sum(q[None, :] * k, axis=1)
        tl.store(out_ptr + sequence * PAGES * PAGE + i * PAGE + slot, scores)


@triton.jit
def argmax_rows(x_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=-float("inf"))
    tl.store(out_ptr + row, tl.argmax(x, axis=0))


@triton.jit
def adam(p_ptr, g_ptr, m_ptr, v_ptr, n, lr, b1, b2, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    p = tl.load(p_ptr + at, mask=mask)
    g = tl.load(g_ptr + at, mask=mask)
    m = b1 * tl.load(m_ptr + at, mask=mask) + (1 - b1) * g
    v = b2 * tl.load(v_ptr + at, mask=mask) + (1 - b2) * g * g
    tl.store(m_ptr + at, m, mask=mask)
    tl.store(v_ptr + at, v, mask=mask)
    tl.store(p_ptr + at, p - lr * m / (tl.sqrt(v) + eps), mask=mask)


@triton.jit
def average_pool(x_ptr, out_ptr, W, OUT, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    y = tl.program_id(0)
    x = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for i in range(WINDOW):
        for j in range(WINDOW):
            total += tl.load(x_ptr + (y + i) * W + x + j, mask=x < OUT, other=0.0)
    tl.store(out_ptr + y * OUT + x, total / (WINDOW * WINDOW), mask=x < OUT)


@triton.jit
def copy_ragged(x_ptr, out_ptr, length, width, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    if start >= length:
        return
    at = start + tl.arange(0, BLOCK)
    cols = tl.arange(0, 64)
    mask = (at[:, None] < length) & (cols[None, :] < width)
    x = tl.load(x_ptr + at[:, None] * width + cols[None, :], mask=mask)
    tl.store(out_ptr + at[:, None] * width + cols[None, :], x, mask=mask)


@triton.jit
def bisect_power(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    step = n
    while step > 1:
        x = x * 0.5
        step = step // 2
    tl.store(out_ptr + at, x, mask=at < n)


@triton.jit
def channel_moments(x_ptr, mean_ptr, var_ptr, B, C, S, BLOCK: tl.constexpr):
    channel = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for b in range(B):
        for s in range(0, S, BLOCK):
            at = s + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + (b * C + channel) * S + at, mask=at < S, other=0.0)
            total += x
            squares += x * x
    mean = tl.sum(total) / (B * S)
    tl.store(mean_ptr + channel, mean)
    tl.store(var_ptr + channel, tl.sum(squares) / (B * S) - mean * mean)


@triton.jit
def ragged_sums(x_ptr, ends_ptr, out_ptr, D: tl.constexpr, BLOCK: tl.constexpr):
    sequence = tl.program_id(0)
    start, end = tl.load(ends_ptr + sequence), tl.load(ends_ptr + sequence + 1)
    deep = tl.arange(0, D)
    acc = tl.zeros((D,), dtype=tl.float32)
    for at in range(start, end, BLOCK):
        rows = at + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + rows[:, None] * D + deep[None, :], mask=rows[:, None] < end, other=0.0)
        acc += tl.sum(x, axis=0)
    tl.store(out_ptr + sequence * D + deep, acc)


@triton.jit
def matmul_stream_k(a_ptr, b_ptr, c_ptr, N, K, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid, programs = tl.program_id(0), tl.num_programs(0)
    each, more = steps // programs, steps % programs
    start = pid * each + tl.minimum(pid, more)
    last = (pid + 1) * each + tl.minimum(pid + 1, more)
    of_tile = K // BK
    while start < last:
        skipped = start % of_tile
        end = tl.minimum(start + of_tile - skipped, last)
        tile = start // of_tile
        rows = tile // (N // BN) * BM + tl.arange(0, BM)
        columns = tile % (N // BN) * BN + tl.arange(0, BN)
        inner = skipped * BK + tl.arange(0, BK)
        a_at, b_at = a_ptr + rows[:, None] * K + inner[None, :], b_ptr + inner[:, None] * N + columns[None, :]
        total = tl.zeros((BM, BN), tl.float32)
        for _ in range(start, end):
            total = tl.dot(tl.load(a_at), tl.load(b_at), total)
            a_at += BK
            b_at += BK * N
        c_at = c_ptr + rows[:, None] * N + columns[None, :]
        if end - start == of_tile:
            tl.store(c_at, total)
        else:
            tl.atomic_add(c_at, total)
        start = end


@triton.jit
def matmul_precise(a_ptr, b_ptr, c_ptr, N: tl.constexpr, PRECISION: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION))


@triton.jit
def double_ragged(x_ptr, length_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row, first = tl.program_id(0), tl.program_id(1) * BLOCK
    length = tl.load(length_ptr + row)
    if first >= length:
        return
    cols = first + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + cols, mask=cols < length)
    tl.store(out_ptr + row * width + cols, x * 2.0, mask=cols < length)


@triton.jit
def exp2_assembly(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.inline_asm_elementwise("ex2.approx.f32 $0, $1;", "=f,f", [tl.load(x_ptr + at)], tl.float32, True, 1)
    tl.store(out_ptr + at, x)


@triton.jit
def gated(gate_ptr, x_ptr, out_ptr, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    apart = at % WIDTH + 2 * WIDTH * (at // WIDTH)
    gate, x = tl.load(gate_ptr + apart, mask=at < n), tl.load(x_ptr + apart, mask=at < n)
    tl.store(out_ptr + at, gate * x, mask=at < n)


@triton.jit
def concatenate(a_ptr, b_ptr, out_ptr, blocks, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if pid < blocks:
        source = a_ptr + pid * BLOCK
    else:
        source = b_ptr + (pid - blocks) * BLOCK
    tl.store(out_ptr + pid * BLOCK + tl.arange(0, BLOCK), tl.load(source + tl.arange(0, BLOCK)))
