"""``memwall open``: what it prints and writes, and that Ctrl-C ends it."""

import http.client
import os
import re
import signal
import sys
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

import pytest

from tests.unit.places import ROOT
from tests.unit.processes import HANGS_S
from tests.unit.report_fixture import make_profile


@pytest.fixture
def record(folder):
    make_profile(name="tiny").save(folder / "step.json")
    return "step.json"


def test_a_folder_is_written_as_one_page(run, folder, record):
    result = run("open", "-o", "index.html")
    assert (result.code, result.out) == (0, "1 record, the newest first.\n")
    assert result.err == "memwall: wrote index.html\n"
    assert "tiny, training, float16, batch 8" in (folder / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("words", "said"), [
    (("none",), "no such file or folder: none"),
    (("net.py",), "net.py is no record that memwall report reads, and no history"),
    (("step.json", "-o", "page.html"), "memwall report step.json -o page.html writes the page of one record"),
    (("--no-browser", "-o", "page.html"), "--no-browser has no effect with -o, which serves nothing"),
    (("-o", "page.txt"), "cannot tell what to write into 'page.txt'; end the name in one of .html"),
])  # fmt: skip
def test_what_cannot_be_shown_is_one_line(run, record, words, said):
    result = run("open", *words)
    assert result.code == 2 and said in result.error


def test_a_record_is_served_at_the_address_that_is_printed_until_ctrl_c(folder, record):
    command = [sys.executable, "-m", "memwall", "open", record, "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = Popen(command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE, text=True)
    assert started.stdout is not None
    address = urlsplit(started.stdout.readline().strip())
    assert re.fullmatch(r"/[\w-]{32}/record", address.path)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=HANGS_S)
    connection.request("GET", f"{address.path}?{address.query}")
    assert "<title>tiny · memwall" in connection.getresponse().read().decode()
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=HANGS_S)
    assert (out, started.returncode) == ("", 130)
    assert err.splitlines() == [f"memwall: the records of {folder}; Ctrl-C ends it", "memwall: interrupted"]
