"""The launch queue, L2 residency, the roofline and the memory peak, on graphs small enough for hand arithmetic."""

from dataclasses import replace

import pytest

from memwall.core.graph import Graph, Op, Pipe, Storage, Value, contiguous
from memwall.fusion import eager_plan
from memwall.hardware.lookup import load_gpu
from memwall.ops import Cost
from memwall.ops.launches import Plain
from memwall.simulate.memory import KINDS, MemoryPeak, memory_levels, memory_peak, reserved_bytes, reuse_distances
from memwall.simulate.schedule import simulate
from tests.unit.fusion_graphs import round_gpu

FP16 = Pipe("tensor", "float16")


def gpu(**changes):
    """A GPU with round numbers: 100 TFLOP/s, 1 TB/s, 4 MB of L2 at 10 TB/s, all of it achievable."""
    peaks = {FP16: 100e12, Pipe("vector", "float32"): 10e12}
    return round_gpu(**{"peak_flop_per_s": peaks, "l2_bytes": 4_000_000, "dispatch_s": 5e-6, **changes})


def chain(sizes, costs=None, op_class="elementwise", roles=None):
    """Ops in a row: op i reads storage i and writes storage i+1; sizes in bytes (one per storage)."""
    storages = tuple(
        Storage(i, n, (roles or {}).get(i, "input" if i == 0 else "activation")) for i, n in enumerate(sizes)
    )
    values = tuple(Value(i, contiguous((n,), "int8"), i, 0) for i, n in enumerate(sizes))
    ops = tuple(Op(i, f"test.op{i}", op_class, "forward", "", (i,), (i + 1,), ("x",)) for i in range(len(sizes) - 1))
    graph = Graph(values, storages, ops, inputs=(0,), outputs=(len(sizes) - 1,))
    costs = tuple(costs or (Cost({}, sizes[i], sizes[i + 1]) for i in range(len(sizes) - 1)))
    return graph, eager_plan(graph, costs)


def run(sizes, costs=None, machine=None, **options):
    graph, plan = chain(sizes, costs, **options)
    return simulate(graph, plan, machine or gpu())


def test_a_big_copy_takes_its_bytes_over_the_bandwidth():
    (kernel,) = run([500_000_000, 500_000_000]).kernels
    assert kernel.memory_s == pytest.approx(1e-3)  # 1 GB at 1 TB/s
    assert kernel.bound_s == pytest.approx(1e-3)
    assert kernel.time_s == pytest.approx(1e-3 + 2e-6)  # and the launch floor: issued while the step before it ran
    assert kernel.limited_by == "bandwidth"


def test_a_matrix_product_is_limited_by_compute():
    cost = Cost({FP16: 200_000_000_000}, 1_000_000, 1_000_000)
    (kernel,) = run([1_000_000, 1_000_000], [cost], op_class="contraction").kernels
    assert kernel.compute_s == pytest.approx(2e-3)  # 200 GFLOP at 100 TFLOP/s
    assert kernel.limited_by == "compute"
    assert run([1_000_000, 1_000_000], [cost], op_class="contraction").totals.mfu == pytest.approx(2e-3 / kernel.time_s)


def test_what_fits_l2_is_bound_by_the_l2s_bandwidth():
    (kernel,) = run([1_000_000, 1_000_000]).kernels
    assert kernel.bound_s == pytest.approx(2e-7)  # 2 MB at 10 TB/s


def test_extra_passes_enter_the_time_and_not_the_bound():
    cost = Cost({}, 500_000_000, 500_000_000, launches=(Plain(read_bytes=1_500_000_000, write_bytes=500_000_000),))
    (kernel,) = run([500_000_000, 500_000_000], [cost]).kernels
    assert kernel.bound_s == pytest.approx(1e-3)
    assert kernel.memory_s == pytest.approx(2e-3)
    assert kernel.bytes == 1_000_000_000


