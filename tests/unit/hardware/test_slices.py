"""Slices of TPUs: clusters by their names, rings and lines, and the seconds of collectives over them by hand."""

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.cluster import cluster_of, load_cluster
from memwall.hardware.lookup import load_gpu
from memwall.hardware.slices import REACHED, START_S, slice_names
from memwall.perfmodel.collectives import collective_s

V5E = load_cluster("tpu-v5e-16x16")
#: bytes of an array for which hops do not matter
LARGE = 1e12


def rates(name: str, groups: int) -> list[tuple[int, float]]:
    return [tuple(axis) for axis in load_cluster(name).link["ici"].axes(groups)]


@pytest.mark.parametrize("name", slice_names())
def test_a_usual_slice_is_a_cluster_with_sources(name: str) -> None:
    made = load_cluster(name)
    assert made.name == name and cluster_of(load_gpu(made.gpu)) == made
    assert all(made.sources[f"link.{link}.bytes_per_s"] for link in ("ici", "dcn"))


def test_a_slice_of_any_size_counts_its_chips_and_hosts() -> None:
    made = load_cluster("TPU-v5e-8x16")
    assert (made.gpus_per_node, made.link["dcn"].rails) == (128, 16)  # 8 chips of a host


@pytest.mark.parametrize(
    "name",
    [
        "tpu-v5e-16x32",
        "tpu-v5e-4x4x4",
        "tpu-v4-4x4",
        "tpu-v5e-1x1",
        "tpu-v5e-3x3",
        "tpu-v6e-2x16",
        "tpu-v4-3x4x4",
        "tpu-v4-1x1x4",
        "tpu-v5p-2x4x8",
    ],
)
def test_a_slice_that_no_pod_has_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no slice named"):
        load_cluster(name)


def test_a_slice_of_an_unknown_tpu_is_an_unknown_cluster() -> None:
    with pytest.raises(UsageError, match="no cluster named 'tpu-v9-4x4'"):
        load_cluster("tpu-v9-4x4")


@pytest.mark.parametrize(("name", "groups", "axes"), [
    ("tpu-v5e-16x16", 256, [(16, 100e9), (16, 100e9)]),
    ("tpu-v5e-16x16", 16, [(16, 100e9)]),  # one axis
    ("tpu-v5e-16x16", 8, [(8, 50e9)]),  # half of one: no ring
    ("tpu-v5e-16x16", 32, [(16, 100e9), (2, 50e9)]),
    ("tpu-v5e-4x4", 16, [(4, 50e9), (4, 50e9)]),  # lines
    ("tpu-v5e-8x16", 128, [(8, 50e9), (16, 100e9)]),  # the longer axis is a ring
    ("tpu-v4-4x4x8", 128, [(4, 90e9), (4, 90e9), (8, 90e9)]),
    ("tpu-v4-2x2x4", 16, [(2, 45e9), (2, 45e9), (4, 45e9)]),  # no whole cube
])  # fmt: skip
def test_chips_fill_axes_that_are_rings_or_lines(name: str, groups: int, axes: list[tuple[int, float]]) -> None:
    assert rates(name, groups) == axes


@pytest.mark.parametrize(("op", "workers", "seconds"), [
    # 255/256 of the array over two axes of two links of 50 GB/s
    ("all_gather", 256, LARGE * 255 / 256 / 200e9),
    ("reduce_scatter", 256, LARGE * 255 / 256 / 200e9),
    ("all_reduce", 256, 2 * LARGE * 255 / 256 / 200e9),
    ("all_gather", 16, LARGE * 15 / 16 / 100e9),
    # three of four parts over one link
    ("all_gather", 4, LARGE * 3 / 4 / 50e9),
    # a chip's bytes cross a quarter of each ring of 16: 4 links each, in two directions
    ("all_to_all", 256, LARGE * 4 / 100e9),
    ("all_to_all", 16, LARGE * 4 / 100e9),
    ("send_recv", 2, LARGE / 50e9),
])  # fmt: skip
def test_seconds_of_large_collectives(op: str, workers: int, seconds: float) -> None:
    assert collective_s(op, LARGE, workers, V5E).time_s == pytest.approx(seconds / REACHED, rel=1e-4)


def test_a_small_message_takes_its_hops() -> None:
    # rings of 16: 8 hops along each of two axes, at 1 us
    assert collective_s("all_gather", 256, 256, V5E).time_s == pytest.approx(START_S + 16e-6, rel=1e-3)


def test_the_measured_all_gather_of_the_scaling_book() -> None:
    # bfloat16[2048, 8192] over 4 chips in a line: 680 us
    line = load_cluster("tpu-v5e-8x4")
    assert collective_s("all_gather", 2048 * 8192 * 2, 4, line).time_s == pytest.approx(680e-6, rel=0.01)


def test_slices_exchange_what_their_chips_have_summed() -> None:
    # the array once over 32 hosts of 25 GB/s, while the torus takes 510/256 of it over 200 GB/s, which is longer
    found = collective_s("all_reduce", LARGE, 512, V5E)
    assert found.sent_bytes["dcn"] == pytest.approx(LARGE)
    assert found.time_s == pytest.approx(LARGE * 510 / 256 / 200e9 / REACHED, rel=1e-3)
    apart = collective_s("all_reduce", LARGE, 2, V5E, per_node=1)
    assert apart.time_s == pytest.approx(LARGE / 25e9 / REACHED, rel=1e-3)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"])
@pytest.mark.parametrize("name", ["tpu-v5e-16x16", "tpu-v4-4x4x8", "tpu-v5e-4x4"])
def test_no_collective_is_faster_than_its_bound(op: str, name: str) -> None:
    made = load_cluster(name)
    for workers in (2, 4, made.gpus_per_node, 2 * made.gpus_per_node):
        found = collective_s(op, 1e9, workers, made)
        assert found.bound_s <= found.wire_s * 1.0001 <= found.time_s * 1.0001
