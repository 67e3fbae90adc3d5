"""The product template in Triton's interpreter, against float64, and the tiles that it chooses."""

import math
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn import functional as F

from memwall.codegen.compiling import compile_all
from memwall.codegen.gemm import gemm_kernel
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.fusion.pricing import Pricer
from memwall.ops import graph_costs
from tests.unit import interpreted
from tests.unit.fusion_graphs import Builder, round_gpu

pytest.importorskip("triton")

#: of one rounding of the result; the interpreter cuts bf16 off instead of rounding it
EPSILON = {"float32": 2e-6, "float16": 2**-10, "bfloat16": 2**-7}
DTYPES = tuple(EPSILON)


@dataclass
class Case:
    """A graph, its inputs by name, its results and the same in float64 from the inputs."""

    builder: Builder
    given: dict[str, int]
    results: tuple[int, ...]
    reference: object
    kernel: Kernel | None = None
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    got: tuple[torch.Tensor, ...] = ()


def generate(case: Case, **changes) -> Kernel:
    gpu = round_gpu(**changes)
    graph = case.builder.graph(*case.results)
    pricer = Pricer(graph, graph_costs(graph), gpu)
    group = pricer.group([op.id for op in graph.ops])
    return gemm_kernel(graph, pricer.flow, group, gpu)


def plain(m: int, n: int, k: int, dtype: str) -> Case:
    b = Builder()
    x, w = b.given(m, k, dtype=dtype), b.given(k, n, dtype=dtype)
    y = b.call("aten.mm", [("self", x), ("mat2", w)], m, n, dtype=dtype)
    return Case(b, {"x": x, "w": w}, (y,), lambda x, w: x @ w)


def bias_gelu(m: int, n: int, k: int, dtype: str) -> Case:
    """A linear layer whose weight is [n, k], its bias, GELU."""
    b = Builder()
    x, w, bias = b.given(m, k, dtype=dtype), b.given(n, k, dtype=dtype), b.given(n, dtype=dtype)
    y = b.call("aten.addmm", [("self", bias), ("mat1", x), ("mat2", b.view(w, (k, n), (1, k)))], m, n, dtype=dtype)
    z = b.call("aten.gelu", [("self", y)], m, n, dtype=dtype, approximate="none")
    return Case(b, {"x": x, "w": w, "bias": bias}, (z,), lambda x, w, bias: F.gelu(x @ w.T + bias))


def residual(dtype: str) -> Case:
    """The product is read as [tokens, batch, n], scaled, and added to a residual; both are kept."""
    b = Builder()
    x, w, r = b.given(35, 33, dtype=dtype), b.given(33, 24, dtype=dtype), b.given(7, 5, 24, dtype=dtype)
    y = b.call("aten.mm", [("self", x), ("mat2", w)], 35, 24, dtype=dtype)
    z = b.call("aten.mul.Scalar", [("self", b.view(y, (7, 5, 24), (120, 24, 1)))], 7, 5, 24, dtype=dtype, other=0.5)
    s = b.call("aten.add.Tensor", [("self", z), ("other", r)], 7, 5, 24, dtype=dtype)
    return Case(b, {"x": x, "w": w, "r": r}, (z, s), lambda x, w, r: (z := (x @ w).view(7, 5, 24) * 0.5, z + r))


def dequantized() -> Case:
    """Whole numbers of eight bits, one scale for each row of the weight; the depth is no multiple of a tile's."""
    b = Builder()
    x, w = b.given(9, 70, dtype="float16"), b.given(17, 70, dtype="int8")
    scale = b.given(17, 1, dtype="float16")
    half = b.call("aten._to_copy", [("self", w)], 17, 70, dtype="float16", dtype_=None)
    whole = b.call("aten.mul.Tensor", [("self", half), ("other", scale)], 17, 70, dtype="float16")
    y = b.call("aten.mm", [("self", x), ("mat2", b.view(whole, (70, 17), (1, 70)))], 9, 17, dtype="float16")
    return Case(b, {"x": x, "w": w, "scale": scale}, (y,), lambda x, w, scale: x @ (w * scale).half().double().T)


def activated_operand() -> Case:
    """log x² of the left operand: beyond its edge that is minus infinity, which not even a zero takes out of a sum."""
    b = Builder()
    x, w = b.given(20, 37), b.given(37, 18)
    square = b.call("aten.mul.Tensor", [("self", x), ("other", x)], 20, 37)
    y = b.call("aten.log", [("self", square)], 20, 37)
    z = b.call("aten.mm", [("self", y), ("mat2", w)], 20, 18)
    return Case(b, {"x": x, "w": w}, (z,), lambda x, w: (x * x).log() @ w)


