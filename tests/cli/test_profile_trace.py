"""``memwall profile trace.json``: what it says, what it writes, what it refuses; each output read by its own reader."""

import csv
import gzip
import io
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from memwall.cli.output import Out
from memwall.core.errors import UsageError
from memwall.traces.command import analyse_file, is_trace, refuse_trace
from memwall.traces.page import TraceReport
from memwall.traces.page_names import short_name
from tests.unit.html_pages import Page
from tests.unit.places import ROOT
from tests.unit.traces import xspace
from tests.unit.traces_fixture import Event, call, kernel, op, write

H100 = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}
UNKNOWN_BOARD = {"id": 0, "name": "NVIDIA GeForce GTX 680"}
HOSTILE = 'k</script><script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m|`*'
SIDE = 4096
#: 2 * 4096^3 FLOP at 989.4e12 a second, in microseconds
LEAST_US = 2 * SIDE**3 / 989.4e12 * 1e6


def events(dur: float = 2 * LEAST_US, name: str = "nvjet_hsh_128x256") -> list[Event]:
    shapes = {"Input__Dims": [[SIDE, SIDE]] * 2, "Input__type": ["c10::Half"] * 2, "Concrete__Inputs": ["", ""]}
    return [
        op("aten::mm", 0, 20, **shapes), call("cudaLaunchKernelExC", 5, 1, 1), kernel(name, 30, dur, 1),
        op("mylib::secret", 30, 20), call("cudaLaunchKernel", 35, 1, 2), kernel("secret", 1000, 5.5, 2),
    ]  # fmt: skip


def trace(folder: Path, device: Any = H100, **how: Any) -> str:
    return str(write(folder, events(**how), deviceProperties=[device]))


def shown(path: str, capsys: pytest.CaptureFixture[str], *gpus: str, **options: Any) -> str:
    ncu, outputs = options.pop("ncu", None), options.pop("outputs", ())
    as_json = options.pop("as_json", False)
    out = Out(outputs, as_json=as_json, quiet=True)
    out.plan(TraceReport)
    out.show(TraceReport(analyse_file(path, gpus, ncu=ncu), **options))
    return capsys.readouterr().out


def test_an_op_beside_its_speed_of_light(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(trace(tmp_path), capsys)
    line = next(line for line in text.splitlines() if re.match(r" *mm +4096", line))
    assert "4096x4096" in line
    assert "50.0" in line, "twice the least time is 50 % of the roof"
    assert "compute" in line
    assert re.search(r"mylib::secret .* shapes were not recorded", text)
    assert "Over the roof" not in text


@pytest.mark.parametrize(("name", "short"), [
    ("aten::cudnn_convolution_backward_weight", "cudnn_conv_bwd_weight"),
    ("aten::native_layer_norm", "native_layer_norm"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_tn_align8>(cutlass_80::Params)",
     "cutlass_80_tensorop_s16816gemm_bf16_64x64_tn_align8"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
     "std::array<char*, 3ul> >(int)",
     "vectorized_elementwise_kernel<CUDAFunctor_add...>"),
    ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, "
     "at::native::BinaryOpListAlphaFunctor<float, 2, 2, 0>, float>(x)",
     "multi_tensor_apply_kernel<BinaryOpListAlphaFunctor...>"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)",
     "softmax_warp_forward"),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB0",
     "Cijk_Alik_Bljk_BBS_MT256x192x64"),
    ("triton_red_fused_add_mean_0", "triton_red_fused_add_mean_0"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long)",
     "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_kernel__5x_cublas",
     "sm90_xmma_gemm_bf16bf16_bf16f32_f32…te_kernel__5x_cublas"),
    ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
    ("void ck_tile::kentry<256, 1, ck_tile::FmhaFwdKernel<ck_tile::X> >(y)", "kentry<FmhaFwdKernel...>"),
    ("", "-"), ("<", "<"), ("void k<>()", "k"),
])  # fmt: skip
def test_a_short_name_keeps_what_tells_kernels_apart(name: str, short: str) -> None:
    assert short_name(name) == short


