"""A server of the Model Context Protocol: the commands of memwall as tools of a program that talks to a language model.

A call of a tool, a name and options in JSON, goes in; a short answer with a handle to the whole record comes out. The
tools take the words of the commands (:mod:`memwall.mcp_server.tools`), each call runs in a fork of a process that has
imported torch (:mod:`memwall.mcp_server.calls`, :mod:`memwall.mcp_server.running`), and what a client may ask for ends
at the folder that the server was started in (:mod:`memwall.mcp_server.folder`). Begin with ``server.py``, which alone
needs the package ``mcp``.
"""
