"""The inputs of ``tools/fuzz.py``: valid ones, their mutations, and the readers that take them."""

from __future__ import annotations

import copy
import csv
import gzip
import io
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from memwall.bench.accuracy.samples import Sample
from memwall.cli.options import parse_prices
from memwall.core.errors import MemwallError
from memwall.traces.command import analyse_file, is_trace

ROOT = Path(__file__).resolve().parents[1]

#: values that a reader does not expect
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 64, 1 << 31, 1 << 63, 10**30, -(10**30), 0.5, -0.0, 1e-320, 1e308,
    float("nan"), float("inf"), "", " ", "0", "-1", "1e999", "nan", "None", "[]", "[1, [2]]", "(1, 2)", "'", '"',
    "\\", "\x00", "\x1b[31m", "\ud800", "é", "\u202e", "a" * 5000, "9" * 5000, "::", "aten::", "float", "int64",
    "tensor.float16", "../..", "*", "%", [], {}, [[]], [None], [0], [-1], [1 << 63], [1, 2, 3], [[1], 2], [1, [2]],
    ["a"], [True], {"": 0}, {"a": {"b": []}}, [[[[[[1]]]]]], [1.5], [float("nan")], list(range(70)),
)  # fmt: skip
PIECES = (
    "", " ", "\n", "\t", "\r", "0", "-1", "1", "9" * 400, "1e999", "1_000", "nan", "inf", "-", "+", "=", "==", "*=",
    "[", "]", "[[", "{", "}", ",", ".", ":", ";", "#", "'", '"', '"""', "\\", "\\u12", "/", "%", "$(x)", "é", "\x00",
    "\x1b", "\ufeff", "\u202e", "٣", "true", "TB/s", "GiB", "h100", "a" * 300, "a." * 200, "[" * 300, " " * 3000,
)  # fmt: skip


# ---- mutations


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a tree."""
    if path:
        yield path
    if isinstance(tree, (dict, list)):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            yield from places(tree[key], (*path, key))


def mutated_tree(tree: Any, rng: random.Random, inside: str = "") -> Any:
    """A copy of some JSON with one to four values replaced, removed, renamed, repeated, swapped or nested; only below
    keys of the name ``inside`` if there is one."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        known = [path for path in places(tree) if not inside or inside in path[:-1]]
        if not known:
            break
        *outer, key = rng.choice(known)
        parent = tree
        for step in outer:
            parent = parent[step]
        mutate_value(parent, key, rng, lambda known=known, tree=tree: value_at(tree, rng.choice(known)))
    return tree


def value_at(tree: Any, path: Sequence[Any]) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def mutate_value(parent: Any, key: Any, rng: random.Random, other: Callable[[], Any]) -> None:
    """One change of one value."""
    kind = rng.randrange(9)
    if kind < 4:
        parent[key] = copy.deepcopy(rng.choice(ODD))
    elif kind == 4:
        del parent[key]
    elif kind == 5:
        parent[key] = copy.deepcopy(other())
    elif kind == 6:
        parent[key] = [parent[key]] if rng.random() < 0.5 else {"a": parent[key]}
    elif isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key])) if kind == 7 else rng.shuffle(parent)
    elif type(parent[key]) in (int, float) and kind == 7:
        parent[key] = rng.choice((-1, 2, 0.5, 1000, 1e18, 1e-18, 1e-300, 1e300)) * parent[key]
    else:
        parent[rng.choice(("", "id", "shape", key + "x", key.upper()))] = parent.pop(key)


def mutated_text(text: str, rng: random.Random) -> str:
    """A text with some of its words or signs replaced, removed, repeated or swapped."""
    words = re.findall(r"\w+|\W", text) or [""]
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6))):
        at, other = rng.randrange(len(words)), rng.randrange(len(words))
        kind = rng.randrange(6)
        if kind < 3:
            words[at] = rng.choice(PIECES)
        elif kind == 3:
            words[at] += words[other]
        elif kind == 4:
            words[at], words[other] = words[other], words[at]
        else:
            words[min(at, other) : min(at, other) + rng.randrange(1, 8)] = []
            words = words or [""]
    return "".join(words)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, repeated, or blanks put in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, end = sorted(rng.randrange(len(found) + 1) for _ in range(2))
        kind = rng.randrange(6)
        if kind < 2 and at < len(found):
            found[at] = rng.randrange(256)
        elif kind == 2:
            del found[at:]
        elif kind == 3:
            found[at:at] = found[at : min(end, at + 200)]
        elif kind == 4:
            found[at:at] = rng.choice((b" ", b"\n", b"\t")) * rng.choice((1, 100, 30_000))
        else:
            del found[at : min(end, at + 50)]
    return bytes(found)


