"""A command line → the options of a server, and for each flag what it sets or why it sets nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memwall.core.errors import UsageError, nearest, suggest
from memwall.core.files import read_json, read_text
from memwall.core.question import options_of
from memwall.core.structure import one_line
from memwall.hardware.engine import load_engine
from memwall.serving.launch.command import LINES, FoundCommand, find_command, read_yaml
from memwall.serving.launch.flags import STORED, SWITCH, EngineLine, Flag, NotModeled
from memwall.serving.question import ServeOptions

#: how alike a flag of no table has to be to one that sets something: then it is a slip
_SLIP = 0.85
#: what configurations call the number of experts
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
#: variables of an engine that are no part of what is modeled
_QUIET_VARIABLES = re.compile(r".*(LOGGING|LOG_LEVEL|API_KEY|CACHE_ROOT|MODELSCOPE|HOST_IP|_PORT|USAGE|STATS|TRACE)")
#: ``-O3``, ``-tp8`` of letters and a number in one word
_GLUED = re.compile(r"-([A-Za-z]+)(\d+)")
#: what the configuration calls a method that a flag calls otherwise
_METHODS = {
    "awq_marlin": ("awq",), "gptq_marlin": ("gptq",), "marlin": ("gptq",), "moe_wna16": ("gptq", "awq"),
    "modelopt_fp8": ("modelopt",), "modelopt_fp4": ("modelopt",), "modelopt_mixed": ("modelopt",),
    "w8a8_fp8": ("compressed-tensors",), "w8a8_int8": ("compressed-tensors",), "auto-round": ("auto-round", "inc"),
    "inc": ("auto-round", "inc"), "deepseek_v4_fp8": ("fp8",), "gpt_oss_mxfp4": ("mxfp4",), "w4afp8": ("w4afp8", "fp8"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlag:
    """A flag as it was written: the option of ``memwall serve`` that it sets, its value in the end, or why it sets
    nothing; ``quiet`` where nothing that is modeled depends on it."""

    flag: str
    sets: str = ""
    value: str = ""
    why: str = ""
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLaunch:
    """A server as its command line says: the ``engine``, the ``model`` as it was named, the ``options`` of
    :func:`memwall.serve` that the flags set, and each flag. ``version`` is the image's, empty where none is said."""

    engine: str
    model: str
    version: str
    options: Mapping[str, Any]
    flags: tuple[LaunchFlag, ...]

    @property
    def target(self) -> str:
        """The model, as a target."""
        if not self.model:
            raise UsageError("the launch line names no model; give TARGET in front of it")
        return target_named(self.model)

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the line is not modeled, a line for each reason; and what changes nothing that is."""
        reasons: dict[str, list[str]] = {}
        for each in self.flags:
            if each.why:
                reasons.setdefault(each.why, []).append(each.flag)
        title = LINES[self.engine].title
        notes = [f"not modeled of {title}'s command: {', '.join(flags)}: {why}" for why, flags in reasons.items()]
        if self.version and "@" not in self.options["engine"]:
            newest = load_engine(self.engine).version
            notes.append(f"{title} {self.version} may differ: memwall takes {newest}, the newest that it knows")
        if silent := [each.flag for each in self.flags if each.quiet]:
            notes.append(f"{', '.join(silent)}: nothing that is modeled depends on it")
        return tuple(notes)

    def merged(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with what is given. Raises UsageError: one is said twice, and otherwise."""
        known = options_of(ServeOptions)
        for name, value in given.items():
            if name == "engine" and self.options[name] == self.engine == load_engine(value).kernels:
                continue  # a version, or a file, of the engine
            if name in self.options and value is not None and _plain(value) != _plain(self.options[name]):
                said = next((each.flag for each in self.flags if each.sets == name), LINES[self.engine].title)
                raise UsageError(
                    f"--{known[name].spelled} {_said(value)} and {said} of the launch line, which is"
                    f" {_said(self.options[name])}, say {name} otherwise: leave one out"
                )
        return {**self.options, **given}


