"""Numbers as text. Inside memwall everything is base SI; this is the only place that scales or rounds."""

from __future__ import annotations

from collections.abc import Iterable

#: decimal prefixes, the largest first
PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def si(value: float, unit: str, digits: int = 2) -> str:
    """Decimal SI text: ``si(402653184, "B")`` is ``'402.65 MB'``. TB is 10^12 bytes."""
    for scale, prefix in PREFIXES:
        if abs(value) >= (1 - 0.5 * 10 ** -(digits + 3)) * scale:  # what would round to 1000 of the unit below
            return f"{value / scale:.{digits}f} {prefix}{unit}"
    return f"{value:.{digits}f} {unit}" if value % 1 else f"{value:.0f} {unit}"


def flops(count: float) -> str:
    """A count of floating-point operations."""
    return si(count, "FLOP")


def flop_rate(per_s: float, pipe: object = "") -> str:
    """A rate in FLOP/s; in OP/s of a pipe or dtype of integers (``tensor.int8``), as datasheets write it."""
    return si(per_s, rate_unit(pipe))


def rate_unit(pipe: object) -> str:
    """``FLOP/s`` of a pipe or dtype, or ``OP/s`` of one of integers."""
    dtype = str(pipe).rpartition(".")[2]
    return "OP/s" if dtype.removeprefix("u").startswith("int") else "FLOP/s"


def size(count_bytes: float) -> str:
    """A number of bytes, decimal."""
    return si(count_bytes, "B")


def bandwidth(bytes_per_s: float) -> str:
    """A rate in B/s, decimal."""
    return si(bytes_per_s, "B/s")


def duration(seconds: float) -> str:
    """A time: s, ms, us or ns with three significant digits or so."""
    for scale, unit, rounded in ((1.0, "s", 0.999995), (1e-3, "ms", 0.999995), (1e-6, "us", 0.99995)):
        if abs(seconds) >= rounded * scale:  # what would round to 1000 of the unit below
            return f"{seconds / scale:.2f} {unit}"
    if 0 < seconds < 0.05e-9:
        return "<0.1 ns"
    return f"{seconds / 1e-9:.1f} ns" if seconds else "0 s"


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as percent; ``<0.1 %`` for what would round to zero. A share is printed alike wherever it stands: each
    is rounded by itself, to one digit, and shares of one whole may sum to 99.9 or 100.1."""
    if 0 < 100 * fraction < 0.5 * 10**-digits:
        return f"<{10**-digits:.{digits}f} %"
    return f"{100 * fraction:.{digits}f} %"


def counted(count: int, noun: str) -> str:
    """``1 block``, ``1,600 blocks``, ``2 launches``."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


def few(texts: Iterable[str], most: int = 3, between: str = ", ") -> str:
    """``a, b, c and 5 more``: at most so many of some texts, the rest counted."""
    listed = list(texts)
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return between.join(listed[:most]) + more


def listed(parts: Iterable[str]) -> str:
    """``a, b and c``, without empty parts."""
    given = [part for part in parts if part]
    return " and ".join(filter(None, (", ".join(given[:-1]), *given[-1:])))


def intensity(flop_per_byte: float) -> str:
    """Arithmetic intensity in FLOP per DRAM byte."""
    return f"{flop_per_byte:.1f}" if flop_per_byte < 1000 else f"{flop_per_byte:,.0f}"
