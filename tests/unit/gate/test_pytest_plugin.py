"""The pytest plugin in real pytest sessions, found by its entry point as users have it.

The model of most tests is two products of a 64x64 fp32 weight without bias on 8 rows: 2 kernels, each reading
8*64*4 + 64*64*4 = 18,432 bytes and writing 8*64*4 = 2,048; so 40,960 bytes and 2 * 2*8*64*64 = 131,072 FLOP.
"""

import re
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from memwall.core.errors import UsageError
from memwall.gate.pytest_plugin import assert_bound
from tests.unit.places import ROOT
from tests.unit.report_fixture import OLD, make_profile

pytest_plugins = "pytester"


MODEL = """
import pytest
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

X = (torch.zeros(8, 64),)
"""


@pytest.fixture(scope="module")
def warm():
    """Everything is imported before a session that forgets what it imported: torch can be imported but once."""
    import torch

    import memwall
    from memwall.gate.expectations import workload_of
    from memwall.pipeline import with_capture

    linear, inputs = torch.nn.Linear(4, 4), (torch.zeros(2, 4),)
    made = memwall.profile(linear, inputs, policy=["eager", "ideal"])
    assert with_capture(made, workload_of(linear, inputs, {}), {}).simulations


@pytest.fixture
def entry_point(tmp_path_factory, monkeypatch):
    """The plugin as pyproject.toml declares it, whether or not this checkout is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    place = tmp_path_factory.mktemp("installed")
    info = place / "memwall_plugin-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: memwall-plugin\nVersion: 0\n")
    rows = [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *rows, ""]))
    monkeypatch.setenv("PYTHONPATH", f"{place}:{ROOT}")
    monkeypatch.syspath_prepend(str(place))


@pytest.fixture
def run(warm, entry_point, pytester):
    """``run(tests, *options)``: what a session says of tests of the model."""

    def session(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(MODEL + tests)
        return pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider", *options)

    return session


def says(result: pytest.RunResult, *texts: str) -> None:
    """Each text stands in the output, in any order."""
    output = result.stdout.str()
    for text in texts:
        assert text in output, f"{text!r} is not in:\n{output}"


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.defect("32")
def test_the_fixture_is_called_as_what_it_does(run):
    """The fixture was an object with a method that could not be called itself."""
    result = run("""
@pytest.mark.memwall(gpu="h100", max_dram_bytes=40_959)  # of 40,960
def test_net(memwall):
    memwall(Net(), X)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*dram_bytes of Net*40.960 kB, want at most 40.959 kB*"])


