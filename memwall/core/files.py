"""Reading and writing files so that bad input gets one line and output is whole or absent."""

from __future__ import annotations

import contextlib
import csv
import gc
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError

#: A saved record of a 126-layer training step on ten GPUs is about 60 MB; a file beyond this is not memwall's.
MAX_JSON_BYTES = 1 << 30


def json_pieces(record: Mapping[str, Any]) -> Iterator[str]:
    """An object as ``json.dumps(..., indent=1)`` writes it, and a newline, piece by piece: a value that is an iterator
    becomes a list whose items need not be in memory together."""
    begin = "{"
    for key, value in record.items():
        yield f"{begin}\n {json.dumps(key)}: "
        if isinstance(value, Iterator):
            yield from _list_pieces(value)
        else:
            yield _dumped(value, 1)
        begin = ","
    yield "\n}\n"


def _list_pieces(items: Iterator[Any]) -> Iterator[str]:
    begin = "["
    for item in items:
        yield f"{begin}\n  {_dumped(item, 2)}"
        begin = ","
    yield "[]" if begin == "[" else "\n ]"


def _dumped(value: Any, depth: int) -> str:
    return json.dumps(value, indent=1, allow_nan=False).replace("\n", "\n" + " " * depth)


def write_whole(path: str | os.PathLike[str], data: str | bytes | Iterable[str], *, private: bool = False) -> None:
    """Write a file atomically: to a temporary file next to it, then renamed over it. A link stays: what it leads to is
    written. Text may come in pieces. ``private``: nobody else may read it, whatever the umask.

    Raises:
        UsageError: the folder is missing or not writable, or the disk is full.
    """
    target = Path(path)
    pieces = (data,) if isinstance(data, (str, bytes)) else data
    payload = (piece.encode("utf-8") if isinstance(piece, str) else piece for piece in pieces)
    temporary = None
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as device:  # or a link to one, such as /dev/stdout
                device.writelines(payload)
            return
        if target.is_symlink():
            target = Path(os.path.realpath(target))
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as handle:
            temporary = Path(handle.name)
            handle.writelines(payload)
        if not private:
            temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; nothing was written") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector, which would search millions of new objects again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_text(
    path: str | os.PathLike[str], most_bytes: int = MAX_JSON_BYTES, kind: str = "memwall record", errors: str = "strict"
) -> str:
    """The text of a file, or of one packed by gzip (``.gz``).

    Raises:
        UsageError: missing, unreadable, larger than any file of its ``kind``, not UTF-8.
    """
    source = Path(path)
    packed = source.name.endswith(".gz")
    try:
        large = source.stat().st_size > most_bytes
        with gzip.open(source) if packed else source.open("rb") as handle:
            data = b"" if large else handle.read(most_bytes + 1 if packed else -1)
        if large or len(data) > most_bytes:
            raise UsageError(f"{source} is larger than {most_bytes >> 20} MiB: not a {kind}")
        return data.decode("utf-8-sig", errors)
    except FileNotFoundError:
        raise UsageError(f"no such file: {source}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{source} is not a gzip file, or is cut off: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text (byte {error.start})") from None
    except MemoryError:
        raise UsageError(f"{source} does not fit in memory") from None
    except ValueError:
        raise UsageError(f"{str(source)!r} is not a file name") from None


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        UsageError: as :func:`read_text`, or not TOML.
    """
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # no TOML, or a number of thousands of digits
        raise UsageError(f"{path} is not TOML: {error}") from None


def read_csv(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with the number of their line; lines that begin with ``#`` before the header are comments.

    Raises:
        UsageError: as :func:`read_text`, or a row has more or fewer cells than the header.
    """
    lines = io.StringIO(read_text(path, kind="table")).readlines()
    comments = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    reader = csv.reader(lines[comments:], strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise UsageError(f"{path} is empty")
        for cells in reader:
            if cells and len(cells) != len(header):
                raise UsageError(
                    f"{path}:{comments + reader.line_num}: {len(cells)} cells where the header has {len(header)}"
                )
            if cells:
                yield comments + reader.line_num, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UsageError(f"{path} is not CSV: {error}") from None


def whole(text: str) -> int | None:
    """A cell or a word as a whole number from 0, of up to 18 digits; None for any other text."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 19 else None


@uncollected()
def read_json(path: str | os.PathLike[str], *, infinite: bool = False) -> Any:
    """Parse a JSON file; NaN and Infinity are refused unless ``infinite``.

    Raises:
        UsageError: as :func:`read_text`, or not JSON, or nested too deep.
    """
    text = read_text(path)
    try:
        return json.loads(text, parse_constant=None if infinite else _refuse_constant)
    except json.JSONDecodeError as error:
        cut = " (truncated?)" if error.pos >= len(text.rstrip()) else ""
        where = f"at line {error.lineno}, column {error.colno}{cut}"
        raise UsageError(f"{path} is not JSON: {error.msg.removesuffix(' at')} {where}") from None
    except RecursionError:
        raise UsageError(f"{path} is nested too deep to be a memwall record") from None
    except ValueError as error:
        raise UsageError(f"{path} is not a memwall record: {error}") from None


def read_json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file that has one on each line, with the number of the line; empty lines are left out.

    Raises:
        UsageError: as :func:`read_text`, or a line is not JSON, or no object.
    """
    for number, line in enumerate(io.StringIO(read_text(path, kind="table")), start=1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number} is not JSON: {getattr(error, 'msg', error)}") from None
        if not isinstance(found, dict):
            raise UsageError(f"{path}:{number} is no JSON object")
        yield number, found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON allows")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
