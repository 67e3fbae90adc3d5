"""The gate's result as GitHub-flavoured Markdown: the comment on a pull request and the summary of a step.

Both places refuse a text that is too long, so the less important goes first: checks that pass, then causes, then the
mildest failures; what was left out is counted. Names are in ``<code>``, so that no mention or link becomes active.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from memwall.gate import wording as say
from memwall.gate.result import Check, GateResult
from memwall.gate.wording import NAME, Moved, name
from memwall.report.markdown import escape, row

#: The first line of a comment, by which a bot finds it again.
MARKER = "<!-- memwall-gate -->"
#: GitHub takes 65,536 characters in a comment and 1 MiB in a step's summary; bytes are counted here, the stricter.
COMMENT_BYTES = 65_000
SUMMARY_BYTES = 1_000_000
#: Shares of the room up to which problems, failures, causes and what passes may fill it, one after another.
_SHARES = (0.25, 0.6, 0.85, 1.0)

_SIGN = {"pass": "✅", "fail": "❌", "inconclusive": "⚠️"}
_HEADINGS = ("", "workload", "check", "GPU", "policy", "baseline", "value", "change", "limit")
_ALIGNED = (":---", ":---", ":---", ":---", ":---", "---:", "---:", "---:", "---:")
_CAUSE_HEADINGS = ("cause", "op", "module", "source", "±", "moves", "detail")


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


def gate_comment(result: GateResult, top: int) -> str:
    """The comment on a pull request: its first line is ``MARKER``, its size below what GitHub takes."""
    return _markdown(result, top, COMMENT_BYTES, MARKER)


def gate_summary(result: GateResult, top: int) -> str:
    """The summary of a workflow's step."""
    return _markdown(result, top, SUMMARY_BYTES)


def _markdown(result: GateResult, top: int, limit: int, *first: str) -> str:
    page = _Page(limit)
    bad = say.raised(result.checks)
    good = [check for check in result.checks if check.verdict == "pass"]
    page.add(*first, f"### {NAME}: {result.verdict} {_SIGN[result.verdict]}", "")
    page.add(f"**{escape(say.counts(result))}**; {_code(say.compared_with(result))}", "")
    problems = [f"- {_code(note)}" for note in say.notes(result)]
    problems += [f"- {_SIGN[problem.verdict]} {_code(say.problem_sentence(problem))}" for problem in result.problems]
    head = (row(_HEADINGS), row(_ALIGNED))
    _list(page, problems, _SHARES[0], "more")
    _list(page, map(_check_row, bad), _SHARES[1], "more that do not pass", *head)
    groups = [group for group in say.of_workloads(bad) if group[0].causes or group[0].message]
    taken = page.take([_causes(group, top) for group in groups], _SHARES[2])
    if rest := sum(map(len, groups[taken:])):
        page.add(f"and {rest:,} more with causes, left out here", "")
    if good:
        page.add(f"<details><summary>{len(good):,} check{'' if len(good) == 1 else 's'} pass</summary>", "")
        _list(page, map(_check_row, good), _SHARES[3], "more that pass", *head)
        page.add("</details>", "")
    return "\n".join(page.lines).rstrip("\n") + "\n"


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


def _causes(group: Sequence[Check], top: int) -> list[str]:
    """The sentence of the worst check to click on, each cause of all below; a check without causes is its sentence
    alone."""
    first, *others = group
    if not first.causes:
        return [f"- {_code(say.group_sentence(group))}", ""]
    more = f" and {len(others):,} more" if others else ""
    title = f"<code>{html.escape(say.explained(first))}</code>{more}"
    lines = [f"<details><summary>{_SIGN[first.verdict]} {title}</summary>", ""]
    lines += [f"- {_SIGN[check.verdict]} {_code(say.explained(check))}" for check in others[:top]]
    lines += [f"- and {len(others) - top:,} more"] if len(others) > top else []
    lines += [""] if others else []
    lines += [row(_CAUSE_HEADINGS), row(":---" for _ in _CAUSE_HEADINGS)]
    moved = say.moved_by(group)
    lines += [_cause_row(each) for each in moved[:top]]
    rest = ["", escape(say.moved_rest(moved[top:]))] if len(moved) > top else []
    return [*lines, *rest, "", "</details>", ""]


def _cause_row(moved: Moved) -> str:
    cause = moved.least
    names = (_code(name(text)) for text in (cause.op, cause.module or "(top)", cause.source))
    words = escape(say.deltas(cause, moved.most)), escape(say.places(moved.checks)), _code(say.prose(cause.detail))
    return row((escape(say.cause_label(cause)), *names, *words))


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>" if text else ""
