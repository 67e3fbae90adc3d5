"""What is shown of a result: text, Markdown, HTML, tables, pictures, and what forges and trace viewers read. No I/O.

In come results of ``analysis``, ``traces``, ``bench`` and ``gate``; out comes text or bytes, which the command line
writes. Each kind of result has a page in ``pages``: a ``Report`` that gives a ``document`` (facts, tables, sentences),
``rows``, a ``figure`` (in ``figures``) and a ``record``. ``render(report, kind)`` writes any of them by the one writer
of that kind: ``text``, ``markdown``, ``html``, ``tables``, ``figures.picture``. Start with ``kinds.py``, then
``document.py`` and any page. What a notebook shows is in ``notebook.py``.
"""

from memwall.report.kinds import Report, render, render_pieces

__all__ = ["Report", "render", "render_pieces"]
