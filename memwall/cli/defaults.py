"""``[tool.memwall]`` of pyproject.toml: what profile and compare take where the command line says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memwall.cli.parsing import Command
from memwall.core.errors import UsageError, unknown
from memwall.frontend.targets.sizes import SIZES

#: options that may have a default; the gate has a table of its own
KEYS = ("gpu", "host", "mode", "policy", "dtype", "autocast", *SIZES, "optimizer", "attention", "cuda_graph", "real",
        "input", "assume", "max_ops", "top", "sort", "by")  # fmt: skip
_SAID = "memwall.defaults"


class CommandWithDefaults(Command):
    """A command on models whose options may have their defaults in pyproject.toml. The command line goes first, and a
    saved record or a trace, which are made already, take none."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from memwall.frontend.targets.target import is_saved

        rest = super().parse_args(ctx, args)
        targets = ctx.params.get("targets") or (ctx.params.get("target"),)
        if not ctx.resilient_parsing and all(target and not is_saved(target) for target in targets):
            self._apply(ctx, *_find(Path.cwd()))
        return rest

    def _apply(self, ctx: click.Context, table: dict[str, Any], where: str) -> None:
        params = {flag: param for param in self.params for flag in param.opts}
        taken = []
        mode = ctx.params.get("mode") or table.get("mode")
        for key, value in table.items():
            param = params.get(f"--{key.replace('_', '-')}")
            if param is None or param.name is None or ctx.get_parameter_source(param.name) != ParameterSource.DEFAULT:
                continue
            if key == "optimizer" and mode != "training":
                continue
            ctx.params[param.name] = _value(ctx, param, value, f"{where}: {key}")
            taken.append(f"{key} = {', '.join(map(str, value)) if isinstance(value, list) else value}")
        ctx.meta[_SAID] = f"{where}: {'; '.join(taken)}" if taken else ""


def said() -> str:
    """The defaults that the running command took, for its page; empty where it took none."""
    return str(click.get_current_context().meta.get(_SAID, ""))


def _find(folder: Path) -> tuple[dict[str, Any], str]:
    """The table of the nearest pyproject.toml that has one, up to the root of the repository, and what messages call
    it. Raises ``UsageError``: it is no TOML, no table, or has an unknown key; names the nearest."""
    from memwall.core.files import read_toml

    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        tool = read_toml(path).get("tool") if path.is_file() else None
        table = tool.get("memwall") if isinstance(tool, dict) else None
        if table is not None:
            where = f"{path.name}: [tool.memwall]"
            if not isinstance(table, dict):
                raise UsageError(f"{where} is no table")
            own = {key: value for key, value in table.items() if key != "gate"}
            if strange := own.keys() - set(KEYS):
                raise unknown("setting", min(strange), KEYS, 0.5, where)
            return own, where
        if (place / ".git").exists():
            break
    return {}, ""


def _value(ctx: click.Context, param: click.Parameter, value: Any, where: str) -> Any:
    """A value converted as the command line converts it. Raises ``UsageError`` if the option does not accept it."""
    flag = isinstance(param, click.Option) and param.is_flag
    items = value if param.multiple and isinstance(value, list) else [value]
    if any(isinstance(item, bool) is not flag or not isinstance(item, (str, int, float)) for item in items):
        raise UsageError(f"{where} is {value!r}; want {'true or false' if flag else 'what the option takes'}")
    given = items if flag else list(map(str, items))
    try:
        return param.process_value(ctx, given if param.multiple else given[0])
    except (click.UsageError, UsageError) as error:
        message = error.message if isinstance(error, click.UsageError) else str(error)
        raise UsageError(f"{where}: {message}") from None