def _plain(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _said(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def read_launch(launch: str | Path | Sequence[str], target: str | None = None) -> ServerLaunch:
    """Read a command line.

    Args:
        launch: its words, its text as a shell has it, or the path of a script, a Dockerfile or a manifest.
        target: where the configuration of the model lies, if not where the command says.

    Raises:
        UsageError: there is no one command of an engine; a flag has no such value, is said twice and otherwise, or
            is much like one that the engine has; a format of weights that the checkpoint has not.
    """
    command = find_command(launch)
    line = command.line
    said, flags = _read_flags(line, command)
    values = {name: each.value for name, each in said.items()}
    options, left = line.combine(values)
    model = str(values.get("model", ""))
    if "weights" in values:
        options["weights"] = _weights(said["weights"], target or (target_named(model) if model else ""))
    if "slots" in values:
        experts = experts_of(target or target_named(model))
        if experts is None:
            left["slots"] = "how many are copies follows from the model's configuration, which is not here: --redundant"
        elif values["slots"] < experts:
            raise UsageError(f"{said['slots'].text} are fewer than the {experts} experts of the model")
        else:
            options["redundant"] = values["slots"] - experts
    if options.get("draft") not in (None, "mtp"):
        options["draft"] = target_named(options["draft"])
    engine = engine_of_version(line.engine, command.version)
    options = {"engine": engine, **{name: value for name, value in options.items() if value is not None}}
    shown = tuple(_in_the_end(name, each, options, left) for name, each in flags if name != "model")
    return ServerLaunch(engine=line.engine, model=model, version=command.version, options=options, flags=shown)


def engine_of_version(name: str, version: str) -> str:
    """The engine of the version of an image, where memwall knows that; else the newest."""
    found = re.match(r"\d+(\.\d+)*", version)
    try:
        return load_engine(f"{name}@{found[0]}").name if found else name
    except UsageError:
        return name


def _in_the_end(name: str, each: LaunchFlag, options: Mapping[str, Any], left: Mapping[str, str]) -> LaunchFlag:
    """A flag with the value of its option, of the first that is set where it may be several, or why it has none."""
    if name in left:
        return replace(each, sets="", why=left[name])
    if not each.sets:
        return each
    names = each.sets.split()
    sets = next((option for option in names if option in options), names[0])
    return replace(each, sets=sets, value=_said(options.get(sets, "as by default")))


# -- the words of a command --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    """A flag as it stands: its name, the words behind it, and how it is said."""

    name: str
    words: tuple[str, ...]
    text: str
    is_negated: bool = False


@dataclass(frozen=True)
class _Said:
    """What a flag says, how it is said, and its word."""

    value: Any
    text: str
    word: str


def _read_flags(line: EngineLine, command: FoundCommand) -> tuple[dict[str, _Said], list[tuple[str, LaunchFlag]]]:
    """The values by what they set, and each flag with that name, empty where it sets nothing."""
    flagged = [*_entries(line, command.words)]
    stated = [each for file in flagged if file.name in line.config for each in _of_file(line, command, file)]
    flagged = [each for each in flagged if each.name not in line.config]
    values: dict[str, _Said] = {}
    shown: list[tuple[str, LaunchFlag]] = []
    for part in (flagged, stated) if line.config_wins else (stated, flagged):
        own, rows = _read_part(line, part)
        overruled = {values[name].text for name in own if name in values}
        shown = [each for each in shown if each[1].flag not in overruled] + rows
        values |= own
    shown += [("", _of_variable(line, *each)) for each in command.variables.items()]
    return values, shown


def _read_part(line: EngineLine, part: Sequence[_Words]) -> tuple[dict[str, _Said], list[tuple[str, LaunchFlag]]]:
    """Flags that stand in one place. Raises UsageError: two of them contradict each other."""
    values: dict[str, _Said] = {}
    rows: list[tuple[str, LaunchFlag]] = []
    for entry in part:
        flag = _flag_of(line, entry.name)
        if flag is None or not flag.sets:
            rows.append(("", _no_effect(line, flag, entry)))
            continue
        try:
            value = _value(line, flag, entry)
        except NotModeled as why:
            rows.append(("", LaunchFlag(flag=entry.text, why=str(why))))
            continue
        rows.append((flag.sets, LaunchFlag(flag=entry.text, sets=flag.shown)))
        before = values.get(flag.sets)
        if before is not None and value is not None and before.value != value:
            if "$" in entry.text:
                raise UsageError(f"{entry.text}: a variable whose value is not known; write its value")
            raise UsageError(f"{before.text} and {entry.text} contradict each other: leave one out")
        if value is not None:
            values[flag.sets] = _Said(value, entry.text, " ".join(entry.words).lower())
    return values, rows


def _no_effect(line: EngineLine, flag: Flag | None, entry: _Words) -> LaunchFlag:
    """Raises UsageError: a flag that no table has is much like one that sets something."""
    name = entry.text.partition(" ")[0].partition("=")[0]
    if flag is not None:  # what is behind a quiet one may be a secret
        return LaunchFlag(flag=name if flag.quiet else entry.text, why=flag.why, quiet=flag.quiet)
    alike = nearest(entry.name, line.modeled, cutoff=_SLIP)
    if alike:
        raise UsageError(f"{line.title} has no {name}; {suggest(entry.name, line.modeled, cutoff=_SLIP)}")
    return LaunchFlag(flag=entry.text, why="memwall does not know it")


def _of_variable(line: EngineLine, name: str, value: str) -> LaunchFlag:
    if not name.startswith(line.prefixes) or _QUIET_VARIABLES.match(name):
        return LaunchFlag(flag=name, quiet=True)
    return LaunchFlag(flag=f"{name}={value}", why="variables of the engine are not read")


def _flag_of(line: EngineLine, name: str) -> Flag | None:
    """The flag of a name, or of the beginning of one."""
    if name in line.flags or not line.abbreviates:
        return line.flags.get(name)
    found = {id(flag): flag for known, flag in line.flags.items() if known.startswith(name) and "." not in known}
    return next(iter(found.values())) if len(found) == 1 and len(name) > 2 else None


def _value(line: EngineLine, flag: Flag, entry: _Words) -> Any:
    if not entry.words and flag.kind.words != "?":
        raise UsageError(f"{entry.text} wants {flag.kind.wanted} behind it")
    text = " ".join(entry.words)
    if "$" in text and flag.sets != "model":
        raise UsageError(f"{entry.text}: a variable whose value is not known; write its value")
    try:
        negated = entry.is_negated and flag.kind.words == SWITCH.words
        value = flag.kind.read(str(not SWITCH.read(text)) if negated else text)
    except (ValueError, KeyError, OverflowError):
        alike = suggest(text, flag.kind.wanted.removeprefix("one of ").split(", "))
        said = alike if flag.kind.wanted.startswith("one of") else f"want {flag.kind.wanted}"
        raise UsageError(f"{line.title}'s {entry.text}: {said}") from None
    return value


def _normal(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _entries(line: EngineLine, words: Sequence[str]) -> Iterator[_Words]:
    """The flags of a command, and its model, which stands without one."""
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            yield _Words("model", (word,), word)
            continue
        head, equals, value = word.partition("=")
        if (glued := _GLUED.fullmatch(word)) and glued[1] in line.flags:
            head, equals, value = glued[1], "=", glued[2]
        name, is_negated = _positive(line, _normal(head))
        taken = [value] if equals else [] if is_negated else _behind(line, name, left)
        text = word if equals else " ".join((head, *taken))
        yield from _flattened(line, _Words(name, tuple(taken), text, is_negated))


def _positive(line: EngineLine, name: str) -> tuple[str, bool]:
    """The name of a switch without ``no-``, and whether it had that."""
    is_negated = name.startswith("no-") and _flag_of(line, name) is None and _flag_of(line, name[3:]) is not None
    return (name[3:], True) if is_negated else (name, False)


def _behind(line: EngineLine, name: str, left: list[str]) -> list[str]:
    """The words that belong to a flag, which are taken."""
    flag = _flag_of(line, name)
    wanted = flag.kind.words if flag else "1"
    if wanted == "?" and not (left and left[0].lower() in ("true", "false")):
        return []
    taken: list[str] = []
    while left and not re.match(r"--?[A-Za-z]", left[0]) and (wanted == "*" or not taken):
        taken.append(left.pop(0))
    return taken


def _flattened(line: EngineLine, entry: _Words) -> Iterator[_Words]:
    """A flag with JSON of which the table knows keys is one flag for each of them."""
    text = entry.words[0] if len(entry.words) == 1 else ""
    if not text.startswith("{") or not any(name.startswith(f"{entry.name}.") for name in line.flags):
        yield entry
        return
    try:
        said = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{entry.text.split(' ')[0]}: {one_line(text, 60)} is no JSON: {error}") from None
    yield from _of_object(line, said, f"{entry.name}.", f"--{entry.name}.")


def _of_object(line: EngineLine, said: Mapping[str, Any], prefix: str, shown: str) -> Iterator[_Words]:
    """The flags of an object, one for each key that holds no object of which the table knows keys."""
    for key, value in said.items():
        name, is_negated = _positive(line, prefix + _normal(str(key)))
        if isinstance(value, dict) and any(known.startswith(f"{name}.") for known in line.flags):
            yield from _of_object(line, value, f"{name}.", f"{shown}{key}.")
            continue
        words = tuple(map(_word, value)) if isinstance(value, (list, tuple)) else (_word(value),)
        yield _Words(name, words, f"{shown}{key} {one_line(' '.join(words), 60)}", is_negated)


def _word(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _of_file(line: EngineLine, command: FoundCommand, entry: _Words) -> Iterator[_Words]:
    """The flags of a YAML file that a flag names. Raises UsageError: the file is missing, or holds no mapping."""
    if len(entry.words) != 1:
        raise UsageError(f"{entry.text} wants a YAML file behind it")
    name = entry.words[0]
    text = command.files.get(name)
    if text is None:
        path = Path(name) if Path(name).exists() else command.folder / name
        text = read_text(path)
    for said in read_yaml(text, name):
        if not isinstance(said, dict):
            raise UsageError(f"{name} is no mapping of flags to values")
        yield from _of_object(line, said, "", f"{Path(name).name}: " if name not in command.files else "")


# -- the model ---------------------------------------------------------------------------------------------------------


def target_named(model: str) -> str:
    """A model as memwall takes it: a folder or a configuration of transformers, unless it is a file of another kind."""
    is_own = model.endswith((".py", ".json")) or ".py:" in model or model.startswith("hf:")
    return model if is_own else f"hf:{model}"


def _weights(said: _Said, target: str) -> str:
    """The format of weights: the checkpoint's own where its configuration states one. Raises UsageError: it states
    another one, or none where the flag reads one."""
    method = _method_of(target)
    if method and method not in _METHODS.get(said.word, (said.word,)) and not said.word.startswith(method):
        raise UsageError(f"{said.text}, but the configuration of {target} states {method}: leave one out")
    if method == "" and said.value == STORED:
        raise UsageError(f"{said.text} reads quantised weights, and the configuration of {target} states none")
    return "model" if method or said.value == STORED else str(said.value)


def _method_of(target: str) -> str | None:
    """What a configuration calls the format of its weights, empty where it states none; None where none is there."""
    if (configuration := _configuration(target)) is None:
        return None
    stated = configuration.get("quantization_config") or {}
    return str(stated.get("quant_method") or ("modelopt" if stated else ""))


def experts_of(target: str) -> int | None:
    """The experts among which tokens choose in a layer, as a configuration states; None where none does."""
    stated = _configuration(target) or {}
    parts = (stated, stated.get("text_config") or {})
    return next((part[key] for part in parts for key in _EXPERTS if key in part), None)


def _configuration(target: str) -> dict[str, Any] | None:
    path = Path(target.removeprefix("hf:"))
    path = path / "config.json" if path.is_dir() else path
    if not target.startswith("hf:") or not path.is_file():
        return None
    found: dict[str, Any] = read_json(path)
    return found