def test_the_peaks_are_those_that_the_trace_is_held_against(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"Input__Dims": [[SIDE, SIDE]] * 2, "Input__type": ["double"] * 2}
    found = [op("aten::mm", 0, 20, **shapes), call("cudaLaunchKernel", 5, 1, 1), kernel("k", 30, 9e3, 1)]
    text = shown(str(write(tmp_path, found, deviceProperties=[H100])), capsys)
    assert "66.90 TFLOP/s tensor.float64" in text
    assert "float16" not in text


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(UsageError, match="is a pipe"):
        is_trace(str(tmp_path / "trace.json"))


def test_what_beats_the_roof_stands_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(trace(tmp_path, dur=LEAST_US / 2), capsys)
    assert text.splitlines()[2].strip().startswith("1 row ran faster than h100-sxm can")
    assert "200.0" in text[: text.index("compared with")]
    record = json.loads(shown(trace(tmp_path, dur=LEAST_US / 2), capsys, as_json=True))
    assert (record["totals"]["over_roof"], record["over_roof"]) == (1, [0])


def test_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path)
    first, again = shown(path, capsys, as_json=True), shown(path, capsys, as_json=True)
    assert first == again
    record = json.loads(first)
    assert (record["schema"], record["gpu"], record["trace"]) == ("memwall.trace/1", "h100-sxm", "trace.json")
    mm, secret = record["rows"]
    assert (mm["op"], mm["flops"], mm["of_roof"]) == ("aten::mm", 2 * SIDE**3, pytest.approx(0.5))
    assert mm["kernels"] == [{"name": "nvjet_hsh_128x256", "stream": 7, "time_s": pytest.approx(2e-6 * LEAST_US)}]
    assert (secret["flops"], secret["read_bytes"], secret["bound_s"], secret["wall"]) == (None, None, None, "unknown")
    assert str(tmp_path) not in first


def test_every_file_is_read_by_its_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stray = kernel(HOSTILE, 2000, 9.5, 99)
    path = str(write(tmp_path, [*events(name=HOSTILE), stray], deviceProperties=[H100]))
    made = [str(tmp_path / f"out.{kind}") for kind in ("html", "md", "csv", "json", "svg", "png", "txt")]
    printed = shown(path, capsys, outputs=made)
    page, markdown, table, record, svg, png, text = (Path(name).read_bytes() for name in made)
    tags = Page(page.decode()).tags
    assert [tag for tag, _ in tags].count("script") == 1, "the page's own"
    assert "img" not in dict(tags)
    attributes = [item for _, found in tags for item in found.items()]
    assert not [name for name, _ in attributes if name.startswith("on") or name == "src"]
    assert all((value or "").startswith(("data:", "#part-")) for name, value in attributes if name == "href"), (
        "nothing is fetched"
    )
    assert b"k&lt;/script" in page, "the name is there, as text"
    assert b"\x1b" not in page + markdown + text + printed.encode()
    assert b"<script" not in markdown
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert [(row["op"], row["flops"]) for row in rows] == [
        ("aten::mm", str(2 * SIDE**3)),
        ("mylib::secret", ""),
        (rows[2]["op"], ""),
    ]
    assert "<script>" in rows[2]["op"]
    assert json.loads(record)["rows"][0]["id"] == 0
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert png.startswith(b"\x89PNG")
    assert text.decode() == printed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [('{"schemaVersion": 1, "traceEvents": []}', True), ('[{"ph": "X", "ts": 1}]', True),
     ('{"metadata": {}, "deviceProperties": []}', True), ('{"schema": "memwall.profile/1"}', False),
     ('{"architectures": ["Llama"]}', False), ("[1, 2]", False), ("", False), ("\x00\x01", False)],
)  # fmt: skip
def test_what_is_a_trace(tmp_path: Path, text: str, wanted: bool) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert is_trace(str(path)) is wanted
    assert not is_trace("model.py")
    assert not is_trace(f"hf:{path}")
    assert not is_trace(str(tmp_path / "missing.json"))
    if wanted:
        packed = tmp_path / "packed.json.gz"
        packed.write_bytes(gzip.compress(text.encode()))
        assert is_trace(str(packed))
        with pytest.raises(UsageError, match="memwall profile"):
            refuse_trace(str(path))
    else:
        refuse_trace(str(path))


