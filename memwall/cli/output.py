"""Files and standard output: what kind each is, all rendered before any is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memwall.core.errors import MissingError, UsageError
from memwall.core.files import write_whole

if TYPE_CHECKING:
    from memwall.report import Report

#: End of a file's name -> kind that ``report.render`` knows; the longest wins, and so stands first.
SUFFIXES = {
    ".trace.json": "trace.json", ".json": "json", ".html": "html", ".md": "md", ".csv": "csv",
    ".parquet": "parquet", ".png": "png", ".svg": "svg", ".txt": "text",
}  # fmt: skip

#: The same for a gate.
GATE_SUFFIXES = {
    "gl-code-quality-report.json": "gitlab", ".gitlab.json": "gitlab", ".sarif.json": "sarif", ".sarif": "sarif",
    ".json": "json", ".xml": "junit", ".txt": "text", ".md": "md",
}  # fmt: skip

#: Kinds that need an optional dependency: its module and the extra that brings it.
_NEEDS = {"parquet": ("pyarrow", "parquet")}


#: Prefixes of a pipeline's progress messages.
_STAGES = ("tracing ", "simulating ", "measuring ", "planning ", "compiling ")


class Output(NamedTuple):
    """A file to write and what kind it is."""

    path: Path
    kind: str


def plan_outputs(
    paths: Sequence[str], kinds: Sequence[str] = (), suffixes: Mapping[str, str] = SUFFIXES
) -> list[Output]:
    """The kind of each file by its suffix, one of ``kinds`` where given."""
    known = kinds or tuple(suffixes.values())
    return [Output(Path(text), _kind(text, suffixes, known)) for text in dict.fromkeys(paths)]


def _kind(text: str, suffixes: Mapping[str, str], kinds: Sequence[str]) -> str:
    name = Path(text).name.lower()
    kind = next((kind for suffix, kind in suffixes.items() if name.endswith(suffix)), "")
    if kind not in kinds:
        known = " ".join(suffix for suffix, kind in suffixes.items() if kind in kinds)
        raise UsageError(f"cannot tell what to write into {text!r}; end the name in one of {known}")
    folder = Path(text).parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {text}: there is no folder {folder}")
    if Path(text).is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {text}: {'it is a folder' if Path(text).is_dir() else 'permission denied'}")
    module, extra = _NEEDS.get(kind, ("", ""))
    if module and find_spec(module) is None:
        raise MissingError(f"{text} needs {module}, which is not installed: pip install 'memwall[{extra}]'")
    return kind


def write_all(files: Sequence[tuple[Path, str | bytes]], say: Callable[[str], None]) -> None:
    """Write each file whole; a failure names those that were written before it.

    Raises:
        UsageError: a file cannot be written.
    """
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


def print_text(text: str) -> None:
    """Print a result on standard output, ending in one newline."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def terminal() -> dict[str, Any]:
    """Width and colour for a text on standard output: those of the terminal, plain in a pipe."""
    import shutil

    if not sys.stdout.isatty():
        return {}
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return {"width": shutil.get_terminal_size().columns, "color": not plain}


class Messages:
    """Standard error: lasting lines by :meth:`say`, one passing line by :meth:`progress` on a terminal."""

    def __init__(self, *, quiet: bool = False, no_progress: bool = False) -> None:
        self.quiet = quiet
        self._live = not quiet and not no_progress and sys.stderr.isatty()
        self._shown = False

    def say(self, message: str) -> None:
        """A line worth keeping; silenced by ``-q``."""
        if not self.quiet:
            self.clear()
            click.echo(f"memwall: {message}", err=True)

    def warn(self, message: str) -> None:
        """A line that qualifies the result; shown always."""
        self.clear()
        click.echo(f"memwall: warning: {message}", err=True)

    def progress(self, message: str) -> None:
        """A passing progress line; any other message is a warning and stays."""
        if not message.startswith(_STAGES):
            self.warn(message)
        elif self._live:
            sys.stderr.write(f"\r\x1b[K{message[:100]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Clear the passing line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


class Out:
    """Where a command's result goes: files and standard output, with messages on standard error.

    A command plans its files before any work, so that a typing error costs nothing, and shows its result once.
    """

    def __init__(self, paths: Sequence[str] = (), *, as_json: bool = False, **quiet: bool) -> None:
        self.paths, self.as_json, self.messages = paths, as_json, Messages(**quiet)
        self.files: list[Output] = []

    def plan(self, report: type[Report], suffixes: Mapping[str, str] = SUFFIXES) -> None:
        """What each ``-o`` asks for, of the kinds that a report has.

        Raises:
            UsageError: unknown suffix, or the folder is missing or not writable.
            MissingError: the kind needs a dependency that is not installed.
        """
        self.files = plan_outputs(self.paths, report.kinds, suffixes)

    def show(
        self,
        report: Report,
        *,
        before_files: Callable[[], None] = lambda: None,
        before_print: Callable[[], None] = lambda: None,
    ) -> None:
        """Render everything, then write the files, then print the result.

        Raises:
            UsageError: a file cannot be written.
            MissingError: a kind needs a dependency that is not installed.
        """
        from memwall.report import render

        files = [(output.path, render(report, output.kind)) for output in self.files]
        printed = render(report, "json") if self.as_json else render(report, "text", **terminal())
        before_files()
        write_all(files, self.messages.say)
        before_print()
        print_text(str(printed))
