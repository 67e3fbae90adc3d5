"""What a kernel is held against: inputs that make sense, float64, a tolerance that eager keeps and faults do not."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from memwall.bench.kernels.arena import Arena
from memwall.bench.kernels.evaluate import CpuForms
from memwall.bench.kernels.numerics import philox, uniform
from memwall.bench.kernels.oracle import Oracle
from memwall.codegen import Kernel
from memwall.core.errors import Unsupported
from memwall.fusion.pricing import Pricer
from memwall.fusion.reference import reference
from memwall.hardware.lookup import load_gpu
from memwall.ops.evaluate import Operators
from tests.unit import interpreted, small_workloads
from tests.unit.fusion_graphs import Builder


@pytest.fixture
def b():
    """A graph to build."""
    return Builder()


def oracle_of(builder: Builder) -> Oracle:
    """All ops of a graph as one group; what nobody reads is an output."""
    graph = builder.graph()
    made = [v for op in graph.ops for v in op.outputs]
    graph = replace(graph, outputs=tuple(v for v in made if all(v not in op.inputs for op in graph.ops)))
    pricer = Pricer(graph, small_workloads._costs(graph), load_gpu("h100-sxm"))
    return Oracle(graph, pricer.flow, pricer.group([op.id for op in graph.ops]))


def kernel_of(oracle: Oracle) -> Kernel:
    """A kernel in name, which takes all that there was before the group."""
    return Kernel("k", "", oracle.external, oracle.group.writes, oracle.group.op_ids, (), "pointwise")


def added(rows: int = 37, cols: int = 101, dtype: str = "float32") -> Oracle:
    """x + y."""
    b = Builder()
    x, y = b.given(rows, cols, dtype=dtype), b.given(rows, cols, dtype=dtype)
    b.call("aten.add.Tensor", [("self", x), ("other", y)], rows, cols, dtype=dtype, alpha=1)
    return oracle_of(b)


# -- Philox ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # kat_vectors of Random123, "philox 4x32 10"
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)  # fmt: skip
def test_philox_gives_the_published_numbers(counter, key, expected):
    words = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(int(word) for word in words) == expected


RAND = """
import sys
import torch, triton, triton.language as tl

@triton.jit
def rand(out, seed, START: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK).to(tl.int64)
    drawn = tl.rand4x(seed, START + place)
    for word in tl.static_range(4):
        tl.store(out + 4 * place + word, drawn[word])

for seed, start in zip(map(int, sys.argv[1::2]), map(int, sys.argv[2::2])):
    out = torch.empty(4096)
    rand[(1,)](out, seed, START=start, BLOCK=1024)
    torch.save(out, f"{seed}.pt")
