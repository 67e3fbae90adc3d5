"""MaxText's table of steps on TPUs: what a row means by hand, and how far the model is from the rows that no constant
saw."""

import csv
from pathlib import Path
from statistics import median

import pytest

from memwall.bench.accuracy.kinds import Skip
from memwall_lab.tables.training import MAXTEXT
from memwall_lab.training import TrainingSample
from tests.unit.places import truth

TABLE = truth("maxtext_tpu.csv")


#: chips of a slice
CHIPS = {"tpu-v4": 64, "tpu-v5e": 256, "tpu-v5p": 128}


def sample(tpu: str, params: str, slices: int = 1, tflops: float = 100.0) -> TrainingSample:
    chips = str(slices * CHIPS[tpu])
    record = {"tpu": tpu, "params": params, "slices": str(slices), "chips": chips, "tflops_per_chip": str(tflops)}
    (found,) = MAXTEXT.read(record, Path())
    assert isinstance(found, TrainingSample)
    return found


def test_the_step_of_a_row_is_its_flops_over_their_rate() -> None:
    # a token of a layer: 2 x 4096 x (4 x 8192 + 3 x 28672) of products, 4 x 2048 x 8192 of attention; of the head
    # 2 x 4096 x 32000; 32 layers, three passes, 6 sequences of 2048 tokens
    token = 32 * (2 * 4096 * (4 * 8192 + 3 * 28672) + 4 * 2048 * 8192) + 2 * 4096 * 32000
    assert sample("tpu-v5e", "16B", tflops=120).measured_s == pytest.approx(3 * 6 * 2048 * token / 120e12)


@pytest.mark.parametrize(("tpu", "params", "slices", "layout", "sequences"), [
    ("tpu-v5e", "16B", 1, "dp=256,fsdp=full,recompute=full,shards=256", 6),
    ("tpu-v5e", "64B", 4, "dp=1024,fsdp=full,recompute=full,shards=256", 2),
    ("tpu-v5e", "128B", 2, "tp=16,sp,dp=32,fsdp=full,recompute=full,async,shards=16", 16),
    ("tpu-v4", "22B", 8, "dp=512,fsdp=full,recompute=full,shards=64", 13),
    ("tpu-v5p", "128B", 1, "tp=8,sp,dp=16,fsdp=full,recompute=selective,async,shards=16", 8),
])  # fmt: skip
def test_scripts_are_layouts(tpu: str, params: str, slices: int, layout: str, sequences: int) -> None:
    found = sample(tpu, params, slices)
    assert (str(found.layout), found.microbatch) == (layout, sequences)


def test_a_model_without_a_script_is_skipped() -> None:
    with pytest.raises(Skip, match="script of 'tpu-v5p 7B' is not known"):
        sample("tpu-v5p", "7B")


@pytest.mark.parametrize(("params", "width", "layers", "heads", "ffn"), [
    ("32B", 8192, 32, 64, 28672), ("64B", 8192, 64, 64, 28672), ("128B", 8192, 64, 128, 57344),
    ("256B", 16384, 64, 128, 57344), ("512B", 16384, 128, 128, 57344), ("1024B", 16384, 128, 256, 114688),
])  # fmt: skip
def test_sizes_double_in_turn(params: str, width: int, layers: int, heads: int, ffn: int) -> None:
    sizes = sample("tpu-v5p", params).sizes
    assert (sizes.width, sizes.layers, sizes.heads, sizes.ffn) == (width, layers, heads, ffn)
    # attention's four products and the MLP's three have about as many numbers as the name says
    numbers = layers * width * (4 * heads * 128 + 3 * ffn)
    assert numbers == pytest.approx(int(params.rstrip("B")) * 1e9, rel=0.06)


@pytest.mark.skipif(TABLE is None, reason="shared/truth/maxtext_tpu.csv is not here")
def test_utilization_of_rows_that_no_constant_saw() -> None:
    assert TABLE is not None
    rows = (row for row in TABLE.read_text().splitlines() if not row.startswith("#"))
    held = [each for record in csv.DictReader(rows) for each in MAXTEXT.read(record, TABLE) if not each.in_fit_half]
    errors = [abs(each.step().time_s / each.measured_s - 1) for each in held]
    assert len(errors) == 12 and median(errors) < 0.15
