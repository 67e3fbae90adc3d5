"""Rows of ``memwall measure``, and tables that only a traced model can be compared with."""

from __future__ import annotations

from memwall.analysis.accuracy.samples import Sample
from memwall.analysis.accuracy.scores import Row
from memwall.analysis.accuracy.tables.base import Record, Skip, Table, seconds
from memwall.analysis.validation import COLUMNS, Pair, devices
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost, graph_costs
from memwall.record.profile import Profile


def own_row(record: Record) -> Row:
    """A row of ``memwall.analysis.validation.COLUMNS``: what ``memwall measure -o rows.csv`` writes.

    Raises:
        Skip: it was not timed.
        ValueError: a time is not a number of seconds.
    """
    if record["status"] != "ok":
        raise Skip(f"status {str(record['status'])[:40]!r}")
    return Row(
        f"memwall {record['executor']}", record["gpu"], record["class"], record["dtype"],
        seconds(record, "modeled_s", 1.0, least=0.0), seconds(record, "measured_s", 1.0),
        seconds(record, "bound_s", 1.0, least=0.0),
    )  # fmt: skip


def profile_samples(profile: Profile) -> list[Sample]:
    """The timed eager kernels of a profile that ran one op, on the GPUs that have specs.

    ``memwall measure`` replays a graph of the kernel with L2 cleared before it.
    """
    samples = []
    for device in devices(profile):
        gpu = next((s.gpu for s in profile.simulations if s.gpu.name == device.gpu), None)
        if gpu is None or gpu.cpu is not None:
            continue
        costs = graph_costs(device.graph)
        for run in device.runs:
            for pair in run.measured if run.measurement.executor == "eager" else ():
                if len(pair.kernel.op_ids) == 1 and pair.measured_s:
                    samples.append(_sample(gpu, pair, costs[pair.kernel.op_ids[0]]))
    return samples


def _sample(gpu: Gpu, pair: Pair, cost: Cost) -> Sample:
    return Sample("memwall eager", gpu.name, gpu, pair.kernel.op_class, pair.dtype, f"{pair.kernel.name} {pair.shapes}",
                  cost, "graph", 0, pair.measured_s or 0.0)  # fmt: skip


OWN = Table(
    "measured kernels as memwall writes them", "gpu executor class dtype modeled_s measured_s bound_s status", own_row
)
assert OWN.columns <= set(COLUMNS)
