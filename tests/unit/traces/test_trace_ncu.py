"""Nsight Compute's CSV: the layouts that ncu 2020 to 2025 print, in two locales, beside a trace's kernels."""

from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.traces.ncu import function_name, join_ncu, read_ncu_csv
from memwall.traces.reading import read_trace
from tests.unit.traces_fixture import call, kernel, op, write

LAUNCH = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",'
    '"Block Size","Grid Size","Device","CC"'
)
DETAILS = f'{LAUNCH},"Section Name","Metric Name","Metric Unit","Metric Value"'
NAME = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>>(int, T2, T3)"


def _row(number: int, kernel_name: str, *values: str, grid: str = "(160, 1, 1)") -> str:
    cells = [number, 4711, "python3.11", "127.0.0.1", kernel_name, 1, 7, "(128, 1, 1)", grid, 0, "9.0", *values]
    return ",".join(f'"{cell}"' for cell in cells)


def _csv(folder: Path, *lines: str) -> Path:
    path = folder / "ncu.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_page_raw_in_base_units(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        "==PROF== Connected to process 4711 (/usr/bin/python3.11)",
        '==PROF== Profiling "vectorized_elementwise_kernel": 0%....50%....100% - 2 passes',
        "a line of the program itself, with a comma",
        f'{LAUNCH},"dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","launch__waves"',
        '"","","","","","","","","","","","byte","byte","nsecond",""',
        _row(0, NAME, "1,048,576", "2,048", "4,160", "1"),
        _row(1, "saxpy(int, float *)", "4096", "8192", "3000.5", "2"),
        "==PROF== Disconnected from process 4711",
    )
    first, second = read_ncu_csv(path)
    assert (first.id, first.kernel, first.grid, first.block) == (0, NAME, (160, 1, 1), (128, 1, 1))
    assert (first.dram_read_bytes, first.dram_write_bytes, first.dram_bytes) == (1048576, 2048, 1050624)
    assert first.duration_s == pytest.approx(4.16e-6, rel=1e-12)
    assert second.duration_s == pytest.approx(3.0005e-6, rel=1e-12)


def test_page_details_in_scaled_units(tmp_path: Path) -> None:
    path = _csv(
        tmp_path,
        f'{DETAILS},"Rule Name","Rule Type","Rule Description"',
        _row(0, "k", "GPU Speed Of Light Throughput", "DRAM Frequency", "hz", "3995313115.40"),
        _row(0, "k", "GPU Speed Of Light Throughput", "Duration", "usecond", "41.28"),
        _row(0, "k", "Command line profiler metrics", "dram__bytes_read.sum", "Mbyte", "2.5"),
        _row(0, "k", "Command line profiler metrics", "dram__bytes_write.sum", "Kbyte", "640"),
        _row(1, "k", "", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "", "n/a"),
        _row(1, "k", "", "dram__bytes.sum", "Gbyte", "1.25"),
        _row(1, "k", "", "dram__bytes_read.sum", "", "n/a"),
        _row(1, "k", "", "gpu__time_duration.sum", "ms", "1.5"),
    )
    first, second = read_ncu_csv(path)
    assert (first.dram_read_bytes, first.dram_write_bytes, first.dram_bytes) == (2.5e6, 640e3, 3_140_000)
    assert first.duration_s == pytest.approx(41.28e-6, rel=1e-12)
    assert (second.dram_read_bytes, second.dram_bytes) == (None, 1.25e9)
    assert second.duration_s == pytest.approx(1.5e-3, rel=1e-12)


def test_a_locale_with_dots_between_thousands(tmp_path: Path) -> None:
    """27.595.520 can only be dotted thousands, so 117.344 ns in the same file is 117 us."""
    path = _csv(
        tmp_path,
        DETAILS,
        _row(0, "sgemm", "Command line profiler metrics", "gpu__time_duration.sum", "ns", "117.344"),
        _row(0, "sgemm", "Command line profiler metrics", "dram__bytes.sum", "byte", "27.595.520"),
        _row(1, "sgemm", "Command line profiler metrics", "gpu__time_duration.sum", "us", "1,5"),
    )
    first, second = read_ncu_csv(path)
    assert first.dram_bytes == 27_595_520
    assert first.duration_s == pytest.approx(117.344e-6, rel=1e-12)
    assert second.duration_s == pytest.approx(1.5e-6, rel=1e-12)


