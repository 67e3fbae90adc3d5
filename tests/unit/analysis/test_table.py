"""Sums and shares of the made-up profile, by hand: 1 us a launch, 100 TFLOP/s tensor, 10 TFLOP/s vector, 1 TB/s."""

import subprocess
import sys
from dataclasses import replace

import pytest

from memwall.analysis import quantities, table
from memwall.analysis.levers import KINDS, by_kind, levers
from memwall.analysis.verdict import verdict
from memwall.core.errors import UsageError
from memwall.fusion import eager_plan
from memwall.record import kernels
from memwall.simulate.schedule import simulate
from tests.unit.report_fixture import HOSTILE, OLD, make_gpu, make_profile

US = 1e-6
MM = 2**31 / 100e12  # 2 x 1024^3 FLOP at 100 TFLOP/s: 21.47483648 us
TILE = 1024 * 1024 * 2  # one fp16 matrix, bytes


@pytest.fixture(scope="module")
def profile():
    return make_profile()


@pytest.fixture(scope="module")
def old(profile):
    return profile.simulation("old")


def by_key(rows):
    return {row.key: row for row in rows}


def test_class_rows_add_up_by_hand(profile, old):
    rows = by_key(table.class_rows(profile, old))
    matrix = rows["contraction"]  # two forward, two backward products, each 2 reads and 1 write of a tile
    assert (matrix.launches, matrix.flops, matrix.bytes) == (4, 4 * 2**31, 4 * 3 * TILE)
    assert matrix.time_s == pytest.approx(4 * (MM + US))
    assert matrix.limited_by == "compute"
    norm = rows["normalization"]  # 5 FLOP an element; reads a tile, writes one, and reads half a tile more
    assert (norm.launches, norm.flops, norm.bytes) == (2, 2 * 5 * 2**20, 2 * 2 * TILE)
    assert norm.time_s == pytest.approx(2 * (3 * TILE / 1e12 + US))
    assert sum(row.flop_share for row in rows.values()) == pytest.approx(1)
    assert sum(row.byte_share for row in rows.values()) == pytest.approx(1)
    assert sum(row.time_share for row in rows.values()) == pytest.approx(1)


def test_times_fewer_is_over_all_matrix_classes_and_only_where_it_means_something(profile, old):
    rows = by_key(table.class_rows(profile, old))
    matrix_rate = 5 * 2**31 / (5 * (MM + US))  # four products and one attention of the same FLOPs
    norm_rate = 2 * 5 * 2**20 / (2 * (3 * TILE / 1e12 + US))
    assert rows["normalization"].times_fewer == pytest.approx(matrix_rate / norm_rate)
    assert rows["contraction"].times_fewer is None
    assert rows["attention"].times_fewer is None
    assert rows["other"].times_fewer is None  # no FLOPs are known


def test_classes_stand_in_the_order_of_the_registry(profile, old):
    keys = [row.key for row in table.class_rows(profile, old)]
    assert keys == ["contraction", "attention", "normalization", "elementwise", "optimizer", "other"]


def test_phases_count_the_launches_of_each(profile, old):
    rows = by_key(table.phase_rows(profile, old))
    assert {key: row.launches for key, row in rows.items()} == {"forward": 9, "backward": 2, "optimizer": 2}
    assert rows["backward"].flops == 2 * 2**31


def test_repeated_kernels_are_one_row_with_totals(profile, old):
    rows = table.kernel_rows(profile, old)
    forward = next(row for row in rows if row.name == "aten.mm" and row.phase == "forward")
    assert (forward.count, forward.module, forward.flops) == (2, "blocks.*.proj", 2 * 2**31)
    assert forward.shapes == "f16[1024,1024] f16[1024,1024]"
    assert forward.time_s == pytest.approx(2 * (MM + US))
    assert forward.bound_s == pytest.approx(2 * MM)
    assert sum(row.time_s for row in rows) == pytest.approx(old.totals.time_s)
    assert sum(row.count for row in rows) == len(old.kernels)


