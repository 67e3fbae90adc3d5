"""Files are written whole, or where that cannot be, as a stream."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memwall.core.files import write_whole
from tests.unit.places import ROOT


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/stdout is a link to /proc")
def test_a_link_to_a_pipe_is_written_to():
    code = "from memwall.core.files import write_whole; write_whole('/dev/stdout', 'a line')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("a line", "")


def test_a_link_to_a_file_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for text in ("first", "second"):  # there is no file yet, then there is one
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text(encoding="utf-8") == text
