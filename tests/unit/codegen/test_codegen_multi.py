"""Kernels over lists of tensors in Triton's interpreter, against the definitions in float64 and torch's own ops."""

from dataclasses import dataclass, field

import pytest
import torch

from memwall.codegen.compiling import compile_all
from memwall.codegen.kernel import Kernel, NotGenerated
from memwall.codegen.multi import multi_kernel
from memwall.fusion.pricing import Pricer
from memwall.ops import graph_costs
from tests.unit import interpreted
from tests.unit.fusion_graphs import Builder, round_gpu

pytest.importorskip("triton")

SIZES = ((1,), (7,), (1031,), (3, 5, 7), (0,), (2048,), (64, 65))
#: relative; the interpreter cuts bf16 off instead of rounding it
EPSILON = {"float64": 1e-14, "float32": 5e-7, "float16": 2**-10, "bfloat16": 2**-6}


@dataclass
class Case:
    """Lists of value ids by name, the kernel, and the tensors of the values before and after it."""

    builder: Builder
    lists: dict[str, list[int]]
    kernel: Kernel | None = None
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    after: dict[int, torch.Tensor] = field(default_factory=dict)

    def pairs(self, name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(before, after) of each tensor of a list."""
        return [(self.before[i], self.after[i]) for i in self.lists[name]]


def generate(case: Case, **changes) -> Case:
    gpu = round_gpu(**changes)
    graph = case.builder.graph()
    pricer = Pricer(graph, graph_costs(graph), gpu)
    group = pricer.group([op.id for op in graph.ops])
    case.kernel = multi_kernel(graph, pricer.flow, group, gpu)
    assert set(case.kernel.outputs) == set(group.writes)
    return case


def given(b: Builder, shapes=SIZES, /, **dtypes) -> dict[str, list[int]]:
    """Name → a list of tensors of these shapes that exist before the step."""
    return {
        name: [b.given(*shape, dtype=dtype, role="optimizer_state") for shape in shapes]
        for name, dtype in dtypes.items()
    }


def foreach(b: Builder, name: str, target, *, new: bool = False, **arguments) -> list[int]:
    """An op over lists (of value ids; all else are attributes). ``new``: its results lie in new memory."""
    pairs = [(key, i) for key, ids in arguments.items() if isinstance(ids, list) for i in ids]
    specs = [b.values[i].spec for i in target]
    outputs = [b.tensor(*spec.shape, dtype=spec.dtype) for spec in specs] if new else target
    attributes = {key: value for key, value in arguments.items() if not isinstance(value, list)}
    b.op(f"aten._foreach_{name}", pairs, outputs, **attributes)
    return outputs


def adamw(shapes=SIZES, step_sizes=None, bias=None, **dtypes) -> Case:
    """The chain that torch's multi-tensor AdamW calls: p, g, m, v are parameters, gradients and averages."""
    b = Builder("optimizer")
    of = given(b, shapes, **dtypes)
    p, g, m, v = of.values()
    foreach(b, "mul_.Scalar", p, self=p, scalar=0.99)
    foreach(b, "lerp_.Scalar", m, self=m, tensors1=g, weight=0.1)
    foreach(b, "mul_.Scalar", v, self=v, scalar=0.999)
    foreach(b, "addcmul_.Scalar", v, self=v, tensor1=g, tensor2=g, value=0.001)
    roots = foreach(b, "sqrt", v, new=True, self=v)
    foreach(b, "div_.ScalarList", roots, self=roots, scalars=bias or (0.0447,) * len(p))
    foreach(b, "add_.Scalar", roots, self=roots, scalar=1e-8)
    foreach(b, "addcdiv_.ScalarList", p, self=p, tensor1=m, tensor2=roots, scalars=step_sizes or (-0.01,) * len(p))
    return Case(b, of)


STEP_SIZES = tuple(-0.01 * (i + 1) for i in range(len(SIZES)))
BIAS = tuple(0.1 + 0.05 * i for i in range(len(SIZES)))


def sgd() -> Case:
    """Weight decay, momentum, step."""
    b = Builder("optimizer")
    of = given(b, g="float32", p="float32", v="float32")
    g, p, v = of.values()
    decayed = foreach(b, "add.List", g, new=True, self=g, other=p, alpha=0.01)
    foreach(b, "mul_.Scalar", v, self=v, scalar=0.9)
    foreach(b, "add_.List", v, self=v, other=decayed, alpha=1)
    foreach(b, "add_.List", p, self=p, other=v, alpha=-0.1)
    return Case(b, of)


def clipped() -> Case:
    """One number on the device that all gradients are multiplied by."""
    b = Builder("optimizer")
    of = given(b, g="float32")
    factor = b.given(role="optimizer_state")
    foreach(b, "mul_.Tensor", of["g"], self=of["g"], other=[factor])
    return Case(b, {**of, "factor": [factor]})


def kept() -> Case:
    """Results in new memory of another dtype than computed, which others read afterwards."""
    b = Builder("optimizer")
    of = given(b, a="float16", b="float16")
    total = foreach(b, "add.List", of["a"], new=True, self=of["a"], other=of["b"], alpha=1)
    root = foreach(b, "sqrt", total, new=True, self=total)
    case = Case(b, {**of, "total": total, "root": root})
    for i in (*total, *root):
        b.storages[b.values[i].storage] = type(b.storages[0])(b.values[i].storage, b.values[i].spec.nbytes, "gradient")
    return case


def copied() -> Case:
    """A master copy is written over without being read."""
    b = Builder("optimizer")
    of = given(b, half="bfloat16", single="float32", old="float32")
    foreach(b, "copy_", of["half"], src=of["single"])
    foreach(b, "zero_", of["old"])
    return Case(b, of)


SPECIAL = (float("inf"), float("-inf"), float("nan"), -0.0, 0.0, 1e-40, -1.5, 4.0)


def special() -> Case:
    """Infinities, not a number, both zeros and a denormal against each other."""
    b = Builder("optimizer")
    of = given(b, [(len(SPECIAL) ** 2,)], a="float32", b="float32", d="float32", e="float32", f="float32")
    foreach(b, "maximum_.List", of["a"], self=of["a"], other=of["b"])
    foreach(b, "div_.List", of["d"], self=of["d"], other=of["b"])
    foreach(b, "sqrt_", of["e"], self=of["e"])
    foreach(b, "clamp_min_.Scalar", of["f"], self=of["f"], scalar=-1.0)
    return Case(b, of)


def two_dtypes() -> Case:
    """A list of tensors of two dtypes: two launches."""
    b = Builder("optimizer")
    p = [b.given(5, dtype=dtype, role="parameter") for dtype in ("float16", "float32", "float16")]
    foreach(b, "mul_.Scalar", p, self=p, scalar=0.5)
    foreach(b, "add_.Scalar", p, self=p, scalar=1)
    return Case(b, {"p": p})


def optimizer(name: str, lists: str, **options) -> Case:
    """One op for a whole step; ``lists`` name the tensors' arguments, the last being the step's where it counts."""
    b = Builder("optimizer")
    names = lists.split()
    of = given(b, **{name: "float32" for name in names if name != "state_steps"})
    if "state_steps" in names:
        of["state_steps"] = [b.given(role="optimizer_state") for _ in SIZES]
    pairs = [(name, i) for name in names for i in of[name]]
    targets = [i for name in names if name != "state_steps" for i in of[name]]
    b.op(f"aten.{name}", pairs, targets, **options)
    return Case(b, of)


ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "maximize": False}
SGD = {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}
ADAM_LISTS = "self grads exp_avgs exp_avg_sqs state_steps"
AMSGRAD_LISTS = "self grads exp_avgs exp_avg_sqs max_exp_avg_sqs state_steps"
SGD_LISTS = "self grads momentum_buffer_list"

