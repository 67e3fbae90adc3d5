"""A dropout by Triton with none, one and four of the numbers of a call of its generator (Triton needs a file)."""

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCK, THREADS = 1024, 128


@triton.jit
def _write(x, y, mask, place, keep, kept):
    tl.store(y + place, tl.where(keep, kept * 1.1, 0.0))
    tl.store(mask + place, keep)


@triton.jit
def none(x, y, mask, seed, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    kept = tl.load(x + place).to(tl.float32)
    _write(x, y, mask, place, kept > tl.load(seed), kept)


@triton.jit
def one(x, y, mask, seed, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    kept = tl.load(x + place).to(tl.float32)
    _write(x, y, mask, place, tl.rand(tl.load(seed), place.to(tl.uint32)) > 0.1, kept)


@triton.jit
def four(x, y, mask, seed, block: tl.constexpr):
    place = tl.program_id(0) * block + tl.arange(0, block)
    quarter = tl.program_id(0) * (block // 4) + tl.arange(0, block // 4)
    a, b, c, d = tl.rand4x(tl.load(seed), quarter.to(tl.uint32))
    drawn = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [block])
    kept = tl.load(x + place).to(tl.float32)
    _write(x, y, mask, place, drawn > 0.1, kept)


def binary(kernel, capability: int) -> bytes:
    """What ptxas makes of a kernel on float16; ``capability`` is ten times the compute capability."""
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    types = {"x": "*fp16", "y": "*fp16", "mask": "*i1", "seed": "*i64"}
    source = ASTSource(kernel, types, constexprs={"block": BLOCK}, attrs=aligned)
    warps = {"num_warps": THREADS // 32}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=warps).asm["cubin"]
