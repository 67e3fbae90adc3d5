"""Ahead-of-time compilation: occupancy by hand, kernels compiled for every architecture, what becomes of bad ones."""

import json
import subprocess
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest

from memwall.codegen import generate as ours
from memwall.codegen.compiling import Resources, compile_all, default_cache, read_amdgcn, read_ptxas
from memwall.codegen.kernel import Kernel, NotGenerated, TritonLaunch
from memwall.codegen.occupancy import architecture_of, find_target, occupancy
from memwall.codegen.page import compiled_section
from memwall.codegen.planned import Toolchain, compiled_plan, with_config
from memwall.core.cache import kept
from memwall.core.errors import MissingError, UsageError
from memwall.fusion.planner import memwall_plan
from memwall.fusion.repeats import shorten
from memwall.fusion.rules import work_of
from memwall.hardware.chips import CHIPS
from memwall.hardware.lookup import load_gpu
from memwall.ops import graph_costs
from memwall.report.document import Document
from memwall.report.text import to_text
from tests.unit.fusion_graphs import Builder, groups_of, round_gpu

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")

HEAD = "import triton\nimport triton.language as tl\n\nBLOCK = 1024\nNUM_WARPS = 4\n\n"
POINT = f"""{HEAD}
@triton.jit
def point(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(o + i, (0.5 * v * (1 + tl.math.erf(v * 0.7071067811865476))).to(o.dtype.element_ty), mask=i < n)
"""
ROWS = f"""{HEAD}
@triton.jit
def rows(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + tl.program_id(0) * n + i, (e / tl.sum(e, 0)).to(o.dtype.element_ty), mask=i < n)
"""
COLUMNS = f"""{HEAD}
@triton.jit
def columns(x, o, m, n, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, m):
        total += tl.load(x + i.to(tl.int64) * n + j, mask=j < n, other=0.0).to(tl.float32)
    tl.store(o + j, total, mask=j < n)
"""


def kernel(source: str = POINT, function: str = "point", block: int = 1024, warps: int = 4, **changes) -> Kernel:
    numbers = (("m", "i32"), ("n", "i32")) if function == "columns" else (("n", "i64"),)
    out = "*fp32" if function == "columns" else "*bf16"
    launch = TritonLaunch(function, (("x", "*bf16"), ("o", out), *numbers), {"BLOCK": block}, (1,), warps)
    made = Kernel(function, source, (0,), (1,), (0,), (launch,), "pointwise", {"BLOCK": block, "NUM_WARPS": warps})
    return replace(made, **changes)


def compile_one(one: Kernel, architecture: str, **options):
    """The resources of a kernel's only launch."""
    ((found,),) = compile_all([(one, architecture)], **options)
    return found


def rows_in_one_warp() -> Kernel:
    """A row of 8192 in 32 threads is 256 values each, and a thread has 255 registers."""
    return kernel(ROWS, "rows", 8192, 1)


# -- occupancy by hand -------------------------------------------------------------------------------------------------

