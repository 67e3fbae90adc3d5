"""A deployment of a language model that others timed: its engines, its load, and what a simulation of them gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from memwall.analysis.validation import TimedRow
from memwall.bench.accuracy.halves import in_fit_half
from memwall.bench.accuracy.kinds import Timed
from memwall.bench.accuracy.samples import held_out_gpu, r1_s
from memwall.core.errors import UsageError
from memwall.hardware.cluster import cluster_of
from memwall.hardware.engine import load_engine
from memwall.hardware.lookup import Gpu
from memwall.ops.routing import TYPICAL
from memwall.perfmodel.roofline import peak_compute_s
from memwall.serving import Model, read_model
from memwall.serving.engines import AskedPolicy
from memwall.serving.simulation.engine import Policy, Speculation
from memwall.serving.simulation.requests import Disaggregated, simulate_requests
from memwall.serving.simulation.served import Requests
from memwall.serving.simulation.timing import GpuSteps
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import EngineStep, Layout
from memwall.serving.steps.kernels import Collective
from memwall.serving.steps.routing import routed
from memwall_lab.collectives import without_own

#: share of a GPU's memory that the servers of these tables take, and servers whose weights need more: they ran
UTILIZATION, MOST_UTILIZATION = 0.92, 0.98
#: between engines of prompts and of decodes: an adapter of 400 Gbit/s for each GPU
_LINK_BYTES_PER_S = 50e9
#: requests of a client that the tables' benchmarks send (InferenceX: ``--num-prompts $((CONC * 10))``); the first ones
#: come all at once
_WAVES = 10
#: requests to simulate, where two for each client are not more
_MOST_REQUESTS = 2000
#: share of the drafts of DeepSeek's own module that the model takes: with it 7 drafts make 3.20 tokens a step, as
#: measured on MT-bench, HumanEval and GSM8K (huggingface.co/nebius/MTP-DeepSeek-V3-0324, "Original MTP")
_ACCEPTED = 0.707
#: clients of whom a prompt waits for few others
FEW = 8


class Engines:
    """The engines of a data set, each of whose models is read once."""

    def __init__(self) -> None:
        self._models: dict[Path, Model] = {}
        self._steps: dict[tuple[Path, str, Layout, str, bool, Policy, int | None], GpuSteps] = {}

    def of(self, sample: Deployment, pool: Pool) -> GpuSteps:
        """The steps of an engine; tables call weights fp8 that are stored in blocks, as the model's configuration says,
        or as their experts are: a checkpoint has one way for all."""
        config, gpu, layout, is_left_out = sample.config, sample.gpu, pool.layout, sample.is_left_out
        policy = sample.policy(pool)
        key = config, gpu.name, layout, sample.engine, is_left_out, policy, pool.copies
        if key not in self._steps:
            if config not in self._models:
                self._models[config] = read_model(f"hf:{config}")
            model, cluster = self._models[config], cluster_of(gpu) if layout.gpus > 1 else None
            engine = load_engine(sample.engine)
            if layout.weights.startswith("fp8") and "fp8_block" in (model.scheme, layout.experts):
                layout = replace(layout, weights="fp8_block", experts="")
            layout = replace(layout, kv=layout.kv or model.cache)
            if is_left_out:
                gpu, cluster = held_out_gpu(gpu), cluster and without_own(cluster)
            served = routed(model.served, (replace(TYPICAL, redundant=pool.copies),))
            found = GpuSteps(
                served, gpu, layout, cluster, UTILIZATION, engine.host, model.max_context, max(policy.captured),
                policy.token_budget, policy.max_batch, attention_apart=engine.attention_apart,
            )  # fmt: skip
            if found.weights_bytes + found.reserved_bytes >= found.capacity_bytes:
                found = replace(found, utilization=MOST_UTILIZATION)
            self._steps[key] = found
        return self._steps[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Engines that are alike. With so many ``copies`` experts are placed by their load; None: they lie in their order.
    ``batch`` and ``tokens`` are the most sequences and tokens of a step of a group; None: as the engine takes by
    itself."""

    layout: Layout
    engines: int = 1
    copies: int | None = None
    batch: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(Timed):
    """A measured deployment. ``measured`` are seconds by figure: ``TPOT``, ``TTFT``, or ``GPU seconds per token`` with
    as many clients as the cache holds. ``prompts`` are engines of their own, if there are such. ``label`` is the data
    set's name for the GPU, ``name`` that for the model, ``config`` the folder of its configuration, ``split`` the key
    of the half that it belongs to: the model and its engines, whatever the load."""

    IS_SIMULATED: ClassVar[bool] = True

    dataset: str
    label: str
    name: str
    config: Path
    gpu: Gpu
    #: with its version, as :func:`memwall.hardware.engine.load_engine` reads it
    engine: str
    decodes: Pool
    prompts: Pool | None = None
    workload: RequestLoad
    measured: Mapping[str, float]
    shape: str
    split: str
    #: tokens that a module of the model's own guesses for each that is verified; 0: none
    draft_tokens: int = 0
    #: whether its clients are the largest batch of its engines, of which no more decode than caches hold
    states_batch: bool = False
    #: what tells its engines
    told_by: str = "the row"
    #: batches of a group's decodes that it captures as CUDA graphs, with the largest batch; empty: as vLLM
    graphs: tuple[int, ...] = ()
    is_left_out: bool = field(default=False)

    @property
    def in_fit_half(self) -> bool:
        """Whether constants may see it: the parity of a SHA-256."""
        return in_fit_half(self.split)

    def left_out(self) -> Deployment:
        """The deployment as if nothing had been measured on GPUs of its kind."""
        return replace(self, is_left_out=True)

    @classmethod
    def model(cls, samples: Sequence[Deployment], skipped: Counter[str]) -> list[TimedRow]:
        return deployment_rows(samples, Engines(), skipped)

    def rows(self, engines: Engines) -> Iterator[TimedRow]:
        """Each figure, modeled and measured. R1 is a roofline with a batch that is always full, and a prompt that waits
        for nobody. Raises UsageError: the model does not fit, or the deployment speculates."""
        steps = engines.of(self, self.decodes)
        load = self._load(steps)
        run, clients = self._run(engines, steps, load), -(-(load.concurrency or 1) // self.decodes.engines)
        decode = EngineStep(clients, clients * (load.prompt.nominal + load.generate.nominal // 2))
        self._check_bound(steps, round(max(run.batch, 1)), load)
        others = roofline_s(steps, decode), roofline_s(steps, EngineStep(0, 0, ((load.prompt.nominal, 0),)))
        per_token_s = others[0] / clients + others[1] / load.generate.nominal
        modeled = {
            "TPOT": (waves(run, load, "tpot_s"), others[0]), "TTFT": (waves(run, load, "ttft_s"), others[1]),
            "GPU seconds per token": tuple(steps.layout.gpus * s for s in (1 / run.tokens_per_s, per_token_s)),
        }  # fmt: skip
        kind = "disaggregated" if self.prompts else "one engine"
        for figure, measured_s in self.measured.items():
            few = f", {FEW} clients or fewer" if figure == "TTFT" and (load.concurrency or 0) <= FEW else ""
            time_s, other_s = modeled[figure]
            yield TimedRow(self.dataset, self.label, f"{figure}, {kind}{few}", self.name, time_s, measured_s,
                      shape=self.shape, r1_s=other_s)  # fmt: skip

    def _load(self, steps: GpuSteps) -> RequestLoad:
        """The load, with as many clients as caches hold where it states none, or the largest batch alone."""
        load, states_none = self.workload, "GPU seconds per token" in self.measured
        if not (states_none or self.states_batch):
            return load
        free = steps.capacity_bytes - steps.weights_bytes - steps.reserved_bytes
        held = free // max(steps.kv_bytes(load.prompt.most + load.generate.most), 1) * self.decodes.engines
        most = self.policy(self.decodes).max_batch * steps.layout.dp if states_none else load.concurrency or 1
        clients = max(min(held, most), 1)
        return replace(load, concurrency=clients, requests=min(3 * clients, max(_MOST_REQUESTS, 2 * clients)))

    def _run(self, engines: Engines, steps: GpuSteps, load: RequestLoad) -> Requests:
        layout, speculation = steps.layout, self._speculation(steps)
        largest = -(-(load.concurrency or 1) // (self.decodes.engines * layout.dp * layout.pp))
        policy = self.policy(self.decodes, largest).of_groups(layout.dp, layout.pp)
        policy = replace(policy, speculation=speculation)
        if self.prompts is None:
            return simulate_requests(steps, load, policy)
        prompt = engines.of(self, self.prompts)
        own = self.policy(self.prompts).of_groups(prompt.layout.dp, prompt.layout.pp)
        apart = Disaggregated(
            prompt=prompt, decode=steps, prompt_engines=self.prompts.engines, decode_engines=self.decodes.engines,
            link_bytes_per_s=_LINK_BYTES_PER_S * prompt.layout.gpus,
            prompt_policy=replace(own, speculation=speculation),
        )  # fmt: skip
        return simulate_requests(apart, load, policy)

    def policy(self, pool: Pool, largest: int = 0) -> Policy:
        """How each group of an engine fills a step: as its engine does where nobody says, with the CUDA graphs that are
        stated, up to a ``largest`` batch. Prompts that have engines of their own are not cut: TensorRT-LLM does so with
        ``enable_chunked_prefill`` alone, which recipes of H100 alone set, and SGLang runs chunks one after another."""
        stated = (*(size for size in self.graphs if not 0 < largest <= size), *([largest] if largest else ()))
        prefill = "apart" if pool is self.prompts else None
        captured = stated if self.graphs else None
        asked = AskedPolicy(max_batch=pool.batch, token_budget=pool.tokens, prefill=prefill, captured=captured)
        return asked.of(load_engine(self.engine), self.gpu, pool.layout, 1 + self.draft_tokens)

    def _speculation(self, steps: GpuSteps) -> Speculation | None:
        if not self.draft_tokens:
            return None
        return Speculation(draft_tokens=self.draft_tokens, accept=_ACCEPTED, draft=steps.guessing())

    def _check_bound(self, steps: GpuSteps, batch: int, load: RequestLoad) -> None:
        """Raises UsageError: tokens come faster than weights and caches can be read once for each."""
        step = EngineStep(batch, batch * load.prompt.least)
        kernels = ((kernel, n, own) for kernel, n, own in steps.each(step) if not isinstance(kernel, Collective))
        bound_s = sum(n * steps.prediction(kernel, own).bound_s for kernel, n, own in kernels)
        if (1 + self.draft_tokens) * self.measured.get("TPOT", bound_s) < bound_s:
            raise UsageError("tokens come faster than weights and caches can be read for each: it speculates")


def waves(run: Requests, load: RequestLoad, figure: str) -> float:
    """The mean of a figure over :data:`_WAVES` requests of each client, of which fewer were simulated."""
    clients = load.concurrency or 1
    known = [value for value in (getattr(row, figure) for row in run.served) if value is not None]
    first, later = known[:clients], known[clients:] or known
    return sum(first) / len(first) / _WAVES + sum(later) / len(later) * (1 - 1 / _WAVES)


def roofline_s(steps: GpuSteps, step: EngineStep) -> float:
    """R1 of a step: the sum of its kernels', without messages."""
    total_s = 0.0
    for kernel, n, own in steps.each(step):
        cost = kernel.cost(own, steps.layout)
        if cost.launches:
            total_s += n * r1_s(peak_compute_s(cost, steps.gpu), cost.bytes / steps.gpu.dram_bytes_per_s)
    return total_s


def deployment_rows(samples: Iterable[Deployment], engines: Engines, refused: Counter[str]) -> list[TimedRow]:
    """The rows of all samples; why others have none is counted in ``refused``."""
    found: list[TimedRow] = []
    for sample in samples:
        try:
            found += sample.rows(engines)
        except UsageError as error:
            refused[str(error)] += 1
    return found
