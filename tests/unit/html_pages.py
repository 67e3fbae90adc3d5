"""Pages as a browser would read them."""

from collections import defaultdict
from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags of a page or of a part of one, which must close in order, with their attributes; its text, but for
    styles; and the text of each element that has an id."""

    VOID = frozenset(("meta", "link", "br", "hr", "input", "img"))

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.by_id = "", defaultdict[str | None, str](str)
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(self.tags[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        inside, attributes = self.open[-1] if self.open else ("", {})
        self.by_id[attributes.get("id")] += data
        if inside != "style":
            self.text += data.replace("\xa0", " ")  # what keeps a number and its unit on a line
