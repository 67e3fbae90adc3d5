"""``memwall gpus``: the hardware table, one GPU with its sources, a check of a user's own file."""

from __future__ import annotations

import click

from memwall.cli import options
from memwall.cli.output import Out, print_text
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError
from memwall.hardware.lookup import all_gpus, identity_violations, load_gpu, read_spec


@click.command(
    "gpus",
    cls=Command,
    examples=(
        ("memwall gpus h100", "One GPU, with the source of each number."),
        ("memwall gpus --check mine.toml", "Whether a file of your own is well formed."),
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=options.completing("gpus"))
@click.option("--check", "checked", metavar="FILE", help="Check a TOML file of your own: keys, units and identities.")
@options.as_json
@options.debug
def command(names: tuple[str, ...], checked: str | None, as_json: bool) -> None:
    """List all GPUs; with NAME, show that one and where each of its numbers comes from.

    NAME is forgiving (h100, "NVIDIA H100 80GB HBM3"); a path to a TOML file works too.
    """
    if checked is not None:
        gpu = read_spec(checked)
        if violations := identity_violations(checked):
            raise UsageError("\nmemwall: ".join(violations))
        print_text(f"{checked}: {gpu.name} is fine")
        return
    from memwall.report.pages.gpus import GpuReport, GpusReport

    gpus = [load_gpu(name) for name in names]
    out = Out.of(as_json=as_json)
    if out.as_json or not gpus:
        out.show(GpusReport(gpus or list(all_gpus())))
        return
    for i, gpu in enumerate(gpus):
        if i:
            print_text("")
        out.show(GpuReport(gpu))
