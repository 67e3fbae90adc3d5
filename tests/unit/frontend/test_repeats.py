"""Cutting repeated layers out: against graphs traced from models with fewer layers, and plans made on the whole."""

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import memwall
from memwall.core.graph import Graph, Op, Storage, Value, contiguous
from memwall.frontend.targets.loading import load_file
from memwall.fusion.repeats import shorten
from memwall.ops import graph_costs
from tests.unit.places import ROOT

POINTWISE = ("elementwise", "normalization", "reduction", "movement")

Groups = list[tuple[tuple[int, ...], tuple[int, ...]]]


# -- two graphs are the same up to numbers ---------------------------------------------------------------------------


def canonical(graph: Graph, rename: Callable[[str], str] = str) -> tuple[object, ...]:
    """All that a graph says, with values and storages numbered by first use and module paths renamed."""
    storages: dict[int, int] = {}
    values: dict[int, int] = {}

    def look(number: int) -> tuple[object, ...]:
        value = graph.values[number]
        storage = graph.storages[value.storage]
        place = storages.setdefault(storage.id, len(storages))
        return (values.setdefault(number, len(values)), value.spec, value.offset, place, storage.nbytes, storage.role,
                rename(storage.name))  # fmt: skip

    ops = [
        (op.name, op.op_class, op.phase, rename(op.module), op.arguments, dict(op.attributes),
         [look(i) for i in op.inputs], [look(i) for i in op.outputs])
        for op in graph.ops
    ]  # fmt: skip
    ends = [[look(i) for i in ids] for ids in (graph.inputs, graph.parameters, graph.outputs)]
    return ops, ends, len(graph.values), len(graph.storages)


def assert_valid(graph: Graph) -> None:
    """Ids are positions, and what no parameter, buffer, input or state holds is written before it is read."""
    assert [value.id for value in graph.values] == list(range(len(graph.values)))
    assert [storage.id for storage in graph.storages] == list(range(len(graph.storages)))
    assert [op.id for op in graph.ops] == list(range(len(graph.ops)))
    there = {s.id for s in graph.storages if s.role in ("parameter", "buffer", "input", "optimizer_state")}
    for op in graph.ops:
        assert len(op.arguments) == len(op.inputs)
        written = {graph.values[i].storage for i in op.outputs}
        read = {graph.values[i].storage for i in op.inputs}
        assert read - written <= there, f"op {op.id} {op.name} reads what nobody wrote"
        there |= written


