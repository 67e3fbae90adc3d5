"""Programs of many GPUs, started as one rank of a world: their collectives, by hand."""

import contextlib
import os
from collections import Counter
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

import memwall
from memwall.analysis.communication import message_rows
from memwall.analysis.verdict import verdict
from memwall.core.errors import MemwallError, UsageError
from memwall.ops.launches import Message
from tests.unit.one_call import Call
from tests.unit.small_modules import Mlp

#: batch, tokens, width: the message of a tensor-parallel layer is their product
B, S, H = 2, 16, 64


class Layer(nn.Module):
    """A transformer layer as Megatron cuts it, without attention's core, which sends nothing."""

    def __init__(self, width: int = H):
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.out(torch.relu(self.mix(x)))
        return x + self.down(torch.relu(self.up(x)))


def world_mesh(*names: str):
    return init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=names or None)


def stack(layers: int, **plan) -> nn.Module:
    mesh = world_mesh("tp")
    net = nn.Sequential(*[Layer() for _ in range(layers)])
    for layer in net:
        parallelize_module(layer, mesh["tp"], plan)
    return net


def ranked(make):
    """What a rank makes that starts the group of all."""

    def model():
        dist.init_process_group("nccl")
        return make()

    return model


def profiled(model, *inputs, **options) -> memwall.Profile:
    options = {"mode": "training", "optimizer": None, "cluster": "dgx-h100", "world": 8, **options}
    made = memwall.profile(memwall.Workload(model, inputs), **options)
    assert not dist.is_initialized()
    return made


def sent(made: memwall.Profile) -> Counter:
    """Collective, bytes of its message -> how often."""
    costs = (cost for op, cost in zip(made.graph.ops, made.costs[0], strict=True) if op.op_class == "communication")
    messages = (launch for cost in costs for launch in cost.launches if isinstance(launch, Message))
    return Counter((message.op, message.nbytes) for message in messages)


def test_tensor_parallel_layers_sum_twice_forward_and_twice_backward():
    """The input of the first layer takes no gradient, so that it sums once less."""
    made = profiled(
        lambda: stack(3, mix=ColwiseParallel(), out=RowwiseParallel(), up=ColwiseParallel(), down=RowwiseParallel()),
        torch.zeros(B, S, H),
    )
    assert sent(made) == {("all_reduce", 4 * B * S * H): 3 * 4 - 1}
    by_phase = Counter(op.phase for op in made.graph.ops if op.op_class == "communication")
    assert by_phase == {"forward": 6, "backward": 5}
    # what follows needs the sum: nothing hides it
    sums = [kernel for kernel in made.simulations[0].kernels if kernel.op_class == "communication"]
    assert all(kernel.hidden_s == 0 < kernel.time_s for kernel in sums)
    assert all(op.id in made.graph.ops[op.id + 1].waits for op in made.graph.ops if op.stream)


def test_gradients_are_summed_in_buckets_of_25_mb():
    """16 weights of 4 MiB: a bucket closes when it is full, the first of them at 1 MiB."""

    def model():
        dist.init_process_group("nccl")
        net = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(16)])
        return nn.parallel.DistributedDataParallel(net, device_ids=[int(os.environ["LOCAL_RANK"])])

    made = profiled(model, torch.zeros(8, 1024))
    assert sent(made) == {("all_reduce", 4 << 20): 2, ("all_reduce", 28 << 20): 2}
    buckets = [op for op in made.graph.ops if op.name == "c10d.allreduce_"]
    last = max(op.id for op in made.graph.ops if op.op_class == "contraction")
    assert buckets[0].id < last  # sent while backward goes on
    assert all(op.stream for op in buckets)
    assert sum(kernel.hidden_s for kernel in made.simulations[0].kernels) > 0


def by_accumulator(parameter):
    """As Megatron-LM's DistributedDataParallel and apex do it; the node is kept alive by who gets it."""
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    node.register_hook(lambda *unused: dist.all_reduce(parameter.grad))
    return node


def by_gradient(parameter):
    parameter.register_post_accumulate_grad_hook(lambda summed: dist.all_reduce(summed.grad))


class Hooked(nn.Module):
    """Data parallelism by a hook on each weight."""

    def __init__(self, hook):
        super().__init__()
        dist.init_process_group("nccl")
        self.layers = nn.Sequential(*(Mlp() for _ in range(3)))
        self.held = [hook(parameter) for parameter in self.layers.parameters()]

    def forward(self, x):
        return self.layers(x)


