"""``memwall accuracy``: the model scored against measured kernels."""

from __future__ import annotations

import click

from memwall.cli import options
from memwall.cli.output import Messages, plan_outputs, show, terminal, write_all
from memwall.cli.parsing import Command

#: Kinds of files that there are none of.
WITHOUT = ("html", "parquet", "png", "svg", "trace.json")


@click.command("accuracy", cls=Command)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options.common
def command(
    files: tuple[str, ...], outputs: tuple[str, ...], as_json: bool, quiet: bool, no_progress: bool
) -> None:
    """Score the model against measured kernels.

    FILE is a saved profile that memwall measure wrote (.json), or a table of its rows (.csv). For each data set, GPU,
    op class and dtype: mean, median and 90th percentile of the error, its bias (above 0: modeled too slow), rank
    correlation, how many are within 20 %, and how many were faster than the speed of light, which is our error. Each
    distinct kernel counts once. -o writes .md, .csv, .json or .txt.
    """
    from memwall.accuracy import read_rows
    from memwall.report.accuracy import render_accuracy

    planned = plan_outputs(outputs, without=WITHOUT)
    messages = Messages(quiet=quiet, no_progress=no_progress)
    rows = [row for file in dict.fromkeys(files) for row in read_rows(file)]
    rendered = [(output.path, render_accuracy(rows, output.kind)) for output in planned]
    printed = render_accuracy(rows, "json") if as_json else render_accuracy(rows, "text", **terminal())
    write_all(rendered, messages.say)
    show(printed)