def as_json(tree: Any, rng: random.Random, inside: str = "") -> bytes:
    """Mutated JSON, its text mutated too in one of five."""
    data = json.dumps(mutated_tree(tree, rng, inside)).encode()
    return mutated_bytes(data, rng) if rng.random() < 0.2 else data


# ---- readers: a valid input, mutated, and what reads it


class Reader(NamedTuple):
    """``make`` is a mutated input, ``read`` what is done with it in an empty folder."""

    make: Callable[[random.Random], Any]
    read: Callable[[Any, Path], object]


def file_reader(name: str, seeds: Sequence[bytes], read: Callable[[Path], object]) -> Reader:
    """A reader of a file of text."""

    def make(rng: random.Random) -> bytes:
        seed = rng.choice(seeds)
        if rng.random() < 0.25:
            return mutated_bytes(seed, rng)
        return mutated_text(seed.decode(), rng).encode("utf-8", "surrogatepass")

    return Reader(make, lambda data, folder: read(written(folder / name, data)))


def json_reader(name: str, seeds: Sequence[Any], read: Callable[[Path], object], inside: str = "") -> Reader:
    """A reader of a JSON file."""
    return Reader(
        lambda rng: as_json(rng.choice(seeds), rng, inside), lambda data, folder: read(written(folder / name, data))
    )


def text_reader(seeds: Sequence[str], read: Callable[[str], object]) -> Reader:
    """A reader of an option's text."""
    return Reader(lambda rng: mutated_text(rng.choice(seeds), rng), lambda text, _: read(text))


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def packed(seeds: Sequence[Any], read: Callable[[Path], object]) -> Reader:
    """A reader of a gzip file: its JSON, or its bytes, mutated."""

    def make(rng: random.Random) -> bytes:
        data = gzip.compress(as_json(rng.choice(seeds), rng), compresslevel=1, mtime=0)
        return mutated_bytes(data, rng) if rng.random() < 0.3 else data

    return Reader(make, lambda data, folder: read(written(folder / "t.json.gz", data)))


# ---- traces


def call_events(name: str, number: int, arguments: Mapping[str, Any], kernel: str) -> list[dict[str, Any]]:
    """An op, its launch, its kernel."""
    at, common = 100 * number, {"ph": "X", "pid": 1, "tid": 1}
    return [
        {**common, "cat": "cpu_op", "name": name, "ts": at, "dur": 90,
         "args": {"External id": number, "Sequence number": number, **arguments}},
        {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 2,
         "args": {"correlation": number, "External id": number}},
        {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 20, "dur": 50.5,
         "args": {"correlation": number, "device": 0, "stream": 7, "grid": [4, 1, 1], "block": [128, 1, 1]}},
        {"ph": "s", "cat": "ac2g", "id": number, "pid": 1, "tid": 1, "ts": at + 5},
        {"ph": "f", "cat": "ac2g", "id": number, "pid": 0, "tid": 7, "ts": at + 20, "bp": "e"},
    ]  # fmt: skip


def recorded(dims: Sequence[Any], types: Sequence[str], values: Sequence[str] = ()) -> dict[str, Any]:
    filled = [*values, *[""] * (len(dims) - len(values))]
    return {"Input Dims": dims, "Input type": types, "Concrete Inputs": filled}


