"""A GPU's TOML file: read, each value checked, and its numbers compared with each other.

A file has a source in the comment next to each number. It may state how a peak comes about (units x FLOP per clock x
clock) and how its bandwidth does (bus width / 8 x pin rate); :func:`broken_identities` checks both, and a number that
breaks one says why in ``[identity]``. A file of a user's own needs ``schema``, ``name``, one number under
``[peak_flop_per_s.tensor]`` or ``.vector``, and ``dram_bytes_per_s`` and ``dram_bytes`` under ``[memory]``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, nearest
from memwall.core.files import read_text
from memwall.core.graph import Pipe
from memwall.core.structure import BadRecord, Check, checks_of, one_line, shown
from memwall.hardware.checks import fraction, line, not_negative, positive, whole
from memwall.hardware.gpu import (
    CACHES,
    CONSTANT_CHECKS,
    DEFAULT_DRAM_FRACTION,
    FIELDS,
    KERNELS,
    PIPE_NAMES,
    PRODUCTS,
    REQUIRED,
    Cpu,
    Gpu,
    Tpu,
    host_of,
)

SCHEMA = "memwall.gpu/1"

#: A number that breaks an identity by more than this relative difference needs an explanation.
IDENTITY_TOLERANCE = 0.015

_MAX_BYTES = 1 << 20  # a spec is about 4 kB; anything near this is another kind of file
_MAX_LINE = 10_000  # tomllib is quadratic in the length of a dotted key

_EXPLAINABLE = (*(f"peak_flop_per_s.{pipe}" for pipe in PIPE_NAMES), "memory.dram_bytes_per_s")

_CPU_NUMBERS = ("threads", "exposed_traffic")
_CPU_TABLES = {
    "cache_bytes": CACHES, "cache_bytes_per_s": CACHES, "flop_per_s": PRODUCTS, "elements_per_s": KERNELS,
}  # fmt: skip


#: Every key that a file may have: how its value is checked, and its default.
_KEYS: Mapping[str, tuple[Check, Any]] = {
    "schema": (line, REQUIRED),
    **{key: (check, default) for key, check, default in FIELDS.values()},
    **{f"compute.flop_per_clock_per_sm.{pipe}": (positive, None) for pipe in PIPE_NAMES},
    **{f"peak_flop_per_s.{pipe}": (positive, None) for pipe in PIPE_NAMES},
    "memory.bus_width_bits": (whole, None),
    "memory.pin_rate_bit_per_s": (positive, None),
    "achievable.dram": (fraction, None),
    **{f"achievable.{pipe}": (fraction, None) for pipe in PIPE_NAMES},
    "host.dispatch_s": (not_negative, None),
    **{f"identity.{key}": (line, None) for key in _EXPLAINABLE},
    **{f"cpu.{name}": (checks_of(Cpu)[name], None) for name in _CPU_NUMBERS},
    **{f"cpu.{table}.{name}": (whole if table == "cache_bytes" else positive, None)
       for table, names in _CPU_TABLES.items() for name in names},
    **{f"tpu.{name}": (check, None) for name, check in checks_of(Tpu).items()},
    **{f"utilization.{name}": (check, None) for name, check in CONSTANT_CHECKS.items()},
}  # fmt: skip


def read_spec(path: str | Path) -> Gpu:
    """The GPU that a TOML file describes.

    Raises:
        UsageError: the file cannot be read or is wrong; names the file, the line and the key.
    """
    return _gpu(_Spec.read(Path(path)))


def broken_identities(path: Path) -> list[str]:
    """Inconsistencies of a file, one line each, except what ``[identity]`` explains."""
    spec = _Spec.read(path)
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
    for pipe in PIPE_NAMES:
        stated = values.get(f"peak_flop_per_s.{pipe}")
        rate = values.get(f"compute.flop_per_clock_per_sm.{pipe}")
        clock = values.get("compute.boost_clock_hz")
        if pipe.startswith("tensor"):
            clock = values.get("compute.tensor_clock_hz") or clock
        if stated and rate and clock:
            how = f"{units} units x {rate:g} FLOP per clock x {clock / 1e6:g} MHz"
            yield f"peak_flop_per_s.{pipe}", stated, units * rate * clock, how
    width, pin = values.get("memory.bus_width_bits"), values.get("memory.pin_rate_bit_per_s")
    if width and pin:
        how = f"{width} bit / 8 x {pin / 1e9:g} Gbit/s"
        yield "memory.dram_bytes_per_s", values["memory.dram_bytes_per_s"], width / 8 * pin, how


@dataclass(frozen=True, slots=True)
class _Spec:
    """A file's checked values by dotted key, with the line of each."""

    path: Path
    values: Mapping[str, Any]
    places: Mapping[str, tuple[int, str]]  # dotted key -> line, comment at its end

    @classmethod
    def read(cls, path: Path) -> _Spec:
        document, content = _parse(path)
        raw = cls(path, dict(_flat(document)), places_of(content))
        raw._check_schema()
        checked = {key: raw._checked(key, value) for key, value in raw.values.items()}
        return cls(path, {key: checked[key] for key in _KEYS if key in checked}, raw.places)

    def table(self, name: str) -> dict[str, Any]:
        """The values under a heading, by the rest of their keys."""
        return {key.removeprefix(f"{name}."): n for key, n in self.values.items() if key.startswith(f"{name}.")}

    def at(self, key: str) -> str:
        """``file:line: key``; the line of the nearest table where the key itself is missing."""
        line, parent = self.places.get(key, (0, ""))[0], key
        while not line and "." in parent:
            parent = parent.rpartition(".")[0]
            line = self.places.get(parent, (0, ""))[0]
        return f"{one_line(self.path)}:{f'{line}:' if line else ''} {one_line(key)}"

    def get(self, key: str) -> Any:
        """The value of a key, or its default; refuses a file that lacks a key without one."""
        if key in self.values:
            return self.values[key]
        default = _KEYS[key][1]
        if default is REQUIRED:
            raise UsageError(f"{self.at(key)}: is missing")
        return default

    def _check_schema(self) -> None:
        schema = self.get("schema")
        if schema == SCHEMA:
            return
        newer = re.fullmatch(r"memwall\.gpu/([1-9][0-9]{0,6})", schema) if isinstance(schema, str) else None
        reason = "was written by a newer memwall; upgrade" if newer else "is not a memwall GPU file"
        raise UsageError(f"{self.at('schema')}: {shown(schema)} {reason} (this version reads {SCHEMA!r})")

    def _checked(self, key: str, value: Any) -> Any:
        if key not in _KEYS:
            raise UsageError(f"{self.at(key)}: {_unknown(key, value)}")
        try:
            return _KEYS[key][0](value)
        except BadRecord as error:
            raise UsageError(f"{self.at(key)}: {error}") from None


