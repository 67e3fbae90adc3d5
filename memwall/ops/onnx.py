"""Ops of ONNX Runtime without a counterpart in torch (com.microsoft, ContribOperators.md).

- A norm of a sum is the norm and an add per element, in one kernel.
- A rotary embedding is 3 FLOP per element: two products and a sum; of its tables the rows of the positions are read.
- Experts run in TensorRT-LLM's kernels, from which ONNX Runtime has its own (contrib_ops/cuda/moe); tokens choose by
  chance.
- MatMulNBits dequantises its weights inside the kernel and multiplies in the dtype of its activations.
"""

from __future__ import annotations

import math
from dataclasses import replace

from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.contraction import product_pipe
from memwall.ops.experts import SCHEMES, cost_of_experts
from memwall.ops.normalization import layer_norm, rms_norm
from memwall.ops.passes import streamed, vector_flops
from memwall.ops.product_launches import QuantisedGemm
from memwall.ops.quantised import kernels_of
from memwall.ops.registry import formula
from memwall.ops.routing import loads_of
from memwall.ops.serving import ExpertsLaunch

#: bits of a weight → the scheme whose kernels multiply by it
_SCHEMES = {2: "int4_wo", 4: "int4_wo", 8: "int8_wo"}


@formula("normalization", "microsoft::SkipLayerNormalization microsoft::SkipSimplifiedLayerNormalization")
def skip_norm(call: Call) -> Cost:
    """``norm(input + skip)``: the norm's FLOPs and one add, two where a bias is added."""
    data = call.need("input")
    cost = (rms_norm if "Simplified" in call.name else layer_norm)(call)
    adds = vector_flops(data, data.numel * (1 + (call.arg("added") is not None)))
    return replace(cost, flops={pipe: n + adds.get(pipe, 0) for pipe, n in cost.flops.items()})


@formula("elementwise", "microsoft::RotaryEmbedding", loop=loops.opaque)
def rotary(call: Call) -> Cost:
    """``input`` turned by rows of ``cos_cache`` and ``sin_cache``, one for each of the ``positions``."""
    data, tables = call.need("input"), [call.need("cos_cache"), call.need("sin_cache")]
    rows = call.attributes["positions"]
    read = data.nbytes + sum(fetched_bytes(table, rows * table.shape[-1]) for table in tables)
    return streamed(call.cost(vector_flops(data, 3 * data.numel), read_bytes=read), data.numel)


@formula("normalization", "onnx::LRN", loop=loops.opaque)
def local_response(call: Call) -> Cost:
    """Each element over a power of the sum of squares of ``size`` channels around it: a square, the sum, a scale, an
    add, a power and a division."""
    data = call.inputs[0]
    return streamed(call.cost(vector_flops(data, (call.attributes["size"] + 5) * data.numel)), data.numel)


@formula("other", "onnx::DFT onnx::STFT", loop=loops.opaque)
def fourier(call: Call) -> Cost:
    """``5 n log2 n`` for each of ``count`` transforms of ``n`` points, half where the signal is real (FFTW's
    convention); a product for each number that a ``window`` weighs."""
    data, n, count = call.inputs[0], call.attributes["points"], call.attributes["count"]
    parts = data.shape[-1]
    flops = count * n * (2.5 * parts * math.log2(max(n, 1)) + parts * call.attributes["window"])
    return streamed(call.cost(vector_flops(data, round(flops))), data.numel)


@formula("contraction", "microsoft::MatMulNBits")
def few_bits(call: Call) -> Cost:
    """``A`` [..., K] x ``B`` [N, K] of a few bits: 2mnk."""
    data, n, k = call.need("A"), call.attributes["N"], call.attributes["K"]
    bits, pipe = call.attributes["bits"], product_pipe(data.dtype, call.attributes)
    scheme = _SCHEMES[bits]
    gemm = QuantisedGemm(
        pipe=pipe,
        batch=1,
        m=data.numel // k,
        n=n,
        k=k,
        itemsize=data.itemsize,
        weight_itemsize=bits / 8,
        scheme=scheme,
        kernel=kernels_of(scheme).product,
        read_bytes=call.read_bytes,
        write_bytes=call.write_bytes,
    )
    return call.cost({pipe: 2 * data.numel * n}, launches=(gemm,))


@formula("contraction", "microsoft::MoE microsoft::QMoE")
def experts(call: Call) -> Cost:
    """``input`` [..., hidden] by ``k`` of experts ``fc1`` [E, gates * inter, hidden], ``fc2`` [E, hidden, inter] and
    ``fc3`` as fc1 where the gate is apart; of ``bits`` 4 two numbers are a byte."""
    data, first, second = (call.need(name) for name in ("input", "fc1", "fc2"))
    bits, (count, hidden) = call.attributes.get("bits", 16), (first.shape[0], data.shape[-1])
    scheme = {16: data.dtype, 8: "int8_wo", 4: "int4_wo"}[bits]
    if scheme not in SCHEMES:
        raise LookupError(f"experts of {scheme} have no kernels here")
    packed = 2 if bits == 4 else 1
    inter = second.numel * packed // (count * hidden)
    gates = first.numel * packed // (count * hidden * inter) + (call.arg("fc3") is not None)
    tokens = data.numel // hidden
    loads = loads_of(tokens, count, call.attributes["k"])
    found = cost_of_experts(tokens, hidden, inter, loads, scheme, "trtllm", gates=gates)
    (work,) = found.launches
    assert isinstance(work, ExpertsLaunch)
    each = call.bytes_except("input", "router") // count
    more = work.active * (each - work.expert_bytes)  # scales and biases as they are
    work = replace(work, expert_bytes=each, read_bytes=work.read_bytes + more)
    return replace(found, read_bytes=work.read_bytes, launches=(work,))