def test_achievable_fractions_slow_the_time_and_not_the_bound():
    machine = gpu(achievable={"dram": 0.8, "tensor.float16": 0.5, "vector.float32": 1.0})
    (kernel,) = run([500_000_000, 500_000_000], machine=machine).kernels
    assert (kernel.bound_s, kernel.memory_s) == (pytest.approx(1e-3), pytest.approx(1.25e-3))


def test_a_run_of_tiny_ops_waits_for_the_cpu():
    kernels = run([1_000] * 101).kernels
    # the GPU needs about 2 us for each and the CPU issues one every 5 us: each waits about 3 us
    assert {k.limited_by for k in kernels} == {"overhead"}
    assert sum(k.time_s for k in kernels) == pytest.approx(100 * 5e-6)  # one step after another is what the CPU needs


def test_the_timings_of_a_schedule_are_those_of_its_kernels():
    """Long kernels that hide the CPU, and tiny ones that wait for it; one alone is the same as among all."""
    for machine in (gpu(), gpu(dispatch_s=1e-3)):
        schedule = run([10**9, 100, 100, 10**7, 100], machine=machine)
        alone = [schedule.kernels[index] for index in (0, 1, -1)]
        kernels = [*schedule.kernels]
        assert any(kernel.wait_s for kernel in kernels) == (machine != gpu())
        assert alone == [kernels[0], kernels[1], kernels[-1]]
        expected = [(kernel.limited_by, kernel.time_s, kernel.wait_s) for kernel in kernels]
        assert schedule.timings == replace(schedule, kernels=tuple(kernels)).timings == expected
    with pytest.raises(IndexError):
        run([100, 100]).kernels[9]


def test_the_cpu_runs_ahead_of_long_kernels():
    kernels = run([500_000_000, 500_000_000, 1_000, 1_000]).kernels
    assert kernels[1].overhead_s == pytest.approx(2e-6)  # issued long before: only the launch floor
    assert kernels[2].overhead_s == pytest.approx(2e-6)


def test_an_input_just_written_is_read_from_l2():
    sizes = [1_000_000, 1_000_000, 1_000_000]
    first, second = run(sizes).kernels
    assert first.memory_s == pytest.approx(2e-6)  # 2 MB from and to DRAM
    assert second.memory_s == pytest.approx(1e-6 + 1e-7 / 0.45)  # 1 MB written, 1 MB read at 45 % of L2's 10 TB/s


def test_what_is_larger_than_l2_is_not():
    _, second = run([10_000_000, 10_000_000, 10_000_000]).kernels
    assert second.memory_s == pytest.approx(2e-5)


def test_reuse_distance_is_what_moved_since():
    graph, plan = chain([100, 200, 300, 400])
    # op 1 reads storage 1, touched by op 0, which moved 100 + 200 bytes; op 2 reads storage 2: 200 + 300
    assert reuse_distances(graph, plan) == [(), ((200, 300),), ((300, 500),)]


def test_what_a_later_launch_wrote_is_as_old_as_that_launch():
    """A convolution reads 100 bytes and writes 200; a pass behind it adds the bias in place, 200 read and 200 written:
    of the 700 bytes moved, the results lie 400 back, and the input 700. A pass over 3 + 3 bytes wrote no results."""
    product, bias, small = (Plain(read_bytes=r, write_bytes=w) for r, w in ((100, 200), (200, 200), (3, 3)))
    for behind, distance in ((bias, 400), (small, 306)):
        graph, plan = chain([100, 200, 300], [Cost({}, 100, 200, launches=(product, behind)), Cost({}, 200, 300)])
        assert reuse_distances(graph, plan) == [(), ((200, distance),)]


def test_a_result_of_which_the_bias_was_added_last_is_in_l2():
    """A result of 1 MB, made from 8 MB and then read and written by a second launch: L2 holds 4 MB, and 11 MB moved."""
    product, bias = Plain(read_bytes=8_000_000, write_bytes=1_000_000), Plain(read_bytes=10**6, write_bytes=10**6)
    costs = [Cost({}, 8_000_000, 1_000_000, launches=(product, bias)), Cost({}, 1_000_000, 1_000_000)]
    _, second = run([8_000_000, 1_000_000, 1_000_000], costs).kernels
    assert second.memory_s == pytest.approx(1e-6 + 1e-7 / 0.45)  # 1 MB written, 1 MB read at 45 % of L2's 10 TB/s


