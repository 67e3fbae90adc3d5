"""Shell completion: click's scripts, put where the shell looks for them; what completes a word."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from memwall.cli.parsing import COMPLETION, SeveralOption
from memwall.core.errors import UsageError, unknown
from memwall.core.files import write_whole

#: shell -> the file that it loads, from the folder of data or settings, and what else it needs
PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/memwall", "the package bash-completion"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/memwall.fish", ""),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_memwall",
            "'fpath+=({folder}); autoload -Uz compinit; compinit' in ~/.zshrc"),
}  # fmt: skip


def script(shell: str, group: click.Command) -> str:
    """What a shell runs to complete memwall's commands. Raises ``UsageError``: no such shell."""
    return _completer(shell)(group, {}, "memwall", COMPLETION).source()


def place(shell: str) -> tuple[Path, str]:
    """Where a shell's script goes, and what the shell needs to find it there."""
    variable, default, name, needs = PLACES[shell]
    root = os.environ.get(variable, "")
    path = (Path(root) if Path(root).is_absolute() else Path.home() / default) / name
    return path, needs.format(folder=path.parent)


def install(shell: str, group: click.Command) -> str:
    """Write the script, and say what was done. Raises ``UsageError``: no such shell, or the file cannot be written."""
    text = script(shell, group)
    path, needs = place(shell)
    tail = f"; {shell} needs {needs}" if needs else ""
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return f"{path} is up to date{tail}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    write_whole(path, text)
    return f"wrote {path}; it holds in new shells{tail}"


def this_shell() -> str:
    """The user's shell, from ``$SHELL``. Raises ``UsageError`` if completion does not support it."""
    name = Path(os.environ.get("SHELL", "")).name
    if name not in PLACES:
        raise UsageError(f"cannot tell the shell from $SHELL; name it: {', '.join(PLACES)}")
    return name


def answer(instruction: str, group: click.Command) -> int:
    """Answer a shell's question, ``bash_complete``, from the variables that it sets. Raises ``UsageError``: it is no
    such question, or the variables are not set."""
    shell, _, kind = instruction.partition("_")
    completer = _completer(shell)(group, {}, "memwall", COMPLETION)
    if kind not in ("source", "complete"):
        raise unknown("question of a shell", instruction, (f"{shell}_source", f"{shell}_complete"))
    if kind == "complete" and not {"COMP_WORDS", "COMP_CWORD"} <= os.environ.keys():
        raise UsageError(f"{COMPLETION}={instruction} needs $COMP_WORDS and $COMP_CWORD, which a shell sets")
    click.echo(completer.source() if kind == "source" else completer.complete())
    return 0


def _completer(shell: str) -> type[ShellComplete]:
    found = get_completion_class(shell) if shell in PLACES else None
    if found is None:
        raise unknown("shell", shell, PLACES)
    return type("Completer", (_Several, found), {})


class _Several(ShellComplete):
    """Repeats a flag that takes several values before a word that may be one more of them."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        words = args[:]
        flag = next((word for word in reversed(args) if word.startswith("-")), "")
        if flag in _several_flags(self.cli, args) and args[-1] != flag:
            words.append(flag)
        found = super().get_completions(words, incomplete)
        return found or super().get_completions(args, incomplete)


def _several_flags(group: click.Command, args: list[str]) -> set[str]:
    assert isinstance(group, click.Group)
    command = group.get_command(click.Context(group), args[0]) if args else None
    params = command.params if command else []
    return {flag for param in params if isinstance(param, SeveralOption) for flag in param.opts}


# -- what completes a word ---------------------------------------------------------------------------------------------


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files and folders, by the shell."""
    return [CompletionItem(incomplete, type="file")]


def gpus(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of GPUs."""
    from memwall.hardware.lookup import gpu_names

    return _starting(incomplete, gpu_names())


def hosts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of hosts."""
    from memwall.hardware.host import host_names

    return _starting(incomplete, host_names())


def clusters(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of clusters."""
    from memwall.hardware.cluster import cluster_names
    from memwall.hardware.slices import slice_names

    return _starting(incomplete, (*cluster_names(), *slice_names()))


def policies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of policies."""
    from memwall.fusion import POLICIES

    return _starting(incomplete, POLICIES)


def torch_versions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Versions of torch whose kernels are modeled."""
    from memwall.hardware.torch_versions import TORCH

    return _starting(incomplete, TORCH)


def dtypes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of dtypes that a model is cast to."""
    return _starting(incomplete, ("bf16", "fp16", "fp32"))


def _starting(incomplete: str, names: Any) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
