"""What is gated and by what: workloads and base as the configuration and the command line name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memwall.core.errors import UsageError, suggest
from memwall.frontend.workload.target import is_target
from memwall.gate.config import GateConfig, GatedWorkload, parse_scope
from memwall.gate.reading import expand, find_config, read_config, workload_name
from memwall.hardware.lookup import Gpu
from memwall.record.profile import Profile


def configuration(path: str | None, limits: Sequence[str]) -> GateConfig:
    """The configuration named, or found near the current folder, with ``limits`` over it.

    Raises:
        UsageError: the file or a limit is wrong.
    """
    file = Path(path) if path is not None else find_config(Path.cwd())
    found = GateConfig(Path.cwd()) if file is None else read_config(file)
    return replace(found, over=parse_scope(limits))


def selected(
    config: GateConfig, targets: Sequence[str], gpus: Sequence[Gpu], policies: tuple[str, ...]
) -> list[GatedWorkload]:
    """The workloads that ``targets`` name, else those configured, on ``gpus`` and under ``policies`` where given.

    Raises:
        UsageError: there is no such workload, or two have one name.
    """
    configured = {workload.name: workload for workload in config.workloads}
    by_target = {workload.target: workload for workload in config.workloads}
    found: list[GatedWorkload] = []
    for text in targets:
        known = configured.get(text) or by_target.get(_inside(text, config.root))
        if known is not None:
            found.append(known)
        elif configured and not is_target(text):
            raise UsageError(f"no workload {text!r} in {config.source}; {suggest(text, configured, cutoff=0.5)}")
        else:
            paths = expand(_inside(text, config.root), config.root)
            found += [config.workload(workload_name(path), path) for path in paths]
    found = found if targets else list(config.workloads)
    names = [workload.name for workload in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two workloads are named {name}; name them in [tool.memwall.gate.workloads.NAME]")
    return [replace(w, gpus=tuple(gpus) or w.gpus, policies=policies or w.policies) for w in found]


def on_gpus_of(place: Path, workloads: Sequence[GatedWorkload]) -> list[GatedWorkload]:
    """Where no GPU is named and the baseline is one profile: on the GPUs that it was made for."""
    gpus = tuple({s.gpu.name: s.gpu for s in Profile.load(place).simulations}.values())
    return [replace(workload, gpus=gpus or workload.gpus) for workload in workloads]


def base_of(config: GateConfig, baseline: str | None, ref: str | None, update: bool) -> tuple[Path | None, str | None]:
    """The path of the baseline, or the ref; the command line overrides the configuration.

    Raises:
        UsageError: two bases are named, or none where one is to be written.
    """
    if baseline is not None and ref is not None:
        raise UsageError("--baseline and --baseline-ref are two baselines; give one")
    if baseline is None and ref is None:
        place = config.root / config.baseline if config.baseline is not None else None
        ref = config.baseline_ref
    else:
        place = Path(baseline) if baseline is not None else None
    if update and place is None:
        raise UsageError(
            "--update writes a baseline: say where with --baseline PATH, or baseline = in the configuration"
        )
    return place, ref


def _inside(target: str, root: Path) -> str:
    """A target of the command line relative to the root, where it is a path."""
    place, colon, name = target.rpartition(":")
    path = Path(place if colon and place.endswith(".py") else target)
    if not path.is_absolute() and root == Path.cwd():
        return target
    full = Path.cwd() / path
    if not full.exists() and not any(sign in target for sign in "*?["):
        return target
    if not full.resolve().is_relative_to(root):
        return str(full)
    relative = full.resolve().relative_to(root).as_posix()
    return f"{relative}:{name}" if colon and place.endswith(".py") else relative
