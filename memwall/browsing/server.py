"""Pages of a folder for a browser of this machine: GET alone, under a path that nobody can guess, by the standard
library's server.

Each request needs the token in its path, and a ``Host`` of this machine with the server's own port, so that no page of
another site reads an answer under a name that it had lead here. A record is asked for by its number in the folder, and
no request names a path.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from memwall.browsing.page import RecordsReport, error_document
from memwall.browsing.run import RecordFolder
from memwall.core.errors import MemwallError, UsageError
from memwall.report.html import policy_of, to_html
from memwall.report.kinds import Report, render

HOST = "127.0.0.1"
#: names by which a browser of this machine may ask
_LOOPBACK = (HOST, "localhost")
_TYPE = "text/html; charset=utf-8"
#: what a page's own policy does not have in it
_POLICY = "; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


_NUMBER = re.compile(r"(?:^|&)n=([0-9]{1,9})(?![^&])")


class RecordServer(ThreadingHTTPServer):
    """The server of a folder on a port that is free; ``address`` has the token."""

    daemon_threads = True

    def __init__(self, folder: RecordFolder) -> None:
        super().__init__((HOST, 0), _RecordPages)
        self.folder = folder
        self.token = secrets.token_urlsafe(24)
        #: one page is made at a time: all share what was read
        self.making = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is said of a client that went away."""

    @property
    def address(self) -> str:
        """The list's."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _RecordPages(BaseHTTPRequestHandler):
    """One request."""

    server: RecordServer
    server_version, sys_version = "memwall", ""
    #: seconds that a client may take to say what it wants
    timeout = 30

    def do_GET(self) -> None:
        """A page, to who has the token."""
        path, _, query = self.path.partition("?")
        token, slash, page = path.removeprefix("/").partition("/")
        known = {f"{name}:{self.server.server_port}" for name in _LOOPBACK}
        if self.headers.get("Host", "").lower() not in known:
            self._answer(403, "this host is not served")
        elif not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            self._answer(403, "the address lacks the token that memwall open has printed")
        elif not slash:
            self._answer(301, "", Location=f"/{token}/")
        else:
            self._page(page, query)

    def _page(self, name: str, query: str) -> None:
        try:
            with self.server.making:
                text = str(render(_report(self.server.folder, name, query), "html"))
        except MemwallError as error:
            self._answer(404, to_html(error_document(str(error))), _TYPE)
        except Exception as error:  # of one page: the others can be read
            message = f"internal error: {type(error).__name__} (a bug of memwall; memwall report shows where)"
            self._answer(500, to_html(error_document(message)), _TYPE)
        else:
            self._answer(200, text, _TYPE)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no request for a page: a line that repeats nothing of it."""
        self.close_connection = True
        self._answer(code, "only GET is served")

    def _answer(self, code: int, text: str, kind: str = "text/plain; charset=utf-8", **more: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(code)
        policy = policy_of(text) + _POLICY
        own = {"Content-Type": kind, "Content-Length": str(len(body)), "Content-Security-Policy": policy}
        for header, value in {**own, **_HEADERS, **more}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing: a log would have the token."""


def _report(folder: RecordFolder, name: str, query: str) -> Report:
    """The page that a path names, of the records whose numbers the query has as ``n=3&n=5``. Raises ``UsageError``:
    the path names no page."""
    words = _NUMBER.findall(query)
    if query != "&".join(f"n={word}" for word in words):
        raise UsageError("a page is asked for by numbers of records")
    numbers = [*map(int, words)]
    if not name:
        return RecordsReport(folder)
    if name == "record" and len(numbers) == 1:
        return folder.page(numbers[0])
    if name == "compare":
        return folder.compared(numbers)
    raise UsageError("there is no such page")
