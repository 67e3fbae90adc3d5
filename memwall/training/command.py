"""``memwall profile --parallel``: a training step on many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.target import running
from memwall.core.errors import UsageError

#: options of a workload that the step has too
_TAKEN = ("mode", "batch", "seq", "dtype", "autocast", "cluster", "world", "policy")


def profile_parallel(
    target: str, layout: str, scale: int | None, workload: dict[str, Any], what_ifs: Sequence[str],
    unused: dict[str, Any], out: Out,
) -> None:  # fmt: skip
    """Model a step under a layout, and on up to ``scale`` GPUs, and show it. Raises ``UsageError``: an option that it
    does not take, such as any of ``unused``, or as :func:`memwall.training.run.parallel`."""
    from memwall.analysis.levers import Number
    from memwall.training.page import TrainingReport
    from memwall.training.run import parallel

    given = options.profile_options(workload)
    if given.get("mode", "training") != "training":
        raise UsageError("--parallel is of a training step: --mode training")
    if wrong := [*unused, *(name for name in given if name not in _TAKEN)]:
        flags = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise UsageError(f"--parallel shows a step on many GPUs of --cluster, without {flags}")
    policies = given.get("policy") or ("eager",)
    if len(policies) > 1:
        raise UsageError("--parallel takes one policy")
    keywords = {name: given[name] for name in _TAKEN if name in given and name not in ("mode", "policy")}
    out.plan(TrainingReport)
    with running(target, out.messages):
        found = parallel(target, layout=layout, policy=policies[0], progress=out.messages.progress, **keywords)
        changed = [found.with_number(Number(text, text, "")) for text in what_ifs]
    out.show(TrainingReport(found, scale, changed))
