"""Errors that a user can mend: one line that says what, where and the way out.

Each class carries the exit code that the command line returns for it. Anything else that is raised is our bug.
"""

from __future__ import annotations


class MemwallError(Exception):
    """Base of all expected errors; the message is one line for the user."""

    exit_code = 2


class UsageError(MemwallError):
    """The user's input is wrong: a file, a name, an option, a model (exit 2)."""

    exit_code = 2


class NeedsData(UsageError):
    """The model's Python reads what is in a tensor, and a trace without data has nothing there."""


class MissingError(MemwallError):
    """A device or an optional dependency is missing (exit 3)."""

    exit_code = 3


def need(module: str, extra: str) -> object:
    """Import an optional dependency, or say which extra brings it.

    Raises:
        MissingError: the module is not installed; names the extra.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingError(f"this needs {module}, which is not installed: pip install 'memwall[{extra}]'") from None
