"""Collectives between GPUs: bytes and steps by hand, what is taken when, and held-out rows of others."""

import importlib.util
import math
from dataclasses import replace
from statistics import fmean

import pytest

from memwall.analysis.communication import comm
from memwall.bench.accuracy.reading import read_measured
from memwall.core.errors import UsageError
from memwall.hardware.cluster import hardware_of, load_cluster
from memwall.hardware.links import Cluster, Link, Protocol
from memwall.perfmodel.collective_algorithms import OPS
from memwall.perfmodel.collectives import collective_s, taken_shares
from memwall_lab.collectives import CollectiveSample
from tests.unit.places import ROOT, is_whole, truth

MB = 1e6
#: 1 us to start, 2 us a step, half of the rate, no pieces
PLAIN = Protocol(start_s=1e-6, step_s=2e-6, fill_s=0.0, share=0.5)


def cluster(kind: str = "nvswitch", *protocols: str, rails: int = 8) -> Cluster:
    """Nodes of 8 GPUs at 100 GB/s, joined by adapters of 10 GB/s."""
    how = dict.fromkeys(protocols or ("simple", "direct"), PLAIN)
    inner = Link(kind, 8, 100e9, protocols=how)
    outer = {name: known for name, known in how.items() if name not in ("nvls", "one_shot", "two_shot")}
    return Cluster(
        "made up", "h100-sxm", 8, {"nvlink": inner, "net": Link("infiniband", 0, 10e9, rails, protocols=outer)}
    )


#: op → what each of 8 GPUs sends of 80 MB, in MB, and its steps
BY_HAND = {
    "all_reduce": (140.0, 14),  # 2 x 7/8
    "all_gather": (70.0, 7),  # 7/8
    "reduce_scatter": (70.0, 7),
    "all_to_all": (70.0, 7),
    "broadcast": (80.0, 7),
}


@pytest.mark.parametrize("op", BY_HAND)
def test_a_node_by_hand(op):
    sent, steps = BY_HAND[op]
    found = collective_s(op, 80 * MB, 8, cluster())
    assert found.sent_bytes == {"nvlink": pytest.approx(sent * MB)}
    # 100 GB/s are 0.1 MB/us, half of it reached: 1 us + 2 us a step + 20 us for each MB
    assert found.time_s == pytest.approx(1e-6 + steps * 2e-6 + sent * 20e-6)
    assert found.wire_s == found.bound_s == pytest.approx(sent * 10e-6)


def test_a_transfer_by_hand():
    found = collective_s("send_recv", 80 * MB, 2, cluster())
    assert found.sent_bytes == {"nvlink": 80 * MB} and found.time_s == pytest.approx(3e-6 + 1600e-6)


def test_a_ring_over_nodes_crosses_all_rails():
    """2 nodes of 8: 2 x 15/16 of 80 MB leave each GPU, and each node, over 8 adapters at 10 GB/s or over 2."""
    found = collective_s("all_reduce", 80 * MB, 16, cluster())
    assert found.algorithm == "ring" and found.sent_bytes == {"nvlink": 150 * MB, "net": 150 * MB}
    # NVLink needs 1,500 us at its nominal rate, 8 adapters 1,875 us; 30 steps at half of the rate
    assert found.wire_s == pytest.approx(1875e-6)
    assert found.time_s == pytest.approx(1e-6 + 30 * 2e-6 + 2 * 1875e-6)
    few = collective_s("all_reduce", 80 * MB, 16, cluster(rails=2))
    assert few.wire_s == pytest.approx(7500e-6)
    # one GPU of each node: one adapter, whatever the rails
    assert collective_s("all_reduce", 80 * MB, 2, cluster(), per_node=1).wire_s == pytest.approx(8000e-6)


