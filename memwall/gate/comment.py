"""The gate's result as GitHub-flavoured Markdown: the comment on a pull request and the summary of a step.

What changed comes first, a line for each cause. Both places refuse a text that is too long, so the less important goes:
checks that pass, then the mildest failures, then the last causes; what was left out is counted. Names are in
``<code>``, so that no mention or link becomes active.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memwall.gate import wording as say
from memwall.gate.result import Check, GateResult
from memwall.gate.wording import NAME, name
from memwall.report.markdown import escape, row

#: The first line of a comment, by which a bot finds it again.
MARKER = "<!-- memwall-gate -->"
#: GitHub takes 65,536 characters in a comment and 1 MiB in a step's summary; bytes are counted here, the stricter.
COMMENT_BYTES = 65_000
SUMMARY_BYTES = 1_000_000
#: Shares of the room up to which problems, changes, failures and what passes may fill it, one after another.
_SHARES = (0.25, 0.5, 0.85, 1.0)

_SIGN = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}
_HEADINGS = ("", "workload", "check", "GPU", "policy", "baseline", "value", "change", "limit")
_ALIGNED = (":---", ":---", ":---", ":---", ":---", "---:", "---:", "---:", "---:")


class _Page:
    """Lines up to a size in bytes; ``take`` adds what fits below a share of it and says how much it took."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.lines: list[str] = []

    def add(self, *lines: str) -> None:
        self.size += sum(len(line.encode(errors="replace")) + 1 for line in lines)
        self.lines += lines

    def take(self, blocks: Sequence[Sequence[str]], share: float) -> int:
        """Adds blocks from the first on while they fit; how many."""
        for i, block in enumerate(blocks):
            size = sum(len(line.encode(errors="replace")) + 1 for line in block)
            if self.size + size > self.limit * share - 500:  # room for the line that counts the rest
                return i
            self.add(*block)
        return len(blocks)


def gate_comment(result: GateResult, top: int, again: str) -> str:
    """The comment on a pull request: its first line is ``MARKER``, its size below what GitHub takes. ``again``: the
    command that shows it again."""
    return _markdown(result, top, again, COMMENT_BYTES, MARKER)


def gate_summary(result: GateResult, top: int, again: str) -> str:
    """The summary of a workflow's step."""
    return _markdown(result, top, again, SUMMARY_BYTES)


def _markdown(result: GateResult, top: int, again: str, limit: int, *first: str) -> str:
    page = _Page(limit)
    bad = say.raised(result.checks)
    good = [check for check in result.checks if check.verdict == "pass"]
    page.add(*first, f"### {NAME}: {result.verdict} {_SIGN[result.verdict]}", "")
    page.add(f"**{escape(say.counts(result))}**; {_code(say.compared_with(result))}", "")
    if again:
        page.add(f"Again: {_code(again)}", "")
    problems = [f"- {_code(note)}" for note in say.notes(result)]
    problems += [f"- {_SIGN[problem.verdict]} {_code(say.problem_sentence(problem))}" for problem in result.problems]
    head = (row(_HEADINGS), row(_ALIGNED))
    _list(page, problems, _SHARES[0], "more")
    _list(page, _changes(bad, top), _SHARES[1], "more changes", "**What changed**", "")
    _list(page, map(_check_row, bad), _SHARES[2], "more that do not pass", *head)
    said = [f"- {_code(say.group_sentence(group))}" for group in say.by_causes(bad) if group[0].message]
    _list(page, said, _SHARES[2], "more that say why")
    if good:
        page.add(f"<details><summary>{len(good):,} check{'' if len(good) == 1 else 's'} pass</summary>", "")
        _list(page, map(_check_row, good), _SHARES[3], "more that pass", *head)
        page.add("</details>", "")
    return "\n".join(page.lines).rstrip("\n") + "\n"


def _changes(bad: Sequence[Check], top: int) -> Iterator[str]:
    """A line for each cause, whatever GPUs, policies and checks it moves; of each workload ``top``, and what the others
    add up to."""
    groups = [group for group in say.of_workloads(bad) if group[0].causes]
    for group in groups:
        of = f"{_code(name(group[0].workload))}: " if len(groups) > 1 else ""
        moved = say.moved_by(group)
        for each in moved[:top]:
            said = _code(say.cause_text(*each.ends))
            yield f"- {of}**{escape(say.cause_label(each.causes[0]))}** {said}; moves {escape(say.places(each.checks))}"
        if rest := moved[top:]:
            yield f"- {of}{escape(say.moved_rest(rest))}"


def _list(page: _Page, lines: Iterable[str], share: float, rest: str, *head: str) -> None:
    """The lines that fit, below a head, and how many more there are."""
    blocks = [[line] for line in lines]
    if blocks:
        page.add(*head)
        taken = page.take(blocks, share)
        page.add("")
        if taken < len(blocks):
            page.add(f"and {len(blocks) - taken:,} {rest}", "")


def _check_row(check: Check) -> str:
    shown = say.figures(check)
    names = (check.workload, say.subject(check), check.gpu, check.policy)
    change = f"**{escape(shown.change)}**" if shown.change and check.verdict != "pass" else escape(shown.change)
    numbers = (escape(shown.baseline), escape(shown.value), change, escape(name(check.limit)))
    return row((_SIGN[check.verdict], *(_code(name(part)) for part in names), *numbers))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text else ""
