"""Known values against real data: real models traced on ``meta`` and with ``--real``.

    python lab/benchmarks/known_values.py [--name 'swin*'] [--python PYTHON]

Each model is built from its configuration, layers cut, and traced twice with the same inputs: on ``meta``, where values
are carried along, and with data on the CPU. What must be equal: the ops in their order with their attributes, shapes,
strides and dtypes; the FLOPs and bytes; every number that the model's Python read (``item()``, ``tolist()``, ``if
tensor:``). What follows from activations rests on an assumption in the first and on random weights in the second: there
the report says how far apart they are. It runs in the environment of the zoo; a whole run writes
reports/known_values.md.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from memwall.core.errors import MemwallError
from memwall.core.graph import Graph, TensorSpec
from memwall.frontend.targets import Workload, resolve
from memwall.frontend.torch import TraceOptions
from memwall.frontend.torch.options import TraceResult
from memwall.frontend.torch.process.device import TracedDevice
from memwall.frontend.torch.run import trace
from memwall.ops import graph_costs

ROOT = Path(__file__).resolve().parents[2]

# -- two traces --------------------------------------------------------------------------------------------------------


def described(graph: Graph, numbers: bool = True) -> list[str]:
    """A graph's ops, a line each: name, phase, attributes, and the shapes, dtypes and strides of what is read and
    written; without ``numbers`` what has one element is left out. So are results besides the first that nothing reads
    (the statistics of a batch norm in inference are empty on some devices) and how many experts a choice touches, which
    ``meta`` alone follows from the choice to where it is used."""
    lines, needed = [], {i for op in graph.ops for i in op.inputs} | set(graph.outputs)
    for op in graph.ops:
        results = [i for place, i in enumerate(op.outputs) if not place or i in needed]
        read, written = (_specs(graph.specs(ids), numbers) for ids in (op.inputs, results))
        if written:
            attributes = sorted((each for each in op.attributes.items() if each[0] != "slices"), key=str)
            lines.append(f"{op.name} {op.phase} {attributes} {read} -> {written}")
    return lines


def _specs(specs: Sequence[TensorSpec], numbers: bool) -> list[tuple[Any, ...]]:
    """Shape, dtype and strides; the stride of an axis of one element says nothing."""
    return [
        (s.shape, s.dtype, tuple(stride for size, stride in zip(s.shape, s.strides, strict=True) if size != 1))
        for s in specs
        if numbers or s.numel != 1
    ]


class Asked(TorchFunctionMode):
    """Notes the numbers that Python reads out of tensors, other than memwall's own and torch's."""

    _READS = frozenset(
        getattr(torch.Tensor, name)
        for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__")
    )

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func in self._READS and not self._is_machinery():
            self.answers.append(answer)
        return answer

    def _is_machinery(self) -> bool:
        """Whether memwall reads, or answers the model's question in its stead, or weights are filled."""
        own, torchs = f"{os.sep}memwall{os.sep}", f"-packages{os.sep}torch{os.sep}"
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(2))]
        asker = next(f for f in frames if not (_passes_on(f) or torchs in f.f_code.co_filename))
        return own in asker.f_code.co_filename or any(
            frame.f_code.co_filename.endswith(f"nn{os.sep}init.py")
            or (frame.f_code.co_name == "_ask" and own in frame.f_code.co_filename)
            for frame in frames
        )


def _passes_on(frame: FrameType) -> bool:
    """Whether a frame is this file's, or passes on to torch what another asked: the mode of the traced device."""
    passing = (TracedDevice.__torch_function__.__code__, TracedDevice._read.__code__)
    return frame.f_code.co_filename == __file__ or frame.f_code in passing


@dataclass(frozen=True)
class Seen:
    """A trace, and the numbers that the model's Python read in it."""

    traced: TraceResult
    answers: list[Any]

    @property
    def flops(self) -> int:
        return sum(cost.total_flops for cost in graph_costs(self.traced.graph))

    @property
    def bytes(self) -> int:
        return sum(cost.read_bytes + cost.write_bytes for cost in graph_costs(self.traced.graph))

    @property
    def assumed(self) -> list[str]:
        notes = self.traced.facts.notes
        return [note.removeprefix("assumed: ") for note in notes if note.startswith("assumed: ")]


def seen(workload: Workload, real: bool) -> Seen:
    """A workload traced op by op, on ``meta`` or with data."""
    asked = Asked()
    with asked:
        traced = trace(workload, TraceOptions(real=real, replay=False))
    return Seen(traced, asked.answers)


