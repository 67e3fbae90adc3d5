"""What the host does for each kernel, and when it is late, by hand."""

from dataclasses import replace

import pytest

from memwall.core.graph import Graph, Op, Storage, Value, contiguous
from memwall.hardware.host import Host, HostWork
from memwall.simulate.issue import work_of
from memwall.simulate.launch_queue import QueuedKernel, queue, step_in_loop


def net(gradients=False, free_calls=None, phases=("forward",) * 3, classes=("contraction", "elementwise", "movement")):
    """Storages: 0 an input, 1 a parameter, 2 to 4 results; the last op writes into the input."""
    roles = ("input", "parameter", "activation", "activation", "activation")
    storages = tuple(Storage(i, 4, role) for i, role in enumerate(roles))
    values = tuple(Value(i, contiguous((1,), "float32"), i, 0) for i in range(5))
    rows = [("net.fc", (0, 1), (2,)), ("net.act.inner", (2,), (3, 4)), ("", (0,), (0,))]
    ops = tuple(
        Op(i, "aten.x", op_class, phase, module, reads, writes)
        for i, ((module, reads, writes), phase, op_class) in enumerate(zip(rows, phases, classes, strict=True))
    )
    return Graph(values, storages, ops, (0,), (1,), (), free_calls or {}, gradients=gradients)


KERNELS = [((0,), 1), ((1,), 3), ((2,), 1)]


def test_the_work_of_eager_ops():
    work = work_of(net(free_calls={"aten.view.default": 6, "aten.empty.memory_format": 3}), "eager", KERNELS)
    assert work == [
        # net and fc are called; 6 views and 3 allocations among 3 ops; one result of its own
        HostWork(op=1, module=2, view=2, launch=1, allocation=2, cublas=1),
        HostWork(op=1, module=2, view=2, launch=3, allocation=3),  # act and inner; two results
        HostWork(op=1, module=0, view=2, launch=1, allocation=1),  # in place
    ]


def test_autograd_makes_a_node_for_what_depends_on_a_parameter_and_runs_each_in_backward():
    assert [each.node for each in work_of(net(), "eager", KERNELS)] == [0, 0, 0]
    assert [each.node for each in work_of(net(gradients=True), "eager", KERNELS)] == [1, 1, 0]
    training = net(phases=("forward", "forward", "backward"))
    assert [each.node for each in work_of(training, "eager", KERNELS)] == [1, 1, 1]
    assert [each.module for each in work_of(training, "eager", KERNELS)] == [2, 2, 0]


@pytest.mark.parametrize("policy", ["eager", "memwall"])
def test_each_call_of_backward_is_counted_at_its_first_kernel(policy):
    twice = net(phases=("backward", "backward", "forward"))
    assert [each.backward for each in work_of(twice, policy, KERNELS)] == [1, 0, 0]
    microbatches = net(phases=("backward", "forward", "backward"))
    assert [each.backward for each in work_of(microbatches, policy, KERNELS)] == [1, 0, 1]


@pytest.mark.parametrize("policy", ["eager", "memwall"])
def test_a_program_of_jax_has_no_modules_no_autograd_and_is_called_once(policy):
    graph = net(gradients=True, phases=("forward", "backward", "optimizer"))
    graph = replace(graph, ops=tuple(replace(op, name="lax.x") for op in graph.ops))
    work = work_of(graph, policy, KERNELS)
    assert {(each.module, each.node, each.backward, each.compiled_parameters) for each in work} == {(0, 0, 0, 0)}
    assert sum(each.compiled_call for each in work) == (policy == "memwall")


def test_libraries_are_set_up():
    work = work_of(net(classes=("convolution", "contraction", "elementwise")), "eager", KERNELS)
    assert [(each.cudnn, each.cublas) for each in work] == [(1, 0), (0, 1), (0, 0)]


def test_compiled_code_is_called_once_a_phase():
    graph = net(phases=("forward", "forward", "backward"))
    assert work_of(graph, "memwall", KERNELS) == [
        HostWork(node=1, compiled_call=1, compiled_parameters=1, compiled_kernel=1), HostWork(compiled_kernel=3),
        HostWork(node=1, backward=1, compiled_call=1, compiled_kernel=1),
    ]  # fmt: skip
    # a parameter is guarded with gradients and without, and autograd sees no more than one op
    assert work_of(net(), "inductor", KERNELS)[0] == HostWork(compiled_call=1, compiled_parameters=1, compiled_kernel=1)
    assert work_of(net(gradients=True), "inductor", KERNELS)[0].node == 1
    nothing_guarded = replace(net(), parameters=())
    assert work_of(nothing_guarded, "inductor", KERNELS)[0] == HostWork(compiled_call=1, compiled_kernel=1)
    assert work_of(net(), "ideal", KERNELS)[1] == HostWork(op=1, launch=3)


def test_what_no_compiled_graph_holds_is_issued_as_without_a_compiler():
    inside = work_of(net(), "inductor", KERNELS, outside={1, 2})
    assert inside == [work_of(net(), "inductor", KERNELS)[0], HostWork(op=1, module=3, launch=3, allocation=2),
                      HostWork(op=1, launch=1)]  # fmt: skip
    whole = net(phases=("forward", "backward", "backward"))
    assert [each.backward for each in work_of(whole, "memwall", KERNELS, outside={1})] == [0, 1, 0]
    assert work_of(whole, "memwall", KERNELS, outside={0, 1, 2}) == work_of(whole, "eager", KERNELS)


