"""The host: the CPU and the software that issue a GPU's kernels, and the seconds that they take over each.

A host is no property of a GPU: one GPU stands in machines of one's own and in clouds, whose CPUs differ by up
to three. The seconds are of kinds of work (:class:`HostWork`); :mod:`memwall.simulate.issue` counts what each kernel
asks for. ``hardware_specs/hosts`` holds a TOML file for each host that memwall knows, with a source next to each
number; a file of a user's own has the same keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from operator import attrgetter, mul
from pathlib import Path
from typing import Annotated, NamedTuple

from memwall.core.errors import UsageError, unknown
from memwall.core.structure import BadRecord, above_0, one_line, read
from memwall.hardware.files import packaged, read_stated

SCHEMA = "memwall.host/1"
#: what is assumed where nobody names a host
DEFAULT_HOST = "bare-metal"
#: the name of a host of which only the seconds of an op are stated, by a GPU's file or an older record
STATED = "stated"


class HostWork(NamedTuple):
    """What a host does to issue a kernel, as counts; :class:`Host` has the seconds of one of each."""

    #: a call of PyTorch's dispatcher that launches
    op: float = 0.0
    #: an ``nn.Module`` called
    module: float = 0.0
    #: a call that launches nothing: a view
    view: float = 0.0
    #: an autograd node, made in forward or run in backward
    node: float = 0.0
    #: a call of ``backward()``: the engine, and on a GPU the hand-over to its thread
    backward: float = 0.0
    #: a kernel launched, with what prepares its arguments
    launch: float = 0.0
    #: a result allocated
    allocation: float = 0.0
    #: cuDNN's or cuBLAS's choice of a kernel and its set-up
    cudnn: float = 0.0
    cublas: float = 0.0
    #: a call of compiled code (torch.compile): guards and wrapper; more where the module has parameters to guard
    compiled_call: float = 0.0
    compiled_parameters: float = 0.0
    #: a kernel that compiled code launches
    compiled_kernel: float = 0.0
    #: a call of compiled code that replays a CUDA graph
    replay: float = 0.0


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds of the CPU for each kind of :class:`HostWork`. Hosts that are meant take ``low`` to ``high`` times as
    long in 8 of 10 machines, or nets where they were ``measured``; 1 and 1: the seconds are stated."""

    name: str
    op_s: float = 0.0
    module_s: float = 0.0
    view_s: float = 0.0
    node_s: float = 0.0
    #: bare metal's where a host does not state it
    backward_s: float = 95e-6
    launch_s: float = 0.0
    allocation_s: float = 0.0
    cudnn_s: float = 0.0
    cublas_s: float = 0.0
    compiled_call_s: float = 0.0
    compiled_parameters_s: float = 0.0
    compiled_kernel_s: float = 0.0
    replay_s: float = 0.0
    #: a kernel that a library launches in a loop of its own, as cuDNN does for a recurrent layer; bare metal's where a
    #: host does not state it
    library_launch_s: float = 2.75e-6
    #: of a lone call, the shares of the seconds of an eager op and of a replay that come after the launch
    op_after: float = 0.0
    replay_after: float = 0.0
    low: Annotated[float, above_0] = 1.0
    high: Annotated[float, above_0] = 1.0
    #: whether all of its seconds were measured on the machine that is meant
    measured: bool = False

    def check(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise BadRecord(": name must be a line of text")
        if not self.low <= 1 <= self.high:
            raise BadRecord(f": low and high enclose 1, and these are {self.low:g} and {self.high:g}")
        if not (0 <= self.op_after <= 1 and 0 <= self.replay_after <= 1):
            raise BadRecord(f": a share is from 0 to 1, and these are {self.op_after:g} and {self.replay_after:g}")

    @classmethod
    def uniform(cls, op_s: float) -> Host:
        """A host that takes as long for every op that launches, and for every kernel of compiled code, no longer for
        one that a library launches, and nothing for calls that launch nothing."""
        library_s = min(op_s, cls("").library_launch_s)
        return cls(STATED, op_s=op_s, backward_s=0.0, compiled_kernel_s=op_s, library_launch_s=library_s)

    def scaled(self, factor: float) -> Host:
        """A host that takes ``factor`` times as long for everything."""
        return replace(self, **{name: factor * getattr(self, name) for name in (*_SECONDS, "library_launch_s")})

    @property
    def varies(self) -> bool:
        """Whether it may take less or more."""
        return self.low < self.high

    @property
    def is_assumed(self) -> bool:
        """Whether its seconds, or some of them, are of other machines than the one that is meant."""
        return self.varies and not self.measured

    def issue_s(self, work: HostWork) -> float:
        """Seconds to issue a kernel."""
        return sum(map(mul, work, _seconds(self)))

    def split_s(self, work: HostWork, is_lone: bool = False) -> tuple[float, float, float]:
        """The parts of :meth:`issue_s`: up to the first launch, for later ones, and, in a lone call, after the last:
        what follows it there ends the call, and in a loop the next kernel. Of several calls the first has its share."""
        later_s = max(work.launch - 1, 0) * self.launch_s + max(work.compiled_kernel - 1, 0) * self.compiled_kernel_s
        if work.op > 1:
            later_s = (1 - 1 / work.op) * self.issue_s(work)
        first_s = self.issue_s(work) - later_s
        share = (self.op_after if work.op else self.replay_after if work.replay else 0.0) if is_lone else 0.0
        return (1 - share) * first_s, later_s, share * first_s


_SECONDS = tuple(f"{kind}_s" for kind in HostWork._fields)
_seconds = attrgetter(*_SECONDS)


@cache
def _files() -> Mapping[str, Path]:
    return packaged("hardware_specs/hosts")


def host_names() -> tuple[str, ...]:
    """Names of all hosts that memwall knows."""
    return tuple(_files())


def load_host(name_or_path: str | Path | Host) -> Host:
    """The host of that name, or of that TOML file.

    Raises:
        UsageError: no host has that name, or the file is wrong.
    """
    if isinstance(name_or_path, Host):
        return name_or_path
    if str(name_or_path) in _files():
        return _packaged(str(name_or_path))
    if isinstance(name_or_path, Path) or "/" in name_or_path or name_or_path.lower().endswith(".toml"):
        return _read(Path(name_or_path))
    raise unknown("host named", name_or_path, _files())


@cache
def _packaged(name: str) -> Host:
    return _read(_files()[name])


def default_host() -> Host:
    """The host that is assumed where nobody names one."""
    return load_host(DEFAULT_HOST)


def _read(path: Path) -> Host:
    found, label = read_stated(path, SCHEMA, "hosts"), one_line(path)
    known = {item.name: item.default for item in fields(Host)}
    for key in found:
        if key not in known:
            raise unknown("number of a host named", one_line(key), known, where=label)
    if missing := [
        item.name for item in fields(Host) if item.name in _SECONDS and not item.default and item.name not in found
    ]:
        raise UsageError(f"{label} lacks {', '.join(missing)}; a host states the seconds of every kind of work, 0 too")
    try:
        return read(Host, found, label)
    except BadRecord as error:
        raise UsageError(str(error)) from None
