"""Mixtures of experts: loads and bytes counted by hand, physical facts, and the time of measured layers."""

import pytest

from memwall.bench.accuracy import score_files
from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware.lookup import load_gpu
from memwall.ops import served_calls
from memwall.ops.experts import SCHEMES
from memwall.ops.routing import IN_TURN, ExpertRouting, expected_active, loads_of
from memwall.perfmodel.families import explain, predict
from memwall.perfmodel.roofline import bound_s, predict_cost
from tests.unit.places import is_whole, part_of, truth

H100 = load_gpu("h100-sxm")
MIXTRAL = {"hidden": 4096, "inter": 14336, "top_k": 2, "experts": 8}
DEEPSEEK = {"hidden": 7168, "inter": 2048, "top_k": 8, "experts": 256}


def launch(tokens, model=None, **given):
    (work,) = served_calls.experts(tokens, **(model or MIXTRAL), **given).launches
    return work


def test_a_token_of_mixtral_reads_two_experts():
    """Three matrices of 4096 x 14336 in bfloat16 are 352,321,536 bytes an expert; the token is 8,192 bytes."""
    cost = served_calls.experts(1, **MIXTRAL)
    assert cost.read_bytes == 2 * 352_321_536 + 8_192
    assert cost.write_bytes == 8_192
    assert cost.flops == {Pipe.parse("tensor.bfloat16"): 2 * 352_321_536}  # 2 FLOPs for each weight of 2 bytes


def test_a_million_tokens_read_all_experts_and_multiply_each_token_twice():
    cost = served_calls.experts(1 << 20, **MIXTRAL)
    assert cost.read_bytes == 8 * 352_321_536 + (1 << 20) * 8_192
    assert cost.total_flops == 2 * (1 << 20) * 352_321_536


@pytest.mark.parametrize(("tokens", "active"), [(1, 8), (2, 15.75), (32, 163.31), (10**6, 256)])
def test_experts_that_tokens_choose_by_chance(tokens, active):
    """256 (1 - (31/32)^T): 8, 15.75, 256 (1 - 0.36206)."""
    assert expected_active(tokens, 256, 8) == pytest.approx(active, abs=5e-3)


def test_loads_hold_all_rows():
    assert loads_of(4, 8, 2) == ((2, 3), (1, 2))  # 8 rows; 8 (1 - 0.75^4) = 5.47 experts
    assert sum(n * e for n, e in loads_of(4096, 256, 8)) == 32_768


def test_tokens_in_turn_reach_as_many_experts_as_there_are_rows():
    """Token i takes i, i + 32, ..., i + 224: 32 tokens take each of 256 experts once, 33 the first 8 twice."""
    assert loads_of(32, 256, 8, routing=IN_TURN) == ((1, 256),)
    assert loads_of(33, 256, 8, routing=IN_TURN) == ((2, 8), (1, 248))
    assert loads_of(2, 256, 8, routing=IN_TURN) == ((1, 16),)
    assert loads_of(64, 256, 8, 32, routing=IN_TURN) == ((2, 8),)  # 8 of the experts, each of 64 * 8 / 256 rows


def test_a_power_law_leaves_experts_idle_and_loads_one_gpu_more():
    loads = loads_of(4096, 256, 8, routing=ExpertRouting(skew=1.2))
    assert sum(n * e for n, e in loads) == 32_768
    assert loads[0][0] > 8 * 32_768 / 256  # the fullest has many times the mean
    assert max(n for n, _ in loads) <= 4096
    assert sum(e for _, e in loads_of(16, 256, 8, routing=ExpertRouting(skew=1.2))) < sum(
        e for _, e in loads_of(16, 256, 8, routing=IN_TURN)
    )
    assert sum(n * e for n, e in loads_of(4096, 256, 8, 32, routing=ExpertRouting(skew=1.2))) > 32_768 / 32


def test_choices_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="9 of 8 experts"):
        loads_of(1, 8, 9)
    with pytest.raises(UsageError, match="on 3 GPUs"):
        loads_of(1, 8, 2, 3, routing=IN_TURN)
    with pytest.raises(UsageError, match="no format of experts 'fp9'"):
        served_calls.experts(1, **MIXTRAL, dtype="fp9")