@dataclass(frozen=True)
class Pair:
    """The same step on ``meta`` and with data."""

    name: str
    meta: Seen
    real: Seen

    @property
    def differences(self) -> list[str]:
        """Ops of one trace alone (``-`` of that on meta, ``+`` of that with data), then other numbers read."""
        lines = difflib.unified_diff(*(described(s.traced.graph, numbers=False) for s in (self.meta, self.real)), n=0)
        found = [line for line in lines if line[:1] in "+-" and line[:3] not in ("---", "+++")]
        if self.meta.answers != self.real.answers:
            found.append(f"read on meta {self.meta.answers[:20]}, with data {self.real.answers[:20]}")
        return found


def pair(name: str, workload: Workload) -> Pair:
    """Both traces of a workload, with the same inputs."""
    torch.manual_seed(0)
    given = workload.inputs() if callable(workload.inputs) else workload.inputs
    same = Workload(workload.model, given, name=name)
    return Pair(name, seen(same, real=False), seen(same, real=True))


# -- the models --------------------------------------------------------------------------------------------------------

_TEXT: Mapping[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_EXPERTS: Mapping[str, Any] = {**_TEXT, "vocab_size": 1000, "num_local_experts": 4, "num_experts": 8,
                               "moe_intermediate_size": 128, "num_experts_per_tok": 2}  # fmt: skip
#: model type of transformers → what its configuration has smaller than by default
_TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    "bert": {}, "deberta-v2": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8},
    "big_bird": {}, "longformer": {}, "longt5": {}, "canine": {}, "tapas": {}, "esm": {}, "reformer": {},
    "mixtral": _EXPERTS, "qwen3_moe": _EXPERTS,
    "deepseek_v3": {**_EXPERTS, "num_key_value_heads": 4, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
    "mamba": {}, "layoutlm": {}, "layoutlmv3": {}, "swin": {}, "swinv2": {}, "clip": {}, "sam": {}, "detr": {},
    "rt_detr": {}, "mask2former": {}, "yolos": {}, "time_series_transformer": {}, "informer": {}, "autoformer": {},
    "patchtst": {}, "wav2vec2": {}, "whisper": {}, "idefics3": {"text_config": {**_TEXT, "vocab_size": 128260}},
    "llava": {"text_config": {**_TEXT, "vocab_size": 32064}},
    "qwen2_vl": {"text_config": _TEXT, "vision_config": {"hidden_size": 512}},
    "qwen2_5_vl": {"text_config": _TEXT, "vision_config": {"out_hidden_size": 512}},
}  # fmt: skip
#: models that take fewer tokens than by default, as their positions end there
_SHORT = ("bert", "deberta-v2", "longformer", "canine", "layoutlmv3")
_TIMM = ("maxvit_tiny_rw_224", "swin_tiny_patch4_window7_224", "levit_128s", "naflexvit_base_patch16_gap")
_TORCHVISION = ("swin_t", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large",
                "retinanet_resnet50_fpn")  # fmt: skip
_PYG = ("GCNConv", "TransformerConv", "TopKPooling", "SAGPooling", "SortAggregation", "Set2Set", "RGCNConv", "HGTConv",
        "MFConv", "GraphMultisetTransformer")  # fmt: skip
_TORCHAUDIO = ("Conformer", "Emformer", "Tacotron2")


def _hf(model_type: str, folder: Path) -> Workload:
    """A transformers model with the inputs that its processor would make of one short text, a small image or a clip."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from zoo_models.suites import NEEDED, Transformers

    kind = CONFIG_MAPPING[model_type]
    whole = kind(**NEEDED.get(model_type, {})).to_dict()
    config = Transformers().buildable(kind, kind.from_dict(_changed(whole, _TRANSFORMERS[model_type])))
    config.save_pretrained(folder)
    return resolve(f"hf:{folder}", seq=128 if model_type in _SHORT else None)


def _changed(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with other numbers in it and in its parts."""
    inner = {key: _changed(config[key], value) for key, value in changes.items() if isinstance(value, Mapping)}
    return {**config, **changes, **inner}


def _listed(suite: str) -> Callable[[str, Path], Workload]:
    def make(name: str, folder: Path) -> Workload:
        from zoo_models.suites import SUITES

        return SUITES[suite]().workload(name, "inference", folder)

    return make


