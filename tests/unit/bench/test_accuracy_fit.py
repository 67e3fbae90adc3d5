"""Constants fitted to made-up times of known constants, the halves, GPUs left out, and the text of a GPU's file."""

import subprocess
import sys
from dataclasses import replace

import pytest

from memwall.bench.accuracy import Sample
from memwall.bench.accuracy.fit import Residual, Target, by_target, fit, with_interval
from memwall.bench.accuracy.refit import Constant, fit_gpu, number, refit, renamed, with_tables
from memwall.bench.accuracy.samples import halves, held_out_gpu, predicted
from memwall.core.errors import UsageError
from memwall.hardware.constants import StreamConstants
from memwall.hardware.lookup import load_gpu, read_spec, spec_path
from memwall.ops import table_calls as calls
from memwall.perfmodel.base import Interval
from tests.unit.measured_fixture import make_measured
from tests.unit.places import ROOT

COPY = Target("h100-sxm", "stream", "elementwise")


def copies(gpu, sizes):
    """Copies of large arrays, with the times that the model says."""
    for size in sizes:
        cost = calls.stream(size, size, size // 4)
        sample = Sample("made up", gpu.name, gpu, "copy", "float32", f"copy {size}", cost, "graph", 0, 1.0)
        yield replace(sample, measured_s=predicted(sample).time_s)


def with_copy(gpu, fraction):
    values = {**gpu.utilization, "stream.elementwise.copy": fraction}
    return replace(gpu, utilization=values, fitted_on={**gpu.fitted_on, "stream.elementwise": gpu.name})


SIZES = [(1 << 26) + (i << 20) for i in range(60)]


def test_a_known_constant_is_found_again():
    pytest.importorskip("scipy")
    truth = with_copy(load_gpu("h100-sxm"), 0.7)
    samples = [replace(sample, gpu=load_gpu("h100-sxm")) for sample in copies(truth, SIZES)]
    (target,) = by_target(samples)
    assert target == COPY
    found = fit(target, samples)
    assert found.values["copy"] == pytest.approx(0.7, rel=0.02)
    assert found.after.mape < 0.01 < found.before.mape
    assert found.fitted + found.held_out == len(SIZES)
    assert fit(target, samples) == found  # seeded


def test_too_few_samples_are_no_fit():
    assert fit(COPY, list(copies(load_gpu("h100-sxm"), SIZES[:6]))) is None


def test_what_cannot_get_better_stays():
    pytest.importorskip("scipy")
    gpu = with_copy(load_gpu("h100-sxm"), 0.8)
    found = fit(COPY, list(copies(gpu, SIZES)))
    assert found.values["copy"] == pytest.approx(0.8, rel=1e-6)
    assert found.before == found.after


def test_an_interval_by_hand():
    """Measured over modeled 0.5, 0.6 ... 1.3: nine leave ten gaps, of which the next is below 0.5 or above 1.3 with a
    chance of a tenth each; it holds 1 in any case."""
    known = with_interval(StreamConstants(), [Residual(0.5 + i / 10, 1e-5) for i in range(9)])
    assert (known.interval_low, known.interval_high) == pytest.approx((0.5, 1.3))
    slow = with_interval(StreamConstants(), [Residual(1.2 + i / 100, 1e-5) for i in range(19)])
    assert slow.interval_low == 1.0
    assert slow.interval_high == pytest.approx(1.37)
    assert with_interval(StreamConstants(), [Residual(1.2, 1e-5), Residual(1.3, 1e-5)]) == StreamConstants()


def test_an_interval_is_narrower_where_long_kernels_are_better_known():
    """Up to 5 us 0.5 to 2, from 0.5 ms on 0.71 to 1.41, their root, and in the middle of the decades the power 0.75."""
    short = [Residual(2.0 ** (i / 20 - 1), 5e-6) for i in range(41)]
    long = [Residual(2.0 ** (i / 40 - 0.5), 5e-4) for i in range(41)]
    known = with_interval(StreamConstants(), short + long)
    assert known.interval_long == 0.5
    ends = Interval(0.5, 2.0, known.interval_long)
    assert (ends.at(1e-6), ends.at(1.0)) == (pytest.approx((0.5, 2.0)), pytest.approx((0.5**0.5, 2.0**0.5)))
    assert ends.at(5e-5) == pytest.approx((0.5**0.75, 2.0**0.75))


def test_halves_depend_on_the_shape_alone():
    samples = list(copies(load_gpu("h100-sxm"), SIZES))
    first, second = halves(samples)
    assert len(first) + len(second) == len(samples)
    assert min(len(first), len(second)) > len(samples) / 4
    assert all(sample.in_fit_half for sample in first)
    assert halves([replace(s, label="other") for s in samples])[0] == [replace(s, label="other") for s in first]


def test_a_board_left_out_has_nothing_of_its_own():
    for name in ("h100-sxm", "v100-pcie-32gb", "mi100"):
        gpu = load_gpu(name)
        assert gpu.name not in held_out_gpu(gpu).fitted_on.values()
        assert held_out_gpu(gpu).peak_flop_per_s == gpu.peak_flop_per_s


TEXT = """name = "x"
aliases = [
    "y",
]

[utilization.gemm.float16]
plateau = 0.5  # from somewhere
start_s = 1e-6  # from elsewhere

[identity]
a = "b"
"""


def test_only_the_tables_named_change():
    tables = {
        "utilization.gemm.float16": [Constant("plateau", 0.75, "rows")],
        "utilization.stream.elementwise": [Constant("copy", 0.9, "more rows")],
    }
    text = with_tables(TEXT, tables)
    assert "plateau = 0.75  # rows\nstart_s = 1e-6  # from elsewhere\n\n[identity]" in text.replace("    ", "")
    assert text.endswith('a = "b"\n\n[utilization.stream.elementwise]\ncopy = 0.9  # more rows\n')
    assert with_tables(text, tables) == text
    assert renamed(TEXT, "z").startswith('name = "z"\n\n[utilization')


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), (3.0, "3.0"), (2.5e-6, "2.5e-6"), (12345.0, "1.234e4")])
def test_numbers_of_a_file(value, text):
    assert number(value) == text


