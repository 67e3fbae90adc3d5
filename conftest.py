"""Options and fixtures shared by all tests."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import hypothesis
import pytest

from tests.unit.commands import folder, run  # noqa: F401  fixtures
from tests.unit.configs import target_of
from tests.unit.forking import Forks
from tests.unit.gating import Gates

# a busy machine is no failure
hypothesis.settings.register_profile("memwall", deadline=None, max_examples=25)
hypothesis.settings.register_profile("whole", deadline=None, max_examples=200)

os.environ.pop("COLUMNS", None)  # xdist sets it; output that is not for a terminal would obey it

# a worker computes on its share of the cores: threads that wait for one another take the cores of the other workers
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")):
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // workers, 1)))

GOLDEN = Path(__file__).parent / "tests" / "golden"
PACKAGES = [Path(__file__).parent / name for name in ("memwall", "lab/memwall_lab")]
#: where no bytecode is kept, each worker would rewrite the assertions of all tests
KEEPS_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code prints now")
    parser.addoption("--whole", action="store_true", help="every case of an enumeration, where a sample is tested else")


def pytest_configure(config):
    gc.set_threshold(10_000, 10, 50)  # as a command has it: graphs stay, and each search goes through them
    hypothesis.settings.load_profile("whole" if config.getoption("--whole") else "memwall")
    for name in ("SIGHUP", "SIGINT"):  # a command inherits that tests run in the background, and would ignore both too
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    if not hasattr(config, "workerinput"):  # once: each of some hundred processes would compile the packages
        for folder in PACKAGES:
            compileall.compile_dir(folder, quiet=2)
    # said here and not in pyproject.toml: the tests also run with the package of an older commit
    config.addinivalue_line("markers", "defect(number): holds off the defect of this number, see tools/defects.py")
    config.addinivalue_line("markers", "sampled(n): every n-th of its cases is tested, all of them with --whole")
    config.addinivalue_line("markers", "whole: tested with --whole alone; others of its kind always")
    config.addinivalue_line("markers", "versions: also runs with the newest and the oldest supported libraries")


#: folders and files of tests that trace many models or large ones, compile, or start processes: ``make test-fast`` does
#: not even import them
SLOW = frozenset((
    "cli", "codegen", "defects", "frontend", "gpu", "inductor", "tests", "test_ab", "test_accuracy_fit",
    "test_alternatives", "test_below_the_peak", "test_calibrate", "test_clock", "test_compat",
    "test_cost_quantised", "test_diff", "test_folder", "test_fusion_invariants", "test_fusion_loops",
    "test_gate_evaluate",
    "test_generated", "test_history", "test_kernel_legend", "test_levers", "test_library", "test_measure_cpu",
    "test_measure_cuda", "test_op_counts", "test_other_gpus", "test_pictures_layout", "test_pipelines",
    "test_plan_diff", "test_process", "test_profile_loader", "test_programs", "test_pytest_plugin",
    "test_reference_models", "test_report_chrome", "test_report_figures", "test_report_gate", "test_report_html",
    "test_report_tables", "test_schemas", "test_served_architectures", "test_server", "test_serving_steady",
    "test_serving_steps", "test_sharding", "test_step_bound", "test_sweep_page", "test_touched_bytes",
    "test_trace_bytes", "test_trace_costs", "test_trace_memory", "test_trace_reading", "test_trace_viewers",
    "test_training", "test_unused_ops", "test_utilization_experts", "test_utilization_latent",
))  # fmt: skip


def is_slow(path: Path) -> bool:
    return bool(SLOW & {path.stem, path.parent.name})


def pytest_ignore_collect(collection_path, config):
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py" and is_slow(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config, items):
    sys.dont_write_bytecode = KEEPS_NO_BYTECODE
    cases, left = Counter(), set()
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("sampled")
        if item.get_closest_marker("whole") and not config.getoption("--whole"):
            left.add(item)
        elif mark and not config.getoption("--whole"):
            test = item.path, item.originalname
            if cases[test] % mark.args[0]:
                left.add(item)
            cases[test] += 1
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def pytest_runtest_setup(item):
    """What earlier files of tests have imported and made is not looked at again and again by the garbage collector: in
    the end it would take a good part of each test that traces."""
    if item.path != getattr(item.session, "frozen_at", None):
        item.session.frozen_at = item.path
        gc.collect()
        gc.freeze()


@pytest.fixture
def golden(request):
    """``golden(name, text)``: the text is what tests/golden/name says; a missing file fails."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run pytest --update-golden and read it"
        assert text == path.read_text(encoding="utf-8"), f"differs from {path}; pytest --update-golden rewrites it"

    return check


@pytest.fixture(scope="session")
def forks():
    """``forks.start("gpus", folder=place)``: see :mod:`tests.unit.forking`."""
    made = Forks()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def gates():
    """``gates(folder, "net.py", "--baseline-ref", "main")``: see :mod:`tests.unit.gating`."""
    made = Gates()
    yield made
    made.stop()


@pytest.fixture
def save(tmp_path):
    """``save({...})``: the target of a folder with that configuration of a transformers model in it."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    return partial(target_of, tmp_path)
