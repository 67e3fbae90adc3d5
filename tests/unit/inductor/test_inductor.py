"""Inductor's decisions for a GPU that is not there: against real compilations on the CPU, and as a plan of a graph."""

import importlib.util
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memwall
from memwall.core.errors import MissingError, UsageError
from memwall.core.graph import Graph, Op, Storage, Value, contiguous
from memwall.inductor import Lowered
from memwall.inductor.compiled import kernels_of
from memwall.inductor.owners import ScheduleNode, own
from tests.unit.one_call import Call

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


class Mlp(nn.Module):
    """Pre-norm feed-forward block with a residual."""

    def __init__(self, width: int = 64):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Masked(nn.Module):
    """Attention by hand with a causal mask."""

    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        batch, seq, width = x.shape
        y = self.norm(x)
        q, k, v = (p(y).view(batch, seq, self.heads, -1).transpose(1, 2) for p in (self.query, self.key, self.value))
        mask = torch.full((seq, seq), -1e9, device=x.device).triu(1)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + mask
        mixed = scores.softmax(-1) @ v
        return x + self.out(mixed.transpose(1, 2).reshape(batch, seq, width))


class Block(Masked):
    """Attention, then the feed-forward block."""

    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x):
        return self.mlp(super().forward(x))


class Convolutions(nn.Module):
    """Two convolutions with running statistics, a ReLU in place, a residual, a pool and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.head = nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)) + x)
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


def squared(output):
    return output.pow(2).mean()


def traced(module, args, *, training=True, **options) -> Graph:
    options = {"optimizer": None, "gpu": "a100", **options}
    return memwall.profile(
        module, args, mode="training" if training else "inference", loss=squared if training else None, **options
    ).graph


@pytest.fixture
def lower():
    from memwall.inductor import lower

    return lambda graph, gpu="a100", **options: lower(graph, memwall.load_gpu(gpu), **options)


# -- against a real compilation ----------------------------------------------------------------------------------------

#: FX calls that look at data in another way and compute nothing
_VIEWS = frozenset(
    ("view", "permute", "getitem", "expand", "unsqueeze", "squeeze", "reshape", "slice", "select", "transpose")
)


def groups(nodes) -> list[tuple[str, ...]]:
    """The FX calls that each node of a schedule computes, by name."""
    found = []
    for node in nodes:
        origins = {o for part in node.get_nodes() if part.node is not None for o in part.node.origins}
        names = [str(o.target).partition("<built-in function ")[2].rstrip(">") or str(o.target) for o in origins
                 if o.op == "call_function"]  # fmt: skip
        names = [name.removeprefix("aten.").removeprefix("prims.").partition(".")[0] for name in names]
        found.append(tuple(sorted(name for name in names if name not in _VIEWS)))
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(Mlp, (8, 16, 64)), (Block, (8, 16, 64)), (Convolutions, (4, 3, 16, 16))],
    ids=["mlp", "block", "convolutions"],
)
def test_groups_equal_those_of_a_real_compilation_on_the_cpu(make, shape, training, lower, monkeypatch):
    """Of a compilation up to its C++, which is neither compiled nor run: its tensors are zeros."""
    import torch._inductor.config as config
    from torch._inductor import cpu_vec_isa
    from torch._inductor.async_compile import AsyncCompile

    written: list[str] = []

    def compiled(self, argtypes, source):
        written.append(source)
        return lambda *given: [each.detach().zero_() for each in given if isinstance(each, torch.Tensor)]

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", compiled)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)  # which compiles, too
    module = make().train(training)
    x = torch.randn(shape)
    seen: list[tuple[str, ...]] = []

    def record(nodes):
        seen.extend(groups(nodes))
        return nodes

    torch._dynamo.reset()
    with config.patch(_post_fusion_custom_pass=record, force_disable_caches=True, compile_threads=1):
        with torch.set_grad_enabled(training):
            output = torch.compile(lambda x: squared(module(x)) if training else module(x))(x)
            if training:
                output.backward()
        real = Counter(seen)
        seen.clear()
        lower(traced(module, (x,), training=training, attention="math"), device="cpu")
    assert sum(real.values()) >= 5 and len(written) >= 2
    assert Counter(seen) == real


# -- a plan of the graph -----------------------------------------------------------------------------------------------


def check_cover(graph: Graph, lowered) -> None:
    """Every forward and backward op is owned once; what is recomputed is owned by another kernel."""
    owned = Counter(i for kernel in lowered.kernels for i in kernel.op_ids)
    assert owned == Counter(op.id for op in graph.ops if op.phase != "optimizer")
    for kernel in lowered.kernels:
        assert not set(kernel.op_ids) & set(kernel.recomputes)
        assert kernel.launches >= (0 if kernel.kind == "none" else 1)


@pytest.mark.versions
@needs_triton
def test_feed_forward_block_on_a_gpu(lower):
    """By hand: forward is norm | product | gelu | product | residual and loss; the bias goes into the product."""
    graph = traced(Mlp(256), (torch.randn(8, 128, 256),))
    lowered = lower(graph)
    check_cover(graph, lowered)
    forward = [
        (kernel.kind, [graph.ops[i].name for i in kernel.op_ids])
        for kernel in lowered.kernels
        if graph.ops[kernel.op_ids[0]].phase == "forward"
    ]
    assert [kind for kind, _ in forward[:5]] == ["triton", "extern", "triton", "extern", "triton"]
    assert forward[0][1] == ["aten.native_layer_norm"]
    assert forward[1][1] == forward[3][1] == ["aten.addmm"]
    assert forward[2][1] == ["aten.gelu"]
    assert "aten.add.Tensor" in forward[4][1] and "aten.pow.Tensor_Scalar" in forward[4][1]
    gelu = lowered.kernels[2]
    # reads and writes [1024, 1024] of fp32 once
    assert (gelu.read_bytes, gelu.write_bytes, gelu.launches) == (4 << 20, 4 << 20, 1)
    # backward of a product: one for the input, one for the weight, for two layers
    assert sum(kernel.kind == "extern" for kernel in lowered.kernels if "mm" in kernel.name) == 2 + 4
    assert lowered.fallbacks == lowered.notes == ()
    assert lowered.fx_ops["aten.mm"] == 4
    assert sum(lowered.why_not_fused.values()) > 0
    assert all("%" not in reason for reason in lowered.why_not_fused)


@needs_triton
@pytest.mark.parametrize(("mode", "axes"), [("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)])
def test_an_interpolation_is_generated_with_what_follows(mode, axes):
    """torch.compile traces it by its Python implementation, in every mode."""
    image = torch.rand(2, 4, *(axes * (8,)))
    module = nn.Sequential(nn.Upsample(scale_factor=2, mode=mode), nn.ReLU())
    profile = memwall.profile(module, (image,), gpu="a100")
    lowered = kernels_of(profile.graphs[0], profile.simulations[0].gpu)
    assert lowered.fallbacks == ()
    assert [kernel.kind for kernel in lowered.kernels] == ["triton"]


@needs_triton
def test_a_gradient_that_the_caller_makes_is_a_kernel_of_its_own(lower):
    graph = traced(Mlp(), (torch.randn(2, 4, 64),))
    (kernel,) = [k for k in lower(graph).kernels if "aten.ones_like" in [graph.ops[i].name for i in k.op_ids]]
    assert len(kernel.op_ids) == 1 and kernel.launches == 1 and kernel.write_bytes == 4


@needs_triton
def test_convolutions_are_owned_by_the_library(lower):
    """Layout changes around a convolution count as launches of it, and statistics are written back."""
    graph = traced(Convolutions(), (torch.randn(4, 3, 32, 32),))
    lowered = lower(graph)
    check_cover(graph, lowered)
    for kernel in lowered.kernels:
        names = {graph.ops[i].name for i in kernel.op_ids}
        if names & {"aten.convolution", "aten.convolution_backward"}:
            assert kernel.kind == "extern" and len(names) == 1
    assert not [k for k in lowered.kernels if k.kind == "none"]


@needs_triton
@pytest.mark.parametrize("name", ["embedding_bag", "topk", "scan"])
def test_ops_without_a_lowering_are_named(name, lower):
    models = {
        "embedding_bag": (nn.EmbeddingBag(50, 8, mode="max"), (torch.randint(50, (4, 3)),)),
        "topk": (lambda x: x.topk(3)[0] * 2, (torch.randn(8, 16),)),
        "scan": (lambda x: x.cummax(1)[0] + 1, (torch.randn(8, 16),)),
    }
    function, args = models[name]
    module = function if isinstance(function, nn.Module) else Call(function)
    graph = traced(module, args, training=False)
    lowered = lower(graph)
    check_cover(graph, lowered)
    wanted = {"embedding_bag": "aten._embedding_bag", "topk": "aten.topk", "scan": None}[name]
    assert (wanted in lowered.fallbacks) if wanted else lowered.fallbacks == ()


@needs_triton
def test_an_op_that_torch_cannot_call_stays_by_its_name(lower):
    graph = traced(nn.LSTM(8, 16, batch_first=True), (torch.randn(2, 5, 8),), training=False)
    graph = replace(graph, outputs=graph.outputs[:1])
    lowered = lower(graph)
    check_cover(graph, lowered)
    (kernel,) = [k for k in lowered.kernels if "aten._cudnn_rnn" in [graph.ops[i].name for i in k.op_ids]]
    assert (kernel.name, kernel.kind) == ("aten._cudnn_rnn", "eager")


@needs_triton
def test_attention_by_hand_becomes_one_call_where_torch_sees_it(lower):
    class Attention(nn.Module):
        def forward(self, q, k, v):
            return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v) + 1

    q = torch.randn(4, 64, 32, dtype=torch.float16)
    graph = traced(Attention(), (q, q.clone(), q.clone()), training=False)
    first, second = lower(graph).kernels
    assert [graph.ops[i].name for i in first.op_ids] == ["aten.bmm", "aten._softmax", "aten.bmm"]
    assert "flash_attention" in first.name and first.kind == "extern"
    assert [graph.ops[i].name for i in second.op_ids] == ["aten.add.Tensor"]
    # torch looks kernels up anew: what stood in for attention on the CPU meanwhile is forgotten
    remembered = torch.ops.aten.scaled_dot_product_attention.default._dispatch_cache
    assert torch._C.DispatchKey.AutogradCPU not in remembered


@needs_triton
def test_attention_that_stays_written_out_is_noted(lower):
    x = torch.randn(2, 16, 64)
    (note,) = lower(traced(Masked(), (x,))).notes
    assert note.startswith("the attention is decomposed")
    assert lower(traced(Masked(), (x,), training=False)).notes == ()
    # a softmax that stands between no two products is none
    assert lower(traced(Call(lambda x: (x @ x.mT).softmax(-1).sum(-1)), (x.requires_grad_(),))).notes == ()


@needs_triton
def test_what_is_read_from_memory_is_not_recomputed(lower):
    """The convolution needs the ReLU's result in memory, so that the pool reads it from there, too."""

    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            x = F.relu(self.first(x), inplace=True)
            return self.second(x), F.max_pool2d(x, 2)

    graph = traced(Stem(), (torch.randn(4, 3, 64, 64),), training=False)
    kernels = {graph.ops[i].name: k for k in lower(graph, source=True).kernels for i in k.op_ids}
    pool, relu = kernels["aten.max_pool2d_with_indices"], kernels["aten.relu_"]
    assert pool is not relu and pool.recomputes == ()
    # the only tensor it loads has [4, 8, 64, 64] of fp32, and it writes a quarter of that
    assert (pool.read_bytes, pool.write_bytes) == (4 * 8 * 64 * 64 * 4, 4 * 8 * 32 * 32 * 4)
    assert "in_ptr0" in pool.source and "in_ptr1" not in pool.source