@pytest.mark.parametrize("name", ["h100-sxm", "p4"])
def test_a_file_stays_readable(name, tmp_path):
    tables = {"utilization.gemm.float16": [Constant("plateau", 0.75, "rows"), Constant("interval_low", 0.9, "rows")]}
    path = tmp_path / "g.toml"
    path.write_text(with_tables(spec_path(name).read_text(), tables))
    gpu = read_spec(path)
    assert gpu.utilization["gemm.float16.plateau"] == 0.75
    assert "rows" in gpu.sources["utilization.gemm.float16.plateau"]


def table(path, gpu, sizes):
    rows = [f"relu,{gpu},{size},,,,1024,{size * 1024 * 8 / 300e9 * 1e3 + 0.02}" for size in sizes]
    path.write_text("op,gpu,b,m,k,n,h,latency_ms\n" + "\n".join(rows) + "\n")


def test_a_file_of_ones_own(tmp_path):
    pytest.importorskip("scipy")
    table(tmp_path / "rows.csv", "Tesla P4", range(64, 64 * 60, 64))
    found = refit(tmp_path / "rows.csv")
    assert "stream.elementwise" in {f"{fit.target.family}.{fit.target.variant}" for fit in found.fits}
    (tmp_path / "own.toml").write_text(found.text)
    gpu = load_gpu(tmp_path / "own.toml")
    assert gpu.name == "p4-fitted"
    assert gpu.fitted_on["stream.elementwise"] == "p4-fitted"
    assert "of rows.csv" in gpu.sources["utilization.stream.elementwise.copy"]


def test_rows_that_are_no_fit(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("op,gpu,b,m,k,n,h,latency_ms\nrelu,Tesla P4,8,,,,8,1\nrelu,Tesla T4,8,,,,8,1\n")
    with pytest.raises(UsageError, match="rows of several GPUs: p4, t4"):
        refit(path)
    make_measured().save(tmp_path / "run.json")
    with pytest.raises(UsageError, match="rows of the GPU 'old', of which memwall has no file"):
        refit(tmp_path / "run.json")
    table(path, "Tesla P4", range(64, 256, 64))
    with pytest.raises(UsageError, match="too few rows"):
        refit(path)


def test_the_script_prints_and_changes_nothing(tmp_path):
    pytest.importorskip("scipy")
    table(tmp_path / "rows.csv", "Tesla P4", range(64, 64 * 40, 64))
    before = spec_path("p4").read_bytes()
    done = subprocess.run(
        [sys.executable, str(ROOT / "lab" / "fits" / "fit_utilization.py"), "--files", str(tmp_path / "rows.csv"),
         "--family", "stream", "--intervals"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "stream.elementwise" in done.stdout
    assert spec_path("p4").read_bytes() == before


def test_a_board_is_fitted_in_one_go():
    pytest.importorskip("scipy")
    gpu = load_gpu("h100-sxm")
    fits = fit_gpu(list(copies(gpu, SIZES)), search=False)
    assert {found.target for found in fits} == {COPY}
