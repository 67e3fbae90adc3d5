"""Tables of collectives: of nccl-tests and of inference servers, and NCCL's all-reduce as Vidur timed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from memwall.bench.accuracy.kinds import Record, Skip, TableKind, seconds
from memwall.core.errors import UsageError
from memwall.hardware.cluster import load_cluster
from memwall.hardware.links import Cluster
from memwall_lab.collectives import CollectiveSample
from memwall_lab.tables.base import known, size

#: data sets' names of GPUs → the cluster that they were timed in
_CLUSTERS: Mapping[str, str] = {
    "a100_sxm": "dgx-a100-80gb", "h100_sxm": "dgx-h100", "h200_sxm": "dgx-h200", "b200_sxm": "hgx-b200",
    "b300_sxm": "hgx-b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72", "l40s": "l40s-8-pcie",
    "rtx_pro_6000_server": "rtx-pro-6000-8-pcie",
    "a100_dgx": "azure-nd-a100-v4", "h100_dgx": "dgx-h100", "a100_pairwise_nvlink": "a100-4-pairs",
    "h100_pairwise_nvlink": "h100-4-pairs", "v100(vtrain)": "dgx-1-v100", "a100_sxm(vtrain)": "dgx-a100-80gb",
}  # fmt: skip
_OPS: Mapping[str, tuple[str, str]] = {
    "all_reduce": ("all_reduce", "nccl"), "all_gather": ("all_gather", "nccl"), "alltoall": ("all_to_all", "nccl"),
    "reduce_scatter": ("reduce_scatter", "nccl"), "broadcast": ("broadcast", "nccl"),
    "send_recv": ("send_recv", "nccl"), "all_reduce(custom)": ("all_reduce", "custom"),
}  # fmt: skip
#: what the name of a library contains if calls from Python were timed
_EAGER = ("_eager", "torch.distributed")


@dataclass(frozen=True)
class Collectives(TableKind):
    """A table of collectives: what a row of it measures."""

    sample: Callable[[Record], CollectiveSample]

    def read(self, record: Record, source: Path) -> Iterator[CollectiveSample]:
        found = self.sample(record)
        try:
            found.cluster.groups(found.workers, found.per_node)
        except UsageError as error:
            raise Skip(str(error)) from None
        yield found


@lru_cache(maxsize=256)
def _cluster(label: str, efa: bool = False) -> Cluster:
    """The cluster that a data set means; a name of memwall's own works too. Raises Skip: no cluster has that name."""
    try:
        return load_cluster("aws-p6-b200" if efa else _CLUSTERS.get(label, label))
    except UsageError:
        raise Skip(f"there is no cluster of the GPU {label[:60]!r}") from None


def _nccl(record: Record) -> CollectiveSample:
    """A row of the nccl-tests' kind; sizes are as they define them."""
    (op, library), lib = known(_OPS, record["op"], "op"), record["lib"]
    cluster = _cluster(record["gpu"], "EFA" in record.get("fabric", ""))
    per_node = size(record, "devices_per_node") if record["devices_per_node"] else None
    if op == "send_recv" and record["gpu"].endswith("pairwise_nvlink"):
        raise Skip("transfers between pairs exceed the rate of their bridge, and are equal for A100 and H100")
    # a transfer's time begins when both sides have called
    eager = any(word in lib for word in _EAGER) and op != "send_recv"
    library = "trtllm" if lib.endswith("TRTLLM") else library
    return CollectiveSample(
        NCCL.name, record["gpu"], cluster, op, record["dtype"], size(record, "bytes"), size(record, "n_gpus"),
        per_node, library, "eager" if eager else "graph", seconds(record, "time_us", 1e-6),
    )  # fmt: skip


def _all_reduce(record: Record) -> CollectiveSample:
    """A call of torch.distributed; its network is a GPU's label and the interconnect, as in ``a100_dgx``."""
    return CollectiveSample(
        ALL_REDUCE.name, record["network"], _cluster(record["network"]), "all_reduce", "float16",
        size(record, "size"), size(record, "num_workers"), size(record, "devices_per_node"), "nccl", "eager",
        seconds(record, "median_ms"),
    )  # fmt: skip


NCCL = Collectives("nccl_collectives", "gpu lib op dtype n_gpus devices_per_node bytes time_us", _nccl)
ALL_REDUCE = Collectives("vidur_allreduce", "network num_workers size median_ms devices_per_node", _all_reduce)
