"""Recurrent layers: which algorithm cuDNN runs, its waves, and what the host needs. Counts are worked out by hand."""

import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

import memwall
from memwall.analysis.explanation import explanations
from memwall.analysis.verdict import verdict
from memwall.bench.accuracy.reading import read_measured
from memwall.core.graph import Pipe
from memwall.hardware.host import load_host
from memwall.hardware.lookup import load_gpu
from memwall.ops.product_launches import Recurrent
from memwall.perfmodel.families import explain, predict
from memwall.perfmodel.recurrent import persistent
from memwall_lab.modules import ModuleSample
from tests.unit.places import truth

LSTM = Recurrent(
    pipe=Pipe("tensor", "tf32"), dtype="float32", cell="lstm", gates=4, backward=False, of_weights=False, steps=100,
    rows=6400, layers=1, directions=1, inputs=512, hidden=512, state=512, itemsize=4, count=201,
)  # fmt: skip
HALF = replace(LSTM, pipe=Pipe("tensor", "float16"), dtype="float16", itemsize=2)
SMALL = replace(LSTM, hidden=192, state=192)


@pytest.mark.parametrize(("launch", "gpu", "wanted"), [
    # use_rnn_persist_small_h: up to 192 forward and 128 backward with gates, 384 and 256 without
    (SMALL, "t4", True),
    (replace(SMALL, backward=True), "t4", False),
    (replace(SMALL, hidden=200, state=200), "a100", False),
    (replace(SMALL, hidden=384, state=384, cell="rnn_tanh", gates=1), "a100", True),
    (replace(SMALL, hidden=384, state=384, cell="rnn_tanh", gates=1, backward=True), "a100", False),
    (replace(SMALL, dtype="float64"), "a100", False),
    (replace(SMALL, packed=True), "a100", False),
    (replace(SMALL, state=64), "a100", False),
    (SMALL, "mi210", False),
    # use_persist_common_heuristics and use_persist_device_heuristics
    (HALF, "a100", True),
    (LSTM, "a100", False),
    (replace(HALF, dtype="bfloat16"), "a100", False),
    (replace(HALF, layers=2), "a100", False),
    (replace(HALF, directions=2), "a100", False),
    (replace(HALF, inputs=500), "a100", False),
    (replace(HALF, hidden=2048, state=2048), "a100", False),
    (replace(HALF, rows=100 * 136), "a100", False),
    (replace(HALF, cell="gru", gates=3), "a100", False),
    (replace(HALF, cell="rnn_relu", gates=1, rows=9600, hidden=896, state=896), "a100", False),
    (HALF, "t4", False),
    (HALF, "a10", False),
    (HALF, "l4", False),  # 58 multiprocessors
    (HALF, "l40s", True),
    (HALF, "v100-sxm2-16gb", True),
    (replace(HALF, cell="gru", gates=3), "v100-sxm2-16gb", True),
    (replace(HALF, rows=8000), "v100-sxm2-16gb", False),  # 80 sequences
    (replace(HALF, steps=15, rows=15 * 64), "v100-sxm2-16gb", False),
    (replace(HALF, steps=15, rows=15 * 32), "v100-sxm2-16gb", True),
])  # fmt: skip
def test_persistent_kernels_run_where_pytorch_asks_for_them(launch, gpu, wanted):
    assert bool(persistent(launch, load_gpu(gpu))) == wanted


@pytest.mark.parametrize(("layers", "directions", "waves", "side"), [
    (1, 1, 100, 1), (4, 1, 103, 4), (1, 2, 100, 2), (4, 2, 400, 2),
])  # fmt: skip
def test_layers_overlap_unless_each_needs_both_ends_of_the_one_below(layers, directions, waves, side):
    wave = predict(replace(LSTM, layers=layers, directions=directions), load_gpu("a100")).facts["wave"]
    assert (wave.count, wave.side) == (waves, side)


def test_four_layers_run_at_a_higher_rate_than_one():
    """Appleyard et al. 2016: hidden 512, 64 sequences on an M40: 2290 GFLOP/s of a layer, 3898 of four overlapped, 1.7
    times. A P4 has the nearest chip: 20 multiprocessors of 128 lanes; the M40 has 24."""
    gpu = load_gpu("p4")
    one, four = (predict(replace(LSTM, layers=n), gpu).facts["chain_s"] for n in (1, 4))
    assert 1.0 < 4 * one / four < 2.2


def test_a_gradient_of_the_weights_is_one_product_over_all_steps():
    gpu = load_gpu("a100")
    inputs = predict(replace(LSTM, backward=True), gpu)
    weights = predict(replace(LSTM, backward=True, of_weights=True), gpu)
    # two products of 2048 x 512 x 6400: 2 * 13.4 GFLOP at 156 TFLOP/s are 0.17 ms
    assert 0.17e-3 < weights.facts["chain_s"] - inputs.facts["chain_s"] < 0.4e-3


