"""Records of answered calls, in a private folder of the server: so many, and so many bytes, of which the oldest go."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

from memwall.core.errors import UsageError
from memwall.core.structure import one_line

#: how a handle begins
SCHEME = "memwall://record/"
#: records that are kept, and their bytes
MOST_RECORDS, MOST_BYTES_KEPT = 64, 512 << 20
#: characters of a page of a record
PAGE = 16_000


class Records:
    """The records of a server by handle, in ``folder``: each as JSON, and as the text of its page."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tools: dict[str, str] = {}

    @staticmethod
    def handle() -> str:
        """A new handle, which nobody can guess."""
        return SCHEME + secrets.token_hex(8)

    def keep(self, handle: str, tool: str, record: str, page: str) -> None:
        """Keep the record and the page of a call; the oldest go where there are too many."""
        for kind, text in (("json", record), ("txt", page)):
            self.path(handle, kind).write_text(text, encoding="utf-8")
        self._tools[handle] = tool
        while len(self._tools) > MOST_RECORDS or (len(self._tools) > 1 and self._bytes() > MOST_BYTES_KEPT):
            oldest = next(iter(self._tools))
            del self._tools[oldest]
            for kind in ("json", "txt"):
                self.path(oldest, kind).unlink()

    def path(self, handle: str, kind: str = "json") -> Path:
        """The file of a record. It is nobody's where :meth:`known` does not have the handle."""
        return self._folder / f"{handle.removeprefix(SCHEME)}.{kind}"

    def known(self) -> Iterator[tuple[str, str]]:
        """Every handle with the tool that answered, the newest first."""
        return reversed(self._tools.items())

    def file_of(self, handle: str) -> Path:
        """The record's file. Raises ``UsageError``: there is no such record, or no more."""
        if handle not in self._tools:
            raise UsageError(f"no record {one_line(handle, 60)}: the last {MOST_RECORDS} calls have one")
        return self.path(handle)

    def read(self, uri: str) -> tuple[str, str]:
        """The text of a resource and its type: ``HANDLE`` the whole record, ``HANDLE/json/N`` and ``HANDLE/text/N`` its
        pages of :data:`PAGE` characters, the first at 1. Raises ``UsageError``: no such record or page."""
        handle, kind, page = _parts(uri)
        file = self.file_of(handle)
        if kind == "text":
            file = self.path(handle, "txt")
        text = file.read_text(encoding="utf-8")
        count = max(1, -(-len(text) // PAGE))
        if page > count:
            raise UsageError(f"{handle} has {count:,} pages of {kind}, not {page:,}")
        whole = text if not page else text[(page - 1) * PAGE : page * PAGE]
        return whole, "text/plain" if kind == "text" or page else "application/json"

    def _bytes(self) -> int:
        return sum(self.path(handle, kind).stat().st_size for handle in self._tools for kind in ("json", "txt"))


def _parts(uri: str) -> tuple[str, str, int]:
    """``memwall://record/ID/text/2`` → its handle, ``text`` and 2; 0 is the whole."""
    name, _, rest = uri.removeprefix(SCHEME).partition("/")
    kind, _, page = rest.partition("/")
    if not uri.startswith(SCHEME) or (
        rest and (kind not in ("json", "text") or not page.isascii() or not page.isdigit())
    ):
        raise UsageError(f"no resource {one_line(uri, 60)}; there is {SCHEME}ID, with /json/1 or /text/1 behind it")
    return SCHEME + name, kind or "json", int(page[:9] or 0)