@pytest.mark.parametrize(("lines", "message"), [
    (["hello"], "no table of Nsight Compute"),
    ([], "no table of Nsight Compute"),
    (['"ID","Time"', '"0","5"'], 'no column "Kernel Name"'),
    ([DETAILS], "none of the metrics"),
    ([DETAILS, _row(0, "k", "", "sm__cycles_active.avg", "cycle", "7")], "none of the metrics"),
    ([DETAILS, _row(0, "k", "", "dram__bytes.sum", "parsec", "7")], "unit 'parsec'"),
    ([DETAILS, _row(0, "k", "", "dram__bytes.sum", "byte", "-7")], "value '-7'"),
    ([DETAILS, _row(0, "k", "", "dram__bytes.sum", "byte", "seven")], "value 'seven'"),
    ([DETAILS, _row(0, "k", "", "gpu__time_duration.sum", "byte", "7")], "unit 'byte'"),
    ([DETAILS, _row(0, "k", "", "dram__bytes.sum", "byte", "7").replace('"0"', '"zero"', 1)], "is no number"),
    ([DETAILS, '"0","unclosed'], "is not CSV"),
])  # fmt: skip
def test_refused_in_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UsageError) as failure:
        read_ncu_csv(_csv(tmp_path, *lines))
    assert message in str(failure.value)
    assert "ncu.csv" in str(failure.value)
    assert "\n" not in str(failure.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_ncu_csv(tmp_path / "none.csv")


@pytest.mark.parametrize(("demangled", "bare"), [
    (NAME, "vectorized_elementwise_kernel"),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 1>(float*, x)", "CatArrayBatchedCopy"),
    ("void at::native::<unnamed>::CatArrayBatchedCopy<float, (int)1>(T1 *, T2)", "CatArrayBatchedCopy"),
    ("void f<g(int)::{lambda()#2}::operator()() const::{lambda()#9}, h<char*, 3> >(int, h)", "f"),
    ("saxpy(int, float, float *)", "saxpy"),
    ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
])  # fmt: skip
def test_one_function_by_two_demanglers(demangled: str, bare: str) -> None:
    assert function_name(demangled) == bare


def _trace_of(folder: Path, names: list[str]) -> Path:
    events = [op("aten::x", 0, 1000)]
    for i, name in enumerate(names):
        events += [call("cudaLaunchKernel", 10 * i, 1, i + 1)]
        events += [kernel(name, 2000 + 10 * i, 5, i + 1, grid=[160, 1, 1], block=[128, 1, 1])]
    return write(folder, events)


def test_rows_join_in_order_of_launch(tmp_path: Path) -> None:
    """The trace holds two steps of fill, gemm, fill; ncu measured one. Nothing in it ran "other"."""
    fill = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int, a, b)"
    trace = read_trace(_trace_of(tmp_path, [fill, "gemm", fill] * 2))
    rows = read_ncu_csv(
        _csv(
            tmp_path,
            f'{LAUNCH},"dram__bytes.sum"',
            '"","","","","","","","","","","","byte"',
            _row(0, NAME, "100"),
            _row(1, "gemm", "200"),
            _row(2, NAME, "300"),
            _row(3, "other", "400"),
        )
    )
    joined = join_ncu(trace, rows)
    assert {number: row.dram_bytes for number, row in joined.row_of.items()} == {
        0: 100, 1: 200, 2: 300, 3: 100, 4: 200, 5: 300,
    }  # fmt: skip
    assert joined.notes == ("other: 1 in the Nsight Compute report, 0 in the trace; not joined",)


def test_counts_that_do_not_fit_join_nothing_and_are_said(tmp_path: Path) -> None:
    trace = read_trace(_trace_of(tmp_path, ["gemm", "gemm", "gemm", "lonely"]))
    rows = read_ncu_csv(_csv(tmp_path, f'{LAUNCH},"dram__bytes.sum"', _row(0, "gemm", "100"), _row(1, "gemm", "200")))
    joined = join_ncu(trace, rows)
    assert not joined.row_of
    assert joined.notes == (
        "gemm: 2 in the Nsight Compute report, 3 in the trace; not joined",
        "4 of 4 kernels of the trace have no measured row",
    )


def test_another_grid_is_another_kernel(tmp_path: Path) -> None:
    trace = read_trace(_trace_of(tmp_path, ["gemm"]))
    rows = read_ncu_csv(_csv(tmp_path, f'{LAUNCH},"dram__bytes.sum"', _row(0, "gemm", "100", grid="(8, 1, 1)")))
    assert not join_ncu(trace, rows).row_of
