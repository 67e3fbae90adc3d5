"""A headless Chromium, told what to do through its debugging pipe, and a server of files for it to open."""

import base64
import functools
import http.server
import itertools
import json
import os
import select
import subprocess
import threading
import time
from contextlib import contextmanager

from tests.unit.places import CHROMIUM
from tests.unit.processes import HANGS_S

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """One page of a browser; ``folder`` keeps its profile."""

    def __init__(self, folder, size=(1500, 1100)):
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Chromium reads commands from descriptor 3 and answers on 4
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, CHROMIUM, *_OPTIONS, f"--user-data-dir={folder}",
             f"--window-size={size[0]},{size[1]}"],
            pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._answers, self._session = itertools.count(1), b"", {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def call(self, method, **params):
        """A command of the DevTools protocol, and what it answers."""
        number = next(self._numbers)
        os.write(
            self._out, json.dumps({"id": number, "method": method, "params": params, **self._session}).encode() + b"\0"
        )
        deadline = time.monotonic() + 60
        while True:
            while b"\0" not in self._answers:
                if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                    raise TimeoutError(f"{method}: no answer within a minute")
                if not (part := os.read(self._in, 1 << 20)):
                    raise ConnectionError(f"{method}: the browser is gone")
                self._answers += part
            answer, _, self._answers = self._answers.partition(b"\0")
            message = json.loads(answer)
            if message.get("id") == number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def run(self, script):
        """The value of an expression; of a promise, what it comes to."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, address):
        """Leave the page for another, even where only what follows the ``#`` differs."""
        for url in ("about:blank", address):
            self.call("Page.navigate", url=url)

    def wait_for(self, condition, seconds=HANGS_S):
        """Until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
            time.sleep(0.1)

    def picture(self):
        """What the page shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def close(self):
        self._session = {}
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)


@contextmanager
def served(folder, files):
    """The address of a server of a folder and of ``files``: a dict of what stands at further paths, looked up at each
    request."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            data = files.get(self.path)
            if data is None:
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
