"""Configurations of models that people deploy: parameters as published, dtypes right, the others refused in one line.

``SIZES`` is what the publisher says (model card, technical report or the name), in billions, with as many digits as it
says; multi-token prediction layers, which transformers does not build, are not in it.
"""

import pytest

pytest.importorskip("transformers")

import torch

from memwall.core.errors import UsageError
from memwall.frontend.targets import resolve
from memwall.frontend.torch.options import TraceOptions
from memwall.frontend.torch.run import trace
from tests.unit.places import shared

CONFIGS = shared("configs")

#: Start of a folder's name, the longest that fits → billions of parameters, and where that is said.
SIZES = {
    "MiniMaxAI--MiniMax-M2": ("229", "safetensors of MiniMaxAI/MiniMax-M2.5"),
    "nvidia--MiniMax-M2": ("229", "as MiniMax-M2.5"),
    # 60 layers of 107e6 for attention, 57 of 129 experts of 3 x 6144 x 3072, an index of 3.9e6 in each of these
    "MiniMaxAI--MiniMax-M3": ("426.2", "by hand"),
    "Qwen--Qwen3-0.6B": ("0.6", "model card"),
    "Qwen--Qwen3-1.7B": ("1.7", "model card"),
    "Qwen--Qwen3-8B": ("8.2", "model card"),
    "Qwen--Qwen3-32B": ("32.8", "model card"),
    "Qwen--Qwen3-30B-A3B": ("30.5", "model card"),
    "Qwen--Qwen3-235B-A22B": ("235", "model card"),
    "nvidia--Qwen3-235B-A22B": ("235", "model card"),
    "Qwen--Qwen3-Coder-480B": ("480", "model card"),
    "Qwen--Qwen3-VL-2B": ("2.13", "safetensors of Qwen/Qwen3-VL-2B-Instruct"),
    "Qwen--Qwen3-VL-4B": ("4.44", "safetensors"),
    "Qwen--Qwen3-VL-8B": ("8.77", "safetensors"),
    "Qwen--Qwen3-VL-30B-A3B": ("31.1", "safetensors"),
    "Qwen--Qwen3-VL-32B": ("33.4", "safetensors"),
    "Qwen--Qwen3-VL-235B-A22B": ("236", "safetensors"),
    "Qwen--Qwen3.5-27B": ("27", "name"),
    "Qwen--Qwen3.5-35B-A3B": ("35", "name"),
    "Qwen--Qwen3.5-122B-A10B": ("122", "name"),
    "Qwen--Qwen3.5-397B-A17B": ("397", "name"),
    "nvidia--Qwen3.5-122B": ("122", "name"),
    "nvidia--Qwen3.5-397B": ("397", "name"),
    "nvidia--Qwen3.6-27B": ("27", "name"),
    "nvidia--Qwen3.6-35B": ("35", "name"),
    # 36 layers of 177.2e6, two tables of 151680 x 4096
    "XiaomiMiMo--MiMo-7B": ("7.62", "by hand"),
    "XiaomiMiMo--MiMo-V2-Flash": ("309", "model card"),
    "deepseek-ai--DeepSeek-R1": ("671", "arXiv:2412.19437"),
    "deepseek-ai--DeepSeek-V3": ("671", "arXiv:2412.19437"),
    "nvidia--DeepSeek-V3": ("671", "arXiv:2412.19437; V3.2 adds an indexer of 0.9"),
    "deepseek-ai--DeepSeek-V4-Flash": ("284", "technical report"),
    "nvidia--DeepSeek-V4-Flash": ("284", "technical report"),
    "sgl-project--DeepSeek-V4-Flash": ("284", "technical report"),
    "deepseek-ai--DeepSeek-V4-Pro": ("1600", "technical report: 1.6T"),
    "nvidia--DeepSeek-V4-Pro": ("1600", "technical report: 1.6T"),
    "sgl-project--DeepSeek-V4-Pro": ("1600", "technical report: 1.6T"),
    "google--gemma-4-26B-A4B": ("26", "name"),
    "nvidia--Gemma-4-26B": ("26", "name"),
    "nvidia--Gemma-4-31B": ("31", "name"),
    "meta-llama--Llama-4-Maverick": (
        "402",
        "safetensors; the configuration has no image tower, the default one is built",
    ),
    "meta-llama--Llama-4-Scout": ("108.6", "safetensors; likewise"),
    "meta-llama--Meta-Llama-3.1-405B": ("406", "safetensors"),
    "meta-llama--Meta-Llama-3.1-70B": ("70.6", "safetensors"),
    "meta-llama--Meta-Llama-3.1-8B": ("8.03", "safetensors"),
    "nvidia--Llama-3.1-70B": ("70.6", "safetensors"),
    "nvidia--Llama-3_3-Nemotron-Super-49B": ("49.9", "safetensors"),
    "mistralai--Mixtral-8x22B": ("141", "model card"),
    "mistralai--Mixtral-8x7B": ("46.7", "arXiv:2401.04088: 47"),
    "moonshotai--Kimi-K2": ("1026", "safetensors of Kimi-K2-Instruct; K2.5 adds an image tower of 0.4"),
    "nvidia--Kimi-K2": ("1026", "likewise"),
    "nvidia--NVIDIA-Nemotron-3-Nano": ("31.6", "technical report"),
    "nvidia--NVIDIA-Nemotron-3.5-Lightning": ("31.6", "as Nemotron 3 Nano"),
    "nvidia--NVIDIA-Nemotron-3-Super": ("120.6", "technical report"),
    "nvidia--NVIDIA-Nemotron-3-Ultra": ("550", "name"),
    "nvidia--Nemotron-H-56B": ("56", "name"),
    "nvidia--GLM-5": ("744", "technical report"),
    "zai-org--GLM-5": ("744", "technical report"),
    "openai--gpt-oss-120b": ("116.8", "arXiv:2508.10925"),
    "openai--gpt-oss-20b": ("20.9", "arXiv:2508.10925"),
    "stepfun-ai--Step-3.7-Flash": ("198", "196 as Step-3.5-Flash (vLLM's recipe), and the default image tower"),
}
#: Start of a folder's name → what the refusal says.
REFUSED = {"moonshotai--Kimi-K3": "no model type 'kimi_k3'"}
#: one of each kind, traced as well
TRACED = (
    "Qwen--Qwen3-VL-2B-Instruct", "Qwen--Qwen3.5-35B-A3B", "moonshotai--Kimi-K2.5", "openai--gpt-oss-20b",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", "deepseek-ai--DeepSeek-V3.2",
)  # fmt: skip

