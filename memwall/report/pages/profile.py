"""A profile as a report, and its kernels as rows of CSV, Parquet and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Self

from memwall.analysis.explanation import Explanation
from memwall.analysis.pipelines import PipelineStep, rank_rows
from memwall.analysis.quantities import columns_of
from memwall.analysis.savings import policy_sets
from memwall.analysis.validation import COLUMNS as MEASURED_COLUMNS
from memwall.analysis.validation import rows as measured_rows
from memwall.analysis.validation import summary
from memwall.analysis.verdict import verdict
from memwall.analysis.whatif import Outcome
from memwall.core.structure import write
from memwall.perfmodel.roofline import Estimate
from memwall.record.kernels import kernel_module, kernel_phase, schedule_label, shapes_text, short_name
from memwall.record.profile import Profile
from memwall.report.document import Document, Section, Sentence
from memwall.report.figures.profile import profile_chart
from memwall.report.figures.scene import Chart
from memwall.report.kinds import Report
from memwall.report.pages.communication import rank_section
from memwall.report.pages.fusion import is_several
from memwall.report.pages.profile_html import profile_page
from memwall.report.pages.profile_text import answer_blocks, profile_sections
from memwall.report.pages.validation import measured_sections
from memwall.report.trace_events import render_trace
from memwall.simulate.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ProfileReport(Report):
    """A profile: ``by`` chooses what the longest table lists, ``top`` how much of it and ``sort`` its order; ``depth``
    is of the tree of modules.

    As text, only the ``explained`` kernels are shown; Markdown and JSON include them.
    """

    noun = "a profile"
    kinds = ("text", "md", "html", "json", "csv", "parquet", "png", "svg", "pdf", "trace.json")
    own = MappingProxyType({"trace.json": lambda report: render_trace(report.profile, report.ranks, report.pipeline)})
    profile: Profile
    by: str = "op"
    top: int = 15
    sort: str = "time"
    depth: int | None = None
    #: what is said of options that nobody gave: defaults of a file, a GPU that is assumed
    assumed: str = ""
    what_ifs: Sequence[Outcome] = ()
    explained: Sequence[tuple[Schedule, Explanation]] = ()
    #: the ranks of a program whose steps differ, and the step of their pipeline
    ranks: Mapping[int, Profile] = field(default_factory=dict)
    pipeline: PipelineStep | None = None
    #: what a picture shows, one of ``figures.profile.FIGURES``; none named: the most telling ones
    picture: str = ""

    @classmethod
    def load(cls, path: str, **options: Any) -> Self:
        """Read a record. Raises ``UsageError``: as :meth:`Profile.load`."""
        return cls(Profile.load(path), **options)

    def document(self, kind: str) -> Document:
        """The page; as HTML with bars, rooflines and the kernels to sort and filter.

        Raises:
            UsageError: no such ``by`` or ``sort``.
        """
        ranks = [rank_section(self.ranks, self.pipeline)] if self.ranks else []
        if kind == "html":
            return profile_page(self.profile, self.what_ifs, ranks)
        sections = [_explanation_section(self.profile, schedule, why) for schedule, why in self.explained]
        if kind != "text" or not sections:
            header, *whole = profile_sections(self.profile, self.by, self.top, self.sort, self.what_ifs, self.depth)
            noted = Section("", (*header.blocks, *([Sentence(f"{self.assumed}.")] if self.assumed else [])))
            return Document(self.profile.workload.name, [noted, *ranks, *whole, *sections], answer_blocks(self.profile))
        return Document(self.profile.workload.name, sections)

    def record(self) -> str:
        """``memwall.profile/1``; verdicts, what-ifs, explanations, ranks, their pipeline and the sums of what was
        measured, which readers pass over, under keys of their own."""
        further: dict[str, Any] = {"verdicts": [_verdict_dict(self.profile, s) for s in self.profile.simulations]}
        further |= {"what_if": write(self.what_ifs)} if self.what_ifs else {}
        if self.explained:
            further["explanations"] = [_explanation_dict(schedule, why) for schedule, why in self.explained]
        if self.ranks:
            further["ranks"] = [asdict(row) for row in rank_rows(self.ranks, self.pipeline)]
        if self.pipeline:
            further["pipeline"] = self.pipeline.to_dict()
        if self.profile.measurements:
            further["measured"] = summary(self.profile)
        return self.profile.to_json(further)

    def rows(self) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """The kernels; of several policies with what each kernel saves, of a measured profile the measured ones."""
        if self.profile.measurements:
            return MEASURED_COLUMNS, (tuple(row.values()) for row in measured_rows(self.profile))
        if is_several(self.profile):
            return KERNEL_COLUMNS + SAVING_COLUMNS, _saving_rows(self.profile)
        return KERNEL_COLUMNS, profile_rows(self.profile)

    def figure(self) -> Chart:
        return profile_chart(self.profile, self.picture)


@dataclass(frozen=True, slots=True)
class MeasuredReport(ProfileReport):
    """A profile whose text and Markdown show only what was measured: the page of ``memwall measure``."""

    def document(self, kind: str) -> Document:
        if kind == "html":
            return profile_page(self.profile, self.what_ifs)
        w = self.profile.workload
        sections = measured_sections(self.profile, top=self.top) or [Section("", [Sentence("Nothing was measured.")])]
        return Document(f"{w.name}, {w.mode}, {w.dtype}: modeled next to measured", sections)


def _explanation_section(profile: Profile, schedule: Schedule, why: Explanation) -> Section:
    kernel = why.kernel
    repeats = f" x{why.count}" if why.count > 1 else ""
    place = f" in {why.module}" if why.module else ""
    title = f"{schedule_label(profile, schedule)}: kernel {kernel.id}, {short_name(kernel.name)}{repeats}{place}"
    texts = [*why.launches, why.around, *([f"calibrated: {why.calibrated}"] if why.calibrated else [])]
    return Section(title, [Sentence(text) for text in texts])


def _explanation_dict(schedule: Schedule, why: Explanation) -> dict[str, Any]:
    kernel = why.kernel
    return {
        "gpu": schedule.gpu.name,
        "policy": schedule.policy,
        "kernel": kernel.id,
        "name": kernel.name,
        "module": why.module,
        "count": why.count,
        "time_s": kernel.time_s,
        "low_s": kernel.low_s,
        "high_s": kernel.high_s,
        "sentences": [*why.launches, why.around],
        "calibrated": why.calibrated,
    }


def _verdict_dict(profile: Profile, schedule: Schedule) -> dict[str, Any]:
    key = {"gpu": schedule.gpu.name, "policy": schedule.policy, "launch": schedule.launch}
    return {**key, **write(verdict(profile, schedule))}


_CSV = columns_of("csv")
#: columns of a kernel's row; seconds and bytes in base units
KERNEL_COLUMNS = (
    "gpu", "policy", "id", "name", "class", "phase", "module", "shapes",
    *(quantity.name for quantity in _CSV), "modeled")  # fmt: skip

#: what a kernel's row has more where there are several policies: the eager kernels of the same ops
SAVING_COLUMNS = ("ops", "launches", "eager_launches", "eager_bytes", "eager_time_s", "saved_bytes", "saved_s")


def profile_rows(profile: Profile) -> Iterator[tuple[Any, ...]]:
    """One tuple of ``KERNEL_COLUMNS`` per kernel of each simulation, in launch order."""
    for schedule in profile.simulations:
        for kernel in schedule.kernels:
            yield _kernel(profile, schedule, kernel)


def _kernel(profile: Profile, schedule: Schedule, kernel: Estimate) -> tuple[Any, ...]:
    graph, costs = profile.graphs[schedule.graph], profile.costs[schedule.graph]
    specs = [graph.values[i].spec for op_id in kernel.op_ids for i in graph.ops[op_id].inputs]
    return (
        schedule.gpu.name,
        schedule.policy,
        kernel.id,
        kernel.name,
        kernel.op_class,
        kernel_phase(profile, schedule, kernel),
        kernel_module(profile, schedule, kernel),
        shapes_text(specs),
        *(quantity.of(kernel) for quantity in _CSV),
        all(costs[i].modeled for i in kernel.op_ids),
    )


def _saving_rows(profile: Profile) -> Iterator[tuple[Any, ...]]:
    """One tuple of ``KERNEL_COLUMNS`` and ``SAVING_COLUMNS`` per kernel, GPU by GPU."""
    for policies in policy_sets(profile):
        for schedule in policies.schedules:
            for kernel in schedule.kernels:
                eager = (
                    policies.replaced(kernel) if policies.shares_ops(schedule) else [kernel]
                )  # else it saves nothing
                eager_bytes, eager_s = sum(k.bytes for k in eager), sum(k.time_s for k in eager)
                yield (
                    *_kernel(profile, schedule, kernel),
                    len(kernel.op_ids),
                    kernel.launches,
                    sum(k.launches for k in eager),
                    eager_bytes,
                    eager_s,
                    eager_bytes - kernel.bytes,
                    eager_s - kernel.time_s,
                )
