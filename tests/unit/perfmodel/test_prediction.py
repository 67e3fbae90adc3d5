"""From costs to times: several launches, inherited constants, groups, machines of other kinds, CUDA graphs."""

from dataclasses import replace

import pytest

from memwall.core.graph import Pipe
from memwall.fusion.pricing import with_launches
from memwall.hardware.constants import GemmConstants
from memwall.hardware.host import Host
from memwall.hardware.lookup import load_gpu, with_nearest_constants
from memwall.ops import Cost
from memwall.ops import table_calls as calls
from memwall.ops.launches import Plain, Stream
from memwall.ops.product_launches import Gemm
from memwall.perfmodel.base import Interval, calibrated, interval
from memwall.perfmodel.families import explain, predict
from memwall.perfmodel.roofline import launches_of, predict_cost
from memwall.pipeline import resimulate
from tests.unit.report_fixture import make_gpu, make_profile

TENSOR = Pipe("tensor", "float16")
COMPUTE = Plain(read_bytes=10**6, write_bytes=0, flops={TENSOR: 10**9})  # 10 us of arithmetic, 1 us of traffic
TRAFFIC = Plain(read_bytes=10**7, write_bytes=10**7)  # 20 us of traffic


def gemm(**changes) -> Gemm:
    shape = {"pipe": TENSOR, "batch": 1, "m": 4096, "n": 4096, "k": 4096, "itemsize": 2,
             "read_bytes": 2 * 2 * 4096**2, "write_bytes": 2 * 4096**2}  # fmt: skip
    return Gemm(**{**shape, **changes})


def test_each_launch_takes_the_longer_of_its_own_two():
    """100 TFLOP/s, 1 TB/s, 1 us a launch: 10 us and 20 us one after another, not the 21 us of the longer sum."""
    cost = Cost({TENSOR: 10**9}, 11 * 10**6, 10**7, launches=(COMPUTE, TRAFFIC))
    found = predict_cost(cost, make_gpu())
    assert found.time_s == pytest.approx(32e-6)
    assert (found.compute_s, found.memory_s) == (pytest.approx(10e-6), pytest.approx(30e-6))
    assert found.overhead_s == pytest.approx(2e-6)


def test_a_later_launch_finds_in_l2_what_the_one_before_it_moved():
    cost = Cost({}, 0, 0, launches=(TRAFFIC, TRAFFIC))
    small, large = make_gpu(l2_bytes=1), make_gpu(l2_bytes=10**8)
    assert [terms.memory_s for _, terms in launches_of(cost, small)] == pytest.approx([20e-6, 20e-6])
    first, second = (terms.memory_s for _, terms in launches_of(cost, large))
    assert first == pytest.approx(20e-6)
    assert 10e-6 < second < 20e-6  # half of it is read, from L2


def board(name: str, capability: str, architecture: str, table: str = "gemm.float16", scored: bool = True, **constants):
    fitted_on = {table: name} if scored else {}
    values = {f"{table}.{key}": value for key, value in constants.items()}
    return make_gpu(name, compute_capability=capability, architecture=architecture, utilization=values,
                    fitted_on=fitted_on)  # fmt: skip


OLD = board("v", "7.0", "volta", plateau=0.5)
SAME = board("a", "8.0", "ampere", plateau=0.7, start_s=1e-6)
COUSIN = board("b", "8.6", "ampere", plateau=0.6)


def test_the_most_similar_board_lends_its_constants():
    mine = make_gpu("mine", compute_capability="8.0", architecture="ampere")
    found = with_nearest_constants(mine, [OLD, COUSIN, SAME])
    assert found.utilization == {"gemm.float16.plateau": 0.7, "gemm.float16.start_s": 1e-6}
    assert found.fitted_on == {"gemm.float16": "a"}
    newer = make_gpu("newer", compute_capability="9.0", architecture="hopper")
    assert with_nearest_constants(newer, [OLD, COUSIN]).fitted_on == {"gemm.float16": "b"}


