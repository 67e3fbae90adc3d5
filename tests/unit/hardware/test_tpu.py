"""TPUs as hardware: what a file states of a TensorCore, and the tiles to which XLA pads arrays."""

from pathlib import Path

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.gpu import Gpu, Tpu
from memwall.hardware.gpu_spec import read_spec
from memwall.hardware.lookup import all_gpus, load_gpu, spec_path

TPUS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x")


def tpu(name: str) -> Tpu:
    found = load_gpu(name).tpu
    assert found is not None
    return found


def test_tpus_alone_have_tensor_cores_of_googles() -> None:
    assert {gpu.name for gpu in all_gpus() if gpu.tpu} == set(TPUS)


@pytest.mark.parametrize("name", TPUS)
def test_links_of_all_axes_are_those_of_the_chip(name: str) -> None:
    # two links along each axis, both directions: a v5e has 2 x 2 x 2 x 50 GB/s = 400 GB/s
    assert load_gpu(name).link_bytes_per_s == 4 * tpu(name).ici_axes * tpu(name).ici_bytes_per_s


@pytest.mark.parametrize("name", TPUS)
def test_cores_and_their_memory_are_in_the_last_cache(name: str) -> None:
    gpu = load_gpu(name)
    common = 128 << 20 if name == "tpu-v4" else 0  # CMEM
    assert gpu.l2_bytes == gpu.sm_count * tpu(name).vmem_bytes + common


@pytest.mark.parametrize(("name", "itemsize", "tile"), [
    ("tpu-v5e", 4, (8, 128)),
    ("tpu-v5e", 2, (8, 128)),
    ("tpu-v5e", 1, (32, 128)),
    ("tpu-7x", 2, (16, 128)),
    ("tpu-7x", 8, (8, 128)),
])  # fmt: skip
def test_arrays_are_padded_to_tiles_of_sublanes_and_lanes(name: str, itemsize: int, tile: tuple[int, int]) -> None:
    assert tpu(name).tile(itemsize) == tile


def test_a_saved_tpu_is_read_back() -> None:
    gpu = load_gpu("tpu-v5e")
    assert Gpu.from_dict(gpu.to_dict()).tpu == gpu.tpu
    assert "tpu" not in load_gpu("h100").to_dict()


def test_a_file_that_leaves_out_a_number_of_the_tpu_is_refused(tmp_path: Path) -> None:
    rows = spec_path("tpu-v5e").read_text().splitlines()
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(row for row in rows if not row.startswith("ici_axes")))
    with pytest.raises(UsageError, match=r"tpu\.ici_axes: is missing"):
        read_spec(file)
