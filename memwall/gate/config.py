"""What to gate: workloads and their limits; which of them hold where.

A workload's limits override the limits of the whole gate; within either, a policy's or a GPU's override the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwall.analysis.limits import Limit, find_quantity, parse_limit
from memwall.analysis.quantities import LIMITS
from memwall.core.errors import UsageError
from memwall.core.question import options_of
from memwall.frontend.targets.target import is_saved
from memwall.hardware.lookup import Gpu, load_gpu
from memwall.step import Step
from memwall.wings import part

#: the limits if none are written and there is a baseline: what a code change may not do by accident
DEFAULTS = {"kernels": "+0", "dram_bytes": "+0.5%", "flops": "+0.5%", "time_s": "+0.5%", "peak_memory": "+0.5%",
            "communication_bytes": "+0.5%", "exposed_communication_s": "+0.5%",
            "graph_breaks": "+0", "nchw_bytes": "+0.5%", "ttft_s": "+0.5%", "tpot_s": "+0.5%",
            "kv_bytes_per_token": "+0%"}  # fmt: skip
#: the policies if none is named: what runs today, and what a compiler could fuse, so that a lost fusion shows
DEFAULT_POLICIES = ("eager", "memwall")
#: what a workload that is served runs, and its tokens and clients where it does not say
SERVED_POLICIES = ("server",)
SERVED_DEFAULTS = {"prompt": 1024, "generate": 256, "concurrency": 16}
#: settings of a workload with ``mode = "serve"``, aside from ``prompt``: options of a server and its load
SERVER = ("price", "cluster", *(
    name for name, said in options_of(part("serving.ServeOptions")).items()
    if not said.internal and name not in options_of(Step)
))  # fmt: skip
#: samples of the step that is traced, and the most tokens in its cache
_TRACED_BATCH, _MOST_CONTEXT = 2, 16_383
#: limits of every workload unless it says otherwise
ALWAYS = {"coverage": "100 %"}
#: the quantity that no program of many GPUs has: TorchDynamo does not capture one without its ranks
OF_ONE_GPU = "graph_breaks"
#: quantities whose limits do not replace :data:`DEFAULTS`: they do not limit the cost of the step
APART = frozenset(("coverage", "measured_s"))

#: (quantity, module pattern) -> limits
Limits = dict[tuple[str, str], tuple[Limit, ...]]


@dataclass(frozen=True)
class LimitScope:
    """The limits of one table, apart from the limits of single GPUs and policies in it."""

    limits: Limits = field(default_factory=dict)
    policies: Mapping[str, Limits] = field(default_factory=dict)
    gpus: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, gpu: str, policy: str) -> Limits:
        """What holds on a GPU under a policy."""
        return {**self.limits, **self.policies.get(policy, {}), **self.gpus.get(gpu, {})}

    @property
    def names(self) -> frozenset[str]:
        """The quantities that are limited somewhere."""
        rows = (self.limits, *self.policies.values(), *self.gpus.values())
        return frozenset(name for limits in rows for name, _ in limits)


@dataclass(frozen=True)
class GatedWorkload:
    """One workload: its target (relative to the root), how it is profiled, on what, and its own limits."""

    name: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    policies: tuple[str, ...] = ()
    scope: LimitScope = LimitScope()

    @property
    def load(self) -> dict[str, Any] | None:
        """The keywords of :func:`memwall.serve` that say under what load it is served; None where it is not."""
        if self.options.get("mode") != "serve":
            return None
        given = {name: self.options[name] for name in ("prompt", *SERVER) if name in self.options}
        return {**SERVED_DEFAULTS, **given}

    @property
    def tracing(self) -> dict[str, Any]:
        """The keywords of :func:`memwall.profile`: of what is served, a decode step with the longest cache."""
        if (load := self.load) is None:
            return dict(self.options)
        others = {name: value for name, value in self.options.items() if name not in load}
        context = min(load["prompt"] + load["generate"] - 1, _MOST_CONTEXT)
        return {**others, "mode": "decode", "batch": _TRACED_BATCH, "context": context}


@dataclass(frozen=True)
class GateConfig:
    """The whole gate. ``root`` is the folder that targets and baselines are relative to; ``gpus`` and ``policies`` are
    as written, :meth:`workload` knows what runs without; ``over``: the limits of the command line, which go first."""

    root: Path
    source: str = ""
    workloads: tuple[GatedWorkload, ...] = ()
    scope: LimitScope = LimitScope()
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    policies: tuple[str, ...] = ()
    baseline: str | None = None
    baseline_ref: str | None = None
    history: str | None = None
    runs: str | None = None
    over: LimitScope = LimitScope()

    def workload(
        self,
        name: str,
        target: str,
        options: Mapping[str, Any] | None = None,
        gpus: tuple[Gpu, ...] = (),
        policies: tuple[str, ...] = (),
        scope: LimitScope = LimitScope(),
    ) -> GatedWorkload:
        """A workload with what the gate says where it says nothing; a saved profile has GPUs of its own, and what is
        served runs as servers do unless it says otherwise itself."""
        saved, how, own = is_saved(target), {**self.options, **(options or {})}, options or {}
        if how.get("mode") != "training" and "optimizer" not in own:  # which the gate has for workloads that train
            how.pop("optimizer", None)
        usual = SERVED_POLICIES if how.get("mode") == "serve" else self.policies or (() if saved else DEFAULT_POLICIES)
        gpus = gpus or self.gpus or (() if saved else (load_gpu("h100-sxm"),))
        return GatedWorkload(name, target, how, gpus, policies or usual, scope)

    def limits(
        self, workload: GatedWorkload, gpu: str, policy: str, *, compared: bool, unknown: Collection[str] = ()
    ) -> Limits:
        """The limits of a workload on a GPU under a policy. ``compared``: there is a baseline, and :data:`DEFAULTS`
        hold where nothing is limited (aside from :data:`APART`), but for quantities that are ``unknown``."""
        written = {**self.scope.of(gpu, policy), **workload.scope.of(gpu, policy), **self.over.limits}
        if "world" in workload.options:
            written.pop((OF_ONE_GPU, ""), None)
            unknown = {OF_ONE_GPU, *unknown}
        if compared and self.limited(workload) <= APART:
            written |= limits_of({k: v for k, v in DEFAULTS.items() if k not in unknown}, "")
        return {**limits_of(ALWAYS, ""), **written}

    def limited(self, workload: GatedWorkload) -> frozenset[str]:
        """The quantities of a workload that are limited by more than :data:`DEFAULTS`."""
        return self.scope.names | workload.scope.names | self.over.names


def parse_scope(texts: Sequence[str]) -> LimitScope:
    """The limits of ``('dram_bytes=+2%', 'time_s=3.2 ms')``. Raises ``UsageError``: not NAME=LIMIT, or no such quantity
    or unit; names the nearest."""
    found: Limits = {}
    for text in texts:
        name, equals, limit = text.partition("=")
        if not equals:
            raise UsageError(f"--limit: cannot read {text[:60]!r}; want NAME=LIMIT, as in 'dram_bytes=+2%'")
        parsed = parse_limit(name.strip(), limit, "--limit")
        key = parsed.quantity.name, ""
        found[key] = (*found.get(key, ()), parsed)
    return LimitScope(found)


def limits_of(table: Mapping[str, object], where: str, module: str = "") -> Limits:
    """The limits of a table of them; ``where`` it stands, for the message. Raises ``UsageError``: no such quantity or
    unit, none that modules have, an empty list, or one quantity twice."""
    found: Limits = {}
    for name, text in table.items():
        quantity = find_quantity(name, where)
        if module and not quantity.adds:
            summed = ", ".join(row.name for row in LIMITS.values() if row.adds)
            raise UsageError(f"{where}: {name} has no value per module; {summed} have")
        texts = text if isinstance(text, list) else [text]
        if not texts:
            raise UsageError(f"{where}: {name} is an empty list, which limits nothing; leave it out")
        if (quantity.name, module) in found:
            raise UsageError(f"{where}: {name} is {quantity.name}, which is limited already; want one list of limits")
        found[quantity.name, module] = tuple(parse_limit(quantity, item, where) for item in texts)
    return found
