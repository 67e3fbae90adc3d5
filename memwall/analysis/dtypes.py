"""A traced step with its products in another dtype, and what dtypes a GPU has no tensor cores for.

The step is as casting the model would make it, but for the casts that its own code makes then:
``memwall profile --dtype`` traces those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from memwall.analysis.pipes import NAMED, is_emulated, main_pipe, product_flops
from memwall.core.errors import MissingError, UsageError
from memwall.core.graph import Graph, Op, Pipe, Storage, TensorSpec
from memwall.core.units import duration, flop_rate
from memwall.frontend.targets.inputs import SHORT_DTYPES
from memwall.hardware.chips import chip_of
from memwall.hardware.lookup import Gpu
from memwall.ops.lowering import LowerableGraph
from memwall.ops.registry import graph_costs
from memwall.ops.sdpa import Backends
from memwall.record.profile import Profile
from memwall.record.schedules import CHEAP
from memwall.simulate.schedule import Schedule

#: what products can be put in: float32 on the tensor cores' TF32, and the dtypes of tensors
DTYPES = ("tf32", "float32", "float16", "bfloat16")
#: dtype, GPUs on which libraries refuse its products, and what is said of that
_REFUSED: Sequence[tuple[str, Callable[[Gpu], bool], str]] = (
    *((name, lambda gpu: True, "are refused by PyTorch's torch._scaled_mm") for name in ("fp8", "fp4")),
    # https://github.com/pytorch/pytorch/issues/57773
    ("bfloat16", lambda gpu: gpu.architecture == "pascal", "were refused by cuBLAS 11"),
)
#: 16-bit dtype -> the other one, and how the command line asks for that
_OTHER_HALF = {"bfloat16": ("float16", "fp16"), "float16": ("bfloat16", "bf16")}


def known_dtype(name: str) -> str:
    """One of :data:`DTYPES` by its name or its short name; any other text comes back unchanged."""
    return SHORT_DTYPES.get(name, name)


def dtype_of(profile: Profile, schedule: Schedule) -> str:
    """The dtype of the tensors that most products multiply."""
    pipe = main_pipe(profile, schedule)
    return profile.workload.dtype if pipe is None else {"tf32": "float32"}.get(pipe.dtype, pipe.dtype)


def in_dtype(profile: Profile, schedule: Schedule, dtype: str) -> Profile:
    """The profile of the graph of a schedule, not simulated yet, with every tensor of the products' dtype in another.

    Raises:
        UsageError: TF32 is asked for products that are not of float32.
        MissingError: there is attention, whose kernels in the other dtype torch says.
    """
    source, attention = dtype_of(profile, schedule), profile.attention
    graph = profile.graphs[schedule.graph]
    if dtype == "tf32":
        if source != "float32":
            raise UsageError(f"TF32 is for matmuls of float32, and matmuls of {profile.workload.name} are of {source}")
        graph, attention = _with_tf32(graph), attention and _all_with_tf32(attention)
    elif attention is None:
        graph = _recast(graph, source, dtype)
    else:
        traced = _recast(attention.traced, source, dtype)
        graph, attention = _attending(traced, attention.on(chip_of(schedule.gpu)))
    made = replace(profile, graphs=(graph,), costs=(graph_costs(graph),), simulations=(), attention=attention)
    return made.on([schedule.gpu])


def _recast(graph: Graph, dtype: str, other: str) -> Graph:
    """The graph with every tensor of a dtype in another; storages of such tensors alone have their size."""
    specs = {value.spec: value.spec for value in graph.values}
    changed = {spec: replace(spec, dtype=other) if spec.dtype == dtype else spec for spec in specs}
    held: dict[int, set[str]] = {}
    for value in graph.values:
        held.setdefault(value.storage, set()).add(value.spec.dtype)
    old, new = (TensorSpec((), (), name).itemsize for name in (dtype, other))

    def resized(storage: Storage) -> Storage:
        return replace(storage, nbytes=storage.nbytes * new // old) if held.get(storage.id) == {dtype} else storage

    return replace(
        graph,
        values=tuple([replace(value, spec=changed[value.spec]) for value in graph.values]),
        storages=tuple(map(resized, graph.storages)),
    )


def _with_tf32(graph: Graph) -> Graph:
    """The graph whose products of float32 may take TF32."""
    known: dict[int, Mapping[str, Any]] = {}  # most ops share the object of their attributes

    def allowed(op: Op) -> Op:
        if "allow_tf32" not in op.attributes:
            return op
        attributes = known.setdefault(id(op.attributes), {**op.attributes, "allow_tf32": True})
        return replace(op, attributes=attributes)

    return replace(graph, ops=tuple(map(allowed, graph.ops)))


def _all_with_tf32(attention: LowerableGraph) -> LowerableGraph:
    kinds = [
        replace(kind, forms={name: _with_tf32(form) for name, form in kind.forms.items()}) for kind in attention.kinds
    ]
    return replace(attention, traced=_with_tf32(attention.traced), kinds=tuple(kinds))


def _attending(traced: Graph, backends: Backends) -> tuple[Graph, LowerableGraph | None]:
    """A traced graph with the kernels that its attention takes in its dtype now."""
    try:
        from memwall.frontend.torch.dispatch.attention_kinds import lowered
    except ImportError:
        raise MissingError("torch says which attention kernels run in another dtype: pip install torch") from None
    found: tuple[Graph, LowerableGraph | None] = lowered(traced, backends)
    return found


def emulations(profile: Profile, schedule: Schedule) -> tuple[str, ...]:
    """One sentence for each dtype of the products that the GPU has no tensor cores for: where they run, and what the
    other 16-bit dtype would take where the GPU has it; and one for products that torch has no kernel for there."""
    gpu, flops = schedule.gpu, product_flops(profile, schedule.graph)
    if gpu.cpu is not None:
        return ()
    asked = sorted(pipe for pipe in flops if is_emulated(gpu, pipe) and flops[pipe] >= NAMED * flops.total())
    return (*(_emulation(profile, schedule, pipe) for pipe in asked), *_ungrouped(profile, schedule))


def _ungrouped(profile: Profile, schedule: Schedule) -> Iterator[str]:
    """That a grouped product is a loop over the groups, for which the host waits (:mod:`memwall.ops.grouped`)."""
    gpu, ops = schedule.gpu, profile.graphs[schedule.graph].ops
    looped = [op for op in ops if "looped" in (op.attributes or ())]
    if not looped:
        return
    text = (
        f"torch has no grouped matmul of {_left_dtype(profile.graphs[schedule.graph], looped[0])} in one kernel for"
        f" {gpu.name}: experts are multiplied one after another, once the host has read how many rows each has"
    )
    captured = schedule.launch in ("graph", "replay")
    yield text + ("; CUDA graphs, as are modeled, cannot hold that." if captured else ".")


def _left_dtype(graph: Graph, op: Op) -> str:
    return graph.values[op.inputs[0]].spec.dtype


def _emulation(profile: Profile, schedule: Schedule, pipe: Pipe) -> str:
    gpu = schedule.gpu
    runs_on = gpu.ceiling_pipe(pipe)
    refused = next((why for dtype, is_refused, why in _REFUSED if dtype == pipe.dtype and is_refused(gpu)), "")
    how = f"{refused} and are modeled" if refused else "run"
    rate = flop_rate(gpu.peak(runs_on), runs_on)
    text = f"{gpu.name} has no {pipe.dtype} tensor cores: matmuls {how} on {runs_on} at {rate}"
    other, option = _OTHER_HALF.get(pipe.dtype, ("", ""))
    if Pipe("tensor", other) not in gpu.peak_flop_per_s:
        return f"{text}."
    time_s = _time_in(profile, schedule, pipe.dtype, other)
    flag = "--autocast" if profile.workload.autocast else "--dtype"
    would = "has them" if time_s is None else f"would take {duration(time_s)}"
    return f"{text}; {other} {would} ({flag} {option})."


def _time_in(profile: Profile, schedule: Schedule, dtype: str, other: str) -> float | None:
    """Seconds of the step with its products in another dtype; None where only a compiler could plan it again, most of
    them have neither, or what its attention runs then is not known."""
    if schedule.policy not in CHEAP or dtype_of(profile, schedule) != dtype:
        return None
    try:
        made = in_dtype(profile, schedule, other)
    except (MissingError, UsageError):
        return None
    return made.schedule(schedule.gpu, schedule.policy, launch=schedule.launch).totals.time_s