def test_a_table_that_was_scored_is_whole_and_gaps_of_others_are_filled():
    mine = board("mine", "8.0", "ampere", plateau=0.9)
    assert with_nearest_constants(mine, [OLD, SAME]).utilization == {"gemm.float16.plateau": 0.9}
    derived = board("mine", "8.0", "ampere", scored=False, plateau=0.9)
    found = with_nearest_constants(derived, [OLD, SAME])
    assert found.utilization == {"gemm.float16.plateau": 0.9, "gemm.float16.start_s": 1e-6}
    none = make_gpu("none", compute_capability="8.0", architecture="ampere")
    assert with_nearest_constants(none, [COUSIN, SAME]).utilization == SAME.utilization
    nearest = with_nearest_constants(make_gpu("none", compute_capability="8.6", architecture="ampere"), [COUSIN, SAME])
    assert nearest.utilization == COUSIN.utilization


def test_a_table_without_rows_of_its_own_comes_after_one_with_rows():
    derived = board("derived", "8.9", "ada", scored=False, plateau=0.1)
    mine = make_gpu("mine", compute_capability="9.0", architecture="hopper")
    # ada is one generation from hopper and ampere two; a table that was not scored counts one and a half further
    assert with_nearest_constants(mine, [derived, COUSIN]).utilization["gemm.float16.plateau"] == 0.6


def test_chips_with_other_instructions_of_tensor_cores_lend_last():
    """sm_120 multiplies by mma.sync, as Ada and Ampere do; Hopper by wgmma and the B200 by tcgen05 (PTX, "Warp level
    matrix instructions", "asynchronous warpgroup level", "TensorCore 5th generation family")."""
    workstation = make_gpu("w", compute_capability="12.0", architecture="blackwell")
    b200, h100 = board("b200", "10.0", "blackwell", plateau=0.3), board("h100", "9.0", "hopper", plateau=0.4)
    ada = board("l40s", "8.9", "ada", plateau=0.5)
    assert with_nearest_constants(workstation, [b200, h100, ada]).fitted_on == {"gemm.float16": "l40s"}
    assert with_nearest_constants(workstation, [b200, h100, COUSIN]).fitted_on == {"gemm.float16": "b"}
    assert with_nearest_constants(workstation, [h100]).fitted_on == {"gemm.float16": "h100"}


def test_constants_of_a_chip_with_other_instructions_say_so_and_have_the_widest_interval():
    """A GPU of 9.0 whose matmuls have an A100's constants, and one of 12.0 that has an L40S's: both are mma.sync's."""
    hopper = make_gpu("h", compute_capability="9.0", architecture="hopper", fitted_on={"gemm.float16": "a100-80gb-sxm"},
                      utilization={"gemm.float16.plateau": 0.7})  # fmt: skip
    assert calibrated(GemmConstants, hopper, "float16") == "by other instructions"
    assert interval(GemmConstants, hopper, "float16") == Interval(*GemmConstants.UNKNOWN)
    workstation = replace(hopper, compute_capability="12.0", fitted_on={"gemm.float16": "l40s"}, name="w")
    assert calibrated(GemmConstants, workstation, "float16") == "by architecture"
    assert interval(GemmConstants, workstation, "float16") == Interval(*GemmConstants.FOREIGN)


def test_kernels_run_at_one_clock_and_bounds_hold_at_the_highest():
    """100 TFLOP/s at 1 GHz: 10^9 FLOP take 10 us, at the 1.25 GHz of the board 8 us, and no less than 5 us at 2 GHz;
    DRAM has a clock of its own: 10^7 bytes at 1 TB/s take 10 us at any."""
    gpu = make_gpu(run_clock_hz=1.25e9, max_clock_hz=2e9)
    computes = predict_cost(Cost({TENSOR: 10**9}, 0, 0, launches=(replace(COMPUTE, read_bytes=0),)), gpu)
    assert (computes.compute_s, computes.bound_s) == (pytest.approx(8e-6), pytest.approx(5e-6))
    moves = predict_cost(Cost({}, 10**7, 0, launches=(replace(TRAFFIC, write_bytes=0),)), gpu)
    assert (moves.memory_s, moves.bound_s) == (pytest.approx(10e-6), pytest.approx(10e-6))


def test_other_makers_boards_lend_nothing():
    tpu = make_gpu("tpu", compute_capability=None, architecture="tpu")
    assert with_nearest_constants(tpu, [OLD, SAME, COUSIN]).utilization == {}


def test_shipped_boards_without_rows_say_whose_constants_they_use():
    assert load_gpu("h100-nvl").fitted_on["gemm.bfloat16"] == "h100-sxm"
    assert load_gpu("h100-sxm").fitted_on["gemm.bfloat16"] == "h100-sxm"