@needs_triton
def test_what_two_kernels_compute_is_owned_by_one(lower):
    """The rows and the columns of 2x + 1 are summed up by kernels that both read x."""
    graph = traced(Call(lambda x: ((x * 2 + 1).sum(0), (x * 2 + 1).amax(1))), (torch.randn(512, 256),), training=False)
    names = [op.name for op in graph.ops]
    assert names == ["aten.mul.Tensor", "aten.add.Tensor", "aten.sum.dim_IntList",
                     "aten.mul.Tensor", "aten.add.Tensor", "aten.amax"]  # fmt: skip
    kernels = lower(graph).kernels
    assert len(kernels) == 2
    for kernel in kernels:
        # 2x + 1 is one value to Inductor: the pair that the trace holds twice is one pair, owned or computed again
        assert {0, 1} <= {*kernel.op_ids, *kernel.recomputes} or {3, 4} <= {*kernel.op_ids, *kernel.recomputes}
    # x is read by each, and the splits of the sum over rows pass through memory
    assert all(kernel.read_bytes >= 512 * 256 * 4 for kernel in kernels)


@needs_triton
def test_the_levels_of_a_gelu(lower):
    """0.5x · (1 + erf(x · √½)): three products, a sum and an erf of one load."""
    graph = traced(Call(F.gelu), (torch.randn(64, 64),), training=False)
    lowered = lower(graph)
    assert lowered.fx_ops == {"aten.add.Tensor": 1, "aten.erf": 1, "aten.mul.Tensor": 3}
    arithmetic = {"add": 1, "erf": 1, "mul": 3, "constant": 3, "store": 1}
    assert {name: lowered.loop_ops[name] for name in arithmetic} == arithmetic
    assert set(lowered.loop_ops) == {*arithmetic, "load"}
    assert list(lowered.launches.values()) == [1]


