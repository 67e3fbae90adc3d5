"""No real GPU is faster than ``bound_s``: measured rows of others, where the operands cannot sit in L2.

Footprints under twice the L2 are left out: operands that a benchmark's last run left in the cache beat DRAM.
"""

import csv

import pytest

from memwall.core.errors import UsageError
from memwall.core.graph import contiguous
from memwall.hardware.lookup import load_gpu
from memwall.ops import Call, cost_of
from memwall.perfmodel.roofline import bound_s
from tests.unit.places import is_whole, truth


def rows(name):
    path = truth(name)
    if path is None:
        pytest.skip(f"truth/{name} is not here; set MEMWALL_SHARED to the folder that has it")
    with path.open(encoding="utf-8") as handle:
        yield from csv.DictReader(line for line in handle if not line.startswith("#"))


def call(name, arguments, shapes, output, dtype, **attributes):
    inputs = tuple(contiguous(shape, dtype) for shape in shapes)
    out = contiguous(output, dtype)
    return Call(name, inputs, arguments, (out,), attributes, sum(i.nbytes for i in inputs), out.nbytes)


def neusight(row):
    op = row["op"]
    if op == "conv2d":
        n, cin, cout, k, size, stride, pad = (
            int(row[key]) for key in ("n", "cin", "cout", "ksize", "hw", "stride", "padding")
        )
        out = (size + 2 * pad - k) // stride + 1
        return call("aten.convolution", ("input", "weight"), [(n, cin, size, size), (cout, cin, k, k)],
                    (n, cout, out, out), "float32", stride=(stride, stride), padding=(pad, pad), dilation=(1, 1),
                    groups=1, allow_tf32=False)  # fmt: skip
    b = int(row["b"])
    if op in ("linear", "bmm"):
        m, k, n = (int(row[key]) for key in "mkn")
        if op == "bmm":
            return call("aten.bmm", ("self", "mat2"), [(b, m, k), (b, k, n)], (b, m, n), "float32")
        return call("aten.mm", ("self", "mat2"), [(b * m, k), (k, n)], (b * m, n), "float32")
    shape = (b, int(row["h"]))
    names = {"add": "aten.add.Tensor", "mul": "aten.mul.Tensor", "div": "aten.div.Tensor"}
    if op in names:
        return call(names[op], ("self", "other"), [shape, shape], shape, "float32")
    single = {"relu": "aten.relu", "gelu": "aten.gelu", "tanh": "aten.tanh", "pow": "aten.pow.Tensor_Scalar"}
    if op == "softmax":
        return call("aten._softmax", ("self",), [shape], shape, "float32", dim=-1)
    return call(single[op], ("self",), [shape], shape, "float32") if op in single else None


def aiconfigurator(row):
    if row["dtype"] != "bfloat16":
        return None
    m, n, k = (int(row[key]) for key in "mnk")
    return call("aten.mm", ("self", "mat2"), [(m, k), (k, n)], (m, n), "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "read", "least"), [
    ("neusight_ops_train_subsample.csv", neusight, 5000),
    ("neusight_ops_amd.csv", neusight, 2000),
    ("neusight_conv_subsample.csv", neusight, 2500),
    ("aiconfigurator_gemm.csv", aiconfigurator, 1000),
])  # fmt: skip
def test_no_measured_time_is_below_the_bound(name, read, least, request):
    every = 1 if is_whole(request) else 4
    boards, checked, worst = {}, 0, (0.0, None)
    for row in list(rows(name))[::every]:
        board = row["gpu"]
        if board not in boards:
            try:
                boards[board] = load_gpu(board)
            except UsageError:
                boards[board] = None
        gpu, found = boards[board], read(row)
        if gpu is None or found is None:
            continue
        cost = cost_of(found)
        if cost.bytes <= 2 * gpu.l2_bytes:
            continue
        checked += 1
        worst = max(worst, (bound_s(cost, gpu) / (1e-3 * float(row["latency_ms"])), str(row)))
    assert checked >= least // every, (checked, {b for b, g in boards.items() if g is None})
    assert worst[0] <= 1.0, worst
