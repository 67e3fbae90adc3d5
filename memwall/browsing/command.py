"""``memwall open``: the records of a folder in a browser, or as one page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memwall.cli import options
from memwall.cli.output import Messages, plan_output, print_text
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.core.process import end_if_forked
from memwall.core.progress import listening

if TYPE_CHECKING:
    from memwall.browsing.run import RecordFolder


@click.command(
    "open",
    cls=Command,
    examples=(
        ("memwall open", "The records of this folder, in a browser."),
        ("memwall open runs -o records.html", "The list as a file."),
    ),
)
@click.argument("place", metavar="[RECORD|FOLDER]", default=".", shell_complete=options.completing("files"))
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option(
    "-o", "--output", metavar="FILE", help="Write the list and what its records say as one page (.html); serve nothing."
)
@options.quiet
@options.debug
def command(place: str, no_browser: bool, output: str | None, quiet: bool) -> None:
    """Show the records of a folder in a browser: a list of what memwall report reads, and of histories.

    Each record is a page, and profiles that are ticked are compared. With RECORD, the list is of its folder, and
    the browser begins with its page. The pages are served to this machine alone, under an address that is printed and
    has a token; Ctrl-C ends it.
    """
    from memwall.browsing.page import RecordsReport, summary
    from memwall.browsing.run import RecordFolder
    from memwall.report import render

    path, messages = Path(place), Messages(quiet=quiet)
    if not path.exists():
        raise UsageError(f"no such file or folder: {place}")
    is_record = not path.is_dir()
    if output is not None:
        if is_record:
            raise UsageError(f"-o is of a folder; memwall report {place} -o {output} writes the page of one record")
        if no_browser:
            options.refuse_given("with -o, which serves nothing", "no_browser")
        file = plan_output(output, RecordsReport.kinds)
        folder = RecordFolder(path)
        with listening(messages.progress):
            page = render(RecordsReport(folder, whole=True), file.kind)
        messages.clear()
        write_whole(file.path, page)
        messages.say(f"wrote {file.path}")
        print_text(summary(folder.listed()))
        return
    folder = RecordFolder(path.parent if is_record else path)
    _serve(folder, f"record?n={folder.number_of(path)}" if is_record else "", messages, browser=not no_browser)


def _serve(folder: RecordFolder, page: str, messages: Messages, *, browser: bool) -> None:
    """Serve until a signal comes; tells where, and opens a browser where there is a screen."""
    import webbrowser

    from memwall.browsing.server import RecordServer

    end_if_forked()
    with RecordServer(folder) as server:
        address = server.address + page
        print_text(address)
        messages.say(f"the records of {folder.path}; Ctrl-C ends it")
        if browser and _has_screen():
            webbrowser.open(address)
        server.serve_forever()


def _has_screen() -> bool:
    """Whether a browser would be a window: one of a terminal would take its place."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))
