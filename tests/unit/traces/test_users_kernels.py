"""Kernels of the user's own in a trace, which says their name and grid alone."""

from __future__ import annotations

import json

import pytest
import torch

pytest.importorskip("triton")

import memwall
from memwall.frontend.targets.launching import Launching
from memwall.traces.command import analyse_file
from tests.unit import triton_kernels as kernels

#: as Kineto writes them: a call of the driver, and the kernel that it launched
EVENTS = [
    {"ph": "X", "cat": "cuda_driver", "name": "cuLaunchKernelEx", "pid": 1, "tid": 1, "ts": 70, "dur": 5,
     "args": {"correlation": 12}},
    {"ph": "X", "cat": "kernel", "name": "vector_add", "pid": 0, "tid": 7, "ts": 200, "dur": 8,
     "args": {"correlation": 12, "device": 0, "stream": 7, "grid": [7, 1, 1], "block": [128, 1, 1]}},
]  # fmt: skip


def row_of(path):
    return analyse_file(str(path), ["h100"]).rows[0]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": EVENTS}))
    return path


def test_a_kernel_that_was_read_before_has_its_cost(trace, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))

    def launch():
        x = torch.empty(6400, device="meta")
        kernels.vector_add[(7,)](x, x + 1, torch.empty(6400, device="meta"), 6400, BLOCK=1024)

    memwall.profile(Launching(launch), ())
    row = row_of(trace)
    assert (row.flops, row.bytes) == (6_400, 3 * 25_600)


def test_one_that_was_not_read_has_none(trace, tmp_path, monkeypatch):
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))
    assert row_of(trace).flops is None
