"""How XLA is told of a device: facts of vendors' documents, in the fields of XLA's own files of known GPUs."""

import re

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.lookup import all_gpus, load_gpu
from memwall.xla.target import XlaTarget, slice_of, target_of


def field(gpu: str, name: str) -> str:
    return re.findall(rf"\b{name}: (\S+)", target_of(load_gpu(gpu)).description)[0]


@pytest.mark.parametrize(
    ("gpu", "name", "value"),
    [
        # xla/backends/gpu/target_config/specs/h100_sxm.txtpb
        ("h100-sxm", "core_count", "132"),
        ("h100-sxm", "fpus_per_core", "128"),
        ("h100-sxm", "shared_memory_per_core", "233472"),
        ("h100-sxm", "shared_memory_per_block_optin", "232448"),
        ("h100-sxm", "clock_rate_ghz", "1.98"),
        # the same folder, a100_sxm_80.txtpb
        ("a100-80gb-sxm", "core_count", "108"),
        ("a100-80gb-sxm", "fpus_per_core", "64"),
        ("a100-80gb-sxm", "shared_memory_per_core", "167936"),
        # CUDA C++ Programming Guide, technical specifications: 96 KiB on 7.0, 1024 threads on 7.5
        ("v100-sxm2-16gb", "shared_memory_per_block_optin", "98304"),
        ("t4", "threads_per_core_limit", "1024"),
    ],
)
def test_a_gpu_is_described_as_its_documents_say(gpu, name, value):
    assert field(gpu, name) == value


def test_instructions_of_one_chip_alone_are_allowed_from_hopper_on():
    assert "ACCELERATED_FEATURES" in target_of(load_gpu("h100-sxm")).description
    assert "ACCELERATED_FEATURES" not in target_of(load_gpu("rtx-4090")).description


def test_every_board_of_nvidia_is_a_target():
    boards = [gpu for gpu in all_gpus() if gpu.vendor == "NVIDIA"]
    assert len(boards) > 40
    assert {target_of(gpu).platform for gpu in boards} == {"cuda"}


def test_a_tpu_is_a_generation():
    assert target_of(load_gpu("tpu-v5e")) == XlaTarget("tpu", "v5e")


@pytest.mark.parametrize("gpu", ["mi300x", "wse-2"])
def test_what_xla_has_no_compiler_for_is_refused(gpu):
    with pytest.raises(UsageError, match=f"compiles nothing for {gpu} here.* NVIDIA GPUs from the P100 on"):
        target_of(load_gpu(gpu))


@pytest.mark.parametrize(
    ("chips", "axes", "shape"),
    [(1, 2, (1, 1)), (4, 2, (2, 2)), (8, 2, (2, 4)), (6, 2, (2, 3)), (16, 3, (2, 2, 4)), (64, 3, (4, 4, 4))],
)
def test_a_slice_is_nearly_square(chips, axes, shape):
    assert slice_of(chips, axes) == shape


def test_a_slice_of_a_tpu_has_hosts_that_fill_it():
    asked = XlaTarget("tpu", "v5p").topology(16)
    assert (asked["topology_name"], asked["chips_per_host_bounds"]) == ("v5p:2x2x4", [2, 2, 1])
    assert XlaTarget("tpu", "v5e").topology(1)["chips_per_host_bounds"] == [1, 1, 1]


def test_gpus_fill_hosts_of_eight():
    assert [XlaTarget("cuda", "").topology(n)["topology"] for n in (1, 4, 8, 16)] == [
        "1x1x1",
        "1x1x4",
        "1x1x8",
        "1x2x8",
    ]
