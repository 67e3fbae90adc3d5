"""Steps of an engine → what one of its GPUs draws, by the kernels that it runs (:mod:`memwall.perfmodel.power`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from memwall.perfmodel.power import above_idle_j, mean_w
from memwall.serving.answer import Point
from memwall.serving.simulation.engine import Policy
from memwall.serving.simulation.timing import CACHED, GpuSteps
from memwall.serving.steps import EngineStep
from memwall.serving.steps.kernels import Collective, Encoded, StepKernel, Tower, begun


@dataclass
class StepPower:
    """What a GPU of an engine draws in its steps; kernels without a cache are summed once for each batch."""

    steps: GpuSteps
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def above_idle_j(self, step: EngineStep) -> float:
        """Joules of a GPU's kernels in a step, beyond the joules of as long a wait."""
        key = step.decodes, step.prefills, step.verified
        if key not in self._known:
            others = (each for each in self.steps.each(step) if not isinstance(each[0], CACHED))
            self._known[key] = sum(n * self._kernel_j(kernel, own) for kernel, n, own in others)
        cached = (each for each in self.steps.each(step) if isinstance(each[0], CACHED))
        return self._known[key] + sum(n * self._kernel_j(kernel, own) for kernel, n, own in cached)

    def watts(self, step: EngineStep, time_s: float) -> float | None:
        """Mean over a step of so many seconds; None where the power limit of the GPU is not known."""
        return mean_w(self.above_idle_j(step), time_s, self.steps.gpu)

    def _kernel_j(self, kernel: StepKernel, step: EngineStep) -> float:
        gpu = self.steps.gpu
        if isinstance(kernel, Encoded):
            return begun(step) * self._kernel_j(kernel.kernel, kernel.step)
        if isinstance(kernel, Tower):
            return begun(step) * sum(n * above_idle_j(found, gpu) for found, n in self.steps.of_tower(kernel))
        if isinstance(kernel, Collective) or not step.tokens:
            return 0.0
        return above_idle_j(self.steps.prediction(kernel, step), gpu)


def run_watts(point: Point, policy: Policy) -> float | None:
    """Watts of a GPU on average over the time of a point's run, and over all GPUs: each decode step, of as many
    sequences as decode in the mean, draws what it would alone, and so does a step of the longest prompt in each group
    and stage."""
    assert point.candidate is not None
    run, guess, power = point.candidate.run, policy.speculation, StepPower(point.steps)
    asked, drafts = point.decoding, policy.verified - 1
    decode_j = power.above_idle_j(EngineStep(asked.decodes, asked.context_tokens, (), policy.verified))
    if isinstance(point.draft, GpuSteps):
        decode_j += drafts * StepPower(point.draft).above_idle_j(asked)
    parts = point.layout.dp * point.layout.pp  # each as full as the fullest, whose kernels are counted
    of_step = parts * asked.fullest(parts).decodes * (guess.tokens_per_step if guess else 1.0)
    found = getattr(run, "cached_share", None)
    computed = point.alone.tokens / point.workload.longest.prompt_tokens if found is None else 1 - found
    prompts_per_s = computed * run.prompt_tokens_per_s / point.alone.tokens
    prompts_j = power.above_idle_j(EngineStep(0, 0, point.alone.prefills * parts))
    drawn_w = run.tokens_per_s / of_step * decode_j + prompts_per_s / parts * prompts_j
    return mean_w(drawn_w * point.layout.gpus / point.candidate.gpus, 1.0, point.gpu)