#: architecture, warps, registers, shared bytes → blocks, what limits them
BY_HAND = [
    # 32 x 32 registers a warp; 65,536 hold 64 warps, which is all there may be: 16 blocks of 4
    ("sm_90", 4, 32, 0, 16, "warps"),
    # 80 x 32 = 2,560 a warp: 6 in each of 4 quarters of 16,384, so 24 warps, 3 blocks of 8
    ("sm_80", 8, 80, 0, 3, "registers"),
    # 65 x 32 = 2,080, handed out as 2,304: 7 in a quarter; 65,536 / 2,080 would be 31
    ("sm_70", 1, 65, 0, 28, "registers"),
    # 104 x 32 = 3,328: 4 in each of four quarters; in each of P100's two halves of 32,768 there is room for 9
    ("sm_61", 1, 104, 0, 16, "registers"),
    ("sm_60", 1, 104, 0, 18, "registers"),
    # 48 KiB and 1 KiB for the driver: two fit in 100 KiB, four in 228 KiB, three in 164 KiB
    ("sm_86", 4, 32, 49152, 2, "shared memory"),
    ("sm_90", 4, 32, 49152, 4, "shared memory"),
    ("sm_80", 4, 32, 49152, 3, "shared memory"),
    # before Ampere the driver takes nothing: 64 KiB / 48 KiB
    ("sm_75", 4, 32, 49152, 1, "shared memory"),
    # one warp a block: 48 may be resident, in 24 blocks
    ("sm_89", 1, 16, 0, 24, "blocks"),
    # 128 of 512 registers: 4 waves on each of 4 SIMDs
    ("gfx942", 4, 128, 0, 4, "registers"),
    # LLVM's own example of its occupancy calculator: 512 threads, 50 registers: 32 waves, all there may be
    ("gfx90a", 8, 50, 0, 4, "warps"),
    # a block of one wave takes no barrier: 32, not 16
    ("gfx90a", 1, 32, 0, 32, "warps"),
    # 20 KiB in 64 KiB, in steps of 512 bytes
    ("gfx942", 4, 32, 20480, 3, "shared memory"),
]


@pytest.mark.parametrize(("architecture", "warps", "registers", "shared", "blocks", "limit"), BY_HAND)
def test_occupancy(architecture, warps, registers, shared, blocks, limit):
    found = occupancy(architecture, warps, registers, shared)
    assert (found.blocks, found.warps, found.limited_by) == (blocks, blocks * warps, limit)
    assert found.share == blocks * warps / CHIPS[architecture].warps


@pytest.mark.parametrize(
    ("architecture", "kib"), [("sm_60", 49), ("sm_70", 97), ("sm_80", 164), ("sm_90", 228), ("gfx942", 65)]
)
def test_more_shared_memory_than_a_block_may_have_is_no_block(architecture, kib):
    assert occupancy(architecture, 4, 32, kib * 1024).blocks == 0
    assert occupancy(architecture, 4, 32, (kib - 1) * 1024).blocks >= 1


def test_targets_by_name():
    assert find_target("h100") == ("sm_90", load_gpu("h100-sxm"))
    assert find_target("SM70") == ("sm_70", None)
    assert find_target("gfx942") == ("gfx942", None)
    assert architecture_of(load_gpu("p100-sxm2-16gb")) == "sm_60"
    assert architecture_of(load_gpu("b200")) == "sm_100"
    assert architecture_of(load_gpu("mi300x")) == "gfx942"


@pytest.mark.parametrize(
    ("text", "said"),
    [("sm_91", "did you mean sm_90"), ("gfx94", "did you mean gfx942"), ("h10", "did you mean h100"),
     ("tpu-v4", "no kernel can be compiled for tpu-v4")],
)  # fmt: skip
def test_targets_that_there_are_not(text, said):
    with pytest.raises(UsageError, match=said):
        find_target(text)


# -- what compilers say ------------------------------------------------------------------------------------------------


def test_what_ptxas_says():
    log = (
        "ptxas info    : Function properties for k\n    376 bytes stack frame, 448 bytes spill stores, 452 bytes spill"
        " loads\nptxas info    : Used 255 registers, used 1 barriers, 376 bytes cumulative stack size\n"
    )
    assert read_ptxas(log, {}) == {"registers": 255, "spilled_bytes": 452, "stack_bytes": 376}
    with pytest.raises(ValueError, match="says nothing"):
        read_ptxas("", {})


def test_what_amds_metadata_say():
    text = "    .private_segment_fixed_size: 24\n    .vgpr_count:     512\n    .vgpr_spill_count: 5\n"
    assert read_amdgcn("", {"amdgcn": text}) == {"registers": 512, "spilled_bytes": 20, "stack_bytes": 24}


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def spills(tmp_path_factory):
    """Where the kernel that spills is kept, which takes its compiler seconds."""
    return tmp_path_factory.mktemp("spills")


