"""Workload → Graph: run one step on tensors without data and record what a CUDA device would run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from memwall.core.errors import MemwallError, NeedsData, UsageError
from memwall.core.graph import Graph
from memwall.frontend.blocks.replay import Replayer
from memwall.frontend.blocks.template import ReplayMismatch
from memwall.frontend.torch.autocast import CudaAutocast
from memwall.frontend.torch.build import build_inputs, build_module, cast
from memwall.frontend.torch.cuda_forms import CudaForms
from memwall.frontend.torch.device import TracedDevice
from memwall.frontend.torch.modules import ModuleCalls
from memwall.frontend.torch.optimizers import fused_everywhere, make_optimizer, settle
from memwall.frontend.torch.recorder import Recorder, UnexpectedCall
from memwall.frontend.torch.tensors import dtype_name, flat_tensors
from memwall.frontend.torch.triton_calls import triton_calls
from memwall.frontend.workload import Workload
from memwall.frontend.workload.blame import blame, user_frame
from memwall.frontend.workload.inputs import SHORT_DTYPES

#: dtypes that a model can be cast to
DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class TraceOptions:
    """How to trace. ``autocast`` and ``dtype`` are names of dtypes; ``attention`` is the SDPA backend."""

    mode: str = "inference"
    dtype: str | None = None
    autocast: str | None = None
    attention: str = "flash"
    real: bool = False
    max_ops: int = 200_000
    replay: bool = True


@dataclass(frozen=True)
class Traced:
    """A graph, and the facts about the workload that the trace found."""

    graph: Graph
    parameters: int
    inputs: tuple[Mapping[str, Any], ...]
    dtype: str
    samples: int | None
    tokens: int | None
    optimizer: str | None
    capture: Mapping[str, Any] = field(default_factory=dict)


class Execution(Protocol):
    """Runs the step by other means than a call, such as through a compiler's capture."""

    @property
    def recorder(self) -> type[Recorder]:
        """What records the step."""
        ...

    def __call__(
        self, step: Callable[..., Any], recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What ``step(*args, **kwargs)`` returns: forward and the workload's own loss."""
        ...


def parse_dtype(name: str) -> torch.dtype:
    """The dtype of a name such as ``bf16``.

    Raises:
        UsageError: no such dtype.
    """
    key = name.lower().removeprefix("torch.")
    key = SHORT_DTYPES.get(key, key)
    if key not in DTYPES:
        raise UsageError(f"no floating dtype named {name!r}; want float32, bfloat16, float16 or float64")
    dtype: torch.dtype = getattr(torch, key)
    return dtype


def trace(
    workload: Workload,
    options: TraceOptions,
    classify: Callable[[str], str],
    warn: Callable[[str], None] = lambda message: None,
    execution: Execution | None = None,
) -> Traced:
    """Trace one step of a workload.

    Args:
        classify: op name → op class.
        warn: called with one-line messages that the user should see.
        execution: runs the step in its own way; modules then go unnamed, and nothing is replayed.

    Raises:
        UsageError: the model or its inputs are at fault; says where.
    """
    with exclusive(), torch.inference_mode(False), inference_mode_as_no_grad(), _seeded(options.real):
        try:
            return _trace(workload, options, classify, warn, execution)
        except (ReplayMismatch, UnexpectedCall):
            return _trace(workload, replace(options, replay=False), classify, warn, execution)


_LOCK = threading.RLock()
_RUNNING: list[bool] = []


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """One trace at a time, as parts of torch are patched for the whole process; another thread waits its turn.

    Raises:
        UsageError: this thread is tracing already.
    """
    with _LOCK:
        if _RUNNING:
            raise UsageError("a trace runs already; traces cannot be nested: end the first, then begin the next")
        _RUNNING.append(True)
        try:
            yield
        finally:
            _RUNNING.clear()


@contextlib.contextmanager
def _seeded(real: bool) -> Iterator[None]:
    """Real tensors get the same random data in every trace, so that the same branches are taken."""
    if not real:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@contextlib.contextmanager
def inference_mode_as_no_grad() -> Iterator[None]:
    """Inference mode skips the autograd keys, under which composite ops split into the kernels that run."""
    kind = torch.inference_mode
    original = kind.__enter__

    def enter(self: Any) -> None:
        self._inference_mode_context = torch.no_grad() if self.mode else contextlib.nullcontext()
        self._inference_mode_context.__enter__()

    kind.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.__enter__ = original  # type: ignore[method-assign]


def _trace(
    workload: Workload, options: TraceOptions, classify: Callable[[str], str], warn: Callable[[str], None],
    execution: Execution | None,
) -> Traced:  # fmt: skip
    device = "cpu" if options.real else "meta"
    training = options.mode == "training"
    autocast_dtype = None if options.autocast is None else parse_dtype(options.autocast)
    module = build_module(workload.model, device, warn)
    args, kwargs = build_inputs(workload.inputs, device, warn)
    if options.dtype is not None:
        module, args, kwargs = cast(module, args, kwargs, parse_dtype(options.dtype))
    module.train(training)

    recorder_type = Recorder if execution is None else execution.recorder
    recorder = recorder_type(classify, device=device, max_ops=options.max_ops, warn=warn)
    parameters = _register(recorder, module, args, kwargs)
    autocast = CudaAutocast()
    replays = options.replay and not options.real and execution is None
    replayer = Replayer(module, recorder, autocast) if replays else None
    calls: Any = contextlib.nullcontext()  # naming them would hide them from another execution
    if execution is None:
        calls = ModuleCalls(module, recorder, None if replayer is None else replayer.call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(fused_everywhere("meta"))
        optimizer = _optimizer(workload, parameters, recorder) if training else None
        stack.enter_context(CudaForms(recorder, options.attention))
        stack.enter_context(triton_calls(recorder))
        stack.enter_context(torch.set_grad_enabled(training))
        with _blaming("running the model"), calls, TracedDevice(device), recorder, autocast:
            with autocast.region(autocast_dtype):
                step = forward_step(module, workload.loss if training else None)
                output = step(*args, **kwargs) if execution is None else execution(step, recorder, args, kwargs)
                result = scalar_loss(workload, output) if training else output
            if replayer is not None:
                replayer.check()
            if training:
                recorder.phase = "backward"
                backward(result)
        if training:
            _mark_gradients(recorder, module, args, kwargs)
        if optimizer is not None:
            recorder.phase = "optimizer"
            recorder.modules.path = "optimizer"
            with _blaming("the optimizer step"), recorder:
                optimizer.step()
    tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, torch.Tensor)]
    outputs = [t for t in _tensors_in(result) if t.device.type == device]
    if any(recorder.knows(t) is None for t in outputs):
        warn("no recorded op wrote an output of the model: work in another thread is not seen, nor are unset tensors")
    graph = recorder.graph(
        [recorder.value(t) for t in tensors],
        [recorder.value(p) for p in parameters],
        dict.fromkeys(recorder.value(t) for t in outputs),
        options.attention,
    )
    samples, tokens = _counts(tensors)
    return Traced(
        graph=graph,
        parameters=sum(p.numel() for p in parameters),
        inputs=tuple({"shape": list(t.shape), "dtype": dtype_name(t.dtype)} for t in tensors),
        dtype=_dominant_dtype(parameters, tensors),
        samples=samples,
        tokens=tokens,
        optimizer=type(optimizer).__name__ if optimizer is not None else None,
        capture={"replayed_blocks": len(replayer.instances) if replayer else 0, "real": options.real},
    )


