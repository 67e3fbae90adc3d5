"""Files of recorded requests → requests: memwall's own CSV, BurstGPT's and Azure's, and Mooncake's JSON lines."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memwall.core.errors import UsageError, suggest
from memwall.core.files import read_csv, read_json_lines, whole
from memwall.core.structure import shown
from memwall.core.units import counted
from memwall.serving.simulation.workload import LONGEST_S, AskedRequest, Content


class TraceFormat(NamedTuple):
    """What a row says where: columns of the time of arrival (read as seconds by ``seconds``), of the prompt's and of
    the answer's tokens; ``blocks`` has names of ``block_tokens`` tokens each, from the prompt's begin on, which equal
    prefixes share. Rows of no answer ``fails`` were refused by the server."""

    name: str
    columns: tuple[str, str, str]
    seconds: Callable[[Any], float] = float
    blocks: str = ""
    block_tokens: int = 0
    fails: bool = False


def _of_date(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


#: formats of traces. BurstGPT: github.com/HPMLL/BurstGPT, where failed requests have an answer of 0 tokens; Azure:
#: AzurePublicDataset, LLM inference traces; Mooncake: FAST'25, times in ms, a hash for each 512 tokens of a prompt.
FORMATS = (
    TraceFormat("memwall", ("arrival_s", "prompt_tokens", "generated_tokens")),
    TraceFormat("BurstGPT", ("Timestamp", "Request tokens", "Response tokens"), fails=True),
    TraceFormat("Azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), seconds=_of_date),
    TraceFormat("Mooncake", ("timestamp", "input_length", "output_length"), seconds=lambda ms: float(ms) / 1e3,
                blocks="hash_ids", block_tokens=512),
)  # fmt: skip


class RequestTrace(NamedTuple):
    """The requests of a file, and what to know of it in a line, if anything."""

    requests: tuple[AskedRequest, ...]
    note: str = ""


def read_trace(path: str | os.PathLike[str], times_as_fast: float = 1.0) -> RequestTrace:
    """The requests of a CSV file, or of a file of JSON lines, in one of :data:`FORMATS`, ordered by arrival, the first
    at 0 s; the seconds between them are divided by ``times_as_fast``.

    Raises:
        UsageError: no such file, no format has its columns (names the nearest), a cell is missing or wrong, or there
            is no row.
    """
    if not 0 < times_as_fast < math.inf:
        raise UsageError(f"a trace {times_as_fast:g} times as fast; want a number above 0, such as 2")
    is_json = os.fspath(path).lower().removesuffix(".gz").endswith((".jsonl", ".json"))
    rows: Iterator[tuple[int, Mapping[str, Any]]] = read_json_lines(path) if is_json else read_csv(path)
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path} has no request; want rows of {', '.join(FORMATS[0].columns)}")
    known = _format_of(first[1], str(path))
    found, failed = [], 0
    for line, record in itertools.chain([first], rows):
        made = _asked(record, known, f"{path}:{line}")
        failed += made is None
        if made is not None:
            found.append(made)
    if not found:
        raise UsageError(f"{path} has no request that was answered")
    found.sort(key=lambda asked: asked.arrival_s or 0.0)
    begin_s = found[0].arrival_s or 0.0
    if (span_s := ((found[-1].arrival_s or 0.0) - begin_s) / times_as_fast) > LONGEST_S:
        raise UsageError(f"{path} takes {span_s:g} s; {LONGEST_S:g} s is the most that is simulated")
    requests = tuple(each._replace(arrival_s=((each.arrival_s or 0.0) - begin_s) / times_as_fast) for each in found)
    note = f"the load lacks {counted(failed, 'request')} of the trace that had no answer" if failed else ""
    return RequestTrace(requests, note)


def _format_of(record: Mapping[str, Any], path: str) -> TraceFormat:
    """The format whose columns a row has. Raises UsageError: none; names the nearest."""
    for known in FORMATS:
        if all(column in record for column in known.columns):
            return known
    nearest = max(FORMATS, key=lambda known: sum(column in record for column in known.columns))
    missing = next(column for column in nearest.columns if column not in record)
    if not any(column in record for known in FORMATS for column in known.columns):
        wanted = "; ".join(f"{', '.join(known.columns)} ({known.name})" for known in FORMATS)
        raise UsageError(f"{path}: no trace that is known has the columns {', '.join(record)[:80]}; known: {wanted}")
    raise UsageError(f"{path}: no column {missing}; {suggest(missing, record)}")


def _asked(record: Mapping[str, Any], known: TraceFormat, where: str) -> AskedRequest | None:
    """The request of a row; None where it failed. Raises UsageError: a cell is missing or wrong."""
    at, prompt_name, answer_name = known.columns
    for missing in (name for name in known.columns if name not in record):
        raise UsageError(f"{where}: no {missing}")
    prompt, generated = (_tokens(record[name], name, where) for name in (prompt_name, answer_name))
    try:
        arrival_s = known.seconds(record[at])
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {at} is {shown(record[at])}, not a time") from None
    if known.fails and not generated:
        return None
    if not 0 <= arrival_s < math.inf or min(prompt, generated) < 1:
        raise UsageError(f"{where}: want an arrival of 0 s or later and 1 token or more of each kind")
    content = _content(record.get(known.blocks, ()), prompt, known, where) if known.blocks else ()
    return AskedRequest(arrival_s, prompt, generated, content=content)


def _tokens(cell: Any, name: str, where: str) -> int:
    """A cell as a whole number of tokens."""
    if isinstance(cell, int) and not isinstance(cell, bool) and 0 <= cell < 10**18:
        return cell
    if isinstance(cell, str) and (found := whole(cell)) is not None:
        return found
    raise UsageError(f"{where}: {name} is {shown(cell)}, not a whole number")


def _content(hashes: Any, prompt: int, known: TraceFormat, where: str) -> Content:
    """The blocks of a prompt, the last one as full as the prompt leaves it."""
    if not isinstance(hashes, Sequence) or isinstance(hashes, str) or any(isinstance(h, (list, dict)) for h in hashes):
        raise UsageError(f"{where}: {known.blocks} is {shown(hashes)}, not a list of names of blocks")
    starts = range(0, prompt, known.block_tokens)
    return tuple((name, min(known.block_tokens, prompt - start)) for name, start in zip(hashes, starts, strict=False))