def assert_ordered(graph: Graph, groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    """Each op is owned once, and whatever is read was last written by the op that wrote it last in call order."""
    assert sorted(i for owned, _ in groups for i in owned) == list(range(len(graph.ops)))
    storage = [value.storage for value in graph.values]
    source: dict[tuple[int, int], int | None] = {}
    last: dict[int, int] = {}
    for op in graph.ops:
        for i in op.inputs:
            source[op.id, storage[i]] = last.get(storage[i])
        last.update((storage[i], op.id) for i in op.outputs)
    ran: dict[int, int] = {}
    for owned, again in groups:
        for number in sorted((*owned, *again)):
            op = graph.ops[number]
            for i in op.inputs:
                assert ran.get(storage[i]) == source[number, storage[i]], f"op {number} {op.name} comes too early"
            ran.update((storage[i], number) for i in op.outputs)


# -- models ----------------------------------------------------------------------------------------------------------


def reference(name: str, **constants: int) -> ModuleType:
    """A reference workload's file with other constants."""
    module = load_file(ROOT / "profiles" / name / "model.py")
    for key, value in constants.items():
        assert hasattr(module, key)
        setattr(module, key, value)
    return module


def traced(module: object, inputs: object, mode: str = "training", **options: object) -> Graph:
    return memwall.profile(module, inputs, mode=mode, **options).graphs[0]  # type: ignore[arg-type]


def model_with(name: str, layers: int) -> tuple[object, object, object]:
    """A reference model with so many layers, its inputs and its loss."""
    if name == "llama3_8b":
        file = reference(name)
        return file.Llama(file.Config(layers=layers)).bfloat16(), file.inputs(), file.loss
    file = reference(name, LAYERS=layers)
    return file.model(), file.inputs(), getattr(file, "loss", None)


LISTS = {"bert_large": "layers", "llama3_8b": "blocks", "gpt2_xl": "blocks", "vit_l16": "blocks"}
CASES = [(name, mode) for name in LISTS for mode in ("training", "inference")]
_GRAPHS: dict[tuple[str, str, int], Graph] = {}


def graph_of(name: str, mode: str, layers: int, **options: object) -> Graph:
    key = (name, mode, layers)
    if options or key not in _GRAPHS:
        with torch.device("meta"):
            model, inputs, loss = model_with(name, layers)
        graph = traced(model, inputs, mode, loss=loss, **options)
        if options:
            return graph
        _GRAPHS[key] = graph
    return _GRAPHS[key]


def last_is(layers: int, prefix: str) -> Callable[[str], str]:
    """Names the last of so many layers as the last of the four that are left."""
    return lambda path: re.sub(rf"^{prefix}\.{layers - 1}\b", f"{prefix}.3", path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_what_is_left_is_the_trace_of_four_layers(name, mode):
    """In training; with --whole also in inference, which is a part of it."""
    short = shorten(graph_of(name, mode, 9))
    assert_valid(short.graph)
    assert canonical(short.graph, last_is(9, LISTS[name])) == canonical(graph_of(name, mode, 4))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "layers", "traced_with", "options"), [
    *(("bert_large", 9, {}, {"optimizer": optimizer}) for optimizer in ("adamw:loop", "adamw:fused", None)),
    ("bert_large", 9, {}, {"optimizer": "sgd:foreach"}),
    ("llama3_8b", 7, {"replay": False}, {}),
])  # fmt: skip
def test_it_is_so_with_any_optimizer_and_without_replay(name, layers, traced_with, options):
    """Of optimizers the one that loops over tensors and none; the fused and the multi-tensor ones with --whole."""
    short = shorten(graph_of(name, "training", layers, **options, **traced_with))
    kept = graph_of(name, "training", 4, **options)
    assert canonical(short.graph, last_is(layers, LISTS[name])) == canonical(kept)


# -- the way back: plans of the short graph, and the same planner on the whole ---------------------------------------


def alone(graph: Graph) -> Groups:
    """Every op for itself."""
    return [((op.id,), ()) for op in graph.ops]


def neighbours(graph: Graph) -> Groups:
    """Ops that stand side by side share a group, across layers too, until an op of another kind comes."""
    groups: list[list[int]] = []
    for op in graph.ops:
        before = graph.ops[groups[-1][-1]] if groups else op
        if groups and {op.op_class, before.op_class} <= set(POINTWISE) and op.phase == before.phase:
            groups[-1].append(op.id)
        else:
            groups.append([op.id])
    return [(tuple(group), ()) for group in groups]


def chains(graph: Graph) -> Groups:
    """An op joins the group of the only op that reads what it makes, wherever that stands."""
    readers: dict[int, set[int]] = {}
    writers: dict[int, set[int]] = {}
    for op in graph.ops:
        for i in op.inputs:
            readers.setdefault(graph.values[i].storage, set()).add(op.id)
        for i in op.outputs:
            writers.setdefault(graph.values[i].storage, set()).add(op.id)
    ends = {graph.values[i].storage for i in graph.outputs}
    root: dict[int, int] = {}
    groups: dict[int, list[int]] = {}
    for op in reversed(graph.ops):
        made = {graph.values[i].storage for i in op.outputs}
        after = set().union(*(readers.get(s, set()) for s in made))
        joins = len(after) == 1 and op.op_class in POINTWISE and made.isdisjoint(ends)
        joins = joins and all(writers[s] == {op.id} for s in made) and op.phase != "optimizer"
        follower = graph.ops[min(after)] if joins else op
        root[op.id] = root[follower.id] if joins and follower.phase == op.phase else op.id
        groups.setdefault(root[op.id], []).append(op.id)
    return [(tuple(sorted(groups[key])), ()) for key in sorted(groups)]


