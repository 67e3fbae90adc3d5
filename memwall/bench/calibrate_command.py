"""``memwall calibrate``: measure what this machine reaches, and write it as a hardware spec or as a host; or fit an
inference engine to runs that were measured, and write it as an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memwall.cli import options
from memwall.cli.output import Out, print_text
from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.core.question import options_of
from memwall.hardware.lookup import read_spec
from memwall.wings import part

#: what is calibrated -> the option that takes its file
_OPTIONS = {"cpu": "--gpu", "cuda": "--gpu", "host": "--host", "engine": "--engine"}
#: options of servers that are no single engine, or not simulated
_NO_SERVER = ("engine", "closed_form", "disaggregate", "replicas", "route", "autoscale", "startup")
#: options of a server that is calibrated, and options of this machine
_SERVER = (
    "gpu",
    "base",
    "launch",
    *(name for name in options_of(part("serving.ServerOptions")) if name not in _NO_SERVER),
)
_MACHINE = ("device", "threads", "rounds", "accept_busy")
#: ends of names of results
_RESULTS = (".json", ".jsonl")


@click.command(
    "calibrate",
    cls=part("serving.ServeCommand"),
    examples=(
        (
            "memwall calibrate --device cuda -o mine.toml",
            "What this machine's GPU reaches, as a spec for --gpu mine.toml.",
        ),
        (
            "memwall calibrate hf:FOLDER --engine c1.json c8.json c32.json --gpu h100 -o engine.toml",
            "An inference engine, fitted to three runs of its benchmark.",
        ),
    ),
)
@click.argument("words", metavar="[TARGET] [RESULT...] [-- COMMAND...]", nargs=-1)
@click.option(
    "--device", type=click.Choice(("cpu", "cuda", "host")), default="cpu", show_default=True,
    help="What to measure; host: the CPU as it issues kernels, to a GPU where there is one.",
)  # fmt: skip
@click.option("--engine", "results", multiple=True, metavar="RESULT", shell_complete=options.completing("files"),
              help="Fit the engine of a server to its runs, as vLLM's, SGLang's or InferenceX's benchmark wrote them."
              " May be repeated.")  # fmt: skip
@click.option(
    "-o", "--output", "output", metavar="FILE",
    help="The TOML file to write. [default: cpu.toml, cuda.toml, host.toml or engine.toml in ~/.cache/memwall]",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Cores of the CPU.")
@click.option("--rounds", type=click.IntRange(3), default=15, show_default=True, help="Samples of each quantity.")
@click.option("--accept-busy", is_flag=True, help="Measure although other processes run: rough figures.")
@click.option("--base", metavar="NAME", help="Of --engine: the engine that served, as vllm@0.11. [default: as results"
              " and COMMAND say, else vllm]")  # fmt: skip
@click.option("--gpu", metavar="NAME", shell_complete=options.completing("gpus"),
              help="Of --engine: the GPU that served. [default: h100-sxm]")  # fmt: skip
@click.option("--launch", metavar="FILE", shell_complete=options.completing("files"),
              help="Of --engine: a script, Dockerfile or manifest with the COMMAND of the server.")  # fmt: skip
@options.question(part("serving.ServerOptions"), but=_NO_SERVER, of="Of --engine: ")
@options.quiet
@options.debug
def command(words: tuple[str, ...], results: tuple[str, ...], output: str | None, quiet: bool, **given: Any) -> None:
    """Measure this machine: bandwidths, products, functions, call overhead. With --engine: fit an inference engine.

    The file is a hardware spec: give it to --gpu, as in memwall profile model.py --gpu ~/.cache/memwall/cpu.toml.
    memwall measure --device cpu finds it in its default place. With --device host it is a host for --host: the seconds
    of an op, a module, a view, an autograd node, compiled code, and, where there is a GPU, of what is launched on it.

    With --engine RESULT... it is an engine for memwall serve --engine: what its CPU takes, fitted to runs of a server
    of TARGET, which is said as to memwall serve, or by the COMMAND that started it.
    """
    machine = {name: given.pop(name) for name in _MACHINE}
    path = _path(output, "engine" if results else machine["device"])
    out = Out(quiet=quiet)
    if results:
        options.refuse_given("with --engine", *_MACHINE)
        _calibrate_engine(words, results, path, out, given)
        return
    options.refuse_given("without --engine", *_SERVER)
    if words:
        raise UsageError(f"{words[0]}: what a server is calibrated with goes with --engine RESULT")
    _calibrate_machine(path, out, **machine)


def _path(output: str | None, what: str) -> Path:
    """Where the file may stand."""
    from memwall.bench.calibrate import default_spec_path

    path = Path(output) if output is not None else default_spec_path(what)
    if path.suffix.lower() != ".toml":
        raise UsageError(f"cannot write {path}: the name of a spec ends in .toml")
    if output is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    return path


def _calibrate_engine(
    words: tuple[str, ...], results: tuple[str, ...], path: Path, out: Out, given: dict[str, Any]
) -> None:
    """Results stand behind ``--engine`` or without it; what else stands there is the target."""
    more = [word for word in words if word.lower().endswith(_RESULTS)]
    targets = [word for word in words if word not in more]
    if len(targets) > 1:
        raise UsageError(
            f"{' and '.join(targets[:2])}: one server is calibrated; results end in {' or '.join(_RESULTS)}"
        )
    target, base = next(iter(targets), None), given.pop("base")
    asked = {**part("serving.launched")(target, given), "engine": base}
    found = part("serving.calibrate_engine")(target, [*results, *more], **options.given(**asked))
    write_whole(path, found.text)
    out.show(part("serving.CalibrationReport")(found))
    out.messages.say(f"wrote {path}; use it as --engine {path}")


def _calibrate_machine(path: Path, out: Out, *, device: str, threads: int, rounds: int, accept_busy: bool) -> None:
    from memwall.bench.calibrate import calibrate
    from memwall.bench.calibrate.sampling import WIDE
    from memwall.report.pages.gpus import GpuReport

    messages = out.messages
    found = calibrate(device, threads=threads, rounds=rounds, accept_busy=accept_busy, progress=messages.progress)
    write_whole(path, found.spec)
    if device == "host":
        print_text(found.spec)
    else:
        out.show(GpuReport(read_spec(path)))
    if uncertain := found.uncertain:
        worst = max(uncertain, key=lambda quantity: quantity.spread)
        messages.warn(
            f"{len(uncertain)} of {len(found.quantities)} quantities vary by more than {WIDE:.0%}, {worst.name} most,"
            f" by {worst.spread:.0%}: measure again on an idle machine"
        )
    messages.say(f"wrote {path}; use it as {_OPTIONS[device]} {path}")
