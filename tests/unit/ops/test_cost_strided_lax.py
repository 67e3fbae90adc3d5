"""Convolutions of JAX with steps longer than their windows, whatever the order of axes, by hand."""

import pytest

from memwall.core.graph import contiguous
from memwall.ops.base import Call
from memwall.ops.registry import cost_of

#: axes of operand, weight and result: channels first, channels last
ORDERS = {
    "NCHW": ([0, 1, 2, 3], (2, 16, 32, 32), (2, 8, 16, 16)),
    "NHWC": ([0, 3, 1, 2], (2, 32, 32, 16), (2, 16, 16, 8)),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_window_of_one_in_steps_of_two_reads_a_quarter(order):
    """Of rows 0 to 31 those up to 30 are met, every second: 16 x 16 of 32 x 32 places."""
    axes, data, result = ORDERS[order]
    specs = [contiguous(data, "float32"), contiguous((8, 16, 1, 1), "float32")]
    out = contiguous(result, "float32")
    said = {
        "dimension_numbers": [axes, [0, 1, 2, 3], axes],
        "window_strides": [2, 2],
        "padding": [[0, 0], [0, 0]],
        "lhs_dilation": [1, 1],
        "rhs_dilation": [1, 1],
        "feature_group_count": 1,
        "batch_group_count": 1,
    }
    read = sum(spec.nbytes for spec in specs)
    call = Call("lax.conv_general_dilated", tuple(specs), ("lhs", "rhs"), (out,), said, read, out.nbytes)
    assert cost_of(call).read_bytes == specs[0].nbytes // 4 + specs[1].nbytes
