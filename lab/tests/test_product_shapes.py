"""How far products' times follow their shapes, by hand."""

import pytest

from reports.product_shapes import Timed, corrected, least_error


def test_a_time_that_falls_costs_any_growing_function():
    """1, 3, 2 seconds for sizes 1, 2, 3: one function for the last two; at 2 it misses the 3 by a third, and no other
    value misses by less in sum: a third over three rows."""
    pairs, falling, least = least_error([(1, 1), (2, 1), (3, 1)], [1.0, 3.0, 2.0])
    assert (pairs, falling) == (3, 1)
    assert least == pytest.approx(1 / 9)


def test_products_that_no_size_orders_cost_nothing():
    assert least_error([(1, 9), (9, 1)], [1.0, 5.0]) == (0, 0, pytest.approx(0))


def test_a_row_is_corrected_by_others_of_other_sizes():
    """All others take twice the model's time; the row of the same m, k and n, which takes ten times, does not count."""
    rows = [Timed((1, 4, 4, n), 2.0, 1.0) for n in (5, 6, 7, 8)] + [Timed((9, 4, 4, 8), 10.0, 1.0)]
    assert corrected(rows) == pytest.approx(0.8 / 5)  # 2 where 10 was measured
