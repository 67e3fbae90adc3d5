"""A module for each kind of picture: it gives a chart, which draws marks on a scene (``scene.py``) of any width.

One scene is painted as SVG for files and pages (``svg.py``) and by matplotlib as PNG and PDF (``canvas.py``); a page
embeds the same SVG that a file holds. ``colors.py`` is the one table of colours, ``axes.py`` and ``bars.py`` are what
charts share, ``labels.py`` places labels. Start with ``scene.py``, then ``bars.py`` and ``profile.py``.
"""
