"""``memwall comm``: how long collectives take between the GPUs of a cluster, as nccl-tests print it."""

from __future__ import annotations

import re
from typing import Any

import click

from memwall.analysis.communication import comm
from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError
from memwall.perfmodel.collectives import CollectiveOptions

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


class Bytes(click.ParamType):
    """A size as nccl-tests take it: ``512``, ``1K``, ``8M``, in powers of 1024."""

    name = "bytes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(?:I?B)?", str(value).upper())
        if not found or not int(found[1]):
            raise UsageError(f"{param.opts[0] if param else 'size'}: a size is as in 512, 1K, 8M or 1G, not {value!r}")
        return int(found[1]) << _UNITS[found[2]]


@click.command(
    "comm",
    cls=Command,
    examples=(
        ("memwall comm --cluster dgx-h100 --gpus 16 --min 1M", "All-reduces over two nodes, from a megabyte on."),
        (
            "memwall comm --cluster dgx-h100 --op all_gather reduce_scatter -o collectives.csv",
            "Two collectives as a table.",
        ),
    ),
)
@click.option("--cluster", required=True, metavar="NAME", shell_complete=options.completing("clusters"),
              help="See memwall clusters; the path of a TOML file works too.")  # fmt: skip
@click.option(
    "--op",
    "ops",
    cls=SeveralOption,
    metavar="NAME...",
    help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv. [default: all_reduce]",
)
@click.option("--gpus", "--world", "gpus", type=int, metavar="N",
              help="GPUs that take part. [default: the GPUs of a node]")  # fmt: skip
@options.asked(CollectiveOptions, "per_node")
@click.option("--min", "least", type=Bytes(), default="1K", show_default=True, help="The smallest message.")
@click.option(
    "--max", "most", type=Bytes(), default="1G", show_default=True, help="The largest; each is twice the last."
)
@options.question(CollectiveOptions, but=("per_node",))
@options.common("report.pages.clusters.CommReport")
def command(out: Out, cluster: str, ops: tuple[str, ...], gpus: int | None, least: int, most: int, **how: Any) -> None:
    """Model the time of collectives by message size: time, algorithm and bus bandwidth, and what was taken.

    Sizes are as nccl-tests define them. No GPU is needed.
    """
    from memwall.report.pages.clusters import CommReport

    out.plan(CommReport)
    out.show(CommReport(comm(cluster, ops or "all_reduce", gpus=gpus, least=least, most=most, **how)))
