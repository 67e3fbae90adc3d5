"""``memwall accuracy``: the model scored against measured kernels."""

from __future__ import annotations

from pathlib import Path

import click

from memwall.cli import options
from memwall.cli.output import Out, Output
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError


@click.command(
    "accuracy",
    cls=Command,
    examples=(
        ("memwall accuracy measured.json", "How far the model is from what memwall measure found, by op class."),
        ("memwall accuracy measured.json -o scores.csv", "The same as a table."),
    ),
)
@click.argument("files", nargs=-1, metavar="FILE...", shell_complete=options.completing("files"))
@click.option("--split", is_flag=True, help="Score held-out shapes and held-out GPUs too.")
@click.option("--fit", "rows", metavar="ROWS", help="Fit constants to the rows of one GPU; -o FILE.toml gets its file.")
@click.option("--rows", "deployments", type=click.IntRange(0), default=200, show_default=True, metavar="N",
              help="Deployments to simulate of each table, evenly spaced; 0: all.")  # fmt: skip
@options.common("bench.accuracy.page.AccuracyReport")
def command(files: tuple[str, ...], split: bool, rows: str | None, deployments: int, out: Out) -> None:
    """Score the model against measured kernels.

    FILE is a saved profile that memwall measure wrote (.json), or a table of its rows (.csv); where the repository's
    lab is installed (pip install -e lab) also a table of measured times of NeuSight, aiconfigurator, Vidur, DeepBench
    or Liger, or of deployments of language models, known by its columns.
    For each data set, GPU, op class and dtype: mean, median and 90th percentile of the error, its bias (above 0:
    modeled too slow), rank correlation, how many are within 20 %, and how many beat the roofline bound, which is a
    model error; next to them what two rooflines score. Each distinct kernel counts once. -o writes .md, .csv, .json,
    .txt, .png, .svg or .pdf.
    """
    from memwall.bench.accuracy.page import AccuracyReport, FitsReport

    if rows is not None:
        if files or split or out.as_json:
            raise UsageError("--fit takes the rows as its value; it goes with -o FILE.toml alone")
        from memwall.bench.accuracy.refit import refit

        out.files = [Output(_target(Path(name)), "toml") for name in out.paths]
        out.show(FitsReport(refit(rows)))
        return
    if not files:
        raise UsageError("Missing argument 'FILE...': what to score the model against")
    from memwall.bench.accuracy import score_files

    out.plan(AccuracyReport)
    out.show(AccuracyReport(score_files(dict.fromkeys(files), split=split, simulated=deployments)))


def _target(path: Path) -> Path:
    """Where the fitted file of a GPU may stand."""
    from memwall.hardware.lookup import gpu_names, spec_path

    if path.suffix != ".toml":
        raise UsageError(f"cannot write {path}: --fit writes the file of a GPU; end the name in .toml")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    if path.resolve() in {spec_path(name).resolve() for name in gpu_names()}:
        raise UsageError(f"cannot write {path}: it is a file of memwall's own; choose another name")
    return path