def test_in_a_hierarchy_nodes_exchange_only_sums():
    """16 GPUs: all sum in the switch, (8 + 1)/8 of 80 MB; then 2 nodes exchange 2 x 1/2 of it over 8 adapters."""
    found = collective_s("all_reduce", 80 * MB, 16, cluster("nvls", "simple", "nvls"))
    assert found.algorithm == "nvls"
    assert found.sent_bytes == {"nvlink": pytest.approx(90 * MB), "net": pytest.approx(80 * MB)}
    # 900 us and 1,000 us nominal, twice that at half of the rate; 1 step in the switch and 2 between nodes
    assert found.time_s == pytest.approx(1e-6 + 3 * 2e-6 + 2 * 1000e-6)
    # an all-gather of 80 MB: 7/8 inside, 1/2 between
    gathered = collective_s("all_gather", 80 * MB, 16, cluster("nvls", "simple"))
    assert gathered.algorithm == "hierarchical"
    assert gathered.sent_bytes == {"nvlink": pytest.approx(70 * MB), "net": pytest.approx(40 * MB)}


def test_an_all_to_all_sends_most_over_the_network():
    """Of 16 parts of 5 MB each GPU sends 7 in its node and 8 to the other: 8 GPUs send 320 MB over 8 adapters."""
    found = collective_s("all_to_all", 80 * MB, 16, cluster())
    assert found.sent_bytes == {"nvlink": pytest.approx(35 * MB), "net": pytest.approx(320 * MB)}
    assert found.wire_s == pytest.approx(4000e-6)


def test_trees_have_fewer_steps_between_many_nodes():
    """8 bytes on 64 nodes of 8: a ring has 1,022 steps, a chain and a double tree 2 x (7 + 6)."""
    found = collective_s("all_reduce", 8, 512, cluster())
    assert found.algorithm == "tree"
    # 7 of the chain in a node and 6 of the tree, there and back
    assert found.time_s == pytest.approx(1e-6 + 2 * (7 + 6) * 2e-6, rel=1e-4)
    # of a large message the ring sends less
    assert collective_s("all_reduce", 1e9, 32, cluster()).algorithm == "ring"


def test_custom_all_reduces_by_hand():
    made = cluster("nvswitch", "simple", "one_shot", "two_shot")
    # one-shot: 3 messages of 8 kB are read, in 3 steps; two-shot: 2 x 3/4 in 6 steps
    small = collective_s("all_reduce", 8_000, 4, made, library="custom")
    assert small.algorithm == "one-shot" and small.time_s == pytest.approx(1e-6 + 6e-6 + 24_000 / 50e9)
    large = collective_s("all_reduce", 8 * MB, 4, made, library="custom")
    assert large.algorithm == "two-shot" and large.time_s == pytest.approx(1e-6 + 12e-6 + 12 * MB / 50e9)
    # beyond 8 MiB, and of other ops, they call NCCL
    assert collective_s("all_reduce", 9 * MB, 4, made, library="custom").algorithm == "ring"
    assert collective_s("all_gather", 8_000, 4, made, library="custom").algorithm == "ring"


def test_a_pipeline_fills():
    """4 us of bytes in the best number of pieces of 1 us each to fill: 4 + 2 sqrt(4 x 1) = 8 us."""
    how = {"simple": Protocol(0.0, 0.0, 1e-6, 1.0)}
    made = Cluster("made up", "h100-sxm", 8, {"nvlink": Link("nvswitch", 8, 100e9, protocols=how)})
    assert collective_s("all_gather", 800_000, 2, made).time_s == pytest.approx(8e-6)


