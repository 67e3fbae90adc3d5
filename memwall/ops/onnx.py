"""Ops of ONNX Runtime without a counterpart in torch (com.microsoft, ContribOperators.md).

- A norm of a sum is the norm and an add per element, in one kernel.
- A rotary embedding is 3 FLOP per element: two products and a sum; of its tables the rows of the positions are read.
- MatMulNBits dequantises its weights inside the kernel and multiplies in the dtype of its activations.
"""

from __future__ import annotations

from dataclasses import replace

from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.contraction import product_pipe
from memwall.ops.normalization import layer_norm, rms_norm
from memwall.ops.passes import streamed, vector_flops
from memwall.ops.product_launches import QuantisedGemm
from memwall.ops.quantised import kernels_of
from memwall.ops.registry import formula

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
