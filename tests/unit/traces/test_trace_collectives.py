"""A trace's own collectives, by hand; and those of a real one next to the model."""

from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.cluster import load_cluster
from memwall.hardware.lookup import load_gpu
from memwall.report import render
from memwall.traces.analysing import analyse
from memwall.traces.collectives import collectives, rank_waits
from memwall.traces.page import TraceReport
from memwall.traces.reading import read_trace
from memwall.traces.records import ProfilerTrace
from tests.unit.places import shared
from tests.unit.traces_fixture import Event, call, kernel, op, real_trace, write

#: microseconds in which each of three all-reduces and one all-gather run on two ranks
FIRST, SECOND = (120.5, 100.5, 130.5, 60.5), (100.5, 150.5, 120.5, 50.5)


def all_reduce(at: int, dur: float, number: int) -> list[Event]:
    """16 MB of bfloat16 over 4 ranks."""
    args = {"In__msg__nelems": 8_000_000, "Out__msg__nelems": 8_000_000, "dtype": "BFloat16", "Group__size": 4}
    return [
        op("record_param_comms", at, 50, Collective__name="allreduce", Process__Group__Name="1", **args),
        call("cudaLaunchKernelExC", at + 5, 1, number),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", at + 20, dur, number),
    ]


def all_gather(at: int, dur: float, number: int) -> list[Event]:
    """8 MiB of float32, an eighth of it own, as an older profiler records it."""
    shapes = {"Input__Dims": [[2 << 20], [1 << 18], []], "Input__type": ["float", "float", ""]}
    return [
        op("c10d::_allgather_base_", at, 50, **shapes),
        op("nccl:_all_gather_base", at + 1, 40, Input__Dims=[[1 << 18]], Input__type=["float"]),
        call("cudaLaunchKernel", at + 5, 1, number),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", at + 20, dur, number),
    ]


def traced(folder: Path, times: tuple[float, ...]) -> ProfilerTrace:
    folder.mkdir()
    events = [event for i, dur in enumerate(times[:3]) for event in all_reduce(1000 * i, dur, i + 1)]
    return read_trace(write(folder, events + all_gather(5000, times[3], 9)))


def test_bus_bandwidth_is_that_of_the_shortest(tmp_path: Path) -> None:
    reduced, gathered = collectives(traced(tmp_path / "rank0", FIRST), load_cluster("dgx-a100-80gb"))
    assert (reduced.message.op, reduced.message.ranks, reduced.message.nbytes) == ("all_reduce", 4, 16_000_000)
    assert len(reduced.seconds) == 3 and reduced.measured_s == pytest.approx(351.5e-6)
    assert reduced.bus_bytes_per_s == pytest.approx(2 * 3 / 4 * 16e6 / 100.5e-6)
    # a ring's 24 MB at 300 GB/s one way
    assert reduced.link_share == pytest.approx(24e6 / 300e9 / 100.5e-6)
    # the number of ranks from the shapes: what is gathered over what is given
    assert (gathered.message.op, gathered.message.ranks, gathered.message.nbytes) == ("all_gather", 8, 8 << 20)
    assert gathered.bus_bytes_per_s == pytest.approx(7 / 8 * (8 << 20) / 60.5e-6)


def test_the_rank_that_comes_last_waits_least(tmp_path: Path) -> None:
    """The second rank waits 50 us in the second all-reduce; the first 20, 10 and 10 us in the others."""
    first, second = (traced(tmp_path / f"rank{i}", times) for i, times in enumerate((FIRST, SECOND)))
    one, other = rank_waits([first, second])
    assert (one.count, one.last, other.last) == (4, 1, 3)
    assert (one.waits_s, other.waits_s) == (pytest.approx(40e-6), pytest.approx(50e-6))
    assert one.measured_s == pytest.approx(sum(FIRST) * 1e-6)


def test_ranks_without_a_collective_in_common_are_refused(tmp_path: Path) -> None:
    first = traced(tmp_path / "rank0", FIRST)
    (tmp_path / "rank1").mkdir()
    other = read_trace(write(tmp_path / "rank1", [kernel("k", 1, 2.5, 1)]))
    with pytest.raises(UsageError, match="no collective in common: give traces of the same step"):
        rank_waits([first, other])


@pytest.mark.defect("26")
def test_collectives_that_other_ranks_do_not_have_are_said(tmp_path: Path) -> None:
    """Collectives that are not in the traces of all ranks were left out of the table of ranks without a word.

    The second rank has no third all-reduce and no all-gather."""
    first = traced(tmp_path / "rank0", FIRST)
    (tmp_path / "rank1").mkdir()
    other = read_trace(
        write(tmp_path / "rank1", [event for i in range(2) for event in all_reduce(1000 * i, 90.5, i + 1)])
    )
    analysis = analyse(first, load_gpu("a100-80gb-sxm"), others=[other])
    said = ("trace.json: 2 of 4 collectives are not in the traces of all ranks and were left out: "
            "all_reduce of 16.00 MB (1), all_gather of 8.39 MB (1)")  # fmt: skip
    assert said in analysis.notes
    assert sum("left out" in note for note in analysis.notes) == 1


@pytest.mark.slow
def test_those_of_a_real_trace_are_near_the_model() -> None:
    """Large messages of eight A100, which wait for nobody when they are shortest."""
    path = shared("traces/a100_inductor_train_rank0.json.gz")
    if path is None:
        pytest.skip("the real traces are not here")
    rows = collectives(real_trace(path), load_cluster("dgx-a100-80gb"))
    large = [row for row in rows if row.message.ranks == 8 and row.message.nbytes > 64 << 20]
    assert sorted(row.message.op for row in large) == ["all_gather", "reduce_scatter"]
    for row in large:
        assert row.modeled is not None
        assert row.modeled.time_s == pytest.approx(row.shortest_s, rel=0.1)
        assert 0.5 < (row.link_share or 0) < 1


@pytest.mark.parametrize(("cluster", "said"), [("l40s-8-pcie", True), ("dgx-a100-80gb", False)])
def test_links_that_cannot_carry_a_collective_are_not_those_of_the_trace(
    tmp_path: Path, cluster: str, said: bool
) -> None:
    """16 MB between 4 ranks in 100.5 us: each sends 16 MB or more, for which PCIe at 32 GB/s needs 500 us."""
    found = analyse(traced(tmp_path / "rank0", FIRST), load_gpu("a100-80gb-sxm"), cluster=load_cluster(cluster))
    text = " ".join(render(TraceReport(found), "text").split())
    assert (
        f"2 of 2 rows took less time than the links of {cluster} need: the trace is of another cluster" in text
    ) is said