def test_calls_from_python_wait_for_the_host():
    made = replace(cluster("nvswitch", "simple", "one_shot", "two_shot"), eager_s={"nccl": 40e-6, "custom": 20e-6})
    assert collective_s("all_reduce", 8, 2, made, launch="eager").time_s == 40e-6
    assert collective_s("all_reduce", 8, 2, made, launch="eager", library="custom").time_s == 20e-6
    # a custom all-reduce copies 8 MB first: 16 MB of DRAM
    gpu = hardware_of(made)
    copied_s = 16 * MB / (gpu.dram_bytes_per_s * gpu.achievable["dram"])
    graph = collective_s("all_reduce", 8 * MB, 2, made, library="custom")
    eager = collective_s("all_reduce", 8 * MB, 2, made, library="custom", launch="eager")
    assert eager.time_s == pytest.approx(graph.time_s + copied_s)


def test_rings_of_a_mesh():
    """Of 8 V100s NCCL uses all 6 links, of 2 only the one that joins them."""
    made = load_cluster("dgx-1-v100")
    assert collective_s("all_reduce", 1e9, 2, made).wire_s == pytest.approx(1e9 / 25e9)
    assert collective_s("all_reduce", 1e9, 8, made).wire_s == pytest.approx(1.75e9 / 150e9)


@pytest.mark.parametrize(("given", "message"), [
    ({"op": "all_reduced"}, "no op 'all_reduced'; did you mean all_reduce?"),
    ({"workers": 0}, "dgx-h100 joins 1 to 1,000,000 GPUs, not 0"),
    ({"workers": 9, "per_node": 8}, "9 GPUs are not equally many on each of 2 nodes of 8"),
    ({"workers": 11}, "11 GPUs are not equally many on each of 2 nodes of 8"),
    ({"per_node": 16}, "a node of dgx-h100 has 1 to 8 GPUs, not 16"),
    ({"nbytes": 0}, "a message has 1 byte or more, not 0"),
    ({"library": "mpi"}, "no library 'mpi'; there is nccl, custom, trtllm"),
    ({"launch": "lazy"}, "no launch 'lazy'; there is eager, graph"),
    ({"cluster": "dgx-h10"}, "no cluster named 'dgx-h10'; did you mean dgx-h100?"),
    ({"cluster": "a100-4-pairs"}, "a100-4-pairs joins 1 to 4 GPUs, not 8"),
])  # fmt: skip
def test_bad_input_is_refused(given, message):
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        collective_s(**{"op": "all_reduce", "nbytes": 8, "workers": 8, "cluster": "dgx-h100", **given})


def test_a_table_of_no_bytes_is_refused():
    with pytest.raises(UsageError, match="a message has 1 byte or more, not 0"):
        comm("dgx-h100", least=0)


def test_one_gpu_sends_nothing():
    assert collective_s("all_reduce", 1e9, 1, "dgx-h100").time_s == 0.0


@pytest.mark.parametrize("name", ["dgx-1-v100", "dgx-h100", "gb200-nvl72", "l40s-8-pcie", "mi300x-8"])
def test_times_grow_with_the_message_and_keep_their_bound(name):
    for op in OPS:
        for workers in (2, 4, 8, 16):
            found = [collective_s(op, 1 << i, workers, name) for i in range(4, 34, 2)]
            times = [each.time_s for each in found]
            assert times == sorted(times) and all(each.bound_s <= each.time_s < math.inf for each in found)


@pytest.fixture(scope="module")
def held_out(request):
    """Rows of shapes that no constant saw."""
    path = truth("nccl_collectives.csv")
    if path is None:
        pytest.skip("shared/truth/nccl_collectives.csv is not here")
    found = [sample for sample in read_measured(path).of(CollectiveSample) if not sample.in_fit_half]
    return found if is_whole(request) else found[::3]


def error(samples):
    rows = [sample.row() for sample in samples]
    assert len(rows) > 20
    return fmean(abs(row.modeled_s / row.measured_s - 1) for row in rows)


NVLINK = ("a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm", "gb200", "gb300")


