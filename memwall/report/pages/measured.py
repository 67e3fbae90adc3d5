"""What was measured, alone on a page: what ``memwall measure`` prints."""

from __future__ import annotations

from memwall.record.profile import Profile
from memwall.report.document import Document, Section, Sentence, clean
from memwall.report.markdown import to_markdown
from memwall.report.pages.validation import DEFAULT_TOP, measured_sections
from memwall.report.text import to_text


def render_measured(profile: Profile, *, top: int = DEFAULT_TOP, width: int | None = None, color: bool = False) -> str:
    """What was measured, as text for a terminal."""
    return to_text(measured_document(profile, top=top), width=width, color=color)


def measured_markdown(profile: Profile, *, top: int = DEFAULT_TOP) -> str:
    """The same as Markdown."""
    return to_markdown(measured_document(profile, top=top))


def measured_document(profile: Profile, *, top: int = DEFAULT_TOP) -> Document:
    """What was measured, alone on a page."""
    w = profile.workload
    title = clean(f"{w.name}, {w.mode}, {w.dtype}: modeled beside measured")
    sections = measured_sections(profile, top=top)
    return Document(title, sections or (Section("", (Sentence("Nothing was measured."),)),))
