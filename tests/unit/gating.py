"""The command line in this process, and gates of it with servers of traces that a whole session shares.

A server takes some seconds to import and compile what its first trace needs, and gives each job a fork of its own. What
is the work of the process that starts it (its variables, what a model prints) is tested with a process of its own.
"""

import contextlib
import importlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch


def run_here(folder: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``memwall WORDS``, run from a folder outside of git's hooks."""
    from memwall.cli import main

    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | variables
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder), patch.dict(os.environ, environment, clear=True), contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):  # fmt: skip
        code = main([*words])
    return code, out.getvalue(), err.getvalue()


class Gates:
    """Gates with shared servers; :meth:`stop` ends these. What differs from its base is traced again ``again`` times on
    each side, to see whether it equals itself, where users' gates do so twice."""

    def __init__(self) -> None:
        self._made: Any = None
        self.again = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Gates of this process take the shared servers. Older packages, in which the tests of defects run too, have
        no such class."""
        try:
            run, tracing = (importlib.import_module(f"memwall.gate.{name}") for name in ("run", "tracing"))
            servers = run.Tracers
        except (ImportError, AttributeError):
            yield
            return
        self._made = self._made or servers()
        made = patch.object(run, "Tracers", lambda captures=True: contextlib.nullcontext(self._made))
        with made, patch.object(tracing, "_REPEATS", self.again):
            yield

    def __call__(self, folder: Path, *words: str, **variables: str) -> tuple[int, str, str]:
        """``memwall gate WORDS`` as :func:`run_here` has it."""
        with self.shared():
            return run_here(folder, "gate", *words, **variables)

    def stop(self) -> None:
        if self._made is not None:
            self._made.__exit__(None, None, None)