def heads() -> Case:
    """A product per head with a mask that is one for all heads of a sequence, and scaled."""
    b = Builder()
    q, k, mask = b.given(6, 5, 8), b.given(6, 9, 8), b.given(2, 1, 1, 9)
    y = b.call("aten.bmm", [("self", q), ("mat2", b.view(k, (6, 8, 9), (72, 1, 8)))], 6, 5, 9)
    z = b.call("aten.add.Tensor", [("self", b.view(y, (2, 3, 5, 9), (135, 45, 9, 1))), ("other", mask)], 2, 3, 5, 9)
    return Case(b, {"q": q, "k": k, "mask": mask}, (z,), lambda q, k, mask: (q @ k.mT).view(2, 3, 5, 9) + mask)


def scaled_addend() -> Case:
    b = Builder()
    c, x, w = b.given(4, 1, 11), b.given(4, 10, 12), b.given(4, 12, 11)
    y = b.call("aten.baddbmm", [("self", c), ("batch1", x), ("batch2", w)], 4, 10, 11, alpha=0.25, beta=3)
    return Case(b, {"c": c, "x": x, "w": w}, (y,), lambda c, x, w: 3 * c + 0.25 * (x @ w))


def linear() -> Case:
    b = Builder()
    x, w, bias = b.given(3, 11, 20), b.given(30, 20), b.given(30)
    y = b.call("aten.linear", [("input", x), ("weight", w), ("bias", bias)], 3, 11, 30)
    z = b.call("aten.relu", [("self", y)], 3, 11, 30)
    return Case(b, {"x": x, "w": w, "bias": bias}, (z,), lambda x, w, bias: (x @ w.T + bias).relu())


def permuted() -> Case:
    """The result is scaled in the order of heads: [batch, head, token, d], as a view of the product is."""
    b = Builder()
    x, w = b.given(10, 12), b.given(12, 24)
    y = b.call("aten.mm", [("self", x), ("mat2", w)], 10, 24)
    out = b.tensor(2, 3, 5, 8)
    b.op("aten.mul.Scalar", [("self", b.view(y, (2, 3, 5, 8), (120, 8, 24, 1)))], [out], other=2.0)
    return Case(b, {"x": x, "w": w}, (out,), lambda x, w: (x @ w).view(2, 5, 3, 8).transpose(1, 2) * 2)


def in_place() -> Case:
    """A gradient is added to the one that is there."""
    b = Builder()
    x, w, grad = b.given(6, 14), b.given(6, 9), b.given(14, 9, role="parameter")
    y = b.call("aten.mm", [("self", b.view(x, (14, 6), (1, 14))), ("mat2", w)], 14, 9)
    b.op("aten.add_.Tensor", [("self", grad), ("other", y)], [grad])
    return Case(b, {"x": x, "w": w, "grad": grad}, (), lambda x, w, grad: grad + x.T @ w)


SIZES = ((1, 1, 1), (7, 65, 129), (129, 7, 65), (65, 129, 7), (1, 300, 64), (130, 64, 128))
CASES = {
    **{f"plain {d} {m}x{n}x{k}": plain(m, n, k, d) for d in DTYPES for m, n, k in SIZES},
    **{f"gelu {d}": bias_gelu(65, 129, 70, d) for d in DTYPES},
    **{f"residual {d}": residual(d) for d in DTYPES},
    "dequantized": dequantized(),
    "activated operand": activated_operand(),
    "heads": heads(),
    "scaled addend": scaled_addend(),
    "linear": linear(),
    "permuted": permuted(),
    "in place": in_place(),
    "not a number": plain(7, 65, 129, "float32"),
    "nothing": plain(0, 5, 3, "float32"),
    "no depth": plain(5, 4, 0, "float32"),
}


def random_tensor(spec, random: torch.Generator) -> torch.Tensor:
    if spec.dtype == "int8":
        return torch.randint(-128, 128, spec.shape, generator=random, dtype=torch.int8)
    return torch.randn(spec.shape, generator=random, dtype=torch.float64).to(getattr(torch, spec.dtype))


