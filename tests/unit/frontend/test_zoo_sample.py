"""Sixty transformers types of all families from their default configuration, layers cut: a sample of the zoo.

``benchmarks/zoo.py`` runs them all. FLOPs are compared with those that torch's FlopCounterMode counts over the same
step.
"""

from __future__ import annotations

import sys

import pytest

import memwall
from tests.unit.places import ROOT

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
sys.path.insert(0, str(ROOT / "benchmarks"))
zoo = pytest.importorskip("zoo")
suites = pytest.importorskip("zoo_models.suites")

FAMILIES = {
    "decoder": ("llama", "gpt2", "gemma3_text", "falcon", "qwen3", "cohere2", "modernbert-decoder"),
    "encoder": ("bert", "deberta-v2", "modernbert", "big_bird", "fnet", "canine"),
    "encoder and decoder": ("t5", "bart", "m2m_100", "longt5"),
    "mixture of experts": ("mixtral", "deepseek_v3", "gpt_oss", "qwen3_moe", "llama4_text", "granitemoe"),
    "state space, hybrid": ("mamba", "mamba2", "jamba", "bamba", "qwen3_next", "rwkv"),
    "vision": ("vit", "swin", "convnext", "dinov2", "efficientnet", "hiera", "dinov3_vit"),
    "detection, segmentation, depth": ("yolos", "rt_detr", "mask2former", "dpt", "segformer"),
    "video": ("vjepa2", "timesformer"),
    "audio, speech": ("whisper", "wav2vec2", "encodec", "audio-spectrogram-transformer", "speecht5"),
    "images and text": ("clip", "llava", "qwen2_5_vl", "idefics3", "internvl", "florence2", "kimi_k25"),
    "time series": ("patchtst", "patchtsmixer"),
    "document, protein, other": ("layoutlmv3", "esm", "decision_transformer"),
}
NAMES = [name for names in FAMILIES.values() for name in names]


def test_the_sample_has_sixty_types():
    assert len(NAMES) == len(set(NAMES)) == 60


@pytest.mark.parametrize("name", NAMES)
def test_a_type_from_its_default_configuration(name, tmp_path):
    target = suites.Transformers().workload(name, "inference", tmp_path)
    profile = memwall.profile(target, gpu="h100")
    assert profile.graph.ops and profile.workload.parameters > 0
    ours, counted = zoo._counts(target, "inference")
    assert counted is not None and ours == counted > 0