@needs_triton
def test_kernels_written_by_hand_compile_without_spills(cache, monkeypatch, request):
    """A pointwise, a row and a column kernel, each for an architecture, with --whole for all; the interpreter's
    variable here changes nothing."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    kernels = [kernel(), kernel(ROWS, "rows"), kernel(COLUMNS, "columns", 256)]
    names = ("sm_60", "sm_90", "gfx942")
    pairs = list(zip(kernels, names, strict=True))
    if request.config.getoption("--whole"):
        pairs = [(one, name) for name in names for one in kernels]
    for (one, name), (found,) in zip(pairs, compile_all(pairs, cache=cache), strict=True):
        assert (found.status, found.spilled_bytes) == ("ok", 0), found
        assert found.architecture == name
        assert 4 <= found.registers <= 64
        assert (found.shared_bytes > 0) == (one.name == "rows")  # warps meet there for the maximum and the sum
        assert found.occupancy >= 0.5


@needs_triton
def test_generated_kernels_compile_for_every_architecture_without_spills(cache, request):
    """Gelu with a residual and the softmax that follows; column sums of another tensor; a list of parameters. With
    --whole for every architecture, else for one of each vendor."""
    names = tuple(CHIPS) if request.config.getoption("--whole") else ("sm_60", "gfx950")
    b = Builder()
    x = b.given(4096, 1024, dtype="bfloat16")
    y = b.like("aten.add.Tensor", ("self", b.like("aten.gelu", ("self", x))), ("other", x))
    rows = b.like("aten._softmax", ("self", y), dim=1, half_to_float=False)
    columns = b.call("aten.sum.dim_IntList", [("self", b.like("aten.neg", ("self", b.given(512, 768))))], 768, dim=[0])
    weights = [b.given(*shape, role="parameter") for shape in ((300, 70), (1001,))]
    halved = [("self", w) for w in weights]
    b.op("aten._foreach_mul_.Scalar", halved, weights, scalar=0.5)
    graph = b.graph(rows, columns)
    toolchain = Toolchain(names, compile=partial(compile_all, cache=cache))
    made = compiled_plan(graph, graph_costs(graph), load_gpu("h100-sxm"), toolchain)
    assert (made.left, made.coverage, made.rounds) == ((), 1.0, 1)
    assert set(made.schedules()) == {"persistent", "split", "tensor list"}
    for one in made.kernels:
        assert [*one.resources] == [*names]
        assert not one.spilled
        assert not one.failed
        assert all(r.registers > 0 for some in one.resources.values() for r in some)


@needs_triton
def test_contractions_below_ampere_are_the_vendors(cache):
    product = kernel(schedule="matmul + pointwise")
    volta, ampere = compile_all([(product, "sm_70"), (product, "sm_80")], cache=cache)
    assert (volta[0].status, volta[0].reason) == ("vendor library", "Triton has no tensor-core path for sm_70")
    assert ampere[0].status == "ok"


@needs_triton
def test_a_bad_kernel_costs_no_other(spills):
    """One spills, one does not compile, one ends the compiler, one is in order."""
    broken = kernel(POINT.replace("tl.math.erf", "tl.math.no_such"))
    fatal = kernel(f"import os\nos._exit(7)\n{POINT}")
    good = kernel(ROWS, "rows")
    found = [r for (r,) in compile_all([(k, "sm_90") for k in (rows_in_one_warp(), broken, fatal, good)], cache=spills)]
    assert found[0].status == "ok"
    assert found[0].spilled_bytes > 100
    assert found[0].limited_by == "registers"
    assert found[1].status == "failed"
    assert "no_such" in found[1].reason
    assert (found[2].status, found[2].reason) == ("failed", "the compiler ended (exit 7)")
    assert found[3].status == "ok"
    spilled = sorted(json.loads(kept(path))["spilled_bytes"] for path in spills.iterdir())
    assert spilled == [0, found[0].spilled_bytes]  # what failed is tried again


@needs_triton
def test_a_compiler_that_hangs_is_ended(cache):
    hung = kernel(f"import time\ntime.sleep(600)\n{POINT}")
    found = compile_one(hung, "sm_90", cache=cache, limit_s=1)
    assert (found.status, found.reason) == ("failed", "not compiled within 1 s")


@needs_triton
def test_results_are_kept_by_source_launch_and_architecture(cache, monkeypatch):
    first = compile_one(kernel(), "sm_80", cache=cache)
    started = []

    def no_child(*args, **kwargs):
        started.append(args)
        raise AssertionError("a compiler was started")

    monkeypatch.setattr(subprocess, "Popen", no_child)
    for same in (kernel(), kernel(f"# a comment\n{POINT}def run():\n    pass\n")):
        assert compile_one(same, "sm_80", cache=cache) == first
    assert not started
    for other, name in (
        (kernel(), "sm_90"),
        (kernel(warps=8), "sm_80"),
        (kernel(POINT.replace("0.5", "0.25")), "sm_80"),
    ):
        with pytest.raises(AssertionError, match="was started"):
            compile_one(other, name, cache=cache)
    monkeypatch.undo()
    next(cache.iterdir()).write_text("{", encoding="utf-8")  # damaged: compiled again
    assert compile_one(kernel(), "sm_80", cache=cache) == first


def test_where_results_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path))
    assert default_cache() == tmp_path / "compiled"
    monkeypatch.delenv("MEMWALL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "memwall" / "compiled"


def test_without_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"memwall-roofline\[triton\]"):
        compile_one(kernel(), "sm_80")


# -- plans without kernels that spill ----------------------------------------------------------------------------------


def named(graph, flow, group, gpu) -> Kernel:
    """Stands for a generator: the kernel's name and text are its ops."""
    ops = " ".join(graph.ops[i].name for i in sorted((*group.op_ids, *group.recomputes)))
    return kernel(f"# {ops} {group.op_ids}\nBLOCK = 1024\n", name=ops, op_ids=group.op_ids)


