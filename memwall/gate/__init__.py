"""Budgets and regressions for CI: limits on the quantities of profiles, checked and explained.

``[tool.memwall.gate]`` of pyproject.toml and the command line (``reading``, into types of ``config``) say which
workloads have which limits. ``run.run_gate`` profiles the head, and the base where a commit is
one, each in a process of its own (``tracing``), or takes saved profiles as base (``baseline``). Each limit is checked
(``evaluate``), with what moved its figure (``diff``); out comes a ``result.GateResult``, the record that every output
renders: ``page`` names the kinds, ``comment``, ``forges`` and ``wording`` write them. ``history`` keeps figures by
commit. ``pytest_plugin`` checks limits in a test instead (``expectations``). Start reading in ``run``. Nothing
is imported here: pytest loads the plugin in every session.
"""
