"""The wiring: target → workload → graph → costs → plans → schedules → profile. The first file to read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from memwall.conflicts import applying_policies, check_step, refuse_options_of_torch
from memwall.core.errors import UsageError
from memwall.core.files import uncollected
from memwall.core.progress import heard, tell
from memwall.core.question import completed, signature_of
from memwall.frontend.hlo.sheet import HloArgument
from memwall.frontend.program import Program, TraceOptions, TraceResult
from memwall.frontend.targets.seeds import seeded
from memwall.fusion import check_policies
from memwall.fusion.policies import COMPILING
from memwall.hardware.chips import chip_of
from memwall.hardware.cluster import gpu_of, joined
from memwall.hardware.host import STATED, Host, default_host, load_host
from memwall.hardware.links import Cluster
from memwall.hardware.lookup import Gpu, load_gpus, stated, with_nearest_constants
from memwall.hardware.torch_versions import BACKENDS, FLASH, torch_version
from memwall.ops import graph_costs
from memwall.ops.sdpa import GENERATIONS, Backends
from memwall.record.profile import Profile
from memwall.record.traced import Traced
from memwall.step import Step
from memwall.subjects import subject_of
from memwall.wings import part

if TYPE_CHECKING:
    from torch import nn

    from memwall.frontend.targets import Workload

Names = str | Gpu | Iterable[str | Gpu]


@heard
@signature_of(Step)
def profile(
    module_or_target: nn.Module | Workload | Program | str | Path,
    inputs: Any = None,
    *,
    gpu: Names | None = None,
    policy: str | Iterable[str] = "eager",
    loss: Callable[[Any], Any] | None = None,
    progress: Callable[[str], None] | None = None,
    **step: Unpack[Step],
) -> Profile:
    """Trace a model without a GPU and without weights, and model its time on one or more GPUs.

    Args:
        module_or_target: an ``nn.Module`` (on any device, meta included; it is not changed), a ``Workload``, or a
            target as on the command line: ``model.py``, ``model.py:name``, ``package.module:name``, ``hf:DIR``.
        inputs: what the module is called with: a tuple (positional) or a dict (keywords) of tensors on any device.
        gpu: names, specs or paths to specs; one or a list. None: the cluster's, else ``h100-sxm``.
        policy: how ops are grouped into kernels, one or a list: ``eager`` launches each alone, ``memwall`` fuses what
            its planner finds legal and faster, ``inductor`` what torch.compile would fuse on that GPU (needs Triton),
            ``xla`` what XLA compiles a JAX program to (needs its compiler), ``ideal`` moves only what no fusion can
            avoid.
        loss: output → scalar; None takes the target's own, else the output's ``.loss``, else the sum of its floats.
        progress: called with one-line messages.

    Raises:
        UsageError: the model, its inputs or an option is wrong.
        MissingError: an optional dependency is missing.
    """

    def subject(asked: Step, gpu: Gpu) -> Workload | Program:
        return subject_of(module_or_target, asked, gpu, inputs, loss)

    return _made(subject, gpu, policy_names(policy), completed(Step, step))


def profile_beside(target: str | Path, gpu: Names | None, policy: Iterable[str], step: Any) -> Profile:
    """As :func:`profile`, of one of several targets that stand side by side: policies that are of other programs are
    left out. Raises ``UsageError``: none is left, or as there."""

    def subject(asked: Step, gpu: Gpu) -> Workload | Program:
        return subject_of(target, asked, gpu)

    return _made(subject, gpu, policy_names(policy), completed(Step, step), beside=True)


def _made(
    subject: Callable[[Step, Gpu], Workload | Program],
    gpu: Names | None,
    policies: Sequence[str],
    asked: Step,
    *,
    beside: bool = False,
) -> Profile:
    gpus = joined(asked_gpus(gpu or gpu_of(asked["cluster"]), asked["host"]), asked["cluster"], asked["world"])
    check_step(asked, gpus)
    check_policies(policies, gpus)
    with uncollected(), seeded(), started(asked["world"], asked["rank"], gpus[0]):
        workload = subject(asked, gpus[0])
        policies = applying_policies(policies, isinstance(workload, Program), workload.name, beside=beside)
        tell(f"tracing {workload.name}")
        compiled = set(policies) == {"inductor"}
        options = replace(_trace_options(asked, gpus[0]), compiled=compiled)
        traced = _traced(workload, asked, options)
        result = profile_of(traced)
        if isinstance(workload, Program):
            result = replace(result, program=cache(partial(workload.exported, options)))
        result = _with_other_kernels(_alone(result, asked["world"]).on(gpus), asked["attention"])
        if doubt := of_another_gpu(result, gpus):
            tell(doubt)
        if asked["strict"] and result.coverage.unmodeled:
            raise UsageError(f"--strict: no formula models {', '.join(result.coverage.unmodeled)}")
        tell(f"simulating {len(result.graph.ops):,} ops on {', '.join(g.name for g in gpus)}")
        return _simulated(result, gpus, policies, asked["cuda_graph"])


def _trace_options(asked: Step, gpu: Gpu) -> TraceOptions:
    """How a step is traced for a GPU."""
    assume, attention = asked["assume"], asked["attention"]
    return TraceOptions(
        mode=asked["mode"],
        dtype=asked["dtype"],
        autocast=asked["autocast"],
        attention=Backends(chip_of(gpu), torch_version(asked["torch"]), attention.removeprefix("auto")),
        real=asked["real"],
        max_ops=asked["max_ops"],
        replay=asked["replay"],
        gpu=gpu,
        gradients=asked["mode"] == "forward" and not asked["no_grad"],
        assume=(assume,) if isinstance(assume, str) else tuple(assume),
    )


def _traced(subject: Workload | Program, asked: Step, options: TraceOptions) -> TraceResult:
    """The trace of a torch workload, or of a program by its own front end."""
    if isinstance(subject, Program):
        refuse_options_of_torch(subject, asked)
        return subject.traced(options)
    from memwall.frontend.torch import trace

    return trace(subject, options, tell)


def _alone(made: Profile, world: int | None) -> Profile:
    """The profile, with a note where it is of a program of several ranks that makes no process group."""
    if (world or 1) == 1 or made.traced.job or not made.of_torch:
        return made
    return made.noted(
        f"the program makes no process group: this is the step of one GPU, not of {world:,}; --parallel dp={world}"
        " puts a model on so many"
    )


def of_another_gpu(made: Profile, gpus: Sequence[Gpu]) -> str:
    """What to say where a graph depends on the answers of a GPU that is not among these alone; else empty."""
    known = made.traced.asked_gpu
    if known is None or all(gpu.name == known.gpu for gpu in gpus):
        return ""
    names = ", ".join(known.asked)
    return f"the model asks what depends on the GPU ({names}), and {known.gpu} answered: profile each other GPU alone"


def _with_other_kernels(made: Profile, attention: str) -> Profile:
    """The profile, with a note where calls do not run in the attention kernel that was asked for."""
    others = {name for graph in made.graphs for name in graph.backends if name in (*BACKENDS, *FLASH)} - {attention}
    if attention == "auto" or not others:
        return made
    return made.noted(
        f"attention in {' and '.join(sorted(others))} kernels: torch's {attention} kernel does not take the dtype,"
        " head size or mask of those calls, or the model excludes it"
    )


def _simulated(traced: Profile, gpus: Sequence[Gpu], policies: Sequence[str], cuda_graph: bool) -> Profile:
    """The profile on some GPUs under some policies. Raises ``UsageError``: a policy is PyTorch's, and the profile is of
    another program, or the other way round."""
    applying_policies(policies, not traced.of_torch, traced.workload.name)
    launch = "graph" if cuda_graph else "eager"
    if cuda_graph and all(policy in COMPILING or gpu.tpu for policy in policies for gpu in gpus):
        raise UsageError("--cuda-graph changes nothing here: policy xla runs one program, and a TPU waits for no host")
    for policy in COMPILING.intersection(policies):
        for gpu in gpus:
            if (policy, gpu.name) not in traced.own_plans:
                traced = _compiled(traced, policy, gpu)
    runs = [(policy, gpu) for policy in policies for gpu in gpus]
    made = tuple(traced.schedule(gpu, policy, launch=launch) for policy, gpu in runs)
    if not all(policy in COMPILING for policy in policies) and any(map(traced.is_share, made)):
        raise UsageError(
            f"{traced.workload.name} is a program of several devices: policy xla shows what one of them does, and every"
            " other policy the whole program on one; profile it under the one or the others"
        )
    return traced.with_simulations(made)


def _compiled(made: Profile, policy: str, gpu: Gpu) -> Profile:
    """The profile with what a compiler makes of its program for a GPU. Raises ``UsageError``: a record has none."""
    if made.program is None:
        raise UsageError(
            f"policy {policy} compiles the program itself, and the record of {made.workload.name} has none: name the"
            " program"
        )
    held = (storage for storage in made.graph.storages if storage.is_persistent)
    known = [HloArgument(storage.role, storage.name, storage.nbytes) for storage in held]
    found = part(f"{policy}.compiled")(made.program, gpu, known)
    return made.with_plan(gpu, found.graph, found.costs, found.plan).noted_once(*found.notes)


def profile_of(traced: TraceResult) -> Profile:
    """The profile of what was traced, on no GPU yet."""
    versions = dict(traced.versions)
    if not versions:
        import torch

        versions = {"torch": torch.__version__.partition("+")[0]}
    return Profile(
        workload=traced.workload,
        graphs=(traced.graph,),
        costs=(graph_costs(traced.graph),),
        traced=Traced(**vars(traced.facts)),
        environment=versions,
        attention=traced.attention,
    )


def resimulate(
    saved: Profile,
    gpu: Names,
    policy: str | Iterable[str] = "eager",
    *,
    cuda_graph: bool = False,
    host: str | Path | Host | None = None,
    cluster: str | Path | Cluster | None = None,
) -> Profile:
    """A saved profile on other GPUs; needs neither torch nor the model. ``cuda_graph``, ``host`` and
    ``cluster`` as for :func:`profile`; the host is the profile's own where none is named.

    Attention runs in the kernels of each GPU. A record of an older memwall holds only the kernels of the GPUs that it
    was made for; :meth:`Profile.doubts` says where that matters.
    """
    gpus = joined(asked_gpus(gpu, host, saved), cluster)  # the GPUs of an older record state no constants
    known = [gpu if gpu.utilization or gpu.cpu else with_nearest_constants(gpu, stated()) for gpu in gpus]
    return _simulated(saved.on(known), known, policy_names(policy), cuda_graph)


def with_capture(made: Profile, workload: Workload, options: Mapping[str, Any], others: Sequence[Any] = ()) -> Profile:
    """The profile with what TorchDynamo makes of its workload: where the graph breaks.

    Args:
        options: the options it was traced with, as for :func:`profile`; others are ignored.
        others: inputs of further calls, as a workload holds them.
    """
    keys = ("mode", "dtype", "autocast", "real", "max_ops", "assume")
    given = {key: options[key] for key in keys if options.get(key) is not None}
    gpu = made.gpus[0] if made.gpus else None
    runs = Backends(
        GENERATIONS[made.graph.attention] if gpu is None else chip_of(gpu),
        made.traced.version,
        made.attention.preferred if made.attention else "",
    )
    traced = TraceOptions(attention=runs, gpu=gpu, **given)
    found = part("inductor.capture")(workload, traced, made.graph, others)
    return made.with_facts(dynamo=found)


class Trace:
    """A recorded block of code; made by :func:`trace`."""

    def __init__(self, name: str, attention: str, max_ops: int) -> None:
        self._name = name
        from memwall.frontend.live import LiveTrace

        self._live = LiveTrace(attention, max_ops)
        self._state = "not entered yet: write `with memwall.trace() as t:` around the code"
        self._record: Profile | None = None

    def __enter__(self) -> Trace:
        if self._live.is_used:
            raise UsageError("this trace was used already; make another with memwall.trace()")
        self._live.__enter__()
        self._state = "still recording: call profile() behind the with block"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._live.__exit__(kind, error, trace)
        if kind is not None:
            self._state = f"cut short: the block raised {kind.__name__}"
            return
        traced = self._live.traced()
        if traced is None:
            self._state = (
                "empty: no PyTorch op ran inside it, or only on tensors without elements; a JAX function is traced by"
                " memwall.profile(function, arguments)"
            )
            return
        made = profile_of(traced)
        self._record = replace(made, workload=replace(made.workload, name=self._name)) if self._name else made

    def __repr__(self) -> str:
        if self._record is None:
            return f"<memwall.trace: {self._state}>"
        return f"<memwall.trace of {self._record.workload.name}: {len(self._record.graph.ops):,} ops>"

    def profile(
        self,
        gpu: Names = "h100-sxm",
        policy: str | Iterable[str] = "eager",
        *,
        cuda_graph: bool = False,
        host: str | Path | Host | None = None,
    ) -> Profile:
        """Model what was recorded on one or more GPUs; may be called again for others.

        Args:
            gpu: names, specs or paths to specs; one or a list.
            policy: how ops are grouped into kernels, one or a list, as for :func:`memwall.profile`.
            cuda_graph: the step is captured once and replayed: no kernel waits for the CPU.
            host: what issues the kernels, as for :func:`memwall.profile`.

        Raises:
            UsageError: nothing was recorded, the block has not ended or raised; or no such GPU or policy.
            MissingError: the policy needs a dependency that is not installed.
        """
        if self._record is None:
            raise UsageError(f"the trace is {self._state}")
        return resimulate(self._record, gpu, policy, cuda_graph=cuda_graph, host=host)


def trace(*, name: str = "", attention: str = "flash", max_ops: int = 200_000) -> Trace:
    """Record the PyTorch code of a ``with`` block: forward, backward and optimizer steps, one call or many.

    The code runs as usual: tensors on the CPU get their true values, ``meta`` tensors have no data, CUDA tensors run on
    the GPU. Ops on the GPU (or on ``meta`` if none run on the GPU, or on the CPU if neither is used) are recorded as
    what a CUDA device would launch; ops on host tensors next to them are not. Autocast is the tensors' device's;
    compiled functions (``torch.compile``) run eagerly. Ops of other threads, and Triton kernels on a real GPU, are not
    seen; a trace or a profile of another thread waits until the block has ended.

    Peak memory counts a tensor from its first op to its last, or to the end of the block if it is still alive there; a
    reference that keeps it alive longer in the middle of the block is not counted.

    Args:
        name: of the workload in reports; if empty, the classes of the modules called.
        attention: the fused SDPA backend to record: ``flash``, ``efficient`` (GPUs before A100) or ``math``.
        max_ops: stop a runaway loop with an error in the block.

    Returns:
        A context manager whose :meth:`~Trace.profile` gives the profile once the block has ended.

    Raises:
        UsageError: no such attention; on entering, if another trace is already running.
    """
    return Trace(name, attention, max_ops)


def asked_gpus(gpu: Names, host: str | Path | Host | None = None, saved: Profile | None = None) -> list[Gpu]:
    """The GPUs, which, but for CPUs, stand on the host that is named; else, where theirs is assumed, on the one that a
    saved profile was made for."""
    names = [gpu] if isinstance(gpu, (str, Gpu, Path)) else list(gpu)
    if not names:
        raise UsageError("no GPU given; name one, or a list (memwall gpus lists them)")
    found = list(load_gpus(names))
    hosts = {each.host for each in saved.gpus if each.cpu is None} if saved else set()
    if host is None and (len(hosts) != 1 or STATED in {each.name for each in hosts}):
        return found
    issuing = hosts.pop() if host is None else load_host(host)
    return [
        replace(each, host=issuing) if each.cpu is None and (host or each.host == default_host()) else each
        for each in found
    ]


def started(world: int | None, rank: int, gpu: Gpu) -> contextlib.AbstractContextManager[None]:
    """What a program finds that is started as one rank of several."""
    if world is None:
        return contextlib.nullcontext()
    if not 0 <= rank < world:
        raise UsageError(f"a world of {world} has ranks 0 to {world - 1}, not {rank}")
    from memwall.frontend.torch.ranks.distributed import as_rank

    return as_rank(rank, world, gpu.cluster.gpus_per_node if gpu.cluster else world)


def policy_names(policy: str | Iterable[str]) -> tuple[str, ...]:
    return (policy,) if isinstance(policy, str) else tuple(policy)
