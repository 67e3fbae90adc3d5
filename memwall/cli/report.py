"""``memwall report``: a saved profile, rendered again; or a history of figures, as a trend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Out, print_text
from memwall.cli.parsing import Command, SeveralOption
from memwall.core.errors import UsageError
from memwall.report.reading import page_at
from memwall.wings import part

#: records with a schema
SCHEMAS = ("profile", "measurement", "comparison", "fusion", "gate", "trace", "trace_comparison", "accuracy", "drift",
           "history", "emit", "serving", "bound", "settings")  # fmt: skip


def _print_schema(context: click.Context, _: click.Parameter, name: str | None) -> None:
    if name is not None and not context.resilient_parsing:
        from memwall.report.json_schema import schema_text

        print_text(schema_text(name))
        context.exit()


@click.command(
    "report",
    cls=Command,
    examples=(
        ("memwall report step.json -o page.html", "A saved profile as a page."),
        (
            "memwall report --history history.jsonl --quantity time_s kernels",
            "How two figures went from commit to commit.",
        ),
    ),
)
@click.argument("record", metavar="[PROFILE]", required=False, shell_complete=options.completing("files"))
@click.option(
    "--history", metavar="FILE", help="Show a history that memwall gate --history wrote: a trend and its steps."
)
@click.option(
    "--quantity", "quantities", cls=SeveralOption, metavar="NAME...",
    help="What of a history to show: time_s, dram_bytes, kernels, or another that a gate limits.",
)  # fmt: skip
@click.option(
    "--schema", type=click.Choice(SCHEMAS), is_eager=True, expose_value=False, callback=_print_schema,
    help="Print the JSON schema of a record instead.",
)  # fmt: skip
@options.shape
@options.common("report.pages.profile.ProfileReport")
def command(record: str | None, history: str | None, quantities: tuple[str, ...], out: Out, **shape: Any) -> None:
    """Print a saved PROFILE (.json); with -o, write it as another kind. What memwall fuse and memwall serve wrote with
    -o FILE.json is printed too.

    With --history, print how figures went from commit to commit instead; with -o, write it as HTML, Markdown, CSV, PNG,
    SVG or PDF.
    """
    given, flags = options.shape_options(**shape), options.on_command_line()
    if history is not None:
        unused = {"PROFILE": record, "--json": out.as_json, **{flags[name]: given[name] for name in given}}
        if named := [name for name, value in unused.items() if value]:
            raise UsageError(f"{named[0]} has no use for a history; leave it out (a history is JSON lines itself)")
        page = part("gate.HistoryReport")
        out.plan(page)
        out.show(page(part("gate.read")(Path(history)), quantities))
        return
    if record is None:
        raise UsageError("nothing to show: name a saved profile, or a history with --history")
    if quantities:
        raise UsageError("--quantity is of a --history; a profile has --sort")
    part("traces.refuse_trace")(record)
    report, taken = page_at(record)
    if others := given.keys() - taken:
        raise UsageError(f"{min(flags[name] for name in others)} has no use for {report.noun}; leave it out")
    out.plan(report)
    out.show(report.load(record, **given))
