"""``memwall calibrate``: measure what this machine reaches, and write it as a hardware spec or as a host."""

from __future__ import annotations

from pathlib import Path

import click

from memwall.cli import options
from memwall.cli.output import Out, print_text
from memwall.cli.parsing import Command
from memwall.core.errors import UsageError
from memwall.core.files import write_whole
from memwall.hardware.lookup import read_spec

#: what is calibrated -> the option that takes its file
_OPTIONS = {"cpu": "--gpu", "cuda": "--gpu", "host": "--host"}


@click.command("calibrate", cls=Command)
@click.option(
    "--device", type=click.Choice(tuple(_OPTIONS)), default="cpu", show_default=True,
    help="What to measure; host: the CPU as it issues kernels, to a GPU where there is one.",
)  # fmt: skip
@click.option(
    "-o", "--output", "output", metavar="FILE",
    help="The TOML file to write. [default: cpu.toml, cuda.toml or host.toml in ~/.cache/memwall]",
)  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Cores of the CPU.")
@click.option("--rounds", type=click.IntRange(3), default=15, show_default=True, help="Samples of each quantity.")
@click.option("--accept-busy", is_flag=True, help="Measure although other processes run: rough figures.")
@options.quiet
@options.debug
def command(device: str, output: str | None, threads: int, rounds: int, accept_busy: bool, quiet: bool) -> None:
    """Measure this machine: bandwidths, products, functions, call overhead.

    The file is a hardware spec: give it to --gpu, as in memwall profile model.py --gpu ~/.cache/memwall/cpu.toml.
    memwall measure --device cpu finds it in its default place. With --device host it is a host for --host: the seconds
    of an op, a module, a view, an autograd node, compiled code, and, where there is a GPU, of what is launched on it.
    """
    from memwall.bench.calibrate import calibrate, default_spec_path
    from memwall.bench.calibrate.sampling import WIDE
    from memwall.report.pages.gpus import GpuReport

    path = Path(output) if output is not None else default_spec_path(device)
    if path.suffix.lower() != ".toml":
        raise UsageError(f"cannot write {path}: the name of a spec ends in .toml")
    if output is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    out = Out(quiet=quiet)
    messages = out.messages
    found = calibrate(device, threads=threads, rounds=rounds, accept_busy=accept_busy, progress=messages.say)
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