def spilling(when):
    """Stands for a compiler: 80 bytes are spilled where ``when`` says so of a kernel."""

    def build(pairs):
        return [
            tuple(Resources(x.function, name, x.num_warps, 32, 80 if when(one) else 0) for x in one.launches)
            for one, name in pairs
        ]

    return build


def chain(layers: int = 1):
    """Layers of a product and three pointwise ops."""
    b = Builder()
    x = b.given(4096, 512)
    for _ in range(layers):
        x = b.call("aten.mm", [("self", x), ("mat2", b.given(512, 512, role="parameter"))], 4096, 512)
        for name in ("aten.relu", "aten.exp", "aten.neg"):
            x = b.like(name, ("self", x))
    b.ops = [replace(op, module=f"layers.{op.id // 4}") for op in b.ops]
    return b.graph(x)


def compiled(graph, when, **changes):
    toolchain = Toolchain(**{"architectures": ("sm_90",), "generate": named, "compile": spilling(when), **changes})
    return compiled_plan(graph, graph_costs(graph), round_gpu(), toolchain)


def test_what_does_not_spill_is_planned_as_ever():
    graph = chain()
    made = compiled(graph, lambda one: False)
    assert (made.rounds, made.architectures) == (1, ("sm_90",))
    assert made.plan == memwall_plan(graph, graph_costs(graph), round_gpu())
    (only,) = made.kernels
    assert only.ops == ("aten.relu", "aten.exp", "aten.neg")
    # 4096 x 512 floats read and written, and no bytes of the product, which is its library's
    assert (made.dram_bytes, made.coverage) == (2 * 4 * 4096 * 512, 1.0)


def test_equal_groups_are_generated_once():
    """Twelve layers, and a thirteenth whose middle is also an output: it has one store more."""
    asked = []

    def generate(graph, flow, group, gpu):
        asked.append(group.op_ids)
        return ours(graph, flow, group, gpu)

    graph = chain(13)
    graph = replace(graph, outputs=(*graph.outputs, graph.ops[50].outputs[0]))
    made = compiled(graph, lambda one: False, generate=generate)
    assert [len(group) for group in asked] == [3, 3]
    assert sorted(len(one.groups) for one in made.kernels) == [1, 12]
    assert [one.kernel.source.count("tl.store(") for one in made.kernels] == [1, 2]


