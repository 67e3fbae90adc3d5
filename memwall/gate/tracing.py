"""Base and head, each profiled in its own folder, every workload in a process of its own, both with this memwall.

A server imports torch and memwall and nothing of the user's, and answers each job in a fork of itself, as many at once
as there are cores: a job finds the process as it was at first, whatever another has set, patched, imported or seeded. A
job always finds this memwall, and its folder's own packages before installed ones, so that the base does not run the
head's code; if it did anyway, the result says so. The user's code prints to standard error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

from memwall.analysis.communication import with_figures
from memwall.core.errors import MemwallError, NeedsData
from memwall.core.graph import Graph, Op
from memwall.core.process import FORKS, HOME, Child, Lost, environment
from memwall.core.progress import CountedLine, tell
from memwall.frontend.program import Program
from memwall.frontend.targets import Workload, named
from memwall.frontend.targets.blame import blame
from memwall.frontend.targets.loading import home_of
from memwall.frontend.targets.seeds import seeded
from memwall.frontend.targets.sizes import split_sizes
from memwall.frontend.targets.target import split_target
from memwall.fusion.repeats import MOST_UNASKED, distinct_ops
from memwall.gate.config import DEFAULT_POLICIES
from memwall.hardware.lookup import Gpu
from memwall.pipeline import profile, with_capture
from memwall.programs import profile_ranks
from memwall.record.capture import REAL_BYTES
from memwall.record.kernels import short_name
from memwall.record.profile import Profile

#: the most jobs at a time; how many does not change what they answer
_MOST = 8
#: folders of what is installed or compiled
_INSTALLED = frozenset(("site-packages", "dist-packages", "__pycache__"))
#: how often a workload whose base and head differ is traced again on each side, to see whether each equals itself
_REPEATS = 2


@dataclass(frozen=True)
class TraceJob:
    """One workload to profile: keywords of :func:`memwall.profile`, and whether to look for graph breaks; ``asked``,
    however long that takes."""

    name: str
    target: str
    options: Mapping[str, Any]
    gpus: tuple[Gpu, ...]
    policies: tuple[str, ...]
    breaks: bool = False
    asked: bool = False


@dataclass(frozen=True)
class TraceOutcome:
    """The outcome of a job: a profile or an error message; ``absent``: the target does not exist. ``foreign`` are files
    outside the folder that the model was loaded from although the head has them. ``real``: the model reads its own
    data, so it was traced on real tensors. ``read`` are the files of the repository that the job has read, and
    ``unstable`` says how two traces of the same code differ."""

    name: str
    profile: Profile | None
    error: str = ""
    notes: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    absent: bool = False
    real: bool = False
    read: tuple[str, ...] = ()
    unstable: str = ""


@dataclass(frozen=True)
class Tree:
    """A folder in which jobs run; ``avoid`` is the head's checkout, of which the base must load nothing."""

    folder: Path
    avoid: Path | None = None


def profile_both(
    head: Path,
    base: Tree | None,
    jobs: Sequence[TraceJob],
    tracers: Tracers,
    prepare: Callable[[Mapping[str, TraceOutcome]], None] = lambda rows: None,
) -> tuple[dict[str, TraceOutcome], dict[str, TraceOutcome]]:
    """The jobs profiled in the head's folder, then in the base's; ``prepare`` gets what the head has made before the
    base begins. Where both differ each is traced again, to see whether it equals itself."""
    here = Tree(head)
    ours = _by_name(tracers.traced([(here, job) for job in jobs]))
    if base is None:
        return ours, {}
    prepare(ours)
    alike = [_alike(job, ours[job.name]) for job in jobs]
    theirs = _by_name(tracers.traced([(base, job) for job in alike]))
    late = [_alike(job, theirs[job.name]) for job in jobs if theirs[job.name].real > ours[job.name].real]
    ours |= _by_name(tracers.traced([(here, replace(job, breaks=True)) for job in late]))
    rows = [(ours, here, job) for job in alike] + [(theirs, base, job) for job in alike]
    rows = [row for row in rows if differ(ours[row[2].name].profile, theirs[row[2].name].profile)]
    for (side, _, job), row in zip(rows, repeated(rows, tracers), strict=True):
        side[job.name] = row
    return ours, theirs