@pytest.mark.defect("44c")
def test_the_number_of_events_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing said how many events a file holds, of which a small packed one may hold millions."""
    assert "trace.json, 6 events" in shown(trace(tmp_path), capsys)


@pytest.mark.defect("44c")
def test_more_events_than_memory_is_for_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """Memory grew with the events of a file without any limit."""
    from memwall.traces import stream

    path = trace(tmp_path)
    monkeypatch.setattr(stream, "MOST_EVENTS", 6, raising=False)
    assert run("profile", path).code == 0
    monkeypatch.setattr(stream, "MOST_EVENTS", 5, raising=False)
    result = run("profile", path)
    assert result.code == 2
    assert "trace.json holds more than 5 events" in result.error and "profile fewer steps" in result.error


@pytest.mark.defect("23")
def test_a_class_says_how_much_of_its_time_has_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class's share of the roof was of the ops with figures, beside a measured time of all, in text as on a page."""
    add = {"Input__Dims": [[4096, 4096]] * 2 + [[]], "Input__type": ["float", "float", "Scalar"]}
    both = [
        op("aten::add", 0, 20, **add), call("cudaLaunchKernel", 5, 1, 1), kernel("add", 30, 100.5, 1),
        op("triton_poi_fused_add_0", 30, 20), call("cuLaunchKernel", 35, 1, 2), kernel("triton", 1000, 400.5, 2),
    ]  # fmt: skip
    text = shown(str(write(tmp_path, both, deviceProperties=[H100])), capsys)
    assert re.search(r"elementwise +2 +501.00 +100.0 +100.50 ", text)