def test_a_union_that_spills_is_refused_in_every_layer():
    graph = chain(12)
    assert len(shorten(graph).graph.ops) < len(graph.ops)
    made = compiled(graph, lambda one: len(one.op_ids) > 2)
    assert made.rounds == 2
    assert groups_of(made.plan) == sorted(group for n in range(0, 48, 4) for group in ((n,), (n + 1, n + 2), (n + 3,)))
    (refusal,) = [r for r in made.plan.refusals if r.rule == "register spill" and r.producer == 2]
    assert refusal.reason == "80 bytes of registers spilled on sm_90"
    assert sum(r.count for r in made.plan.refusals if r.rule == "register spill") == 12
    assert not any(one.spilled for one in made.kernels)
    assert len(made.kernels) == 2
    assert {len(one.groups) for one in made.kernels} == {12}


def test_an_op_that_spills_by_itself_runs_as_its_eager_kernel():
    """A softmax over long rows: a generated kernel reads them once where eager reads them twice."""
    b = Builder()
    x = b.given(4096, 4096)
    graph = b.graph(b.like("aten._softmax", ("self", x), dim=1, half_to_float=False))
    costs = graph_costs(graph)
    ours, made = memwall_plan(graph, costs, round_gpu()), compiled(graph, lambda one: True)
    assert ours.groups[0].cost != costs[0]
    assert made.plan.groups[0].cost == costs[0]
    assert made.kernels == ()
    assert [(left.ops, left.reason) for left in made.left] == [
        (("aten._softmax",), "80 bytes of registers spilled on sm_90")
    ]
    assert made.coverage == 0


def test_what_makes_a_kernel_spill_is_not_computed_again():
    """Rows and columns of a float16 tensor are normalised, each from a cast of its own: alone neither spills."""
    b = Builder()
    x = b.given(1024, 1024, dtype="float16")
    wide = b.call("aten._to_copy", [("self", x)], 1024, 1024)
    ends = [b.like("aten._softmax", ("self", wide), dim=axis, half_to_float=False) for axis in (1, 0)]
    graph = b.graph(*ends)
    free = compiled(graph, lambda one: False)
    assert any(group.recomputes for group in free.plan.groups)
    worst = next(group for group in free.plan.groups if group.recomputes)
    spills = {work_of(graph, (*worst.op_ids, *worst.recomputes)): "80 bytes"}
    made = memwall_plan(graph, graph_costs(graph), round_gpu(), None, spills)
    assert not any(group.recomputes for group in made.groups)
    assert "register spill" in {refusal.rule for refusal in made.refusals}


def test_plans_come_to_an_end():
    """A compiler that says that all spills: every union is refused, then every op left to eager."""
    made = compiled(chain(), lambda one: True)
    assert groups_of(made.plan) == [(0,), (1,), (2,), (3,)]
    assert made.kernels == ()
    assert made.rounds <= 8


def test_another_block_size_is_tried_before_the_planner_is_asked():
    wide, narrow = {"BLOCK": 2048, "NUM_WARPS": 2}, {"BLOCK": 512, "NUM_WARPS": 8}

    def generate(graph, flow, group, gpu):
        return kernel(POINT, block=1024, configs=({"BLOCK": 1024, "NUM_WARPS": 4}, wide, narrow))

    made = compiled(chain(), lambda one: one.launches[0].num_warps < 8, generate=generate)
    assert made.rounds == 1
    (only,) = made.kernels
    assert only.has_other_blocks
    assert only.kernel.launches[0].constants == {"BLOCK": 512}
    assert only.kernel.config == narrow
    assert "\nBLOCK = 512\nNUM_WARPS = 8\n" in only.kernel.source
    assert not any(r.rule == "register spill" for r in made.plan.refusals)