@needs_triton
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_levels_of_a_whole_graph_from_four_of_its_layers(training, lower):
    """One compilation of all layers, and one of four whose kernels are repeated, count the same.

    There are no residuals: Inductor adds them up anew in a rhythm of its own, and the four layers have another.
    """
    layers = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)) for _ in range(5)]
    graph = traced(nn.Sequential(*layers), (torch.randn(8, 16, 64),), training=training)
    whole, short = lower(graph), kernels_of(graph, memwall.load_gpu("a100"))
    assert len(short.kernels) == len(whole.kernels)
    assert short.fx_ops == whole.fx_ops
    assert short.loop_ops == whole.loop_ops
    assert short.launches == whole.launches


@needs_triton
def test_nothing_is_fused_across_regions(lower):
    graph = traced(Call(lambda x: (x.exp() * 2).sin().cos()), (torch.randn(64, 64),), training=False)
    assert [op.name for op in graph.ops] == ["aten.exp", "aten.mul.Tensor", "aten.sin", "aten.cos"]
    together = lower(graph)
    assert [k.op_ids for k in together.kernels] == [(0, 1, 2, 3)]
    assert [k.op_ids for k in lower(graph, regions=[0, 0, 1, 1]).kernels] == [(0, 1), (2, 3)]
    apart = lower(graph, regions=[0, 0, -1, 1])
    assert [(k.op_ids, k.kind) for k in apart.kernels] == [((0, 1), "triton"), ((2,), "eager"), ((3,), "triton")]
    # each half reads and writes [64, 64] of fp32
    assert [(k.read_bytes, k.write_bytes) for k in apart.kernels] == [(16384, 16384)] * 3