pytestmark = pytest.mark.skipif(CONFIGS is None, reason="the configurations of deployed models are not here")
NAMES = sorted(path.name for path in CONFIGS.iterdir() if path.is_dir()) if CONFIGS else []


def longest(table: dict, name: str):
    return max((start for start in table if name.startswith(start)), key=len, default=None)


def _first_of_each_size(names: list[str]) -> list:
    """Other precisions and dates of a model with --whole."""
    seen, cases = set(), []
    for name in names:
        start = longest({**SIZES, **REFUSED}, name)
        cases.append(pytest.param(name, marks=pytest.mark.whole) if start in seen else name)
        seen.add(start)
    return cases


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", _first_of_each_size(NAMES))
def test_parameters_and_dtype_are_those_of_the_published_model(name):
    """Of some of each publisher; a model that alone is counted wrong is found with --whole."""
    target = f"hf:{CONFIGS / name}"
    if (start := longest(REFUSED, name)) is not None:
        with pytest.raises(UsageError, match=REFUSED[start]) as caught:
            resolve(target)
        assert "\n" not in str(caught.value)
        return
    workload = resolve(target)
    with torch.device("meta"):
        module = workload.model()
    counted = sum(parameter.numel() for parameter in module.parameters()) / 1e9
    said = SIZES[longest(SIZES, name)][0]
    digits = len(said.partition(".")[2])
    half = 0.5 * 10**-digits if said != "1600" else 50  # half of the last digit that is said
    assert abs(counted - float(said)) <= max(0.005 * float(said), half)
    assert {p.dtype for p in module.parameters() if p.numel() > 1 << 20} <= {torch.bfloat16, torch.float32}
    weights = sum(p.numel() for p in module.parameters() if p.dtype == torch.bfloat16)
    assert weights > 0.99 * counted * 1e9


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRACED)
def test_one_of_each_kind_is_traced(name):
    """Some kinds; a tower that alone does not run is found with --whole."""
    traced = trace(resolve(f"hf:{CONFIGS / name}", seq=512), TraceOptions())
    assert traced.workload.dtype == "bfloat16"
    notes = " ".join(traced.facts.notes)
    assert "tower not run" not in notes
    assert ("quantised" in notes) == (
        name.startswith(("nvidia", "openai")) or name in ("moonshotai--Kimi-K2.5", "deepseek-ai--DeepSeek-V3.2")
    )