"""


@pytest.mark.versions
@interpreted.needs_triton
def test_uniform_numbers_are_those_of_triton(tmp_path, forks):
    (tmp_path / "rand.py").write_text(RAND, encoding="utf-8")
    code = "import os, runpy, sys; os.chdir(sys.argv.pop(1)); runpy.run_path('rand.py')"
    pairs = ((0, 0), (123_456_789_012, 5_000_000_000))
    forks.printed(code, tmp_path, *(number for pair in pairs for number in pair), TRITON_INTERPRET="1")
    for seed, start in pairs:
        assert torch.equal(uniform(seed, 4 * start + torch.arange(4096)), torch.load(tmp_path / f"{seed}.pt"))


# -- memory ------------------------------------------------------------------------------------------------------------


def test_values_of_one_storage_share_memory_between_guard_bands(b):
    x = b.given(4, 6)
    column = b.view(x, (4,), (6,), 2)
    arena = Arena(b.graph())
    arena[x].copy_(torch.arange(24.0).view(4, 6))
    assert arena[column].tolist() == [2.0, 8.0, 14.0, 20.0]
    flat = arena[x].as_strided((1,), (1,), arena[x].storage_offset() + 24)
    assert flat.isnan().all()  # the first number behind the end
    assert arena.broken() == []
    flat.fill_(0.0)
    assert arena.broken() == ["storage 0"]


def test_memory_that_a_kernel_takes_is_poisoned_in_two_ways_and_guarded():
    graph = Builder().graph()
    taken = [Arena(graph, number=n).empty((3, 5), (5, 1), dtype=torch.float32, device="cpu") for n in (0, 1)]
    assert taken[0].isnan().all()
    assert taken[1].isfinite().all()
    for number, tensor in enumerate(taken):
        arena = Arena(graph, number=number)
        tensor = arena.empty((3, 5), (5, 1), dtype=torch.bfloat16)
        tensor.as_strided((1,), (1,), tensor.storage_offset() - 1).fill_(1.0)
        assert arena.broken() == ["its 0th allocation"]


# -- inputs ------------------------------------------------------------------------------------------------------------


def test_inputs_are_the_same_for_a_seed_and_never_zeros():
    oracle = added()
    first, again, other = (oracle.inputs(seed) for seed in (1, 1, 2))
    for value in oracle.external:
        assert torch.equal(first[value], again[value])
        assert not torch.equal(first[value], other[value])
        assert 0.9 < float(first[value].std()) < 1.1


def test_indices_lie_within_what_they_index(b):
    table, ids = b.given(13, 4, role="parameter"), b.given(50, dtype="int64")
    order = b.call("aten.floor_divide", [("self", ids)], 50, dtype="int64", other=2)
    b.call("aten.embedding", [("weight", table), ("indices", order)], 50, 4)
    arena = oracle_of(b).inputs(0)
    assert int(arena[ids].min()) >= 0
    assert 13 <= int(arena[ids].max()) < 26  # before it is halved


def test_groups_of_a_product_end_where_their_axis_does(b):
    rows, experts, ends = b.given(64, 8), b.given(4, 8, 16), b.given(4, dtype="int32")
    b.call("aten._grouped_mm", [("self", rows), ("mat2", experts), ("offs", ends)], 64, 16)
    assert oracle_of(b).inputs(0)[ends].tolist() == [16, 32, 48, 64]


def test_lengths_that_attention_returns_are_no_tensors(b):
    """Flash attention's operator gives ten results, two of them numbers, two undefined; the graph has its tensors."""
    q, k, v = (b.given(1, 2, 8, 16, dtype="float16") for _ in range(3))
    outputs = [b.tensor(1, 2, 8, 16, dtype="float16"), b.tensor(1, 2, 8)]
    outputs += [b.tensor(2, dtype="uint64"), b.tensor(dtype="uint64"), b.tensor(0, dtype="float16")]
    given = [("query", q), ("key", k), ("value", v)]
    b.op("aten._scaled_dot_product_flash_attention", given, outputs, dropout_p=0.0, is_causal=True)
    oracle = oracle_of(b)
    forms = CpuForms()
    found = oracle.eager(oracle.inputs(0))
    assert found[outputs[0]].shape == (1, 2, 8, 16) and found[outputs[1]].shape == (1, 2, 8)
    del forms


def test_sequences_of_one_length_leave_the_ends_undefined(b):
    g, q, k, v, out = (b.given(1, 2, 8, 16, dtype="float16") for _ in range(5))
    lse, seed, place = b.given(1, 2, 8), b.given(2, dtype="uint64"), b.given(dtype="uint64")
    names = ("grad_out", "query", "key", "value", "out", "logsumexp", "philox_seed", "philox_offset")
    outputs = [b.tensor(1, 2, 8, 16, dtype="float16") for _ in range(3)]
    given = list(zip(names, (g, q, k, v, out, lse, seed, place), strict=True))
    numbers = {"max_q": 8, "max_k": 8, "dropout_p": 0.0, "is_causal": True}
    b.op("aten._scaled_dot_product_flash_attention_backward", given, outputs, **numbers)
    oracle = oracle_of(b)
    text = reference(oracle.graph, oracle.flow, oracle.group, Operators()).source
    assert ", None, None, 8, 8, 0.0, True, " in text