@pytest.mark.parametrize(
    ("sort", "first"),
    [("time", "aten.mm"), ("flops", "aten.mm"), ("bytes", "aten._fused_adamw_"), ("intensity", "aten.mm")],
)
def test_sorting(profile, old, sort, first):
    rows = table.kernel_rows(profile, old, sort=sort)
    assert rows[0].name == first
    keys = [quantities.SORT_KEYS[sort].of(row) for row in rows]
    assert keys == sorted(keys, reverse=True)


def test_an_unknown_sort_key_is_the_users_error(profile, old):
    with pytest.raises(UsageError, match="cannot sort by 'speed'; choose one of time, flops"):
        table.kernel_rows(profile, old, sort="speed")


def test_modules_of_repeated_blocks_are_one(profile, old):
    rows = by_key(table.module_rows(profile, old))
    assert rows["blocks.*.proj"].flops == 4 * 2**31
    assert sum(row.time_share for row in rows.values()) == pytest.approx(1)


def test_join_has_every_key_of_either_side_once():
    assert list(table.join({"a": 1, "b": 2}, {"b": 3, "c": 4})) == [("a", 1, None), ("b", 2, 3), ("c", None, 4)]


_ONE_ROW_MORE = """
import sys, types
from pathlib import Path

import memwall.analysis

name = "memwall.analysis.quantities"
place = Path(memwall.analysis.__file__).with_name("quantities.py")
row = '''
    Quantity(name="extra_bytes", title="bytes of one more row", unit="B", per="schedule", attribute="write_bytes",
             adds=True, sort="extra", tables="kernel csv", heading="extra", place=35),
'''
before, end, after = place.read_text(encoding="utf-8").rpartition(")  # fmt: skip")
sys.modules[name] = memwall.analysis.quantities = types.ModuleType(name)
exec(compile(before + row + end + after, place, "exec"), sys.modules[name].__dict__)

from memwall.cli import main
from memwall.analysis.limits import parse_limit
from memwall.report.pages.profile import KERNEL_COLUMNS

assert parse_limit("extra_bytes", "3 MB").amount == 3e6
assert KERNEL_COLUMNS[11] == "extra_bytes"  # after flops, read_bytes, write_bytes
sys.exit(main(["report", sys.argv[1], "--sort", "extra"]))
"""