def test_memory_peak_by_hand():
    # storages: input 100, a 200, b 300, c 400 (the output). While op 1 runs, input, a and b are alive: 600;
    # while op 2 runs, a is gone: 100 + 300 + 400 = 800
    graph, plan = chain([100, 200, 300, 400])
    assert memory_peak(graph, plan).total == 800


def test_parameters_gradients_and_state_are_split():
    roles = {0: "parameter", 1: "gradient", 2: "optimizer_state", 3: "activation"}
    graph, plan = chain([100, 200, 300, 400], roles=roles)
    peak = memory_peak(graph, plan)
    assert (peak.parameters, peak.gradients, peak.optimizer_state, peak.activations) == (100, 200, 300, 400)


def in_phases(phases, first="input"):
    """Op i reads storage i and writes storage i + 1, of 100 bytes each, in the phases given; nothing is returned."""
    graph, _ = chain([100] * (len(phases) + 1), roles={0: first})
    ops = [replace(op, phase=phase) for op, phase in zip(graph.ops, phases, strict=True)]
    graph = replace(graph, ops=tuple(ops), outputs=())
    return graph, eager_plan(graph, [Cost({}, 100, 100)] * len(phases))


def test_activations_are_what_the_forward_pass_leaves_for_the_backward_pass():
    # input -> a -> b | -> gradient of b -> of a | -> step: a dies in its own phase, b is read by the backward pass
    graph, plan = in_phases(["forward", "forward", "backward", "backward", "optimizer"])
    # the levels are (before, then while and after each op): while op 1 runs, a and b are alive
    levels = [dict(zip(KINDS, level, strict=True)) for level in memory_levels(graph, plan)]
    assert (levels[3]["activations"], levels[3]["temporaries"], levels[3]["inputs"]) == (100, 100, 100)
    assert (levels[5]["activations"], levels[5]["temporaries"]) == (100, 100)  # b, and the gradient of b
    assert (levels[9]["activations"], levels[9]["temporaries"]) == (0, 200)  # what the step reads and writes


def test_inference_has_activations_and_copies_of_parameters_are_none():
    graph, plan = in_phases(["forward"] * 3, "parameter")
    assert memory_peak(graph, plan) == MemoryPeak(parameters=100, temporaries=200, kernel=1)
    graph, plan = in_phases(["forward"] * 3)
    assert memory_peak(graph, plan) == MemoryPeak(inputs=100, activations=200, kernel=1)


def test_what_a_process_needs_beyond_its_tensors():
    # 15.39 GB and, assumed, 0.5 GB of context and 2 % of the peak for the allocator
    assert reserved_bytes(gpu(), 15_390_000_000) == 500_000_000 + 307_800_000
    for capacity, fits in ((16_197_800_000, True), (16_197_799_999, False)):
        assert run([15_000_000_000, 390_000_000], machine=gpu(dram_bytes=capacity)).fits is fits


def test_mfu_is_of_the_pipe_that_does_the_flops():
    # bfloat16 on 10 TFLOP/s of float32 lanes: 10 GFLOP are 1 ms of them
    cost = Cost({Pipe("tensor", "bfloat16"): 10_000_000_000}, 1_000_000, 1_000_000)
    machine = gpu(launch_overhead_s=1e-3, dispatch_s=0.0)
    assert run([1_000_000, 1_000_000], [cost], machine, op_class="contraction").totals.mfu == pytest.approx(0.5)


def test_an_empty_graph_takes_no_time():
    graph = Graph((), (), ())
    totals = simulate(graph, eager_plan(graph, ()), gpu()).totals
    assert (totals.time_s, totals.mfu, totals.kernels) == (0, 0, 0)