@pytest.mark.slow
def test_held_out_rows_inside_nvlink(held_out):
    """Goals: 12 % under 1 MiB and 10 % from there; measured 8.4 and 9.2, without vTrain's rows 10.2."""
    inside = (*NVLINK, "a100_sxm(vtrain)", "v100(vtrain)")
    own = [sample for sample in held_out if sample.label in inside and sample.cluster.name != "aws-p6-b200"]
    assert error([sample for sample in own if sample.nbytes < 1 << 20]) < 0.10
    assert error([sample for sample in own if sample.nbytes >= 1 << 20]) < 0.10


@pytest.mark.slow
def test_a_gpu_left_out(held_out):
    """Goal: 15 %; measured 9.3 to 14.4."""
    for label in NVLINK:
        assert error([each.left_out() for each in held_out if each.label == label][::2]) < 0.16


def test_no_measured_time_is_below_its_bound(held_out):
    rows = [sample.row() for sample in held_out]
    assert len(rows) > 1600 and not [row for row in rows if row.is_violation]


def test_messages_hold_a_multiprocessor_for_each_channel():
    """24 of an H100's 132 inside a node, 16 over InfiniBand, and a tenth of 3.35 TB/s."""
    links, gpu = load_cluster("dgx-h100").link, hardware_of(load_cluster("dgx-h100"))
    assert taken_shares(links["nvlink"], gpu) == (24 / 132, 0.0)
    assert taken_shares(links["network"], gpu, 335e9) == (16 / 132, pytest.approx(0.1))
    assert taken_shares(None, gpu) == (24 / 132, 0.0)


def test_constants_of_a_protocol_are_found_again():
    """Times that were made with another start and rate of DGX H100's Simple, messages from 16 MiB on in a ring."""
    pytest.importorskip("scipy")
    spec = importlib.util.spec_from_file_location("fit_collectives", ROOT / "lab" / "fits" / "fit_collectives.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    cluster = load_cluster("dgx-h100")
    link = cluster.link["nvlink"]
    planted = replace(link.protocols["simple"], start_s=2e-5, share=0.6)
    other = replace(cluster, link={**cluster.link, "nvlink": replace(link, protocols={"simple": planted})})
    alone = replace(cluster, link={**cluster.link, "nvlink": replace(link, protocols={
        "simple": link.protocols["simple"]})})  # fmt: skip
    samples = [
        CollectiveSample("made up", "h100", cluster, "all_gather", "half", 1 << size, workers, None, "nccl", "graph",
                         collective_s("all_gather", 1 << size, workers, other).time_s)
        for size in range(16, 31) for workers in (2, 4, 8)
    ]  # fmt: skip
    found = tool.fitted(alone, "nvlink", "simple", samples)
    assert max(abs(ratio - 1) for ratio in tool.ratios(samples, alone)) > 0.3
    assert max(abs(ratio - 1) for ratio in tool.ratios(samples, found)) < 0.05
    assert found.link["nvlink"].protocols["simple"].share == pytest.approx(0.6, rel=0.1)


@pytest.mark.defect("40")
def test_links_without_a_way_are_refused():
    """The fastest of no algorithms was asked for where the links of a cluster state no protocol that one can use."""
    bare = replace(cluster(), link={"nvlink": Link("nvswitch", 8, 100e9, protocols={"one_shot": PLAIN})})
    with pytest.raises(UsageError, match=r"made up: nccl has no algorithm for all_gather over nvlink \(nvswitch\)"):
        collective_s("all_gather", MB, 8, bare)


@pytest.mark.defect("44d")
def test_two_gpus_of_two_nodes_have_no_all_reduce_of_the_servers():
    """Servers' own all-reduces, which read the other GPUs' memory, were taken for any two GPUs, also where an adapter
    alone joins them."""
    alone = replace(cluster("nvswitch", "simple", "direct", "one_shot", "two_shot"), gpus_per_node=1)
    apart = replace(alone, link={"net": alone.link["net"]})
    custom, nccl = (collective_s("all_reduce", 1e3, 2, apart, library=library) for library in ("custom", "nccl"))
    assert custom == nccl
