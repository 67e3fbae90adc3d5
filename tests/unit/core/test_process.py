"""A child process: its answers, its errors, and how it is lost."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from memwall.core.errors import MissingError, NeedsData, UsageError
from memwall.core.process import FORKS, Child, Lost, environment
from memwall.core.progress import CountedLine, tell
from tests.unit.places import ROOT
from tests.unit.processes import is_alive, wait_for


def answer(word, *arguments):
    """What the child calls."""
    if word == "raise":
        raise arguments[0]
    if word == "exit":
        os._exit(arguments[0])
    if word == "kill":
        os.kill(os.getpid(), arguments[0])
    if word == "sleep":
        time.sleep(arguments[0])
    if word == "await":
        wait_for(Path(arguments[0]).exists)
    if word == "spin":
        Path(arguments[0]).touch()
        while True:
            pass
    if word == "leave":  # a process in a session of its own, and one that lost its parent
        asleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
        started = subprocess.Popen(asleep, start_new_session=True).pid
        if not os.fork():
            again = os.fork()
            Path(arguments[0]).write_text(f"{started} {again}") if again else time.sleep(3600)
            os._exit(0)
        wait_for(lambda: Path(arguments[0]).read_text())
        time.sleep(arguments[1])
    if word == "tell":
        tell(CountedLine("measuring", *arguments))
    if word == "print":
        print(*arguments)
    if word == "stdin":
        return input("")
    return word, arguments


class Counter:
    """One instance answers all questions."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.asked


@pytest.fixture
def start():
    """Starts children, and stops them."""
    children = []

    def started(target="answer", **options):
        children.append(Child(f"tests.unit.core.test_process:{target}", environment(), **options))
        return children[-1]

    yield started
    for child in children:
        child.stop()


def test_it_answers_and_keeps_its_state(start):
    assert start().ask(60.0, "a", 1, [2]) == ("a", (1, [2]))
    counter = start("Counter")
    assert [counter.ask(60.0), counter.ask(60.0)] == [1, 2]


def test_it_says_how_far_it_is_before_it_answers(start):
    lines = []
    assert start().ask(60.0, "tell", 2, 9, say=lines.append) == ("tell", (2, 9))
    assert lines == ["measuring, 2 of 9"]
    assert (lines[0].what, lines[0].done, lines[0].total) == ("measuring", 2, 9)


def test_a_request_apart_says_how_far_it_is_where_it_is_heard(start):
    lines = []
    child = start(apart=True, heard=True)
    assert child.ask(60.0, "tell", 2, 9, say=lines.append) == ("tell", (2, 9))
    assert child.ask(60.0, "tell", 3, 9, say=lines.append) == ("tell", (3, 9))
    assert lines == ["measuring, 2 of 9", "measuring, 3 of 9"]


def test_a_request_apart_is_else_not_heard(start):
    lines = []
    assert start(apart=True).ask(60.0, "tell", 2, 9, say=lines.append) == ("tell", (2, 9))
    assert lines == []


def test_lines_that_nobody_asked_for_are_no_answers(start):
    assert start().ask(60.0, "tell", 2, 9) == ("tell", (2, 9))


@pytest.mark.parametrize(
    ("error", "kind"), [(MissingError("no GPU"), MissingError), (NeedsData("reads a tensor"), UsageError)]
)
def test_an_expected_error_comes_back_and_the_child_lives(start, error, kind):
    child = start()
    with pytest.raises(kind, match=str(error)):
        child.ask(60.0, "raise", error)
    assert child.ask(60.0, "still", "there") == ("still", ("there",))


@pytest.mark.parametrize(("question", "status", "message", "code"), [
    (("exit", 7), "failed", "the process ended with exit code 7", 7),
    (("kill", signal.SIGSEGV), "failed", r"killed by signal 11 \(SIGSEGV\)", -signal.SIGSEGV),
    (("kill", signal.SIGKILL), "out of memory", r"killed by signal 9 \(out of memory\?\)", -signal.SIGKILL),
    (("raise", ValueError("odd")), "failed", "exit code 1: ValueError: odd", 1),
])  # fmt: skip
def test_the_cause_of_death_is_known(start, question, status, message, code):
    with pytest.raises(Lost, match=message) as lost:
        start().ask(60.0, *question)
    assert (lost.value.status, lost.value.code) == (status, code)