def _by_name(rows: Sequence[TraceOutcome]) -> dict[str, TraceOutcome]:
    return {row.name: row for row in rows}


def _alike(job: TraceJob, other: TraceOutcome) -> TraceJob:
    """The job as the other side has it: on real tensors where that was, whose strides may differ from the strides of
    tensors without data; with TorchDynamo, which takes most of the time, only where the other may have a graph
    break."""
    capture = other.profile.traced.dynamo if other.profile is not None else None
    breaks = job.breaks and (capture is None or capture.failure is not None or bool(capture.breaks))
    return _on_data(replace(job, breaks=breaks), other)


def _on_data(job: TraceJob, made: TraceOutcome) -> TraceJob:
    """The job on real tensors where another trace was."""
    return replace(job, options={**job.options, "real": True}) if made.real else job


def repeated(rows: Sequence[tuple[Mapping[str, TraceOutcome], Tree, TraceJob]], tracers: Tracers) -> list[TraceOutcome]:
    """What became of each job in a tree, marked as unstable where a further trace differs."""
    found = [side[job.name] for side, _, job in rows]
    for _ in range(_REPEATS):
        rest = [i for i, row in enumerate(found) if not row.unstable]
        jobs = [(rows[i][1], _on_data(replace(rows[i][2], breaks=False), found[i])) for i in rest]
        again = tracers.traced(jobs)
        for i, row in zip(rest, again, strict=True):
            found[i] = replace(found[i], unstable=_difference(found[i], row))
    return found


def differ(one: Profile | None, other: Profile | None) -> bool:
    """Whether two profiles have other graphs; the lines of the code may differ."""
    return one is not None and other is not None and one.graphs != other.graphs


def _difference(one: TraceOutcome, other: TraceOutcome) -> str:
    """How two traces of the same code differ; empty if they do not."""
    if one.profile is None or other.profile is None:
        return other.error
    if not differ(one.profile, other.profile):
        return ""
    pairs = zip(one.profile.graphs, other.profile.graphs, strict=False)
    first, second = next(((a, b) for a, b in pairs if a != b), (one.profile.graph, other.profile.graph))
    same = min(len(first.ops), len(second.ops))
    alike = (_work(first, place) == _work(second, place) for place in range(same))
    place = next((place for place, equal in enumerate(alike) if not equal), same)
    rest = (graph.ops[place] for graph in (second, first) if place < len(graph.ops))
    at = "".join(f", first at {_named(op)}" for op in islice(rest, 1))
    return f"{len(first.ops):,} ops, then {len(second.ops):,}{at}"


def _work(graph: Graph, place: int) -> tuple[Any, ...]:
    """What an op does, and where; the numbers of its values may differ between two graphs."""
    op = graph.ops[place]
    return replace(op, inputs=(), outputs=()), graph.specs(op.inputs), graph.specs(op.outputs)


def _named(op: Op) -> str:
    """``addmm in layers.0 (model.py:12)``."""
    module, source = f" in {op.module}" if op.module else "", f" ({op.source})" if op.source else ""
    return f"{short_name(op.name)}{module}{source}"


