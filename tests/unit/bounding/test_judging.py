"""A measured time: possible or not, what could explain it, and where it stands."""

import pytest

from memwall import bound
from memwall.bounding.answer import BoundRun
from memwall.bounding.judging import slower_than
from memwall.core.errors import UsageError

PRODUCT = "mm(bf16[8192,8192], bf16[8192,8192])"  # 1.1e12 FLOPs: 1,111 us at 989 TFLOP/s
COPY = "f32[512,1024] + 1"  # 4.2 MB: 1.25 us from DRAM, 0.42 us from L2 of an H100


def judged(text: str, measured: str, gpu: str = "h100", **asked):
    return bound(text, gpu=gpu, measured=measured, policy=["eager", "memwall"], **asked).answers[0].measured


def test_a_share_of_the_bound():
    found = judged(PRODUCT, "2222.5us")
    assert found.possible
    assert found.of_bound == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "gpu", "measured", "words"),
    [
        (PRODUCT, "h100", "600us", "skipped zeros"),
        (PRODUCT, "h100", "600us", "ran in fp8, not in bfloat16"),
        (PRODUCT, "h100", "100us", "Neither L2, sparsity nor another dtype explains it"),
        (PRODUCT.replace("bf16", "f32"), "h100", "2500us", "ran in tf32, not in float32"),
        (PRODUCT, "v100", "5ms", "Neither"),  # no sparse tensor cores, no fp8
    ],
)
def test_what_could_explain_a_time_below_the_bound(text, gpu, measured, words):
    found = judged(text, measured, gpu)
    assert not found.possible
    assert words in found.why


def test_l2_may_hold_what_a_call_before_left():
    found = judged("f32[4096,4096] + 1", "38us")  # 134 MB: 40.1 us from DRAM, of which L2 may hold 50
    assert not found.possible
    assert "left operands in L2" in found.why


def run(time_s: float, low_s: float, high_s: float) -> BoundRun:
    return BoundRun("eager", 1, 0, time_s, low_s, high_s, "compute", time_s)


def test_the_range_is_of_eight_in_ten():
    known = run(10.0, 8.0, 15.0)
    assert slower_than(10.0, known) == pytest.approx(0.5)
    assert slower_than(15.0, known) == pytest.approx(0.9, abs=1e-3)
    assert slower_than(8.0, known) == pytest.approx(0.1, abs=1e-3)
    assert slower_than(5.0, run(10.0, 10.0, 10.0)) is None


@pytest.mark.parametrize(
    ("text", "measured", "words"),
    [
        ("x = f16[8192,8192]; softmax(x + 1, -1)", "1ms", "fusion: a run that writes intermediates moves 536.87 MB"),
        (PRODUCT, "30ms", "the pipe: products on vector units take"),
        ("f32[8192,8192] + 1", "1ms", "traffic: in that time a copy moves"),
        ("f32[8] + 1 + 2 + 3 + 4", "30us", "launches: 4 of them"),
    ],
)
def test_what_a_slow_kernel_may_lack(text, measured, words):
    assert words in " ".join(judged(text, measured).raised_by)


def test_a_good_kernel_lacks_nothing():
    assert judged(PRODUCT, "1450us").raised_by == ()


@pytest.mark.parametrize("measured", ["0", "-3us", "fast", "+2%", "3 GB", "1e-320s", "1e300s"])
def test_no_such_time(measured):
    with pytest.raises(UsageError):
        judged(COPY, measured)


def test_a_time_of_no_kernel_is_refused():
    with pytest.raises(UsageError, match="the target runs no kernel"):
        judged("f32[8,4].t()", "1us")
