"""Budgets and regressions for CI: limits on the quantities of profiles, checked and explained.

``[tool.memwall.gate]`` of pyproject.toml and the command line (``reading``, into types of ``config``) say which
workloads have which limits. ``run.run_gate`` profiles the head, and the base where a commit is
one, each in a process of its own (``tracing``), or takes saved profiles as base (``baseline``). Each limit is checked
(``evaluate``), with what moved its figure (``diff``); out comes a ``result.GateResult``, the record that every output
renders: ``page`` names the kinds, ``comment``, ``forges`` and ``wording`` write them. ``history`` keeps figures by
commit. ``pytest_plugin`` checks limits in a test instead (``expectations``). Start reading in ``run``. Nothing
else is imported here: pytest loads the plugin in every session.
"""

import sys
from types import ModuleType
from typing import Any


class _CallableFolder(ModuleType):
    """This folder, called as :func:`memwall.gate.run.gate`. It has the name of that public function, since pytest finds
    the plugin by the name that was installed."""

    @property
    def __wrapped__(self) -> Any:
        from memwall.gate.run import gate

        return gate

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.__wrapped__(*args, **keywords)


sys.modules[__name__].__class__ = _CallableFolder
