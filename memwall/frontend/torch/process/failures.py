"""What the user's code raised while it was traced, in one line: its cause, its line, what would help."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from memwall.core.compat import name_of
from memwall.core.errors import MemwallError, NeedsData, UsageError, message_of
from memwall.frontend.blocks.template import ReplayMismatch
from memwall.frontend.targets.blame import blame, cause_of, first_line, library_frame, user_frame, users_code
from memwall.frontend.torch.dispatch.recorder import UnexpectedCall
from memwall.frontend.torch.dispatch.shapes import SPARSE_TWICE

_HOST = "a tensor of the host (a global, or torch.tensor([...]) without a device) meets the device's"

_LENGTHS = "pack_padded_sequence wants lengths on the host, and inputs are on the device"

_SPARSE = "torch has no shape function for an op on a sparse tensor of this layout"

_NESTED = "a nested tensor of the strided layout needs data"

#: What is wanted, if it is not a value → its kind of error, and what would help.
_ADVICE: Mapping[str, tuple[type[MemwallError], str]] = {
    _HOST: (UsageError, "give it device=x.device, register it as a buffer, or trace real tensors with --real"),
    _LENGTHS: (UsageError, "say that they stay there: memwall.on_host(lengths) in inputs, or @host behind --input"),
    _SPARSE: (NeedsData, "trace real tensors with --real, or take COO or CSR if it is neither"),
    SPARSE_TWICE: (NeedsData, "trace real tensors with --real"),
    _NESTED: (NeedsData, "make it with layout=torch.jagged, or trace real tensors with --real"),
}

#: What torch says where a gradient is taken of what was computed without.
_NO_GRADIENT = "does not require grad and does not have a grad_fn"


class NeedsGradients(Exception):
    """The model takes a gradient in forward."""


#: An op of a library that torch cannot run without data, in torch's messages.
_NO_SHAPES = re.compile(
    r"Could not run '(?!aten::)([\w:.]+)' with arguments from the 'Meta' backend"
    r"|(?<![\w:.])(?!aten::)([\w:.]+): attempted to run this operator with Meta tensors"
    r"|no fake impl registered for <CustomOpDef\(([\w:.]+)\)>"
    r"|could not find the fake impl[^:]*?operator (?!aten::)(\w+::[\w.]+)"
    r"|\b(?!aten::)(\w+::[\w.]+): We could not find the fake impl"
)

#: An op's name in the beginning of a message.
_OP = re.compile(r"\b\w{1,80}::\w{1,80}")
_OP_WITHIN = 400

#: What a tensor without data cannot do: part of torch's message → what the model asked for.
_NEEDS_DATA = (
    ("cannot be called on meta tensors", "a tensor's value (.item(), int(), float() or `if tensor:`)"),
    ("torch.nonzero()", "which elements are nonzero (a boolean mask as index, nonzero() or one-argument where())"),
    ("Cannot copy out of meta tensor", "a tensor's data on the host (.tolist(), .cpu(), .numpy() or print)"),
    ("convert meta device type tensor to numpy", "a tensor's data on the host (.numpy())"),
    ("'lengths' argument should be a 1D CPU", _LENGTHS),
    ("NestedTensorImpl storage must be", _NESTED),
    (SPARSE_TWICE, SPARSE_TWICE),
    ("'SparseMeta' backend", _SPARSE),
    ("unsupported device typemeta", _SPARSE),
    ("'Meta' backend", "an op whose output shape depends on data, or that has no shape function"),
    ("on the meta device", "an op whose output shape depends on data"),
    ("a meta tensor", "the data of a tensor"),
    ("is not on the expected device meta", _HOST),
    ("is not on the expected device cpu", _HOST),
    ("with Meta tensors", "an op that has no shape function"),
    ("could not find the fake impl", "an op that has no shape function"),
)


#: Part of torch's message → what needs GPUs and their library, and what would help.
_NEEDS_GPUS: Mapping[str, str] = {
    "SymmetricMemory": "symmetric memory needs GPUs; call the collectives of torch.distributed instead",
    "_nccl_": "NCCL itself is not there to be asked; leave torch.cuda.nccl out where RANK is a traced one",
}


#: An assumption about branches → what to try where it seems to be wrong.
_OTHER_BRANCH = {
    "condition=true": "try --assume condition=false", "condition=false": "try --assume condition=true"}  # fmt: skip

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


def wanted_in_words(error: BaseException) -> str:
    """The same in words for every exception: with the op's name where one is named, else what torch says first."""
    wanted = wanted_data(error)
    named = _OP.search(message_of(error)[:_OP_WITHIN])
    if wanted and named and wanted.startswith("an op "):
        return f"{named[0]} is {wanted}"
    return wanted or first_line(error).partition(". ")[0] or type(error).__name__