def test_a_convolution_in_tf32_may_round_its_operands(b):
    """10 bits of mantissa: 2^-11 of each operand; in float32 the same result is wrong."""
    x, w = torch.randn(2, 16, 9, 9), torch.randn(8, 16, 3, 3)
    rounded = (torch.nn.functional.conv2d(*(_in_tf32(t) for t in (x, w)), padding=1),)
    for allowed in (True, False):
        b = Builder()
        image, weight = b.given(2, 16, 9, 9), b.given(8, 16, 3, 3)
        window = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False}
        window |= {"output_padding": (0, 0), "groups": 1, "allow_tf32": allowed}
        made = b.call("aten.convolution", [("input", image), ("weight", weight)], 2, 8, 9, 9, **window)
        oracle = oracle_of(b)
        arena = oracle.inputs(0)
        arena[image].copy_(x)
        arena[weight].copy_(w)
        assert oracle.check({made: rounded[0]}, arena).passed == allowed


def _in_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """Rounded to ten bits of mantissa."""
    bits = tensor.view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def test_targets_of_a_loss_are_classes_and_some_are_ignored(b):
    scores, target = b.given(64, 11), b.given(64, dtype="int64")
    outputs = [b.tensor(), b.tensor()]
    b.op("aten.nll_loss_forward", [("self", scores), ("target", target)], outputs, reduction=1, ignore_index=-100)
    drawn = oracle_of(b).inputs(3)[target]
    assert int((drawn == -100).sum()) == 64 // 7
    rest = drawn[drawn != -100]
    assert 0 <= int(rest.min()) <= int(rest.max()) < 11


def test_saved_statistics_and_second_moments_are_positive():
    small = small_workloads.small("bert_large", "training")
    roots = [op for op in small.graph.ops if op.name in ("aten._foreach_sqrt", "aten.native_layer_norm_backward")]
    assert len(roots) > 1
    for op in roots:
        group = next(g for g in small.groups if op.id in g.op_ids)
        oracle = Oracle(small.graph, small.flow, group)
        arena = oracle.inputs(0)
        wanted = [i for name, i in zip(op.arguments, op.inputs, strict=True) if name in ("rstd", "self")]
        for value in wanted:
            if value in oracle.external:
                assert bool((arena[value] > 0).all())


def test_special_numbers_are_among_the_floats_on_request():
    x = added().external[0]
    plain, special = (added().inputs(0, special=wanted)[x] for wanted in (False, True))
    assert bool(plain.isfinite().all())
    assert bool(special.isnan().any())
    assert bool(special.isposinf().any())
    assert bool(special.isneginf().any())
    assert bool(((special == 0) & special.signbit()).any())
    tiny = special[(special != 0) & (special.abs() < torch.finfo(torch.float32).tiny)]
    assert tiny.numel() > 0


# -- results -----------------------------------------------------------------------------------------------------------


def test_float64_keeps_what_a_cast_between_floats_would_round(b):
    x = b.given(1000)
    half = b.call("aten._to_copy", [("self", x)], 1000, dtype="bfloat16")
    out = b.call("aten.mul.Tensor", [("self", half), ("other", half)], 1000, dtype="bfloat16")
    oracle = oracle_of(b)
    arena = oracle.inputs(0)
    exact = arena[x].double() ** 2
    assert torch.equal(oracle.float64(arena)[out], exact)
    eager = oracle.eager(arena)[out]
    assert eager.dtype == torch.bfloat16
    apart = (eager.double() - exact).abs() / exact
    assert 2**-9 < float(apart.max()) < 2**-6  # three roundings of 2**-8 at most


def test_results_leave_the_inputs_alone_and_in_place_ops_work_on_copies(b):
    x, y = b.given(8, role="parameter"), b.given(8)
    b.op("aten.add_.Tensor", [("self", x), ("other", y)], [x], alpha=2)
    oracle = oracle_of(b)
    arena = oracle.inputs(0)
    before = arena[x].clone()
    assert torch.equal(oracle.eager(arena)[x], before + 2 * arena[y])
    assert torch.equal(oracle.float64(arena)[x], before.double() + 2 * arena[y].double())
    assert torch.equal(arena[x], before)


