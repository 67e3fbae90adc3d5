"""What a terminal shows while a command works, and who sees none of it."""

import io
import os
import sys

import pytest

from memwall.cli.output import Messages
from memwall.cli.passing import PassingLine
from memwall.core.best_first import best_first
from memwall.core.progress import CountedLine, counting, heard, listening, seldom, tell


class Terminal(io.StringIO):
    """A terminal that keeps what it was sent, and what its line shows."""

    def isatty(self) -> bool:
        return True

    @property
    def line(self) -> str:
        """What stands there."""
        return self.getvalue().rpartition("\x1b[K")[2]


class Clock:
    """A clock that is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    terminal, clock = Terminal(), Clock()
    return terminal, clock, PassingLine(terminal, clock)


def at(screen, now: float, message: str) -> str:
    terminal, clock, line = screen
    clock.now = now
    line.show(message)
    return terminal.line


def test_a_stage_is_said_at_once_and_one_replaces_the_other(screen):
    assert at(screen, 0.0, "tracing net") == "tracing net"
    assert at(screen, 0.0, "simulating 9 ops") == "simulating 9 ops"


def test_there_is_no_bar_before_two_seconds(screen):
    assert at(screen, 0.0, CountedLine("sweeping", 0, 12)) == "sweeping, 0 of 12"
    assert at(screen, 1.9, CountedLine("sweeping", 3, 12)) == "sweeping, 3 of 12"


def test_a_bar_has_the_count_the_rate_and_the_time_left(screen):
    """3 of 12 parts in 3 s are 1 s each, and leave 9 s; a quarter of twenty cells is five."""
    at(screen, 0.0, CountedLine("sweeping", 0, 12))
    said = at(screen, 3.0, CountedLine("sweeping", 3, 12))
    assert said == "sweeping [#####...............] 3 of 12, 1.00 s each, 9.00 s left"


def test_many_parts_a_second_are_a_rate(screen):
    at(screen, 0.0, CountedLine("sweeping", 0, 1000))
    assert at(screen, 4.0, CountedLine("sweeping", 400, 1000)).endswith("400 of 1,000, 100/s, 6.00 s left")


def test_parts_without_a_total_have_a_rate_and_no_bar(screen):
    """1,000 ops more in 4 s are 250 a second; of how many nobody knows."""
    assert at(screen, 0.0, CountedLine("tracing forward ops", 200)) == "tracing forward ops, 200"
    assert at(screen, 4.0, CountedLine("tracing forward ops", 1200)) == "tracing forward ops, 1,200, 250/s"
    assert at(screen, 4.05, CountedLine("tracing forward ops", 1250)) == "tracing forward ops, 1,200, 250/s"


def test_the_rate_is_that_of_the_stage_and_not_of_what_was_before(screen):
    at(screen, 0.0, "tracing net")
    at(screen, 10.0, CountedLine("sweeping", 0, 10))
    assert at(screen, 12.0, CountedLine("sweeping", 1, 10)).endswith("1 of 10, 2.00 s each, 18.00 s left")


def test_a_count_that_begins_again_has_a_rate_of_its_own(screen):
    at(screen, 0.0, CountedLine("tracing workloads", 0, 2))
    at(screen, 4.0, CountedLine("tracing workloads", 2, 2))
    at(screen, 5.0, CountedLine("tracing workloads", 0, 2))
    assert at(screen, 6.0, CountedLine("tracing workloads", 1, 2)).endswith("1 of 2, 1.00 s each, 1.00 s left")


def test_a_line_is_no_wider_than_the_terminal_and_keeps_its_figures(screen, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    at(screen, 0.0, CountedLine("measuring", 0, 4))
    said = at(screen, 4.0, CountedLine("measuring " + "long" * 40, 2, 4))
    assert len(said) == 59 and said.endswith("[##########..........] 2 of 4, 2.00 s each, 4.00 s left")


def test_a_line_is_drawn_ten_times_a_second_and_at_the_end(screen):
    at(screen, 0.0, CountedLine("sweeping", 0, 9))
    assert at(screen, 3.0, CountedLine("sweeping", 1, 9)).startswith("sweeping [##.")
    assert " 1 of 9" in at(screen, 3.05, CountedLine("sweeping", 2, 9))
    assert " 9 of 9" in at(screen, 3.06, CountedLine("sweeping", 9, 9))


def test_a_name_moves_no_cursor(screen):
    assert at(screen, 0.0, "tracing a\x1b[2Jb\nc") == "tracing a?[2Jb?c"


def test_the_line_is_taken_away(screen):
    terminal, _, line = screen
    at(screen, 0.0, "tracing net")
    line.clear()
    assert terminal.line == "" and terminal.getvalue().endswith("\r\x1b[K")


@pytest.fixture
def said(monkeypatch):
    """``said(quiet=True)``: what a terminal got of a stage."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def go(stream: io.StringIO, **how: bool) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        Messages(**how).progress("tracing net")
        return stream.getvalue()

    return go


def test_a_terminal_is_told_and_a_pipe_is_not(said):
    assert "tracing net" in said(Terminal())
    assert said(io.StringIO()) == ""


@pytest.mark.parametrize("how", ["quiet", "no_progress"])
def test_who_wants_no_progress_sees_none(said, how):
    assert said(Terminal(), **{how: True}) == ""


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_nobody_looks_at_shows_none(said, monkeypatch, name, value):
    monkeypatch.setitem(os.environ, name, value)
    assert said(Terminal()) == ""


def test_a_counted_line_is_text_with_its_count():
    lines: list[str] = []
    with listening(lines.append):
        assert [*counting("ab", "tracing problems")] == ["a", "b"]
    assert lines == ["tracing problems, 0 of 2", "tracing problems, 1 of 2"]


def test_what_is_told_is_heard_while_somebody_listens():
    lines: list[str] = []
    tell("before")
    with listening(lines.append):
        tell("while")
    tell("after")
    assert lines == ["while"]


def test_who_calls_a_public_function_with_progress_hears_all_below_it():
    lines: list[str] = []
    work = heard(lambda: tell("tracing net"))
    work(progress=lines.append)
    work()
    with listening(lines.append):
        work(progress=None)
    assert lines == ["tracing net"] * 2


def test_who_is_told_seldom_hears_ten_counts_a_second_and_every_other_line():
    lines: list[str] = []
    clock = Clock()
    say = seldom(lines.append, clock)
    for now, line in [(0.0, CountedLine("tracing", 1)), (0.05, CountedLine("tracing", 2)), (0.06, "simulating"),
                      (0.2, CountedLine("tracing", 3))]:  # fmt: skip
        clock.now = now
        say(line)
    assert lines == ["tracing, 1", "simulating", "tracing, 3"]


def test_a_search_says_how_many_candidates_it_has_looked_at():
    lines: list[str] = []
    with listening(lines.append):
        best_first(range(1, 4), [("bounded", float), ("valued", float)])
    assert lines == [f"searching candidates, {done} of 3" for done in range(3)]


def test_a_search_of_many_candidates_says_it_a_hundred_times():
    lines: list[str] = []
    with listening(lines.append):
        best_first(range(1, 5001), [("valued", float)])
    assert len(lines) == 100