def test_a_product_keeps_its_shape_in_a_group_and_takes_the_groups_bytes():
    eager = (gemm(), Stream(read_bytes=5, write_bytes=5))
    cost = Cost({TENSOR: 1}, read_bytes=700, write_bytes=300, launches=eager)
    found = with_launches(cost, kernels=2, extra_bytes=50)
    (launch,) = found.launches
    assert isinstance(launch, Gemm)
    assert (launch.m, launch.read_bytes, launch.write_bytes) == (4096, 750, 300)
    assert (found.kernels, found.extra_bytes) == (2, 50)


def test_several_products_share_the_bytes_and_none_is_lost():
    eager = (gemm(), gemm(m=1, read_bytes=3, write_bytes=1), gemm())
    launches = with_launches(Cost({TENSOR: 1}, read_bytes=701, write_bytes=301, launches=eager)).launches
    assert len(launches) == 3
    assert (sum(w.read_bytes for w in launches), sum(w.write_bytes for w in launches)) == (701, 301)
    assert [launch.count for launch in launches] == [1, 0, 0]  # one kernel


def test_a_group_of_known_ops_is_one_stream_and_of_unknown_ones_plain():
    eager = (Stream(read_bytes=5, write_bytes=5),)
    cost = Cost({Pipe("vector", "float32"): 10}, read_bytes=100, write_bytes=50, launches=eager)
    (launch,) = with_launches(cost, extra_bytes=7).launches
    assert (launch.read_bytes, launch.write_bytes, launch.flops) == (107, 50, 10)
    (launch,) = with_launches(replace(cost, launches=())).launches
    assert launch == Plain(read_bytes=100, write_bytes=50, flops=cost.flops)


def test_where_other_kernels_run_a_launch_is_its_flops_and_bytes():
    gpu = load_gpu("wse-2")
    terms = predict(gemm(), gpu)
    assert terms.compute_s == pytest.approx(2 * 4096**3 / (gpu.peak(TENSOR) * gpu.achievable_fraction(TENSOR)))
    assert terms.latency_s == 0


def test_a_captured_step_waits_for_no_cpu():
    slow = make_gpu("slow", dispatch_s=1e-3)
    profile = make_profile(gpus=(slow,))
    eager, captured = (resimulate(profile, slow, cuda_graph=on).simulations[0] for on in (False, True))
    assert eager.totals.time_s == pytest.approx(12e-3)  # 12 ops issued 1 ms apart
    assert captured.totals.time_s == pytest.approx(
        resimulate(profile, replace(slow, host=Host.uniform(0))).simulations[0].totals.time_s
    )
    assert captured.launch == "graph"


@pytest.mark.parametrize("name", ["p4", "p100-pcie-16gb", "v100-sxm2-16gb", "t4"])
def test_what_falls_back_to_vector_units_is_no_faster_than_float32_there(name):
    gpu = load_gpu(name)
    single = predict_cost(cost_of_product("float32"), gpu).time_s
    assert predict_cost(cost_of_product("bfloat16"), gpu).time_s >= 0.9 * single  # half of the bytes


def cost_of_product(dtype: str) -> Cost:
    return calls.product(4096, 4096, 4096, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("sizes", [(7, 7, 0), (0, 7, 7), (1, 7, 0)])
def test_an_empty_product_takes_its_launch_and_its_stores(sizes, dtype):
    for name in ("h100-sxm", "t4", "mi210", "tpu-v4"):
        gpu = load_gpu(name)
        cost = calls.product(*sizes, dtype)
        ((work, terms),) = launches_of(cost, gpu)
        assert predict_cost(cost, gpu).compute_s == 0
        assert "there is nothing to compute" in explain(work, gpu, terms)


def test_what_crosses_the_link_takes_its_time_there():
    # 30 GB at half of 300 GB/s: 0.2 s, beside 1 us of launch
    gpu = make_gpu(link_bytes_per_s=300e9)
    found = predict_cost(Cost(link_bytes=30e9), gpu)
    assert (found.time_s, found.bound_s, found.limited_by) == (pytest.approx(0.2), pytest.approx(0.2), "link")
    assert (Cost(link_bytes=1.0) + Cost(link_bytes=2.0)).link_bytes == 3.0
    assert predict_cost(Cost({}, 0, 10**7), gpu).limited_by == "bandwidth"