@needs_triton
def test_regions_of_a_training_step(lower):
    halves = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(2)]
    graph = traced(nn.Sequential(*halves), (torch.randn(8, 16, 64),))
    regions = [1 if op.module.startswith("1") or op.module == "" else 0 for op in graph.ops]
    lowered = lower(graph, regions=regions)
    check_cover(graph, lowered)
    for kernel in lowered.kernels:
        assert len({regions[i] for i in kernel.op_ids}) == 1


@needs_triton
def test_source_is_triton_for_that_gpu(lower):
    graph = traced(Mlp(256), (torch.randn(8, 128, 256),), training=False)
    kernels = lower(graph, "h100", source=True).kernels
    for kernel in kernels:
        assert ("import triton" in kernel.source) == (kernel.kind == "triton")
    assert "cc=90" in kernels[0].source and "multi_processor_count=132" in kernels[0].source
    assert kernels[0].name == "triton_per_fused_native_layer_norm_0"  # a row fits: a persistent reduction
    # the same ops, seen without writing code
    assert [k.op_ids for k in lower(graph, "h100").kernels] == [k.op_ids for k in kernels]


# -- owners, by hand ---------------------------------------------------------------------------------------------------


def chain(count: int) -> Graph:
    """Ops 0, 1, ... of which each reads what the one before made."""
    spec = contiguous((8,), "float32")
    values = [Value(i, spec, i, 0) for i in range(count + 1)]
    storages = [Storage(i, 32, "input" if i == 0 else "activation") for i in range(count + 1)]
    ops = [Op(i, f"aten.op{i}", "elementwise", "forward", "", (i,), (i + 1,)) for i in range(count)]
    return Graph(values, storages, ops, inputs=(0,), outputs=(count,))


