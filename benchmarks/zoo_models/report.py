"""The zoo's report: what works, what is refused and with which message, FLOPs, seconds, and what has changed."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any


def summary(rows: Sequence[Any]) -> str:
    """Markdown: a table by suite and mode, then the causes of what does not work."""
    lines = [
        "| suite | mode | buildable | works | refused | crash | time-out | FLOPs equal | median s |",
        "|---|---|" + "---:|" * 7,
    ]
    for suite, mode in dict.fromkeys((row.suite, row.mode) for row in rows):
        own = [row for row in rows if (row.suite, row.mode) == (suite, mode) and row.status != "not buildable"]
        count = Counter(row.status for row in own)
        works = [row for row in own if row.status == "works"]
        compared = [row for row in works if row.counter_flops is not None]
        equal = sum(row.flops == row.counter_flops for row in compared)
        seconds = statistics.median(row.seconds for row in works) if works else 0.0
        crashes = count["crash"] + count["out of memory"]
        share = f"{count['works']} ({100 * count['works'] / max(len(own), 1):.1f} %)"
        lines.append(
            f"| {suite} | {mode} | {len(own)} | {share} | {count['refused']} | {crashes}"
            f" | {count['timeout']} | {equal} of {len(compared)} | {seconds:.2f} |"
        )
    causes = Counter((row.status, _cause(row.message)) for row in rows if row.status not in ("works", "not buildable"))
    lines += ["", "| models | status | cause |", "|---:|---|---|"]
    lines += [f"| {number} | {status} | {cause} |" for (status, cause), number in causes.most_common()]
    return "\n".join(lines)


def _cause(message: str) -> str:
    """A message without what differs from model to model."""
    return re.sub(r"\b\w*\d[\w.]*\b", "N", message.partition(" (at ")[0])[:160]
