"""Clusters: their files, groups of a job, and what a link takes from similar ones."""

from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.cluster import (
    SCHEMA,
    cluster_names,
    cluster_of,
    hardware_of,
    joined,
    load_cluster,
    stated_clusters,
)  # fmt: skip
from memwall.hardware.links import KINDS, PROTOCOLS
from memwall.hardware.lookup import load_gpu

MINE = f"""schema = "{SCHEMA}"
name = "mine"
gpu = "h100-sxm"
gpus_per_node = 4

[link.nvlink]
kind = "nvlink"
gpus = 4
bytes_per_s = 150e9  # by hand

[link.nvlink.protocols]
simple = {{ start_s = 1e-6, step_s = 0, fill_s = 0, share = 0.5 }}

[link.network]
kind = "ethernet"
gpus = 0
bytes_per_s = 12.5e9
rails = 2
"""


def load(folder: Path, text: str = MINE):
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return load_cluster(str(path))


@pytest.mark.parametrize("name", cluster_names())
def test_files_state_every_rate_and_protocol_with_its_source(name):
    made = load_cluster(name)
    assert made.name == name and made.full_name and hardware_of(made)
    for link_name, link in made.link.items():
        assert made.sources[f"link.{link_name}.bytes_per_s"]
        own = next(each for each in stated_clusters() if each.name == name).link[link_name].protocols
        assert all(made.sources[f"link.{link_name}.protocols.{protocol}"] for protocol in own)
        # a switch, a ring and pairs find what they need, of their own or of a similar link
        wanted = {"ll", "ll128", "simple", "direct_ll", "direct"} | ({"nvls"} if link.kind == "nvls" else set())
        assert wanted <= set(link.protocols)
        assert set(link.protocols) - set(own) == {
            key.partition(".")[2] for key in made.taken_from if key.startswith(f"{link_name}.")
        }
        assert all(link.kind in PROTOCOLS[protocol] for protocol in link.protocols)
    assert set(made.eager_s) >= {"nccl", "custom"}


def test_the_rate_of_nvlink_is_half_of_the_gpus():
    """A GPU's file states both directions."""
    for name in cluster_names():
        made = load_cluster(name)
        first = next(iter(made.link.values()))
        if KINDS[first.kind][0] == "nvlink" and not name.endswith("pairs"):
            assert first.bytes_per_s == hardware_of(made).link_bytes_per_s / 2


@pytest.mark.parametrize(("gpu", "cluster"), [("h100-sxm", "tpu-v5e-4x4"), ("tpu-v5e", "dgx-h100")])
def test_tpus_are_not_joined_as_gpus_are(gpu, cluster):
    with pytest.raises(UsageError, match="whose links are of another kind"):
        joined([load_gpu(gpu)], cluster)


def test_a_job_fills_nodes_of_equal_size():
    dgx = load_cluster("dgx-h100")
    assert dgx.groups(8) == (8, 1) and dgx.groups(16) == (8, 2) and dgx.groups(2) == (2, 1)
    assert dgx.groups(12) == (6, 2)
    assert dgx.groups(8, 4) == (4, 2) and dgx.groups(2, 1) == (1, 2)
    assert load_cluster("a100-4-pairs").groups(4) == (2, 2)
    assert load_cluster("l40s-8-pcie").groups(16) == (2, 2, 2, 2)
    # an NVLink domain is wider than a node
    assert load_cluster("gb200-nvl72").groups(8, 4) == (8, 1)


def test_a_file_of_ones_own_takes_what_it_lacks_from_similar_links(tmp_path):
    made = load(tmp_path)
    link = made.link["nvlink"]
    assert link.protocols["simple"].share == 0.5 and "nvlink.simple" not in made.taken_from
    # of another cluster of the same GPU
    assert made.taken_from["nvlink.ll"] == "dgx-h100"
    assert link.protocols["ll"] == load_cluster("dgx-h100").link["nvlink"].protocols["ll"]
    assert "nvls" not in link.protocols
    assert made.sources["link.nvlink.bytes_per_s"] == "by hand"
    assert made.link["network"].rate(4, 2) == 25e9 and made.link["network"].rate(1, 2) == 12.5e9


def test_a_slow_network_lends_nothing(tmp_path):
    """Azure's adapters reach a quarter of their rate; another cluster of A100s takes what a DGX has."""
    made = load(tmp_path, MINE.replace("h100-sxm", "a100-80gb-sxm").replace("ethernet", "infiniband"))
    taken = {source for key, source in made.taken_from.items() if key.startswith("network.")}
    assert not any("azure" in source for source in taken)
    assert load_cluster("azure-nd-a100-v4").link["network"].protocols["simple"].share < 0.3
    assert made.link["network"].protocols["simple"].share > 0.9


@pytest.mark.parametrize(("before", "after", "message"), [
    (SCHEMA, "memwall.gpu/1", "schema is 'memwall.gpu/1'; want 'memwall.cluster/1'"),
    ('"h100-sxm"', '"h1000"', "no GPU named 'h1000'"),
    ("gpus_per_node", "gpus_per_nod", "no key named 'gpus_per_nod'; did you mean gpus_per_node?"),
    ("rails", "rail", "link.network: no key named 'rail'; did you mean rails?"),
    ("start_s", "begin_s", "link.nvlink.protocols.simple: no key named 'begin_s'"),
    ("simple =", "ll129 =", "no protocol of nvlink 'll129'; did you mean ll128?"),
    ("simple =", "nvls =", "no protocol of nvlink 'nvls'"),
    ('"ethernet"', '"token ring"', "kind is 'token ring'; want one of nvlink"),
    ("150e9", "-1", "bytes_per_s must be a positive number"),
    ("share = 0.5", "share = 2", "share must be a fraction above 0"),
    ("rails = 2", "rails = 0", "rails must be at least 1"),
    ("gpus = 4\nb", "gpus = 0\nb", "each link joins more GPUs than the one before"),
    ("rails = 2", "rings = [1]", "rings has a number above 0 for each of 2, 3"),
    ("[link.network]", "[eager_s]\nmpi = 1\n[link.network]", "no library 'mpi'"),
    ("name =", "name", "is not TOML"),
])  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line(tmp_path, before, after, message):
    assert before in MINE
    with pytest.raises(UsageError) as caught:
        load(tmp_path, MINE.replace(before, after, 1))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_name_has_a_suggestion():
    with pytest.raises(UsageError, match=r"^no cluster named 'dgx-h10'; did you mean dgx-h100\?$"):
        load_cluster("dgx-h10")


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [("h100-sxm", "aws-p5"), ("b200", "aws-p6-b200"), ("a10", "l40s-8-pcie"), ("h100-pcie", "h100-4-pairs")],
)
def test_a_gpu_has_a_cluster_with_its_own_sort_of_link(gpu, cluster):
    """An A10 has PCIe 4 x16 alone; an H100 PCIe a bridge to one other."""
    assert cluster_of(load_gpu(gpu)).name == cluster
