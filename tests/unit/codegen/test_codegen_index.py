"""Index arithmetic of generated kernels: whatever is simplified has the values of the plain formula."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwall.codegen.index import AffineIndex, Variable, offset, ravel, unravel
from memwall.codegen.kernel import NotGenerated
from memwall.codegen.lowering import locate
from memwall.codegen.ops.elementwise import _axis_of_quads
from memwall.core.graph import TensorSpec, contiguous

SHAPES = st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple)


def variable(size: int, text: str = "x") -> AffineIndex:
    return AffineIndex.of(Variable(text, size, frozenset(text)))


def values(index: AffineIndex, size: int) -> list[int]:
    """The index at every x, by evaluating its text as Python."""
    return [eval(index.text, {"x": x}) for x in range(size)]


def digits(position: int, shape: tuple[int, ...]) -> list[int]:
    """Row-major coordinates of a position, by repeated division."""
    found = []
    for size in reversed(shape):
        found.append(position % size)
        position //= size
    return found[::-1]


@given(SHAPES)
def test_unravelling_gives_the_coordinates(shape):
    size = math.prod(shape)
    axes = unravel(variable(size), shape)
    expected = [digits(x, shape) for x in range(size)]
    for axis, index in enumerate(axes):
        assert values(index, size) == [e[axis] for e in expected]
        assert all(index.low <= e[axis] <= index.high for e in expected)


@given(SHAPES)
def test_ravelling_what_was_unravelled_is_the_variable(shape):
    size = math.prod(shape)
    assert ravel(unravel(variable(size), shape), shape) == variable(size)


@given(SHAPES, st.data())
def test_a_permuted_tensor_read_through_a_view_is_where_its_strides_say(shape, data):
    """Offsets of a permuted view, cut into another shape, located in the dense tensor again."""
    size = math.prod(shape)
    order = data.draw(st.permutations(range(len(shape))))
    whole = contiguous(shape, "float32")
    permuted = tuple(shape[i] for i in order)
    strides = tuple(whole.strides[i] for i in order)
    place = offset(unravel(variable(size), permuted), strides)
    expected = [sum(d * s for d, s in zip(digits(x, permuted), strides, strict=True)) for x in range(size)]
    assert values(place, size) == expected
    back = ravel(locate(place, whole), shape)
    assert values(back, size) == expected  # row-major: the place is the offset


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 5), st.integers(0, 9))
def test_divmod_is_that_of_whole_numbers(size, divisor, factor, constant):
    index = variable(size) * factor + constant
    quotient, remainder = index.divmod(divisor)
    assert values(quotient, size) == [(factor * x + constant) // divisor for x in range(size)]
    assert values(remainder, size) == [(factor * x + constant) % divisor for x in range(size)]


def test_a_batch_of_heads_read_as_rows_costs_no_division_twice():
    """[8, 16, 512, 64] read from [8, 512, 16, 64]: known by hand."""
    x = variable(8 * 16 * 512 * 64)
    place = offset(unravel(x, (8, 16, 512, 64)), (512 * 1024, 64, 1024, 1))
    assert place.text == "(x % 64) + 1024 * (x // 64 % 512) + 64 * (x // 32768 % 16) + 524288 * (x // 524288)"
    assert variable(1) == AffineIndex() and variable(1).text == "0"


def test_two_loops_stay_apart():
    rows = AffineIndex.of(Variable("x", 4096, frozenset("x")))
    cols = AffineIndex.of(Variable("r", 1024, frozenset("r")))
    axes = unravel(rows * 1024 + cols, (8, 512, 1024))
    assert [a.text for a in axes] == ["(x // 512)", "(x % 512)", "r"]
    assert axes[2].axes == frozenset("r")


def test_gaps_and_overlaps_are_refused():
    with pytest.raises(NotGenerated, match="dense"):
        locate(variable(8), TensorSpec((4, 2), (4, 1), "float32"))
    with pytest.raises(NotGenerated, match="dense"):
        locate(variable(8), TensorSpec((4, 2), (1, 1), "float32"))


@pytest.mark.parametrize(("place", "axis"), [
    (lambda x, r: r + x * 512, 1),  # a row of 512: four neighbours along the last axis
    (lambda x, r: x, 0),
    (lambda x, r: x + r * 64, 0),  # columns
    (lambda x, r: r + x * 101, -1),  # rows that do not begin at multiples of four
    (lambda x, r: r * 2 + x * 512, -1),
    (lambda x, r: r + x * 512 + 2, -1),
    (lambda x, r: r.divmod(64)[1] + r.divmod(64)[0] * 640 + x * 512, 1),  # 64 neighbours, then a jump
    (lambda x, r: r.divmod(6)[1] + r.divmod(6)[0] * 640, -1),
])  # fmt: skip
def test_four_random_numbers_of_a_counter_go_to_four_neighbours(place, axis):
    x, r = (AffineIndex.of(Variable(name, 4096, frozenset(name))) for name in "xr")
    assert _axis_of_quads(place(x, r)) == axis
