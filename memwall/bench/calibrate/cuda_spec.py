"""Quantities measured on a CUDA device → its spec: the datasheet's peaks, the fractions that were reached, and the
constants of the utilization models that make them predict what was measured.

Of a board that is not in the hardware table nothing but the measured rates is known: they stand as its peaks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memwall.bench.calibrate.constants import utilization_tables
from memwall.bench.calibrate.sampling import Quantity
from memwall.bench.calibrate.toml_text import Line, document, note, number, quoted
from memwall.core.graph import Pipe
from memwall.hardware.lookup import Gpu, load_gpu, match_device

#: the fastest of these stands for the bandwidth of a board without a datasheet
_STREAMS = ("dram.copy", "dram.triad", "dram.read")


def cuda_spec(answer: Mapping[str, Any], quantities: Mapping[str, Quantity], job: Mapping[str, Any]) -> str:
    """The TOML text, in schema ``memwall.gpu/1``."""
    tables = _tables(answer, quantities)
    return document({**tables, **utilization_tables(_as_read(document(tables)), quantities)})


def _as_read(text: str) -> Gpu:
    """The device of a file with this text, with what it leaves out from similar boards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cuda.toml"
        path.write_text(text, encoding="utf-8")
        return load_gpu(path)


def _tables(answer: Mapping[str, Any], quantities: Mapping[str, Quantity]) -> dict[str, Sequence[Line]]:
    """All tables but those of utilization."""
    board = match_device(answer["board"])
    host = [
        _seconds("launch_overhead_s", quantities["launch"], "graph of adds of one element"),
        _seconds("dispatch_s", quantities["dispatch"], "eager adds issued by the CPU"),
    ]
    head = _head(answer, board)
    if board is None:
        return {"": head, **_rates(answer, quantities), "host": host}
    peaks = {
        f"peak_flop_per_s.{engine}": [
            Line(pipe.dtype, number(rate), board.sources.get(f"peak_flop_per_s.{pipe}", ""))
            for pipe, rate in board.peak_flop_per_s.items()
            if pipe.engine == engine
        ]
        for engine in ("tensor", "vector")
    }
    return {
        "": head, "compute": _compute(board), **peaks, "memory": _memory(board),
        "power": [Line("tdp_w", f"{board.tdp_w:g}", "the board's")] if board.tdp_w else [],
        "host": host, "achievable": [_triad(quantities, board.dram_bytes_per_s)],
        **{f"achievable.{engine}": _fractions(board, quantities, engine) for engine in ("tensor", "vector")},
    }  # fmt: skip


def _triad(quantities: Mapping[str, Quantity], dram_bytes_per_s: float) -> Line:
    quantity = quantities["dram.triad"]
    return Line("dram", _fraction(quantity.rate / dram_bytes_per_s), note(quantity, "triad"))


def _seconds(key: str, quantity: Quantity, what: str) -> Line:
    return Line(key, number(quantity.seconds), note(quantity, what))


def _head(answer: Mapping[str, Any], board: Gpu | None) -> list[Line]:
    base = board.name if board else "cuda"
    return [
        Line("schema", '"memwall.gpu/1"'), Line("name", quoted(f"{base}-measured")),
        Line("full_name", quoted(f"{answer['board']}, as measured"), f"memwall calibrate, torch {answer['torch']}"),
        Line("vendor", quoted(board.vendor if board else "NVIDIA")),
        Line("architecture", quoted(board.architecture if board else "unknown")),
        Line("compute_capability", quoted(answer["compute_capability"])), Line("calibration", '"measured"'),
    ]  # fmt: skip


def _compute(board: Gpu) -> list[Line]:
    return [
        Line("sm_count", str(board.sm_count), board.sources.get("compute.sm_count", "")),
        Line("boost_clock_hz", number(board.boost_clock_hz), board.sources.get("compute.boost_clock_hz", "")),
    ]


def _memory(board: Gpu) -> list[Line]:
    names = ("dram_bytes_per_s", "dram_bytes", "l2_bytes", "l2_bytes_per_s")
    values = {name: getattr(board, name) for name in names}
    return [
        Line(name, str(value) if isinstance(value, int) else number(value), board.sources.get(f"memory.{name}", ""))
        for name, value in values.items()
    ]  # fmt: skip


def _fractions(board: Gpu, quantities: Mapping[str, Quantity], engine: str) -> list[Line]:
    """A product's rate over the datasheet's peak of the pipe that it runs on."""
    lines = {}
    for name, quantity in quantities.items():
        kind, _, dtype = name.partition(".")
        pipe = board.ceiling_pipe(Pipe("tensor", dtype)) if kind == "product" else None
        if pipe is not None and pipe.engine == engine and pipe.dtype == dtype:
            reached = quantity.rate / board.peak_flop_per_s[pipe]
            lines[dtype] = Line(dtype, _fraction(reached), note(quantity, "square product"))
    return list(lines.values())


def _fraction(reached: float) -> str:
    """A fraction of a datasheet's number: more than all of it means that the datasheet is another board's."""
    return f"{min(reached, 1.0):.4f}"


def _rates(answer: Mapping[str, Any], quantities: Mapping[str, Quantity]) -> dict[str, list[Line]]:
    best = max((name for name in _STREAMS if name in quantities), key=lambda name: quantities[name].rate)
    lines: dict[str, list[Line]] = {"tensor": [], "vector": []}
    for name, quantity in quantities.items():
        kind, _, dtype = name.partition(".")
        if kind == "product":
            engine = "vector" if dtype in ("float32", "float64") else "tensor"
            lines[engine].append(Line(dtype, number(quantity.rate), note(quantity, "square product")))
    every = {
        engine: [Line(line.key, "1.0", "the peak is the rate that was measured") for line in found]
        for engine, found in lines.items()
    }
    return {
        "compute": [Line("sm_count", str(answer["sm_count"]))],
        **{f"peak_flop_per_s.{engine}": found for engine, found in lines.items()},
        "memory": [
            Line("dram_bytes_per_s", number(quantities[best].rate), note(quantities[best], best)),
            Line("dram_bytes", str(answer["dram_bytes"])),
        ],
        "achievable": [_triad(quantities, quantities[best].rate)],
        **{f"achievable.{engine}": found for engine, found in every.items()},
    }