def test_a_cuda_graph_asks_for_nothing_or_for_its_replay():
    assert work_of(net(), "eager", KERNELS, "graph") == [HostWork()] * 3
    assert work_of(net(), "memwall", KERNELS, "graph") == [HostWork(replay=1), HostWork(), HostWork()]
    assert work_of(net(), "eager", KERNELS, "replay") == [HostWork(replay=1), HostWork(), HostWork()]
    assert work_of(net(), "memwall", KERNELS, "alone") == [HostWork()] * 3


def test_each_product_of_a_loop_is_a_call():
    looped = net(classes=("contraction", "elementwise", "elementwise"))
    first = replace(looped.ops[0], attributes={"looped": True})
    found = work_of(replace(looped, ops=(first, *looped.ops[1:])), "eager", [((0,), 4)])
    # net and fc are called; three views, a choice of cuBLAS's kernel and a launch for each of four products
    assert found == [HostWork(op=4, module=2, view=12, launch=4, allocation=1, cublas=4)]
    # compiled code calls the same loop
    assert work_of(replace(looped, ops=(first, *looped.ops[1:])), "memwall", [((0,), 4)]) == found


def test_of_several_calls_the_first_launch_waits_for_one():
    host = Host("x", op_s=1.0, view_s=2.0, launch_s=3.0, cublas_s=4.0)
    # a call takes 1 + 3 * 2 + 3 + 4
    assert host.split_s(HostWork(op=4, view=12, launch=4, cublas=4)) == (14, 3 * 14, 0)


def test_the_gpu_waits_for_what_is_issued_after_a_result_that_the_host_reads():
    # issued at 1, runs until 11; the host goes on then, and its next kernel starts at 13
    read = [QueuedKernel(1, 10, awaited=True), QueuedKernel(2, 5)]
    assert queue(read) == ([1, 2], 18)
    assert queue([step._replace(awaited=False) for step in read]) == ([1, 0], 16)
    # in a loop the GPU runs its last kernel of 5 while the host issues the first of the next step, in 1
    assert step_in_loop(read) == ([0, 2], 17)


def test_a_lone_call_starts_on_an_idle_gpu():
    # issued at 5, 10 and 15; the first ends at 7, the second at 30
    assert queue([QueuedKernel(5, 2), QueuedKernel(5, 20), QueuedKernel(5, 1)]) == ([5, 3, 0], 31)


def test_later_launches_of_an_op_are_issued_while_its_first_ones_run():
    # 4 launches at 5, 8, 11 and 14; the GPU needs 1 each: the last ends at 15
    assert queue([QueuedKernel(5, 4, 9, 4)]) == ([11], 15)
    # the GPU needs 10 each: it never waits again
    assert queue([QueuedKernel(5, 40, 9, 4)]) == ([5], 45)


def test_a_step_in_a_loop_takes_the_longer_of_host_and_gpu():
    assert step_in_loop([QueuedKernel(5, 2), QueuedKernel(5, 20), QueuedKernel(5, 1)]) == ([0, 0, 0], 23)
    # 15 of the host, 6 of the GPU; the last kernel of the step before ends 4 after its issue
    waits, time_s = step_in_loop([QueuedKernel(5, 1), QueuedKernel(5, 1), QueuedKernel(5, 4)])
    assert (waits, time_s) == ([1, 4, 4], 15)
    assert step_in_loop([]) == ([], 0)


def test_a_lone_replay_returns_after_its_kernels_or_after_its_call():
    # launched after 31 of 62: kernels of 20 are done at 51, and the call at 62; those of 50 at 81
    assert queue([QueuedKernel(31, 15, after_s=31), QueuedKernel(0, 5)]) == ([31, 11], 62)
    assert queue([QueuedKernel(31, 40, after_s=31), QueuedKernel(0, 10)]) == ([31, 0], 81)
    assert queue([]) == ([], 0)


def test_what_follows_a_launch_runs_beside_the_kernel_and_before_the_next_launch():
    # launched at 6 and 14, back at 8 and 16; the kernels end at 7 and 15
    assert queue([QueuedKernel(6, 1, after_s=2), QueuedKernel(6, 1, after_s=2)]) == ([6, 8], 16)
    assert queue([QueuedKernel(6, 1, after_s=2), QueuedKernel(6, 9, after_s=2)]) == ([6, 7], 23)


@pytest.mark.parametrize(("launch", "time_us"), [("eager", 30), ("call", 32), ("graph", 6), ("alone", 6)])
def test_a_schedule_by_how_it_is_issued(launch, time_us):
    from memwall.fusion import eager_plan
    from memwall.ops import Cost
    from memwall.simulate.schedule import simulate
    from tests.unit.fusion_graphs import round_gpu

    graph, gpu = net(), round_gpu(dispatch_s=10e-6)  # 2 us a launch
    schedule = simulate(graph, eager_plan(graph, [Cost({}, 0, 0)] * 3), gpu, launch=launch)
    assert schedule.launch == launch
    assert schedule.totals.time_s == pytest.approx(time_us * 1e-6)


def test_the_interval_is_as_wide_as_hosts_differ():
    from memwall.fusion import eager_plan
    from memwall.ops import Cost
    from memwall.simulate.schedule import simulate
    from tests.unit.fusion_graphs import round_gpu

    gpu = round_gpu(host=Host("some", op_s=10e-6, low=0.5, high=3.0))
    graph = net()
    totals = simulate(graph, eager_plan(graph, [Cost({}, 0, 0)] * 3), gpu).totals
    # half of 30 us is still longer than the GPU's 6 us
    assert totals.time_s == pytest.approx(30e-6)
    assert totals.low_s == pytest.approx(15e-6, rel=0.05) and totals.high_s == pytest.approx(90e-6, rel=0.05)