def _register(recorder: Recorder, module: nn.Module, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Number the storages that exist before the step, by role; returns the parameters."""
    parameters: list[torch.Tensor] = []
    for name, parameter in module.named_parameters():
        recorder.storage(parameter, "parameter", name)
        recorder.own(parameter, name.rpartition(".")[0])
        parameters.append(parameter)
    for name, buffer in module.named_buffers():
        recorder.storage(buffer, "buffer", name)
    for index, item in enumerate(tree_flatten((args, kwargs))[0]):
        if isinstance(item, torch.Tensor):
            recorder.storage(item, "input", f"input{index}")
    return parameters


def _optimizer(workload: Workload, parameters: list[torch.Tensor], recorder: Recorder) -> torch.optim.Optimizer | None:
    trainable = [p for p in parameters if p.requires_grad]
    with _blaming("making the optimizer"):
        optimizer = make_optimizer(workload.optimizer, trainable)
        if optimizer is None:
            return None
        with recorder, recorder.unrecorded():
            settle(optimizer)
    names = {id(p): recorder.storages[recorder.storage(p)].name for p in parameters}
    for parameter, state in optimizer.state.items():
        for key, item in state.items():
            if isinstance(item, torch.Tensor) and item.device.type == recorder.device:
                recorder.storage(item, "optimizer_state", f"{names.get(id(parameter), '')}.{key}")
    return optimizer


def forward_step(module: Callable[..., Any], loss: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """Forward, followed by the workload's own loss if there is one."""
    if loss is None:
        return module

    def step(*args: Any, **kwargs: Any) -> Any:
        return loss(module(*args, **kwargs))

    return step


def scalar_loss(workload: Workload, output: Any) -> torch.Tensor:
    """The scalar to differentiate: what the workload's loss gave, else the output's ``.loss``, else the sum of its
    floating tensors."""
    loss: Any = None
    if workload.loss is not None:
        loss = output
    else:
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, Mapping):
            loss = output.get("loss")
        if loss is None:
            floating = [t for t in _tensors_in(output) if t.is_floating_point() and t.requires_grad]
            if not floating:
                raise UsageError(
                    "training needs a loss: no output of the model is a floating tensor that depends on a parameter"
                )
            loss = floating[0].sum()
            for tensor in floating[1:]:
                loss = loss + tensor.sum()
    if not isinstance(loss, torch.Tensor):
        raise UsageError(f"the loss is a {type(loss).__name__}; want a tensor")
    if not loss.requires_grad:
        raise UsageError("the loss depends on no parameter, so there is nothing to train")
    return loss


