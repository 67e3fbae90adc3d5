"""``memwall report``: a saved profile, rendered again."""

from __future__ import annotations

from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Messages, emit, plan_outputs
from memwall.cli.parsing import Command


@click.command("report", cls=Command)
@click.argument("record", metavar="PROFILE")
@options.shape
@options.common
def command(
    record: str, outputs: tuple[str, ...], as_json: bool, quiet: bool, no_progress: bool, **shape: Any
) -> None:
    """Print a saved PROFILE (.json); with -o, write it as HTML, Markdown, CSV, Parquet, PNG, SVG or a trace."""
    from memwall.profile import Profile

    planned = plan_outputs(outputs)
    messages = Messages(quiet=quiet, no_progress=no_progress)
    profile = Profile.load(record)
    emit(profile, planned, as_json=as_json, say=messages.say, **options.given(**shape))
