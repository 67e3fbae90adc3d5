"""The CPU of an inference engine: the seconds that it adds to what its GPUs do.

``hardware_specs/engines`` holds a TOML file for each engine, with a source next to each number. The machines are those
of the deployments that the numbers are fitted to: servers of H100 to GB300.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from memwall.core.errors import unknown
from memwall.core.files import read_toml
from memwall.core.structure import read
from memwall.hardware.checks import Line, NotNegative
from memwall.hardware.files import packaged

ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Seconds of the CPU: ``step_s`` for each step (scheduling, sampling, sending of tokens) that no kernel hides,
    ``launch_s`` for each kernel of a step that no CUDA graph holds, and ``request_s`` between a client and the queue of
    the engine (HTTP, tokens of the prompt, the first token's way back). ``ttft_low`` to ``ttft_high`` and ``tpot_low``
    to ``tpot_high`` are the 80 % intervals of a server's times, measured over modeled."""

    name: Line
    step_s: NotNegative = 0.0
    launch_s: NotNegative = 0.0
    request_s: NotNegative = 0.0
    ttft_low: NotNegative = 1.0
    ttft_high: NotNegative = 1.0
    tpot_low: NotNegative = 1.0
    tpot_high: NotNegative = 1.0

    def scaled(self, factor: float) -> EngineHost:
        """With all seconds by a factor."""
        return replace(
            self, step_s=factor * self.step_s, launch_s=factor * self.launch_s, request_s=factor * self.request_s
        )


@cache
def engine_host(name: str) -> EngineHost:
    """The CPU of an engine. Raises UsageError: no engine has that name."""
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    path = packaged("hardware_specs/engines")[name]
    return read(EngineHost, read_toml(path), str(path))