def backward(loss: torch.Tensor) -> None:
    """Gradients of a loss, summed over its elements."""
    loss.backward(None if loss.numel() == 1 else torch.ones_like(loss))


def _tensors_in(output: Any) -> list[torch.Tensor]:
    if is_dataclass(output) and not isinstance(output, (type, Mapping)):
        output = vars(output)
    return [t for t in tree_flatten(output)[0] if isinstance(t, torch.Tensor)]


def _mark_gradients(recorder: Recorder, module: nn.Module, args: Any, kwargs: Any) -> None:
    """The gradients that the step leaves behind: those of parameters, and of inputs that require one."""
    inputs = ((f"input{i}", item) for i, item in enumerate(tree_flatten((args, kwargs))[0]))
    for name, tensor in (*module.named_parameters(), *inputs):
        if isinstance(tensor, torch.Tensor) and tensor.is_leaf:
            for part in flat_tensors(tensor.grad):
                recorder.set_role(part, "gradient", name)


def _dominant_dtype(parameters: list[torch.Tensor], inputs: list[torch.Tensor]) -> str:
    """The floating dtype of most parameters, else of the inputs."""
    for tensors in (parameters, inputs):
        total: dict[str, int] = {}
        for tensor in tensors:
            if tensor.is_floating_point():
                name = dtype_name(tensor.dtype)
                total[name] = total.get(name, 0) + tensor.numel()
        if total:
            return max(total, key=lambda name: total[name])
    return "float32"


def _counts(inputs: list[torch.Tensor]) -> tuple[int | None, int | None]:
    """Samples and tokens per step: the first axis of the first input, and its size where it holds ids."""
    for tensor in inputs:
        if tensor.dim():
            ids = not tensor.is_floating_point() and tensor.dim() == 2
            return int(tensor.shape[0]), tensor.numel() if ids else None
    return None, None


_HOST = "a tensor of the host (a global, or torch.tensor([...]) without a device) meets the device's"

#: What a tensor without data cannot do: part of torch's message → what the model asked for.
_NEEDS_DATA = (
    ("cannot be called on meta tensors", "a tensor's value (.item(), int(), float() or `if tensor:`)"),
    ("torch.nonzero()", "which elements are nonzero (a boolean mask as index, nonzero() or one-argument where())"),
    ("Cannot copy out of meta tensor", "a tensor's data on the host (.tolist(), .cpu(), .numpy() or print)"),
    ("convert meta device type tensor to numpy", "a tensor's data on the host (.numpy())"),
    ("'SparseMeta' backend", "an op on a sparse tensor that has no shape function"),
    ("'Meta' backend", "an op whose output shape depends on data, or that has no shape function"),
    ("on the meta device", "an op whose output shape depends on data"),
    ("a meta tensor", "the data of a tensor"),
    ("is not on the expected device meta", _HOST),
    ("with Meta tensors", "an op that has no shape function"),
)


@contextlib.contextmanager
def _blaming(doing: str) -> Any:
    """Turn an exception of the user's code into one line that names the user's line."""
    try:
        yield
    except (MemwallError, ReplayMismatch, UnexpectedCall):
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        wanted = next((text for part, text in _NEEDS_DATA if part in str(error)), None)
        if wanted is None:
            raise blame(error, doing) from error
        at = user_frame(error)
        where = f" (at {at})" if at else ""
        if wanted is _HOST:
            raise UsageError(f"{doing}: {_HOST}{where}; give it device=x.device, or register it as a buffer") from error
        who = "the model's Python" if doing == "running the model" else doing
        raise NeedsData(
            f"{who} needs {wanted}, and a trace has no data{where}; "
            "rewrite it without (torch.where, a mask multiplied in), or trace real tensors with --real"
        ) from error


__all__ = ["TraceOptions", "Traced", "parse_dtype", "trace"]