CASES = {
    **{f"adamw {dtype}": adamw(p=dtype, g=dtype, m=dtype, v=dtype) for dtype in EPSILON},
    "adamw mixed": adamw(p="float32", g="bfloat16", m="float32", v="float32"),
    "adamw numbers": adamw(step_sizes=STEP_SIZES, bias=BIAS, p="float32", g="float32", m="float32", v="float32"),
    "sgd": sgd(),
    "clipped": clipped(),
    "kept": kept(),
    "copied": copied(),
    "two dtypes": two_dtypes(),
    "special": special(),
    "fused adamw": optimizer("_fused_adamw_", ADAM_LISTS, **ADAM, weight_decay=0.1, amsgrad=False),
    "fused adamw of beta 0": optimizer(
        "_fused_adamw_", ADAM_LISTS, **{**ADAM, "beta1": 0.0}, weight_decay=0.1, amsgrad=False
    ),
    "fused adam": optimizer(
        "_fused_adam_", AMSGRAD_LISTS, **{**ADAM, "maximize": True}, weight_decay=0.1, amsgrad=True
    ),
    "fused sgd": optimizer("_fused_sgd_", SGD_LISTS, **SGD, nesterov=True, maximize=False, is_first_step=False),
    "first sgd": optimizer("_fused_sgd_", SGD_LISTS, **SGD, nesterov=False, maximize=True, is_first_step=True),
}


