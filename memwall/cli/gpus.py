"""``memwall gpus``: the hardware table, one GPU with its sources, a check of a user's own file."""

from __future__ import annotations

import json

import click

from memwall.cli import options
from memwall.cli.output import show, terminal
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError
from memwall.hardware.lookup import all_gpus, identity_violations, load_gpu, read_spec


@click.command("gpus", cls=Command)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--check", "checked", metavar="FILE", help="Check a TOML file of your own: keys, units and identities.")
@options.as_json
@options.debug
def command(names: tuple[str, ...], checked: str | None, as_json: bool) -> None:
    """List all GPUs; with NAME, show that one and where each of its numbers comes from.

    NAME is forgiving (h100, "NVIDIA H100 80GB HBM3"); a path to a TOML file works too.
    """
    if checked is not None:
        _check(checked)
        return
    gpus = [load_gpu(name) for name in names] or list(all_gpus())
    if as_json:
        show(json.dumps([gpu.to_dict() for gpu in gpus], indent=2))
        return
    from memwall.report.text import render_gpu, render_gpus

    if names:
        show("\n".join(render_gpu(gpu, **terminal()) for gpu in gpus))
    else:
        show(render_gpus(gpus, **terminal()))


def _check(path: str) -> None:
    gpu = read_spec(path)
    violations = identity_violations(path)
    if violations:
        raise UsageError("\nmemwall: ".join(violations))
    show(f"{path}: {gpu.name} is fine")
