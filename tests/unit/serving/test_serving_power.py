"""What a GPU draws in a step and on average over a run, by hand."""

from dataclasses import replace

import pytest

from memwall.hardware.cluster import cluster_of
from memwall.hardware.lookup import load_gpu
from memwall.perfmodel.power import COMPUTE, IDLE, MEMORY, above_idle_j, idle_w
from memwall.perfmodel.roofline import Prediction
from memwall.serving.power import StepPower
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.steps import EngineStep, Layout, ServedKernels
from memwall.serving.steps.attention import Attention
from memwall.serving.steps.kernels import Collective, Product

B200 = load_gpu("b200")
#: of which the shares of power are known
KILOWATT = replace(B200, tdp_w=1000.0)
PRODUCT = Product(n=4096, k=4096, dtype="bfloat16")


def kernel(**walls):
    return Prediction(bound_s=0, overhead_s=0, low_s=0, high_s=0, **{"compute_s": 0.0, "memory_s": 0.0, **walls})


def test_a_gpu_that_waits_draws_a_quarter():
    assert idle_w(KILOWATT) == 250


def test_traffic_all_the_time_draws_its_share():
    """250 W and 580 W for two seconds, of which 500 J are those of a wait."""
    assert above_idle_j(kernel(memory_s=2.0), KILOWATT) == pytest.approx(2 * 1000 * MEMORY)


def test_arithmetic_and_traffic_draw_no_more_than_the_limit():
    assert above_idle_j(kernel(compute_s=1.0, memory_s=0.9), KILOWATT) == pytest.approx(1000 * (1 - IDLE))
    assert COMPUTE + IDLE > 1


def test_latency_draws_what_a_wait_does():
    assert above_idle_j(kernel(latency_s=1.0), KILOWATT) == 0


def test_a_step_draws_what_its_kernels_do_and_a_wait_between_them():
    steps = GpuSteps(ServedKernels(((PRODUCT, 10),), 0), KILOWATT)
    step = EngineStep(16, 16)
    one_j = above_idle_j(steps.prediction(PRODUCT, step), KILOWATT)
    assert StepPower(steps).watts(step, 1e-3) == pytest.approx(250 + 10 * one_j / 1e-3)


def test_messages_draw_as_a_wait():
    sent = Collective(op="all_reduce", width=8192)
    steps = GpuSteps(ServedKernels(((sent, 10),), 0), KILOWATT, Layout(tp=2), cluster_of(B200))
    assert StepPower(steps).watts(EngineStep(16, 16), 1e-3) == 250


def test_longer_caches_of_a_batch_draw_their_own():
    """Ten times the cache is ten times the traffic."""
    attention = Attention(heads=32, kv_heads=8, head_size=128, value_size=128, dtype="bfloat16")
    power = StepPower(GpuSteps(ServedKernels(((attention, 1),), 0), KILOWATT))
    short, long = (power.above_idle_j(EngineStep(64, 64 * context)) for context in (4000, 40_000))
    assert 8 < long / short < 12


def test_a_gpu_whose_limit_is_not_known_has_no_power():
    steps = GpuSteps(ServedKernels(((PRODUCT, 1),), 0), replace(B200, tdp_w=0.0))
    assert StepPower(steps).watts(EngineStep(1, 1), 1e-3) is None
