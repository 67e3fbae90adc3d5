"""What click does not do by itself: commands imported on use, options that take several values, one-line errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from memwall.core.errors import UsageError, unknown
from memwall.wings import command_module

#: the variable by which a shell asks for completions: ``bash_complete``
COMPLETION = "_MEMWALL_COMPLETE"


class CommandLineError(UsageError):
    """A command line that click refused, with the way to its help."""

    @classmethod
    def of(cls, error: click.ClickException) -> CommandLineError:
        """One line of a click error."""
        message = " ".join(error.format_message().split()).rstrip(".")
        context = getattr(error, "ctx", None)
        return cls(f"{message} (see {context.command_path if context else 'memwall'} --help)")


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-line help by title, and imports a command's module when it
    runs."""

    def __init__(self, *args: Any, groups: Mapping[str, Mapping[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._groups = groups
        self._help = {name: line for group in groups.values() for name, line in group.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._help:
            return None
        command = import_module(command_module(cmd_name)).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._help))
        for title, group in self._groups.items():
            with formatter.section(title):  # all commands of one width, so that their lines stand in one column
                formatter.write_dl([(name.ljust(width), line) for name, line in group.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            raise click.UsageError(str(unknown("command", args[0], self._help)), ctx) from None


class SeveralOption(click.Option):
    """An option that takes one value or several after one flag, and may be repeated: ``--gpu a100 h100``. With
    ``needs_value=False`` the flag may stand alone, and has an empty value then."""

    def __init__(self, *args: Any, needs_value: bool = True, **kwargs: Any) -> None:
        kwargs["multiple"] = True
        self.needs_value = needs_value
        super().__init__(*args, **kwargs)


#: title in a command's help -> its options, in this order
OPTION_GROUPS: Mapping[str, str] = {
    "Points": "vary where best pareto of",
    "Messages": "op min max library",
    "Scores": "split fit rows",
    "Limits and baselines": "config limit baseline baseline-ref init update allow-new runs history"
    " quantity github workload since least check",
    "Model and inputs": "mode batch seq dtype input dim kernel csv measured autocast optimizer prompt generate"
    " concurrency rate burst context lengths turns think system-prompt prefix-hit trace trace-scale requests client"
    " global-batch image images frames audio video seconds no-grad assume real"
    " max-ops no-replay strict second-batch second-seq no-capture other-rank ncu hlo",
    "Hardware": "gpu gpus per-node machines clock host cluster device",
    "Cost": "price kwh pue grams-per-kwh busy spot",
    "How it runs": "policy cuda-graph attention what-if executor launch weights kv slo engine base utilization"
    " utilization-of max-batch token-budget max-context prefill eager captured draft draft-tokens accept"
    " closed-form routing redundant straggler torch",
    "Many GPUs": "parallel tp ep dp pp replicas route failed autoscale startup disaggregate world nodes rank scale"
    " state no-overlap among",
    "Server": "transport port folder no-browser",
    "Kernels": "compile emit all alternatives",
    "Time, samples and processes": "samples rounds time-limit memory-limit no-check no-step strict-device accept-busy"
    " threads workers scheduler keep resume no-cache yes",
    "Output": "output record json explain by sort top depth figure style quiet no-progress rules schema",
}
#: the title of all others
OTHER_OPTIONS = "More"
#: command -> the options that people use first; the others are behind ``--help-all``
FIRST_OPTIONS: Mapping[str, str] = {
    "profile": "mode batch seq dtype gpu policy what-if parallel output json explain by",
    "compare": "mode batch seq dtype gpu price policy machines output json",
    "bound": "measured kernel csv clock dim input dtype gpu policy output json",
    "serve": "prompt generate concurrency rate gpu launch weights tp slo price output json",
    "sweep": "vary where best pareto top price output",
    "search": "mode concurrency rate prompt generate gpu gpus slo price global-batch output",
    "fuse": "mode batch seq dtype gpu policy compile emit alternatives output",
    "measure": "mode batch seq dtype gpu device executor output record json",
    "gate": "config limit baseline baseline-ref init update history github output",
    "report": "by sort top history output json",
    "calibrate": "device rounds threads accept-busy engine base launch gpu tp weights output",
    "comm": "op min max library gpus per-node cluster launch output json",
}


_ALL = "memwall.help_all"


def _show_all(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    """``--help-all``."""
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class Command(click.Command):
    """A command that may have :class:`SeveralOption`.

    After such a flag, words belong to it until the next option or a word that reads as a target (ends in ``.py`` or
    ``.json``, or has ``:`` or ``/`` in it, a ``.toml`` file and ``MODULES:WHAT=VALUE`` aside). Put any other target
    before the flag. ``examples``, with which its help ends, are command lines, each with what it answers.
    """

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from memwall.frontend.targets.target import is_target

        options = [p for p in self.params if isinstance(p, SeveralOption)]
        alone = {flag for p in options if not p.needs_value for flag in p.opts}
        filled = [
            f"{word}=" if word in alone and (after.startswith("-") or is_target(after)) else word
            for word, after in zip(args, [*args[1:], "--"], strict=False)
        ]  # a flag that stands alone gets an empty value
        return super().parse_args(ctx, spread(filled, {flag for p in options for flag in p.opts}))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        found = super().get_params(ctx)
        if self.name in FIRST_OPTIONS:
            every = click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show every option and exit.",
            )
            found.insert(len(found) - 1, every)
        return found

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options in titled groups: options that people use first, or all."""
        first = {f"--{name}" for name in (*FIRST_OPTIONS.get(self.name or "", "").split(), "help", "help-all")}
        if len(first) == 2 or ctx.meta.get(_ALL):
            first = set()
        titles = {f"--{name}": title for title, names in OPTION_GROUPS.items() for name in names.split()}
        order = {flag: place for place, flag in enumerate(titles)}
        found: dict[str, list[tuple[int, tuple[str, str]]]] = {title: [] for title in (*OPTION_GROUPS, OTHER_OPTIONS)}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is not None:
                flag = next((flag for flag in param.opts if flag in titles), "")
                if isinstance(param, click.Argument) or (first and not first & {*param.opts}):
                    continue
                found[titles.get(flag, OTHER_OPTIONS)].append((order.get(flag, 0), row))
        for title, rows in found.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl([row for _, row in sorted(rows, key=lambda item: item[0])])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each line whole, so that it can be copied."""
        with formatter.section("Examples"):
            for line, answer in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
                with formatter.indentation():
                    formatter.write_text(answer)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            from memwall.cli.edited import refuse_misfit

            refuse_misfit(ctx.params)  # else it is a bug
            raise


def spread(args: Sequence[str], several: set[str]) -> list[str]:
    """Repeat a flag of ``several`` before each of the values that follow it."""
    from memwall.frontend.targets.target import is_target

    result: list[str] = []
    flag, first = "", False
    for position, word in enumerate(args):
        if word == "--":
            return [*result, *args[position:]]
        name, equals, _ = word.partition("=")
        if name in several:
            result.append(word)
            flag, first = name, not equals
        elif word.startswith("-") and word != "-":
            result.append(word)
            flag = ""
        elif flag and first:
            result.append(word)
            first = False
        elif flag and (not is_target(word) or ("=" in word and ":" in word)):
            result += [flag, word]
        else:
            result.append(word)
            flag = ""
    return result
