"""Numbers as text: no unit is followed by a thousand of it."""

import pytest

from memwall.core.units import duration, flop_rate, si, size


@pytest.mark.parametrize(("seconds", "text"), [
    (999.94e-9, "999.9 ns"), (999.96e-9, "1.00 us"), (999.994e-6, "999.99 us"), (999.996e-6, "1.00 ms"),
    (0.999994, "999.99 ms"), (0.999996, "1.00 s"), (1.0, "1.00 s"), (0.0, "0 s"),
])  # fmt: skip
def test_a_time_that_rounds_to_a_thousand_takes_the_next_unit(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [
    (999, "999 B"), (1000, "1.00 kB"), (999_994, "999.99 kB"), (999_996, "1.00 MB"), (999_996_000, "1.00 GB"),
])  # fmt: skip
def test_a_size_that_rounds_to_a_thousand_takes_the_next_prefix(count, text):
    assert size(count) == text


def test_fewer_digits_round_earlier():
    assert [si(count, "", 0) for count in (999_400, 999_600)] == ["999 k", "1 M"]


@pytest.mark.parametrize(("pipe", "text"), [
    ("tensor.int8", "1.98 POP/s"), ("uint4", "1.98 POP/s"), ("tensor.fp8", "1.98 PFLOP/s"), ("", "1.98 PFLOP/s"),
])  # fmt: skip
def test_integers_have_no_floating_point_operations(pipe, text):
    assert flop_rate(1.979e15, pipe) == text
