"""A module for each page: what a report of one kind of result says, as a document.

In comes a result of ``analysis``, ``traces`` or ``gate`` with options of how to show it; a page is a ``Report``
(``report.kinds``) and gives a document, rows, a record or a figure. ``profile`` is the main one: ``profile_text`` has
its answer and sections, ``profile_tables`` its tables, ``profile_html`` its page with bars and data for the script.
``fusion``, ``validation`` and ``communication`` are sections that several pages have. Pages of wings lie in their
wings.
"""
