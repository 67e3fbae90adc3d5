"""``memwall profile --parallel``: a training step on many GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.target import running
from memwall.core.errors import UsageError
from memwall.core.question import options_of, part_of
from memwall.training.question import Job

#: keywords of ``memwall profile`` that a step under a layout has too
_TAKEN = ("layout", "scale", "mode", "policies", "what_ifs", "nodes", "no_overlap", *options_of(Job))


def profile_parallel(target: str, given: Mapping[str, Any], out: Out) -> None:
    """Model a step under a layout, and on more GPUs by ``scale``, and show it; ``given`` are the options of ``memwall
    profile``. Raises ``UsageError``: one that it does not take, or as :func:`memwall.training.run.parallel`."""
    from memwall.analysis.levers import Number
    from memwall.training.page import TrainingReport
    from memwall.training.run import parallel

    options.refuse_given("with --parallel, which shows a step on many GPUs of --cluster", but=_TAKEN)
    if "mode" in options.on_command_line() and given["mode"] != "training":
        raise UsageError("--parallel is of a training step: --mode training")
    policies = given["policies"] or ("eager",)
    if len(policies) > 1:
        raise UsageError("--parallel takes one policy")
    asked = {**options.given(**part_of(Job, given)), "overlap": not given["no_overlap"]}
    out.plan(TrainingReport)
    with running(target, out.messages):
        made = parallel(target, layout=given["layout"], policy=policies[0], **asked)
        changed = [made.with_number(Number(text, text, "")) for text in given["what_ifs"]]
    out.show(TrainingReport(made, given["scale"], changed))
