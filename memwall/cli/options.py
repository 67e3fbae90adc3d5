"""The options that commands share, each written down once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from importlib import import_module
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from memwall.analysis.quantities import SORT_KEYS
from memwall.cli.output import SUFFIXES, Out
from memwall.cli.parsing import SeveralOption
from memwall.core.errors import UsageError, unknown
from memwall.core.progress import listening
from memwall.core.question import Option, options_of
from memwall.step import Step

F = TypeVar("F", bound=Callable[..., Any])


def completing(kind: str) -> Callable[[click.Context, click.Parameter, str], list[Any]]:
    """What completes a word: a function of :mod:`memwall.cli.completion`, which is imported when a shell asks."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        found: list[Any] = getattr(import_module("memwall.cli.completion"), kind)(context, parameter, incomplete)
        return found

    return complete


def _decorator(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def asked(question: Any, name: str, of: str = "") -> Callable[[F], F]:
    """The option of the command line that a field of a question says; not given, it is None, or False of a flag."""
    said = options_of(question)[name]
    first = said.help.partition(" ")[0]
    kept = not of or any(map(str.isupper, first[1:]))  # "GPUs", "CUDA" keep their capitals
    more: dict[str, Any] = {
        "metavar": said.metavar,
        "help": of + (said.help if kept else said.help[0].lower() + said.help[1:]),
    }
    if said.completes:
        more["shell_complete"] = completing(said.completes)
    if said.choices:
        more["type"] = click.Choice(said.choices)
    elif bool in said.types:
        more["is_flag"] = True
    elif str not in said.types and int in said.types:
        more["type"] = _number(said)
    if said.shown:
        more |= {"default": said.default, "show_default": True}
    if said.several == "words" and int in said.types:
        more |= {"cls": SeveralOption, "callback": numbers, "type": str}
    elif said.several == "words":
        more["cls"] = SeveralOption
    elif said.several:
        more["multiple"] = True
    return click.option(f"--{said.spelled}", _keyword(said), **more)


def _keyword(said: Option) -> str:
    return f"no_{said.name}" if said.default is True else said.name


def _number(said: Option) -> Any:
    if float in said.types:
        return float if said.above is None else click.FloatRange(said.above, min_open=True)
    return int if said.least is None else click.IntRange(said.least)


def taken(question: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """What the user gave of a question's options, which are taken out of the keywords of a command."""
    known = options_of(question)
    found = given(**{name: keywords.pop(_keyword(said), None) for name, said in known.items()})
    return {name: False if known[name].default is True else value for name, value in found.items()}


#: the largest number of clients, or of GPUs of an engine
_LARGEST = 1_000_000


def numbers(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> tuple[int, ...]:
    """The words as whole numbers above 0, without repeats. Raises ``UsageError``: a word is not such a number."""
    for word in words:
        if not word.isdecimal() or not 0 < int(word[:40]) <= _LARGEST:
            raise UsageError(f"{parameter.opts[0]} takes whole numbers from 1 to {_LARGEST:,}, not {word[:40]!r}")
    return tuple(dict.fromkeys(map(int, words)))


def gpus_of(default: str) -> Callable[[F], F]:
    """``--gpu``, and ``--host``, what issues their kernels."""
    return _decorator(
        click.option(
            "--gpu",
            "gpus",
            cls=SeveralOption,
            metavar="NAME...",
            shell_complete=completing("gpus"),
            help=f"One GPU or several, by name (see memwall gpus) or by the path of a TOML file. [default: {default}]",
        ),
        asked(Step, "host"),
    )


gpus = gpus_of("this machine's GPU, else h100-sxm; a saved profile's own")


def _check_policies(
    context: click.Context | None, parameter: click.Parameter | None, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Policies that there are, each once; refused before any work."""
    if names:
        from memwall.fusion import POLICIES

        for name in names:
            if name not in POLICIES:
                raise unknown("policy named", name, POLICIES)
    return tuple(dict.fromkeys(names))


class PoliciesOption(SeveralOption):
    """``--policy``: its help lists the policies that there are, read when help is shown."""

    def __init__(self, *args: Any, what: str, otherwise: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.what, self.otherwise = what, otherwise

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from memwall.fusion import POLICIES

        *names, last = POLICIES
        self.help = f"{self.what}: {', '.join(names)} or {last}. [default: {self.otherwise}]"
        return super().get_help_record(ctx)


def policies_of(otherwise: str, what: str = "How ops run") -> Callable[[F], F]:
    """``--policy``, and what is taken where it is not given."""
    return click.option(
        "--policy",
        "policies",
        cls=PoliciesOption,
        what=what,
        otherwise=otherwise,
        metavar="NAME...",
        callback=_check_policies,
        shell_complete=completing("policies"),
    )


policies = policies_of("eager; a saved profile's own")

_ranks = _decorator(
    asked(Step, "cluster"),
    asked(Step, "world"),
    click.option("--nodes", type=click.IntRange(1), metavar="N",
                 help="Instead of --world: as many as N nodes of --cluster have GPUs."),
    asked(Step, "rank"),
)  # fmt: skip


def ranks(function: F) -> F:
    """``--cluster``, ``--world`` or ``--nodes``, which becomes ``world``, and ``--rank``."""

    @wraps(function)
    def run(*, nodes: int | None, **given: Any) -> Any:
        if nodes is not None:
            given["world"] = _gpus_on(nodes, given["cluster"], given["world"])
        if given["rank"] is not None and given["world"] is None:
            raise UsageError("--rank is one of --world N, or of --nodes N; name that too")
        return function(**given)

    return _ranks(run)  # type: ignore[return-value]


def _gpus_on(nodes: int, cluster: str | None, world: int | None) -> int:
    from memwall.hardware.cluster import load_cluster

    if cluster is None:
        raise UsageError("--nodes goes with --cluster, which says how many GPUs a node has")
    gpus = nodes * load_cluster(cluster).gpus_per_node
    if world not in (None, gpus):
        raise UsageError(f"--nodes {nodes} of {cluster} are {gpus:,} GPUs, --world says {world:,}; give one")
    return gpus


what_ifs = click.option(
    "--what-if", "what_ifs", multiple=True, metavar="SPEC",
    help="Totals again with 'dram_bytes_per_s*=2', 'l2_bytes=100MB' (a number of the GPU), dispatch_s/=2 (of its host),"
    " dtype=bf16 (matmuls in it) or 'fuse:layers.*.mlp' (modules as one kernel each). May be repeated.",
)  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print the record as JSON, and nothing else.")

debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")

quiet = click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")


#: what --figure takes: the names of :data:`memwall.report.figures.profile.FIGURES`
FIGURES = ("roofline", "overlay", "waterfall", "flame", "treemap", "memory", "shares", "walls")
#: what --style takes: the names of :data:`memwall.report.figures.scene.STYLES`
STYLES = ("screen", "paper")

shape = _decorator(
    click.option("--top", type=click.IntRange(1), metavar="N", help="List the N largest. [default: 15]"),
    click.option(
        "--sort", type=click.Choice(tuple(SORT_KEYS)), help="Order kernels by this, largest first. [default: time]"
    ),
    click.option(
        "--by", type=click.Choice(("op", "module", "class", "phase")), help="List ops, modules, classes or phases."
    ),
    click.option("--depth", type=click.IntRange(1), metavar="N", help="Levels of the tree of --by module."),
    click.option(
        "--figure", "picture", type=click.Choice(FIGURES),
        help="What a .png, .svg or .pdf shows; overlay: all GPUs on one roofline. [default: rooflines and bars]",
    ),
)  # fmt: skip


def question(asked_of: Any, *, but: Sequence[str] = (), of: str = "") -> Callable[[F], F]:
    """All options of a question, but for some that a command says otherwise; the help begins with what they are of."""
    return _decorator(*(asked(asked_of, name, of) for name in options_of(asked_of) if name not in but))


workload = question(Step, but=("host", "cluster", "world", "rank"))


class FilesOption(click.Option):
    """``-o``: its help lists the suffixes of what a page can be written as, read from the page when help is shown."""

    def __init__(self, *args: Any, page: str, suffixes: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.page, self.suffixes = page, suffixes

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        module, _, name = self.page.rpartition(".")
        kinds = getattr(import_module(f"memwall.{module}"), name).kinds
        known = " ".join(suffix for suffix, kind in self.suffixes.items() if kind in kinds)
        self.help = f"Write a file too; its suffix says what: {known}. May be repeated."
        return super().get_help_record(ctx)


def common(page: str, suffixes: Mapping[str, str] = SUFFIXES) -> Callable[[F], F]:
    """``-o`` with the kinds of a page, such as ``report.pages.profile.ProfileReport``, ``--json`` and what silences
    messages: the command gets them as ``out``."""
    no_progress = click.option("--no-progress", is_flag=True, help="Show no progress while working.")
    files = click.option(
        "-o",
        "--output",
        "outputs",
        cls=FilesOption,
        page=page,
        suffixes=suffixes,
        multiple=True,
        metavar="FILE",
        shell_complete=completing("files"),
    )
    style = click.option(
        "--style",
        type=click.Choice(STYLES),
        default="screen",
        help="How a .png, .svg or .pdf looks; paper: one column, serif, without titles, for grey print.",
    )
    pictures = [style] if ".svg" in suffixes else []

    def decorate(function: F) -> F:
        @wraps(function)
        def run(
            *,
            outputs: tuple[str, ...],
            as_json: bool,
            quiet: bool,
            no_progress: bool,
            style: str = "screen",
            **given: Any,
        ) -> Any:
            if not any(output.lower().endswith(_PICTURES) for output in outputs):
                refuse_given(f"without -o FILE that ends in {', '.join(_PICTURES)}", "style", "picture")
            out = Out.of(outputs, as_json=as_json, style=style, quiet=quiet, no_progress=no_progress)
            with listening(out.messages.progress):
                return function(out=out, **given)

        return _decorator(files, *pictures, as_json, quiet, no_progress, debug)(run)  # type: ignore[return-value]

    return decorate


#: ends of pictures
_PICTURES = (".png", ".svg", ".pdf")
#: keywords of what every command has, whatever it answers
_EVERYWHERE = ("outputs", "as_json", "quiet", "no_progress", "style")


def on_command_line() -> dict[str, str]:
    """Options that the command line of the running command has: keyword → flag."""
    context = click.get_current_context()
    return {
        param.name: max(param.opts, key=len)
        for param in context.command.params
        if isinstance(param, click.Option)
        and param.name is not None
        and context.get_parameter_source(param.name) == ParameterSource.COMMANDLINE
    }


def refuse_given(why: str, *names: str, but: Collection[str] = ()) -> None:
    """Refuse options without an effect: the ones named, else all ``but`` some. Raises ``UsageError``: the command line
    has one; names the flags, and says why."""
    said = on_command_line()
    wrong = [flag for name, flag in said.items() if (name in names if names else name not in (*but, *_EVERYWHERE))]
    if wrong:
        raise UsageError(f"{', '.join(wrong)} {'has' if len(wrong) == 1 else 'have'} no effect {why}")


def words_given(*, but: Collection[str]) -> tuple[str, ...]:
    """The words of the options that the command line has, ``but`` some and what says where a result goes."""
    context, words = click.get_current_context(), list[str]()
    for name, flag in on_command_line().items():
        value = context.params[name]
        if name not in (*but, *_EVERYWHERE):
            for each in value if isinstance(value, tuple) else (value,):
                words += [flag] if each is True else [flag, str(each)]
    return tuple(words)


def given(**options: Any) -> dict[str, Any]:
    """Only what the user gave, so that every default stands in one place: the called function's signature."""
    return {name: value for name, value in options.items() if value is not None and value is not False and value != ()}


def profile_options(options: dict[str, Any], mode: str = "inference") -> dict[str, Any]:
    """The keywords of :func:`memwall.profile` from options of :data:`workload`; ``mode`` is the step's where none is
    given, empty where nothing is traced. Raises ``UsageError``: an optimizer of a step that has none."""
    renamed = given(**options)
    if "policies" in renamed:
        renamed["policy"] = list(renamed.pop("policies"))
    if renamed.pop("no_replay", False):
        renamed["replay"] = False
    if mode and "optimizer" in renamed and (mode := renamed.get("mode", mode)) != "training":
        raise UsageError(f"--optimizer has no effect in --mode {mode}: add --mode training")
    if renamed.get("optimizer") == "adamw":
        renamed["optimizer"] = "adamw:foreach"  # the same on CUDA; the bare name leaves the file's own in place
    return renamed


def shape_options(**shape: Any) -> dict[str, Any]:
    """What the user gave of :data:`shape`. Raises ``UsageError``: ``--depth`` of what is no tree."""
    found = given(**shape)
    if "depth" in found and found.get("by") != "module":
        raise UsageError("--depth is of the tree of modules; it goes with --by module")
    return found


def refuse(keywords: dict[str, Any], reason: str) -> None:
    """Refuse options that say how to trace, where nothing is traced. Raises ``UsageError``: there are any; names their
    flags and the reason."""
    if keywords:
        flags = ", ".join(_FLAGS.get(name, "--" + name.replace("_", "-")) for name in keywords)
        raise UsageError(f"{flags} says how to trace a model, but {reason}")


_FLAGS = {"input_specs": "--input", "dims": "--dim", "replay": "--no-replay"}


def parse_prices(texts: Sequence[str]) -> dict[str, float]:
    """``('h100=2.5', ...)`` as USD per hour by GPU name as given. Raises ``UsageError``: not NAME=NUMBER, or not a
    price."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        price = 0.0
        with contextlib.suppress(ValueError):
            price = float(number)
        if not name or not 0 < price < float("inf"):
            raise UsageError(f"--price takes NAME=USD above 0, such as h100=2.5, not {text[:40]!r}")
        prices[name] = price
    return prices


def priced(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> dict[str, float]:
    """The callback of ``--price``: USD per hour by the name of a GPU."""
    return parse_prices(words)
