"""Comparisons, by hand on the made-up GPUs and against the datasheets of real ones."""

import json
import math
from dataclasses import replace

import pytest
import torch

import memwall
from memwall.bench.accuracy.reading import read_measured
from memwall.bench.accuracy.samples import Sample, halves, model_rows
from memwall.core.errors import UsageError
from memwall.hardware.lookup import load_gpu
from memwall.report import render
from memwall.simulate.schedule import Totals
from memwall.sweeping.compare import compare_gpus, compare_profile, compare_profiles
from memwall.sweeping.comparison import ratio_interval
from tests.unit.places import truth
from tests.unit.report_fixture import NEW, OLD, make_gpu, make_profile


@pytest.fixture(scope="module")
def profile():
    return make_profile()


def test_resimulating_gives_what_the_profile_says(profile):
    for saved in profile.simulations:
        schedule = replace(profile, simulations=()).schedule(saved.gpu)
        assert schedule == saved


def test_entries_by_hand(profile):
    got = compare_profile(profile, [OLD, NEW], price={"old": 3.6, "new": 36.0})
    old, new = got.entries
    assert (old.label, new.label, old.speedup) == ("old", "new", 1.0)
    assert new.speedup == pytest.approx(old.time_s / new.time_s)
    assert old.energy_j == pytest.approx(old.watts_per_gpu * old.time_s)
    assert 300 / 4 < old.watts_per_gpu <= 300 and 700 / 4 < new.watts_per_gpu <= 700  # a quarter is that of a wait
    assert old.usd_per_step == pytest.approx(1e-3 * old.time_s)  # 3.6 USD an hour is a tenth of a cent a second
    assert old.usd_per_million_samples == pytest.approx(old.usd_per_step / 8 * 1e6)
    assert new.usd_per_million_tokens == pytest.approx(1e-2 * new.time_s / 1024 * 1e6)
    assert sum(old.wall_shares.values()) == pytest.approx(1)


def test_flips_name_the_kernels_whose_wall_changes(profile):
    flips = compare_profile(profile, [OLD, NEW]).flips
    # 21.47 us of arithmetic over 6.29 us of traffic on the old; 2.15 us over 3.15 us on the new.
    assert {(f.name, f.phase, f.count) for f in flips} == {
        ("aten.mm", "forward", 2),
        ("aten.mm", "backward", 2),
        ("aten._scaled_dot_product_flash_attention", "forward", 1),
    }
    assert {f.walls for f in flips} == {("compute", "bandwidth")}


def test_kernels_that_differ_in_strides_only_are_one_row_of_what_flips():
    """The three copies of an attention's q, k and v change walls alike on a GPU of little bandwidth."""
    layer = torch.nn.MultiheadAttention(1024, 16, batch_first=True)
    x = torch.randn(8, 512, 1024)
    found = memwall.profile(layer, (x, x, x), gpu=["h100", "l40s"])
    flips = compare_profile(found, [s.gpu for s in found.simulations]).flips
    assert max(flip.count for flip in flips) > 1
    rows = [(flip.name, flip.module, flip.phase, flip.walls) for flip in flips]
    assert len(rows) == len(set(rows))
    for flip in flips:
        for schedule, time_s in zip(found.simulations, flip.times_s, strict=True):
            assert time_s == pytest.approx(sum(k.time_s for k in schedule.kernels if k.name == flip.name))


def test_without_price_or_power_there_is_no_cost(profile):
    entry = compare_profile(profile, [make_gpu("bare", tdp_w=0.0)]).entries[0]
    assert entry.energy_j is entry.usd_per_step is entry.usd_per_million_tokens is None


def test_a_price_for_another_gpu_is_refused(profile):
    with pytest.raises(UsageError, match="a price for h200, which is not compared; compared are old, new"):
        compare_profile(profile, [OLD, NEW], price={"h200": 1.0})


def test_nothing_to_compare_is_refused(profile):
    with pytest.raises(UsageError, match="name at least one GPU"):
        compare_profile(profile, [])
    with pytest.raises(UsageError, match="at least two profiles"):
        compare_profiles([profile])
    with pytest.raises(UsageError, match="has no simulation"):
        compare_profiles([profile, make_profile(gpus=())])


