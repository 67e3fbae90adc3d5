"""Reading a Chrome trace event by event: a sliding window of text, one C-speed JSON decode per event.

The file is either an object with a key ``traceEvents``, or a bare list of events, plain or gzipped. Only the window and
what the caller keeps is in memory. Profilers write ``NaN``, control characters, invalid UTF-8 and lone backslashes
inside strings: these are accepted. A file that is truncated, or not JSON, is refused: a half-read trace has wrong
totals.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

from memwall.core.errors import UsageError
from memwall.core.progress import CountedLine, tell

#: Decoded text read at a time; one event is some hundred characters.
CHUNK_BYTES = 1 << 16

#: A value longer than this is neither an event nor a property of a trace.
MAX_VALUE_CHARACTERS = 1 << 24

#: Events of a file at most: rows of the GPU alone would take 6 GB. A small packed file may hold many.
MOST_EVENTS = 50_000_000

_GZIP_MAGIC = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\r\n]*")
#: possessive: what is no event is seen to be none without trying every split of the blanks
_BETWEEN = re.compile(r"[ \t\r\n]*+,?+[ \t\r\n]*+(?=\{)")
#: a backslash that begins no JSON escape; one at the very end may continue in the next chunk
_LONE_BACKSLASH = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4}|(?:u[0-9a-fA-F]{0,3})?\Z)?')
#: Kineto writes names as they are, quotes included: "name": "{"device": "cpu"}(12): run", "pid": 5
_NAME = '"name":'
_QUOTED_NAME = re.compile(r'("name": ?")([^\n]*?)(", ?"(?:pid|ph|cat|tid|ts|dur|id|s|bp|args)": ?)')
#: an event whose name has quotes is no longer than this
_LONGEST_NAMED = 1 << 15
_BARE_QUOTE = re.compile(r'(?<!\\)"')
_STRUCTURE = re.compile(r'[\[\]{},:"]')


def read_events(
    path: str | os.PathLike[str], keep: Callable[[dict[str, Any]], None], wanted: frozenset[str]
) -> dict[str, Any]:
    """Hand every event of a trace to ``keep``, in the order of the file.

    Args:
        path: the trace, ``.json`` or ``.json.gz``; distinguished by content.
        keep: called with each event, a dict that it may modify.
        wanted: other keys of the file to return.

    Returns:
        The wanted keys that the file has, as parsed.

    Raises:
        UsageError: no such file, truncated, not JSON, nested too deep, or not a trace; says where.
    """
    try:
        with Path(path).open("rb") as raw:
            return _WindowReader(str(path), _unpacked(raw), partial(_tell, raw)).run(keep, wanted)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no such file: {path}") from None
    except EOFError:
        raise UsageError(f"{path} is cut off: its gzip stream has no end; copy or record it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path} is damaged: {error}; copy or record it again") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None


def _tell(raw: io.BufferedReader) -> None:
    """How much of a file is read; a pipe has no size."""
    if not raw.seekable():
        return
    total = os.fstat(raw.fileno()).st_size
    tell(CountedLine(f"reading {Path(raw.name).name}, MB", round(raw.tell() / 1e6), round(total / 1e6)))


def _unpacked(raw: io.BufferedReader) -> IO[bytes]:
    return gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP_MAGIC else raw  # type: ignore[return-value]


class _WindowReader:
    """The window: ``text[at:]`` is not parsed yet, ``before`` characters of the file precede ``text``. ``read_on`` is
    called before more is read."""

    def __init__(self, path: str, handle: IO[bytes], read_on: Callable[[], None]) -> None:
        self.path = path
        self.handle = handle
        self.read_on = read_on
        self.decode_bytes = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self.decode = json.JSONDecoder(strict=False).raw_decode
        self.text = ""
        self.at = 0
        self.before = 0
        self.ended = False
        self.events = 0

    def run(self, keep: Callable[[dict[str, Any]], None], wanted: frozenset[str]) -> dict[str, Any]:
        """Parse the whole file."""
        first = self.peek()
        if first == "[":
            self.read_list(keep)
            found: dict[str, Any] = {}
        elif first == "{":
            found = self.read_object(keep, wanted)
        else:
            begins = f"begins with {self.text[:20]!r}" if first else "is empty"
            raise UsageError(f"{self.path} is no profiler trace: it {begins}")
        if self.peek():
            raise self.malformed("text behind the end of the trace")
        return found

    def read_object(self, keep: Callable[[dict[str, Any]], None], wanted: frozenset[str]) -> dict[str, Any]:
        """``{"key": value, ..., "traceEvents": [...], ...}``; unwanted keys are parsed and dropped."""
        found: dict[str, Any] = {}
        has_events = False
        self.at += 1
        while (char := self.peek()) != "}":
            if char != '"':
                raise self.malformed("a key should stand here")
            key = self.value()
            if self.peek() != ":":
                raise self.malformed("':' should stand here")
            self.at += 1
            if key == "traceEvents" and self.peek() == "[":
                has_events = True
                self.read_list(keep)
            else:
                value = self.value()
                if key in wanted:
                    found[key] = value
            if self.peek() == ",":
                self.at += 1
            elif self.peek() != "}":
                raise self.malformed("',' or '}' should stand here")
        self.at += 1
        if not has_events:
            raise UsageError(f'{self.path} is no profiler trace: it has no list "traceEvents"')
        return found

    def read_list(self, keep: Callable[[dict[str, Any]], None]) -> None:
        """The events; anything that is not an object is skipped: viewers do not show it."""
        self.at += 1
        between, decode = _BETWEEN.match, self.decode
        while True:
            match = between(self.text, self.at)
            try:
                if match is None:
                    if not self.read_other():
                        return
                    continue
                event, self.at = decode(self.text, match.end())
            except (ValueError, RecursionError):
                self.peek(",")
                event = self.value()
            self.events += 1
            if self.events > MOST_EVENTS:
                raise UsageError(
                    f"{self.path} holds more than {MOST_EVENTS:,} events, each kernel of which takes some 125 bytes of"
                    " memory: profile fewer steps, as with torch.profiler.schedule(wait=1, warmup=1, active=2)"
                )
            try:
                keep(event)
            except RecursionError:
                raise self.too_deep() from None

    def read_other(self) -> bool:
        """Handle anything but an event: the list's end (False), the window's end, a value that is not an event."""
        char = self.peek(",")
        if char == "]":
            self.at += 1
            return False
        if char != "{":
            self.value()
        return True

    def peek(self, skipped: str = "") -> str:
        """The next character after whitespace and at most one ``skipped``; "" at the end of the file."""
        while True:
            match = _BLANK.match(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                if self.text[self.at] != skipped:
                    return self.text[self.at]
                self.at += 1
                skipped = ""
            elif not self.fill():
                return ""

    def value(self) -> Any:
        """The JSON value that begins here, however many chunks it takes."""
        self.peek()
        while True:
            try:
                value, end = self.decode(self.text, self.at)
            except RecursionError:
                raise self.too_deep() from None
            except ValueError as error:
                behind = getattr(error, "pos", self.at) - self.at  # filling moves the window
                if (self.unfinished(error) and self.fill()) or self.escape(error):
                    continue
                if (renamed := self.renamed(behind)) is None:
                    raise self.malformed(getattr(error, "msg", str(error)), self.at + behind) from None
                value, end = renamed
            if end == len(self.text) and self.fill():  # a number may go on in the next chunk
                continue
            self.at = end
            return value

    def escape(self, error: ValueError) -> bool:
        """Escape the lone backslashes of this event and of all that follow in the window, if one is the error."""
        rest = self.text[self.at :] if "escape" in str(error) else ""
        mended = _LONE_BACKSLASH.sub(lambda match: match[0] if match[1] is not None else "\\\\", rest)
        if mended != rest:
            self.text = self.text[: self.at] + mended
        return mended != rest

    def renamed(self, behind: int) -> tuple[Any, int] | None:
        """The value that begins here, and its end, read with the quotes in its name escaped; None where that does not
        mend the error, which is ``behind`` characters after its begin."""
        while len(self.text) - self.at < _LONGEST_NAMED and self.fill():
            pass
        piece = self.text[self.at : self.at + _LONGEST_NAMED]
        begin = piece.rfind(_NAME, 0, behind)
        found = _QUOTED_NAME.match(piece, begin) if begin >= 0 else None
        if found is None:
            return None
        mended = piece[: found.start(2)] + _BARE_QUOTE.sub(r"\"", found[2]) + piece[found.end(2) :]
        try:
            value, end = self.decode(mended)
        except ValueError as error:
            return self.renamed(behind) if self.escape(error) else None
        except RecursionError:
            raise self.too_deep() from None
        return value, self.at + end - (len(mended) - len(piece))

    def unfinished(self, error: ValueError) -> bool:
        """Whether more text could complete it: the decoder stopped at the window's end, or inside a string."""
        position = getattr(error, "pos", 0)
        return "Unterminated string" in str(error) or position >= len(self.text) - 16

    def fill(self) -> bool:
        """Drop what was parsed and read on; a value that does not fit doubles the window. False at the end of file."""
        if self.ended:
            return False
        if len(self.text) - self.at > MAX_VALUE_CHARACTERS:
            raise UsageError(
                f"{self.path}: {self.where()}: one value is longer than {MAX_VALUE_CHARACTERS >> 20} Mi characters"
            )
        self.read_on()
        rest = self.text[self.at :]
        more = self.handle.read(max(CHUNK_BYTES, len(rest)))
        self.ended = not more
        self.before += self.at
        self.text, self.at = rest + self.decode_bytes(more, self.ended), 0
        return not self.ended or len(self.text) > len(rest)

    def where(self, position: int | None = None) -> str:
        """The position for messages: which event, which character of the file."""
        return f"event {self.events + 1}, character {self.before + (position or self.at) + 1}"

    def malformed(self, why: str, position: int | None = None) -> UsageError:
        """The file ends too early, or is not JSON here."""
        rest = self.text[self.at if position is None else position :]
        if self.ended and ("Unterminated" in why or not _STRUCTURE.search(rest)):
            return UsageError(f"{self.path} is cut off at {self.where()}; copy or record it again")
        return UsageError(f"{self.path} is not JSON: {self.where(position)}: {why}")

    def too_deep(self) -> UsageError:
        """The error for deeper nesting than any trace has."""
        return UsageError(f"{self.path}: {self.where()}: nested too deep to be a profiler trace")