def test_it_may_take_so_long_and_is_stopped_whatever_it_does(start):
    child = start()
    child.ask(60.0, "up")
    with pytest.raises(Lost, match=r"took longer than its limit of 0 s") as lost:
        child.ask(0.1, "sleep", 1e6)
    assert lost.value.status == "timeout"
    child.stop()
    assert not child.alive


PARENT = """
import sys
from memwall.core.process import Child, environment
child = Child("tests.unit.core.test_process:answer", environment())
print(child.pid, flush=True)
child.ask(None, "spin", sys.argv[1])
"""


def test_it_ends_with_its_parent_also_in_the_middle_of_a_call(tmp_path):
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path / "up"], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        wait_for((tmp_path / "up").exists)
        parent.kill()
    wait_for(lambda: not is_alive(pid))


def test_what_it_calls_cannot_read_what_keeps_it_alive(start):
    with pytest.raises(Lost, match="EOFError"):
        start().ask(60.0, "stdin")


def test_a_folder_that_is_not_there(start, tmp_path):
    with pytest.raises(OSError, match="No such file"):
        start(folder=tmp_path / "nowhere")


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
def test_a_request_apart_finds_the_process_as_it_was_at_first(start):
    counter = start("Counter", apart=True)
    assert [counter.ask(60.0), counter.ask(60.0)] == [1, 1]


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
@pytest.mark.parametrize(("question", "code"), [(("exit", 0), 0), (("kill", signal.SIGSEGV), -signal.SIGSEGV)])
def test_a_request_apart_that_ends_its_fork_ends_nothing_else(start, question, code):
    child = start(apart=True)
    with pytest.raises(Lost) as lost:
        child.ask(60.0, *question)
    assert lost.value.code == code
    assert child.ask(60.0, "still", "there") == ("still", ("there",))


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
def test_requests_apart_run_at_once_and_an_answer_says_whose_it_is(start, tmp_path):
    """The first waits for a file, which is there when the others are answered."""
    child, place = start(apart=True), tmp_path / "go on"
    first, second, lost = child.send("await", str(place)), child.send("second"), child.send("exit", 5)
    found = {}
    for last in (False, False, True):
        if last:
            place.touch()
        try:
            given = child.receive(None)
        except Lost as error:
            given = error.code
        found[child.answered] = given
    assert found == {second: ("second", ()), lost: 5, first: ("await", (str(place),))}


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
def test_a_request_that_is_cancelled_ends_and_the_others_do_not(start, tmp_path):
    child, spinning, place = start(apart=True), tmp_path / "spinning", tmp_path / "go on"
    first, second = child.send("spin", str(spinning)), child.send("await", str(place))
    wait_for(spinning.exists)
    child.cancel(first)
    with pytest.raises(Lost, match="signal 9"):
        child.receive(60.0)
    assert child.answered == first
    place.touch()
    assert child.receive(60.0)[0] == "await" and child.answered == second
    child.cancel(second)  # it has answered
    assert child.ask(60.0, "word") == ("word", ())


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
def test_what_a_request_apart_prints_is_shown(start, monkeypatch, capfd):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    start(apart=True, shown=True).ask(60.0, "print", "from the model")
    assert "from the model" in capfd.readouterr().err


@pytest.mark.skipif(not FORKS, reason="this system cannot fork a process that has imported torch")
@pytest.mark.parametrize("how", ["answers", "cancelled", "stopped"])
def test_what_a_request_apart_has_started_ends_with_it(start, tmp_path, how):
    child, place = start(apart=True), tmp_path / "left"
    number = child.send("leave", str(place), 0 if how == "answers" else 3600)
    left = wait_for(lambda: [int(pid) for pid in place.read_text().split()])
    if how == "stopped":
        child.stop()
    else:
        if how == "cancelled":
            child.cancel(number)
        with contextlib.suppress(Lost):
            child.receive(60.0)
    wait_for(lambda: not any(map(is_alive, left)))
