"""What a call may touch: paths as a client may write them, and what a fork may open."""

import os
import socket
import subprocess
import sys

import pytest

from memwall.core.errors import UsageError
from memwall.mcp_server.folder import check_file, check_paths
from tests.unit.places import ROOT


@pytest.fixture
def inside(tmp_path):
    """A folder with a file, a link to one outside and one to a folder outside."""
    folder = tmp_path / "inside"
    folder.mkdir()
    (folder / "model.py").write_text("")
    (tmp_path / "secret.py").write_text("")
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    (folder / "up").symlink_to(tmp_path)
    (folder / "round").symlink_to(folder / "round")
    return folder.resolve()


@pytest.mark.parametrize("text", [
    "model.py", "model.py:name", "hf:config", "NVIDIA H100 80GB HBM3", "dram_bytes_per_s*=2", "dispatch_s/=2",
    "layers.0.mlp*", "f32[8,3,224,224]", "sub/../model.py", "h100=2.5",
])  # fmt: skip
def test_words_of_a_command_stay_inside(inside, text):
    check_paths(text, inside)


@pytest.mark.parametrize("text", [
    "/etc/passwd", "../secret.py", "../secret.py:model", "hf:../x", "hf:/etc", "link.py", "link.py:model",
    "up/secret.py", "x/../../secret.py", "h100=/etc/passwd", "model.py:/etc/passwd", "a\0b", "ids=../x",
    "//etc/passwd", "./../secret.py", "model.py ../secret.py",
])  # fmt: skip
def test_no_word_leads_out(inside, text):
    with pytest.raises(UsageError, match="leads out of the folder"):
        check_paths(text, inside)


@pytest.mark.parametrize("text", ["model.py", "model.py:name", "hf:up"])
def test_a_target_may_be_what_is_there(inside, text):
    check_file(text, inside)


@pytest.mark.parametrize("text", ["os:getcwd", "os", "no.py", "hf:org/name", "", "a" * 100_000, "round"])
def test_a_target_is_no_module_and_no_name_of_a_hub(inside, text):
    with pytest.raises(UsageError, match="is no file below the folder"):
        check_file(text, inside)


def walled(inside, own, code: str) -> str:
    """What a process within the walls prints."""
    start = f"from pathlib import Path; from memwall.mcp_server.folder import wall_in; folder = Path({str(inside)!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}wall_in(folder, Path({str(own)!r}))\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(("code", "said"), [
    ("print(open(folder / 'model.py').read() == '')", "True"),
    ("import decimal, xml.dom.minidom; print('imported')", "imported"),
    ("open(folder.parent / 'secret.py')", "lies outside"),
    ("open(folder / 'link.py')", "lies outside"),
    ("open('/etc/passwd')", "lies outside"),
    ("import os; os.open('/etc/passwd', os.O_RDONLY)", "lies outside"),
    ("open(folder.parent / 'new', 'w')", "lies outside"),
    ("import os; open(os.__file__, 'a')", "lies outside"),
    ("import socket; socket.create_connection(('127.0.0.1', 9))", "no network"),
    ("import socket; socket.getaddrinfo('localhost', 80)", "no network"),
    ("import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')", "no network"),
])  # fmt: skip
def test_a_call_opens_what_lies_below_and_what_python_is_made_of(inside, tmp_path, code, said):
    assert said in walled(inside, tmp_path / "own", code)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs sockets of this machine")
def test_a_socket_of_this_machine_is_no_network(inside, tmp_path):
    code = "import socket; a, b = socket.socketpair(); print('made')"
    assert walled(inside, tmp_path / "own", code) == "made"


def test_an_empty_target_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"^an empty text is no file below the folder"):
        check_file("", tmp_path)
