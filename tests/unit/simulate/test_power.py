"""The power limit over steps in a loop: the rate of float32 products by hand, and where it does not bind."""

import pytest

from memwall.core.graph import Pipe
from memwall.hardware.constants import VectorGemmConstants
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.ops import table_calls as calls
from memwall.perfmodel.base import constants
from memwall.perfmodel.gemm_vector import sustained
from memwall.perfmodel.roofline import predict_cost
from memwall.simulate.power import in_call, in_loop, is_held, multiplies

PIPE = Pipe("vector", "float32")


def _held(gpu: Gpu) -> float:
    """FLOP/s that the power of a GPU sustains."""
    return gpu.peak(PIPE) * sustained(gpu, PIPE, constants(VectorGemmConstants, gpu, "float32"))


def test_the_kernels_between_products_leave_them_power():
    """10 s of products at the limit and 5 s of others, which draw 0.6 of it: 2 s of the limit are left, so that the
    products take 8 s, 1.25 times as fast. An A10's 150 W pay for 4.15e10 x (16 / 7) ** 0.75 FLOP a joule."""
    a10 = load_gpu("a10")
    assert _held(in_loop(a10)) == pytest.approx(150 * 4.15e10 * 1.8589, rel=1e-3)
    assert _held(in_loop(a10, 10.0, 5.0)) == pytest.approx(1.25 * _held(in_loop(a10)))


def test_a_loop_of_long_products_has_no_time_at_the_boost_clock():
    """A product of 0.4 ms runs at the boost clock alone, and in a loop at 0.33 of the peak."""
    a10, cost = load_gpu("a10"), calls.product(1024, 2048, 2048, "float32")
    lone_s, looped_s = predict_cost(cost, a10).time_s, predict_cost(cost, in_loop(a10)).time_s
    assert lone_s < 0.6e-3 < 0.7e-3 < looped_s


def test_products_of_a_lone_call_share_the_boost_clock():
    """Of 0.82 ms at the boost clock each of two products has 0.41 ms; a product alone has all."""
    a10 = load_gpu("a10")
    of = [constants(VectorGemmConstants, in_call(a10, products), "float32").burst_s for products in (1, 2)]
    assert of == pytest.approx([0.822e-3, 0.411e-3])


def test_short_products_never_pass_their_plateau():
    a10 = load_gpu("a10")
    plateau = constants(VectorGemmConstants, a10, "float32").plateau
    assert _held(in_loop(a10, 1e-3, 1.0)) == pytest.approx(plateau * a10.peak(PIPE))


def test_a_board_that_throttles_says_what_is_left():
    """A P4 keeps 0.67 of 75 W x 5.67e10 FLOP a joule."""
    assert _held(in_loop(load_gpu("p4"))) == pytest.approx(0.67 * 75 * 5.67e10, rel=1e-6)


def test_a_v100_in_a_loop_multiplies_at_what_its_power_holds():
    """DeepBench's short matmuls are held at 0.544 x sqrt(300 / 125) = 0.843 of 125 TFLOP/s; steps of seconds keep half
    of it: 2 x 8192^3 FLOP take 20.87 ms at 52.7 TFLOP/s. Next to as many seconds of other kernels, which leave 0.4 of
    theirs, 1 / 0.6 times that rate: 12.5 ms."""
    v100, cost = load_gpu("v100-sxm2-16gb"), calls.product(8192, 8192, 8192, "float16")
    assert predict_cost(cost, v100).time_s < 11.5e-3
    assert predict_cost(cost, in_loop(v100)).time_s == pytest.approx(20.87e-3, rel=0.01)
    assert predict_cost(cost, in_loop(v100, 1.0, 1.0)).time_s == pytest.approx(12.52e-3, rel=0.01)


def test_a_v100_in_a_loop_convolves_at_what_its_power_holds():
    """A convolution on tensor cores draws for a FLOP what a matmul does: 32 x 64 x 64 places, 640 channels of 9 x 640
    are 0.966 TFLOP, 18.3 ms at 52.7 TFLOP/s."""
    v100 = load_gpu("v100-sxm2-16gb")
    cost = calls.convolution((32, 640, 64, 64), (640, 640, 3, 3), (1, 1), (1, 1), "float16")
    assert predict_cost(cost, v100).time_s < 11.5e-3
    assert predict_cost(cost, in_loop(v100)).time_s == pytest.approx(18.34e-3, rel=0.04)


def test_tensor_cores_are_held_where_short_products_draw_more_than_lasts():
    a10, v100 = load_gpu("a10"), load_gpu("v100-sxm2-16gb")
    whole, half = (calls.product(64, 64, 64, dtype) for dtype in ("float32", "float16"))
    assert multiplies(whole, a10)
    assert not multiplies(half, a10)
    assert [is_held(half, gpu) for gpu in (a10, v100)] == [False, True]
    assert is_held(whole, v100)
    assert not is_held(calls.softmax((64, 64), "float16"), v100)
