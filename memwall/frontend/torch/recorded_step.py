"""A step that is traced: its module and inputs on the traced device, and what records and runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from memwall.core.errors import NeedsData
from memwall.core.graph import SERVING, Graph
from memwall.frontend.blocks.replay import Replayer
from memwall.frontend.facts import Pipeline, TraceFacts, noted
from memwall.frontend.program import TraceOptions, TraceResult, described
from memwall.frontend.targets import Workload
from memwall.frontend.targets.contract import parameters_of
from memwall.frontend.targets.launching import Launching
from memwall.frontend.targets.seeds import seed_all
from memwall.frontend.torch.build import (
    Inputs,
    build_inputs,
    build_module,
    fused_everywhere,
    iterations,
    make_optimizer,
    settle,
    take_step,
)
from memwall.frontend.torch.dispatch.attention_kinds import lowered
from memwall.frontend.torch.dispatch.autocast import CudaAutocast
from memwall.frontend.torch.dispatch.cuda_forms import CudaForms
from memwall.frontend.torch.dispatch.higher_order import plain_forms
from memwall.frontend.torch.dispatch.library_answers import library_answers
from memwall.frontend.torch.dispatch.offload import offloading
from memwall.frontend.torch.dispatch.origin import module_calls, module_names
from memwall.frontend.torch.dispatch.real_kernels import real_kernels
from memwall.frontend.torch.dispatch.recorder import Recorder
from memwall.frontend.torch.dispatch.scans import few_steps
from memwall.frontend.torch.dispatch.shapes import SparseCopies
from memwall.frontend.torch.dispatch.state_kernels import state_kernels
from memwall.frontend.torch.dispatch.tensors import dtype_name, flat_tensors, is_wrapper, plain_parts
from memwall.frontend.torch.dispatch.triton_calls import triton_calls
from memwall.frontend.torch.losses import backward, forward_step, scalar_loss, tensors_in
from memwall.frontend.torch.options import parse_dtype
from memwall.frontend.torch.process.caches import empty_caches
from memwall.frontend.torch.process.copies import COMPILED, is_lazy, shaping
from memwall.frontend.torch.process.device import TracedDevice
from memwall.frontend.torch.process.failures import blaming
from memwall.frontend.torch.process.settings import saved_by_autograd
from memwall.frontend.torch.ranks.data_parallel import buckets_of, settle_shards, sharding, waits_for_ranks
from memwall.frontend.torch.ranks.distributed import one_rank, this_rank, unexchanged
from memwall.frontend.torch.ranks.dtensors import alike_once, deriving_shapes
from memwall.frontend.torch.ranks.flat_shards import whole_elements
from memwall.frontend.torch.ranks.pipelines import pipelined
from memwall.frontend.torch.values.assumptions import Assumptions, read_assumptions
from memwall.frontend.torch.values.carrying import Carrying
from memwall.frontend.torch.values.draws import Draws
from memwall.frontend.torch.values.held import settle_state, storages_held
from memwall.frontend.torch.values.known import KnownValues
from memwall.frontend.torch.values.kv_caches import cached_tensors
from memwall.ops.libraries import library_notes

#: (step, recorder, args, kwargs) -> what ``step(*args, **kwargs)`` returns: forward and the workload's own loss
Execute = Callable[[Callable[..., Any], Recorder, tuple[Any, ...], dict[str, Any]], Any]


class RecordedStep:
    """One step of a workload; :meth:`traced` runs it, once."""

    def __init__(
        self,
        workload: Workload,
        options: TraceOptions,
        warn: Callable[[str], None],
        execute: Execute | None,
        recorder: type[Recorder],
    ) -> None:
        self.workload, self.options, self.warn, self.execute = workload, options, warn, execute
        self.device = "cpu" if options.real else "meta"
        self.training = options.mode == "training"
        self.gradients = self.training or options.gradients
        self.saved: list[torch.Tensor] = []  # by autograd, for a backward pass that is not part of the step
        self.saves = options.mode == "forward" and self.gradients
        self.assumed: list[str] = []
        self.replayer: Replayer | None = None
        self.pipeline: list[Pipeline] = []  # one, where a schedule runs
        self.autocast_dtype = None if options.autocast is None else parse_dtype(options.autocast)
        dtype = None if options.dtype is None else parse_dtype(options.dtype)
        self.known = None if options.real else KnownValues()
        with SparseCopies():
            self.module, self.hidden, self.left_out = build_module(workload.model, self.device, warn, self.known)
            names = list(parameters_of(self.module.forward))
            self.given = build_inputs(workload.inputs, self.device, warn, dtype, self.known, names)
        with contextlib.nullcontext() if self.known is None else Carrying(self.known):
            if dtype is not None:
                with SparseCopies():
                    self.module.to(dtype)
            with TracedDevice(self.device, known=self.known):
                if options.mode != "forward":
                    self._set_mode()
        self.compiled = options.compiled or COMPILED in self.left_out
        settle_shards(self.module)
        self.recorder = recorder(device=self.device, max_ops=options.max_ops, warn=warn, known=self.known)
        if is_lazy(self.module):
            self._give_shapes(recorder)
        if workload.advance is not None:
            self.given = self._advance(recorder)
        self._assume(self.recorder)
        self.parameters = _register(self.recorder, self.module, self.hidden, self.given)
        self.held = storages_held(self.recorder, *self.given[:2], self.module)
        self.autocast = CudaAutocast(self.options.attention.torch)
        waits = waits_for_ranks(self.module, self.training)
        replays = options.replay and not (options.real or execute or waits or self.saves)
        self.replayer = Replayer(self.module, self.recorder, self.autocast) if replays else None

    def _set_mode(self) -> None:
        """Call ``train()`` or ``eval()``; where a model's own does more that needs data, set the flags and say so."""
        try:
            with blaming("setting the mode of the model"):
                self.module.train(self.training)
        except NeedsData:
            for module in self.module.modules():
                module.training = self.training
            called = "train()" if self.training else "eval()"
            self.assumed.append(f"the model's own {called} only sets flags, as what else it does needs data")

    def _assume(self, recorder: Recorder) -> None:
        if self.known is not None:
            self.known.assumptions = Assumptions(read_assumptions(self.options.assume), recorder.place)

    def _give_shapes(self, make: type[Recorder]) -> None:
        """Make the parameters of lazy modules, which take their shapes from a first call: of a copy, with copies
        of the inputs, so that nothing else is left of it."""
        copied = build_module(self.module, self.device, self.warn, self.known).module
        given = build_inputs(self.given.kwargs or self.given.args, self.device, self.warn, None, self.known)
        with shaping(self.module, copied):
            self._first_call(make, copied, given, "the first call, which gives lazy modules their shapes")
        if self.known is not None:
            self.known.forget(self.module.parameters())

    def _advance(self, make: type[Recorder]) -> Inputs:
        """The inputs of a step that follows a first call, which is no part of it."""
        assert self.workload.advance is not None
        output = self._first_call(make, self.module, self.given, "the call before the step")
        advance = self.workload.advance
        return build_inputs(lambda: advance(output, self.given.kwargs), self.device, self.warn, None, self.known)

    def _first_call(self, make: type[Recorder], module: nn.Module, given: Inputs, what: str) -> Any:
        """The output of a call that is not recorded."""
        unseen = lambda said: None  # noqa: E731
        recorder = make(device=self.device, max_ops=self.options.max_ops, warn=unseen, known=self.known)
        self._assume(recorder)
        seed_all()
        autocast, device = (
            CudaAutocast(self.options.attention.torch),
            TracedDevice(self.device, known=self.known, note=unseen),
        )
        if self.known is not None:
            draws, self.known.draws = self.known.draws, Draws()
        with (
            empty_caches(),
            self._stand_ins(recorder, unseen, unseen),
            few_steps(),
            blaming(what, self.gradients),
            device,
            recorder,
            autocast,
            autocast.region(self.autocast_dtype),
        ):
            output = module(*given.args, **given.kwargs)
        if self.known is not None:
            self.known.draws = draws
        return output

    @contextlib.contextmanager
    def _stand_ins(
        self, recorder: Recorder, note: Callable[[str], None], warn: Callable[[str], None]
    ) -> Iterator[None]:
        """While open, what a trace cannot run has what it runs in its stead."""
        replays = self.replayer is not None and bool(self.replayer.structures.repeated)
        with (
            library_answers(recorder.unrecorded, note, self.known),
            CudaForms(recorder, self.options.attention, self.execute is not None, note),
            real_kernels() if self.options.real else contextlib.nullcontext(),
            state_kernels(recorder, note),
            plain_forms(warn, None if self.execute else recorder, note, self.compiled),
            triton_calls(recorder, note, self.options.gpu),
            offloading(recorder, note),
            sharding(self.module, recorder.release),
            recorder.streams.running(),
            pipelined(self.pipeline, recorder, replays),
            deriving_shapes(recorder),
            torch.set_grad_enabled(self.gradients),
        ):
            yield

    def traced(self) -> TraceResult:
        """Run the step; what was recorded."""
        with fused_everywhere("meta"), alike_once():
            optimizer = _optimizer(self.workload, self.parameters, self.recorder) if self.training else None
            with self._stand_ins(self.recorder, self.assumed.append, self.warn):
                result = self._run(optimizer)
                graph = self._graph(result)
                graph, attention = lowered(graph, self.options.attention, forms_open=self.device == "meta")
        notes = (note if isinstance(note, str) else note(self.module) for note in self.workload.notes)
        unused = list(self.options.assume)
        if self.known is not None and self.known.assumptions is not None:
            self.assumed += self.known.assumptions.lines()
            unused = self.known.assumptions.unused()
        said = [f"--assume {text} changes nothing: no call that is traced asks for it" for text in unused]
        said += getattr(self.known, "said", ())
        alike = not self.pipeline and not any(is_wrapper(type(parameter)) for parameter in self.parameters)
        ranks = one_rank(graph), unexchanged(graph) if self.training and alike else ""
        also = filter(None, [*library_notes(graph), _searched(graph), *ranks, iterations(optimizer), *said])
        facts = TraceFacts(
            torch=self.options.attention.torch.name,
            replayed_blocks=len(self.replayer.instances) if self.replayer else 0,
            real=self.options.real,
            job=this_rank(),
            pipeline=next(iter(self.pipeline), None),
            serving=self.workload.serving if self.options.mode in SERVING else None,
            notes=noted((*filter(None, notes), *self.left_out, *also), self.assumed),
        )
        first, tokens = _counts(self.given.tensors.values())
        known = self.workload.samples
        traced = described(
            graph,
            [(dtype_name(each.dtype), each.numel()) for each in self.parameters],
            name=self.workload.name,
            target=self.workload.target,
            mode=self.options.mode,
            parameters=whole_elements(self.module, self.parameters),
            samples=known or first,
            tokens=tokens,
            optimizer=type(optimizer).__name__ if optimizer else None,
            autocast=self.options.autocast,
            samples_assumed=not known and first is not None,
        )
        return TraceResult(graph, traced, facts, attention)

    def _graph(self, result: Any) -> Graph:
        """What was recorded."""
        recorder = self.recorder
        recorder.forget_unused(part for tensor in self.hidden.values() for part in plain_parts(tensor))
        made = [part for tensor in tensors_in(result) for part in plain_parts(tensor)]
        outputs = [t for t in made if t.device.type == self.device]
        outputs += self._keep_caches(result)
        if any(recorder.knows(t) is None for t in outputs):
            self.warn(
                "no recorded op wrote an output of the model: work in another thread is not seen, nor are unset tensors"
            )
        given = (self.given.tensors.values(), self.parameters)
        inputs, parameters = ([recorder.value(part) for t in ts for part in plain_parts(t)] for ts in given)
        saved = () if self.pipeline else self.saved  # a schedule has gone backward
        outputs += [part for tensor in saved for part in plain_parts(tensor) if recorder.knows(part) is not None]
        kept = [recorder.value(t) for t in outputs]
        if isinstance(self.module, Launching):  # kernels are launched for what they write
            kept += [i for op in recorder.ops if op.name.startswith("triton.") for i in op.outputs]
        kept += settle_state(recorder, self.held, storages_held(recorder, result, *self.given[:2], self.module))
        graph = recorder.graph(inputs, parameters, dict.fromkeys(kept), self.options.attention.label)
        return replace(graph, gradients=self.gradients)

    def _keep_caches(self, result: Any) -> list[torch.Tensor]:
        """What the caches hold after the step, which is there for the next one: results of the step get that role."""
        found = []
        for path, tensor in cached_tensors(self.given.by_name, result):
            for part in plain_parts(tensor):
                number = self.recorder.knows(part) if part.device.type == self.device else None
                if number is not None:
                    found.append(part)
                    if self.recorder.storages[self.recorder.storage(part)].role == "activation":
                        self.recorder.set_role(part, "kv_made", path)
        return found

    def _run(self, optimizer: torch.optim.Optimizer | None) -> Any:
        """Forward, backward and the optimizer's step under the recorder; the loss, or in inference the output."""
        recorder, replayer = self.recorder, self.replayer
        seed_all()  # what forward draws on the host, as layers to drop, is the same in every trace
        if self.known is not None:
            self.known.draws = Draws()  # whatever building has drawn
        names = module_names(self.module)
        calls: Any = contextlib.nullcontext()  # naming them would hide them from another execution
        if self.execute is None:
            calls = module_calls(recorder.modules, lambda m: names.get(id(m)), replayer.call if replayer else None)
        assumptions = self.known.assumptions if self.known is not None else None
        saving = saved_by_autograd(self.saved) if self.saves else contextlib.nullcontext()
        doing = blaming("running the model", self.gradients, assumptions.used if assumptions is not None else str)
        device = TracedDevice(self.device, known=self.known, note=self.assumed.append)
        with doing, calls, device, recorder, self.autocast:
            with self.autocast.region(self.autocast_dtype), saving:
                step = forward_step(self.module, self.workload.loss if self.training else None)
                args, kwargs = self.given.args, self.given.kwargs
                result = step(*args, **kwargs) if self.execute is None else self.execute(step, recorder, args, kwargs)
                if self.training and not self.pipeline:  # whose schedule goes backward itself
                    result = scalar_loss(self.workload, result)
            if replayer is not None:
                replayer.check()
            if self.training and not self.pipeline:
                recorder.phase = "backward"
                backward(result)
        if self.gradients:
            self._mark_gradients()
        if optimizer is not None:
            recorder.phase = "optimizer"
            recorder.modules.path = "optimizer"
            with blaming("the optimizer step"):
                take_step(optimizer, result, recorder)
        return result

    def _mark_gradients(self) -> None:
        """The gradients that the step leaves behind: of parameters, and of inputs that require one; and the
        buckets that they are sent in, if they are no parts of these."""
        for name, bucket in buckets_of(self.module):
            self.recorder.set_role(bucket, "buffer", name)
        for name, tensor in (*self.module.named_parameters(), *self.given.tensors.items()):
            if tensor.is_leaf:
                for part in flat_tensors([] if tensor.grad is None else plain_parts(tensor.grad)):
                    self.recorder.set_role(part, "gradient", name)


