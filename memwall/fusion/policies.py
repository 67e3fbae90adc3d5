"""The policies by name: each makes a plan from a graph, the costs of its ops and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module

from memwall.core.errors import UsageError
from memwall.core.files import uncollected
from memwall.core.graph import Graph
from memwall.core.progress import tell
from memwall.fusion.plan import Group, Plan
from memwall.hardware.lookup import Gpu
from memwall.ops import Cost
from memwall.wings import planner

Planner = Callable[[Graph, Sequence[Cost], Gpu, Sequence[int] | None], Plan]


def eager_plan(
    graph: Graph, costs: Sequence[Cost], gpu: Gpu | None = None, regions: Sequence[int] | None = None
) -> Plan:
    """Every op alone, in call order: what PyTorch does without a compiler."""
    groups = tuple(Group((op.id,), op.inputs, op.outputs, cost) for op, cost in zip(graph.ops, costs, strict=True))
    return Plan("eager", groups)


def _planner(module: str, name: str) -> Planner:
    """A planner that is imported on first use: reading a record needs none, and the compiler needs torch."""

    def plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
        return getattr(import_module(module), name)(graph, costs, gpu, regions)

    return plan


def _wing_planner(policy: str) -> Planner:
    """The planner of a policy that a wing brings (:mod:`memwall.wings`)."""

    def plan(graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None) -> Plan:
        made: Plan = planner(policy)(graph, costs, gpu, regions)
        return made

    return plan


#: policy name -> planner, in the order in which reports list them
POLICIES: Mapping[str, Planner] = {
    "eager": eager_plan,
    "inductor": _wing_planner("inductor"),
    "max-autotune": _wing_planner("max-autotune"),
    "xla": _wing_planner("xla"),
    "memwall": _planner("memwall.fusion.planner", "memwall_plan"),
    "server": _wing_planner("server"),
    "ideal": _planner("memwall.fusion.ideal", "ideal_plan"),
}

#: policies that do more than fuse: no share of what fusion could win says what they save
REWRITING = frozenset(("server",))

#: policies with the same plan on every GPU
UNIVERSAL = frozenset(("eager", "server", "ideal"))


def _compiled_for(gpu: Gpu) -> str:
    """Why torch.compile writes no kernels for a GPU; empty where it does."""
    text = gpu.compute_capability or ""
    if gpu.vendor != "NVIDIA" or not text[:1].isdigit():
        return f"the inductor policy knows NVIDIA GPUs only, not {gpu.name}; --policy memwall works for any"
    if int(text.partition(".")[0]) < 7:
        return f"torch.compile needs compute capability 7.0, and {gpu.name} has {text}; --policy memwall works for any"
    return ""


#: policies that some GPUs are not planned for -> why, empty where one is
_NEEDS: Mapping[str, Callable[[Gpu], str]] = {"inductor": _compiled_for, "max-autotune": _compiled_for}


#: policies that compile the program itself for each GPU, to a graph of its own (:meth:`memwall.record.profile.Profile
#: .with_plan`)
COMPILING = frozenset(("xla",))


#: policies that run torch's compiler
COMPILED = frozenset(_NEEDS)


def why_not(policy: str, gpu: Gpu) -> str:
    """Why a policy plans no graph for a GPU; empty where it does."""
    return _NEEDS[policy](gpu) if policy in _NEEDS else ""


def check_policies(
    policies: Iterable[str], gpus: Sequence[Gpu], *, need: Callable[[Iterable[bool]], bool] = all
) -> None:
    """Raises ``UsageError`` before any work: not ``all`` (or not ``any``) of the GPUs are planned for by a policy."""
    for policy in policies:
        refused = [why_not(policy, gpu) for gpu in gpus]
        if gpus and not need(not why for why in refused):
            raise UsageError(next(filter(None, refused)))


@uncollected()
def plan_graph(
    policy: str, graph: Graph, costs: Sequence[Cost], gpu: Gpu, regions: Sequence[int] | None = None
) -> Plan:
    """The plan of a policy.

    Raises:
        UsageError: no such policy.
        MissingError: the ``inductor`` policy needs a torch and a Triton that it knows.
    """
    if policy not in POLICIES:
        raise UsageError(f"no policy named {policy!r}; there is {', '.join(POLICIES)}")
    if policy != "eager":
        tell(f"planning {len(graph.ops):,} ops by {policy}")
    return POLICIES[policy](graph, costs, gpu, regions)