def triton(name, computes, hands_on=(), reads=(), writes=(), **more) -> ScheduleNode:
    """A launch that comes to the result of each op that it computes: one element, 4 bytes."""
    sets = [frozenset(s) for s in (reads, writes)]
    computes = computes if isinstance(computes, dict) else dict.fromkeys(computes, 1)
    concerns = frozenset((*computes, *hands_on))
    return ScheduleNode(
        name, "triton", computes, frozenset(computes), dict.fromkeys(hands_on, 4), concerns, *sets, **more
    )


#: ops of the chain, launches of each graph -> name, own and recomputed ops of each kernel
OWNED = {
    "an op is owned where its result is written": (
        3, [[triton("a", {0, 1}, {1}), triton("b", {0, 1, 2}, {2, 0})]], [("a", (1,), (0,)), ("b", (0, 2), (1,))],
    ),
    "the first that computes an op owns what nobody writes": (
        2, [[triton("a", {0}), triton("b", {0, 1}, {1})]], [("a", (0,), ()), ("b", (1,), (0,))],
    ),
    # the second only casts a weight's gradient that the first made of all rows
    "an op is owned where most of it is computed": (
        2, [[triton("rows", {0: 1000}), triton("cast", {0: 8, 1: 8}, {0, 1})]],
        [("rows", (0,), ()), ("cast", (1,), (0,))],
    ),
    "what backward computes again stays the forward's": (
        2, [[triton("forward", {0: 1}, {0})], [triton("backward", {0: 100, 1: 100}, {1})]],
        [("forward", (0,), ()), ("backward", (1,), (0,))],
    ),
    # op 0 is what a compiler takes for equal to the numbers that op 2 begins with
    "an equal op that the kernel has no use for is not recomputed": (
        3, [[triton("a", {0}, {0}), triton("b", {1}, {1}), triton("c", {0, 2}, {2})]],
        [("a", (0,), ()), ("b", (1,), ()), ("c", (2,), ())],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", OWNED)
def test_the_owner_of_an_op(what):
    ops, launches, kernels = OWNED[what]
    found = own(chain(ops), range(ops), launches)
    assert [(k.name, k.op_ids, k.recomputes) for k in found] == kernels


def test_the_stages_of_a_reduction_are_one_kernel():
    first = triton("stage1", {0}, (), {"x"}, {"partial"}, read_bytes=1000, write_bytes=100)
    last = triton("stage2", (), {0}, {"partial"}, {"out"}, read_bytes=100, write_bytes=4)
    (kernel,) = own(chain(1), [0], [[first, last]])
    assert (kernel.name, kernel.launches, kernel.read_bytes, kernel.write_bytes) == ("stage1", 2, 1100, 104)
    assert kernel.parts == ("stage1", "stage2")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_launch_that_owns_nothing_goes_to_the_op_whose_work_it_does(order):
    """It adds the bias of a convolution and takes the means of a norm, whose main part comes after it."""
    call = ScheduleNode("conv", "extern", {0: 1}, frozenset({0}), concerns=frozenset({0}), writes=frozenset({"conv"}))
    means = replace(triton("means", {1: 8}, order, {"conv"}, {"means"}), hands_on=dict.fromkeys(order, 4))
    norm = triton("norm", {1: 1000, 2: 1000}, {1, 2}, {"means"}, {"norm"})
    found = own(chain(3), range(3), [[call, means, norm]])
    assert [(k.name, k.op_ids, k.launches) for k in found] == [("conv", (0,), 1), ("norm", (1, 2), 2)]


def test_an_op_that_vanished_goes_to_its_reader_at_no_cost():
    (kernel,) = own(chain(3), range(3), [[triton("a", {0, 2}, {2}, read_bytes=7)]])
    assert (kernel.op_ids, kernel.read_bytes, kernel.launches) == ((0, 1, 2), 7, 1)
    kernels = own(chain(1), [0], [[]])
    assert [(k.kind, k.op_ids, k.launches) for k in kernels] == [("none", (0,), 0)]


def test_a_library_call_owns_the_op_though_its_bias_is_added_elsewhere():
    call = ScheduleNode("mm", "extern", {0: 1}, frozenset({0}))
    (first, second) = own(chain(2), range(2), [[call, triton("bias_relu", {0, 1}, {0, 1})]])
    assert (first.op_ids, second.op_ids, second.recomputes) == ((0,), (1,), ())


def test_copies_made_for_a_librarys_call_are_in_memory():
    """Three copies of equal origins, made for a call, each by a launch of its own; a library reads them all."""
    made_for_call = frozenset({0, 1, 2, 3})
    copies = [replace(triton(f"copy{i}", {0, 1, 2}, writes={f"buf{i}"}), concerns=made_for_call) for i in range(3)]
    read = frozenset({"buf0", "buf1", "buf2"})
    call = ScheduleNode("attention", "extern", {3: 1}, frozenset({3}), concerns=frozenset({3}), reads=read)
    found = own(chain(4), range(4), [[*copies, call]])
    assert [(k.op_ids, k.recomputes, k.launches) for k in found] == [((0, 1, 2), (), 1), ((3,), (), 3)]


def test_calls_and_kernels_are_counted_where_they_belong():
    launches = [
        triton("poi", {0}, {0}, loop_ops={"load": 1, "exp": 1, "store": 1}),
        triton("poi", {1}, {1}, loop_ops={"load": 2, "add": 1, "store": 1}),
        triton("poi", {2}, {2}, loop_ops={"load": 1, "exp": 1, "store": 1}),
    ]
    fx_ops = {0: {"aten.exp": 1}, 1: {"aten.add.Tensor": 1, "aten.exp": 1}}
    kernels = own(chain(3), range(3), [launches], fx_ops)
    assert [kernel.fx_ops for kernel in kernels] == [{"aten.exp": 1}, {"aten.add.Tensor": 1, "aten.exp": 1}, {}]
    # the second does other work under the same name
    lowered = Lowered(tuple(kernels), {}, ())
    assert lowered.launches == {"poi": 2, "poi (2)": 1}
    assert lowered.loop_ops == {"add": 1, "exp": 2, "load": 4, "store": 3}
    assert lowered.fx_ops == {"aten.add.Tensor": 1, "aten.exp": 2}


# -- the process and its errors ----------------------------------------------------------------------------------------


@needs_triton
def test_nothing_of_the_fake_gpu_stays(lower):
    import torch._dynamo.device_interface as interfaces
    import triton

    from memwall.inductor.fake_gpu import fake_gpu

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    graph = traced(Mlp(), (torch.randn(2, 4, 64),), training=False)
    lower(graph)  # modules that load on first use are loaded
    before = dict(vars(torch.cuda)), dict(vars(interfaces.CudaInterface)), dict(vars(triton.runtime.driver))
    depth = sys.getrecursionlimit()
    lower(graph)
    with pytest.raises(ZeroDivisionError), fake_gpu(memwall.load_gpu("h100")):  # noqa: PT012
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        _ = 1 / 0
    after = dict(vars(torch.cuda)), dict(vars(interfaces.CudaInterface)), dict(vars(triton.runtime.driver))
    assert after == before
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    assert not torch.utils._triton.has_triton()
    with pytest.raises((RuntimeError, AssertionError)):
        torch.empty(4, device="cuda")
    assert sys.getrecursionlimit() == depth


@needs_triton
def test_a_failure_inside_leaves_nothing_either(lower, monkeypatch):
    import torch._inductor.compile_fx as compile_fx

    def broken(*args, **kwargs):
        raise TypeError("compile_fx_inner() got an unexpected keyword argument 'cudagraphs'")

    available = torch.cuda.is_available()
    monkeypatch.setattr(compile_fx, "compile_fx_inner", broken)
    graph = traced(Mlp(), (torch.randn(2, 4, 64),), training=False)
    with pytest.raises(MissingError, match=r"internals that torch .* does not have .*--policy memwall") as raised:
        lower(graph)
    assert raised.value.exit_code == 3
    assert torch.cuda.is_available() == available


@needs_triton
def test_internals_that_moved_are_an_error_of_the_installation(lower, monkeypatch):
    from memwall.core import compat

    monkeypatch.setitem(compat.PLACES, "WhyNoFuse", "torch._inductor.scheduler:Renamed")
    monkeypatch.delitem(vars(compat), "WhyNoFuse", raising=False)
    for name in [n for n in sys.modules if n.startswith("memwall.inductor.compiling")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingError, match="Renamed"):
        lower(traced(Mlp(), (torch.randn(2, 4, 64),), training=False))


def test_without_triton(lower, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(MissingError, match=r"memwall-roofline\[triton\]"):
        lower(chain(1))


@pytest.mark.parametrize(
    ("gpu", "message"),
    [("mi300x", "NVIDIA GPUs only"), ("tpu-v4", "NVIDIA GPUs only"), ("p100-sxm2-16gb", "capability 7.0")],
)
@needs_triton
def test_gpus_that_inductor_does_not_know(gpu, message, lower):
    with pytest.raises(UsageError, match=message):
        lower(chain(1), gpu)


@needs_triton
def test_bfloat16_on_an_old_gpu(lower):
    module, x = nn.Linear(64, 64), torch.randn(4, 64)
    half = traced(module.bfloat16(), (x.bfloat16(),), training=False)
    for gpu in ("v100-sxm2-16gb", "t4"):
        with pytest.raises(UsageError, match=r"bfloat16 model to eager .* float16"):
            lower(half, gpu)
    assert lower(traced(module.half(), (x.half(),), training=False), "t4").kernels


@needs_triton
def test_nothing_reaches_the_terminal(forks):
    code = """
import warnings, torch, memwall
warnings.simplefilter("always")
from memwall.inductor import lower
module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Softmax(-1), torch.nn.Linear(64, 64))
gpu = memwall.load_gpu("a100")  # has TF32, of which Inductor reminds its users
record = memwall.profile(module, (torch.randn(128, 64),), mode="training", gpu=gpu, loss=lambda y: y.sum())
assert lower(record.graph, gpu, source=True).kernels
"""
    ran = forks.python(code)
    out, err = ran.communicate()
    assert (ran.returncode, out) == (0, ""), err
    assert "TF32" not in err and "Warning" not in err.replace("DeprecationWarning", "")