#: library → its models here, and what makes the workload of one
MODELS: Mapping[str, tuple[Sequence[str], Callable[[str, Path], Workload]]] = {
    "transformers": (tuple(_TRANSFORMERS), _hf),
    "timm": (_TIMM, _listed("timm")),
    "torchvision": (_TORCHVISION, _listed("torchvision")),
    "torch_geometric": (_PYG, _listed("torch_geometric")),
    "torchaudio": (_TORCHAUDIO, _listed("torchaudio")),
}


#: models that rest on no assumption and differ all the same → why
_CAUSES: Mapping[str, str] = {
    "patchtst": "a batch norm of a strided input: the CPU's result is contiguous, on meta it keeps the strides, as"
                " CUDA's own kernel does",
    "Tacotron2": "lengths of the sequences that a GPU's run keeps on the host are the device's where all is the CPU",
    "RGCNConv": "four single numbers that a GPU's run keeps on the host are the device's where all is the CPU",
}  # fmt: skip


# -- the report --------------------------------------------------------------------------------------------------------


def lines(patterns: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """A row of the report for each model whose name fits a pattern; whether it is equal or says why it is not."""
    for library, (names, make) in MODELS.items():
        for name in names:
            if any(fnmatch.fnmatch(name, pattern) for pattern in patterns):
                with tempfile.TemporaryDirectory() as folder:
                    yield _row(library, name, make, Path(folder))


def _row(library: str, name: str, make: Callable[[str, Path], Workload], folder: Path) -> tuple[bool, str]:
    try:
        both = pair(name, make(name, folder))
    except MemwallError as error:
        return False, f"| {library} | {name} | | | | | refused: {' '.join(str(error).split())[:120]} |"
    meta, real, differences = both.meta, both.real, both.differences
    said = "equal"
    if meta.assumed and differences:
        said = f"rests on {', '.join(note.partition(',')[0] for note in meta.assumed)}"
    elif differences:
        said = _CAUSES.get(name, f"differs: {differences[0][:120]}")
    elif real.flops != meta.flops or real.bytes != meta.bytes:
        said = "equal but for calls on single numbers"
    ratios = (1.0 if a == b else a / b for a, b in ((real.flops, meta.flops), (real.bytes, meta.bytes)))
    shown = " | ".join("1" if ratio == 1 else f"{ratio:.6f}" for ratio in ratios)
    explained = not differences or bool(meta.assumed) or name in _CAUSES
    return explained, (
        f"| {library} | {name} | {len(meta.traced.graph.ops):,} | {len(meta.answers)} | {shown} | {said} |"
    )


_HEAD = """\
# Known values against real data

`python lab/benchmarks/known_values.py` traces each model twice with the same inputs: on `meta`, where values of small
tensors are carried along, and with data on the CPU (`--real`, random weights). It compares the ops in order, with
attributes, shapes, dtypes and strides; FLOPs and bytes; every number that the model's Python read (`item()`,
`tolist()`, `if tensor:`). The comparison of the ops leaves out single numbers: where everything is on the CPU, calls on
numbers of the host are recorded too, and their FLOPs and bytes count. A ratio of 1 is exact; 1.000000 is not.

What follows from activations is not known: on `meta` a trace assumes it, with data random weights decide it. Those rows
name the assumption; their ratios say how far random weights are from it.

| library | model | ops | numbers read | FLOPs, real/meta | bytes, real/meta | ops and numbers |
|---|---|---:|---:|---:|---:|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--python", type=Path, help="the Python of an environment with the libraries")
    options = parser.parse_args()
    if os.environ.get("MEMWALL_ZOO") != "1":
        from zoo import environment_python

        path = os.pathsep.join((str(ROOT), str(Path(__file__).parent)))
        python = options.python or environment_python()
        os.execve(python, [str(python), *sys.argv], {**os.environ, "MEMWALL_ZOO": "1", "PYTHONPATH": path})
    from zoo_models.compiled_ops import import_compiled

    import_compiled()
    rows = []
    for explained, line in lines(options.name):
        print(line, flush=True)
        rows.append((explained, line))
    equal = sum(line.endswith("| equal |") for _, line in rows)
    if options.name == ["*"]:
        text = (
            _HEAD + "\n".join(line for _, line in rows) + f"\n\n{equal} of {len(rows)} models are equal throughout.\n"
        )
        (ROOT / "reports" / "known_values.md").write_text(text, encoding="utf-8")
    return 0 if all(explained for explained, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
