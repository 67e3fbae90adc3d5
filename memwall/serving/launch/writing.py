"""The options of a server → the command line that starts it, of each engine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memwall.frontend.targets.inputs import SHORT_DTYPES
from memwall.serving.launch.command import LINES
from memwall.serving.launch.flags import EngineLine, Flag
from memwall.serving.launch.reading import experts_of, target_named
from memwall.serving.model import CACHES
from memwall.serving.steps.kernels import Experts

if TYPE_CHECKING:
    from memwall.serving.answer import Point

#: what stands behind a line whose engine has no flag for how prompts are taken
_PREFILLS = {"chunked": "prompts that are cut, next to decodes", "whole": "whole prompts, next to decodes",
             "apart": "prompts in steps of their own"}  # fmt: skip


def launch_line(engine: str, model: str, options: Mapping[str, Any]) -> str:
    """The words of an engine that start a server with some options of :func:`memwall.serve`; what they do not say
    stands behind ``#``."""
    line = LINES[engine]
    asked = {name: value for name, value in options.items() if not (name == "kv" and value == "model")}
    if asked.get("weights", "model") == "model":
        asked.pop("weights", None)
    elif "weights" in asked and not _can_say(line, "weights", asked["weights"]):
        asked = {**asked, "checkpoint": asked.pop("weights")}
    if cast := str(asked.get("dtype") or "").removeprefix("torch."):
        cast = SHORT_DTYPES.get(cast, cast)
        asked["dtype"] = cast
        if not _can_say(line, "dtype", cast):
            del asked["dtype"]
    prefill = asked.get("prefill")
    if prefill and not any(flag.sets == "prefill" and prefill in _both(flag) for flag in line.flags.values()):
        del asked["prefill"]
    if str(asked.get("draft", "")).startswith("hf:"):
        asked["draft"] = asked["draft"].removeprefix("hf:")
    if "redundant" in asked and any(flag.sets == "slots" for flag in line.flags.values()):
        experts = experts_of(target_named(model))
        asked |= {} if experts is None else {"slots": experts + asked["redundant"]}
    values, unsaid = line.apart(asked)
    if cast and "dtype" not in asked:
        unsaid.append(f"a checkpoint in {cast}")
    if "checkpoint" in asked:
        unsaid.append(f"a checkpoint with weights in {asked['checkpoint']}")
    if prefill and "prefill" not in asked:
        unsaid.append(_PREFILLS[prefill])
    if (replicas := asked.get("replicas", 1)) > 1 and values.get("dp", 1) == asked.get("dp", 1):  # no flag has them
        unsaid.append(f"{replicas} of these, behind a router")
    words, stated = [*line.starts[0], *_model(line, model)], dict[str, Any]()
    for flag in {id(flag): flag for flag in line.flags.values()}.values():
        if flag.sets in values and (value := _pop(line, values, flag)) is not None:
            if flag.names[0] in line.in_config:
                _state(stated, flag, value)
            else:
                words += _written(line, flag, value)
    said = " ".join(map(shlex.quote, words))
    if stated:
        said += f" --{line.config[0]} <(echo {shlex.quote(json.dumps(stated))})"
    return f"{said}  # {'; '.join(unsaid)}" if unsaid else said


def _can_say(line: EngineLine, option: str, value: str) -> bool:
    """Whether a flag of the engine sets an option to this value, such as weights that it quantises as it loads them."""
    return any(flag.sets == option and _spells(flag, value) for flag in line.flags.values())


def _spells(flag: Flag, value: str) -> bool:
    try:
        flag.kind.write(value)
    except StopIteration:
        return False
    return True


def _model(line: EngineLine, model: str) -> list[str]:
    flag = line.flags["model"]
    name = model.removeprefix("hf:").removesuffix("/config.json")
    return [f"--{flag.names[0]}", name] if flag.names[0] != "model" else [name]


def _both(flag: Flag) -> tuple[Any, Any]:
    """The values of a switch."""
    return flag.kind.read(""), flag.kind.read("false")


def _pop(line: EngineLine, values: dict[str, Any], flag: Flag) -> Any:
    """The value that a flag has to say, once; None where another one says it, or it is the engine's default."""
    value = values[flag.sets]
    if flag.sets == "weights" and not _spells(flag, value):
        return None
    del values[flag.sets]
    return None if value == line.defaults.get(flag.sets) else value


def _written(line: EngineLine, flag: Flag, value: Any) -> list[str]:
    name = flag.names[0].replace("-", line.dash)
    if flag.kind.words == "?":
        is_on = flag.kind.read("") == value
        return [f"--{name}" if is_on else f"--no-{name}"]
    if "." in name:  # a key of a flag that takes JSON
        return [f"--{name.partition('.')[0]}.{name.partition('.')[2].replace('-', '_')}", flag.kind.write(value)]
    return [f"--{name}", *flag.kind.write(value).split(" ")]


def _state(stated: dict[str, Any], flag: Flag, value: Any) -> None:
    """Writes a flag into what the YAML file says."""
    *outer, key = flag.names[0].replace("-", "_").split(".")
    for name in outer:
        stated = stated.setdefault(name, {})
    if flag.sets == "eager":
        stated[key] = None
    elif flag.sets == "kv" or flag.sets == "dtype":
        stated[key] = flag.kind.write(value)
    else:
        stated[key] = list(value) if isinstance(value, tuple) else value


def options_of_point(point: Point, dtype: str | None = None, engine: str = "") -> dict[str, Any]:
    """The options that say the server of a point, each of them; its share of memory as an engine counts it."""
    asked = point.asked
    layout, policy, own = asked.layout, asked.policy, engine or asked.layout.engine
    found: dict[str, Any] = {
        "tp": layout.tp, "pp": layout.pp, "dp": layout.dp, "ep": layout.ep, "dtype": dtype, "weights": asked.weights,
        "kv": next(name for name, kept in CACHES.items() if kept == layout.kv), "max_context": asked.max_context,
        "max_batch": policy.max_batch, "token_budget": policy.token_budget, "replicas": asked.fleet.most,
    }  # fmt: skip
    if not policy.captured:
        found["eager"] = True
    elif asked.asked.captured:
        found["captured"] = policy.captured
    found["prefill"] = asked.asked.prefill or asked.engine.prefill
    routings = [kernel.routing for kernel, _ in asked.model.served.kernels if isinstance(kernel, Experts)]
    found["redundant"] = next((routing.redundant for routing in routings), None)
    if asked.guess is not None:
        named = "mtp" if asked.guess.model is None else asked.guess.model.name
        found |= {"draft": named, "draft_tokens": asked.guess.draft_tokens}
    found |= _memory(point, LINES[own].utilization_of)
    return {name: value for name, value in found.items() if value is not None}


def _memory(point: Point, of: str) -> dict[str, Any]:
    """The share of memory that leaves the cache as many bytes: of all, of what is static, or of what is free."""
    if point.asked.utilization_of == of:
        return {"utilization": point.asked.utilization, "utilization_of": of}
    steps = point.steps
    total, reserved, weights = steps.gpu.dram_bytes, steps.reserved_bytes, steps.weights_bytes
    cache = steps.capacity_bytes - reserved - weights
    share = {
        "all": steps.capacity_bytes / total,
        "static": (weights + cache) / total,
        "free": cache / (total - weights - reserved),
    }[of]
    return {"utilization": int(share * 1e4) / 1e4, "utilization_of": of}