def remaking(graph: Graph) -> Groups:
    """Neighbours, and backward groups compute once more what cheap forward ops made, two ops deep."""
    writer: dict[int, int] = {}
    writes: Counter[int] = Counter()
    for op in graph.ops:
        for i in set(op.outputs):
            writer[graph.values[i].storage] = op.id
            writes[graph.values[i].storage] += 1
    groups = []
    for owned, _ in neighbours(graph):
        again: set[int] = set()
        wanted = set(owned) if graph.ops[owned[0]].phase == "backward" else set()
        for _ in range(2):
            read = {graph.values[i].storage for number in wanted for i in graph.ops[number].inputs}
            wanted = {writer[s] for s in read if s in writer and writes[s] == 1}
            wanted = {
                i for i in wanted if (op := graph.ops[i]).phase == "forward" and op.op_class in POINTWISE and op.inputs
            }
            again |= wanted
        groups.append((owned, tuple(sorted(again))))
    return groups


def as_set(groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    return {(tuple(owned), tuple(again)) for owned, again in groups}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planner", [alone, neighbours, chains, remaking])
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_plan_expanded_is_the_plan_of_the_whole(name, mode, planner):
    """Each planner on some of the models; one that is wrong on another alone is found with --whole."""
    whole = graph_of(name, mode, 9)
    short = shorten(whole)
    expanded = short.expand(planner(short.graph))
    assert expanded is not None
    assert as_set([group[:2] for group in expanded]) == as_set(planner(whole))
    assert_ordered(whole, [group[:2] for group in expanded])


def test_the_planners_of_these_tests_join_ops_across_layers():
    whole = graph_of("llama3_8b", "training", 9)
    layers = [
        {whole.ops[i].module.split(".")[1] for i in owned if whole.ops[i].module.startswith("blocks")}
        for owned, _ in neighbours(whole)
    ]
    assert sum(len(some) == 2 for some in layers) == 8  # the joints of 9 layers: a sum, then the next layer's norm
    assert sum(len(again) > 1 for _, again in remaking(whole)) > 9


def test_each_copy_costs_what_its_source_costs():
    whole = graph_of("bert_large", "training", 9)
    short = shorten(whole)
    expanded = short.expand(alone(short.graph))
    assert expanded is not None and [group.op_ids for group in expanded] == [(op.id,) for op in whole.ops]
    ours, theirs = graph_costs(short.graph), graph_costs(whole)
    for (number,), _, source in expanded:
        if whole.ops[number].phase != "optimizer":
            assert ours[source] == theirs[number]


# -- small models: what is cut and what is not -----------------------------------------------------------------------

WIDTH = 16


class Layer(nn.Module):
    """Forward 5 ops: layer norm, linear, activation, linear, sum."""

    def __init__(self, activation: str = "gelu"):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.activation = getattr(nn.functional, activation)

    def forward(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


class Stack(nn.Module):
    """Layers called one after another, unless ``walk`` has it otherwise. ``odd``: those with another activation."""

    def __init__(self, count, walk=None, odd=()):
        super().__init__()
        self.layers = nn.ModuleList(Layer("relu" if i in odd else "gelu") for i in range(count))
        self.walk = walk

    def forward(self, x):
        if self.walk is not None:
            return self.walk(self.layers, x)
        for layer in self.layers:
            x = layer(x)
        return x


def small(model: nn.Module, mode: str = "training", **options: object) -> Graph:
    return traced(model, (torch.zeros(8, WIDTH),), mode, **options)


def layers_left(graph: Graph, phase: str = "forward", prefix: str = "layers") -> list[int]:
    found = {op.module.split(".")[1] for op in graph.ops if op.phase == phase and op.module.startswith(f"{prefix}.")}
    return sorted(map(int, found))


def with_skips(layers, x):
    """A U-Net's wiring: what the first half makes is added in the second half in reverse order."""
    made = []
    for i, layer in enumerate(layers):
        x = layer(x if i < len(layers) // 2 else x + made.pop())
        if i < len(layers) // 2:
            made.append(x)
    return x


def all_summed(layers, x):
    losses = []
    for layer in layers:
        x = layer(x)
        losses.append(x.mean())
    return sum(losses)


def first_read_again(layers, x):
    made = []
    for layer in layers:
        x = layer(x)
        made.append(x)
    return x + made[2]


def two_back(layers, x):
    before = x
    for layer in layers:
        before, x = x, layer(x) + before
    return x


def every_state(layers, x):
    states = []
    for layer in layers:
        x = layer(x)
        states.append(x)
    return states


def one_state(layers, x):
    states = every_state(layers, x)
    return states[4], states[-1]


def checkpointed(layers, x):
    for layer in layers:
        x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    return x


def falls_back_on(graph: Graph) -> None:
    """The graph comes back as it was."""
    short = shorten(graph)
    assert short.graph is graph and list(short.op_of) == list(range(len(graph.ops)))
    assert short.expand(neighbours(graph)) is not None


@pytest.mark.parametrize(
    ("walk", "mode"),
    [(with_skips, "training"), (with_skips, "inference"), (first_read_again, "inference"), (one_state, "inference")],
)
def test_wiring_that_differs_keeps_layers(walk, mode):
    falls_back_on(small(Stack(12, walk), mode))


def test_a_layer_whose_gradient_has_one_more_part_is_no_part_of_the_run():
    """Layer 2's output is read at the end too, so layer 3's backward ends with one more sum. 4 to 10 are alike."""
    short = shorten(small(Stack(12, first_read_again)))
    assert_valid(short.graph)
    assert layers_left(short.graph) == [0, 1, 2, 3, 4, 5, 11]


def test_a_layer_called_again_and_again_is_kept():
    class Albert(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = Layer()

        def forward(self, x):
            for _ in range(8):
                x = self.layer(x)
            return x

    falls_back_on(small(Albert()))
    falls_back_on(small(nn.Sequential(*[Layer()] * 8)))


def test_a_loss_over_all_layers_keeps_them():
    falls_back_on(small(Stack(8, all_summed)))


def test_four_layers_are_kept():
    falls_back_on(small(Stack(4)))
    assert layers_left(shorten(small(Stack(5))).graph) == [0, 1, 2, 4]


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_layer_that_differs_splits_the_run(mode):
    whole = small(Stack(14, odd=(6,)), mode)
    short = shorten(whole)
    assert_valid(short.graph)
    # 0 and 13 are ends; of 1 to 5 two are kept, and of 7 to 12
    assert layers_left(short.graph) == [0, 1, 2, 6, 7, 8, 13]
    assert round_trip(whole)


def test_layers_that_take_turns_are_cut_in_pairs():
    whole = small(Stack(16, odd=range(1, 16, 2)))
    short = shorten(whole)
    assert_valid(short.graph)
    assert layers_left(short.graph) == [0, 1, 2, 3, 4, 5, 14, 15]
    assert round_trip(whole)


def test_states_handed_out_by_every_layer_are_cut_with_it():
    short = shorten(small(Stack(9, every_state), "inference"))
    assert layers_left(short.graph) == [0, 1, 2, 8]
    assert len(short.graph.outputs) == 4


def test_a_layer_that_reads_the_two_before_it():
    """Inference: each layer reads the same distance back. The first two read the input, so they are no part of it."""
    whole = small(Stack(10, two_back), "inference")
    short = shorten(whole)
    assert_valid(short.graph)
    assert layers_left(short.graph) == [0, 1, 2, 3, 9]
    assert round_trip(whole)


def test_checkpointed_layers():
    whole = small(Stack(9, checkpointed))
    short = shorten(whole)
    assert canonical(short.graph, last_is(9, "layers")) == canonical(small(Stack(4, checkpointed)))
    assert round_trip(whole)


def test_frozen_layers_are_kept_and_the_others_cut():
    model = Stack(12)
    model.layers[:4].requires_grad_(False)
    short = shorten(small(model))
    # 4 is the first with a gradient, 11 the last
    assert layers_left(short.graph, "backward") == [4, 5, 6, 11]
    assert layers_left(short.graph) == [0, 1, 2, 3, 4, 5, 6, 11]


def test_encoder_and_decoder_are_two_runs():
    def transformer(layers: int) -> nn.Module:
        return nn.Transformer(WIDTH, 2, layers, layers, 32, batch_first=True)

    def both(layers: int) -> Graph:
        x = torch.zeros(2, 8, WIDTH)
        return traced(transformer(layers), (x, x))

    whole = both(7)
    short = shorten(whole)
    assert_valid(short.graph)
    assert {run.prefix: run.count for cut in short.cuts for run in cut.runs} == {
        "encoder.layers": 5,
        "decoder.layers": 5,
    }
    encoder, decoder = last_is(7, "encoder.layers"), last_is(7, "decoder.layers")
    assert canonical(short.graph, lambda path: encoder(decoder(path))) == canonical(both(4))
    assert round_trip(whole)


def test_only_the_long_stage_of_a_convolutional_network_is_cut():
    file = reference("resnet50")
    with torch.device("meta"):
        model, inputs = file.model(), file.inputs()
    short = shorten(traced(model, inputs))
    assert_valid(short.graph)
    assert [run.prefix for cut in short.cuts for run in cut.runs] == ["stage3"]  # 3, 4, 6 and 3 blocks
    assert layers_left(short.graph, prefix="stage3") == [0, 1, 2, 5]


def test_lists_in_lists_are_cut_inside():
    nested = nn.Sequential(*[Stack(7) for _ in range(2)])
    whole = small(nested)
    short = shorten(whole)
    assert_valid(short.graph)
    assert [run.prefix for cut in short.cuts for run in cut.runs] == ["0.layers", "1.layers"]
    assert round_trip(whole)


def round_trip(whole: Graph) -> bool:
    """Whether planners give the same on the short graph, expanded, as on the whole."""
    short = shorten(whole)
    for planner in (alone, neighbours):
        expanded = short.expand(planner(short.graph))
        if expanded is None or as_set([group[:2] for group in expanded]) != as_set(planner(whole)):
            return False
        assert_ordered(whole, [group[:2] for group in expanded])
    return True


def test_a_plan_that_treats_layers_differently_is_not_expanded():
    """Layers of 5 ops, and pairs counted from the front of the model: each layer is split otherwise than the last."""
    short = shorten(small(Stack(9), "inference"))
    pairs = [(tuple(range(i, min(i + 2, 20))), ()) for i in range(0, 20, 2)]
    assert len(short.graph.ops) == 20
    assert short.expand(pairs) is None


def test_a_group_over_three_layers_is_not_expanded():
    short = shorten(small(Stack(9), "inference"))
    assert short.expand([((0,), ()), (tuple(range(1, 18)), ()), ((18,), ()), ((19,), ())]) is None


@functools.cache
def stack_of_nine() -> Graph:
    return small(Stack(9))


names = st.builds(set, st.lists(st.deferred(lambda: st.sampled_from(sorted({op.name for op in stack_of_nine().ops})))))


@given(names, names)
def test_any_local_rule_gives_the_same_on_the_short_graph(ends, starts):
    """Groups end behind some kinds of ops and begin before others, at least once a layer."""

    def plan(graph: Graph) -> Groups:
        groups: list[list[int]] = []
        for op in graph.ops:
            begins = op.name in starts or op.phase == "optimizer" or op.name in ("aten.addmm", "aten.mm")
            if not groups or begins or graph.ops[groups[-1][-1]].name in ends:
                groups.append([])
            groups[-1].append(op.id)
        return [(tuple(group), ()) for group in groups]

    whole = stack_of_nine()
    short = shorten(whole)
    expanded = short.expand(plan(short.graph))
    assert expanded is not None
    assert [group[:2] for group in expanded] == plan(whole)


# -- by hand ---------------------------------------------------------------------------------------------------------


def by_hand(layers: int) -> Graph:
    """x = input; per layer y = double(x), side = negate(x), x = add(y, side); op ids 3n, 3n + 1, 3n + 2."""
    spec = contiguous((4,), "float32")
    count = 1 + 3 * layers
    values = tuple(Value(i, spec, i, 0) for i in range(count))
    storages = tuple(Storage(i, 16, "activation" if i else "input") for i in range(count))
    ops = []
    for n in range(layers):
        x = 3 * n
        for name, read in (("double", (x,)), ("negate", (x,)), ("add", (x + 1, x + 2))):
            number = len(ops)
            ops.append(
                Op(number, name, "elementwise", "forward", f"h.{n}", read, (number + 1,), ("a", "b")[: len(read)])
            )
    return Graph(values, storages, tuple(ops), inputs=(0,), outputs=(count - 1,))


def test_the_splice_by_hand():
    short = shorten(by_hand(7)).graph
    # layers 0, 1, 2 and 6; the last reads what layer 2 made (value 9) in place of layer 5's
    assert [(op.name, op.module, op.inputs, op.outputs) for op in short.ops[9:]] == [
        ("double", "h.6", (9,), (10,)), ("negate", "h.6", (9,), (11,)), ("add", "h.6", (10, 11), (12,)),
    ]  # fmt: skip
    assert [op.module for op in short.ops[:9]] == ["h.0"] * 3 + ["h.1"] * 3 + ["h.2"] * 3
    assert (short.inputs, short.outputs, len(short.values), len(short.storages)) == ((0,), (12,), 13, 13)


def test_the_copies_by_hand():
    """add of a layer runs with double of the next; negate alone. 7 layers of 3 ops."""
    whole = by_hand(7)
    short = shorten(whole)
    groups = [((0,), ()), ((1,), ()), ((2, 3), ()), ((4,), ()), ((5, 6), ()), ((7,), ()), ((8, 9), ()), ((10,), ()),
              ((11,), ())]  # fmt: skip
    # negate reads what add makes: a group of its own behind it
    expanded = short.expand(groups)
    assert expanded is not None
    assert [group.op_ids for group in expanded] == [
        (0,), (1,), (2, 3), (4,), (5, 6), (7,), (8, 9), (10,), (11, 12), (13,), (14, 15), (16,), (17, 18), (19,), (20,),
    ]  # fmt: skip
    # layer 2's groups, numbers 4 and 5, stand for layers 2 to 5
    assert [group.source for group in expanded] == [0, 1, 2, 3, 4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 8]


def test_what_is_computed_again_moves_along():
    """negate of each layer computes the add before it once more; the first has none before it."""
    short = shorten(by_hand(6))
    groups = [((0,), ()), ((1,), ()), ((2,), ())]
    for layer in (1, 2, 3):
        at = 3 * layer
        groups += [((at,), ()), ((at + 1,), (at - 1,)), ((at + 2,), ())]
    expanded = short.expand(groups)
    assert expanded is not None
    assert [group[:2] for group in expanded if group.recomputes] == [
        ((4,), (2,)), ((7,), (5,)), ((10,), (8,)), ((13,), (11,)), ((16,), (14,)),
    ]  # fmt: skip


def test_groups_are_launched_when_what_they_read_is_there():
    """negate of layer n runs with add of layer n, and double of layer n + 1 with them: double's group comes last by its
    last op, yet add of the same group is what the next negate waits for."""
    whole = by_hand(8)
    short = shorten(whole)
    groups = [((0,), ()), ((1, 2, 3), ()), ((4, 5, 6), ()), ((7, 8, 9), ()), ((10, 11), ())]
    expanded = short.expand(groups)
    assert expanded is not None
    assert_ordered(whole, [group[:2] for group in expanded])
    assert [group.op_ids for group in expanded[1:-1]] == [(3 * n + 1, 3 * n + 2, 3 * n + 3) for n in range(7)]


def test_groups_that_wait_for_each_other_are_refused():
    """double and add of one layer share a group and negate, which add reads, waits for the double of the next."""
    short = shorten(by_hand(7))
    groups = [((3 * n, 3 * n + 2), ()) for n in range(4)] + [((1,), ()), ((4,), ()), ((7,), ()), ((10,), ())]
    expanded = short.expand(groups)
    assert expanded is not None  # no circle: negate needs the layer before only, so it is moved to the front
    assert_ordered(by_hand(7), [group[:2] for group in expanded])
    circle = [((3 * n, 3 * n + 1), ()) for n in range(4)] + [((3 * n + 2,), ()) for n in range(4)]
    circle[1] = ((3, 4, 5), ())
    assert short.expand(circle) is None


def test_equal_calls_are_alike_and_those_that_overlap_otherwise_are_not():
    """Op 0 adds a tensor to another; 1 does too, 2 adds one to itself, 3 has another attribute; 4 to 7 copy 0 to 3."""
    spec = contiguous((4,), "float32")
    values = tuple(Value(i, spec, i, 0) for i in range(13))
    storages = tuple(Storage(i, 16, "activation") for i in range(13))
    reads = [((0, 1), {}), ((1, 2), {}), ((2, 2), {}), ((0, 1), {"alpha": 2})]
    ops = tuple(
        Op(n, "aten.add.Tensor", "elementwise", "forward", "", reads[n % 4][0], (3 + n,), ("self", "other"),
           reads[n % 4][1])
        for n in range(8)
    )  # fmt: skip
    assert [*Graph(values, storages, ops).alike] == [0, 0, 2, 3, 0, 0, 2, 3]
