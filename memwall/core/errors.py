"""Errors that a user can fix: one line that says what, where and how to fix it.

Each class carries the exit code that the command line returns for it. Any other exception is a bug of memwall.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from memwall.core.version import DISTRIBUTION

if TYPE_CHECKING:
    from signal import Signals


class MemwallError(Exception):
    """Base of all expected errors; the message is one line for the user."""

    exit_code = 2


class UsageError(MemwallError):
    """The user's input is wrong: a file, a name, an option, a model (exit 2)."""

    exit_code = 2


class NeedsData(UsageError):
    """The model's Python reads a tensor's contents, which a trace without data does not have."""


class TooManyOps(UsageError):
    """The trace passed the most ops that it may have: a Python loop, perhaps over tokens."""


class Unsupported(Exception):
    """There is no rule, operator or kernel for an op or a call; the message says why."""


class MissingError(MemwallError):
    """A device or an optional dependency is missing (exit 3)."""

    exit_code = 3


#: what reading a file raises whose parts are not as its format defines them
MALFORMED = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError)

#: characters of an exception's message that are looked at: some print a whole tensor
_MESSAGE_CHARS = 20_000


def message_of(error: BaseException) -> str:
    """What an exception says, cut where it goes on and on; one of a user's own may raise when asked."""
    try:
        return str(error)[:_MESSAGE_CHARS]
    except Exception:
        return "(its message cannot be shown)"


def signal_name(number: int) -> str:
    """``SIGSEGV``; ``signal 40`` for one without a name."""
    import signal

    return next((known.name for known in signal.Signals if known == number), f"signal {number}")


def signals(*names: str) -> tuple[Signals, ...]:
    """The signals, of some, that this system has: Windows lacks most."""
    import signal

    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


def nearest(name: object, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The known names similar to one, the best first; case does not matter."""
    import difflib

    folded = {each.lower(): each for each in known}
    return [folded[each] for each in difflib.get_close_matches(str(name).lower(), folded, most, cutoff)]


def suggest(
    name: object, known: Iterable[str], most: int = 1, cutoff: float = 0.6, listed: Iterable[str] | None = None
) -> str:
    """``did you mean dram_bytes?``, else ``there is`` and all that is known, or what is to be ``listed`` of it."""
    known = list(known)
    found = nearest(name, known, most, cutoff)
    if found:
        return f"did you mean {', '.join(found)}?"
    return f"there is {', '.join(known if listed is None else listed)}"


def unknown(kind: str, name: object, known: Iterable[str], cutoff: float = 0.6, where: str = "") -> UsageError:
    """The error that there is no such name: ``no policy named 'egaer'; did you mean eager?``."""
    return UsageError(f"{where}: " * bool(where) + f"no {kind} {name!r}; {suggest(name, known, cutoff=cutoff)}")


def install(extra: str) -> str:
    """The command that brings an optional dependency."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def need(module: str, extra: str) -> object:
    """Import an optional dependency, or say which extra brings it.

    Raises:
        MissingError: the module is not installed, and which extra brings it; or what it imports does not load.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a library of another version raises while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
            raise MissingError(f"this needs {module}, which is not installed: {install(extra)}") from None
        said = " ".join(message_of(error).split())
        raise MissingError(
            f"this needs {module}, which is installed but does not load: {said}; install what it imports, in versions"
            " that fit"
        ) from error
