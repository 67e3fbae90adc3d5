"""GPUs and their ceilings, from ``hardware_specs``: one TOML file per board, a source beside each number.

Everything is base SI: FLOP/s (a fused multiply-add is 2), bytes/s, bytes, Hz, W, s. Peaks are dense. A file
may state how a peak comes about (units x FLOP per clock x clock) and how its bandwidth does (bus width / 8 x
pin rate); :func:`identity_violations` checks both, and a number that breaks one says why in ``[identity]``.

A file of a user's own needs ``schema``, ``name``, one number under ``[peak_flop_per_s.tensor]`` or
``.vector``, and ``dram_bytes_per_s`` and ``dram_bytes`` under ``[memory]``. ``_KEYS`` lists every other key
with its default. Standard library only: this module must import fast.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from memwall.errors import MissingError, UsageError
from memwall.graph import Pipe

SCHEMA = "memwall.gpu/1"
ENGINES = ("tensor", "vector")
DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "fp8", "int8")

#: A number that breaks an identity by more than this relative difference needs an explanation.
IDENTITY_TOLERANCE = 0.015
#: Where a file states no achievable fraction: 85 % of the bandwidth, 75 % of a peak.
DEFAULT_DRAM_FRACTION, DEFAULT_PEAK_FRACTION = 0.85, 0.75

_MAX_BYTES = 1 << 20  # a spec is about 4 kB; anything near this is another kind of file
_MAX_LINE = 10_000  # tomllib is quadratic in the length of a dotted key


def _chain(text: str) -> tuple[Pipe, ...]:
    return tuple(Pipe.parse(word) for word in text.split())


#: Where a product goes on a GPU that lacks the pipe asked for: the first pipe of the list that it has.
_FALLBACK: Mapping[Pipe, tuple[Pipe, ...]] = {
    Pipe.parse(pipe): _chain(chain)
    for pipe, chain in {
        "tensor.float64": "vector.float64 vector.float32",
        "tensor.float32": "vector.float32",  # only AMD has matrix units for it
        "tensor.tf32": "tensor.float32 vector.float32",
        "tensor.float16": "vector.float16 tensor.bfloat16 vector.float32",
        "tensor.bfloat16": "vector.float32",  # no native bfloat16: libraries convert and use FP32
        "tensor.fp8": "tensor.float16 tensor.bfloat16 vector.float32",  # converted up
        "tensor.int8": "vector.int8 vector.float32",
    }.items()
}
_LAST_RESORT = _chain("vector.float32")

#: Whose achievable fraction stands in for a pipe that has none, in this order.
_NEIGHBOURS: Mapping[str, tuple[str, ...]] = {
    "tensor": ("float16", "bfloat16", "tf32", "float32", "fp8", "int8", "float64"),
    "vector": ("float32", "float64", "float16", "bfloat16", "int8"),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One board as a process sees it (one die of an MI250X). Rates are dense datasheet peaks in base SI."""

    # Canonical short name, the file's stem: "h100-sxm".
    name: str
    full_name: str
    vendor: str
    # pascal, volta, turing, ampere, ada, hopper, blackwell, cdna, cdna2, cdna3, tpu, wafer, cpu.
    architecture: str
    # "9.0" for NVIDIA, "gfx942" for AMD, None elsewhere.
    compute_capability: str | None
    # Year and month of the announcement: "2022-09".
    release: str
    # Other names, the strings that drivers report among them.
    aliases: tuple[str, ...]
    # Units that run blocks: SMs, CUs, TensorCores. 1 (the default): nothing is lost to partial waves.
    sm_count: int
    boost_clock_hz: float
    # Dense peak of each pipe that the board has, FLOP/s.
    peak_flop_per_s: Mapping[Pipe, float] = field(hash=False)
    dram_bytes_per_s: float
    # Capacity as marketed, decimal.
    dram_bytes: int
    # Last cache before DRAM; 0 means none.
    l2_bytes: int
    # The fast side of what is known, so that a bound is not beaten.
    l2_bytes_per_s: float
    # Both directions together, as vendors state it; 0 means no link.
    link_bytes_per_s: float
    # 0 means unknown.
    tdp_w: float
    # Device floor of one kernel, launched back to back, seconds.
    launch_overhead_s: float
    # CPU time that eager PyTorch needs to issue one op, seconds: a property of the host.
    dispatch_s: float
    # Fraction of a datasheet number that can be reached: "dram" (always there), "tensor.float16", ...
    achievable: Mapping[str, float] = field(hash=False)
    # Dotted key of the file -> the comment beside the number.
    sources: Mapping[str, str] = field(hash=False)
    # How the fractions are known: bandwidth and a GEMM "measured" on this board, some or all inherited from
    # its "architecture", or none known and defaults taken ("datasheet").
    calibration: str

    def ceiling_pipe(self, pipe: Pipe) -> Pipe:
        """The pipe that work for ``pipe`` runs on here: itself, or where a library falls back to."""
        for candidate in (pipe, *_FALLBACK.get(pipe, ()), *_LAST_RESORT):
            if candidate in self.peak_flop_per_s:
                return candidate
        return min(self.peak_flop_per_s, key=lambda known: (self.peak_flop_per_s[known], known))

    def peak(self, pipe: Pipe) -> float:
        """Datasheet FLOP/s of the pipe that ``pipe`` falls back to here; never zero."""
        return self.peak_flop_per_s[self.ceiling_pipe(pipe)]

    def achievable_fraction(self, pipe: Pipe) -> float:
        """Fraction of :meth:`peak` that large GEMMs reach: the pipe's own, else a neighbour's, else 0.75."""
        end = self.ceiling_pipe(pipe)
        for dtype in (end.dtype, *_NEIGHBOURS[end.engine]):
            if (known := self.achievable.get(f"{end.engine}.{dtype}")) is not None:
                return known
        return DEFAULT_PEAK_FRACTION

    def ridge_point(self, pipe: Pipe) -> float:
        """FLOP per DRAM byte above which work for ``pipe`` is limited by compute."""
        return self.peak(pipe) / self.dram_bytes_per_s

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types in a fixed order; :meth:`from_dict` reads it back."""
        record: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        record["aliases"] = list(self.aliases)
        record["peak_flop_per_s"] = {str(pipe): rate for pipe, rate in self.peak_flop_per_s.items()}
        record["achievable"] = dict(self.achievable)
        record["sources"] = dict(self.sources)
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Gpu:
        """The GPU of a saved record; keys that this version does not know are ignored.

        Raises:
            UsageError: a key is missing or its value is of the wrong kind.
        """
        if not isinstance(record, Mapping):
            raise UsageError(f"saved GPU: must be a table, not {_shown(record)}")
        values = {name: _saved(name, record.get(name), key) for name, key in _FIELDS.items()}
        peaks = _saved_table(record, "peak_flop_per_s", _positive)
        if not peaks or any(key not in _PIPE_NAMES for key in peaks):
            raise UsageError("saved GPU: peak_flop_per_s: must name pipes, such as tensor.float16")
        values["peak_flop_per_s"] = {Pipe.parse(key): rate for key, rate in peaks.items()}
        values["achievable"] = {"dram": DEFAULT_DRAM_FRACTION} | _saved_table(record, "achievable", _fraction)
        values["sources"] = _saved_table(record, "sources", _text)
        return cls(**values)


# ---- finding one


def load_gpu(name_or_path: str | Path | Gpu) -> Gpu:
    """The GPU of that name, or of that TOML file.

    Names are forgiving: case and punctuation do not matter, and any words that fit one board only will do.

    Raises:
        UsageError: no board or several boards have that name, or the file is wrong; says which are near.
    """
    if isinstance(name_or_path, Gpu):
        return name_or_path
    if isinstance(name_or_path, Path) or name_or_path.lower().endswith(".toml"):
        return read_spec(name_or_path)
    if name_or_path in _files():
        return _packaged(name_or_path)
    found = match_device(name_or_path)
    if found is not None:
        return found
    if "/" in name_or_path or "\\" in name_or_path:
        return read_spec(name_or_path)
    return _packaged(_only(name_or_path, _fitting(name_or_path)))


def load_gpus(names: Iterable[str | Path | Gpu]) -> list[Gpu]:
    """Several of them, each once.

    Raises:
        UsageError: as :func:`load_gpu`, or two different boards go by one name.
    """
    found: dict[str, Gpu] = {}
    for gpu in map(load_gpu, names):
        if found.setdefault(gpu.name, gpu) != gpu:
            raise UsageError(f"two different GPUs are named {gpu.name!r}: change the name in your TOML file")
    return list(found.values())


def match_device(name: str) -> Gpu | None:
    """The board that a driver reports under this name, or None: a MIG slice is not its board."""
    found = _exact().get(_squeezed(name))
    return _packaged(found) if found else None


def gpu_names() -> tuple[str, ...]:
    """Canonical names of all boards, by vendor, then release."""
    return tuple(gpu.name for gpu in all_gpus())


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """All boards, by vendor, then release."""
    return tuple(sorted(map(_packaged, _files()), key=lambda gpu: (gpu.vendor, gpu.release, gpu.name)))


def spec_path(name: str) -> Path:
    """The file of a board, by canonical name."""
    return _files()[name]


@cache
def _files() -> Mapping[str, Path]:
    """Canonical name -> file. In a wheel the folder lies inside the package, in a checkout beside it."""
    here = Path(__file__).resolve().parent
    for folder in (here / "hardware_specs", here.parent / "hardware_specs"):
        files = {path.stem: path for path in sorted(folder.glob("*.toml"))}
        if files:
            return files
    raise MissingError(f"no hardware_specs beside {here}: the installation is incomplete; install it again")


@cache
def _packaged(name: str) -> Gpu:
    return read_spec(_files()[name])


#: Words that name a maker or a product line and tell no board from another.
_NOISE = frozenset(("nvidia", "amd", "google", "tesla", "geforce", "quadro", "instinct", "gpu", "r", "tm"))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in _NOISE)


def _squeezed(text: str) -> str:
    return "".join(_words(text))


def _labels(gpu: Gpu) -> tuple[str, ...]:
    return (gpu.name, gpu.full_name, *gpu.aliases)


@cache
def _exact() -> Mapping[str, str]:
    """Squeezed label -> canonical name. Two boards never share one (tested)."""
    return {_squeezed(label): gpu.name for gpu in all_gpus() for label in _labels(gpu)}


def _fitting(query: str) -> list[str]:
    """Boards among whose words are all words of the query."""
    words = set(_words(query))
    known = {gpu.name: {word for label in _labels(gpu) for word in _words(label)} for gpu in all_gpus()}
    return [name for name, vocabulary in known.items() if words and words <= vocabulary]


def _only(query: str, names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = _shown(query)
    if names:
        raise UsageError(f"GPU name {shown} fits several: {', '.join(names)}; name one (see memwall gpus)")
    near = _near(_squeezed(query), _exact())
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    raise UsageError(f"no GPU named {shown}{hint} (memwall gpus lists all, a path to a TOML file works too)")


def _near(query: str, labels: Mapping[str, str], most: int = 5) -> list[str]:
    """Names whose label starts with the query, else those whose label resembles it, the best first."""
    starts = [label for label in labels if query and label.startswith(query)]
    close = starts or difflib.get_close_matches(query, labels, n=most, cutoff=0.6)
    return list(dict.fromkeys(labels[label] for label in close))[:most]


# ---- reading a file


def read_spec(path: str | Path) -> Gpu:
    """The GPU that a TOML file describes.

    Raises:
        UsageError: the file cannot be read or is wrong; names the file, the line and the key.
    """
    return _gpu(_Spec.read(Path(path)))


def identity_violations(name_or_path: str | Path) -> list[str]:
    """What in a spec does not add up, one line each; empty when all does or is explained in ``[identity]``.

    Raises:
        UsageError: as :func:`read_spec`.
    """
    is_name = isinstance(name_or_path, str) and name_or_path in _files()
    spec = _Spec.read(_files()[str(name_or_path)] if is_name else Path(name_or_path))
    _gpu(spec)
    found = []
    for key, stated, derived, how in _identities(spec):
        off, explained = derived / stated - 1, f"identity.{key}" in spec.values
        if abs(off) > IDENTITY_TOLERANCE and not explained:
            sums = f"is {stated:.5g}, but {how} = {derived:.5g} ({off:+.1%})"
            found.append(f"{spec.at(key)}: {sums}; correct it or explain it in [identity]")
        if abs(off) <= IDENTITY_TOLERANCE and explained:
            found.append(f"{spec.at(f'identity.{key}')}: explains what is not there ({off:+.1%})")
    return found


def _identities(spec: _Spec) -> Iterator[tuple[str, float, float, str]]:
    """(key, value stated, value derived, how derived) of each number that the file says enough about."""
    values, units = spec.values, spec.values.get("compute.sm_count", 1)
    for pipe in _PIPE_NAMES:
        stated = values.get(f"peak_flop_per_s.{pipe}")
        rate = values.get(f"compute.flop_per_clock_per_sm.{pipe}")
        clock = values.get("compute.boost_clock_hz")
        if pipe.startswith("tensor"):
            clock = values.get("compute.tensor_clock_hz", clock)
        if stated and rate and clock:
            how = f"{units} units x {rate:g} FLOP per clock x {clock / 1e6:g} MHz"
            yield f"peak_flop_per_s.{pipe}", stated, units * rate * clock, how
    width, pin = values.get("memory.bus_width_bits"), values.get("memory.pin_rate_bit_per_s")
    if width and pin:
        how = f"{width} bit / 8 x {pin / 1e9:g} Gbit/s"
        yield "memory.dram_bytes_per_s", values["memory.dram_bytes_per_s"], width / 8 * pin, how


@dataclass(frozen=True, slots=True)
class _Spec:
    """A file's checked values by dotted key, and where each stands."""

    path: Path
    values: Mapping[str, Any]
    places: Mapping[str, tuple[int, str]]  # dotted key -> line, comment at its end

    @classmethod
    def read(cls, path: Path) -> _Spec:
        text = _read_text(path)
        document = _parse(path, text)
        places = _places(text)
        raw = cls(path, dict(_flat(document)), places)
        raw._check_schema()
        return cls(path, {key: raw._checked(key, value) for key, value in raw.values.items()}, places)

    def at(self, key: str) -> str:
        """``file:line: key``; the line of the nearest table where the key itself is missing."""
        line, parent = self.places.get(key, (0, ""))[0], key
        while not line and "." in parent:
            parent = parent.rpartition(".")[0]
            line = self.places.get(parent, (0, ""))[0]
        return f"{_one_line(self.path)}:{f'{line}:' if line else ''} {_one_line(key)}"

    def get(self, key: str) -> Any:
        """The value of a key, or its default.

        Raises:
            UsageError: the key is missing and has no default.
        """
        if key in self.values:
            return self.values[key]
        default = _KEYS[key][1]
        if default is _REQUIRED:
            raise UsageError(f"{self.at(key)}: is missing")
        return default

    def _check_schema(self) -> None:
        schema = self.get("schema")
        if schema == SCHEMA:
            return
        newer = re.fullmatch(r"memwall\.gpu/([1-9][0-9]{0,6})", schema) if isinstance(schema, str) else None
        reason = "was written by a newer memwall; upgrade" if newer else "is not a memwall GPU file"
        raise UsageError(f"{self.at('schema')}: {_shown(schema)} {reason} (this version reads {SCHEMA!r})")

    def _checked(self, key: str, value: Any) -> Any:
        if key not in _KEYS:
            raise UsageError(f"{self.at(key)}: {_unknown(key, value)}")
        try:
            return _KEYS[key][0](value)
        except _WrongValue as error:
            raise UsageError(f"{self.at(key)}: {error}") from None


