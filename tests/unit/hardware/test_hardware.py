"""Hardware specs: numbers against datasheets, the two identities, names, fallbacks, a user's own files."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwall.core.errors import UsageError
from memwall.core.graph import Pipe
from memwall.hardware import files
from memwall.hardware import lookup as hardware
from memwall.hardware.gpu import DTYPES, ENGINES
from memwall.hardware.host import default_host
from memwall.hardware.lookup import Gpu, all_gpus, gpu_names, identity_violations, load_gpu, match_device, read_spec

NAMES = gpu_names()

MINIMAL = """\
schema = "memwall.gpu/1"
name = "my-board"

[peak_flop_per_s.tensor]
float16 = 100e12  # guess

[memory]
dram_bytes_per_s = 1000e9
dram_bytes = 16_000_000_000
"""


def pipe(text: str) -> Pipe:
    return Pipe.parse(text)


# ---- every file


@pytest.mark.parametrize("name", NAMES)
def test_both_identities_hold_or_are_explained(name: str) -> None:
    assert identity_violations(name) == []


#: boards of which neither a bus nor a power limit is published
UNPUBLISHED = ("tpu-v6e", "tpu-7x")


@pytest.mark.parametrize("name", NAMES)
def test_every_peak_can_be_checked_by_an_identity(name: str) -> None:
    keys = load_gpu(name).sources
    peaks = [key for key in keys if key.startswith("peak_flop_per_s.")]
    rates = [key for key in keys if key.startswith("compute.flop_per_clock_per_sm.")]
    assert [key.split(".", 1)[1] for key in peaks] == [key.split(".", 2)[2] for key in rates]
    assert "compute.boost_clock_hz" in keys
    assert name in UNPUBLISHED or {"memory.bus_width_bits", "memory.pin_rate_bit_per_s"} <= set(keys)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_a_source_beside_it(name: str) -> None:
    numbers = 0
    for line in hardware.spec_path(name).read_text().splitlines():
        if re.match(r"\w+ = [\d.]", line):
            numbers += 1
            assert re.search(r"  # \S.{3,}", line), line
    assert numbers >= 15


@pytest.mark.parametrize("name", NAMES)
def test_file_states_every_field_of_its_board(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name == hardware.spec_path(name).stem
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", gpu.release)
    assert gpu.vendor != "unknown" and gpu.architecture != "unknown" and gpu.full_name != gpu.name
    assert min(gpu.sm_count, gpu.l2_bytes, gpu.link_bytes_per_s, gpu.launch_overhead_s) > 0
    assert gpu.tdp_w > 0 or name in UNPUBLISHED
    assert gpu.l2_bytes_per_s >= gpu.dram_bytes_per_s
    assert pipe("vector.float32") in gpu.peak_flop_per_s


@pytest.mark.parametrize("name", NAMES)
def test_calibration_says_what_the_fractions_are(name: str) -> None:
    gpu, text = load_gpu(name), hardware.spec_path(name).read_text()
    stated = [key for key in gpu.sources if key.startswith("achievable.")]
    assert (gpu.calibration == "datasheet") == (not stated)
    if gpu.calibration == "measured":
        own = [key for key in stated if "inherited" not in gpu.sources[key]]
        assert "achievable.dram" in own and len(own) >= 2
    assert not re.search(r"(^|[ (])/\w+/", text)  # sources are not files of one machine
    for key in stated:
        quotient = re.search(r"([\d,.]+)/([\d.]+)(?: |,|$)", gpu.sources[key])
        fraction = gpu.achievable[key.removeprefix("achievable.")]
        if quotient and " x " not in gpu.sources[key]:  # the comment's own arithmetic
            ratio = float(quotient[1]) / float(quotient[2])
            assert fraction == pytest.approx(min(ratio, 1), abs=0.0015), key


def test_boards_of_the_design_are_all_there() -> None:
    wanted = """p100-pcie-16gb p100-sxm2-16gb v100-pcie-16gb v100-pcie-32gb v100-sxm2-16gb v100-sxm2-32gb
        t4 a10 a10g a40 a100-40gb-pcie a100-40gb-sxm a100-80gb-pcie a100-80gb-sxm rtx-3090 rtx-4090 rtx-a6000
        l4 l40s h100-pcie h100-sxm h100-nvl gh200 h200 b200 b300 gb200 gb300 rtx-pro-6000-server
        quadro-gp100 a800-80gb-pcie a800-80gb-sxm h800-pcie h800-sxm h20 rtx-5090 rtx-pro-6000-workstation
        rtx-pro-6000-max-q gb10 mi325x mi350x mi355x rx-7900-xtx radeon-pro-w7900
        mi100 mi210 mi250x mi300x tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-7x wse-2"""
    assert set(wanted.split()) <= set(NAMES)


def test_names_are_ordered_by_vendor_then_release() -> None:
    assert [(gpu.vendor, gpu.release) for gpu in all_gpus()] == sorted((g.vendor, g.release) for g in all_gpus())


# ---- the numbers, typed in from datasheets


# name, SMs, tensor fp16 (or None), vector fp32, DRAM GB/s, GB, W
DATASHEET = [
    ("p100-pcie-16gb", 56, None, 9.3e12, 732, 16, 250),
    ("p100-sxm2-16gb", 56, None, 10.6e12, 732, 16, 300),
    ("v100-pcie-32gb", 80, 112e12, 14.0e12, 900, 32, 250),
    ("v100-sxm2-16gb", 80, 125e12, 15.7e12, 900, 16, 300),
    ("t4", 40, 65e12, 8.1e12, 320, 16, 70),
    ("a10", 72, 125e12, 31.2e12, 600, 24, 150),
    ("a10g", 80, 70e12, 35e12, 600, 24, 300),
    ("a40", 84, 149.7e12, 37.4e12, 696, 48, 300),
    ("rtx-a6000", 84, 154.8e12, 38.7e12, 768, 48, 300),
    ("a100-40gb-sxm", 108, 312e12, 19.5e12, 1555, 40, 400),
    ("a100-80gb-pcie", 108, 312e12, 19.5e12, 1935, 80, 300),
    ("a100-80gb-sxm", 108, 312e12, 19.5e12, 2039, 80, 400),
    ("rtx-3090", 82, 71.2e12, 35.6e12, 936, 24, 350),  # FP32 accumulation: half of 142
    ("rtx-4090", 128, 165.2e12, 82.6e12, 1008, 24, 450),  # FP32 accumulation: half of 330.3
    ("l4", 58, 121e12, 30.3e12, 300, 24, 72),  # 242 on the datasheet is sparse
    ("l40s", 142, 362.05e12, 91.6e12, 864, 48, 350),
    ("h100-pcie", 114, 756e12, 51.2e12, 2039, 80, 350),
    ("h100-sxm", 132, 989.4e12, 66.9e12, 3350, 80, 700),
    ("h100-nvl", 132, 835.5e12, 60e12, 3938, 94, 400),
    ("gh200", 132, 989.4e12, 66.9e12, 4000, 96, 1000),
    ("h200", 132, 989.4e12, 66.9e12, 4800, 141, 700),
    ("b200", 148, 2250e12, 75e12, 8000, 180, 1000),
    ("gb200", 152, 2500e12, 80e12, 8000, 186, 1200),  # 360 PFLOPS sparse for 72
    ("b300", 148, 2250e12, 75e12, 8000, 270, 1100),
    ("gb300", 152, 2500e12, 80e12, 8000, 279, 1400),
    ("rtx-pro-6000-server", 188, 503.8e12, 126e12, 1597, 96, 600),  # 4 PFLOPS of sparse FP4, an eighth
    ("rtx-pro-6000-workstation", 188, 503.8e12, 126e12, 1792, 96, 600),
    ("rtx-pro-6000-max-q", 188, 440.5e12, 110.1e12, 1792, 96, 300),
    ("rtx-5090", 170, 209.5e12, 104.8e12, 1792, 32, 575),  # FP32 accumulation: a quarter of 838, which is sparse
    ("gb10", 48, 124e12, 31e12, 273, 128, 140),
    ("h800-sxm", 132, 989.4e12, 66.9e12, 3350, 80, 700),
    ("h800-pcie", 114, 756e12, 51.2e12, 2039, 80, 350),
    ("h20", 78, 148e12, 44e12, 4000, 96, 400),
    ("a800-80gb-sxm", 108, 312e12, 19.5e12, 2039, 80, 400),
    ("a800-80gb-pcie", 108, 312e12, 19.5e12, 1935, 80, 300),
    ("quadro-gp100", 56, None, 10.3e12, 732, 16, 235),
    ("mi325x", 304, 1307.4e12, 163.4e12, 6000, 256, 1000),
    ("mi350x", 256, 2306.9e12, 144.2e12, 8000, 288, 1000),
    ("mi355x", 256, 2516.6e12, 157.3e12, 8000, 288, 1400),
    ("rx-7900-xtx", 96, 122.9e12, 61.4e12, 960, 24, 355),
    ("radeon-pro-w7900", 96, 122.6e12, 61.3e12, 864, 48, 295),
    ("mi100", 120, 184.6e12, 23.1e12, 1228.8, 32, 300),
    ("mi210", 104, 181e12, 22.6e12, 1638.4, 64, 300),
    ("mi250x", 110, 191.5e12, 23.95e12, 1638.4, 64, 280),  # one of two dies: 383 and 47.9 halved
    ("mi300x", 304, 1307.4e12, 163.4e12, 5300, 192, 750),
]


@pytest.mark.parametrize(("name", "sms", "fp16", "fp32", "gb_per_s", "gb", "watt"), DATASHEET)
def test_datasheet(name: str, sms: int, fp16: float, fp32: float, gb_per_s: float, gb: int, watt: int) -> None:
    gpu = load_gpu(name)
    assert gpu.peak_flop_per_s.get(pipe("tensor.float16")) == (None if fp16 is None else pytest.approx(fp16))
    assert gpu.peak_flop_per_s[pipe("vector.float32")] == pytest.approx(fp32)
    assert (gpu.sm_count, gpu.tdp_w) == (sms, watt)
    # what the driver leaves of the product's name, which counts in GiB up to H100 (80 GiB = 85.9 GB) and in GB after
    assert 0.91 * gb * 2**30 < gpu.dram_bytes <= gb * 2**30
    assert gpu.dram_bytes_per_s == pytest.approx(gb_per_s * 1e9)


def test_ridge_point_of_h100() -> None:
    # 989.4e12 / 3350e9 = 295.3 FLOP per byte; 66.9e12 / 3350e9 = 19.97
    h100 = load_gpu("h100")
    assert h100.ridge_point(pipe("tensor.bfloat16")) == pytest.approx(295.34, abs=0.01)
    assert h100.ridge_point(pipe("vector.float32")) == pytest.approx(19.97, abs=0.01)


def test_tf32_is_ampere_and_later_only() -> None:
    older = {"pascal", "volta", "turing"}
    for gpu in all_gpus():
        if gpu.vendor == "NVIDIA":
            assert (pipe("tensor.tf32") in gpu.peak_flop_per_s) == (gpu.architecture not in older), gpu.name


# ---- fallbacks


@pytest.mark.parametrize(("name", "asked", "ends"), [
    ("h100", "tensor.fp8", "tensor.fp8"),
    ("a100", "tensor.fp8", "tensor.float16"),  # converted up
    ("a100", "tensor.float64", "tensor.float64"),
    ("v100", "tensor.bfloat16", "vector.float32"),  # no native bfloat16
    ("t4", "tensor.bfloat16", "vector.float32"),
    ("v100", "tensor.tf32", "vector.float32"),
    ("v100", "tensor.float64", "vector.float64"),
    ("v100", "tensor.int8", "vector.int8"),  # dp4a
    ("p100", "tensor.float16", "vector.float16"),  # no tensor cores
    ("p4", "tensor.float16", "vector.float32"),  # no fast FP16 either
    ("p100", "tensor.fp8", "vector.float32"),
    ("p100", "vector.bfloat16", "vector.float32"),
    ("p100", "vector.int8", "vector.float32"),
    ("h100", "tensor.float32", "vector.float32"),
    ("mi100", "tensor.float32", "tensor.float32"),  # matrix cores multiply FP32
    ("mi100", "tensor.tf32", "tensor.float32"),
    ("tpu-v4", "tensor.float16", "tensor.bfloat16"),
    ("tpu-v4", "vector.float64", "vector.float32"),
])  # fmt: skip
def test_fallback(name: str, asked: str, ends: str) -> None:
    gpu = load_gpu(name)
    assert str(gpu.ceiling_pipe(pipe(asked))) == ends
    assert gpu.peak(pipe(asked)) == gpu.peak_flop_per_s[pipe(ends)]


@pytest.mark.defect("5")
@pytest.mark.parametrize("name", ["bf16", "int64", "float8_e4m3fn", ""])
def test_a_dtype_that_no_gpu_multiplies_is_refused(name: str) -> None:
    """The peak of a pipe that no GPU has was that of float32 lanes, unsaid: what was named wrongly came out many times
    too slow a GPU, or too well used a one."""
    with pytest.raises(ValueError, match="not a pipe"):
        load_gpu("h100").peak(Pipe("tensor", name))


def test_no_pipe_of_any_gpu_is_zero() -> None:
    for gpu in all_gpus():
        for engine in ENGINES:
            for dtype in DTYPES:
                assert gpu.peak(Pipe(engine, dtype)) > 0
                assert 0 < gpu.achievable_fraction(Pipe(engine, dtype)) <= 1
                assert gpu.ridge_point(Pipe(engine, dtype)) > 0


def test_achievable_fraction_is_the_pipes_own_else_a_neighbours() -> None:
    h100 = load_gpu("h100")
    assert h100.achievable_fraction(pipe("tensor.bfloat16")) == 0.771  # 762.7 / 989.4
    assert h100.achievable_fraction(pipe("tensor.fp8")) == 0.652  # 1290.1 / 1978.9
    assert h100.achievable_fraction(pipe("tensor.tf32")) == 0.771  # none measured: float16's
    assert h100.achievable_fraction(pipe("vector.float64")) == 0.791  # vector.float32's
    assert h100.achievable["dram"] == 0.887  # 2970 / 3350
    tpu = load_gpu("tpu-v5e")
    assert (tpu.achievable_fraction(pipe("tensor.bfloat16")), tpu.achievable["dram"]) == (0.75, 0.85)


# ---- names


DRIVER_STRINGS = {
    "Tesla P100-PCIE-12GB": "p100-pcie-12gb", "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "Tesla P100-SXM2-16GB": "p100-sxm2-16gb", "Tesla P4": "p4", "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-sxm2-32gb", "Tesla T4": "t4", "NVIDIA T4": "t4", "GeForce RTX 2080 Ti": "rtx-2080-ti",
    "NVIDIA GeForce RTX 2080 Ti": "rtx-2080-ti", "NVIDIA GeForce RTX 3090": "rtx-3090",
    "NVIDIA GeForce RTX 4090": "rtx-4090", "NVIDIA RTX A6000": "rtx-a6000", "NVIDIA A10": "a10",
    "NVIDIA A10G": "a10g", "NVIDIA A40": "a40",
    "A100-SXM4-40GB": "a100-40gb-sxm", "NVIDIA A100-SXM4-40GB": "a100-40gb-sxm",
    "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm", "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA L4": "l4", "NVIDIA L40": "l40", "NVIDIA L40S": "l40s",
    "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 NVL": "h100-nvl",
    "NVIDIA GH200 480GB": "gh200", "NVIDIA H200": "h200", "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300", "NVIDIA GB200": "gb200", "NVIDIA GB300": "gb300",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx-pro-6000-server", "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210", "AMD Instinct MI250X": "mi250x", "AMD Instinct MI250X/MI250": "mi250x",
    "AMD Instinct MI300X": "mi300x", "AMD Instinct MI300X VF": "mi300x", "TPU v4": "tpu-v4", "TPU v5 lite": "tpu-v5e",
    "TPU v5p": "tpu-v5p", "TPU v6 lite": "tpu-v6e", "TPU7x": "tpu-7x",
    "NVIDIA H800": "h800-sxm", "NVIDIA H800 PCIe": "h800-pcie", "NVIDIA H20": "h20", "Quadro GP100": "quadro-gp100",
    "NVIDIA A800-SXM4-80GB": "a800-80gb-sxm", "NVIDIA A800 80GB PCIe": "a800-80gb-pcie",
    "NVIDIA GeForce RTX 5090": "rtx-5090",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx-pro-6000-workstation",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "rtx-pro-6000-max-q",
    "NVIDIA GB10": "gb10",
    "AMD Instinct MI325X": "mi325x", "AMD Instinct MI350X": "mi350x", "AMD Instinct MI355X": "mi355x",
    "AMD Radeon RX 7900 XTX": "rx-7900-xtx", "AMD Radeon PRO W7900": "radeon-pro-w7900",
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), DRIVER_STRINGS.items())
def test_driver_strings(text: str, name: str) -> None:
    found = match_device(text)
    assert found is not None and found.name == name
    assert load_gpu(text) is found


@pytest.mark.parametrize("text", [
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb",  # a slice is not the GPU
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 3090 Ti",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA H200 NVL",
    "NVIDIA H900",
    "AMD Radeon Graphics",
    "NVIDIA",
    "",
])  # fmt: skip
def test_unknown_devices_are_not_guessed(text: str) -> None:
    assert match_device(text) is None
    with pytest.raises(UsageError):
        load_gpu(text)


@pytest.mark.defect("25")
def test_boards_of_the_wild_are_known() -> None:
    """Boards whose traces people publish had no spec, and were refused without the nearest named."""
    for text in ("NVIDIA H800", "NVIDIA H20", "NVIDIA A800-SXM4-80GB", "Quadro GP100", "NVIDIA GeForce RTX 5090",
                 "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "AMD Instinct MI325X",
                 "AMD Instinct MI355X", "AMD Radeon RX 7900 XTX"):  # fmt: skip
        assert match_device(text) is not None, text
    # the H800 and the A800 are the H100 and the A100 with NVLink at 400 GB/s
    for name, base in (("h800-sxm", "h100-sxm"), ("a800-80gb-sxm", "a100-80gb-sxm")):
        gpu, other = load_gpu(name), load_gpu(base)
        assert gpu.link_bytes_per_s == 400e9 < other.link_bytes_per_s
        assert gpu.peak_flop_per_s[pipe("tensor.bfloat16")] == other.peak_flop_per_s[pipe("tensor.bfloat16")]


def test_a_device_without_a_name_is_the_board_that_came_first() -> None:
    from memwall.hardware.lookup import match_hardware, nearest_hardware

    assert getattr(match_hardware("NVIDIA", 132, 85_018_279_936), "name", None) == "h100-sxm"  # the H800 is later
    assert match_hardware("NVIDIA", 108, 84_990_623_744) is None  # SXM and PCIe have other bandwidths
    near = nearest_hardware("NVIDIA", "9.0", 110)
    assert near is not None and near.name == "h100-pcie"  # 114


def test_no_two_boards_share_a_label() -> None:
    owners: dict[str, str] = {}
    for gpu in all_gpus():
        for label in (gpu.name, gpu.full_name, *gpu.aliases):
            key = re.sub(r"[^a-z0-9]", "", label.lower())
            assert owners.setdefault(key, gpu.name) == gpu.name, label
            found = match_device(label)
            assert found is not None and found.name == gpu.name, label


@pytest.mark.parametrize(("text", "name"), [
    ("h100", "h100-sxm"), ("H100-SXM", "h100-sxm"), ("H100 SXM5", "h100-sxm"), ("h100_sxm", "h100-sxm"),
    ("a100", "a100-80gb-sxm"), ("A100-SXM-80GB", "a100-80gb-sxm"), ("pcie a100 40gb", "a100-40gb-pcie"),
    ("v100", "v100-sxm2-16gb"), ("p100", "p100-sxm2-16gb"), ("4090", "rtx-4090"), ("rtx4090", "rtx-4090"),
    ("MI300X", "mi300x"), ("wse2", "wse-2"),
])  # fmt: skip
def test_forgiving_names(text: str, name: str) -> None:
    assert load_gpu(text).name == name


@pytest.mark.parametrize(("name", "message"), [
    ("h10", r"^no GPU named 'h10'; did you mean h100-sxm, h100-pcie, h100-nvl\? \("),
    ("zzz", r"^no GPU named 'zzz' \(memwall gpus lists all"),
    ("rtx", "'rtx' fits several: rtx-2080-ti, rtx-3090, rtx-a6000, rtx-4090, rtx-5090, rtx-pro-6000-max-q, "),
    ("a100 pcie", "fits several: a100-40gb-pcie, a100-80gb-pcie"),
])  # fmt: skip
def test_unknown_and_ambiguous_names_list_candidates(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_gpu(name)


@pytest.mark.slow
def test_gpus_from_the_cache_are_those_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "from memwall.hardware import lookup as h; print(hash(repr(h.all_gpus())), len(h.all_gpus()))"
    printed = []
    for content in (None, None, b"cut off"):  # made, read, made again
        if content is not None:
            (tmp_path / "gpus.kept").write_bytes(content)
        command = [sys.executable, "-c", script]
        variables = {**os.environ, "MEMWALL_CACHE": str(tmp_path), "PYTHONHASHSEED": "0"}
        folder = Path(hardware.__file__).parents[2]
        printed.append(subprocess.run(command, check=True, cwd=folder, env=variables, capture_output=True).stdout)
        assert (tmp_path / "gpus.kept").stat().st_size > 100_000
    assert len(set(printed)) == 1 and int(printed[0].split()[1]) == len(list(folder.glob("hardware_specs/*.toml")))


def test_specs_inside_the_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a wheel: memwall/hardware_specs; a checkout: hardware_specs beside memwall
    for folder, stem in (("memwall/hardware_specs", "inside"), ("hardware_specs", "beside")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{stem}.toml").write_text(MINIMAL)
    monkeypatch.setattr(files, "__file__", str(tmp_path / "memwall" / "hardware" / "files.py"))
    assert list(hardware._files.__wrapped__()) == ["inside"]
    (tmp_path / "memwall/hardware_specs/inside.toml").unlink()
    assert list(hardware._files.__wrapped__()) == ["beside"]


# ---- the record


@pytest.mark.parametrize("name", NAMES)
def test_round_trips_through_json(name: str) -> None:
    gpu = load_gpu(name)
    again = Gpu.from_dict(json.loads(json.dumps(gpu.to_dict())))
    assert again == gpu and hash(again) == hash(gpu)
    assert json.dumps(again.to_dict()) == json.dumps(gpu.to_dict())
    assert copy.deepcopy(gpu) == pickle.loads(pickle.dumps(gpu)) == gpu


@pytest.mark.parametrize(("change", "message"), [
    ({"sm_count": None}, "saved GPU.sm_count must be a positive whole number, not None"),
    ({"dram_bytes_per_s": -1}, "saved GPU.dram_bytes_per_s must be a positive number"),
    ({"peak_flop_per_s": {"warp.float16": 1e12}}, "saved GPU.peak_flop_per_s must name pipes"),
    ({"peak_flop_per_s": {}}, "saved GPU.peak_flop_per_s must name pipes"),
    ({"achievable": 3}, "saved GPU.achievable is not an object"),
    ({"achievable": {"dram": 1.5}}, "saved GPU.achievable.dram must be a fraction"),
    ({"utilization": {"stream.elementwise.triad": 0}},
     "saved GPU.utilization.stream.elementwise.triad must be a number from 0.3 to 0.98"),
])  # fmt: skip
def test_broken_record(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        Gpu.from_dict(load_gpu("t4").to_dict() | change)


def test_a_constant_of_a_later_version_is_ignored() -> None:
    record = load_gpu("t4").to_dict()
    record["utilization"] |= {"stream.elementwise.wings": 2.0, "teleport.float16.plateau": 0.5}
    assert Gpu.from_dict(record) == load_gpu("t4")


# ---- a user's own file


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def error_of(folder: Path, text: str | bytes) -> str:
    path = write(folder, text)
    with pytest.raises(UsageError) as caught:
        read_spec(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path))
    return message.removeprefix(str(path)).removeprefix(":")


def test_minimal_file_and_its_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    gpu = load_gpu(str(path))
    assert gpu == load_gpu(path) == read_spec(path) == Gpu.from_dict(gpu.to_dict())
    assert (gpu.name, gpu.full_name, gpu.vendor, gpu.calibration) == ("my-board", "my-board", "unknown", "datasheet")
    assert (gpu.sm_count, gpu.l2_bytes, gpu.l2_bytes_per_s) == (1, 0, 1000e9)
    assert (gpu.host, gpu.launch_overhead_s, gpu.achievable) == (default_host(), 2.5e-6, {"dram": 0.85})
    assert gpu.peak(pipe("vector.float32")) == 100e12  # the only peak there is
    assert gpu.sources == {"peak_flop_per_s.tensor.float16": "guess"}
    assert identity_violations(path) == []


def test_comment_after_a_text_with_a_hash(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL.replace('"my-board"', '"my #1" # it\'s a name'))
    assert read_spec(path).sources["name"] == "it's a name"


def test_windows_text_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert read_spec(path).sources == {"peak_flop_per_s.tensor.float16": "guess"}


@pytest.mark.parametrize(("old", "new", "message"), [
    ('schema = "memwall.gpu/1"', "", " schema: is missing"),
    ("memwall.gpu/1", "memwall.gpu/2", "1: schema: 'memwall.gpu/2' was written by a newer memwall; upgrade"),
    ("memwall.gpu/1", "memwall.profile/1", "1: schema: 'memwall.profile/1' is not a memwall GPU file"),
    ('"memwall.gpu/1"', "1", "1: schema: 1 is not a memwall GPU file"),
    ('name = "my-board"', "", " name: is missing"),
    ('"my-board"', '""', "2: name: must be a line of text, not ''"),
    ('"my-board"', '"a\\nb"', "2: name: must be a line of text, not 'a\\nb'"),
    ("float16 = 100e12  # guess", "", " peak_flop_per_s: is missing: state a peak"),
    ("100e12", '"fast"', "5: peak_flop_per_s.tensor.float16: must be a positive number, not 'fast'"),
    ("100e12", "true", "5: peak_flop_per_s.tensor.float16: must be a positive number, not True"),
    ("100e12", "-1.0", "5: peak_flop_per_s.tensor.float16: must be a positive number in base SI units, not -1.0"),
    ("100e12", "0", "5: peak_flop_per_s.tensor.float16: must be a positive number in base SI units, not 0"),
    ("100e12", "nan", "5: peak_flop_per_s.tensor.float16: must be a positive number in base SI units, not nan"),
    ("100e12", "inf", "5: peak_flop_per_s.tensor.float16: must be a positive number in base SI units, not inf"),
    ("100e12", "1e400", "5: peak_flop_per_s.tensor.float16: must be a positive number in base SI units, not inf"),
    ("100e12", "1e300", "5: peak_flop_per_s.tensor.float16: must be a positive number from 1e-15 to 1e+25 in base SI"),
    ("100e12", "1" + "0" * 400, "5: peak_flop_per_s.tensor.float16: must be a positive number from 1e-15 to 1e+25"),
    ("100e12", "1" * 5000, " not TOML: "),
    ("float16 = 100e12", "flot16 = 1", "5: peak_flop_per_s.tensor.flot16: unknown key; did you mean "),
    ("dram_bytes_per_s = 1000e9", "", "7: memory.dram_bytes_per_s: is missing"),
    ("dram_bytes = 16_000_000_000", "dram_bytes = 1.5", "9: memory.dram_bytes: must be a positive whole number"),
    ("dram_bytes =", "dram_byte =", "9: memory.dram_byte: unknown key; did you mean memory.dram_bytes?"),
    ("dram_bytes =", "tdp_w = 3\ndram_bytes =", "9: memory.tdp_w: unknown key; did you mean power.tdp_w?"),
    ("[memory]", "[zzzzzzzz]\n[memory]", "7: zzzzzzzz: unknown key"),
    ("[memory]", "[achievable]\ndram = 85\n[memory]", "8: achievable.dram: must be a fraction above 0 and at most 1"),
    ('name = "my-board"', 'name = "m"\npower = 3', "3: power: must be a table, not 3"),
    ('name = "my-board"', 'name = "m"\ncalibration = "best"', "3: calibration: is 'best'; want one of measured, archi"),
    ('name = "my-board"', 'name = "m"\naliases = "m"', "3: aliases: is not a list"),
    ("[memory]", "[memory", "7: not TOML: "),
    ("100e12", "100e", "5: not TOML: "),
])  # fmt: skip
def test_error_names_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in MINIMAL
    assert error_of(tmp_path, MINIMAL.replace(old, new, 1)).startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (MINIMAL.encode() + b"# \xff\n", " is not UTF-8 text"),
        (b"", " schema: is missing"),
        (b"\x00\x01", "1: not TOML: "),
        (b"a = " + b"[" * 9_000, " is nested too deeply"),
        (b"a" + b".a" * 400_000 + b" = 1", "1: line is longer than 10000 characters"),
        (b"a" + b".a" * 4_000 + b" = 1", " schema: is missing"),
        (b"[a" + b".a" * 4_000 + b"]\n", " schema: is missing"),
        (b"#" * (1 << 20) + b"\n", " is larger than 1 MiB"),
        (b'x = """\n' + (b" " * 9_999 + b"\n") * 90 + b'"""', " schema: is missing"),
    ],
    ids=["bytes", "empty", "nul", "nested", "long-key", "deep-key", "deep-table", "large", "spaces"],
)
def test_hostile_files(tmp_path: Path, data: bytes, message: str) -> None:
    assert error_of(tmp_path, data).startswith(message)


def test_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "sparse.toml"
    with path.open("wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(UsageError, match="is larger than 1 MiB"):
        read_spec(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path, message in (
        ("absent.toml", r"no such file: absent\.toml"), ("specs/mine", "no such file: specs/mine"),
        (tmp_path, "cannot read .*: Is a directory"), ("a\0b.toml", "is not a file name"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            load_gpu(path)


FULL = """\
[compute]
sm_count = 100
boost_clock_hz = 1e9
[compute.flop_per_clock_per_sm.tensor]
float16 = 1000
"""


def test_identity_violation_is_named(tmp_path: Path) -> None:
    # 100 units x 1000 x 1 GHz = 100e12: holds. With 1100 it is 110e12, 10 % over.
    assert identity_violations(write(tmp_path, MINIMAL + FULL)) == []
    path = write(tmp_path, MINIMAL + FULL.replace("1000", "1100"))
    (message,) = identity_violations(path)
    assert message.startswith(f"{path}:5: peak_flop_per_s.tensor.float16: is 1e+14, but 100 units x 1100 FLOP")
    assert "(+10.0%)" in message


def test_identity_of_the_memory_bus(tmp_path: Path) -> None:
    # 4096 bit / 8 x 2 Gbit/s = 1024 GB/s, 2.4 % over the 1000 stated; x 1.96 = 1003.5, 0.35 % over
    bus = MINIMAL + "bus_width_bits = 4096\npin_rate_bit_per_s = 2e9\n"
    (message,) = identity_violations(write(tmp_path, bus))
    assert "memory.dram_bytes_per_s" in message and "(+2.4%)" in message
    assert identity_violations(write(tmp_path, bus.replace("2e9", "1.96e9"))) == []


def test_explanation_excuses_a_break_and_only_a_break(tmp_path: Path) -> None:
    why = '[identity]\n"peak_flop_per_s.tensor.float16" = "stated at another clock"\n'
    assert identity_violations(write(tmp_path, MINIMAL + FULL.replace("1000", "1100") + why)) == []
    (message,) = identity_violations(write(tmp_path, MINIMAL + FULL + why))
    assert "explains what is not there" in message and ":16: identity." in message


def test_tensor_clock_is_used_for_tensor_peaks(tmp_path: Path) -> None:
    text = MINIMAL + FULL.replace("1e9", "2e9\ntensor_clock_hz = 1e9")
    assert identity_violations(write(tmp_path, text)) == []


# ---- fuzz: whatever the file holds, the answer is a GPU or one line


def survives(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        gpu = read_spec(path)
    except UsageError as error:
        assert "\n" not in str(error) and str(error).startswith(str(path))
    else:
        assert Gpu.from_dict(json.loads(json.dumps(gpu.to_dict()))) == gpu
        assert gpu.ridge_point(pipe("tensor.float16")) > 0


@given(st.binary(max_size=300))
def test_fuzz_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    survives(tmp_path_factory.getbasetemp() / "fuzz.toml", data)


@pytest.mark.slow
@given(st.data())
def test_fuzz_a_real_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = hardware.spec_path("h100-sxm").read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 12)))
        text = text[:start] + data.draw(st.text(max_size=8)) + text[end:]
    survives(tmp_path_factory.getbasetemp() / "fuzz.toml", text.encode("utf-8", "surrogatepass"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.sampled_from(sorted(load_gpu("t4").to_dict())), VALUES)
def test_fuzz_a_record(key: str, value: object) -> None:
    record = load_gpu("t4").to_dict() | {key: value}
    try:
        gpu = Gpu.from_dict(record)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert Gpu.from_dict(gpu.to_dict()) == gpu
