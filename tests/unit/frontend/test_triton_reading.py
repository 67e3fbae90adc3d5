"""What the reader of Triton's IR is made of: types and lines, integers over all programs, and the elements touched."""

from __future__ import annotations

import numpy as np
import pytest

from memwall.frontend.triton import places, values
from memwall.frontend.triton.ir import Type, parse_type, read_kernel
from memwall.frontend.triton.values import Apart, Known

I32 = Type((), "i32")
ROW = Type((4,), "i32")

TEXT = """\
#loc = loc("/home/me/kernel.py":3:0)
#loc1 = loc("/home/me/kernel.py":5:8)
#loc2 = loc("/usr/lib/triton/language/standard.py":43:17)
#loc3 = loc("x"(#loc1))
module {
  tt.func public @k(%x: !tt.ptr<f16> {tt.divisibility = 16 : i32} loc("x"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32 loc(#loc1)
    %0:2 = scf.for %i = %c0 to %n step %c0 iter_args(%a = %c0, %b = %x) -> (i32, !tt.ptr<f16>)  : i32 {
      scf.yield %a, %b : i32, !tt.ptr<f16> loc(#loc3)
    } loc(#loc4)
    %1 = "tt.reduce"(%0#0) <{axis = 0 : i32}> ({
    ^bb0(%p: f32 loc(callsite(#loc2 at #loc1)), %q: f32 loc(#loc1)):
      tt.reduce.return %p : f32 loc(#loc1)
    }) : (tensor<4xf32>) -> f32 loc(#loc5)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc4 = loc(callsite(#loc2 at #loc3))
#loc5 = loc("r"(#loc4))
"""  # noqa: E501  as Triton prints it


@pytest.fixture(scope="module")
def kernel():
    return read_kernel(TEXT)


def ops(kernel):
    return {op.name: op for op in kernel.blocks[0].ops}


def test_a_type_has_a_shape_and_an_element():
    assert parse_type("tensor<128x32x!tt.ptr<f16>>") == Type((128, 32), "!tt.ptr<f16>")


def test_a_pointer_points_to_an_element():
    assert parse_type("!tt.ptr<bf16>").pointee == "bf16"


def test_arguments_are_those_of_the_function(kernel):
    assert [name for name, _ in kernel.arguments] == ["%x", "%n"]


def test_several_results_have_a_name_each(kernel):
    assert ops(kernel)["scf.for"].results == ("%0#0", "%0#1")


def test_operands_of_a_loop_are_its_bounds_and_what_it_carries(kernel):
    assert ops(kernel)["scf.for"].operands == ("%i", "%c0", "%n", "%c0", "%a", "%c0", "%b", "%x")


def test_the_types_of_a_region_are_behind_it(kernel):
    assert ops(kernel)["tt.reduce"].types == (Type((4,), "f32"), Type((), "f32"))


def test_a_call_of_the_library_is_the_line_of_its_caller(kernel):
    assert ops(kernel)["tt.reduce"].place == "/home/me/kernel.py:5"


# -- integers: an axis of three programs, and one of a block of four ---------------------------------------------------


def programs(step=1):
    return np.arange(3).reshape(3, 1) * step


def block(step=1):
    return np.arange(4).reshape(1, 4) * step


def known(*terms):
    return Known(ROW, terms)


def number(value):
    return Known(ROW, (np.full((1, 1), value),))


def test_a_sum_keeps_its_terms_apart():
    assert len(values.add(ROW, known(programs(4)), known(block())).terms) == 2


def test_a_remainder_of_a_block_within_a_multiple_stays_apart():
    # (8 pid + i) % 16 with i below 4: 8 pid % 16 and i
    parts = values.divide(ROW, known(programs(8), block()), number(16), remainder=True).terms
    assert sorted(part.ravel().tolist() for part in parts) == [[0, 1, 2, 3], [0, 8, 0]]


def test_a_quotient_by_what_divides_the_programs_term_is_of_each():
    # (8 pid + i) // 2: 4 pid and i // 2
    parts = values.divide(ROW, known(programs(8), block()), number(2), remainder=False).terms
    assert sorted(part.ravel().tolist() for part in parts) == [[0, 0, 1, 1], [0, 4, 8]]


def test_a_quotient_is_towards_zero_below_it():
    (part,) = values.divide(ROW, known(block() - 3), number(2), remainder=False).terms
    assert part.ravel().tolist() == [-1, -1, 0, 0]


def test_a_comparison_that_all_bounds_decide_is_one_answer():
    (part,) = values.compare(ROW, "slt", known(programs(4), block()), number(12)).terms
    assert (part.size, bool(part.all())) == (1, True)


def test_a_value_that_is_too_large_asks_for_fewer_programs_at_once():
    rows, columns = np.zeros((8, 1), np.int64), np.zeros((1, values.LIMIT // 4), np.int64)
    with pytest.raises(Apart) as raised:
        values.whole([rows, columns])
    assert [len(part) for part in raised.value.parts] == [4, 4]


# -- elements ----------------------------------------------------------------------------------------------------------


def test_elements_of_rows_are_runs():
    # rows of 4 at 0, 10 and 20
    found = places.touched([programs(10), block()], [], [], [3, 4])
    assert ([run.tolist() for run in found.runs], found.count) == ([[0, 10, 20], [4, 14, 24]], 12)


def test_rows_that_meet_are_one_run():
    assert [run.tolist() for run in places.touched([programs(4), block()], [], [], [3, 4]).runs] == [[0], [12]]


def test_windows_that_overlap_count_once():
    assert places.touched([programs(2), block()], [], [], [3, 4]).count == 8  # 0 to 7


def test_what_a_mask_leaves_out_is_not_touched():
    assert places.touched([programs(10), block()], [], [programs(10) + block() < 12], [3, 4]).count == 6


def test_an_index_names_as_many_rows_as_it_has_values():
    index = np.array([[5], [5], [9]])  # places from which three programs load the index of a row of four
    assert places.touched([block()], [index], [], [3, 4]).count == 2 * 4


def test_conditions_of_different_axes_are_multiplied():
    assert places.counted([programs() < 2, block() < 3], [3, 4]) == 6


def test_runs_of_several_accesses_are_united():
    runs = places.joined([(np.array([0]), np.array([8])), (np.array([4, 20]), np.array([12, 24]))])
    assert [side.tolist() for side in runs] == [[0, 20], [12, 24]]
