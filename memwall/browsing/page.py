"""The records of a folder → Document: a list with links, in one file with what each record says below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import memwall.report.columns as col
from memwall.browsing.headlines import Headline
from memwall.browsing.run import MOST_COMPARED, MOST_FILES, ListedRecord, RecordFolder, RecordList
from memwall.core.errors import UsageError
from memwall.core.progress import counting
from memwall.core.units import counted, few
from memwall.report.document import Block, Document, Markup, Section, Sentence, Table
from memwall.report.html import HtmlCell, escape
from memwall.report.kinds import Report

#: records of which a page that is one file says more than a line
MOST_TOLD = 50
#: hexadecimal digits of a commit, as git shortens it
_SHORT = 9
#: words of a cell
_FEW = 4

#: apart from the table, whose field for filtering it would send
_COMPARE = f'<form id="compare" action="compare"><button>Compare</button> two to {MOST_COMPARED} ticked profiles</form>'


@dataclass(frozen=True, slots=True)
class RecordsReport(Report):
    """The list. As one file (``whole``) it has what the newest records say below; else its links ask a server."""

    noun = "a list of records"
    kinds = ("html",)
    folder: RecordFolder
    whole: bool = False

    def document(self, kind: str) -> Document:
        listed = self.folder.listed()
        shown = [record for record in listed.records if not record.error]
        sections = [Section("", self._list(shown))]
        if broken := [record for record in listed.records if record.error]:
            sections.append(Section("Records that cannot be read", (_broken(broken),)))
        if self.whole:
            sections += self._told(shown)
        return Document(f"Records in {listed.folder}", sections, (Sentence(summary(listed), strong=True),))

    def _list(self, records: Sequence[ListedRecord]) -> list[Block]:
        if not records:
            return [Sentence("memwall profile, fuse, serve, bound and measure write a record with -o FILE.json.")]
        table = _table(records)
        ticked = not self.whole and sum(record.is_profile for record in records) > 1
        anchors = {record.number for record in records[:MOST_TOLD]}
        links = [
            f"#record-{r.number}" * (r.number in anchors) if self.whole else f"record?n={r.number}" for r in records
        ]
        rows = tuple(
            (_linked(record, name, link, ticked), *others)
            for record, (name, *others), link in zip(records, table.rows, links, strict=True)
        )
        return [*([Markup(_COMPARE)] if ticked else []), table._replace(rows=rows)]

    def _told(self, records: Sequence[ListedRecord]) -> Iterator[Section]:
        """What the newest records say, as their text has it: a section each, so that the contents list records."""
        for record in counting(records[:MOST_TOLD], "reading records"):
            blocks: list[Block] = [Markup(f'<a id="record-{record.number}"></a>')]
            try:
                told = self.folder.page(record.number).document("text").whole
            except UsageError as error:
                blocks.append(Sentence(str(error)))
            else:
                blocks += (block for section in told if isinstance(section, Section) for block in _parts(section))
            yield Section(record.place, blocks)


def _parts(section: Section) -> Iterator[Block]:
    """The blocks of a section, after its heading."""
    if section.heading:
        yield Markup(f"<h3>{escape(section.heading)}</h3>")
    yield from section.blocks


def error_document(message: str) -> Document:
    """A page that says why there is no other."""
    back = Markup('<p><a href="./">All records</a></p>')
    return Document("No such page", [Section("", (back,))], (Sentence(message, strong=True),))


def summary(listed: RecordList) -> str:
    """How many records there are, and what is left out."""
    broken = sum(bool(record.error) for record in listed.records)
    text = counted(len(listed.records), "record") + (f", of which {broken:,} cannot be read" if broken else "")
    left = ", ".join(counted(count, what) for what, count in listed.left_out.items())
    rest = "" if listed.whole else f" The folder has more than {MOST_FILES:,} files, and not all were looked at."
    return f"{text}, the newest first." + (f" Left out: {left}." if left else "") + rest


def _table(records: Sequence[ListedRecord]) -> Table:
    """What the list says of each."""
    heads = [record.headline or Headline(kind=col.NOTHING, name=record.place) for record in records]
    columns = [
        col.names("record", [head.name for head in heads]),
        col.text("kind", [head.kind for head in heads]),
        col.names("target", [head.target for head in heads]),
        col.text("GPUs", [few(head.gpus, _FEW) for head in heads]),
        col.text("policies", [few(head.policies, _FEW) for head in heads]),
        col.seconds("fastest", [min(head.times_s) if head.times_s else None for head in heads]),
        col.text("made", [head.made or record.saved for record, head in zip(records, heads, strict=True)]),
        col.text("commit", [head.commit[:_SHORT] for head in heads]),
        col.names("file", [record.place for record in records]),
    ]
    note = (
        "fastest: the step of least modeled time among its GPUs and policies, of a history the step of its last commit;"
        " made: UTC, when it was measured or committed, else when it was saved"
    )
    return col.table("", [column for column in columns if any(column[1])], note)


def _broken(records: Sequence[ListedRecord]) -> Table:
    columns = [col.names("file", [r.place for r in records]), col.text("why", [r.error for r in records], wraps=True)]
    return col.table("", columns)


def _linked(record: ListedRecord, text: str, link: str, ticked: bool) -> HtmlCell:
    """The first cell of a record: a box to tick where it can be compared, and its name, linked where it leads."""
    name = f'<a href="{escape(link)}">{escape(text)}</a>' if link else escape(text)
    box = f'<input type="checkbox" form="compare" name="n" value="{record.number}"> '
    return HtmlCell((box if ticked and record.is_profile else "") + name)
