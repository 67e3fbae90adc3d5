"""A module for each picture: it gives inches and a function that draws; ``picture.picture`` makes PNG or SVG of it.

``picture`` has what all share: the style, colours, marks of legends, logarithmic axes. Matplotlib is imported where
something is drawn. Start with ``picture.py``, then ``profile.py`` and ``roofline.py``.
"""
