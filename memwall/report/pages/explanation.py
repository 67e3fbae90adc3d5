"""Why kernels take their time, and how the constants behind a report are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwall.analysis.explanation import Explanation, provenance
from memwall.core.units import percent
from memwall.record.kernels import schedule_label, short_name
from memwall.record.profile import Profile
from memwall.report.document import Section, Sentence, clean
from memwall.simulate.schedule import Schedule

Explained = Sequence[tuple[Schedule, Explanation]]


def explanation_sections(profile: Profile, explained: Explained) -> tuple[Section, ...]:
    """One section for each kernel explained, GPU by GPU."""
    return tuple(_section(profile, schedule, explanation) for schedule, explanation in explained)


def _section(profile: Profile, schedule: Schedule, why: Explanation) -> Section:
    kernel = why.kernel
    repeats = f" x{why.count}" if why.count > 1 else ""
    place = f" in {why.module}" if why.module else ""
    title = f"{schedule_label(profile, schedule)}: kernel {kernel.id}, {short_name(kernel.name)}{repeats}{place}"
    texts = [*why.launches, why.around]
    if why.calibrated:
        texts.append(f"calibrated: {why.calibrated}")
    return Section(clean(title), tuple(Sentence(clean(text)) for text in texts))


def explanation_dict(schedule: Schedule, why: Explanation) -> dict[str, Any]:
    """Plain JSON types."""
    kernel = why.kernel
    return {
        "gpu": schedule.gpu.name, "policy": schedule.policy, "kernel": kernel.id, "name": kernel.name,
        "module": why.module, "count": why.count, "time_s": kernel.time_s, "low_s": kernel.low_s,
        "high_s": kernel.high_s, "sentences": [*why.launches, why.around], "calibrated": why.calibrated,
    }  # fmt: skip


def provenance_text(profile: Profile, schedule: Schedule) -> str:
    """``yes for 93.1 % of the time, by architecture (a100-40gb-pcie) for 6.9 %``; empty on a CPU."""
    rows = provenance(profile, schedule)
    total = sum(row.time_s for row in rows)
    if not total:
        return ""
    if len(rows) == 1:
        return f"{rows[0].calibrated}{_gpus(rows[0].gpus)}"
    parts = [f"{row.calibrated}{_gpus(row.gpus)} for {percent(row.time_s / total)}" for row in rows]
    return f"{parts[0]} of the time, {', '.join(parts[1:])}"


def _gpus(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""