def _register(
    recorder: Recorder, module: nn.Module, hidden: Mapping[str, torch.Tensor], given: Inputs
) -> list[torch.Tensor]:
    """Number the storages that exist before the step, by role; returns the parameters."""
    parameters: list[torch.Tensor] = []
    for name, parameter in module.named_parameters():
        for part in plain_parts(parameter):
            recorder.storage(part, "parameter", name)
        recorder.own(parameter, name.rpartition(".")[0])
        parameters.append(parameter)
    for name, buffer in (*module.named_buffers(), *hidden.items()):
        for part in plain_parts(buffer):
            recorder.storage(part, "buffer", name)
    for name, item in given.tensors.items():
        for part in plain_parts(item):
            recorder.storage(part, "kv_cache" if name in given.cached else "input", name)
    return parameters


def _searched(graph: Graph) -> str:
    """That convolutions are what cuDNN's search finds, where a setting asks for it."""
    if not any(op.attributes.get("benchmark") for op in graph.ops):
        return ""
    return "cuDNN takes the fastest of its kernels for each convolution (torch.backends.cudnn.benchmark)"


def _optimizer(workload: Workload, parameters: list[torch.Tensor], recorder: Recorder) -> torch.optim.Optimizer | None:
    trainable = [p for p in parameters if p.requires_grad]
    with blaming("making the optimizer"):
        optimizer = make_optimizer(workload.optimizer, trainable)
        if optimizer is None:
            return None
        known, recorder.known = recorder.known, None  # no value of a state matters
        with recorder.unrecorded():
            settle(optimizer, recorder)
        recorder.known = known
    names = {id(p): recorder.storages[recorder.storage(plain_parts(p)[0])].name for p in parameters}
    for parameter, state in optimizer.state.items():
        for key, item in state.items():
            for part in (part for tensor in flat_tensors(item) for part in plain_parts(tensor)):
                if part.device.type == recorder.device:
                    recorder.storage(part, "optimizer_state", f"{names.get(id(parameter), '')}.{key}")
    return optimizer


def _counts(inputs: Iterable[torch.Tensor]) -> tuple[int | None, int | None]:
    """The first axis of the first input, which may be samples, and its size where it holds ids: tokens."""
    for tensor in inputs:
        if tensor.dim():
            ids = not tensor.is_floating_point() and tensor.dim() == 2
            return int(tensor.shape[0]), tensor.numel() if ids else None
    return None, None
