"""``memwall ops``: which ops are costed, fused, generated and read from traces."""

from __future__ import annotations

import click

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command


@click.command("ops", cls=Command, examples=(("memwall ops attention", "Each op of one family."),))
@click.argument("families", nargs=-1, metavar="[FAMILY]...")
@options.as_json
@options.debug
def command(families: tuple[str, ...], as_json: bool) -> None:
    """Say what is covered for each family of ops; with FAMILY, for each op of it.

    cost: FLOPs and bytes are counted; an op without is charged its bytes. fusion: the planner knows its loop nest.
    codegen: a Triton kernel is generated for it. traces: its results are derived from a recorded call.
    """
    from memwall.report.pages.ops import OpsReport, coverage

    Out(as_json=as_json).show(OpsReport(coverage(families), by_family=not families))
