"""Sixty transformers types of all families from their default configuration, layers cut: a sample of the zoo.

The first of each family is always tested, all of them with ``--whole``; ``lab/benchmarks/zoo.py`` runs the whole zoo.
FLOPs are compared with those of torch's FlopCounterMode over the same
step.
"""

import resource
import sys

import pytest
import torch
from torch import nn

import memwall
from tests.unit.places import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.insert(0, str(ROOT / "lab" / "benchmarks"))
zoo = pytest.importorskip("zoo")
suites = pytest.importorskip("zoo_models.suites")

FAMILIES = {
    "decoder": ("llama", "gpt2", "gemma3_text", "falcon", "qwen3", "cohere2", "modernbert-decoder"),
    "encoder": ("bert", "deberta-v2", "modernbert", "big_bird", "fnet", "canine"),
    "encoder and decoder": ("t5", "bart", "m2m_100", "longt5"),
    "mixture of experts": ("mixtral", "deepseek_v3", "gpt_oss", "qwen3_moe", "llama4_text", "granitemoe"),
    "state space, hybrid": ("qwen3_next", "mamba", "mamba2", "jamba", "bamba", "rwkv"),
    "vision": ("swin", "vit", "convnext", "dinov2", "efficientnet", "hiera", "dinov3_vit"),
    "detection, segmentation, depth": ("yolos", "rt_detr", "mask2former", "dpt", "segformer"),
    "video": ("vjepa2", "timesformer"),
    "audio, speech": ("wav2vec2", "whisper", "encodec", "audio-spectrogram-transformer", "speecht5"),
    "images and text": ("clip", "llava", "qwen2_5_vl", "idefics3", "internvl", "florence2", "kimi_k25"),
    "time series": ("patchtst", "patchtsmixer"),
    "document, protein, other": ("layoutlmv3", "esm", "decision_transformer"),
}
NAMES = [name for names in FAMILIES.values() for name in names]
#: of every second family one type is traced without --whole
FIRST = [names[0] for names in [*FAMILIES.values()][::2]]


def test_the_sample_has_sixty_types():
    assert len(NAMES) == len(set(NAMES)) == 60


@pytest.mark.parametrize(
    "name", [name if name in FIRST else pytest.param(name, marks=pytest.mark.whole) for name in NAMES]
)
def test_a_type_from_its_default_configuration(name, tmp_path):
    target = suites.Transformers().workload(name, "inference", tmp_path)
    profile = memwall.profile(target, gpu="h100")
    assert profile.graph.ops and profile.workload.parameters > 0
    ours, counted = zoo._counts(target, "inference")
    assert counted is not None and ours == counted > 0


class _Keeps(nn.Module):
    """Keeps its scores in inference alone, and reads them always, as some trackers of transformers do; ``asks`` for the
    value of an activation where it does not."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = {} if self.training else {"scores": x.cuda()}
        return x[: int(x[0, 0])] if self.asks else kept["scores"]


@pytest.mark.parametrize(("asks", "failure"), [(False, "KeyError: 'scores'"), (True, "")])
def test_a_model_that_its_library_cannot_run_is_told_from_one_that_is_refused(asks, failure, monkeypatch):
    """By a run on the host: of the second the value is there."""
    monkeypatch.setattr(resource, "setrlimit", lambda *limits: None)
    target = memwall.Workload(_Keeps(asks), (torch.ones(4, 4),))
    with pytest.raises(memwall.MemwallError) as refused:
        memwall.profile(target, mode="training")
    assert zoo._real_failure(target, "training", refused.value) == failure
