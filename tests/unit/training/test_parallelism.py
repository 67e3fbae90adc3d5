"""Layouts of training jobs: their text, and what is refused."""

import pytest

from memwall.core.errors import UsageError
from memwall.training.layout import Parallelism

WHOLE = "tp=8,sp,pp=4,dp=16,fsdp=grad,cp=2,ep=8,microbatches=32,schedule=interleaved:2,recompute=selective,async"


def test_a_text_is_read_and_written_back():
    found = Parallelism.parse(WHOLE)
    assert found == Parallelism(8, True, 4, 16, "grad", 2, 8, 32, "interleaved", 2, "selective", True)
    assert Parallelism.parse(str(found)) == found
    assert found.world == 8 * 4 * 16 * 2
    assert str(Parallelism.parse("")) == "tp=1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpp=2", "no key of a layout 'tpp'; did you mean tp?"),
        ("tp=2,tp=4", "the layout says tp twice"),
        ("tp=0", "tp of a layout is a whole number above 0"),
        ("tp", "tp of a layout is a whole number above 0"),
        ("dp=1e3", "dp of a layout is a whole number above 0"),
        ("tp=2,sp=1", "sp of a layout takes no value"),
        ("sp", "give tp=2 or more"),
        ("dp=2,async", "async is of the GPUs of tp: give tp=2 or more"),
        ("tp=2,async=1", "async of a layout takes no value"),
        ("schedule=1f2b", "no schedule '1f2b'; did you mean 1f1b?"),
        ("schedule=zb:2", "no schedule 'zb:2'"),
        ("schedule=interleaved", "needs 2 or more chunks"),
        ("pp=4,schedule=interleaved:2,microbatches=6", "microbatches that pp divides, not 6 with pp=4"),
        ("fsdp=weights", "no fsdp 'weights'"),
        ("recompute=ful", "no recompute 'ful'; did you mean full?"),
        ("dp=4,ep=3", "ep=3 does not divide the 4 GPUs of a stage"),
        ("dp=8,shards=4", "shards are of what fsdp shares: give fsdp=full, grad or optimizer"),
        ("dp=8,fsdp=full,shards=3", "shards=3 does not divide the 8 replicas"),
        ("dp=8,ep=2,fsdp=full,shards=4", "shards next to experts that GPUs share (ep) are not modeled"),
        ("tp=2,dp=4,ep=4", "ep shares experts among GPUs that have tokens of their own: with tp, give sp"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(text, said):
    with pytest.raises(UsageError) as error:
        Parallelism.parse(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("tp=8,pp=2", {"world": 64}, "tp=8,pp=2 needs 16 GPUs, not 64: dp=4 would"),
        ("tp=8,pp=2", {"world": 24}, "tp=8,pp=2 needs 16 GPUs, not 24"),
        ("pp=4,schedule=interleaved:3,microbatches=4", {"layers": 10}, "12 stages of layers, and the model has 10"),
        ("tp=8", {"heads": 12}, "tp=8 does not divide the 12 heads"),
    ],
)
def test_what_does_not_divide_is_refused(text, given, said):
    with pytest.raises(UsageError, match=said):
        Parallelism.parse(text).check(**given)


def test_all_replicas_hold_a_share_unless_fewer_do():
    assert Parallelism.parse("dp=16,fsdp=full").sharers == 16
    assert Parallelism.parse("dp=16,fsdp=full,shards=8").sharers == 8
    assert str(Parallelism.parse("dp=16,fsdp=full,shards=8")) == "dp=16,fsdp=full,shards=8"


def test_a_layout_that_fits_passes():
    Parallelism.parse(WHOLE).check(world=1024, layers=80, heads=64)