#: op, its recorded arguments, its kernel
CALLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("aten::addmm", recorded([[8], [4, 16], [16, 8], [], []], ["c10::Half"] * 3 + ["Scalar"] * 2, ["", "", "", "1",
     "1"]), "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64>(Params)"),
    ("aten::native_layer_norm", recorded([[4, 16], [], [16], [16], []], ["float", "ScalarList", "float", "float",
     "Scalar"], ["", "[16]", "", "", "1e-05"]), "vectorized_layer_norm_kernel<float, float>"),
    ("aten::cat", recorded([[[2, 3], [4, 3]], []], ["TensorList", "Scalar"], ["", "0"]),
     "CatArrayBatchedCopy<OpaqueType<4u>>"),
    ("aten::_softmax", recorded([[4, 16], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"]),
     "softmax_warp_forward"),
    ("aten::index_select", recorded([[100, 16], [], [8]], ["float", "Scalar", "long int"], ["", "0", ""]), "gather"),
    ("aten::convolution", recorded([[2, 3, 8, 8], [4, 3, 3, 3], [4], [], [], [], [], [], []], ["float"] * 3 +
     ["ScalarList"] * 3 + ["Scalar", "ScalarList", "Scalar"], ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False",
     "[0, 0]", "1"]), "sm80_xmma_fprop"),
    ("aten::_scaled_dot_product_flash_attention", recorded([[1, 2, 8, 16]] * 3 + [[], [], [], []], ["c10::BFloat16"]
     * 3 + ["Scalar"] * 4, ["", "", "", "0.", "True", "False", ""]), "pytorch_flash::fwd"),
    ("aten::_foreach_add_", recorded([[[4], [8]], [[4], [8]], []], ["TensorList", "TensorList", "Scalar"]),
     "void multi_tensor_apply_kernel<TensorListMetadata<2>, c10::Half>"),
    ("vllm::unified_attention_with_output", recorded([[8, 32]] * 4 + [[]], ["c10::BFloat16"] * 4 + [""]),
     "flash_fwd"),
    ("vllm::outplace_fused_experts", recorded([[8, 32], [4, 64, 32], [4, 32, 32], [8, 2], [8, 2]], ["c10::BFloat16"]
     * 3 + ["float", "int"]), "fused_moe_kernel"),
    ("_C::rms_norm", recorded([[8, 32], [8, 32], [32], []], ["c10::BFloat16"] * 3 + ["Scalar"]), "rms_norm_kernel"),
    ("triton_poi_fused_add_mul_0", {**recorded([[64], [64], []], ["float", "float", "Scalar"], ["", "", "64"]),
     "kernel_backend": "triton", "grid": "grid(64)", "kernel_kwargs": "XBLOCK=64"}, "triton_poi_fused_add_mul_0"),
    ("nccl:all_reduce", {**recorded([[1024]], ["float"]), "Collective name": "allreduce", "In msg nelems": 1024,
     "Out msg nelems": 1024, "Group size": 8, "dtype": "Float"}, "ncclDevKernel_AllReduce_Sum_f32"),
)  # fmt: skip