def test_bytes_of_an_expert_of_deepseek_by_format():
    """44,040,192 weights: a byte each, and 4 for a product or for 128 x 128; half a byte and one for 16, or for 32; a
    16-bit scale for 128."""
    weights = 3 * 7168 * 2048
    assert weights == 44_040_192
    read = {name: launch(1, DEEPSEEK, dtype=name).expert_bytes for name in SCHEMES}
    assert read["bfloat16"] == 88_080_384
    assert read["fp8"] == weights + 2 * 4
    assert read["fp8_block"] == weights + 2688 * 4
    assert read["nvfp4"] == weights // 2 + weights // 16
    assert read["w4a16_mxfp4"] == read["w4a8_mxfp4_mxfp8"] == weights // 2 + weights // 32
    assert read["int4_wo"] == weights // 2 + weights // 64


def test_tensor_parallel_gpus_share_columns_and_expert_parallel_ones_experts():
    whole, columns, some = launch(4096, DEEPSEEK), launch(4096, DEEPSEEK, tp=8), launch(4096, DEEPSEEK, ep=8)
    assert columns.expert_bytes * 8 == whole.expert_bytes
    assert columns.rows == whole.rows
    assert some.active * 8 == whole.active == 256
    assert some.rows * 8 == whole.rows


def test_blocks_of_rows_are_filled_up():
    work = launch(32, DEEPSEEK, routing=IN_TURN)
    assert (work.rows, work.blocks(64)) == (256, (256,))
    assert launch(3200, DEEPSEEK, routing=IN_TURN).blocks(64, 128) == (512, 256)  # 100 rows each


def test_experts_without_a_gate_have_two_matrices():
    assert launch(1, gated=False).expert_bytes * 3 == launch(1).expert_bytes * 2


def test_few_tokens_wait_for_weights_and_many_for_arithmetic():
    assert predict(launch(8), H100).wall == "bandwidth"
    many = predict(launch(1 << 16), H100)
    assert many.compute_s > 10 * many.memory_s
    times = [predict(launch(tokens), H100).time_s for tokens in (1, 2, 8, 64, 512, 4096, 32768)]
    assert times == sorted(times)


def test_no_layer_is_faster_than_its_bound():
    for name in SCHEMES:
        cost = served_calls.experts(64, **DEEPSEEK, dtype=name)
        assert predict_cost(cost, H100).time_s > bound_s(cost, H100)


def test_the_explanation_has_the_numbers():
    work = launch(16, routing=IN_TURN)
    said = explain(work, H100, predict(work, H100))
    assert "32 rows of 16 tokens for 8 experts" in said
    assert "2.82 GB of the experts' weights" in said


def test_measured_layers_of_experts_that_no_constant_was_fitted_to(request, tmp_path):
    path = truth("aiconfigurator_moe.csv")
    if path is None:
        pytest.skip("aiconfigurator's layers of experts are not here")
    every = 1 if is_whole(request) else 12
    found = score_files([part_of(path, every, tmp_path)], split=True)
    errors = sorted(abs(row.modeled_s / row.measured_s - 1) for row in found.split.held_out)
    assert len(errors) > 4800 // every
    assert errors[len(errors) // 2] < 0.13  # 11.6 %; a roofline of 75 % and 85 % and 3 us: 63 %
    assert sum(errors) / len(errors) < 0.20  # 17.9 %; 57 %
    others = sorted(abs(row.modeled_s / row.measured_s - 1) for row in found.split.left_out)
    assert others[len(others) // 2] < 0.18  # 15.8 % with the constants of the nearest other GPU
    # one row reads 256 experts at 1.6 times its GPU's DRAM bandwidth: what ran is not known
    violations = {row.shape.split()[-1] for row in found.rows if row.is_violation}
    assert violations <= {"64,7168,2048,8,256,16,1,balanced"} and (every > 1 or violations)
