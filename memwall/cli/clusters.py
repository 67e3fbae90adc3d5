"""``memwall clusters``: the clusters, or one with its links and their sources."""

from __future__ import annotations

import click

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command
from memwall.hardware.cluster import cluster_names, load_cluster
from memwall.hardware.slices import slice_names


@click.command(
    "clusters",
    cls=Command,
    examples=(
        ("memwall clusters dgx-h100", "One cluster, with its links and their sources."),
        ("memwall clusters tpu-v5e-16x16", "A slice of a TPU."),
    ),
)
@click.argument("name", required=False, shell_complete=options.completing("clusters"))
@options.as_json
@options.debug
def command(name: str | None, as_json: bool) -> None:
    """List the clusters; with NAME, or the path of a TOML file, show its links and where each number comes from.

    A slice of a TPU of any size is a cluster by its name: tpu-v5e-16x16, tpu-v4-4x4x8.
    """
    from memwall.report.pages.clusters import ClusterReport, ClustersReport

    if name is None:
        Out(as_json=as_json).show(ClustersReport([load_cluster(each) for each in (*cluster_names(), *slice_names())]))
    else:
        Out(as_json=as_json).show(ClusterReport(load_cluster(name)))
