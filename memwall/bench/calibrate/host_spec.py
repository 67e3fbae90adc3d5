"""Loops and nets → a file of a host, in schema ``memwall.host/1``: lines ``key = value  # how it was measured``.

A kind of work takes what a loop takes that has it, less what the loop has besides (:data:`KINDS`). A loop that does one
thing over and over runs in warm caches, and nets take longer than the sum of their calls: every time is multiplied by
the factor that nets show, the geometric mean of measured over summed time. What cannot be measured on this machine is
bare-metal's, times the geometric mean of this machine's eager kinds over bare-metal's.

The range of 80 % is a normal distribution's of logarithms, whose variance is the variance of the nets' factors and,
where something was not measured, of the kinds' ratios: what is off by taking one ratio for all of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from memwall.bench.calibrate.sampling import SampledQuantity
from memwall.bench.calibrate.spec import SpecLine, document, note, number, quoted
from memwall.bench.machine import cpu_name
from memwall.hardware.host import SCHEMA, Host, HostWork, default_host

#: kind -> the loop that has it, and what it has besides: other loops, or kinds that were told before. The time that is
#: left is divided by the loop's work
Kinds = Mapping[str, tuple[str, tuple[str, ...]]]

#: on every device; a node is the forward one: in backward it cannot be told from the op that it runs
_ANYWHERE: Kinds = {
    "op_s": ("op", ("nothing",)),
    "module_s": ("module", ("nothing",)),
    "view_s": ("view", ("nothing",)),
    "node_s": ("add.node", ("add",)),
}
KINDS: Mapping[str, Kinds] = {
    "cpu": {
        **_ANYWHERE,
        "cublas_s": ("product", ("nothing", "op_s")),
        "cudnn_s": ("libraries", ("nothing", "op_s", "op_s")),
        "compiled_call_s": ("compiled.one", ("nothing",)),
        "compiled_parameters_s": ("compiled.parameters", ("compiled.one",)),
    },
    "cuda": {
        **_ANYWHERE,
        "launch_s": ("add.out", ("nothing", "op_s")),
        "allocation_s": ("add", ("add.out",)),
        # a one is made, multiplied in a node, and added to the gradient that there is
        "backward_s": ("backward", ("nothing", *3 * ("op_s", "launch_s"), *2 * ("allocation_s",), "node_s")),
        "cublas_s": ("product", ("nothing", "op_s", "launch_s")),
        "cudnn_s": ("libraries", ("nothing", *2 * ("op_s", "launch_s", "allocation_s"))),
        "compiled_kernel_s": ("compiled.several", ("compiled.one",)),
        "compiled_call_s": ("compiled.one", ("nothing", "compiled_kernel_s")),
        "compiled_parameters_s": ("compiled.parameters", ("compiled.one",)),
        "replay_s": ("compiled.replay", ("nothing",)),
        "library_launch_s": ("recurrent.more", ("recurrent.few",)),
    },
}
#: what a CPU's own libraries take to be called: part of its nets, and no GPU's library
_OWN = {"cpu": ("cublas_s", "cudnn_s"), "cuda": ()}
#: kinds that bare-metal states from the same rows of eager modules: their ratios are of hosts
_COMPARED = ("op_s", "module_s", "view_s", "launch_s", "allocation_s", "cudnn_s", "cublas_s")
#: the keys of a host: seconds, and the shares of them that come after a launch
_SECONDS = tuple(item.name for item in fields(Host) if item.name.endswith("_s"))
_SHARES = ("op_after", "replay_after")
#: standard deviations from the median of a normal distribution to its 10th and 90th percentile
_PERCENTILE_90 = statistics.NormalDist().inv_cdf(0.9)


@dataclass(frozen=True)
class HostMeasured:
    """Seconds of the kinds in loops, and the factor of each net over them; ``device``: what issued."""

    device: str
    loops_s: Mapping[str, float]
    factors: Mapping[str, float]

    @classmethod
    def of(cls, device: str, quantities: Mapping[str, SampledQuantity], work: Mapping[str, HostWork]) -> HostMeasured:
        """From what was timed, and the work of each net. Kinds whose loops were not timed are left out."""
        seconds = {name: quantity.seconds for name, quantity in quantities.items()}
        for kind, (loop, besides) in KINDS[device].items():
            if loop in quantities:
                left_s = seconds[loop] - sum(seconds[name] for name in besides)
                seconds[kind] = max(left_s, 0.0) / quantities[loop].work
        loops_s: dict[str, Any] = {kind: seconds[kind] for kind in KINDS[device] if kind in seconds}
        host = replace(Host("loops"), **loops_s)
        return cls(device, loops_s, {n: seconds[f"net.{n}"] / host.issue_s(asked) for n, asked in work.items()})

    @property
    def factor(self) -> float:
        """How much longer the kinds take in nets than in loops."""
        return statistics.geometric_mean(self.factors.values())

    @property
    def known_s(self) -> dict[str, float]:
        """Seconds of the kinds of a GPU's host that were measured, as in nets."""
        own = _OWN[self.device]
        return {kind: self.factor * loop_s for kind, loop_s in self.loops_s.items() if kind not in own}

    @property
    def ratios(self) -> dict[str, float]:
        """This machine's kinds over bare-metal's."""
        bare = default_host()
        return {kind: s / getattr(bare, kind) for kind, s in self.known_s.items() if kind in _COMPARED and s}

    @property
    def ratio(self) -> float:
        """This machine's time over bare-metal's."""
        return statistics.geometric_mean(self.ratios.values())

    @property
    def missing(self) -> list[str]:
        """The kinds that were not measured."""
        return [kind for kind in _SECONDS if kind not in self.known_s]

    @property
    def spread(self) -> float:
        """``high``, and one over ``low``."""
        off = _deviation(self.factors.values())
        if self.missing:
            off = math.hypot(off, _deviation(self.ratios.values()))
        return math.exp(_PERCENTILE_90 * off)