def test_an_op_that_torch_does_not_have_is_not_compared(b):
    b.like("mylib.anything", ("self", b.given(4)))
    oracle = oracle_of(b)
    with pytest.raises(Unsupported, match=r"mylib\.anything"):
        oracle.float64(oracle.inputs(0))


def test_a_dropout_takes_the_masks_that_the_kernel_kept(b):
    x, out, mask = b.given(1000), b.tensor(1000), b.tensor(1000, dtype="bool")
    b.op("aten.native_dropout", [("input", x)], [out, mask], p=0.25, train=True)
    oracle = oracle_of(b)
    arena = oracle.inputs(0)
    kept = oracle.drawn(7, "cpu")[mask]
    assert 0.7 < float(kept.double().mean()) < 0.8
    right = {out: arena[x] * kept / 0.75, mask: kept}
    assert oracle.check(right, arena).passed
    torch.testing.assert_close(oracle.float64(arena, right)[out], arena[x].double() * kept / 0.75)
    all_kept = torch.ones(1000, dtype=torch.bool)
    found = oracle.check({out: arena[x] / 0.75, mask: all_kept}, arena)
    assert not found.passed
    assert "keeps 1.0000, not 0.7500" in found.message


# -- the comparison ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 2**-24), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_the_tolerance_is_the_rounding_of_the_output(dtype, unit):
    oracle = added(dtype=dtype)
    arena = oracle.inputs(0)
    x, y = (arena[v].double() for v in oracle.external)
    (out,) = oracle.group.writes
    right = (x + y).to(getattr(torch, dtype))
    assert oracle.check({out: right}, arena).passed
    wrong = right.clone()
    place = divmod(int((x + y).abs().argmax()), 101)
    wrong[place] *= 1 + (64 if dtype == "float32" else 4) * unit
    found = oracle.check({out: wrong}, arena)
    assert not found.passed
    assert found.where == f"value {out} {[*place]}"
    assert "1 of 3,737 elements are off" in found.message


def test_a_long_sum_may_err_as_float32_sums_do_and_not_as_sums_in_16_bits(b):
    x = b.given(4096, 8, dtype="bfloat16")
    out = b.call("aten.sum.dim_IntList", [("self", x)], 8, dtype="bfloat16", dim=(0,), keepdim=False)
    oracle = oracle_of(b)
    arena = oracle.inputs(0)
    one_by_one = torch.zeros(8)
    in_16_bits = torch.zeros(8, dtype=torch.bfloat16)
    for row in arena[x]:
        one_by_one += row.float()
        in_16_bits += row
    assert oracle.check({out: one_by_one.bfloat16()}, arena).passed
    assert oracle.check({out: in_16_bits}, arena).error > 2


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_must_be_where_it_should(wrong):
    oracle = added()
    arena = oracle.inputs(0, special=True)
    (out,) = oracle.group.writes
    right = arena[oracle.external[0]] + arena[oracle.external[1]]
    assert oracle.check({out: right}, arena).passed
    place = tuple(torch.nonzero(right.isfinite())[0].tolist())
    changed = right.clone()
    changed[place] = wrong
    assert "NaN or infinity out of place" in oracle.check({out: changed}, arena).message


def test_moved_numbers_are_exact_to_the_sign_of_zero(b):
    x = b.given(64)
    out = b.call("aten.clone", [("self", x)], 64)
    oracle = oracle_of(b)
    arena = oracle.inputs(0, special=True)
    moved = arena[x].clone()
    assert oracle.check({out: moved}, arena).passed
    minus_zero = int(torch.nonzero((moved == 0) & moved.signbit())[0])
    moved[minus_zero] = 0.0
    assert "moved wrong" in oracle.check({out: moved}, arena).message


