"""A dozen real models traced on ``meta`` and with data: the same ops, FLOPs, bytes, and numbers that Python reads.

``lab/benchmarks/known_values.py`` compares more of them.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from memwall.frontend.targets import Workload
from tests.unit.places import ROOT

pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.insert(0, str(ROOT / "lab" / "benchmarks"))
known_values = pytest.importorskip("known_values")

NAMES = (
    "bert", "canine", "clip", "deepseek_v3", "esm", "informer", "layoutlm", "mixtral", "qwen3_moe", "reformer",
    "time_series_transformer", "whisper",
)  # fmt: skip
#: experts and random numbers, whose values decide what runs; the others with --whole
ALWAYS = ("deepseek_v3", "informer")


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.whole) for name in NAMES]
)
def test_a_model_on_meta_is_as_with_data(name: str, tmp_path: Path) -> None:
    both = known_values.pair(name, known_values.MODELS["transformers"][1](name, tmp_path))
    assert not both.differences
    assert both.meta.flops == both.real.flops > 0 and both.meta.bytes == both.real.bytes > 0


class _Reads(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        assert int(ids.max()) == 5 and bool((ids > 3).any())
        return ids * ids.tolist()[1]


def test_the_numbers_that_a_model_reads_are_compared() -> None:
    both = known_values.pair("reads", Workload(_Reads, lambda: (torch.arange(6),), name="reads"))
    assert both.meta.answers == both.real.answers == [5, True, [0, 1, 2, 3, 4, 5]]