def test_a_subject_says_mode_dtype_and_batch_once_or_of_each(profile):
    info = profile.workload
    assert compare_profile(profile, [OLD]).subject == "tiny, training, float16, batch 8"
    assert compare_profiles([profile, profile]).subject == "tiny and tiny #2, training, float16, batch 8"
    other = replace(
        profile, workload=replace(info, mode="inference", dtype="float32", autocast="float16", samples=None)
    )
    got = compare_profiles([profile, other]).subject
    assert got == "tiny, training, float16, batch 8 and tiny #2, inference, float32 (autocast float16)"


def test_profiles_side_by_side(profile):
    longer = make_profile(blocks=3)
    got = compare_profiles([profile, longer])
    assert [entry.label for entry in got.entries] == ["tiny on old", "tiny on new", "tiny #2 on old", "tiny #2 on new"]
    assert got.entries[2].speedup == pytest.approx(got.entries[0].time_s / got.entries[2].time_s)
    assert got.entries[1].speedup == 1.0  # each is compared with the first profile on the same GPU
    classes = {row.name: row for row in got.changes if row.kind == "class"}
    contraction = classes["contraction"]  # four products of 2^31 FLOP become six
    assert (contraction.before_flops, contraction.after_flops) == (4 * 2**31, 6 * 2**31)
    assert contraction.delta_s == pytest.approx(2 * (2**31 / 100e12 + 1e-6))
    assert "attention" not in classes  # unchanged


def test_equal_profiles_differ_in_nothing(profile):
    assert compare_profiles([profile, profile]).changes == ()


def test_growth_from_p100_to_h100():
    got = compare_gpus([load_gpu("p100-sxm2-16gb"), load_gpu("h100-sxm")])
    first, last = got.machines
    assert first.growth["bandwidth"] == 1.0
    assert last.growth["float16"] == pytest.approx(46.7, abs=0.05)  # 989.4 / 21.2
    assert last.growth["capacity"] == pytest.approx(5.0, rel=0.01)  # 80 / 16 GB
    assert last.growth["bandwidth"] == pytest.approx(3350 / 732, rel=0.01)
    assert last.growth["fp8"] is None  # the P100 has none
    text = render(got, "text")
    assert "46.7x" in text
    assert "4.98x" in text


def test_the_record_is_plain_and_stable(profile):
    got = compare_profile(profile, [OLD, NEW])
    record = json.loads(got.to_json())
    assert record["schema"] == "memwall.comparison/1"
    keys = ("schema", "memwall_version", "kind", "title", "subject", "entries", "flips", "changes", "machines")
    assert tuple(record) == keys
    assert record["kind"] == "gpus"
    assert record["entries"][0]["wall_shares"].keys() == {"compute", "bandwidth", "latency", "overhead"}
    assert compare_profile(make_profile(), [OLD, NEW]).to_json() == got.to_json()


def test_the_graph_of_another_gpu_is_the_first_when_there_is_one(profile):
    assert profile.graph_for(OLD) == profile.graph_for(make_gpu("stranger", compute_capability="7.0")) == 0


@pytest.mark.defect("10")
def test_each_gpu_has_its_levers_unless_they_are_many(profile):
    """A comparison named the wall of each GPU, and nothing that would move it. One of old takes 53.69 us less with
    twice the FLOP/s (test_table.py), one of new 22.82 us less with twice the bandwidth."""
    record = compare_profile(profile, [OLD, NEW]).to_dict()
    first, second = record["entries"]
    assert (first["bound_by"], second["bound_by"]) == ("compute", "bandwidth")
    arithmetic, traffic = (
        next(lever["saved_s"] for lever in entry["levers"] if f"{number}_per_s*=2" in lever["options"])
        for entry, number in ((first, "flop"), (second, "dram_bytes"))
    )
    assert (arithmetic, traffic) == (pytest.approx(53.69e-6, abs=5e-9), pytest.approx(22.82e-6, abs=5e-9))
    text = render(compare_profile(profile, [OLD, NEW]), "text")
    assert "What would make it faster" in text
    many = compare_profile(profile, [make_gpu(f"gpu{i}") for i in range(6)])
    assert {entry.levers for entry in many.entries} == {()}
    said = " ".join(render(many, "text").split())
    assert "told of up to 5, and not of these 6: memwall compare of fewer has it" in said