def test_a_backward_pass_is_one_call_of_the_library():
    """LSTM of 2 layers of 512, 64 steps of 16 rows: for each layer a product for the inputs' gradient, 64 x 2 kernels
    of the steps, three for the weights' gradients and the biases' sums, 264 in all; twice the FLOPs of the forward."""
    module, data = nn.LSTM(256, 512, 2), torch.empty(64, 16, 256, device="meta")
    profile = memwall.profile(module, (data,), gpu="a100", mode="training", optimizer=None)
    launches = [launch for cost in profile.costs[0] for launch in cost.launches if isinstance(launch, Recurrent)]
    forward, backward = launches
    assert (forward.count, backward.count) == (2 * (1 + 64 * 2), 2 * (1 + 64 * 2 + 3))
    # 1024 rows times 2048 gates of 256 inputs, twice 2048 x 512 of the states, 2048 x 512 from the layer below
    products = 2 * 1024 * 2048 * (256 + 512 + 512 + 512)
    assert forward.pipe_flops == {forward.pipe: products}
    # the first layer's input takes no gradient, and its product runs all the same: cuDNN has no way to leave it out
    assert backward.pipe_flops == {backward.pipe: 2 * products}
    gpu = load_gpu("a100")
    assert explain(backward, gpu, predict(backward, gpu)).startswith("The gradient of an LSTM of 2 layers, 64 steps of")


def test_pipe_flops_count_each_weight_with_each_row():
    # 2 * 6400 * (4*512*512 of the inputs + 4*512*64 of the state + 64*512 of the projection)
    projected = replace(LSTM, state=64)
    assert projected.pipe_flops == {LSTM.pipe: 12_800 * (1_048_576 + 131_072 + 32_768)}


def test_explanations_say_which_algorithm_runs_and_what_waits_for_what():
    gpu = load_gpu("l40s")
    text = explain(LSTM, gpu, predict(LSTM, gpu))
    assert "LSTM of 1 layer, 100 steps of 64 rows, by cuDNN's standard algorithm" in text
    assert "float32 with a hidden size of 512 has no persistent kernel" in text
    assert "201 kernels" in text
    text = explain(SMALL, gpu, predict(SMALL, gpu))
    assert "by a persistent kernel, since a hidden size of 192 is small: the recurrent weights stay on chip" in text


def test_a_slower_host_launches_the_kernels_later():
    gpu = load_gpu("l40s")
    fast, slow = (replace(gpu, host=load_host(name)) for name in ("bare-metal", "cloud-vm"))
    # 2 kernels a step of 6 layers over 512 steps and 6 products: 6,150 of 2.75 us are 16.9 ms, of 4.6 us 28.3 ms
    layers = replace(LSTM, layers=6, steps=512, rows=5120, inputs=128, hidden=256, state=256, count=6150)
    assert predict(layers, fast).time_s == pytest.approx(16.9e-3, rel=0.01)
    assert predict(layers, slow).time_s == pytest.approx(28.3e-3, rel=0.01)


def test_in_a_cuda_graph_no_host_launches_the_steps():
    module, data = nn.LSTM(128, 256, 6), torch.empty(512, 10, 128, device="meta")
    eager, replayed = (
        memwall.profile(module, (data,), gpu="a100", cuda_graph=graph).simulations[0] for graph in (False, True)
    )
    assert eager.totals.time_s == pytest.approx(16.9e-3, rel=0.01)  # 6,150 launches of 2.75 us
    assert replayed.totals.time_s < 6e-3  # 517 waves of two launches, of 2.6 us each on the GPU, and their products
    made = memwall.profile(module, (data,), gpu="a100")
    assert "are waits for the CPU" in verdict(made, made.simulations[0]).text
    assert "A CUDA graph would save 12" in verdict(made, made.simulations[0]).text
    made = memwall.profile(module, (data,), gpu="a100", cuda_graph=True)
    assert "CPU" not in verdict(made, made.simulations[0]).text
    (told,) = explanations(made, made.simulations[0], "rnn")
    assert "in all, since no host launches them one by one" in told.launches[0]


def test_small_layers_wait_for_the_host_on_a_bare_machine():
    """KernelBench's LSTM and GRU of 6 layers on the L40S, the modules that the host was not set from."""
    path = truth("kernelbench_v0_times.csv")
    if path is None:
        pytest.skip("kernelbench_v0_times.csv is not here")
    samples = [
        s for s in read_measured(path).of(ModuleSample)
        if ("_LTSM" in s.module or "_GRU" in s.module) and s.gpu.name == "l40s" and s.policy == "eager"
        and not s.in_fit_half
    ]  # fmt: skip
    errors = [abs(row.modeled_s / row.measured_s - 1) for row in (sample.row() for sample in samples)]
    assert len(errors) >= 3
    assert statistics.median(errors) <= 0.1
