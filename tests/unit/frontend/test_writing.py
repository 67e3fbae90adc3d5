"""What is written into a graph: shapes seen anew, and loops without an end."""

import pytest

from memwall.core.errors import UsageError
from memwall.core.graph import TensorSpec
from memwall.frontend.writing import GraphWriter, reshape_strides

#: shape and strides, another shape, and the strides with which torch's ``view`` sees it: None where it refuses
CASES = [
    ((2, 8, 64), (512, 64, 1), (16, 64), (64, 1)),
    ((2, 8, 64), (512, 64, 1), (2, 8, 4, 16), (512, 64, 16, 1)),
    ((64, 8), (1, 64), (512,), None),  # transposed
    ((2, 4, 8, 16), (512, 16, 64, 1), (8, 8, 16), None),  # heads behind tokens
    ((1, 4, 8, 16), (512, 16, 64, 1), (4, 8, 16), (16, 64, 1)),
    ((3, 8), (0, 1), (3, 2, 4), (0, 4, 1)),  # repeated rows
    ((), (), (1, 1), (1, 1)),
    ((0, 8), (8, 1), (8, 0), (1, 1)),
]


@pytest.mark.parametrize(("shape", "strides", "wanted", "seen"), CASES)
def test_a_reshape_is_a_view_where_strides_allow_one(shape, strides, wanted, seen):
    assert reshape_strides(TensorSpec(shape, strides, "float32"), wanted) == seen


def test_trips_that_write_nothing_end_and_others_are_as_many_as_there_are_ops():
    to = GraphWriter(max_ops=5)
    for _ in range(5):
        to.trip()
        to.op("lax.full", (), (to.array((8,), "float32"),))
    for _ in range(5):
        to.trip()
    with pytest.raises(UsageError, match="more than 5 ops"):
        to.trip()
