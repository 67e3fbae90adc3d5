"""``with memwall.trace() as t``: record any block of PyTorch code, then model its time on any GPU."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from memwall.cost import classify, graph_costs
from memwall.errors import UsageError
from memwall.pipeline import Names, resimulate
from memwall.profile import Profile
from memwall.record import WorkloadInfo
from memwall.trace import Traced
from memwall.trace.live import LiveTrace


class Trace:
    """A block of code that is recorded, or was; made by :func:`trace`."""

    def __init__(self, name: str, attention: str, max_ops: int) -> None:
        self._name = name
        self._live = LiveTrace(classify, attention=attention, max_ops=max_ops)
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
            self._state = "empty: no PyTorch op ran inside it, or only on tensors without elements"
            return
        self._record = _record(traced, self._name or ", ".join(self._live.roots) or "trace")

    def __repr__(self) -> str:
        if self._record is None:
            return f"<memwall.trace: {self._state}>"
        return f"<memwall.trace of {self._record.workload.name}: {len(self._record.graph.ops):,} ops>"

    def profile(
        self, gpu: Names = "h100-sxm", policy: str | Iterable[str] = "eager", *, cuda_graph: bool = False
    ) -> Profile:
        """Model what was recorded on one or more GPUs; may be called again for others.

        Args:
            gpu: names, specs or paths to specs; one or a list.
            policy: how ops are grouped into kernels, one or a list, as for :func:`memwall.profile`.
            cuda_graph: the step is captured once and replayed: no kernel waits for the CPU.

        Raises:
            UsageError: nothing was recorded, the block has not ended or raised; or no such GPU or policy.
            MissingError: the policy needs a dependency that is not installed.
        """
        if self._record is None:
            raise UsageError(f"the trace is {self._state}")
        return resimulate(self._record, gpu, policy, cuda_graph=cuda_graph)


def trace(*, name: str = "", attention: str = "flash", max_ops: int = 200_000) -> Trace:
    """Record the PyTorch code of a ``with`` block: forward, backward and optimizer steps, one call or many.

    The code runs as it would without: tensors on the CPU get their true values, ``meta`` tensors have no data, CUDA
    tensors run on the GPU. What is on the GPU (on ``meta`` where nothing is, on the CPU where neither is used) is
    recorded as what a CUDA device would launch; work on the host's tensors beside it is not. Autocast is that of the
    device the tensors are on; what ``torch.compile`` made runs eagerly. Ops that other threads run, and Triton kernels
    on a real GPU, are not seen; a trace or a profile of another thread waits until the block has ended.

    Peak memory counts a tensor from its first op to its last, and to the end where it still lives then: what a name
    holds longer than that in the middle of the block is not counted.

    Args:
        name: of the workload in reports; the classes of the modules called where it is empty.
        attention: the fused SDPA backend to record: ``flash``, ``efficient`` (GPUs before A100) or ``math``.
        max_ops: stop a runaway loop with an error in the block.

    Returns:
        A context manager whose :meth:`~Trace.profile` gives the profile once the block has ended.

    Raises:
        UsageError: no such attention; on entering, where another trace runs already.
    """
    return Trace(name, attention, max_ops)


def _record(traced: Traced, name: str) -> Profile:
    """The profile of what was recorded, on no GPU yet."""
    phases = {op.phase for op in traced.graph.ops}
    return Profile(
        workload=WorkloadInfo(
            name, "", "inference" if phases == {"forward"} else "training", traced.dtype, traced.inputs,
            traced.parameters, optimizer=traced.optimizer,
        ),
        graphs=(traced.graph,),
        costs=(graph_costs(traced.graph),),
        capture=dict(traced.capture),
        environment={"torch": torch.__version__.partition("+")[0]},
    )  # fmt: skip