def _deviation(factors: Iterable[float]) -> float:
    logarithms = [math.log(factor) for factor in factors]
    return statistics.stdev(logarithms) if len(logarithms) > 1 else 0.0


def host_spec(answer: Mapping[str, Any], quantities: Mapping[str, SampledQuantity], job: Mapping[str, Any]) -> str:
    """The TOML text."""
    found, bare = HostMeasured.of(answer["device"], quantities, answer["work"]), default_host()
    issued = "issued to this machine's GPU" if found.device == "cuda" else "without a GPU"
    busy = "; other processes ran meanwhile (--accept-busy)" if job["accept_busy"] else ""
    title = f"{cpu_name()}, torch {answer['torch']}, {issued}: memwall calibrate --device host{busy}"
    off = "nets differ so from the sum of their calls" + (", and kinds of work from one ratio" if found.missing else "")
    measured = f"not {', '.join(found.missing)}" if found.missing else "every kind of work"
    return "\n".join(_remarks(found)) + document(
        {
            "": [
                SpecLine("schema", quoted(SCHEMA)),
                SpecLine("name", quoted("this-machine"), title),
                *(_line(kind, found, quantities) for kind in _SECONDS),
                *(SpecLine(key, f"{getattr(bare, key):g}", "not measured here: bare-metal's") for key in _SHARES),
                SpecLine("low", f"{1 / found.spread:.3f}", f"80 % range: {off}"),
                SpecLine("high", f"{found.spread:.3f}", "the same"),
                SpecLine("measured", "false" if found.missing else "true", measured),
            ]
        }
    )


def _remarks(found: HostMeasured) -> Iterable[str]:
    """What the factor and the ratio are, as comments above the numbers."""
    nets = ", ".join(f"{name} {factor:.2f}" for name, factor in found.factors.items())
    yield f"# nets take {found.factor:.3g} times what their calls take in loops ({nets}): every time measured here, too"
    if found.missing:
        compared = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in found.ratios.items())
        yield f"# measured times are {found.ratio:.3g} times bare-metal's ({compared}): what was not measured, too"
    yield ""


def _line(kind: str, found: HostMeasured, quantities: Mapping[str, SampledQuantity]) -> SpecLine:
    """The seconds of a kind, and where they come from."""
    if kind in found.known_s:
        said = f"measured here: {found.loops_s[kind]:.3g} in a loop, times {found.factor:.3g}"
        return SpecLine(kind, number(found.known_s[kind]), note(quantities[KINDS[found.device][kind][0]], said))
    stated_s = getattr(default_host(), kind)
    return SpecLine(
        kind, number(found.ratio * stated_s), f"not measured here: {found.ratio:.3g} times bare-metal's {stated_s:.3g}"
    )