def test_the_example_of_the_docs_passes_and_fails_as_they_say(warm, entry_point, pytester):
    """docs/gate.md's test of the README's model, and the same with a limit of three kernels."""
    read = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/gate.md")}
    (net,) = re.findall(r"```python\n# net\.py\n(.*?)```", read["README.md"], re.DOTALL)
    (example,) = re.findall(r'```python title="test_net\.py"\n(.*?)```', read["docs/gate.md"], re.DOTALL)
    (said,) = re.findall(r"^AssertionError: (.*)$", read["docs/gate.md"], re.MULTILINE)
    pytester.makepyfile(net=net, test_net=example, test_less=example.replace("max_kernels=20", "max_kernels=3"))
    result = pytester.runpytest_inprocess("--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, failed=1)
    says(result, said)


def test_one_byte_too_many_fails_and_names_value_limit_and_places(run):
    result = run("""
@pytest.mark.memwall(gpu="h100", max_dram_bytes=40959)
def test_net(memwall):
    memwall.profile(Net(), X)
    raise SystemError("not reached")
""")
    result.assert_outcomes(failed=1)
    says(
        result,
        "dram_bytes of Net on h100-sxm, eager: 40.960 kB, want at most 40.959 kB (max_dram_bytes=40959)",
        "40.96 kB (100.0 %)  mm x2, overhead-bound, layers.*, ",
        ".py:12",  # the line that calls the layer
    )
    assert "not reached" not in result.stdout.str().replace('raise SystemError("not reached")', "")


def test_every_limit_that_does_not_hold_is_named_on_every_gpu_and_policy(run):
    result = run("""
@pytest.mark.memwall(gpu=["h100", "a100"], policy=["eager", "ideal"])
@pytest.mark.memwall(max_kernels=1, min_mfu="99 %", max_flops="1 TFLOP")
def test_net(memwall):
    memwall.profile(Net(), X)
""")
    result.assert_outcomes(failed=1)
    for gpu in ("h100-sxm", "a100-80gb-sxm"):
        for policy in ("eager", "ideal"):
            says(result, f"kernels of Net on {gpu}, {policy}: 2, want at most 1 (max_kernels=1)")
            says(result, f"mfu of Net on {gpu}, {policy}: ", "want at least 99.0 % (min_mfu='99 %')")
    assert "flops of" not in result.stdout.str()


def test_places_of_quantities_that_kernels_do_not_add_up_to(run):
    result = run("""
@pytest.mark.memwall(max_peak_memory="1 kB", max_materialized_bytes=0, max_time_s="1 ns")
def test_net(memwall):
    memwall.profile(Net(), X)
""")
    result.assert_outcomes(failed=1)
    # two weights of 16,384 bytes; the first product's output is the one intermediate
    says(result, "32.77 kB  parameters", "materialized_bytes of Net on h100-sxm, eager: 2.05 kB, want at most 0 B")


def test_graph_breaks_are_looked_for_where_they_are_limited(run):
    tests = """
class Printing(Net):
    def forward(self, x):
        x = super().forward(x)
        print("x")
        return x + 1

@pytest.mark.memwall(max_graph_breaks=0)
def test_whole(memwall):
    memwall.profile(Net(), X)

@pytest.mark.memwall(max_graph_breaks=0)
def test_broken(memwall):
    memwall.profile(Printing(), X)
"""
    result = run(tests)
    result.assert_outcomes(passed=1, failed=1)
    says(result, "graph_breaks of Printing on h100-sxm, eager: 1, want at most 0", ".py:20, ", 'print("x")')


def test_a_quantity_that_is_not_known_fails(run, monkeypatch):
    from memwall.analysis import quantities

    known = quantities.LIMITS["mbu"]
    monkeypatch.setitem(quantities.LIMITS, "mbu", replace(known, readers={}))
    result = run("""
@pytest.mark.memwall(min_mbu=0)
def test_net(memwall):
    memwall.profile(Net(), X)
""")
    result.assert_outcomes(failed=1)
    says(result, "mbu of Net on h100-sxm, eager is not known; want min_mbu=0")


def test_markers_of_the_module_and_the_class_count_and_the_closest_wins(run):
    result = run("""
pytestmark = pytest.mark.memwall(gpu="a100", max_kernels=1)

@pytest.mark.memwall(mode="training", optimizer=None)
class TestNet:
    @pytest.mark.memwall(max_kernels=1000)
    def test_close(self, memwall):
        made = memwall.profile(Net(), X)
        assert (made.workload.mode, made.simulations[0].gpu.name) == ("training", "a100-80gb-sxm")

    def test_far(self, memwall):
        memwall.profile(Net(), X)
""")
    result.assert_outcomes(passed=1, failed=1)
    says(result, "test_far", "want at most 1 (max_kernels=1)")


def test_the_closest_limit_of_a_quantity_wins_by_whatever_name(run):
    """``max_time`` is ``max_time_s``: the second test would fail by the limit of its class."""
    result = run("""
@pytest.mark.memwall(max_time="1 ns")
class TestNet:
    def test_far(self, memwall):
        memwall.profile(Net(), X)

    @pytest.mark.memwall(max_time_s="1 s")
    def test_closest(self, memwall):
        memwall.profile(Net(), X)

    @pytest.mark.memwall(max_time_s="1 s")
    @pytest.mark.memwall(max_time="1 ns")
    def test_first_name_again(self, memwall):
        memwall.profile(Net(), X)
""")
    result.assert_outcomes(passed=1, failed=2)


# -- failing closed ----------------------------------------------------------------------------------------------------


def test_limits_without_a_profile_fail(run):
    result = run("""
@pytest.mark.memwall(max_kernels=1)
def test_forgot(memwall):
    pass

@pytest.mark.memwall(max_kernels=1)
def test_without_the_fixture():
    import memwall
    memwall.profile(Net(), X)

@pytest.mark.memwall(gpu="a100")
def test_no_limit(memwall):
    pass

@pytest.mark.memwall(max_kernels=1)
def test_skipped(memwall):
    pytest.skip("reason")
""")
    result.assert_outcomes(failed=2, passed=1, skipped=1)
    says(
        result,
        "the memwall marker wants max_kernels=1, but the test profiled nothing with the memwall fixture: take it",
    )


#: keywords of a marker -> what is said of them
SENSELESS = {
    "max_dram_byte=1": "no keyword 'max_dram_byte'; did you mean max_dram_bytes?",
    "gpus='h100'": "no keyword 'gpus'; did you mean gpu?",
    "max_measured_s='1 s'": "no keyword 'max_measured_s'; did you mean max_time_s?",
    "max_mfu=0.5": "max_mfu: higher is better; write min_mfu",
    "min_kernels=5": "min_kernels: lower is better; write max_kernels",
    "max_dram_bytes='+2 %'": "is a change, and a marker has no baseline; write an absolute limit",
    "max_dram_bytes='2 GBit'": "no unit 'GBit' for DRAM bytes; did you mean GB?",
    "max_kernels='many'": "cannot read the limit 'many'",
    "max_kernels=None": "a limit is a number or text such as 120 or '+0', not 'None'",
    "max_kernels=True": "a limit is a number or text such as 120 or '+0', not 'True'",
    "'h100'": "the memwall marker takes keywords only, not 'h100'",
}


def test_a_marker_that_makes_no_sense_is_an_error_of_its_test(run):
    """A GPU that is none is one of the profile."""
    tests = ["def test_other():\n    pass\n"]
    for number, keywords in enumerate([*SENSELESS, "gpu='h10', max_kernels=9"]):
        tests += [f"@pytest.mark.memwall({keywords})\ndef test_{number}(memwall):\n    memwall.profile(Net(), X)\n"]
    result = run("\n".join(tests))
    result.assert_outcomes(errors=len(SENSELESS), failed=1, passed=1)
    says(result, *SENSELESS.values(), "no GPU named 'h10'; did you mean h100-sxm")


# -- the fixture beside the package ------------------------------------------------------------------------------------


def test_limits_that_hold_exactly_pass_and_the_fixture_has_the_public_names_of_the_package(run):
    run("""
@pytest.mark.memwall(gpu="v100", max_dram_bytes="40.96 kB", max_kernels=2, max_flops=131072, min_coverage="100 %")
def test_limits(memwall):
    assert memwall.profile(Net(), X).simulations[0].gpu.name.startswith("v100")

@pytest.mark.memwall(gpu="a100", max_kernels=2)
def test_keywords_of_the_call_go_before_those_of_the_marker(memwall):
    assert memwall.profile(Net(), X, gpu="v100").simulations[0].gpu.name.startswith("v100")

def test_names(memwall):
    made = memwall.profile(Net(), X)
    assert isinstance(made, memwall.Profile)
    assert memwall.compare(made, gpu=["v100", "h100"]).entries
    with pytest.raises(AttributeError, match="nothing"):
        memwall.nothing

def test_package():
    import memwall
    assert memwall.profile(Net(), X).simulations
""").assert_outcomes(passed=4)


def test_what_a_test_sets_or_draws_does_not_reach_the_next(run):
    run("""
import random
import numpy

def draw():
    return random.random(), numpy.random.rand(), torch.rand(()).item()

def test_sets():
    torch.set_float32_matmul_precision("high")
    torch.set_default_dtype(torch.float64)

def test_net(memwall):
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_default_dtype() == torch.float32

def test_draws():
    draw()

@pytest.mark.parametrize("i", range(2))
def test_drawn(memwall, i):
    found = draw()
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    assert found == draw()
""").assert_outcomes(passed=5)


def test_without_the_plugin_the_marker_is_unknown(entry_point, pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.memwall(max_kernels=1)\ndef test_net(): pass\n")
    result = pytester.runpytest_subprocess("-p", "no:memwall", "-p", "no:cacheprovider", "--strict-markers")
    result.assert_outcomes(errors=1)
    says(result, "'memwall' not found in `markers` configuration option")


def test_the_marker_is_listed(entry_point, pytester):
    says(pytester.runpytest_inprocess("--markers"), "@pytest.mark.memwall(gpu=..., policy=..., mode=...")


def test_workers_of_xdist_have_it_too(entry_point, pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile("""
import pytest

@pytest.mark.memwall(max_kernels=1)
@pytest.mark.parametrize("i", range(2))
def test_forgot(i):
    pass
""")
    result = pytester.runpytest_subprocess("-n", "1", "--strict-markers", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    says(result, "but the test profiled nothing")


def test_a_session_that_does_not_use_it_imports_nothing_for_it(entry_point):
    code = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import memwall.gate.pytest_plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "memwall", "memwall.core", "memwall.core.version", "memwall.gate", "memwall.gate.pytest_plugin",
    ]  # fmt: skip


# -- assert_bound ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walls():
    """Two blocks of a product at the compute wall and a GELU and a norm at the bandwidth wall (``report_fixture``)."""
    return make_profile(gpus=(OLD,))


def test_assert_bound_passes_where_the_share_stands(walls):
    assert_bound(walls, "compute", module="blocks.*.proj")
    assert_bound(walls, "compute", module="blocks.0.proj", share=1.0)
    assert_bound(walls, "bandwidth", module="blocks.*.norm", share=1.0)


def test_assert_bound_says_what_stands_instead_and_where(walls):
    with pytest.raises(
        AssertionError, match=r"want 50.0 % of the time of blocks.\*.proj bandwidth-bound; it is compute"
    ):
        assert_bound(walls, "bandwidth", module="blocks.*.proj")
    with pytest.raises(
        AssertionError, match=r"tiny on old, eager: want 100.0 % of the time compute-bound.*\n    .* \("
    ):
        assert_bound(walls, "compute", share=1.0)


def test_assert_bound_counts_the_modules_below(walls):
    shares = {}
    for kernel in walls.simulations[0].kernels:
        op = walls.graph.ops[kernel.op_ids[0]]
        if op.module.startswith("blocks.0"):
            shares[kernel.limited_by] = shares.get(kernel.limited_by, 0.0) + kernel.time_s
    wall = max(shares, key=shares.get)
    part = shares[wall] / sum(shares.values())
    assert_bound(walls, wall, module="blocks.0", share=part * 0.999)
    with pytest.raises(AssertionError):
        assert_bound(walls, wall, module="blocks.0", share=min(part * 1.001, 1.0))


def test_assert_bound_fails_closed(walls):
    with pytest.raises(AssertionError, match=r"no kernel of tiny on old, eager is in block.\*; there is blocks.\*"):
        assert_bound(walls, "compute", module="block.*")
    with pytest.raises(AssertionError, match="tiny was simulated on no GPU"):
        assert_bound(walls.with_simulations(()), "compute")


@pytest.mark.parametrize("share", [0, -1, 1.01, float("nan"), 50])
def test_assert_bound_refuses_a_share_that_is_none(walls, share):
    with pytest.raises(UsageError, match="want a fraction above 0, at most 1"):
        assert_bound(walls, "compute", share=share)


def test_a_misuse_of_assert_bound_is_shown_at_the_users_line(run):
    result = run("""
def test_net(memwall):
    memwall.assert_bound(memwall.profile(Net(), X), "overheads")
""")
    result.assert_outcomes(failed=1)
    says(result, "no wall 'overheads'; did you mean overhead?")
    assert "def not_bound" not in "\n".join(result.outlines)


def test_assert_bound_refuses_a_wall_that_there_is_not(walls):
    with pytest.raises(UsageError, match="no wall 'memory'"):
        assert_bound(walls, "memory")
    with pytest.raises(UsageError, match=r"no wall 'bandwith'; did you mean bandwidth\?"):
        assert_bound(walls, "bandwith")