def test_shape_and_dtype_must_be_right():
    oracle = added()
    arena = oracle.inputs(0)
    (out,) = oracle.group.writes
    right = oracle.eager(arena)[out]
    assert "float64" in oracle.check({out: right.double()}, arena).message
    assert not oracle.check({out: right.t()}, arena).passed
    assert "does not return" in oracle.check({}, arena).message


# -- the whole proof, on kernels written in torch ----------------------------------------------------------------------


def proof(fill):
    """What the oracle says of a kernel of the sum that so fills its output."""
    oracle = added()

    def run(x, y, *, seed, empty):
        out = empty(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        fill(x, y, out)
        return (out,)

    return oracle.verify(kernel_of(oracle), run, oracle.inputs())


def summed(x, y, out):
    torch.add(x, y, out=out)


def test_a_right_kernel_passes():
    assert proof(summed).passed


RUNS = itertools.count()
FAULTS = {
    "written out of bounds": lambda x, y, out: out.as_strided((1,), (1,), out.storage_offset() + out.numel()).zero_(),
    "differs from run to run": lambda x, y, out: out[36, 100:].add_(next(RUNS)),
    "overwritten, though the group only reads it": lambda x, y, out: y.add_(1),
    "elements are off": lambda x, y, out: out[3].mul_(1.01),
}


@pytest.mark.parametrize("message", FAULTS)
def test_a_fault_is_named(message):
    found = proof(lambda *given: (summed(*given), FAULTS[message](*given)))
    assert not found.passed
    assert message in found.message


def test_an_element_that_is_not_written_shows_the_poison():
    found = proof(lambda x, y, out: torch.add(x[:-1], y[:-1], out=out[:-1]))
    assert "differs from run to run" in found.message


def test_running_statistics_are_compared_though_the_group_does_not_hand_them_on(b):
    x, mean, var = b.given(8, 3, 5), b.given(3, role="buffer"), b.given(3, role="buffer")
    outputs = [b.tensor(8, 3, 5), b.tensor(3), b.tensor(3)]
    pairs = [("input", x), ("running_mean", mean), ("running_var", var)]
    b.op("aten.native_batch_norm", pairs, outputs, training=True, momentum=0.1, eps=1e-5)
    oracle = oracle_of(b)
    assert oracle.effects == (mean, var)

    def run(*tensors, seed, empty, forget):
        images, *running = tensors
        if forget:
            running = [t.clone() for t in running]
        made = torch.ops.aten._native_batch_norm_legit(images, None, None, *running, True, 0.1, 1e-5)
        return [made[outputs.index(v)] for v in oracle.group.writes]

    before = oracle.inputs()
    assert oracle.verify(kernel_of(oracle), lambda *t, **o: run(*t, **o, forget=False), before).passed
    assert f"value {mean}" in oracle.verify(kernel_of(oracle), lambda *t, **o: run(*t, **o, forget=True), before).where


# -- the reference workloads -------------------------------------------------------------------------------------------

#: what CPUs round more coarsely than GPUs: they keep the statistics of a norm in 16 bits, and add up tables in them
COARSE_ON_CPU = frozenset(("aten.native_layer_norm", "aten.embedding_dense_backward", "aten._fused_rms_norm_backward"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["bert_layer", "llama3_8b", "mixtral_8x7b", "vit_l16"])
def test_eager_keeps_the_tolerance_on_every_kind_of_group(name):
    small = small_workloads.small(name, "training")
    kinds = [group for group, _ in small_workloads.distinct(small, lambda group: "")]
    checked = 0
    for group in kinds:
        ops = [small.graph.ops[i] for i in (*group.op_ids, *group.recomputes)]
        if any(op.op_class in ("attention", "convolution") or op.name in COARSE_ON_CPU for op in ops):
            continue
        oracle = Oracle(small.graph, small.flow, group)
        arena = oracle.inputs(1)
        try:
            found = oracle.check(oracle.eager(arena, oracle.drawn(1, "cpu")), arena)
        except Unsupported:  # a mix of dtypes, or float64, that CPUs have no kernel for
            continue
        assert found.passed, (small_workloads.names_of(small.graph, group), found)
        checked += 1
    assert checked >= 5
