"""Collectives: bytes in memory and on the link, by hand."""

import pytest

from memwall.core.graph import contiguous
from memwall.hardware.lookup import load_gpu
from memwall.ops import table_calls
from memwall.perfmodel.roofline import bound_s, predict_cost

#: 1,024 numbers in float32 on each of four ranks
PART, WHOLE = contiguous((1024,), "float32"), contiguous((4096,), "float32")


def cost(name, given, made, **attributes):
    return table_calls.cost(name, [("input", given)] if given else [], [made] if made else [], **attributes)


@pytest.mark.parametrize(("name", "given", "made", "read", "write", "link"), [
    # its part of 4 kB, those of three others
    ("c10d._allgather_base_", PART, WHOLE, 4096, 3 * 4096, 3 * 4096),
    ("_c10d_functional.all_gather_into_tensor", PART, WHOLE, 4096, 3 * 4096, 3 * 4096),
    ("c10d._reduce_scatter_base_", WHOLE, PART, 4 * 4096, 4096, 3 * 4096),
    ("_c10d_functional.reduce_scatter_tensor", WHOLE, PART, 4 * 4096, 4096, 3 * 4096),
    # 3/4 in a ring's reduce-scatter, 3/4 in its all-gather
    ("c10d.allreduce_", WHOLE, WHOLE, 4 * 4096, 4 * 4096, 6 * 4096),
    ("c10d.alltoall_base_", WHOLE, WHOLE, 4 * 4096, 4 * 4096, 3 * 4096),
    ("c10d.broadcast_", WHOLE, WHOLE, 0, 4 * 4096, 4 * 4096),
    ("c10d.send", WHOLE, None, 4 * 4096, 0, 4 * 4096),
    ("c10d.recv_", None, WHOLE, 0, 4 * 4096, 4 * 4096),
    ("c10d.barrier", contiguous((1,), "float32"), None, 0, 0, 0),
])  # fmt: skip
def test_bytes_of_four_ranks(name, given, made, read, write, link):
    found = cost(name, given, made, ranks=4)
    assert (found.modeled, found.kernels, found.total_flops) == (True, 1, 0)
    assert (found.read_bytes, found.write_bytes, found.link_bytes) == (read, write, link)


@pytest.mark.parametrize(
    ("name", "parts", "read", "write", "link"),
    [  # one of four ranks receives three parts of 4 kB, or sends them; another its own
        ("c10d.gather_", ([PART], [PART] * 4), 4096, 3 * 4096, 3 * 4096),
        ("c10d.gather_", ([PART], []), 4096, 0, 4096),
        ("c10d.scatter_", ([PART] * 4, [PART]), 3 * 4096, 4096, 3 * 4096),
        ("c10d.scatter_", ([], [PART]), 0, 4096, 4096),
    ],
)
def test_bytes_of_a_root_and_of_others(name, parts, read, write, link):
    given = [("input_tensors", spec) for spec in parts[0]]
    found = table_calls.cost(name, given, parts[1], ranks=4)
    assert (found.read_bytes, found.write_bytes, found.link_bytes) == (read, write, link)
    assert (found.launches[-1].op, found.launches[-1].nbytes) == ("all_to_all", 4 * 4096)


def test_one_rank_sends_nothing():
    assert cost("c10d.allreduce_", WHOLE, WHOLE, ranks=1).link_bytes == 0
    assert cost("c10d.broadcast_", WHOLE, WHOLE, ranks=1).link_bytes == 0


def test_a_functional_all_reduce_copies_first():
    """ATen's Functional.cpp clones the message and sums the clone."""
    found = cost("_c10d_functional.all_reduce", WHOLE, WHOLE, ranks=4)
    assert found.kernels == 2
    assert [(launch.read_bytes, launch.write_bytes) for launch in found.launches] == [(16384, 16384)] * 2
    assert (found.read_bytes, found.write_bytes) == (16384, 16384)


def test_a_switch_that_sums_halves_the_bound_of_an_all_reduce():
    """1 GB over eight H100 with 450 GB/s each way: 2 x 7/8 GB in a ring, 7/8 GB must be sent in any case."""
    gpu, message = load_gpu("h100-sxm"), contiguous((250_000_000,), "float32")
    found = cost("c10d.allreduce_", message, message, ranks=8)
    assert bound_s(found, gpu) == pytest.approx(7 / 8 * 1e9 / 450e9)
    assert predict_cost(found, gpu).time_s == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)


def test_a_call_of_unknown_ranks_is_not_modeled():
    assert not cost("c10d.allreduce_", WHOLE, WHOLE).modeled


@pytest.mark.parametrize(
    ("name", "given", "made", "order"),
    [("c10d.allgather_", [PART], [PART] * 4, ["all_gather", "copies"]),
     ("c10d.reduce_scatter_", [PART] * 4, [PART], ["copies", "reduce_scatter"])],
)  # fmt: skip
def test_lists_of_tensors_are_copied_one_by_one(name, given, made, order):
    """ProcessGroupNCCL gathers into one buffer of four parts of 4 kB and copies each to its tensor, and scatters from
    one that it has copied the tensors to: four kernels that read and write 16 kB."""
    found = table_calls.cost(name, [("input_tensors", spec) for spec in given], made, ranks=4)
    assert [getattr(launch, "op", "copies") for launch in found.launches] == order
    copies = found.launches[order.index("copies")]
    assert (copies.read_bytes, copies.write_bytes, copies.count) == (16384, 16384, 4)
    assert found.kernels == 5
    assert found.read_bytes + found.write_bytes == 5 * 4096 - 4096 * (name == "c10d.allgather_")