def test_constants_of_the_second_launch_have_its_number():
    launches = tuple(TritonLaunch(name, (), {"BLOCK": 64}, (1,), 4) for name in ("a", "b"))
    config = {"BLOCK": 128, "BLOCK_1": 32, "NUM_WARPS": 2, "NUM_WARPS_1": 1}
    two = with_config(kernel("BLOCK = 64\nBLOCK_1 = 64\n", launches=launches, configs=({}, config)), 1)
    assert [(x.constants["BLOCK"], x.num_warps) for x in two.launches] == [(128, 2), (32, 1)]
    assert two.source == "BLOCK = 128\nBLOCK_1 = 32\n"
    shared = with_config(kernel(launches=launches, configs=({"BLOCK": 128, "NUM_WARPS": 8},)), 0)
    assert [(x.constants["BLOCK"], x.num_warps) for x in shared.launches] == [(128, 8), (128, 8)]


@needs_triton
def test_a_kernel_that_really_spills_is_refused(spills):
    """The generator puts rows of 8192 into one warp wherever a softmax takes another op along."""

    def generate(graph, flow, group, gpu):
        if len(group.op_ids) > 1:
            return rows_in_one_warp()
        return kernel(ROWS, "rows", 8192, 16)

    b = Builder()
    x = b.given(4096, 8192, dtype="bfloat16")
    graph = b.graph(b.like("aten._softmax", ("self", b.like("aten.exp", ("self", x))), dim=1, half_to_float=False))
    made = compiled(graph, None, generate=generate, compile=partial(compile_all, cache=spills))
    assert groups_of(made.plan) == [(0,), (1,)]
    (refusal,) = made.plan.refusals
    assert refusal.rule == "register spill"
    spilled = int(refusal.reason.partition(" ")[0])
    assert refusal.reason == f"{spilled} bytes of registers spilled on sm_90"
    assert spilled > 100


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_page_flags_what_spills_and_lists_what_has_no_kernel():
    def generate(graph, flow, group, gpu):
        if graph.ops[group.op_ids[0]].name == "aten.exp":
            raise NotGenerated("no rule for aten.exp")
        return named(graph, flow, group, gpu)

    b = Builder()
    first = b.like("aten.relu", ("self", b.given(1024, 1024)))
    second = b.like("aten.exp", ("self", b.given(512, 1024)))
    made = compiled(b.graph(first, second), lambda one: False, generate=generate, architectures=("sm_70", "sm_90"))
    flagged = Resources("point", "sm_70", 4, 255, 80, 80, 0, 0.125, "registers")
    library = Resources("point", "sm_90", 4, status="vendor library", reason="not here")
    (only,) = made.kernels
    made = replace(made, kernels=(replace(only, resources={"sm_70": (flagged,), "sm_90": (library,)}),))
    text = to_text(Document("page", (compiled_section(made, 15),)), width=118)
    assert "round: kernels compiled for sm_70, sm_90" in text
    # 4 bytes x 2 x 2^20 elements of the one, half of that of the other
    assert "66.7 % of 12.58 MB that kernels without a matmul move" in text
    assert "aten.relu spilled registers at every block size tried." in text
    spilled = next(line for line in text.splitlines() if "SPILLS" in line)
    assert spilled.split()[-7:] == ["4", "255", "80", "0", "12", "registers", "SPILLS"]
    assert "vendor library: not here" in text
    assert "no rule for aten.exp" in text
    record = made.to_dict()
    assert record["coverage"] == 2 / 3
    failed = replace(library, status="failed")
    assert replace(made, kernels=(replace(only, resources={"sm_90": (failed,)}),)).coverage == 0
    assert record["kernels"][0]["launches"][0]["spilled_bytes"] == 80
    assert record["left"] == [
        {"ops": ("aten.exp",), "reason": "no rule for aten.exp", "groups": 1, "dram_bytes": 2 * 4 * 512 * 1024}
    ]
    assert json.loads(json.dumps(record))["left"][0]["ops"] == ["aten.exp"]