def offset_by(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same in memory that starts some elements after an aligned address, between guards of 77."""
    memory = torch.full((elements + tensor.numel() + 64,), 77.0, dtype=tensor.dtype)
    memory[elements : elements + tensor.numel()] = tensor.flatten()
    return memory[elements : elements + tensor.numel()].view(tensor.shape)


@pytest.fixture(scope="module")
def cases(tmp_path_factory, forks) -> dict[str, Case]:
    """All cases with their tensors, run in one interpreter. The third tensor of each list starts at an odd address."""
    folder = tmp_path_factory.mktemp("kernels")
    random = torch.Generator().manual_seed(0)
    sent = {}
    for name, case in CASES.items():
        kernel = generate(case).kernel
        for n, i in enumerate(kernel.inputs):
            spec = case.builder.values[i].spec
            values = torch.rand(spec.shape, generator=random, dtype=torch.float64) + 0.1
            if name == "special":  # every value against every other
                first = torch.tensor(SPECIAL).double().repeat_interleave(len(SPECIAL))
                values = first if i not in case.lists["b"] else first.view(-1, len(SPECIAL)).T.flatten()
            if i in case.lists.get("state_steps", ()):
                values = (40 * values).ceil()
            case.before[i] = offset_by(values.to(getattr(torch, spec.dtype)), 32 + (n % 7 == 2))
        sent[name] = {"source": kernel.source, "tensors": [case.before[i] for i in kernel.inputs]}
    for name, done in interpreted.run(forks, sent, folder).items():
        case = CASES[name]
        case.after.update(zip(case.kernel.inputs, done["tensors"], strict=True))
        case.after.update(zip(case.kernel.outputs, done["result"], strict=True))
    return CASES


def close(result: torch.Tensor, wanted: torch.Tensor) -> None:
    epsilon = EPSILON[str(result.dtype).removeprefix("torch.")]
    torch.testing.assert_close(result.double(), wanted, rtol=epsilon, atol=epsilon)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("adamw")])
def test_adamw_is_one_step_of_its_definition(cases, name):
    case = cases[name]
    numbered = name == "adamw numbers"
    rows = zip(*(case.pairs(key) for key in "pgmv"), strict=True)
    for i, ((p, p1), (g, g1), (m, m1), (v, v1)) in enumerate(rows):
        assert torch.equal(g, g1)
        p, g, m, v = p.double(), g.double(), m.double(), v.double()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        step_size, bias = (STEP_SIZES[i], BIAS[i]) if numbered else (-0.01, 0.0447)
        close(m1, m)
        close(v1, v)
        close(p1, 0.99 * p + step_size * m / (v.sqrt() / bias + 1e-8))


def test_sgd_with_momentum_and_weight_decay(cases):
    for (g, _), (p, p1), (v, v1) in zip(*(cases["sgd"].pairs(key) for key in "gpv"), strict=True):
        speed = 0.9 * v.double() + g.double() + 0.01 * p.double()
        close(v1, speed)
        close(p1, p.double() - 0.1 * speed)


def test_a_number_on_the_device_goes_to_all_elements(cases):
    (factor, _), *_ = cases["clipped"].pairs("factor")
    for g, scaled in cases["clipped"].pairs("g"):
        close(scaled, g.double() * factor.item())


def test_what_others_read_is_written_to_new_memory(cases):
    case = cases["kept"]
    for k, (a, b) in enumerate(zip(case.lists["a"], case.lists["b"], strict=True)):
        total = case.before[a].double() + case.before[b].double()
        close(case.after[case.lists["total"][k]], total)
        close(case.after[case.lists["root"][k]], total.sqrt())
        assert torch.equal(case.after[a], case.before[a])


def test_copies_convert_and_zeros_are_written(cases):
    case = cases["copied"]
    for (_, half), (single, _) in zip(case.pairs("half"), case.pairs("single"), strict=True):
        close(half, single.double())
    assert all(not new.any() and (old.numel() == 0 or old.any()) for old, new in case.pairs("old"))


def test_special_values_are_those_of_torch(cases):
    case = cases["special"]
    a, b, d, e, f = (case.before[ids[0]] for ids in case.lists.values())
    wanted = {"a": a.maximum(b), "d": d / b, "e": e.sqrt(), "f": f.clamp_min(-1.0)}
    for key, tensor in wanted.items():
        got = case.after[case.lists[key][0]]
        torch.testing.assert_close(got, tensor, rtol=5e-7, atol=0, equal_nan=True)
        if key in "de":  # which zero torch keeps of two is its own affair in a maximum
            zeros = (tensor == 0) & (got == 0)
            assert torch.equal(got[zeros].signbit(), tensor[zeros].signbit())


def test_each_dtype_has_its_launch(cases):
    case = cases["two dtypes"]
    assert [launch.function for launch in case.kernel.launches] == ["update_0", "update_1"]
    for old, new in case.pairs("p"):
        close(new, old.double() * 0.5 + 1)


@pytest.mark.parametrize("name", ["fused adamw", "fused adamw of beta 0", "fused adam"])
def test_a_fused_adam_step_is_torchs_own(cases, name):
    case = cases[name]
    of = {key: [case.before[i].double() for i in ids] for key, ids in case.lists.items()}
    of.setdefault("max_exp_avg_sqs", [])
    options = {key: case.builder.ops[0].attributes[key] for key in ("lr", "beta1", "beta2", "weight_decay", "eps")}
    function = getattr(torch.optim._functional, name.split()[1])
    function(of["self"], of["grads"], of["exp_avgs"], of["exp_avg_sqs"], of["max_exp_avg_sqs"],
             [step - 1 for step in of["state_steps"]], foreach=False, capturable=False,
             amsgrad=name == "fused adam", maximize=name == "fused adam", **options)  # fmt: skip
    for key, ids in case.lists.items():
        for i, wanted in zip(ids, of[key], strict=True):
            close(case.after[i], wanted)


@pytest.mark.parametrize("name", ["fused sgd", "first sgd"])
def test_a_fused_sgd_step_is_torchs_own(cases, name):
    case = cases[name]
    p, g, v = ([case.before[i].double() for i in ids] for ids in case.lists.values())
    speeds = [None] * len(v) if name == "first sgd" else v
    torch.optim._functional.sgd(p, g, speeds, foreach=False, maximize=name == "first sgd",
                                nesterov=name == "fused sgd", **SGD)  # fmt: skip
    for key, wanted in (("self", p), ("momentum_buffer_list", speeds)):
        for i, tensor in zip(case.lists[key], wanted, strict=True):
            close(case.after[i], tensor)


@pytest.mark.parametrize("name", CASES)
def test_nothing_beside_the_tensors_is_written(cases, name):
    for i in cases[name].kernel.inputs:
        tensor = cases[name].after[i]
        memory = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        start = tensor.storage_offset()
        outside = torch.cat((memory[:start], memory[start + tensor.numel() :]))
        assert len(outside) >= 96 and (outside == 77).all()


def test_the_chain_is_one_launch_with_a_program_for_each_chunk():
    kernel = generate(adamw(**dict.fromkeys("pgmv", "bfloat16"))).kernel
    (launch,) = kernel.launches
    # by hand: 8 elements for each of 128 threads; chunks of 1, 7, 1031, 105, 0, 2048 and 4160 elements
    assert launch.constants == {"BLOCK": 1024, "CHUNK": 1024}
    assert launch.grid == (1 + 1 + 2 + 1 + 0 + 2 + 5,)
    assert kernel.configs[0] == kernel.config
    assert all(f"\n{name} = {value}\n" in kernel.source for name, value in kernel.config.items())
    assert all(config["CHUNK"] % config["BLOCK"] == 0 for config in kernel.configs)


def test_the_chain_compiles_without_spills(tmp_path, request):
    """With --whole for four architectures, else for one of each vendor."""
    kernel = generate(adamw(**dict.fromkeys("pgmv", "bfloat16"))).kernel
    pairs = [(kernel, name) for name in ("sm_60", "gfx942", "sm_80", "sm_90")]
    pairs = pairs if request.config.getoption("--whole") else pairs[:2]
    for (resources,) in compile_all(pairs, cache=tmp_path):
        assert (resources.status, resources.spilled_bytes, resources.stack_bytes) == ("ok", 0, 0)
        assert 16 < resources.registers <= 128


def test_large_lists_have_large_chunks():
    # 100 M elements on 100 multiprocessors: 6400 programs would be 15,625 elements each
    of = dict.fromkeys("pgmv", "bfloat16")
    assert generate(adamw(((10_000, 10_000),), **of)).kernel.config["CHUNK"] == 16384
    # 64 lanes a warp
    kernel = generate(adamw(**of), compute_capability="gfx942").kernel
    assert kernel.config["BLOCK"] == 2048


def test_a_channels_last_weight_is_walked_in_memory_order():
    b = Builder("optimizer")
    flat = [b.given(48, role="parameter") for _ in range(2)]
    p, g = [[b.view(i, (4, 3, 2, 2), (12, 1, 6, 3))] for i in flat]
    foreach(b, "add_.List", p, self=p, other=g, alpha=-1)
    assert "add = x0 + (-1.0) * x1" in generate(Case(b, {})).kernel.source


def mismatched_layouts(b: Builder) -> None:
    p = [b.given(4, 6, role="parameter")]
    g = [b.view(b.given(24, role="parameter"), (4, 6), (1, 4))]
    foreach(b, "add_.List", p, self=p, other=g, alpha=1)


def gaps(b: Builder) -> None:
    p = [b.view(b.given(4, 6, role="parameter"), (4, 3), (6, 1))]
    foreach(b, "mul_.Scalar", p, self=p, scalar=2)


def whole_numbers(b: Builder) -> None:
    p = [b.given(4, dtype="int64", role="parameter")]
    foreach(b, "add_.Scalar", p, self=p, scalar=1)


def neighbours(b: Builder) -> None:
    flat = b.given(12, role="parameter")
    p = [b.view(flat, (8,), (1,)), b.view(flat, (8,), (1,), 4)]
    g = [b.given(8, role="parameter") for _ in p]
    foreach(b, "add_.List", p, self=p, other=g, alpha=1)


def unknown(b: Builder) -> None:
    p = [b.given(4, role="parameter")]
    foreach(b, "lgamma_", p, self=p)


@pytest.mark.parametrize(("build", "reason"), [
    (mismatched_layouts, "different orders"), (gaps, "gaps"), (whole_numbers, "int64"),
    (neighbours, "another view or list place"), (unknown, "no expression for lgamma"),
])  # fmt: skip
def test_what_is_not_generated_says_why(build, reason):
    b = Builder("optimizer")
    build(b)
    with pytest.raises(NotGenerated, match=reason):
        generate(Case(b, {}))


def test_tensors_of_one_buffer_are_updated_side_by_side():
    b = Builder("optimizer")
    flat = b.given(24, role="parameter")
    p = [b.view(flat, (8,), (1,), 8 * i) for i in range(3)]
    g = [b.given(8, role="parameter") for _ in p]
    foreach(b, "mul_.Scalar", p, self=p, scalar=0.5)
    foreach(b, "add_.List", p, self=p, other=g, alpha=1)
    source = generate(Case(b, {})).kernel.source
    assert source.count("tl.load(p") == 2 and source.count("tl.store(") == 1


def test_the_text_is_the_same_each_time_and_names_no_tensor_twice():
    one, other = (generate(sgd()).kernel.source for _ in range(2))
    assert one == other
    body = one.partition("x0 = ")[2].partition("tl.store")[0].split("\n")
    assert [line.strip() for line in body[3:7]] == [
        "add = x0 + 0.01 * x1",
        "mul = x2 * 0.9",
        "add_2 = mul + add",
        "add_3 = x1 + (-0.1) * add_2",
    ]
