"""The chips: NVIDIA's table of technical specifications per compute capability, and which row a GPU has."""

from dataclasses import replace

import pytest

from memwall.hardware.chips import CHIPS, GENERATIONS, KIB, chip_of
from memwall.hardware.lookup import all_gpus, load_gpu


@pytest.mark.parametrize(
    ("target", "threads", "blocks", "shared_kib", "block_kib"),
    [  # CUDA C++ Programming Guide: resident threads and blocks, shared memory per multiprocessor and per block
        ("sm_60", 2048, 32, 64, 48), ("sm_70", 2048, 32, 96, 96), ("sm_75", 1024, 16, 64, 64),
        ("sm_80", 2048, 32, 164, 163), ("sm_86", 1536, 16, 100, 99), ("sm_89", 1536, 24, 100, 99),
        ("sm_90", 2048, 32, 228, 227), ("sm_100", 2048, 32, 228, 227), ("sm_120", 1536, 24, 100, 99),
    ],
)  # fmt: skip
def test_limits(target, threads, blocks, shared_kib, block_kib):
    chip = CHIPS[target]
    assert (chip.threads, chip.blocks) == (threads, blocks)
    assert (chip.shared_bytes, chip.shared_block_bytes) == (shared_kib * KIB, block_kib * KIB)
    assert chip.registers == 65_536


def test_every_shipped_gpu_has_its_row():
    for gpu in all_gpus():
        if gpu.compute_capability is not None:
            assert chip_of(gpu).architecture == gpu.architecture, gpu.name


def test_a_capability_without_a_row_has_the_next_lower_one():
    orin = replace(load_gpu("a100-80gb-sxm"), compute_capability="8.7")
    assert chip_of(orin) is CHIPS["sm_86"]
    assert chip_of(replace(orin, compute_capability="99.0")) is CHIPS["sm_120"]
    assert chip_of(replace(orin, compute_capability=None)).attention == "flash"


def test_generations_stand_from_the_oldest():
    assert GENERATIONS == ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell")