@pytest.fixture(scope="module")
def cases(tmp_path_factory, forks) -> dict[str, Case]:
    """All cases, run in one interpreter; new memory is poisoned by it with whatever was there."""
    folder = tmp_path_factory.mktemp("kernels")
    random = torch.Generator().manual_seed(0)
    sent = {}
    for name, case in CASES.items():
        case.kernel = generate(case)
        case.tensors = {key: random_tensor(case.builder.values[i].spec, random) for key, i in case.given.items()}
        if name == "not a number":  # three rows: none of their neighbours may see it
            case.tensors["x"][[1, 3, 6], [128, 0, 5]] = torch.tensor([math.nan, math.inf, -math.inf])
        by_storage = {case.builder.values[i].storage: case.tensors[key] for key, i in case.given.items()}
        values = [case.builder.values[i] for i in case.kernel.inputs]
        views = [by_storage[v.storage].as_strided(v.spec.shape, v.spec.strides, v.offset) for v in values]
        sent[name] = {"source": case.kernel.source, "tensors": views}
    for name, done in interpreted.run(forks, sent, folder).items():
        CASES[name].got = done["result"]
    return CASES


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_float64(cases, name):
    case = cases[name]
    wanted = case.reference(**{key: tensor.double() for key, tensor in case.tensors.items()})
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    assert len(case.got) == len(wanted) and case.kernel.schedule == "matmul"
    for got, expected in zip(case.got, wanted, strict=True):
        dtype = str(got.dtype).removeprefix("torch.")
        # one rounding of the result, and float32's over the depth where terms cancel
        largest = expected[expected.isfinite()].abs().max().item() if expected.numel() else 0
        near_zero = EPSILON["float32"] * math.sqrt(largest + 1) * 10
        torch.testing.assert_close(
            got.double(), expected.reshape(got.shape), rtol=EPSILON[dtype], atol=near_zero, equal_nan=True
        )


def test_whole_tiles_need_no_masks_and_ragged_ones_do():
    assert "mask" not in generate(plain(256, 512, 64, "float16")).source
    source = generate(plain(256, 500, 64, "float16")).source
    assert "mask=(n < 500)" in source and "(m <" not in source and "(k_left <" not in source
    assert "(k_left < 70)" in generate(plain(256, 512, 70, "float16")).source


def test_tiles_shrink_until_every_multiprocessor_has_one():
    # 100 multiprocessors: 128 x 128 gives 64 tiles of 1024 x 1024, 128 x 64 gives 128
    kernel = generate(plain(1024, 1024, 1024, "float16"))
    assert (kernel.config["BLOCK_M"], kernel.config["BLOCK_N"]) == (128, 64)
    assert kernel.launches[0].grid == (8 * 16,)
    # 4096 x 4096: 1024 tiles of 128 x 128
    assert generate(plain(4096, 4096, 1024, "float16")).launches[0].grid == (32 * 32,)


def test_no_tile_is_twice_as_large_as_the_result():
    narrow = generate(plain(65536, 64, 512, "float16"), compute_capability="9.0")
    assert {config["BLOCK_N"] for config in narrow.configs} == {64}


def test_a_wide_tile_is_tried_where_shared_memory_holds_four_of_its_stages():
    # (128 + 256) x 64 elements of 2 bytes are 48 KiB a stage: 227 KiB hold four, 163 KiB three
    tried = {
        name: {c["BLOCK_N"] for c in generate(plain(8192, 8192, 1024, "float16"), compute_capability=name).configs}
        for name in ("8.0", "9.0")
    }
    assert tried == {"8.0": {128, 64}, "9.0": {256, 128, 64}}


def test_loads_in_flight_fit_in_shared_memory():
    # (128 + 128) x 64 elements of 2 bytes are 32 KiB a stage: 99 KiB hold three, 227 KiB more than four
    assert generate(plain(4096, 4096, 1024, "float16"), compute_capability="8.6").config["STAGES"] == 3
    assert generate(plain(4096, 4096, 1024, "float16"), compute_capability="9.0").config["STAGES"] == 4


def test_rows_at_odd_addresses_are_loaded_in_thinner_tiles():
    assert generate(plain(4096, 4096, 1024, "float16")).config["BLOCK_K"] == 64
    assert generate(plain(4096, 4097, 1024, "float16")).config["BLOCK_K"] == 32


def test_single_precision_is_kept_unless_the_workload_allows_less():
    case = plain(4096, 4096, 1024, "float32")
    assert 'input_precision="ieee"' in generate(case).source
    b = Builder()
    x, w = b.given(4096, 1024), b.given(1024, 4096)
    y = b.call("aten.mm", [("self", x), ("mat2", w)], 4096, 4096, allow_tf32=True)
    kernel = generate(Case(b, {}, (y,), None))
    assert 'input_precision="tf32"' in kernel.source
    assert (kernel.config["BLOCK_M"], kernel.config["BLOCK_K"]) == (128, 32)


