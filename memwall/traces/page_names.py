"""Short names of ops and kernels: what distinguishes one from another comes before what a library's names share."""

from __future__ import annotations

import re

import memwall.report.columns as col
from memwall.report.document import clean

#: characters that a table shows at most, and characters of the end, which has tiles and layouts
_LONGEST, _END = 56, 20
#: longer names of ops are written with the abbreviations that libraries use themselves
_LONG_OP = 20
_ABBREVIATIONS = (("convolution", "conv"), ("backward", "bwd"), ("forward", "fwd"), ("attention", "attn"))
#: namespaces that say nothing of what a kernel does
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)|at|native|detail|cuda|cudnn|cnn|ck|ck_tile|pytorch_flash)::")
#: ``cutlass::Kernel2<NAME>(NAME::Params)``, ``cutlass::device_kernel<NAME<...>>``
_WRAPPED = re.compile(r"^cutlass::(?:Kernel2?|device_kernel)<(?P<name>.*)")
#: rocBLAS and hipBLASLt write out every parameter; the macro tile is what differs
_TENSILE = re.compile(r"^(?P<kind>Cijk(?:_[^\W_]+){3})_.*?(?P<tile>MT\d+x\d+x\d+)")
#: of ``vectorized_elementwise_kernel<4, AddFunctor<float>, ...`` the functor, else the first that is neither number
#: nor dtype
_FUNCTOR = re.compile(r"\b\w*?Functor\w*")
_PLAIN = re.compile(
    r"(?:\d+(?:ul)?|true|false|(?:unsigned )?(?:int|long|char|short)|float\d?|double|bool|c10::\w+|__half|half)?$"
)


def short_name(name: str) -> str:
    """An op's or kernel's name without namespaces, parameters and most template arguments."""
    text = clean(name).removeprefix("void ").removeprefix("aten::")
    if text.startswith(("##", "triton", "Memcpy", "Memset")):
        short = text
    elif tensile := _TENSILE.match(text):
        short = f"{tensile['kind']}_{tensile['tile']}"
    elif "<" in text or "(" in text:
        short = _without_arguments(_NAMESPACES.sub("", text)) or text
    else:
        short = _abbreviated(text)
    return _cut(short) or col.NOTHING


def _without_arguments(text: str) -> str:
    """A C++ function: of what it was made for, the functor."""
    wrapped = _WRAPPED.match(text)
    text = (wrapped["name"] if wrapped else text).partition("(")[0]
    head, opened, inside = text.partition("<")
    if not opened:
        return head.rstrip("> ")
    functor = _FUNCTOR.search(inside)
    words = (word.strip() for word in re.split(r"[<,>]", inside))
    first = functor[0] if functor else next((word for word in words if not _PLAIN.match(word)), "")
    return f"{head}<{first}...>" if first else head


def _abbreviated(text: str) -> str:
    if len(text) > _LONG_OP:
        for long, short in _ABBREVIATIONS:
            text = text.replace(long, short)
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _END - 1]}…{text[-_END:]}"