@pytest.mark.defect("25")
def test_a_board_of_another_memory_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU whose name fits a board was compared with it whatever memory it has: an H100 of 96 GB with that of 80."""
    larger = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 102_085_492_736, "numSms": 132}
    assert "102.09 GB of memory and h100-sxm 85.02 GB" in shown(trace(tmp_path, larger), capsys)
    assert "of memory and" not in shown(trace(tmp_path, {**larger, "totalGlobalMem": 85_018_279_936}), capsys)


@pytest.mark.defect("25")
def test_an_unknown_gpu_is_refused_with_the_nearest_named(tmp_path: Path, run: Any) -> None:
    """The refusal of an unknown GPU asked for the nearest without naming it, and a comparison of measured times was
    refused too."""
    device = {"id": 0, "name": "NVIDIA H900", "numSms": 116, "computeMajor": 9, "computeMinor": 0}
    path = trace(tmp_path, device)
    refused = run("profile", path)
    assert (refused.code, "h100-pcie" in refused.error) == (2, True)  # 114 multiprocessors
    compared = run("compare", path, path)
    assert (compared.code, "measured on NVIDIA H900" in compared.out) == (0, True)


@pytest.mark.defect("26")
@pytest.mark.parametrize(("name", "said"), [
    ("step.ncu-rep", "a report of Nsight Compute.*ncu --import .*--csv --page raw"),
    ("step.nsys-rep", "a report of Nsight Systems"),
    ("step.sqlite", "a database that Nsight Systems exported"),
    ("step.pftrace", "rocprofv3"),
    ("kernels.csv", "--ncu .*kernels.csv"),
    ("results.json", "a record of rocprofv3"),
])  # fmt: skip
def test_files_of_other_profilers(tmp_path: Path, name: str, said: str, run: Any) -> None:
    """A file of another profiler was taken for a model that is no Python file, without a word of how to get what
    memwall reads."""
    path = tmp_path / name
    path.write_text('{"rocprofiler-sdk-tool": [{}]}' if name == "results.json" else "\x00", encoding="utf-8")
    found = run("profile", str(path))
    assert found.code == 2
    assert re.search(said, found.error) and "export_chrome_trace" in found.error


def test_the_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path)
    assert "measured on NVIDIA H100 80GB HBM3, compared with a100-80gb-sxm" in shown(path, capsys, "a100-80gb-sxm")
    assert "compared with h100-sxm" not in " ".join(analyse_file(path, ["h100-sxm"]).notes)
    with pytest.raises(UsageError, match="one GPU"):
        analyse_file(path, ["a100-80gb-sxm", "h100-sxm"])
    strange = trace(tmp_path, device=UNKNOWN_BOARD)
    with pytest.raises(UsageError, match=r"GTX 680.*--gpu NAME"):
        analyse_file(strange, [])
    assert "GTX 680" in shown(strange, capsys, "v100-sxm2-16gb")
    nameless = str(write(tmp_path, events()))
    with pytest.raises(UsageError, match="does not name its GPU"):
        analyse_file(nameless, [])


def test_dram_bytes_of_nsight_compute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "ncu.csv"
    report.write_text(
        '==PROF== Connected\n"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n'
        '"","","Mbyte","Mbyte"\n"0","nvjet_hsh_128x256","70","35.5"\n'
    )
    path = trace(tmp_path)
    record = json.loads(shown(path, capsys, ncu=str(report), as_json=True))
    assert [row.get("measured_dram_bytes") for row in record["rows"]] == [105_500_000, None]
    assert "by ncu" in shown(path, capsys, ncu=str(report))
    report.write_text('"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum"\n"","","byte","byte"\n'
                      '"0","another","1","1"\n')  # fmt: skip
    with pytest.raises(UsageError, match="no kernel of it"):
        analyse_file(path, [], ncu=str(report))


def test_groups_and_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path)
    for by in ("op", "module", "class", "phase"):
        assert "contraction" in shown(path, capsys, by=by)
    for sort in ("time", "flops", "bytes", "intensity", "bound", "count"):
        assert "mm" in shown(path, capsys, sort=sort, top=1)


def test_a_trace_without_kernels(tmp_path: Path) -> None:
    path = str(write(tmp_path, [op("aten::mm", 0, 10)], deviceProperties=[H100]))
    with pytest.raises(UsageError, match="no GPU kernels"):
        analyse_file(path, [])


def test_the_command(tmp_path: Path, run: Any) -> None:
    path = trace(tmp_path)
    result = run("profile", path)
    assert result.code == 0
    assert "50.0" in result.out
    for arguments, why in (
        (("profile", path, "--mode", "training"), "--mode"),
        (("profile", path, "--gpu", "a100-80gb-sxm", "h100-sxm"), "one GPU"),
        (("profile", path, "-o", str(tmp_path / "x.trace.json")), "end the name in one of"),
        (("report", path), "memwall profile"),
    ):
        failed = run(*arguments)
        assert (failed.code, why in failed.error) == (2, True), (arguments, failed)


def test_a_trace_of_jax_on_the_command_line(tmp_path: Path, run: Any) -> None:
    """A TPU's instruction of 2 x 1024 x 512 x 2048 FLOP, whose HLO is named."""
    ran = [xspace.Event("convolution_maximum_fusion", 10, 25.5)]
    path = xspace.write_space(
        tmp_path / "run.xplane.pb",
        xspace.Plane("/device:TPU:0", {"XLA Ops": ran}, {"device_type_string": "TPU v5 lite"}),
    )
    found = run("profile", str(path), "--hlo", str(ROOT / "tests/data/hlo/mlp_tpu-v5e.hlo"), "--json")
    record = json.loads(found.out)
    assert (found.code, record["gpu"]) == (0, "tpu-v5e")
    assert [row["flops"] for row in record["rows"]] == [2 * 1024 * 512 * 2048]


def test_a_dump_without_a_trace_of_jax_has_no_effect(tmp_path: Path, run: Any) -> None:
    found = run("profile", trace(tmp_path), "--hlo", str(tmp_path))
    assert (found.code, found.error.count("\n")) == (2, 0)
    assert "--hlo goes with a trace of XLA's profiler" in found.error
