"""What the user's code raised while it was traced, in one line: its cause, its line, what would help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

from memwall.core.errors import MemwallError, NeedsData, UsageError, message_of
from memwall.frontend.blocks.template import ReplayMismatch
from memwall.frontend.torch.recorder import UnexpectedCall
from memwall.frontend.workload.blame import blame, library_frame, user_frame

_HOST = "a tensor of the host (a global, or torch.tensor([...]) without a device) meets the device's"

_SPARSE = "torch has no shape function for an op on a sparse tensor of this layout"

#: What torch says where a gradient is taken of what was computed without.
_NO_GRADIENT = "does not require grad and does not have a grad_fn"


class NeedsGradients(Exception):
    """The model takes a gradient in forward."""


#: An op of a library that torch cannot run without data, in torch's messages.
_NO_SHAPES = re.compile(
    r"Could not run '(?!aten::)([\w:.]+)' with arguments from the 'Meta' backend"
    r"|(?<![\w:])(?!aten::)([\w:.]+): attempted to run this operator with Meta tensors"
    r"|no fake impl registered for <CustomOpDef\(([\w:.]+)\)>"
    r"|could not find the fake impl[^:]*?operator (?!aten::)(\w+::[\w.]+)"
    r"|(?!aten::)(\w+::[\w.]+): We could not find the fake impl"
)

#: What a tensor without data cannot do: part of torch's message → what the model asked for.
_NEEDS_DATA = (
    ("cannot be called on meta tensors", "a tensor's value (.item(), int(), float() or `if tensor:`)"),
    ("torch.nonzero()", "which elements are nonzero (a boolean mask as index, nonzero() or one-argument where())"),
    ("Cannot copy out of meta tensor", "a tensor's data on the host (.tolist(), .cpu(), .numpy() or print)"),
    ("convert meta device type tensor to numpy", "a tensor's data on the host (.numpy())"),
    ("'SparseMeta' backend", _SPARSE),
    ("unsupported device typemeta", _SPARSE),
    ("'Meta' backend", "an op whose output shape depends on data, or that has no shape function"),
    ("on the meta device", "an op whose output shape depends on data"),
    ("a meta tensor", "the data of a tensor"),
    ("is not on the expected device meta", _HOST),
    ("with Meta tensors", "an op that has no shape function"),
    ("could not find the fake impl", "an op that has no shape function"),
)


#: Words of messages about shapes and places.
_OF_SHAPES = re.compile(r"shape|size|length|dimension|element|index|indices|match|broadcast|range|number of", re.I)


def _may_follow(error: BaseException) -> bool:
    """Whether an exception is about shapes or places, which may follow from what was assumed."""
    if isinstance(error, LookupError):
        return not (isinstance(error, KeyError) and isinstance(next(iter(error.args), None), str))
    return bool(_OF_SHAPES.search(message_of(error)))


def wanted_data(error: BaseException) -> str | None:
    """What of a tensor without data an exception of torch's says was asked for; None where it says nothing of it."""
    said = message_of(error)
    return next((text for part, text in _NEEDS_DATA if part in said), None)


def why_without_data(error: BaseException) -> str | None:
    """A clause that says why an exception of torch's was raised for a tensor without data; None where it was not."""
    wanted = wanted_data(error)
    if wanted is None or wanted in (_HOST, _SPARSE):
        return wanted
    return f"its Python needs {wanted} that follows from activations, and a trace has no data"


@contextlib.contextmanager
def blaming(doing: str, gradients: bool = True, assumed: Callable[[], str] = str) -> Any:
    """Turn an exception of the user's code into one line that names the user's line and what was ``assumed`` before;
    without ``gradients``, one that asks for them into :class:`NeedsGradients`."""
    try:
        yield
    except (MemwallError, ReplayMismatch, UnexpectedCall):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        said = message_of(error)
        if _NO_GRADIENT in said and not gradients:
            raise NeedsGradients from error
        unshaped = next((name for found in _NO_SHAPES.finditer(said) for name in found.groups() if name), None)
        wanted = wanted_data(error)
        at = user_frame(error)
        where = f" (at {at})" if at else ""
        if unshaped is not None:
            raise UsageError(
                f"{doing}: {unshaped} does not say what shapes it returns{where}; give it a function that does, with"
                f' @torch.library.register_fake("{unshaped}"), or trace real tensors with --real where the CPU runs it'
            ) from error
        if type(error).__module__.startswith("torch._dynamo"):
            raise UsageError(
                f"{doing}: a compiler cannot start inside a trace{where}; leave torch.compile out, and write"
                " while_loop, scan and map as Python loops"
            ) from error
        if wanted is None:
            blamed = blame(error, doing)
            if (used := assumed()) and _may_follow(error):
                blamed = UsageError(f"{blamed}; this may follow from what was assumed, {used}: --assume changes it")
            raise blamed from error
        if wanted is _HOST:
            raise UsageError(f"{doing}: {_HOST}{where}; give it device=x.device, or register it as a buffer") from error
        if wanted is _SPARSE:
            raise NeedsData(f"{doing}: {_SPARSE}{where}; take COO or CSR, or trace real tensors with --real") from error
        who = "the model's Python" if doing == "running the model" else doing
        library = library_frame(error)
        inside = f", asked at {library}" if library else ""
        advice = "" if library else "rewrite it without (torch.where, a mask multiplied in), or "
        raise NeedsData(
            f"{who} needs {wanted} that follows from activations, and a trace has no data{where}{inside}; {advice}"
            "trace real tensors with --real"
        ) from error