class Tracers:
    """The server, started when it is needed and stopped at the end of the ``with`` block, or one for each job where a
    process cannot fork; ``captures``: jobs will look for graph breaks."""

    def __init__(self, captures: bool = True) -> None:
        self._target = CapturingTracer if captures else Tracer
        self._children: list[Child] = []

    def __enter__(self) -> Tracers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._children:
            self._children.pop().stop()

    def traced(self, jobs: Sequence[tuple[Tree, TraceJob]]) -> list[TraceOutcome]:
        """What became of each job; as many run at a time as there are cores. It tells how many are done, and of a
        lone job how far it is."""
        alone = tell if len(jobs) == 1 else lambda line: None
        waiting = deque(enumerate(jobs))
        busy: dict[tuple[Any, int], tuple[int, TraceJob]] = {}
        found: dict[int, TraceOutcome] = {}
        most = min(os.cpu_count() or 1, _MOST)
        try:
            while waiting or busy:
                while waiting and len(busy) < most:
                    place, (tree, job) = waiting.popleft()
                    child = self._server()
                    busy[child, child.send(job, tree)] = place, job
                tell(CountedLine("tracing workloads", len(found), len(jobs)))
                ready: list[Any] = wait(dict.fromkeys(child for child, _ in busy))
                for child in ready:
                    answer = self._answer(child, alone)
                    for key in [key for key in busy if key[0] is child and child.answered in (None, key[1])]:
                        place, job = busy.pop(key)
                        found[place] = (
                            answer if isinstance(answer, TraceOutcome) else TraceOutcome(job.name, None, answer)
                        )
                    if not (FORKS and child.alive):
                        self._children.remove(child)
                        child.stop()
        finally:  # interrupted: what still runs is stopped
            for child in {child for child, _ in busy}:
                self._children.remove(child)
                child.stop()
        return [found[place] for place in range(len(jobs))]

    def _server(self) -> Child:
        if not (FORKS and self._children):
            # the order of a set in a model is no difference between base and head
            variables = {**environment(), "PYTHONHASHSEED": "0"}
            child = Child(self._target, variables, folder=Path("/"), own_path=True, shown=True, apart=True, heard=True)
            self._children.append(child)
        return self._children[-1]

    def _answer(self, child: Child, say: Callable[[str], None]) -> TraceOutcome | str:
        """What became of the next job that a server has finished, or the reason why it gave no answer."""
        try:
            row: TraceOutcome = child.receive(None, say)
        except Lost as lost:
            ended = lost.code is not None and lost.code >= 0
            return f"{lost}: the model ended it, as os._exit does" if ended else str(lost)
        return row


# -- in the child ------------------------------------------------------------------------------------------------------


