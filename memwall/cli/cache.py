"""``memwall cache``: what memwall keeps in the user's cache folder, and how to clear it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from memwall.cli import options
from memwall.cli.parsing import Command
from memwall.core.cache import cache_folder, refused
from memwall.core.units import counted, size

#: what is kept: files of these names below the folder, all made again where they are missing
_KEPT = {
    "traces of sweeps": ("traces/*.kept",),
    "the GPUs' files as read": ("gpus.kept",),
    "compiled kernels": ("compiled/**/*",),
    "programs that XLA compiled": ("xla/*.kept",),
    "files of older versions": ("*.pickle", "traces/*.pickle"),
}


@click.command("cache", cls=Command, examples=(("memwall cache --clear", "Delete what is kept."),))
@click.option("--clear", is_flag=True, help="Delete what is kept; it is made again when it is needed.")
@options.debug
def command(clear: bool) -> None:
    """List what is kept between runs, or clear it.

    The folder is MEMWALL_CACHE, or memwall in the user's cache. A trace is used again only where the model's files,
    memwall and torch are as they were.
    """
    folder = cache_folder()
    click.echo(f"{folder}:")
    if why := refused(folder):
        click.echo(f"  not used: {why}; chmod 700, or set MEMWALL_CACHE to a folder of your own")
    for what, patterns in _KEPT.items():
        paths = [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]
        held = sum(map(_size, paths))
        for path in paths if clear else ():
            with contextlib.suppress(OSError):  # another process has cleared it
                path.unlink()
        click.echo(f"  {what}: {counted(len(paths), 'file')}, {size(held)}{', deleted' * bool(clear and paths)}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