def _gpu(spec: _Spec) -> Gpu:
    values = {name: spec.get(key) for name, (key, _, _) in FIELDS.items()}
    if not (peaks := spec.table("peak_flop_per_s")):
        raise UsageError(f"{spec.at('peak_flop_per_s')}: is missing: state a peak, such as tensor.float16 = 312e12")
    constants = spec.table("utilization")
    scored = (key.rpartition(".") for key in constants)
    cpu: dict[str, Any] = {name: spec.table(f"cpu.{name}") for name in _CPU_TABLES}
    cpu |= {name: spec.values[f"cpu.{name}"] for name in _CPU_NUMBERS if f"cpu.{name}" in spec.values}
    runs_here = Cpu(**cpu) if spec.table("cpu") else None
    tpu = spec.table("tpu")
    for name in checks_of(Tpu) if tpu else ():
        if name not in tpu:
            raise UsageError(f"{spec.at(f'tpu.{name}')}: is missing")
    values |= {
        "full_name": values["full_name"] or values["name"],
        "l2_bytes_per_s": values["l2_bytes_per_s"] or values["dram_bytes_per_s"],
        "peak_flop_per_s": {Pipe.parse(pipe): rate for pipe, rate in peaks.items()},
        "achievable": {"dram": DEFAULT_DRAM_FRACTION} | spec.table("achievable"),
        "sources": {key: note for key, (_, note) in spec.places.items() if note and key in spec.values},
        "utilization": constants,
        "fitted_on": {table: values["name"] for table, _, name in scored if name == "interval_low"},
        "cpu": runs_here,
        "tpu": Tpu(**tpu) if tpu else None,
        "host": host_of(spec.get("host.dispatch_s"), runs_here),
    }
    return Gpu(**values)


def _parse(path: Path) -> tuple[dict[str, Any], str]:
    """The document and its text."""
    content, label = read_text(path, _MAX_BYTES, "GPU file"), one_line(path)
    for number, row in enumerate(content.split("\n"), 1):
        if len(row) > _MAX_LINE:
            raise UsageError(f"{label}:{number}: line is longer than {_MAX_LINE} characters: not a GPU file")
    try:
        return tomllib.loads(content), content
    except RecursionError:
        raise UsageError(f"{label}: is nested too deeply: not a GPU file") from None
    except ValueError as error:  # TOMLDecodeError, and an integer of thousands of digits
        message, _, place = str(error).partition(" (at line ")
        line = f"{place.partition(',')[0]}: " if place else " "
        raise UsageError(f"{label}:{line.rstrip()} not TOML: {one_line(message)}") from None


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


def places_of(content: str) -> dict[str, tuple[int, str]]:
    """Dotted key -> its line and the comment at the line's end. For messages; tomllib reads the values."""
    places: dict[str, tuple[int, str]] = {}
    table = ""
    for number, row in enumerate(content.split("\n"), 1):
        start, assigned, _ = row.strip().partition("=")
        if start.startswith("["):
            table = _bare(start.strip("[").partition("]")[0])
            places.setdefault(table, (number, ""))
        elif assigned and _BARE_KEY.fullmatch(start):
            key = f"{table}.{_bare(start)}" if table else _bare(start)
            places.setdefault(key, (number, _comment(row)))
    return places


def _comment(row: str) -> str:
    """What stands behind the first ``#`` that is not in quotes."""
    before, _, comment = row.partition("#")
    if '"' in before or "'" in before:
        found = _COMMENT.match(row)
        comment = found[1] if found else ""
    return one_line(comment.strip())


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _unknown(key: str, value: Any) -> str:
    """What is wrong with a key that no file may have."""
    if any(known.startswith(f"{key}.") for known in _KEYS):
        return f"must be a table, not {shown(value)}"
    near = nearest(key[:100], _KEYS)
    # of the same last word in another table: the usual slip is a number under the wrong heading
    near = near or [known for known in _KEYS if known.rpartition(".")[2] == key.rpartition(".")[2]]
    return f"unknown key{f'; did you mean {near[0]}?' if near else ''}"
