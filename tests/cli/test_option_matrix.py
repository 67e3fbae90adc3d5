"""Which command does what with an option: it works, or one line says why it has no effect; none is ignored.

A row is a command on a target. An option of ``works`` changes what is printed; ``refused`` has those that the command
knows and cannot use here, with a part of the line that says so. Options that a command does not have at all are
refused by the parser.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from memwall.serving.model import read_model
from tests.cli.test_layouts import MODEL
from tests.unit.configs import SHORT_LLAMA, target_of
from tests.unit.recorded_fixture import record
from tests.unit.traces.test_trace_comparison import _launch, write

#: option -> how it is given
GIVEN = {
    "price": "--price h100=3", "host": "--host cloud-vm", "what-if": "--what-if dram_bytes_per_s*=2",
    "optimizer": "--optimizer sgd", "style": "--style paper", "figure": "--figure roofline", "depth": "--depth 2",
    "explain": "--explain mm", "cuda-graph": "--cuda-graph", "policy": "--policy ideal", "dtype": "--dtype bf16",
    "world": "--world 8", "rank": "--rank 1", "context": "--context 8", "image": "--image 32", "no-grad": "--no-grad",
    "state": "--state bf16", "no-overlap": "--no-overlap", "scale": "--scale 8", "ncu": "--ncu x.csv",
    "other-rank": "--other-rank x.json", "accept": "--accept 0.5", "device": "--device cpu",
    "allow-new": "--allow-new", "scheduler": "--scheduler tls://x", "slo": "--slo tpot<1s", "seq": "--seq 64",
    "global-batch": "--global-batch 4", "closed-form": "--closed-form", "limit": "--limit kernels=9",
    "host-axis": "--vary host=cloud-vm", "resume": "--resume", "quantity": "--quantity time_s",
    "lengths": "--lengths lognormal:0.5", "turns": "--turns 2", "system-prompt": "--system-prompt 32",
    "requests": "--requests 30", "client": "--client 20", "replicas": "--replicas 2", "burst": "--burst 3",
    "autoscale": "--autoscale 1:3:4", "think": "--think 1", "trace-scale": "--trace-scale 2",
    "startup": "--startup 5", "route": "--route round-robin",
    "since": "--since 2026-01-03", "least": "--least 0.5", "runs": "--runs none",
    "kwh": "--kwh 0.1", "busy": "--busy 0.5", "pue": "--pue 1.2", "spot": "--spot 0.5", "straggler": "--straggler 0.8",
    "routing": "--routing power-law:1.2", "failed": "--failed 1", "frames": "--frames 4", "audio": "--audio 4",
}  # fmt: skip
_PICTURE = {"style": "without -o FILE that ends in .png", "figure": "without -o FILE that ends in .png"}
_TRACING = "says how to trace a model"


@dataclass(frozen=True)
class Row:
    words: str
    works: str = ""
    refused: dict[str, str] = field(default_factory=dict)


#: a row for each command and kind of target
ROWS = {
    "profile, a model": Row("profile net.py --gpu h100", "host what-if cuda-graph policy dtype explain", {
        "optimizer": "in --mode inference", "depth": "goes with --by module", "rank": "--world N",
        "context": "--mode prefill", "image": "takes no 'image'", "no-grad": "goes with mode 'forward'",
        "state": "without --parallel", "no-overlap": "without --parallel", "scale": "without --parallel",
        "ncu": "no profiler's trace", "other-rank": "no profiler's trace", **_PICTURE,
    }),
    "profile, training": Row("profile net.py --gpu h100 --mode training", "optimizer host", {
        "no-grad": "goes with mode 'forward'",
    }),
    "profile, a record": Row("profile saved.json", "host what-if cuda-graph policy explain", {
        **dict.fromkeys(("optimizer", "world", "context", "dtype", "no-grad"), _TRACING),
        "state": "without --parallel", "ncu": "no profiler's trace", **_PICTURE,
    }),
    "profile, a trace": Row("profile trace.json --gpu h100", "", dict.fromkeys(
        ("host", "what-if", "optimizer", "depth", "explain", "cuda-graph", "policy", "world", "state",
         "scale", "context"), "on trace.json, a profiler's trace",
    )),
    "profile, a layout": Row("profile gpt.py --parallel dp=2,pp=2", "host what-if policy dtype state no-overlap scale",
                             dict.fromkeys(("optimizer", "depth", "explain", "cuda-graph", "context",
                                            "no-grad", "ncu"), "with --parallel")),
    "compare, a model": Row("compare net.py --gpu h100 a100", "price host cuda-graph policy dtype", {
        "optimizer": "in --mode inference", "no-grad": "goes with mode 'forward'",
        "style": _PICTURE["style"],
    }),
    "compare, records": Row("compare saved.json saved2.json", "host policy", {
        **dict.fromkeys(("optimizer", "cuda-graph", "context", "dtype"), _TRACING), "style": _PICTURE["style"],
    }),
    "compare, traces": Row("compare trace.json trace.json", "", {
        **dict.fromkeys(("host", "optimizer", "cuda-graph", "policy"), _TRACING), "price": "goes with a model",
    }),
    "compare, machines": Row("compare --machines --gpu h100", "", {
        "price": "goes with a workload", "host": "goes with a workload", "policy": "goes with a workload",
        "optimizer": _TRACING,
    }),
    "sweep, steps": Row("sweep net.py --workers 0 --vary batch=2 gpu=h100", "price host-axis", {
        "scheduler": "without --engine dask", "resume": "--keep", "style": _PICTURE["style"],
    }),
    "sweep, layouts": Row("sweep gpt.py --workers 0 --vary parallel.dp=2 gpu=h100", "price host-axis"),
    "sweep, decode steps": Row("sweep LLAMA --workers 0 --of decode --vary batch=2 context=64 gpu=h100", "price"),
    "sweep, servers": Row("sweep LLAMA --workers 0 --of serve --vary concurrency=2 prompt=64 gpu=h100", "price"),
    "search, engines": Row("search LLAMA --gpus 1 --concurrency 2 --prompt 64 --generate 16",
                          "price slo kwh busy straggler lengths turns system-prompt client", {
        "routing": "no experts", "pue": "without --kwh", "spot": "without --price", "burst": "without --rate",
        "think": "without --turns", "trace-scale": "without --trace", "route": "of one engine",
        "replicas": "is the most",
        **dict.fromkeys(("policy", "dtype", "state", "no-overlap", "seq", "global-batch", "host"), "--mode serving"),
        "style": _PICTURE["style"],
    }),
    "search, engines at a rate": Row(
        "search LLAMA --gpus 2 --rate 40 --turns 2 --system-prompt 640 --prompt 64 --generate 16",
        "burst think replicas requests",
    ),
    "search, layouts": Row(
        "search gpt.py --mode training --gpus 2 --global-batch 2 --among fsdp=none schedule=1f1b tp=1 pp=1",
        "price host policy dtype state no-overlap", {"slo": "--mode training"},
    ),
    "serve": Row("serve LLAMA --gpu h100 --concurrency 2 --prompt 64 --generate 4",
                 "price what-if slo closed-form lengths turns system-prompt requests client replicas autoscale kwh busy"
                 " straggler", {
        "accept": "without --draft", "style": _PICTURE["style"], "burst": "without --rate", "think": "without --turns",
        "trace-scale": "without --trace", "startup": "without --autoscale", "route": "of one engine",
        "pue": "without --kwh", "spot": "without --price", "routing": "no experts", "failed": "none is left",
        "image": "of which none are given", "frames": "reads no videos", "audio": "reads no sound",
    }),
    "serve, at a rate": Row("serve LLAMA --rate 40 --turns 2 --replicas 2 --prompt 64 --generate 16",
                            "burst think route failed", {"closed-form": "no closed form", "autoscale": "leave out"}),
    "gate": Row("gate net.py --limit time_s=1s", "host cuda-graph policy limit", {
        "optimizer": "in --mode inference", "device": "without --measured", "allow-new": "without a baseline",
    }),
    "gate --init": Row("gate net.py --init", "", dict.fromkeys(("limit", "dtype", "device", "runs"), "with --init")),
    "fuse, a model": Row("fuse net.py --gpu l4 --no-capture --policy memwall", "host what-if cuda-graph policy dtype", {
        "optimizer": "in --mode inference", "no-grad": "goes with mode 'forward'", "style": _PICTURE["style"],
    }),
    "fuse, a record": Row("fuse saved.json --no-capture --policy memwall", "host what-if cuda-graph policy", {
        **dict.fromkeys(("optimizer", "dtype", "context"), _TRACING),
    }),
    "drift": Row("drift runs", "since least", {"style": _PICTURE["style"]}),
    "measure": Row("measure net.py --device cpu", "", {"optimizer": "in --mode inference"}),
    "report": Row("report saved.json", "", {**_PICTURE, "quantity": "--history", "depth": "goes with --by module"}),
}  # fmt: skip


@pytest.fixture
def asked(run, gates, tmp_path, monkeypatch):
    """``asked("profile net.py", option)``: the command line on targets that are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMWALL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "gpt.py").write_text(MODEL.replace("LAYERS", "2"), encoding="utf-8")
    write(tmp_path, _launch(1, "aten::add", 64, 10))
    read: dict[str, Any] = {}

    def read_once(*args, **options):
        key = repr((args, options))
        if key not in read:
            read[key] = read_model(*args, **options)
        return read[key]

    monkeypatch.setattr("memwall.serving.run.read_model", read_once)  # most options say nothing about the model

    def go(words, option=""):
        if "saved" in words and not (tmp_path / "saved.json").is_file():
            for name, batch in (("saved", "4"), ("saved2", "8")):
                run("profile", "net.py", "--gpu", "h100", "--batch", batch, "-q", "-o", f"{name}.json")
        if words.endswith(" runs") and not (tmp_path / "runs").is_dir():
            for day, us in ((1, 25), (2, 30)):
                record(tmp_path / "runs", day, us)
        if "LLAMA" in words:
            pytest.importorskip("transformers", reason="transformers is not installed")
            words = words.replace("LLAMA", target_of(tmp_path / "llama", SHORT_LLAMA))
        if (given := GIVEN.get(option, "")).startswith("--vary"):  # into the axes that are there
            words, given = words.replace("--vary", given, 1), ""
        with gates.shared():
            return run(*words.split(), *given.split(), "-q")

    return go


def figures(text):
    """What is printed, without the time that a sweep took."""
    return [line for line in text.splitlines() if " points in " not in line and " point in " not in line]


@pytest.mark.parametrize("name", ROWS)
def test_an_option_works_or_one_line_says_why_it_has_no_effect(asked, name):
    row = ROWS[name]
    for option, said in row.refused.items():
        result = asked(row.words, option)
        assert (result.code, len(result.err.splitlines())) == (2, 1), (option, result.err)
        assert said in result.error, (option, result.error)
    if not row.works:
        return
    plain = asked(row.words)
    assert plain.code == 0, plain.err
    for option in row.works.split():
        result = asked(row.words, option)
        assert result.code in (0, 1), (option, result.err)
        assert figures(result.out) != figures(plain.out), f"{name} ignores --{option}"