def _gpu(spec: _Spec) -> Gpu:
    values = {name: spec.get(key) for name, key in _FIELDS.items()}
    peaks = {pipe: spec.values.get(f"peak_flop_per_s.{pipe}") for pipe in _PIPE_NAMES}
    values["peak_flop_per_s"] = {Pipe.parse(pipe): rate for pipe, rate in peaks.items() if rate is not None}
    if not values["peak_flop_per_s"]:
        raise UsageError(
            f"{spec.at('peak_flop_per_s')}: is missing: state a peak, such as tensor.float16 = 312e12"
        )
    values["full_name"] = values["full_name"] or values["name"]
    values["l2_bytes_per_s"] = values["l2_bytes_per_s"] or values["dram_bytes_per_s"]
    fractions = {pipe: spec.values.get(f"achievable.{pipe}") for pipe in ("dram", *_PIPE_NAMES)}
    known = {pipe: fraction for pipe, fraction in fractions.items() if fraction is not None}
    values["achievable"] = {"dram": DEFAULT_DRAM_FRACTION} | known
    values["sources"] = {key: text for key, (_, text) in spec.places.items() if text and key in spec.values}
    return Gpu(**values)


def _read_text(path: Path) -> str:
    shown = _one_line(path)
    try:
        if path.is_dir():
            raise UsageError(f"{shown}: is a folder, not a TOML file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(f"{shown}: no such file") from None
    except OSError as error:
        raise UsageError(f"{shown}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise UsageError(f"{shown}: is not a file name") from None
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{shown}: is larger than 1 MiB: not a GPU file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{shown}:{line}: is not UTF-8 text") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    shown = _one_line(path)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _MAX_LINE:
            raise UsageError(f"{shown}:{number}: line is longer than {_MAX_LINE} characters: not a GPU file")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{shown}: is nested too deeply: not a GPU file") from None
    except ValueError as error:  # TOMLDecodeError, and an integer of thousands of digits
        message, _, place = str(error).partition(" (at line ")
        line = f"{place.partition(',')[0]}: " if place else " "
        raise UsageError(f"{shown}:{line.rstrip()} not TOML: {_one_line(message)}") from None


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested tables by dotted key; an empty table is a leaf. No recursion: depth is the user's."""
    stack: list[tuple[str, Any]] = [("", document)]
    while stack:
        prefix, value = stack.pop()
        if isinstance(value, dict) and (value or not prefix):
            start = f"{prefix}." if prefix else ""
            stack.extend((start + key, child) for key, child in reversed(value.items()))
        elif value != {} or not any(key.startswith(f"{prefix}.") for key in _KEYS):
            yield prefix, value


_BARE_KEY = re.compile(r"[\w.\"'\- ]+")
_COMMENT = re.compile(r"""(?:[^"'#]|"(?:[^"\\]|\\.)*"|'[^']*')*#\s*(.*)""")


def _places(text: str) -> dict[str, tuple[int, str]]:
    """Dotted key -> its line and the comment at the line's end. For messages; tomllib does the reading."""
    places: dict[str, tuple[int, str]] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        start, assigned, _ = line.strip().partition("=")
        if start.startswith("["):
            table = _bare(start.strip("[").partition("]")[0])
            places.setdefault(table, (number, ""))
        elif assigned and _BARE_KEY.fullmatch(start):
            key = f"{table}.{_bare(start)}" if table else _bare(start)
            comment = _COMMENT.match(line) if "#" in line else None
            places.setdefault(key, (number, _one_line(comment[1].strip()) if comment else ""))
    return places


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


# ---- what a key's value may be


class _WrongValue(Exception):
    """A value that a key may not have; the message ends a line that names the key."""


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a huge integer"
    return _one_line(text if len(text) <= 60 else f"{text[:57]}...")


def _one_line(value: object, longest: int = 300) -> str:
    text = "".join(char if char.isprintable() else "?" for char in str(value))
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise _WrongValue(f"must be a line of text, not {_shown(value)}")
    return value


def _capability(value: Any) -> str:
    """NVIDIA's two numbers (9.0), or another vendor's name (gfx942), which begins with a letter."""
    text = _text(value)
    if not text[0].isalpha() and not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", text):
        raise _WrongValue(f"must be as in '9.0', not {_shown(value)}")
    return text


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _WrongValue(f"must be a list of texts, not {_shown(value)}")
    return tuple(map(_text, value))


def _one_of(*choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if value not in choices:
            raise _WrongValue(f"must be one of {', '.join(choices)}, not {_shown(value)}")
        return str(value)

    return check


def _number(value: Any, wanted: str, fits: Callable[[float], bool]) -> float:
    """The value as a float: finite, and neither absurdly large nor small, so that no rate overflows."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _WrongValue(f"must be {wanted}, not {_shown(value)}")
    in_range = abs(value) <= 1e25 and (value == 0 or abs(value) >= 1e-15)  # False for NaN
    if not in_range or not fits(value):
        raise _WrongValue(f"must be {wanted} in base SI units, not {_shown(value)}")
    return float(value)


def _positive(value: Any) -> float:
    return _number(value, "a positive number", lambda number: number > 0)


def _not_negative(value: Any) -> float:
    return _number(value, "a number, 0 or more,", lambda number: number >= 0)


def _fraction(value: Any) -> float:
    return _number(value, "a fraction above 0, at most 1,", lambda number: 0 < number <= 1)


def _count(value: Any) -> int:
    return int(_number(value, "a positive whole number", lambda number: number > 0 and number % 1 == 0))


def _size(value: Any) -> int:
    return int(_number(value, "a whole number, 0 or more,", lambda number: number >= 0 and number % 1 == 0))


_PIPE_NAMES = tuple(f"{engine}.{dtype}" for engine in ENGINES for dtype in DTYPES)
_EXPLAINABLE = (*(f"peak_flop_per_s.{pipe}" for pipe in _PIPE_NAMES), "memory.dram_bytes_per_s")
_REQUIRED: Any = object()

#: Every key that a file may have: how its value is checked, and what stands in where it is missing.
_KEYS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "schema": (_text, _REQUIRED),
    "name": (_text, _REQUIRED),
    "full_name": (_text, ""),  # the name
    "vendor": (_text, "unknown"),
    "architecture": (_text, "unknown"),
    "compute_capability": (_capability, None),
    "release": (_text, ""),
    "aliases": (_texts, ()),
    "calibration": (_one_of("measured", "architecture", "datasheet"), "datasheet"),
    "compute.sm_count": (_count, 1),
    "compute.boost_clock_hz": (_positive, 1e9),
    "compute.tensor_clock_hz": (_positive, None),
    **{f"compute.flop_per_clock_per_sm.{pipe}": (_positive, None) for pipe in _PIPE_NAMES},
    **{f"peak_flop_per_s.{pipe}": (_positive, None) for pipe in _PIPE_NAMES},
    "memory.bus_width_bits": (_count, None),
    "memory.pin_rate_bit_per_s": (_positive, None),
    "memory.dram_bytes_per_s": (_positive, _REQUIRED),
    "memory.dram_bytes": (_count, _REQUIRED),
    "memory.l2_bytes": (_size, 0),
    "memory.l2_bytes_per_s": (_positive, 0.0),  # the DRAM bandwidth
    "link.link_bytes_per_s": (_not_negative, 0.0),
    "power.tdp_w": (_not_negative, 0.0),
    "host.launch_overhead_s": (_not_negative, 2.5e-6),
    "host.dispatch_s": (_not_negative, 5e-6),
    "achievable.dram": (_fraction, None),
    **{f"achievable.{pipe}": (_fraction, None) for pipe in _PIPE_NAMES},
    **{f"identity.{key}": (_text, None) for key in _EXPLAINABLE},
}

#: Field of Gpu -> key of a file. The three tables (peaks, fractions, sources) are put together apart.
_FIELDS: Mapping[str, str] = {
    "name": "name",
    "full_name": "full_name",
    "vendor": "vendor",
    "architecture": "architecture",
    "compute_capability": "compute_capability",
    "release": "release",
    "aliases": "aliases",
    "sm_count": "compute.sm_count",
    "boost_clock_hz": "compute.boost_clock_hz",
    "dram_bytes_per_s": "memory.dram_bytes_per_s",
    "dram_bytes": "memory.dram_bytes",
    "l2_bytes": "memory.l2_bytes",
    "l2_bytes_per_s": "memory.l2_bytes_per_s",
    "link_bytes_per_s": "link.link_bytes_per_s",
    "tdp_w": "power.tdp_w",
    "launch_overhead_s": "host.launch_overhead_s",
    "dispatch_s": "host.dispatch_s",
    "calibration": "calibration",
}


def _unknown(key: str, value: Any) -> str:
    """What is wrong with a key that no file may have."""
    if any(known.startswith(f"{key}.") for known in _KEYS):
        return f"must be a table, not {_shown(value)}"
    near = difflib.get_close_matches(key[:100], _KEYS, n=1, cutoff=0.6) or _same_ending(key)
    return f"unknown key{f'; did you mean {near[0]}?' if near else ''}"


def _same_ending(key: str) -> list[str]:
    """A key of the same last word in another table: the usual slip is a number under the wrong heading."""
    return [known for known in _KEYS if known.rpartition(".")[2] == key.rpartition(".")[2]]


def _saved(name: str, value: Any, key: str) -> Any:
    check, default = _KEYS[key]
    if default in (None, "") and value == default:
        return default
    try:
        return check(value)
    except _WrongValue as error:
        raise UsageError(f"saved GPU: {name}: {error}") from None


def _saved_table(record: Mapping[str, Any], name: str, check: Callable[[Any], Any]) -> dict[str, Any]:
    table = record.get(name, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"saved GPU: {name}: must be a table, not {_shown(table)}")
    try:
        return {str(key): check(value) for key, value in table.items()}
    except _WrongValue as error:
        raise UsageError(f"saved GPU: {name}: {error}") from None
