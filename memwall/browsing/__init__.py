"""The records of a folder as pages of a browser: which there are, any one of them, and any profiles side by side.

A folder goes in; a page that lists its records comes out, as one file or from a server on this machine. Records are
found in ``run.py``, which reads no more of each than its list needs (``headlines.py``); ``page.py`` is the list, and
``server.py`` answers a browser that has the token.
"""