def test_a_new_quantity_is_a_column_a_sort_key_and_a_limit(tmp_path, profile):
    """All that it takes is a row in the table of quantities."""
    profile.save(tmp_path / "tiny.json")
    done = subprocess.run(
        [sys.executable, "-c", _ONE_ROW_MORE, str(tmp_path / "tiny.json")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    headings = done.stdout.partition("Top kernels by extra")[2].splitlines()[1].split()
    assert "extra" in headings


@pytest.mark.parametrize(
    ("module", "starred"),
    [("layers.3.attn", "layers.*.attn"), ("0", "*"), ("conv2d.1", "conv2d.*"), ("a.1.2.b", "a.*.*.b"), ("", "")],
)
def test_collapse_stars_whole_numbers_only(module, starred):
    assert kernels.collapse(module) == starred


@pytest.mark.parametrize(("name", "short"), [
    ("aten.add.Tensor", "add"), ("aten.mm", "mm"), ("aten.add.Tensor+aten.gelu", "add+gelu"),
    ("mylib.x.y", "mylib.x.y"), ("native_dropout+add.Tensor+gelu", "native_dropout+add+gelu"),
])  # fmt: skip
def test_short_names(name, short):
    assert kernels.short_name(name) == short


def test_wall_shares_add_up(profile, old):
    shares = kernels.wall_shares(old)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["compute"] == pytest.approx(5 * (MM + US) / old.totals.time_s)


def test_rates(profile, old):
    speed = kernels.rates(profile, old)
    assert speed.samples_per_s == pytest.approx(8 / old.totals.time_s)
    assert speed.tokens_per_s == pytest.approx(1024 / old.totals.time_s)
    assert kernels.rates(make_profile(tokens=None), old).tokens_per_s is None


def _saved(profile, schedule):
    """Option of each lever -> the seconds that it saves."""
    return {lever.options: lever.saved_s for lever in levers(profile, schedule)}


def test_levers_by_hand(profile, old):
    got = _saved(profile, old)
    # Half the arithmetic: five products fall from 21.47 us to 10.74 us, still above their 6.3 or 8.4 us of traffic.
    assert got["--what-if 'peak_flop_per_s*=2'"] == pytest.approx(5 * MM / 2)
    # Half the traffic of: 2 gelu (2 tiles), 2 norms (3), mystery (2), the optimizer (20), each still above its FLOPs.
    assert got["--what-if 'dram_bytes_per_s*=2'"] == pytest.approx((2 * 2 + 2 * 3 + 2 + 20) * TILE / 2 / 1e12, rel=1e-4)
    # Thirteen launches of 1 us each take half of it.
    assert got["--what-if latency_s/=2"] == pytest.approx(13 * US / 2)
    assert got["--cuda-graph"] == got["--what-if dispatch_s/=2"] == 0
    assert [*got][-1] == "--policy ideal"  # what no compiler reaches comes last
    assert [*got.values()][:-1] == sorted([*got.values()][:-1], reverse=True)


def test_pages_have_what_can_be_changed_in_software_first(profile, old):
    shown = [(tuple(KINDS).index(lever.kind), -lever.saved_s) for lever in by_kind(levers(profile, old))]
    assert shown == sorted(shown) and len({kind for kind, _ in shown}) == len(KINDS)


def test_cuda_graphs_save_the_wait_for_the_cpu(profile):
    graph, costs = profile.graph, profile.costs[0]
    slow = simulate(graph, eager_plan(graph, costs), make_gpu("slow-cpu", dispatch_s=50e-6))
    fast = simulate(graph, eager_plan(graph, costs), OLD)
    # 12 ops issued 50 us apart, which is longer than what the GPU does
    assert slow.totals.time_s == pytest.approx(12 * 50 * US)
    got = _saved(profile, slow)
    assert got["--cuda-graph"] == pytest.approx(slow.totals.time_s - fast.totals.time_s)
    # issued 25 us apart, 300 us are still longer than the 187.48 us of the GPU
    assert got["--what-if dispatch_s/=2"] == pytest.approx(12 * 25 * US)
    told = verdict(profile, slow)
    assert told.bound_by == "host"
    assert told.text.startswith(
        "Host-bound: 412.52 us of the 600.00 us are waits for the CPU, which issues the kernels. Twice its speed"
        " would save 300.00 us, a change of the GPU nothing."
    )


def test_the_verdict_names_the_wall_and_its_levers(profile, old):
    told = verdict(profile, old)
    assert told.bound_by == "compute"
    assert "Compute binds: twice the FLOP/s would save 53.69 us. 59.9 % of the time goes to kernels" in told.text
    assert told.text.endswith(".")
    new = verdict(profile, profile.simulation("new"))
    assert new.bound_by == "bandwidth"
    assert "98.4 % of the time goes to kernels that wait for memory" in new.text


def test_a_wall_of_most_of_the_time_that_does_not_bind_is_named(profile):
    """Products take 107 us, the rest 104. Twice the FLOP/s leaves products above their traffic, 9.75 us or 13."""
    graph, costs = profile.graph, profile.costs[0]
    near = simulate(graph, eager_plan(graph, costs), make_gpu("near", dram_bytes_per_s=1e12 / 1.55))
    told = verdict(profile, near)
    assert told.bound_by == "bandwidth"
    assert "Kernels limited by compute take the most time, 50" in told.text
    assert "of the hardware twice the bandwidth would save most, 52" in told.text
    assert ", twice the FLOP/s 51.42 us." in told.text


def test_the_verdict_says_when_it_does_not_fit(profile):
    graph, costs = profile.graph, profile.costs[0]
    small = simulate(graph, eager_plan(graph, costs), make_gpu("small", dram_bytes=20_000_000))
    text = verdict(profile, small).text
    assert text.startswith("It does not fit: 29.36 MB at the peak")
    assert "exceed the GPU's 20.00 MB. If it did: " in text


def test_nothing_to_run(profile, old):
    empty = replace(old, kernels=(), totals=replace(old.totals, time_s=0.0))
    assert verdict(profile, empty).text == "Nothing runs on the device, so there is no wall."


def test_the_hostile_name_is_in_the_fixture(profile, old):
    assert HOSTILE in {kernel.name for kernel in old.kernels}
