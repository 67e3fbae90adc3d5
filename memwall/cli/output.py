"""Files and standard output: what kind each is, all rendered before any is written."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memwall.cli.passing import PassingLine
from memwall.core.errors import MissingError, UsageError, install
from memwall.core.files import write_whole
from memwall.core.process import end_if_forked
from memwall.core.structure import printable

if TYPE_CHECKING:
    from memwall.report import Report

#: End of a file's name -> kind that ``report.render`` knows; the longest wins, and so stands first.
SUFFIXES = {
    ".trace.json": "trace.json", ".json": "json", ".html": "html", ".md": "md", ".csv": "csv",
    ".parquet": "parquet", ".png": "png", ".svg": "svg", ".pdf": "pdf", ".txt": "text",
}  # fmt: skip

#: The same for a gate.
GATE_SUFFIXES = {
    "gl-code-quality-report.json": "gitlab", ".gitlab.json": "gitlab", ".sarif.json": "sarif", ".sarif": "sarif",
    ".json": "json", ".xml": "junit", ".txt": "text", ".md": "md", ".html": "html",
    ".svg": "svg", ".png": "png", ".pdf": "pdf",
}  # fmt: skip

#: Prefixes of a pipeline's progress messages.
_STAGES = ("reading ", "tracing ", "simulating ", "measuring ", "planning ", "compiling ", "sweeping ", "searching ",
           "writing ")  # fmt: skip


class Output(NamedTuple):
    """A file to write and what kind it is."""

    path: Path
    kind: str


def plan_output(text: str, kinds: Sequence[str], suffixes: Mapping[str, str] = SUFFIXES) -> Output:
    """The kind of a file by its suffix, one of ``kinds``; refused before any work where it could not be written."""
    path = Path(text)
    kind = next((kind for suffix, kind in suffixes.items() if path.name.lower().endswith(suffix)), "")
    if kind not in kinds:
        known = " ".join(suffix for suffix, kind in suffixes.items() if kind in kinds)
        raise UsageError(f"cannot tell what to write into {text!r}; end the name in one of {known}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {text}: there is no folder {path.parent}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"cannot write {text}: {'it is a folder' if path.is_dir() else 'permission denied'}")
    if kind == "parquet" and find_spec("pyarrow") is None:
        raise MissingError(f"{text} needs pyarrow, which is not installed: {install('parquet')}")
    return Output(path, kind)


def _write(files: Sequence[tuple[Path, str | bytes | Iterable[str]]], say: Callable[[str], None]) -> None:
    """Write each file whole; a failure names the files that were written before it."""
    done: list[str] = []
    for path, data in files:
        try:
            write_whole(path, data)
        except UsageError as error:
            if not done:
                raise
            reason = str(error).removesuffix("; nothing was written")
            raise UsageError(f"{reason}; already written: {', '.join(done)}") from None
        done.append(str(path))
        say(f"wrote {path}")


def print_text(text: str | Iterable[str]) -> None:
    """Print a result on standard output, ending in one newline. The last of several pieces has one."""
    sys.stdout.writelines((text if text.endswith("\n") else text + "\n",) if isinstance(text, str) else text)
    sys.stdout.flush()


#: columns of the narrowest text: in fewer, names are nothing but dots
NARROWEST = 40


def _terminal() -> dict[str, Any]:
    """How wide a text may be, at least ``NARROWEST``, and whether in colour. A pipe is plain, and as wide as the text
    needs unless ``COLUMNS`` is set."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return {}
    plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return {"width": max(shutil.get_terminal_size().columns, NARROWEST), "color": not plain}


class Messages:
    """Standard error: lasting lines by :meth:`say`, one passing line by :meth:`progress` on a terminal that somebody
    looks at."""

    def __init__(self, *, quiet: bool = False, no_progress: bool = False) -> None:
        self.quiet = quiet
        silent = quiet or no_progress or "CI" in os.environ or os.environ.get("TERM") == "dumb"
        self._passing = PassingLine(sys.stderr) if not silent and sys.stderr.isatty() else None

    def say(self, message: str) -> None:
        """A line worth keeping; silenced by ``-q``."""
        if not self.quiet:
            self.clear()
            click.echo(f"memwall: {printable(message)}", err=True)

    def warn(self, message: str) -> None:
        """A line that qualifies the result; shown always."""
        self.clear()
        click.echo(f"memwall: warning: {printable(message)}", err=True)

    def progress(self, message: str) -> None:
        """A passing progress line; any other message is a warning and stays."""
        if not message.startswith(_STAGES):
            self.warn(message)
        elif self._passing is not None:
            self._passing.show(message)

    def clear(self) -> None:
        """Clear the passing line."""
        if self._passing is not None:
            self._passing.clear()


class Out:
    """Where a command's result goes: files and standard output, with messages on standard error.

    A command plans its files before any work, so that a typing error costs nothing, and shows its result once.
    """

    def __init__(
        self, paths: Sequence[str] = (), *, as_json: bool = False, style: str = "screen", **quiet: bool
    ) -> None:
        self.paths, self.as_json, self.style, self.messages = paths, as_json, style, Messages(**quiet)
        self.files: list[Output] = []

    @classmethod
    def of(cls, paths: Sequence[str] = (), **how: Any) -> Out:
        """Where the running command's result goes: to who calls the command in its own process, and is the object of
        click's context; else as the options say."""
        context = click.get_current_context(silent=True)
        kept = context.find_object(Out) if context is not None else None
        return cls(paths, **how) if kept is None else kept

    def plan(self, report: type[Report], suffixes: Mapping[str, str] = SUFFIXES) -> None:
        """What each ``-o`` asks for, of the kinds that a report has. Raises ``UsageError``: unknown suffix, or the
        folder is missing or not writable; ``MissingError``: the kind needs a dependency that is not installed."""
        self.files = [plan_output(text, report.kinds, suffixes) for text in dict.fromkeys(self.paths)]

    def _rendered(self, report: Report, output: Output) -> Any:
        from memwall.report import render_pieces

        self.messages.progress(f"writing {output.path}")
        return render_pieces(report, output.kind, style=self.style)

    def show(
        self,
        report: Report,
        *,
        before_files: Callable[[], None] = lambda: None,
        before_print: Callable[[], None] = lambda: None,
        text: bool = True,
    ) -> None:
        """Render everything, then write the files, then print the result, unless it is a ``text`` that is not wanted.
        Raises ``UsageError``: a file cannot be written; ``MissingError``: a kind needs a dependency that is not
        installed."""
        from memwall.report import render_pieces

        end_if_forked()
        files = [(output.path, self._rendered(report, output)) for output in self.files]
        printed = render_pieces(report, "json") if self.as_json else render_pieces(report, "text", **_terminal())
        self.messages.clear()
        before_files()
        _write(files, self.messages.say)
        before_print()
        assert not isinstance(printed, bytes)
        if text or self.as_json:
            print_text(printed)