class Tracer:
    """Profiles a job in its folder, whose own packages come first; this memwall is imported already."""

    captures = False

    def __init__(self) -> None:
        if FORKS:  # what the first trace of a process imports and compiles, once for all
            import torch

            layer = Workload(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
            made = profile(layer, mode="training", policy=DEFAULT_POLICIES)
            if self.captures:
                with_capture(made, layer, {})

    def __call__(self, job: TraceJob, tree: Tree) -> TraceOutcome:
        opened = _note_opened()
        os.chdir(tree.folder)
        os.environ["PWD"] = str(tree.folder)
        _find_own_packages(tree.folder, job.target)
        with seeded():
            row = _trace(job)
        row = replace(row, read=tuple(sorted(_of_repository(opened, tree.folder))))
        return row if tree.avoid is None else replace(row, foreign=_loaded_from(tree.avoid, tree.folder))


class CapturingTracer(Tracer):
    """One that is ready for TorchDynamo too."""

    captures = True


def _find_own_packages(folder: Path, target: str) -> None:
    """A checkout's own packages: the one that a target's file is in, and packages of the folder and of the folders
    above up to the repository's, each with its src."""
    with contextlib.suppress(ValueError):
        sys.path.remove(HOME)
    given = [folder / entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    above = [p for p in (folder, *folder.parents) if p.is_relative_to(_top(folder))]
    own = [place for one in above for place in (one, one / "src")]
    relative = [place for place in given if place.is_relative_to(folder)]
    parts = split_target(target)
    homes = [home_of((folder / parts.place).parent)] if parts.kind == "file" else []
    sys.path[:0] = [str(place) for place in (*homes, *own, *relative) if place.is_dir()]


def _note_opened() -> set[str]:
    """A set of the files that this process opens to read from now on."""
    found: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and str(arguments[1] or "r")[0] == "r":
            found.add(os.path.abspath(arguments[0]))  # noqa: PTH100  a Path would be slow, and would follow links

    sys.addaudithook(note)
    return found


def _of_repository(opened: Iterable[str], folder: Path) -> Iterator[str]:
    """The opened files that lie in a folder's repository, seen from its top, installed packages aside."""
    top, apart = _top(folder), (Path(sys.prefix), Path(__file__).parents[1])
    for path in map(Path, opened):
        inside = path.relative_to(top).parts if path.is_relative_to(top) else ()
        if inside and not _INSTALLED & set(inside) and not any(map(path.is_relative_to, apart)) and path.is_file():
            yield Path(*inside).as_posix()


def _top(folder: Path) -> Path:
    """The top of a folder's repository; the folder itself outside of any."""
    return next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)


def _trace(job: TraceJob) -> TraceOutcome:
    """One workload profiled, with its graph breaks where they are asked for or where it reads its own data."""
    notes: list[str] = []
    sizes, options = split_sizes(job.options)
    given = {name: options.pop(name) for name in ("input_specs", "dims") if name in options}
    try:
        workload = named(job.target, **sizes, **given, mode=options.get("mode", "inference"))
    except MemwallError as error:  # one that the user's code raised has a cause
        return TraceOutcome(job.name, None, str(error), absent=error.__cause__ is None)
    except BaseException as error:
        return TraceOutcome(job.name, None, str(blame(error, f"loading {job.target}")))
    try:
        found = _with_ranks(_profile(workload, job, options, notes), workload, job, options)
        count = distinct_ops(found.graph) if job.breaks or notes else 0
        if count > MOST_UNASKED and not job.asked:
            notes.append(f"no capture: TorchDynamo would take {count:,} ops one by one")
        elif (job.breaks or notes) and not isinstance(workload, Program):
            found = with_capture(found, workload, options)
            captured = found.traced.dynamo
            if captured is not None and captured.failure:
                notes.append(f"TorchDynamo captures nothing: {captured.failure}")
    except MemwallError as error:
        return TraceOutcome(job.name, None, str(error))
    except BaseException as error:  # an interrupt too is the model's own: Ctrl-C does not reach this process
        return TraceOutcome(job.name, None, str(blame(error, f"running {job.target}")))
    return TraceOutcome(job.name, found, notes=tuple(notes), real=bool(options.get("real")))


def _profile(workload: Workload | Program, job: TraceJob, options: dict[str, Any], notes: list[str]) -> Profile:
    """The profile; on real tensors where the model reads them and they are not too many."""
    try:
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)
    except NeedsData as error:
        if isinstance(workload, Program):
            raise
        from memwall.frontend.torch.build import build_module

        module = build_module(workload.model, "meta", lambda message: None).module
        if sum(p.numel() * p.element_size() for p in module.parameters()) > REAL_BYTES:
            raise
        options["real"] = True
        notes.append(f"traced on real tensors: {str(error).partition(';')[0]}")
        return profile(workload, gpu=job.gpus, policy=job.policies, **options)


def _with_ranks(made: Profile, workload: Workload | Program, job: TraceJob, options: dict[str, Any]) -> Profile:
    """The profile with the figures of the other ranks that differ, where no rank was asked for."""
    if "world" not in options or "rank" in options:
        return made

    def traced(rank: int) -> Profile:
        return profile(workload, gpu=job.gpus, policy=job.policies, **options, rank=rank)

    return with_figures(made, profile_ranks(made, workload, options, traced))


def _loaded_from(avoid: Path, folder: Path) -> tuple[str, ...]:
    """Modules' files under ``avoid``, relative to it, that are neither installed packages nor memwall's own."""
    found = []
    home, top = Path(__file__).parents[1], _top(folder)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for path in map(_resolved, (file for file in files if isinstance(file, str))):
        if path.is_relative_to(avoid) and not (path.is_relative_to(top) or path.is_relative_to(home)):
            inside = path.relative_to(avoid)
            if not _INSTALLED & set(inside.parts):
                found.append(inside.as_posix())
    return tuple(sorted(found))


_resolved = functools.cache(lambda file: Path(file).resolve())