def test_what_does_not_fit_is_said():
    assert not run([17_000_000_000, 1_000]).fits
    assert run([15_000_000_000, 1_000]).fits


def test_a_convolution_that_winograd_may_run_is_bound_by_a_quarter_on_vector_engines():
    fp32 = Pipe("tensor", "float32")  # falls back to the vector engine: 10 TFLOP/s
    flops = {fp32: 40_000_000_000}
    cost = Cost(flops, 1_000, 1_000, launches=(Plain(flops=flops, spared_flops=30_000_000_000),))
    (kernel,) = run([1_000, 1_000], [cost], op_class="convolution").kernels
    assert kernel.bound_s == pytest.approx(1e-3)  # 10 GFLOP at 10 TFLOP/s
    assert kernel.compute_s == pytest.approx(4e-3)
    flops = {FP16: 400_000_000_000}
    half = Cost(flops, 1_000, 1_000, launches=(Plain(flops=flops, spared_flops=300_000_000_000),))
    assert run([1_000, 1_000], [half]).kernels[0].bound_s == pytest.approx(4e-3)  # tensor cores run it direct


def test_a_tpu_moves_padded_arrays_and_waits_for_no_host():
    """100 numbers fill 104 sublanes, 200,064 of 200,000 the lanes: 1.04 x 160 MB at 85 % of 819 GB/s, and 1.2 us."""
    rows = contiguous((200_000, 100), "float32")
    storages = tuple(Storage(i, 80_000_000, role) for i, role in enumerate(("input", "activation")))
    values = tuple(Value(i, rows, i, 0) for i in range(2))
    ops = (Op(0, "test.op", "elementwise", "forward", "", (0,), (1,), ("x",)),)
    graph = Graph(values, storages, ops, inputs=(0,), outputs=(1,))
    plan = eager_plan(graph, (Cost({}, 80_000_000, 80_000_000),))
    (kernel,) = simulate(graph, plan, load_gpu("tpu-v5e")).kernels
    assert kernel.time_s == pytest.approx(1.04 * 200_064 / 200_000 * 160e6 / (0.85 * 819e9) + 1.2e-6)
    assert (kernel.wait_s, kernel.bound_s) == (0.0, pytest.approx(160e6 / 819e9))


@pytest.mark.parametrize(("name", "hidden"), [("tpu-v5e", True), ("h100-sxm", False)])
def test_a_copy_that_a_tpu_starts_ahead_runs_next_to_arithmetic(name, hidden):
    """A copy of 32 MB in a stream of its own, next to 10 ms of products that need no memory, for what comes after them:
    engines of a TPU move it meanwhile, kernels of a GPU take their turns."""
    machine = load_gpu(name)
    pipe = Pipe("tensor", "bfloat16")
    specs = contiguous((32_000_000,), "int8"), contiguous((1,), "int8")
    values = tuple(Value(i, specs[i > 1], i, 0) for i in range(4))
    storages = tuple(Storage(i, values[i].spec.nbytes, "input" if i in (0, 2) else "activation") for i in range(4))
    ops = (
        Op(0, "lax.copy", "movement", "forward", "", (0,), (1,), ("x",), stream=2),
        Op(1, "lax.dot_general", "contraction", "forward", "", (2,), (3,), ("x",)),
        Op(2, "test.op", "elementwise", "forward", "", (1,), (), ("x",), waits=(0,)),
    )
    busy = Cost({pipe: round(machine.peak(pipe) * 1e-2)})
    costs = (Cost({}, 32_000_000), busy, Cost({}, 32_000_000))
    graph = Graph(values, storages, ops, inputs=(0, 2), outputs=(3,))
    copied, _, last = simulate(graph, eager_plan(graph, costs), machine, launch="graph").kernels
    assert (copied.hidden_s > 0) is hidden
    assert (copied.time_s < 1e-9) is hidden
    assert last.wait_s == pytest.approx(0, abs=1e-9)