def why_without_data(error: BaseException) -> str | None:
    """A clause that says why an exception of torch's was raised for a tensor without data; None where it was not."""
    wanted = wanted_data(error)
    if wanted is None or wanted in _ADVICE:
        return wanted
    return f"its Python {_asks(wanted)}"


def _asks(wanted: str) -> str:
    """What Python does that a trace cannot answer."""
    asks = f"calls {wanted}" if wanted.startswith("an op ") else f"needs {wanted} that follows from activations"
    return f"{asks}, and a trace has no data"


@contextlib.contextmanager
def blaming(doing: str, gradients: bool = True, assumed: Callable[[], str] = str) -> Any:
    """Turn an exception of the user's code into one line that names the user's line and what was ``assumed`` before;
    without ``gradients``, one that asks for them into :class:`NeedsGradients`."""
    try:
        with users_code():
            yield
    except (MemwallError, ReplayMismatch, UnexpectedCall):
        raise
    except (Exception, SystemExit, GeneratorExit) as raised:
        error = cause_of(raised)
        said = message_of(error)
        for own in (error, error.__cause__):  # which a library has wrapped
            if isinstance(own, (MemwallError, ReplayMismatch, UnexpectedCall)):
                raise own from None
        if _NO_GRADIENT in said and not gradients:
            raise NeedsGradients from error
        unshaped = next((name for found in _NO_SHAPES.finditer(said) for name in found.groups() if name), None)
        wanted = wanted_data(error)
        at = user_frame(error)
        where = f" (at {at})" if at else ""
        if unshaped is not None and unshaped.startswith("quantized::") and "dynamic" in unshaped:
            raise UsageError(
                f"{doing}: {unshaped} has a kernel for CPUs alone, none for a GPU{where}; profile the model as it is"
                " before quantize_dynamic"
            ) from error
        if unshaped is not None:
            raise UsageError(
                f"{doing}: {unshaped} does not say what shapes it returns{where}; give it a function that does, with"
                f' @torch.library.register_fake("{unshaped}"), or trace real tensors with --real where the CPU runs it'
            ) from error
        if type(error).__module__.startswith(name_of("dynamo")):
            raise UsageError(
                f"{doing}: a compiler cannot start inside a trace{where}; leave torch.compile out, and write"
                " while_loop, scan and map as Python loops"
            ) from error
        if lacking := next((text for part, text in _NEEDS_GPUS.items() if part in said), None):
            raise UsageError(f"{doing}: {lacking}{where}") from error
        if wanted is None:
            blamed = blame(error, doing)
            if (used := assumed()) and _may_follow(error):
                changed = next((other for said, other in _OTHER_BRANCH.items() if said in used), "--assume changes it")
                blamed = UsageError(f"{blamed}; this may follow from what was assumed, {used}: {changed}")
            raise blamed from error
        if wanted in _ADVICE:
            kind, advice = _ADVICE[wanted]
            raise kind(f"{doing}: {wanted}{where}; {advice}") from error
        who = "the model's Python" if doing == "running the model" else doing
        library = library_frame(error)
        inside = f", asked at {library}" if library else ""
        advice = "" if library else "rewrite it without (torch.where, a mask multiplied in), or "
        raise NeedsData(f"{who} {_asks(wanted)}{where}{inside}; {advice}trace real tensors with --real") from error