@pytest.mark.defect("36")
@pytest.mark.parametrize("hook", [by_accumulator, by_gradient])
def test_hooks_on_gradients_send_each_once(hook):
    """Hooks on the nodes that add up gradients belong to no tensor, and a module's copy was made without them: data
    parallelism by them sent nothing, unsaid."""
    made = profiled(lambda: Hooked(hook), torch.zeros(8, 64))
    sizes = Counter(("all_reduce", 4 * count) for count in (64 * 256, 256, 256 * 64, 64) for _ in range(3))
    assert sent(made) == sizes
    assert not any("exchanges its trained weights nowhere" in note for note in made.notes)


@pytest.mark.defect("36")
@pytest.mark.parametrize(("mode", "said"), [("training", True), ("inference", False)])
def test_ranks_that_never_hear_of_each_others_gradients_are_said(mode, said):
    """A program of several ranks that exchanges no gradient was modeled without a word."""
    made = profiled(lambda: Hooked(lambda parameter: None), torch.zeros(8, 64), mode=mode)
    assert any("exchanges its trained weights nowhere" in note for note in made.notes) == said


def test_what_leaves_a_gpu_is_its_own_part_on_each_link():
    """Over 8 nodes each GPU sends its 64th to 7 others on the network, then each of its node's parts, 7/8 in all, to
    the others there: 63/64 together, as much as in a ring. Two gathers of 268 MB and the scatter of gradients."""

    def model():
        mesh = world_mesh()
        return fully_shard(nn.Sequential(fully_shard(nn.Linear(8192, 8192, bias=False), mesh=mesh)), mesh=mesh)

    made = profiled(model, torch.zeros(8, 8192), world=64)
    rows = message_rows(made, made.simulations[0])
    assert {row.taken for row in rows} == {"hierarchical Simple"}
    for row in rows:
        assert row.sent_bytes == {"nvlink": row.nbytes * 7 / 8, "network": row.nbytes * 7 / 64}


class Wide(nn.Module):
    """A layer whose products take longer than its weights are sent."""

    def __init__(self, width: int = 2048):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def waited(made: memwall.Profile) -> tuple[float, float, float]:
    """Seconds of the step, of all messages, and of these those that nothing hides."""
    rows = message_rows(made, made.simulations[0])
    return made.simulations[0].totals.time_s, sum(row.whole_s for row in rows), sum(row.exposed_s for row in rows)


def wide(wrap, ahead: int = 0):
    """Six layers, each wrapped, of which as many as ``ahead`` says are gathered ahead, as the program asks for."""

    def model():
        net = nn.Sequential(*(Wide() for _ in range(6)))
        layers = [*net]
        for place, layer in enumerate(layers):
            net[place] = wrap(layer)
        net = wrap(net)
        for place, layer in enumerate(layers * bool(ahead)):
            layer.set_modules_to_forward_prefetch(layers[place + 1 : place + 1 + ahead])
            layer.set_modules_to_backward_prefetch(layers[max(place - ahead, 0) : place][::-1])
        return net

    return waited(profiled(model, torch.zeros(8192, 2048, dtype=torch.bfloat16), dtype="bf16"))


@pytest.mark.defect("6", "39c")
def test_shards_of_no_named_mesh_are_gathered_ahead():
    """torch.distributed asks torch itself for the kind of the machine's device, and was told the CPU: shards without a
    mesh of their own had no streams, and all their messages were waited for.

    What the program names to be gathered ahead hides at least as much as what torch does by itself."""
    step_s, sent_s, exposed_s = wide(fully_shard)
    assert (step_s, sent_s, exposed_s) == wide(lambda module: fully_shard(module, mesh=world_mesh()))
    assert exposed_s < sent_s / 2
    for ahead in (1, 2):  # messages stand beside other kernels then, of which they take multiprocessors
        assert wide(fully_shard, ahead)[2] <= exposed_s * 1.01


def test_flat_shards_wait_as_long_with_and_without_a_device():
    def flat(**options):
        def wrap(module):
            if not dist.is_initialized():
                dist.init_process_group("nccl")
            return FullyShardedDataParallel(module, **options)

        return wide(wrap)

    plain = flat()
    assert plain == flat(device_id=0)
    assert plain[2] < plain[1] / 2