def trace_seeds() -> list[Any]:
    """Small traces with what the readers look at: ops, launches, kernels, copies, flows, frames, modules, steps."""
    properties = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "totalGlobalMem": 85 * 10**9}]
    more: list[dict[str, Any]] = [
        {"ph": "X", "cat": "python_function", "name": "nn.Module: Linear_0", "pid": 1, "tid": 1, "ts": 0, "dur": 400},
        {"ph": "X", "cat": "python_function", "name": "net.py(3): forward", "pid": 1, "tid": 1, "ts": 1, "dur": 300},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 900},
        {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": 1, "tid": 1, "ts": 250, "dur": 9},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 470,
         "dur": 3, "args": {"device": 0, "stream": 7, "correlation": 99, "bytes": 4096}},
        {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddmmBackward0", "pid": 1, "tid": 2,
         "ts": 480, "dur": 9, "args": {"Sequence number": 1, "Fwd thread id": 1}},
    ]  # fmt: skip
    seeds: list[Any] = []
    for first in range(0, len(CALLS), 3):
        events = [
            event for n, row in enumerate(CALLS[first : first + 3], 1) for event in call_events(row[0], n, *row[1:])
        ]
        seeds.append({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": [*events, *more],
                      "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}})  # fmt: skip
    return [*seeds, seeds[0]["traceEvents"]]


def read_trace_file(path: Path) -> None:
    from memwall.report import render
    from memwall.traces.page import TraceReport

    is_trace(str(path))
    report = TraceReport(analyse_file(str(path), ["h100"]))
    for kind in ("text", "json", "html"):
        render(report, kind)


NCU = (
    '==PROF== Connected\n"ID","Process ID","Kernel Name","Block Size","Grid Size","Metric Name","Metric Unit",'
    '"Metric Value"\n"0","1","softmax_warp_forward","(128, 1, 1)","(4, 1, 1)","dram__bytes_read.sum",'
    '"Kbyte","1,024.5"\n'
    '"0","1","softmax_warp_forward","(128, 1, 1)","(4, 1, 1)","dram__bytes_write.sum","byte","4.096"\n'
    '"1","1","gather","(128, 1, 1)","(4, 1, 1)","gpu__time_duration.sum","usecond","3.25"\n',
    '"ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum"\n'
    '"","","","","Mbyte","byte"\n'
    '"0","gather","(128, 1, 1)","(4, 1, 1)","1.5","4096"\n'
    '"1","softmax_warp_forward","(128, 1, 1)","(4, 1, 1)","0.5","n/a"\n',
)  # fmt: skip


def read_ncu(path: Path) -> None:
    from memwall.traces import read_ncu_csv

    read_ncu_csv(path)


# ---- records


def record_seeds(steps: Sequence[str]) -> list[Any]:
    """Saved profiles of small models, one for each line."""
    import torch
    from torch import nn

    import memwall

    class Model(nn.Module):
        def __init__(self, step: str) -> None:
            super().__init__()
            self.step, self.linear, self.norm = step, nn.Linear(16, 16), nn.LayerNorm(16)
            self.conv, self.batch = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> Any:
            return eval(self.step, {"torch": torch, "F": nn.functional, "x": x, "m": self})

    seeds = []
    for step in steps:
        shape = (2, 3, 8, 8) if "conv" in step else (4, 16)
        made = memwall.profile(Model(step), (torch.empty(shape, device="meta"),), gpu="a100", mode="inference")
        seeds.append(json.loads(made.to_json()))
    return seeds


STEPS = (
    "m.norm(m.linear(x)).relu()", "F.gelu(m.linear(x), approximate='tanh') + x", "x.softmax(-1) * 2",
    "F.hardtanh(x, -1, 1)", "F.threshold(x, 0.1, 20) - 1", "F.softplus(x, 2, 10)",
    "F.leaky_relu(x, 0.2).clamp(0, 3)", "x.sum(1, keepdim=True) / x", "x.var(-1) + 1",
    "torch.cat([x, x + 1], 1).relu()", "x.cumsum(1) * 3", "F.rms_norm(x, (16,)) * 2", "x.tril(1) + 1",
    "F.batch_norm(m.conv(x), m.batch.running_mean, m.batch.running_var).relu()", "F.group_norm(m.conv(x), 2) + 1",
    "F.max_pool2d(m.conv(x).relu(), 2)", "F.interpolate(m.conv(x), scale_factor=2) + 1", "x.topk(3, -1).values * 2",
    "F.elu(x) + x.pow(3)", "torch.where(x > 0, x, 2.0).amax(-1)", "F.glu(x, -1) + 1", "F.dropout(x, 0.5, True) * 2",
    "x.to(torch.float16).add(x, alpha=3)", "F.embedding(x.long().abs(), m.linear.weight) + 1", "x.roll(3, 1) + 1",
    "F.pad(x, (1, 2)).log_softmax(-1)", "torch.lerp(x, x + 1, 0.3)",
    "F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])",
)  # fmt: skip


def read_record(path: Path) -> None:
    from memwall.record.profile import Profile
    from memwall.report import render
    from memwall.report.pages.profile import ProfileReport

    profile = Profile.load(path)
    for kind in ("text", "json", "html", "csv"):
        render(ProfileReport(profile), kind)


def fuse_record(path: Path) -> None:
    """What ``memwall fuse RECORD --emit`` does."""
    from memwall.cli import main

    folder = path.parent / "kernels"
    for arguments in (
        ("fuse", path, "--emit", folder, "--force"),
        ("profile", path, "--policy", "memwall", "--gpu", "v100"),
    ):
        run(main, [str(argument) for argument in arguments if argument != "--force"])


def compare_records(path: Path) -> None:
    from memwall.cli import main

    run(main, ["compare", str(path), str(path.parent / "base.json")])


def run(main: Callable[[list[str]], int], arguments: list[str]) -> None:
    """The command line in this process; its exit code as an exception."""
    says = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(says):
        code = main([*arguments, "--debug"])
    if code == 70:
        raise RuntimeError(says.getvalue())
    if code:
        raise MemwallError(says.getvalue())


# ---- the rest


GATE = b"""[tool.memwall.gate]
gpu = ["h100-sxm", "a100-80gb-sxm"]
policy = ["eager", "memwall"]
baseline_ref = "origin/main"
kernels = "+0"
dram_bytes = "+0.5%"
[tool.memwall.gate.workloads.bert]
target = "model.py"
mode = "training"
batch = 8
peak_memory = "70 GB"
mfu = "40 %"
[tool.memwall.gate.workloads.bert.gpus.h100-sxm]
time_s = ["3.2 ms", "+1%"]
[tool.memwall.gate.workloads.bert.modules."encoder.layer.*.attention"]
dram_bytes = "+0%"
"""


def hardware_seeds() -> list[bytes]:
    return [
        (ROOT / "hardware_specs" / f"{name}.toml").read_bytes() for name in ("h100-sxm", "a100-40gb-pcie", "mi300x")
    ]


def accuracy_seeds() -> list[bytes]:
    """A table of each kind: its columns, and rows of plausible cells."""
    from memwall_lab.tables import TABLES

    seeds = []
    for table in TABLES:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        columns = sorted(table.columns)
        writer.writerow(columns)
        for size in ("128", "4096"):
            writer.writerow([cell(column, size) for column in columns])
        seeds.append(text.getvalue().encode())
    return seeds


def cell(column: str, size: str) -> str:
    """A plausible cell."""
    known = {
        "gpu": "h100",
        "network": "h100",
        "status": "ok",
        "phase": "generation",
        "dtype": "float16",
        "precision": "half",
        "class": "contraction",
        "op": "attn_prefill" if column == "op" else "full",
        "benchmark": "softmax",
        "kernel_name": "rms_norm",
        "metric_name": "speed",
        "provider": "liger",
        "config": '{"dtype": "torch.bfloat16"}',
        "shape_mnk": "128x128x64",
        "what": "fwd",
        "trans": "0",
        "executor": "eager",
    }
    return next(
        (text for part, text in known.items() if part in column), "0.25" if column.endswith(("ms", "_s")) else size
    )


def read_accuracy(path: Path) -> None:
    from memwall.bench.accuracy.reading import read_measured
    from memwall.bench.accuracy.samples import model_rows

    model_rows(read_measured(path).of(Sample)[:4])


def read_gate(path: Path) -> None:
    from memwall.gate.reading import read_config

    (path.parent / "model.py").touch()
    read_config(path)


def read_history(path: Path) -> None:
    from memwall.gate.history import read
    from memwall.gate.history_page import HistoryReport
    from memwall.report import render

    render(HistoryReport(read(path), ()), "text")


def read_gpu(path: Path) -> None:
    from memwall.hardware.lookup import load_gpu
    from memwall.report import render
    from memwall.report.pages.gpus import GpuReport

    render(GpuReport(load_gpu(path)), "text")


def read_target(text: str) -> None:
    from memwall.cli.target import is_record
    from memwall.frontend.targets.target import split_target

    if "\x00" not in text:
        is_trace(text)
    is_record(text)
    split_target(text)


def read_input(text: str) -> None:
    from memwall.frontend.targets.inputs import parse_input

    parse_input(text)


def read_change(text: str) -> None:
    from memwall.analysis.whatif import parse_change

    parse_change(text)


def history_seeds() -> list[bytes]:
    row = {"schema": "memwall.history/1", "commit": "abcdef1", "date": "2026-11-22T05:24:55Z", "memwall_version": "1.0",
           "workload": "net", "mode": "training", "gpu": "h100-sxm", "policy": "eager",
           "figures": {"time_s": 1.5e-3, "kernels": 7}}  # fmt: skip
    later = {**row, "commit": "abcdef2", "date": "2026-11-23T05:24:55Z", "figures": {"time_s": 2.5e-3, "kernels": 7}}
    return [b"".join(json.dumps(entry).encode() + b"\n" for entry in (row, later))]


READERS: Mapping[str, Callable[[], Reader]] = {
    "trace": lambda: json_reader("t.json", trace_seeds(), read_trace_file),
    "trace-gzip": lambda: packed(trace_seeds(), read_trace_file),
    "ncu": lambda: file_reader("ncu.csv", [text.encode() for text in NCU], read_ncu),
    "record": lambda: json_reader("record.json", record_seeds(STEPS[:6]), read_record),
    "record-attributes": lambda: json_reader("record.json", record_seeds(STEPS), fuse_record, inside="attributes"),
    "history": lambda: file_reader("history.jsonl", history_seeds(), read_history),
    "gpu": lambda: file_reader("gpu.toml", hardware_seeds(), read_gpu),
    "gate": lambda: file_reader("memwall.toml", [GATE.replace(b"tool.memwall.", b"")], read_gate),
    "pyproject": lambda: file_reader("pyproject.toml", [b"[project]\nname='x'\n" + GATE], read_gate),
    "accuracy": lambda: file_reader("table.csv", accuracy_seeds(), read_accuracy),
    "price": lambda: text_reader(["h100=2.99", "NVIDIA A100=1e-3"], lambda text: parse_prices([text])),
    "input": lambda: text_reader(["ids=i64[8,512]", "f32[8, 3, 224, 224]", "bf16[1_000,]", "bool[]"], read_input),
    "what-if": lambda: text_reader(
        ["dram_bytes_per_s*=2", "l2_bytes=100MB", "fuse:layers.*.mlp", "peak_flop_per_s.tensor.float16=1e15"],
        read_change,
    ),
    "target": lambda: text_reader(["model.py:Net", "pkg.mod:name", "hf:folder/config.json", "a.json.gz"], read_target),
}  # fmt: skip
