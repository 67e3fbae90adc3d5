"""``memwall bound``: how fast could a kernel be, and is a measured time good?"""

from __future__ import annotations

from typing import Any

import click

from memwall.bounding.question import BoundOptions
from memwall.cli import options
from memwall.cli.output import Out
from memwall.cli.parsing import Command
from memwall.cli.target import chosen_gpus, is_record, running
from memwall.core.errors import UsageError
from memwall.step import Step


@click.command(
    "bound",
    cls=Command,
    examples=(
        (
            "memwall bound 'mm(bf16[4096,8192], bf16[8192,4096])' --gpu h100 --measured 800us",
            "Whether 800 us are good for a product.",
        ),
        ("memwall bound model.py --gpu h100", "How fast a whole model could be, and what compilers reach of that."),
    ),
)
@click.argument("target", metavar="[TARGET]", required=False, shell_complete=options.completing("files"))
@options.gpus
@options.question(BoundOptions)
@options.policies_of("eager, memwall; inductor with Triton", "The runs to predict")
@options.question(Step, but=("host", "cluster", "world", "rank", "cuda_graph"))
@options.ranks
@click.option(
    "--csv",
    "problems",
    metavar="FILE",
    help="Many problems: a table with a column problem, and columns gpu, measured and name if it has them.",
)
@options.common("bounding.page.BoundReport")
def command(target: str | None, gpus: tuple[str, ...], problems: str | None, out: Out, **given: Any) -> None:
    """Say how fast TARGET could be on a GPU, and what libraries and compilers reach of that.

    TARGET is an expression of torch's ops on shapes, such as 'mm(bf16[4096,8192], bf16[8192,4096])' or
    'x = f16[8,1024]; softmax(x + 1, -1)'; a model file, also one with ref_kernel() and generate_input(); or what else
    memwall profile takes. Of a saved profile (.json), --kernel names one kernel.

    The bound is of one kernel that does all of it: each input is read once, each result written once, and every
    FLOP runs at the peak. With --measured TIME the answer says how good that is, or that it is impossible.
    """
    from memwall.bounding.page import BoundReport
    from memwall.bounding.run import bound

    if (target is None) == (problems is None):
        raise UsageError("name one TARGET, or a table of problems with --csv FILE")
    if problems is not None:
        _in_bulk(problems, gpus, out, given)
        return
    out.plan(BoundReport)
    asked = options.taken(BoundOptions, given)
    keywords = options.profile_options(given, "" if is_record(str(target)) else "inference")
    found = None if keywords.get("cluster") and not gpus else chosen_gpus(gpus, out.messages.say)
    with running(str(target), out.messages):
        made = bound(target, gpu=found, **asked, **keywords)
    out.show(BoundReport(made))


def _in_bulk(path: str, gpus: tuple[str, ...], out: Out, given: dict[str, Any]) -> None:
    """All problems of a table."""
    from memwall.bounding.problems import ProblemsReport, read_problems, solved

    out.plan(ProblemsReport)
    if given.pop("measured", None) or given.pop("kernel", None):
        raise UsageError("--measured and --kernel are of one TARGET; a table has a column measured")
    baseline = options.taken(BoundOptions, given).get("baseline", "eager")
    keywords = options.profile_options(given)
    found = chosen_gpus(gpus, out.messages.say)
    rows = read_problems(path, found)
    with running(path, out.messages):
        made = solved(rows, baseline, **keywords)
    out.show(ProblemsReport(made, baseline))