class AsksForAny(nn.Module):
    """A program for whatever accelerator there is."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        device = torch.accelerator.current_accelerator()
        assert torch.get_device_module() is torch.cuda is torch.get_device_module(device)
        assert (torch.accelerator.device_count(), torch.accelerator.memory_allocated()) == (1, 0)
        assert torch.accelerator.get_memory_info()[1] > 70e9
        side, event = torch.Stream(device), torch.Event()
        with torch.accelerator.device_index(0), side:
            y = self.layer(x)
            event.record()
        torch.accelerator.current_stream().wait_event(event)
        return y + 1


@pytest.mark.defect("6")
def test_a_program_for_any_accelerator_finds_cuda():
    """Only some functions of torch.accelerator were answered, and none of what torch.distributed asks beneath them."""
    ops = profiled(AsksForAny, torch.zeros(8, 8), mode="inference", world=None).graph.ops
    assert [(op.stream, op.waits) for op in ops] == [(1, ()), (0, (0,))]


# -- what a program finds ---------------------------------------------------------------------------------------------


def test_a_rank_finds_what_torchrun_says():
    found = {}

    def model():
        dist.init_process_group("nccl")
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        found.update({name: os.environ[name] for name in names})
        found["group"] = dist.get_rank(), dist.get_world_size()
        return nn.Linear(4, 4)

    profiled(model, torch.zeros(2, 4), world=64, rank=11)
    assert found == {
        "RANK": "11", "WORLD_SIZE": "64", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "1",
        "group": (11, 64),
    }  # fmt: skip
    assert "RANK" not in os.environ


def test_groups_of_a_mesh_are_placed_on_nodes():
    """64 ranks as 8 nodes of 8: tensor parallel inside a node, gradients summed over one rank of each."""

    def model():
        mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))
        layer = parallelize_module(Layer(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return fully_shard(layer, mesh=mesh["dp"])

    made = profiled(model, torch.zeros(B, S, H), world=64, rank=11)
    groups = {op.name: op.attributes["group"] for op in made.graph.ops if op.op_class == "communication"}
    assert groups["_c10d_functional.all_reduce"] == "8-15"
    assert groups["c10d._allgather_base_"] == "3-59:8"


def meshed(*sizes):
    init_device_mesh("cuda", sizes)
    return nn.Linear(4, 4)


def without_ranks():
    return meshed(dist.get_world_size() // 8 if dist.is_initialized() else 0, 8)


def of_four():
    dist.init_process_group("nccl", rank=0, world_size=4)
    return nn.Linear(4, 4)


@pytest.mark.parametrize(("model", "options", "said"), [
    (lambda: meshed(8), {"world": 12},
     "12 ranks do not fill the nodes of dgx-h100, which have 8 GPUs: start it with --world 8 or 16"),
    (lambda: meshed(8), {"world": 4}, "a mesh of .8,. does not divide 4 ranks: start it with --world 8"),
    (lambda: meshed(8), {"world": 8, "rank": 8}, "a world of 8 has ranks 0 to 7, not 8"),
    (lambda: meshed(8), {"world": 4, "cluster": "dgx-1-v100", "rank": 3}, "does not divide 4 ranks"),
    (without_ranks, {"world": 4}, "no ranks along an axis of the mesh .*: start it with a larger --world"),
    (of_four, {}, "a process group of 4 ranks, and was started as 8.*--world 4"),
])  # fmt: skip
def test_worlds_that_do_not_fit_are_refused(model, options, said):
    with pytest.raises(UsageError, match=said):
        profiled(model, torch.zeros(2, 4), **options)


# -- pipelines --------------------------------------------------------------------------------------------------------

MICRO_BATCHES = 4


class Stage(nn.Module):
    """A rank of a pipeline: a layer and what it sends, forward and backward."""

    def __init__(self, stated: bool = True):
        super().__init__()
        self.part, rank, world = Layer(), dist.get_rank(), dist.get_world_size()
        example = torch.empty(1, S, H, device="cuda", requires_grad=True)
        shapes = {"input_args": (example,), "output_args": (example,)} if stated else {}
        stage = PipelineStage(self.part, rank, world, torch.device("cuda"), **shapes)
        self.schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda y, target: (y - target).pow(2).mean())

    def forward(self, x):
        given = {0: (x,)}.get(dist.get_rank(), ())
        self.schedule.step(*given, **({"target": x} if dist.get_rank() == dist.get_world_size() - 1 else {}))
        return x


def staged(rank: int, **options) -> memwall.Profile:
    return profiled(
        ranked(lambda: Stage(**options)), torch.zeros(MICRO_BATCHES, S, H), mode="forward", world=4, rank=rank
    )


@pytest.mark.parametrize(("rank", "neighbours"), [(0, 1), (1, 2), (3, 1)])
def test_a_stage_sends_each_micro_batch_and_its_gradient(rank, neighbours):
    """To each neighbour one message a micro-batch, from each one."""
    made = staged(rank)
    assert sent(made) == {("send_recv", 4 * S * H): 2 * MICRO_BATCHES * neighbours}
    products = Counter(op.name for op in made.graph.ops)["aten.mm"]
    # four forward, four for weights, four for inputs, of which the first stage's own input takes none
    assert products == MICRO_BATCHES * (12 if rank else 11)


def test_stages_without_shapes_say_what_they_need():
    with pytest.raises(UsageError, match=r"stage 1 of 4 takes its shapes from the stage before it.*input_args"):
        staged(1, stated=False)


def test_ranks_that_do_the_same_are_one():
    def model():
        return stack(1, up=ColwiseParallel(), down=RowwiseParallel())

    made = profiled(model, torch.zeros(B, S, H))
    # all but the names of the ranks is alike, whoever is traced, in a world of any size
    others = [profiled(model, torch.zeros(B, S, H), rank=5), made]
    calls = [[(op.name, op.stream, op.waits, op.inputs, op.outputs) for op in each.graph.ops] for each in others]
    assert calls[0] == calls[1]


def test_ranks_of_other_groups_are_traced_one_after_the_other():
    """DTensor remembers where results lie by meshes, and finds those of two traces to be equal."""

    def model():
        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("pp", "tp"))
        return parallelize_module(Layer(), mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

    made = [profiled(model, torch.zeros(B, S, H), rank=rank, mode="inference") for rank in (0, 4)]
    groups = [[op.attributes["group"] for op in each.graph.ops if op.op_class == "communication"] for each in made]
    assert groups == [["0-3"], ["4-7"]]


def test_a_schedule_in_training_goes_backward_itself():
    """The optimizer steps after it; gradients and its state are held."""

    options = {"mode": "training", "world": 4, "rank": 1, "optimizer": "adamw"}
    made = profiled(ranked(Stage), torch.zeros(MICRO_BATCHES, S, H), **options)
    phases = Counter(op.phase for op in made.graph.ops if op.name == "aten.mm")
    assert phases == {"forward": 4 * MICRO_BATCHES, "backward": 8 * MICRO_BATCHES}
    held = made.graph.role_bytes
    assert held["gradient"] == held["parameter"] == held["optimizer_state"] / 2 > 0
    assert made.graph.ops[-1].phase == "optimizer"


def test_optimizers_of_many_shards_step_as_torch_would():
    """Parameters that are alike are decided once: what runs is what runs where each is decided."""
    from memwall.frontend.torch import recorded_step

    plan = {"mix": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}

    def once():
        return profiled(lambda: stack(3, **plan), torch.zeros(B, S, H), optimizer="adamw").graph

    def each():
        with patch.object(recorded_step, "alike_once", contextlib.nullcontext):
            return once()

    assert once() == each()


def test_a_module_goes_to_the_gpu_of_a_number():
    made = profiled(lambda: nn.Linear(4, 4).to(int(os.environ["LOCAL_RANK"]), torch.float16),
                    torch.zeros(2, 4, dtype=torch.float16), mode="inference", rank=3)  # fmt: skip
    assert {value.spec.dtype for value in made.graph.values} == {"float16"}


@pytest.mark.parametrize(("cluster", "said"), [("dgx-h100", "wait for the network, 50.00 GB/s each way"), (None, "")])
def test_a_verdict_names_the_link_that_is_waited_for(cluster, said):
    made = profiled(
        ranked(lambda: Summed("at once")),
        torch.zeros(1 << 14, H),
        mode="inference",
        cluster=cluster,
        world=16,
        gpu="h100-sxm",
    )
    assert said in verdict(made, made.simulations[0]).text
    assert not any("without" in note for note in made.notes)


def test_a_shard_is_that_of_its_rank_however_many_there_are():
    """Ten rows over 4, 16 and 4,096 ranks: three a rank and the last has one; one each of the first ten."""

    def rows(world, rank):
        def model():
            return fully_shard(nn.Linear(64, 10, bias=False), mesh=world_mesh())

        made = profiled(model, torch.zeros(8, 64), mode="inference", world=world, rank=rank)
        spec = made.graph.values[made.graph.parameters[0]].spec
        return spec.numel // 64

    assert [rows(4, rank) for rank in (0, 2, 3)] == [3, 3, 1]
    assert [rows(16, rank) for rank in (9, 10)] == [1, 0]
    assert [rows(4096, rank) for rank in (9, 4088)] == [1, 0]


def symmetric(x):
    from torch.distributed._symmetric_memory import empty

    return x + empty(8, H, device="cuda")


@pytest.mark.parametrize(("asks", "said"), [
    (lambda x: x * torch.cuda.nccl.version()[0], "leave torch.cuda.nccl out"),
    (symmetric, "call the collectives of torch.distributed instead"),
    (lambda x: dist.all_reduce(x, group=dist.new_group(list(range(12)))),
     "ranks 0-11 are not equally many on each node of dgx-h100, which has 8 GPUs: make groups that are"),
    (lambda x: dist.send(x, dst=99), "rank 99 of a group of 64 ranks: .* start it with a larger --world"),
])  # fmt: skip
def test_what_no_trace_answers_is_said_with_what_helps(asks, said):
    with pytest.raises(MemwallError, match=said):
        profiled(ranked(lambda: Call(asks)), torch.zeros(8, H), mode="inference", world=64)


def together(x):
    with dist._coalescing_manager(device=x.device):
        dist.all_reduce(x)
        dist.all_reduce(torch.empty(8, 2 * H, device=x.device))


def over_gloo(x):
    group = dist.new_group(backend="gloo")
    assert (dist.get_backend(), dist.get_backend(group)) == ("nccl", "gloo")
    dist.all_reduce(x, group=group)


@pytest.mark.parametrize(("call", "messages"), [
    (lambda x: dist.barrier(), {("all_reduce", 4): 1}),
    (together, {("all_reduce", 4 * 8 * 3 * H): 1}),
    (over_gloo, {("all_reduce", 4 * 8 * H): 1}),
    (lambda x: dist.reduce(x, 0), {("broadcast", 4 * 8 * H): 1}),
    (lambda x: dist.all_gather([torch.empty_like(x) for _ in range(8)], x), {("all_gather", 4 * 64 * H): 1}),
])  # fmt: skip
def test_every_way_to_call_is_a_message(call, messages):
    made = profiled(ranked(lambda: Call(lambda x: (call(x), x)[1])), torch.zeros(8, H), mode="inference")
    assert sent(made) == messages and made.coverage.unmodeled == ()


def test_a_gather_receives_the_parts_of_seven_others():
    def gathers(x):
        dist.gather(x, [torch.empty_like(x) for _ in range(dist.get_world_size())])
        return x

    made = profiled(ranked(lambda: Call(gathers)), torch.zeros(8, H), mode="inference")
    assert made.coverage.unmodeled == () and sent(made) == {("all_to_all", 8 * 4 * 8 * H): 1}
    assert made.simulations[0].kernels[-1].bytes == 8 * 4 * 8 * H  # its own is read, seven are written


def test_a_collective_without_a_formula_is_named_and_charged():
    library = torch.library.Library("exchanges", "FRAGMENT")
    library.define("shuffle(Tensor x) -> Tensor")
    library.impl("shuffle", torch.empty_like, "Meta")

    made = profiled(ranked(lambda: Call(lambda x: torch.ops.exchanges.shuffle(x))), torch.zeros(8, H), mode="inference")
    assert made.coverage.unmodeled == ("exchanges.shuffle",)
    assert made.simulations[0].kernels[-1].bytes == 2 * 4 * 8 * H


# -- handles and streams ----------------------------------------------------------------------------------------------


class Summed(nn.Module):
    """A sum that is under way while another product is computed."""

    def __init__(self, wait: str):
        super().__init__()
        self.a, self.b, self.wait = nn.Linear(H, H, bias=False), nn.Linear(H, H, bias=False), wait

    def forward(self, x):
        y = self.a(x)
        work = dist.all_reduce(y, async_op=self.wait != "at once")
        if self.wait == "before":
            work.wait()
        z = self.b(x)
        if self.wait == "after":
            work.wait()
        return y + z


@pytest.mark.parametrize(
    ("wait", "stream", "waiting"),
    [("at once", 0, {}), ("before", 1, {"aten.mm": (1,)}), ("after", 1, {"aten.add.Tensor": (1,)}),
     ("never", 1, {"aten.add.Tensor": (1,)})],
)  # fmt: skip
def test_a_program_waits_where_it_says(wait, stream, waiting):
    ops = profiled(ranked(lambda: Summed(wait)), torch.zeros(8, H), mode="inference").graph.ops
    assert [op.name for op in ops] == ["aten.mm", "c10d.allreduce_", "aten.mm", "aten.add.Tensor"]
    assert (ops[1].stream, ops[1].waits) == (stream, (0,) if stream else ())
    assert {op.name: op.waits for op in ops[2:] if op.waits} == waiting


class RingStep(nn.Module):
    """A message to one rank and one from another, or back from the same, called together or one by one."""

    def __init__(self, source: int, together: bool = True):
        super().__init__()
        dist.init_process_group("nccl")
        self.source, self.together = source, together

    def forward(self, x):
        received = torch.empty_like(x)
        if self.together:
            calls = [dist.P2POp(dist.isend, x, 1), dist.P2POp(dist.irecv, received, self.source)]
            works = dist.batch_isend_irecv(calls)
        else:
            works = [dist.isend(x, 1), dist.irecv(received, self.source)]
        for work in works:
            work.wait()
        return received + x


@pytest.mark.defect("38")
@pytest.mark.parametrize("source", [7, 1])
def test_messages_in_and_out_take_the_time_of_one(source):
    """A link carried one message at a time, whichever way it went: what NCCL sends and receives in one kernel over a
    full-duplex link took twice as long."""
    made = profiled(lambda: RingStep(source), torch.zeros(16, 1024, 1024), mode="inference")
    _, sent_s, exposed_s = waited(made)
    assert exposed_s == pytest.approx(sent_s / 2, rel=1e-3)
    assert made.step_bound_s(made.simulations[0]) <= made.simulations[0].totals.time_s


def test_messages_of_two_ranks_one_by_one_wait_for_each_other():
    """Two ranks have one communicator, in which calls of their own run one after another."""
    made = profiled(lambda: RingStep(1, together=False), torch.zeros(16, 1024, 1024), mode="inference")
    _, sent_s, exposed_s = waited(made)
    assert exposed_s == pytest.approx(sent_s, rel=1e-3)


def test_messages_between_two_ranks_name_both():
    def passes(x):
        got = torch.empty_like(x)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 7), dist.P2POp(dist.irecv, got, 9)]):
            work.wait()
        return got + x

    made = profiled(ranked(lambda: Call(passes)), torch.zeros(8, H), mode="inference", world=16, rank=8)
    groups = {op.name: op.attributes["group"] for op in made.graph.ops if op.op_class == "communication"}
    assert groups == {"c10d.send": "7-8", "c10d.recv_": "8-9"}
    send, receive = (kernel for kernel in made.simulations[0].kernels if kernel.op_class == "communication")
    assert send.link_s > receive.link_s  # to another node, and inside one


def test_a_profile_of_streams_is_read_as_it_was_saved(tmp_path):
    made = profiled(ranked(lambda: Summed("after")), torch.zeros(8, H), mode="inference")
    made.save(tmp_path / "rank.json")
    read = memwall.Profile.load(tmp_path / "rank.json")
    assert read.graph == made.graph
    assert [k.time_s for k in read.simulations[0].kernels] == [k.time_s for k in made.simulations[0].kernels]
    assert read.simulations[0].gpu == made.simulations[0].gpu
    assert read.schedule(read.gpus[0], "eager").totals == made.simulations[0].totals


class Classes(nn.Module):
    """A loss over logits of which each of 8 ranks has 8 of 64 classes; ``context`` is entered for forward alone."""

    def __init__(self, context):
        super().__init__()
        self.out, self.context = nn.Linear(H, 64, bias=False), context

    def forward(self, x):
        with self.context():
            wanted = torch.zeros(B * S, dtype=torch.long, device=x.device)
            return nn.functional.cross_entropy(self.out(x).flatten(0, 1), wanted)


def classes(context):
    plan = {"out": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)}
    return lambda: parallelize_module(Classes(context), init_device_mesh("cuda", (8,)), plan)


def test_a_loss_of_cut_classes_sends_three_numbers_a_token():
    """The largest logit, the sum of exponentials and the own class's logit; the input takes no gradient."""
    with loss_parallel():
        made = profiled(classes(contextlib.nullcontext), torch.zeros(B, S, H))
    assert sent(made) == {("all_reduce", 4 * B * S): 3}


def test_a_loss_of_cut_classes_in_forward_alone_is_said_with_its_fix():
    with pytest.raises(UsageError, match=r"loss_parallel holds in backward too.*enter it in model\(\)"):
        profiled(classes(loss_parallel), torch.zeros(B, S, H))