def test_offsets_beyond_31_bits_are_counted_in_64():
    assert "int64" not in generate(plain(2**15, 2**15, 64, "float16")).source
    assert generate(plain(2**16, 2**15, 64, "float16")).source.count(".to(tl.int64)") == 2  # m and n


def with_dropout() -> Case:
    b = Builder()
    x, w = b.given(64, 64, dtype="float16"), b.given(64, 64, dtype="float16")
    y = b.call("aten.mm", [("self", x), ("mat2", w)], 64, 64, dtype="float16")
    out, mask = b.tensor(64, 64, dtype="float16"), b.tensor(64, 64, dtype="bool")
    b.op("aten.native_dropout", [("input", y)], [out, mask], p=0.5, train=True)
    return Case(b, {"x": x, "w": w}, (out, mask), None)


def test_dropout_takes_a_seed_and_smaller_tiles():
    kernel = generate(with_dropout())
    assert kernel.is_random and ("seed", "i32") in kernel.launches[0].arguments
    assert kernel.config["BLOCK_N"] == 64 and kernel.config["NUM_WARPS"] == 8


def test_a_large_layer_compiles_without_spills(tmp_path, request):
    """With --whole for each generation of tensor cores, else for one of each vendor."""
    case = bias_gelu(4096, 4096, 4096, "bfloat16")
    capabilities = {"sm_90": "9.0", "gfx942": "gfx942"}
    if request.config.getoption("--whole"):
        capabilities |= {"sm_80": "8.0", "sm_100": "10.0"}
    pairs = [(generate(case, compute_capability=c), name) for name, c in capabilities.items()]
    for (resources,) in compile_all(pairs, cache=tmp_path):
        assert (resources.status, resources.spilled_bytes, resources.stack_bytes) == ("ok", 0, 0)
        assert resources.shared_bytes > 0


@pytest.mark.parametrize("capability", ["6.0", "7.0", "7.5"])
def test_below_ampere_the_library_keeps_the_product(capability):
    with pytest.raises(NotGenerated, match="below sm_80"):
        generate(plain(64, 64, 64, "float16"), compute_capability=capability)


def product(b: Builder) -> int:
    return b.call("aten.mm", [("self", b.given(8, 8)), ("mat2", b.given(8, 8))], 8, 8)


def two_products(b: Builder) -> tuple[int, ...]:
    return (b.call("aten.mm", [("self", product(b)), ("mat2", b.given(8, 8))], 8, 8),)


def double_precision(b: Builder) -> tuple[int, ...]:
    x = b.given(8, 8, dtype="float64")
    return (b.call("aten.mm", [("self", x), ("mat2", x)], 8, 8, dtype="float64"),)


def summed(b: Builder) -> tuple[int, ...]:
    return (b.call("aten.sum.dim_IntList", [("self", product(b))], 8, dim=[1]),)


def normalized(b: Builder) -> tuple[int, ...]:
    return (b.call("aten._softmax", [("self", product(b))], 8, 8, dim=-1, half_to_float=False),)


def transposed_sum(b: Builder) -> tuple[int, ...]:
    """The product plus its transpose: each tile would need another one."""
    y = product(b)
    return (b.call("aten.add.Tensor", [("self", y), ("other", b.view(y, (8, 8), (1, 8)))], 8, 8),)


def onto_its_operand(b: Builder) -> tuple[int, ...]:
    """Programs would read what others have written."""
    x, w = b.given(8, 8, role="parameter"), b.given(8, 8)
    y = b.call("aten.mm", [("self", x), ("mat2", w)], 8, 8)
    b.op("aten.add_.Tensor", [("self", x), ("other", y)], [x])
    return ()


@pytest.mark.parametrize(("build", "reason"), [
    (two_products, "2 matmuls"), (double_precision, "float64"), (summed, "another size"), (normalized, "reduction"),
    (transposed_sum, "another order"), (onto_its_operand, "written over"),
])  # fmt: skip
def test_what_is_not_generated_says_why(build, reason):
    b = Builder()
    results = build(b)
    with pytest.raises(NotGenerated, match=reason):
        generate(Case(b, {}, results, None))


def test_the_same_group_gives_the_same_text_every_time():
    """Also where a tensor that is gone has left its address to another."""
    case = CASES["residual float32"]
    assert len({generate(case).source for _ in range(300)}) == 1
