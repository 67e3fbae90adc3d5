"""What holds for every plan of every graph, by Hypothesis: random graphs, several GPUs, graph breaks."""

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memwall.core.graph import Graph, distinct_bytes
from memwall.fusion import Plan, plan_graph
from memwall.fusion.pricing import Pricer
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.ops import graph_costs
from memwall.simulate.memory import memory_peak
from memwall.simulate.schedule import simulate
from tests.unit.fusion_graphs import Builder, moved, plan, without_cache
from tests.unit.places import REFERENCE, ROOT
from tests.unit.plan_oracle import Oracle, written_twice

GPUS = tuple(without_cache(load_gpu(name)) for name in ("p100-sxm2-16gb", "a100-80gb-sxm", "h100-sxm", "l4"))
POLICIES = ("eager", "memwall", "ideal")
#: rows and columns: few and many of each; the last is wider than a thread block holds
SIZES = ((4, 8), (64, 1024), (4096, 256), (16384, 4096), (8, 262144))


class Maker:
    """Grows a graph by choices that Hypothesis draws; ``full`` are the tensors of rows × columns so far."""

    def __init__(self, draw, rows: int, cols: int) -> None:
        self.draw, self.rows, self.cols = draw, rows, cols
        self.b = Builder()
        self.full = [self.b.given(rows, cols) for _ in range(2)]
        self.row = [self.b.given(rows, 1)]
        self.col = [self.b.given(cols, role="parameter")]
        self.scalar = [self.b.given()]
        self.weight = self.b.given(cols, cols, role="parameter")
        self.table = self.b.given(1000, cols, role="parameter")
        self.index = self.b.given(rows, dtype="int64")
        self.state = [self.b.given(rows, cols, role="optimizer_state") for _ in range(2)]
        self.cache = self.b.given(2 * rows, cols, role="buffer")

    def any_of(self, values):
        """One of some values, more often a late one."""
        return values[-1 - self.draw(st.integers(0, min(len(values), 6) - 1))]

    def step(self) -> None:
        getattr(self, self.draw(st.sampled_from(STEPS)))()

    # -- out of place

    def unary(self):
        name = self.draw(st.sampled_from(("relu", "exp", "gelu", "silu")))
        self.full.append(self.b.like(f"aten.{name}", ("self", self.any_of(self.full))))

    def binary(self):
        other = self.any_of(self.draw(st.sampled_from((self.full, self.row, self.col, self.scalar))))
        name = self.draw(st.sampled_from(("aten.add.Tensor", "aten.mul.Tensor")))
        self.full.append(self.b.like(name, ("self", self.any_of(self.full)), ("other", other)))

    def small(self):
        pool = self.draw(st.sampled_from((self.row, self.col, self.scalar)))
        pool.append(self.b.like("aten.mul.Tensor", ("self", self.any_of(pool)), ("other", self.any_of(pool))))

    def cast(self):
        x = self.any_of(self.full)
        half = self.b.call("aten._to_copy", [("self", x)], self.rows, self.cols, dtype="bfloat16")
        self.full.append(self.b.call("aten._to_copy", [("self", half)], self.rows, self.cols))

    def reduce(self):
        shape, dim, pool = self.draw(st.sampled_from((
            ((self.rows, 1), [1], self.row), ((self.cols,), [0], self.col), ((), [0, 1], self.scalar),
        )))  # fmt: skip
        name = self.draw(st.sampled_from(("aten.sum.dim_IntList", "aten.mean.dim")))
        pool.append(self.b.call(name, [("self", self.any_of(self.full))], *shape, dim=dim, keepdim=True))

    def softmax(self):
        dim = self.draw(st.sampled_from((-1, 0)))
        x = self.any_of(self.full)
        self.full.append(self.b.like("aten._softmax", ("self", x), dim=dim, half_to_float=False))

    def layer_norm(self):
        b = self.b
        out = [b.tensor(self.rows, self.cols), b.tensor(self.rows, 1), b.tensor(self.rows, 1)]
        x = self.any_of(self.full)
        b.op("aten.native_layer_norm", [("input", x), ("weight", self.any_of(self.col))], out,
             normalized_shape=[self.cols], eps=1e-5)  # fmt: skip
        self.full.append(out[0])
        self.row += out[1:]

    def layer_norm_backward(self):
        b = self.b
        out = [b.tensor(self.rows, self.cols), b.tensor(self.cols), b.tensor(self.cols)]
        pairs = zip(("grad_out", "input"), (self.any_of(self.full), self.any_of(self.full)), strict=True)
        b.op("aten.native_layer_norm_backward", list(pairs), out, normalized_shape=[self.cols],
             output_mask=[True, True, True])  # fmt: skip
        self.full.append(out[0])
        self.col += out[1:]

    def batch_norm(self):
        b = self.b
        out = [b.tensor(self.rows, self.cols), b.tensor(self.cols), b.tensor(self.cols)]
        b.op("aten.native_batch_norm", [("input", self.any_of(self.full))], out, training=True)
        self.full.append(out[0])

    def dropout(self):
        b = self.b
        out, mask = b.tensor(self.rows, self.cols), b.tensor(self.rows, self.cols, dtype="bool")
        b.op("aten.native_dropout", [("input", self.any_of(self.full))], [out, mask], p=0.1, train=True)
        self.full += [out, b.like("aten.mul.Tensor", ("self", out), ("other", mask))]

    def product(self):
        x = self.any_of(self.full)
        self.full.append(self.b.like("aten.mm", ("self", x), ("mat2", self.weight)))

    def residual(self):
        self.product()
        pair = ("self", self.full[-1]), ("other", self.any_of(self.full[:-1]))
        self.full.append(self.b.like("aten.add.Tensor", *pair, alpha=1))

    def custom(self):
        self.full.append(self.b.like("mylib.anything", self.any_of(self.full)))

    def embedding(self):
        pair = [("weight", self.table), ("indices", self.index)]
        self.full.append(self.b.call("aten.embedding", pair, self.rows, self.cols))

    def pick_rows(self):
        x = self.any_of(self.full)
        self.full.append(self.b.like("aten.index_select", ("self", x), ("index", self.index), dim=0))

    def flip(self):
        self.full.append(self.b.like("aten.flip", ("self", self.any_of(self.full)), dims=[0]))

    def transposed(self):
        turned = self.b.view(self.any_of(self.full), (self.cols, self.rows), (1, self.cols))
        copy = self.b.call("aten.clone", [("self", turned)], self.cols, self.rows)
        back = self.b.view(copy, (self.rows, self.cols), (1, self.rows))
        self.full.append(self.b.call("aten.relu", [("self", back)], self.rows, self.cols))

    def halves(self):
        """Two halves of the rows, or of the columns, joined the other way round."""
        x = self.any_of(self.full)
        if self.draw(st.booleans()):
            shape, strides, step, dim = ((self.rows // 2, self.cols), (self.cols, 1), self.rows // 2 * self.cols, 0)
        else:
            shape, strides, step, dim = (self.rows, self.cols // 2), (self.cols, 1), self.cols // 2, 1
        parts = [self.b.view(x, shape, strides), self.b.view(x, shape, strides, step)]
        negative = self.b.call("aten.neg", [("self", parts[1])], *shape)
        pair = [("tensors", negative), ("tensors", parts[0])]
        self.full.append(self.b.call("aten.cat", pair, self.rows, self.cols, dim=dim))

    def fresh(self):
        name = self.draw(st.sampled_from(("aten.rand", "aten.zeros")))
        self.full.append(self.b.call(name, [], self.rows, self.cols))

    def check(self):
        self.b.op("aten._assert_async.msg", [("self", self.any_of(self.full))], [])

    # -- in place

    def in_place(self):
        x, y = self.any_of(self.full), self.any_of(self.full)
        name, inputs = self.draw(st.sampled_from((
            ("aten.relu_", [("self", x)]),
            ("aten.add_.Tensor", [("self", x), ("other", y)]),
            ("aten.copy_", [("src", y)]),
            ("aten.zero_", []),
        )))  # fmt: skip
        self.b.op(name, inputs, [x])

    def half_in_place(self):
        x = self.any_of(self.full)
        place = self.draw(st.sampled_from((0, self.rows // 2 * self.cols)))
        part = self.b.view(x, (self.rows // 2, self.cols), (self.cols, 1), place)
        if self.draw(st.booleans()):
            self.b.op("aten.relu_", [("self", part)], [part])
        else:
            other = self.b.view(self.any_of(self.full), (self.rows // 2, self.cols), (self.cols, 1))
            self.b.op("aten.copy_", [("src", other)], [part])

    def to_cache(self):
        place = self.draw(st.sampled_from((0, self.rows * self.cols)))
        part = self.b.view(self.cache, (self.rows, self.cols), (self.cols, 1), place)
        self.b.op("aten.copy_", [("src", self.any_of(self.full))], [part])
        self.full.append(part)

    def add_rows(self):
        x, y = self.any_of(self.full), self.any_of(self.full)
        inputs = [("self", x), ("index", self.index), ("source", y)]
        self.b.op("aten.index_add_", inputs, [x], dim=0)

    def many(self):
        other = [("other", self.any_of(self.full)) for _ in self.state]
        own = [("self", s) for s in self.state]
        self.b.op("aten._foreach_add_.List", [*own, *other], self.state)


STEPS = (
    *("unary", "binary", "binary", "small", "cast", "cast", "reduce", "reduce", "softmax", "layer_norm"),
    *("layer_norm_backward", "batch_norm", "dropout", "product", "product", "custom", "embedding", "pick_rows"),
    *("flip", "transposed", "halves", "fresh", "check", "in_place", "in_place", "half_in_place", "to_cache"),
    *("add_rows", "many"),
)


@st.composite
def graphs(draw, most=24) -> Graph:
    """A step: forward, backward, optimizer, up to ``most`` ops or a few more."""
    maker = Maker(draw, *draw(st.sampled_from(SIZES)))
    length = draw(st.integers(1, most))
    marks = sorted(draw(st.tuples(st.integers(0, 2 * most), st.integers(0, 2 * most))))
    for number in range(length):
        maker.b.phase = ("forward", "backward", "optimizer")[sum(number >= mark for mark in marks)]
        maker.step()
    outputs = draw(st.sets(st.sampled_from(maker.full[2:] or maker.full), max_size=2))
    return maker.b.graph(*sorted(outputs))


@st.composite
def broken(draw, graph: Graph) -> list[int] | None:
    """Graph breaks: for each op the number of its partial graph; None for one graph."""
    count = len(graph.ops)
    cuts = draw(st.none() | st.sets(st.integers(0, count), max_size=3))
    return None if cuts is None else [sum(op >= cut for cut in cuts) for op in range(count)]


class Case:
    """What a test is given; prints as the calls of the graph."""

    def __init__(self, graph: Graph, regions: list[int] | None, gpu: Gpu) -> None:
        self.graph, self.regions, self.gpu, self.oracle = graph, regions, gpu, Oracle(graph)
        self.plans: dict[str, Plan] = {}

    def plan(self, policy: str = "memwall", anew: bool = False) -> Plan:
        if anew or policy not in self.plans:
            self.plans[policy] = plan_graph(policy, self.graph, graph_costs(self.graph), self.gpu, self.regions)
        return self.plans[policy]

    def __repr__(self) -> str:
        lines = [f"{self.gpu.name}, regions {self.regions}, outputs {self.graph.outputs}"]
        values, storages = self.graph.values, self.graph.storages
        for op in self.graph.ops:
            sides = [
                ", ".join(f"%{i}:s{values[i].storage}{storages[values[i].storage].role[0]}{values[i].spec.shape}"
                          for i in side) for side in (op.inputs, op.outputs)
            ]  # fmt: skip
            lines.append(f"{op.id} {op.phase[0]} {op.name}({sides[0]}) -> {sides[1]}")
        return "\n".join(lines)


@st.composite
def cases(draw) -> Case:
    graph = draw(graphs())
    return Case(graph, draw(broken(graph)), draw(st.sampled_from(GPUS)))


INVARIANTS = []


def invariant(check):
    INVARIANTS.append(check)
    return check


@invariant
def every_op_reads_what_call_order_gives_it(case):
    assert case.oracle.faults(case.plan()) == []


@invariant
def a_plan_holds_every_op_once(case):
    for made in map(case.plan, POLICIES):
        assert Counter(op for group in made.groups for op in group.op_ids) == Counter(range(len(case.graph.ops)))
        for group in made.groups:
            assert list(group.op_ids) == sorted(group.op_ids)
            assert not set(group.recomputes) & set(group.op_ids)


@invariant
def no_policy_moves_more_than_the_one_before_it(case):
    eager, memwall, ideal = (moved(case.plan(policy)) for policy in ("eager", "memwall", "ideal"))
    assert ideal <= memwall <= eager


@invariant
def a_plan_is_never_slower_than_eager_where_neither_the_cache_nor_the_host_plays_a_part(case):
    """With L2 and a slow host it may be: a kernel that eager finds its input in L2 for can lose that when another
    one moves in between, and the wait for the host is charged to whom it meets."""
    eager, memwall = (
        simulate(case.graph, case.plan(policy), case.gpu).totals.time_s for policy in ("eager", "memwall")
    )
    assert memwall <= eager * (1 + 1e-9)


@invariant
def the_peak_holds_at_least_what_is_there_before_the_step(case):
    lasting = sum(s.nbytes for s in case.graph.storages if s.role not in ("activation", "gradient"))
    assert all(memory_peak(case.graph, case.plan(policy)).total >= lasting for policy in POLICIES)


@invariant
def saved_and_materialized_are_all_intermediates(case):
    """Each result is either written by its own group or stays on chip, and their bytes add up to eager's writes."""
    graph = case.graph
    if written_twice(graph) or any(op.name == "aten._foreach_add_.List" for op in graph.ops):
        return
    made = case.plan()
    home = {op: group for group in made.groups for op in group.op_ids}
    results = {value: op.id for op in graph.ops for value in op.outputs}
    stored = {value for value, op in results.items() if value in home[op].writes}
    on_chip = results.keys() - stored
    assert {value for group in made.groups for value in group.writes} == stored
    for value in on_chip:
        readers = [op.id for op in graph.ops if value in op.inputs]
        hosts = [g for g in made.groups for r in readers if r in g.op_ids or r in g.recomputes]
        assert all(results[value] in (*g.op_ids, *g.recomputes) for g in hosts)
    size = {value.id: value.spec.nbytes for value in graph.values}
    eager_writes = sum(group.cost.write_bytes for group in case.plan("eager").groups)
    memwall_writes = sum(group.cost.write_bytes for group in made.groups)
    assert memwall_writes == sum(size[value] for value in stored)
    assert memwall_writes + sum(size[value] for value in on_chip) == eager_writes


@invariant
def the_border_of_two_groups_as_one_is_that_of_their_ops(case):
    """The planner derives it from those of the two; here all ops are looked at."""
    joined, seen = Pricer.joined, []

    def checked(pricer, first, second, op_ids, inside, fed):
        found = joined(pricer, first, second, op_ids, inside, fed)
        seen.append((found, pricer.border(op_ids, inside)))
        return found

    with patch.object(Pricer, "joined", checked):
        case.plan(anew=True)
    assert all(found == whole for found, whole in seen)


@invariant
def no_kernel_is_launched_for_nothing(case):
    """One that stores nothing holds a result that nobody reads in call order either, or an op without results."""
    graph = case.graph
    read = {token for reads in case.oracle.truth for tokens in reads for token in tokens.values()}
    for group in case.plan().groups:
        ops = [graph.ops[op] for op in group.op_ids]
        unread = [op for op in ops if any((op.id, n) not in read for n in range(len(op.outputs) or 1))]
        assert group.writes or unread


@invariant
def a_kernel_reads_each_of_its_tensors_once(case):
    """Where every op reads its tensors whole, a group's bytes are those of what it lists."""
    graph = case.graph
    for group in case.plan().groups:
        ops = [graph.ops[op] for op in (*group.op_ids, *group.recomputes)]
        if any(op.name.split(".")[1] in FETCHES for op in ops):
            continue
        assert group.cost.read_bytes == distinct_bytes([graph.values[v] for v in group.reads])


#: ops that fetch some rows, or write some
FETCHES = ("embedding", "index_select", "index_add_")


@invariant
def fusion_stays_within_a_phase_and_between_graph_breaks(case):
    """But for what forward made and backward computes again; where forward has no use for it itself, backward alone
    computes it."""
    ops = case.graph.ops
    regions = case.regions or [0] * len(ops)
    for group in case.plan().groups:
        inside = (*group.op_ids, *group.recomputes)
        phases = {ops[op].phase for op in inside}
        assert len(phases) == 1 or phases == {"forward", "backward"}
        assert len({regions[op] for op in inside}) == 1
        if len(phases) == 2:
            forward = [ops[op] for op in inside if ops[op].phase == "forward"]
            assert all(op.op_class in ("elementwise", "movement", "normalization") for op in forward)
            later = {v for op in inside if ops[op].phase == "backward" for v in ops[op].outputs}
            assert not ({v for op in forward for v in op.outputs} - later) & set(group.writes)


@invariant
def nothing_random_and_no_product_is_computed_again(case):
    names = {case.graph.ops[op].name for group in case.plan().groups for op in group.recomputes}
    assert not names & {"aten.native_dropout", "aten.rand", "aten.mm"}


@invariant
def a_sum_over_many_blocks_is_not_read_by_the_launch_that_makes_it(case):
    """Nobody can write z = x - sum(x, 0) as one launch that reads x once."""
    graph = case.graph
    values = graph.values
    for group in case.plan().groups:
        inside = {*group.op_ids, *group.recomputes}
        made = {}
        for op in sorted(inside):
            made.update((v, op) for v in late_results(graph.ops[op]))
        for op in inside:
            for value in graph.ops[op].inputs:
                late = made.get(value)
                if late is not None and late < op and graph.ops[op].outputs:
                    size = max(values[v].spec.numel for v in graph.ops[op].outputs)
                    assert size <= values[value].spec.numel


def late_results(op) -> tuple[int, ...]:
    """The sums that an op adds up over blocks: over rows or over all, and the affine gradients of a norm."""
    if op.name in ("aten.sum.dim_IntList", "aten.mean.dim") and 0 in op.attributes["dim"]:
        return op.outputs
    return op.outputs[1:] if op.name == "aten.native_layer_norm_backward" else ()


@invariant
def no_thread_overwrites_what_another_has_yet_to_read(case):
    """What a kernel loads and stores in one storage it takes through one view, element by element."""
    graph = case.graph
    oracle = case.oracle
    for group in case.plan().groups:
        if len(group.op_ids) + len(group.recomputes) == 1:
            continue
        inside = {*group.op_ids, *group.recomputes}
        stored = [graph.values[v] for op in group.op_ids for v in graph.ops[op].outputs if v in group.writes]
        for op in inside:
            for value, truth in zip(graph.ops[op].inputs, oracle.truth[op], strict=True):
                loaded = graph.values[value]
                if not any(token[0] not in inside for token in truth.values()):
                    continue
                for other in stored:
                    if other.storage == loaded.storage and set(oracle.cells[value]) & set(oracle.cells[other.id]):
                        assert (other.spec, other.offset) == (loaded.spec, loaded.offset)
                        assert not reads_elsewhere(graph.ops[op], value)


def reads_elsewhere(op, value) -> bool:
    """Whether a thread of the op reads elements of the value that others write; what is added to adds atomically."""
    if op.name == "aten.index_add_":
        return op.arguments[op.inputs.index(value)] != "self" or op.inputs.count(value) > 1
    return op.name in ("aten.flip", "aten.index_select", "aten.mm")


@invariant
def the_same_graph_gives_the_same_plan(case):
    assert case.plan() == case.plan(anew=True)


@settings(derandomize=True, suppress_health_check=list(HealthCheck), max_examples=2 * settings().max_examples)
@given(cases())
def test_every_invariant_holds_for_every_plan(case):
    for check in INVARIANTS:
        check(case)


# -- the same on graphs that were traced

#: needs values of tensors: traced with small real ones
REAL = ("boolean_mask", "item_branch")
#: 80,000 ops; and the 405B model is the 70B one in a larger size
LEFT_OUT = ("runaway_loop", "llama3_405b")
TRACED = {**REFERENCE, **{path.stem: path for path in sorted(ROOT.glob("tests/models/*.py"))}}
TRACED = {name: path for name, path in TRACED.items() if name not in LEFT_OUT}
#: with --whole: what they are made of is in smaller ones, and a plan of unet's is run kernel by kernel
LARGE = ("bert_large", "gpt2_xl", "llama3_8b", "llama3_70b", "unet", "vit_l16")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((name, mode), id=f"{mode}-{name}", marks=pytest.mark.whole if name in LARGE else ())
        for name in TRACED for mode in ("inference", "training")
    ],
)  # fmt: skip
def traced(request):
    """Graph and costs of a workload."""
    pytest.importorskip("torch")
    import memwall

    name, mode = request.param
    record = memwall.profile(str(TRACED[name]), mode=mode, gpu="h100", real=name in REAL)
    return record.graphs[0], record.costs[0]


def test_traced_graphs_keep_them_all(traced, request):
    """On an older and a newer GPU with --whole, else of inference on the older and of training on the newer."""
    graph, costs = traced
    both = ("p100-sxm2-16gb", "h100-sxm")
    trained = any(op.phase != "forward" for op in graph.ops)
    for name in both if request.config.getoption("--whole") else both[trained:][:1]:
        gpu = without_cache(load_gpu(name))
        eager, memwall, ideal = (plan_graph(policy, graph, costs, gpu) for policy in POLICIES)
        assert Oracle(graph).faults(memwall) == []
        for made in (memwall, ideal):
            assert Counter(op for group in made.groups for op in group.op_ids) == Counter(range(len(graph.ops)))
        assert moved(ideal) <= moved(memwall) <= moved(eager)
        times = [simulate(graph, made, gpu).totals.time_s for made in (memwall, eager)]
        assert times[0] <= times[1] * (1 + 1e-9)
        lasting = sum(s.nbytes for s in graph.storages if s.role not in ("activation", "gradient"))
        assert memory_peak(graph, memwall).total >= lasting


def test_repeated_layers_are_planned_as_if_each_were_planned(traced):
    """One graph that is said to have no break is planned whole: the same groups come out."""
    graph, costs = traced
    gpu = load_gpu("a100-80gb-sxm")
    shortened = plan_graph("memwall", graph, costs, gpu)
    whole = plan_graph("memwall", graph, costs, gpu, [0] * len(graph.ops))
    assert {g.op_ids: g for g in shortened.groups} == {g.op_ids: g for g in whole.groups}


# -- the oracle itself


def saboteurs(plan: Plan):
    """The plan with a result that is not stored, a tensor that is not loaded, and its kernels the other way round."""
    groups = plan.groups
    for number, group in enumerate(groups):
        for field, values in (("writes", group.writes), ("reads", group.reads)):
            for value in values:
                left = tuple(v for v in values if v != value)
                worse = replace(group, **{field: left})
                yield (
                    f"{field} {value} of {number}",
                    replace(plan, groups=(*groups[:number], worse, *groups[number + 1 :])),
                )
    yield "order", replace(plan, groups=groups[::-1])


def test_the_oracle_sees_every_fault():
    """x → a → product → b, and b overwrites a: three kernels, none of whose loads and stores can be left out."""
    b = Builder()
    x, w = b.given(64, 64), b.given(64, 64, role="parameter")
    a = b.like("aten.exp", ("self", b.like("aten.neg", ("self", x))))
    product = b.like("aten.mm", ("self", a), ("mat2", w))
    shifted = b.like("aten.sin", ("self", product))
    b.op("aten.add_.Tensor", [("self", a), ("other", shifted)], [a])
    graph = b.graph(a)
    made = plan("memwall", graph)
    assert [group.op_ids for group in made.groups] == [(0, 1), (2,), (3, 4)]
    oracle = Oracle(graph)
    assert oracle.faults(made) == []
    broken_plans = dict(saboteurs(made))
    assert len(broken_plans) == 2 + 3 + 3 + 1
    assert [name for name, worse in broken_plans.items() if not oracle.faults(worse)] == []
