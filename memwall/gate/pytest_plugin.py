"""The pytest plugin: the ``memwall`` marker limits what a model costs, the ``memwall`` fixture profiles it.

    @pytest.mark.memwall(gpu="h100", mode="training", max_dram_bytes="2 GB", max_kernels=120, min_mfu=0.3)
    def test_step(memwall):
        memwall(Net(), (torch.zeros(8, 512),))  # memwall.profile(...) is the same

``max_`` or ``min_`` and the name of any quantity that a gate knows is a limit; every other keyword is a default for
:func:`memwall.profile`. Each profile that the fixture makes is checked against each limit, on each of
its GPUs under each of its policies. Markers of the module and the class count too; the closest wins. A test that has
limits and profiles nothing so fails. A test that takes the fixture begins with PyTorch's settings of the process (TF32,
SDPA backends, default dtype) as they were after collection, whatever tests before it have set, and with the seeds of
a gate (``random``, numpy, torch). In it, ``memwall`` has all public names of the package too.

pytest loads this file in every session of an environment that has memwall: it imports nothing that pytest has not.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from memwall.analysis.limits import Limit
    from memwall.record.profile import Profile

__all__ = ["Profiler", "assert_bound"]

_MARKER = (
    "memwall(gpu=..., policy=..., mode=..., max_dram_bytes='2 GB', max_kernels=120, min_mfu=0.3, ...): limits for every"
    " profile that the test makes with the memwall fixture; other keywords are defaults of its profile()."
)


@dataclass
class Expected:
    """What the markers of a test say, and whether it has profiled anything. ``limits`` are by what was written."""

    limits: Mapping[str, Limit] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    profiled: bool = False


_EXPECTED = pytest.StashKey[Expected]()
_SETTINGS = pytest.StashKey[tuple[Any, ...]]()


# -- what pytest calls -------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep PyTorch's settings for the tests that profile."""
    if any(map(_profiles, session.items)):
        from memwall.frontend.torch.process.settings import settings

        session.config.stash[_SETTINGS] = settings()


def _profiles(item: pytest.Item) -> bool:
    return "memwall" in getattr(item, "fixturenames", ())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Set PyTorch as it was and the seeds of a gate, before any fixture of the test; read the markers: what is wrong in
    them is an error of the test."""
    if _profiles(item) and _SETTINGS in item.config.stash:
        from memwall.frontend.targets.seeds import seed_all
        from memwall.frontend.torch.process.settings import restore

        restore(item.config.stash[_SETTINGS])
        seed_all()
    markers = list(item.iter_markers("memwall"))
    if markers:
        item.stash[_EXPECTED] = _read(reversed(markers))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that passed without a profile to check its limits on."""
    result = yield
    expected = item.stash.get(_EXPECTED, None)
    if expected is not None and expected.limits and not expected.profiled:
        pytest.fail(
            f"the memwall marker wants {', '.join(expected.limits)}, but the test profiled nothing with the"
            " memwall fixture: take it and call its profile()",
            pytrace=False,
        )
    return result


@pytest.fixture(name="memwall")
def _memwall(request: pytest.FixtureRequest) -> Profiler:
    """Profiles a model with the marker's options, and checks the marker's limits."""
    return Profiler(request.node.stash.get(_EXPECTED, None) or Expected())


class Profiler:
    """The ``memwall`` fixture."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected

    def profile(self, module_or_target: Any, inputs: Any = None, **options: Any) -> Profile:
        """:func:`memwall.profile` with the marker's keywords as defaults.

        Raises:
            AssertionError: a limit of the marker does not hold; names value, limit and the largest places.
        """
        __tracebackhide__ = True
        from memwall.gate.expectations import exceeded, workload_of
        from memwall.pipeline import profile, with_capture

        options = {**self._expected.options, **options}
        made = profile(module_or_target, inputs, **options)
        if any(limit.quantity.name == "graph_breaks" for limit in self._expected.limits.values()):
            made = with_capture(made, workload_of(module_or_target, inputs, options), options)
        self._expected.profiled = True
        if failed := list(exceeded(made, self._expected.limits)):
            raise AssertionError("\n".join(failed))
        return made

    def __call__(self, module_or_target: Any, inputs: Any = None, **options: Any) -> Profile:
        """As :meth:`profile`."""
        __tracebackhide__ = True
        return self.profile(module_or_target, inputs, **options)

    def assert_bound(self, profile: Profile, wall: str, *, module: str = "*", share: float = 0.5) -> None:
        """:func:`memwall.gate.pytest_plugin.assert_bound`."""
        __tracebackhide__ = True
        assert_bound(profile, wall, module=module, share=share)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module("memwall"), name)


def assert_bound(profile: Profile, wall: str, *, module: str = "*", share: float = 0.5) -> None:
    """Assert the wall that limits a model, or part of it.

    Args:
        profile: checked on each of its GPUs under each of its policies.
        wall: ``compute``, ``bandwidth``, ``latency`` or ``overhead``.
        module: a pattern of module paths, such as ``layers.*.attn``; the modules below count too.
        share: the least fraction of the time that must be limited by the wall.

    Raises:
        AssertionError: the fraction is smaller, or no kernel belongs to the pattern.
        UsageError: there is no such wall, or no such share.
    """
    __tracebackhide__ = True
    from memwall.gate.expectations import not_bound

    if failed := not_bound(profile, wall, module, share):
        raise AssertionError(failed)


def _read(markers: Iterable[pytest.Mark]) -> Expected:
    """The keywords of some markers, the later before the earlier."""
    from memwall.core.errors import MemwallError
    from memwall.gate.expectations import read_keywords

    given: dict[str, Any] = {}
    for marker in markers:
        if marker.args:
            pytest.fail(f"the memwall marker takes keywords only, not {marker.args[0]!r:.60}", pytrace=False)
        for key, value in marker.kwargs.items():
            given.pop(key, None)  # what is closer stands later
            given[key] = value
    try:
        return Expected(*read_keywords(given))
    except MemwallError as error:
        wrong = str(error)
    pytest.fail(f"the memwall marker: {wrong}", pytrace=False)  # here, so that pytest shows no second exception