@pytest.mark.parametrize(("blocks", "said"), [
    (3, "tiny #2 on old takes 265.89 us (254.65 us to 472.11 us) a step, 0.71 times as fast as the first"),
    (1, "tiny #2 on old takes 109.08 us (104.60 us to 184.54 us) a step, 1.72 times as fast as the first"),
])  # fmt: skip
def test_profiles_are_answered_by_the_one_that_differs_most_from_the_first(profile, blocks, said):
    """Profiles side by side had no sentence. Of two blocks old takes 187.48 us: 187.48 / 265.89 = 0.705, 187.48 /
    109.08 = 1.719; new, which waits for memory, gains less."""
    page = render(compare_profiles([profile, make_profile(blocks=blocks)]), "text")
    assert " ".join(page.partition("\n\n")[2].split("\n\n")[0].split()).startswith(said)


def test_equal_profiles_are_said_to_be_equal(profile):
    page = render(compare_profiles([profile, make_profile()]), "text")
    assert "Every profile takes as long as the first on its GPU." in page


def test_most_of_many_gpus_are_the_others():
    from memwall.sweeping.comparison import Flip
    from memwall.sweeping.comparison_page import _listed

    labels = ["a", "b", "c", "d", "e"]
    flip = Flip("mm", "", "forward", 1, ("compute",) * 4 + ("overhead",), (1.0,) * 5)
    assert [_listed(labels, flip, wall) for wall in ("compute", "bandwidth", "overhead")] == [
        "the other 4", "-", "e",
    ]  # fmt: skip
    missing = Flip("mm", "", "forward", 1, ("compute",) * 4 + ("",), (1.0,) * 5)
    assert _listed(labels, missing, "compute") == "a, b, c, d"


def test_the_interval_of_a_ratio_by_hand():
    # 8 s, 4 to 16 s, over 2 s, 1 to 8 s: the logarithms (base 2) of the ends are 1 and 2 below, 1 and 1 above
    slow = Totals(0.0, 8.0, 0, 0, 0, 0, 0.0, 4.0, 16.0)
    fast = Totals(0.0, 2.0, 0, 0, 0, 0, 0.0, 1.0, 8.0)
    assert ratio_interval(slow, fast) == pytest.approx((4 / 2 ** math.sqrt(5), 4 * 2 ** math.sqrt(2)))
    assert ratio_interval(slow, replace(fast, low_s=2.0, high_s=2.0)) is None  # an older record has no interval


def test_a_profile_without_simulations_names_what_it_lacks():
    """One with attention too, whose graphs are made for each GPU."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    made = memwall.profile(Net(), (torch.randn(1, 2, 8, 16),)).with_simulations(())
    with pytest.raises(UsageError, match="name at least one GPU"):
        memwall.compare(made)
    assert [entry.gpu for entry in memwall.compare(made, gpu=["h100", "v100"]).entries] == [
        "h100-sxm",
        "v100-sxm2-16gb",
    ]


@pytest.mark.skipif(not truth("vidur_mlp_ops.csv"), reason="shared/truth/vidur_mlp_ops.csv is not here")
def test_the_interval_of_a_ratio_holds_measured_ones():
    """Equal shapes measured on two GPUs, in the half of the shapes that the constants were not fitted to."""
    path = truth("vidur_mlp_ops.csv")
    assert path is not None
    _, held_out = halves(read_measured(path).of(Sample))
    held_out = [sample for sample in held_out if sample.gpu.name in ("a100-80gb-sxm", "h100-sxm")]
    rows = list(zip(held_out, model_rows(held_out), strict=True))
    totals = {
        (row.op_class, sample.dtype, sample.shape, sample.gpu.name): (
            Totals(0.0, row.modeled_s, 0, 0, 0, 0, 0.0, row.low_s, row.high_s), row.measured_s
        )
        for sample, row in rows
    }  # fmt: skip
    held = []
    for *shape, name in totals:
        other = (*shape, "h100-sxm")
        if name == "a100-80gb-sxm" and other in totals:
            (a, a_s), (b, b_s) = totals[(*shape, name)], totals[other]
            low, high = ratio_interval(a, b)
            held.append(low <= a_s / b_s <= high)
    assert len(held) > 500
    assert sum(held) / len(held) >= 0.8
