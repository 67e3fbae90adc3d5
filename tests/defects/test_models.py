"""Models of transformers as people have them: masks, configurations, inputs."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

MASKED = """\
import torch
from transformers import {config}, {model}

def model():
    torch.manual_seed(0)
    return {model}({config}(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                            vocab_size=100{more}))

def inputs(batch=2, seq=32):
    return {{"input_ids": torch.randint(0, 100, (batch, seq)), "attention_mask": torch.ones(batch, seq).long()}}
"""


@pytest.mark.parametrize(("config", "model", "more"), [
    ("LlamaConfig", "LlamaForCausalLM", ", num_key_value_heads=2, use_cache=False"),
    ("BertConfig", "BertForMaskedLM", ""),
])  # fmt: skip
def test_f46_attention_masks_from_python(run, folder, config, model, more):
    """transformers' questions about the values of a mask were answered for hf: targets alone, so a model file that
    passes the attention_mask which every tokenizer returns was refused."""
    (folder / "masked.py").write_text(MASKED.format(config=config, model=model, more=more), encoding="utf-8")
    result = run("profile", "masked.py", "--gpu", "h100", "--dtype", "bf16", "--json")
    assert result.code == 0, result.err
    assert "flash_attention" in result.out, "an unpadded batch runs the kernel that takes no mask"
    assert run("profile", "masked.py", "--gpu", "h100", "--mode", "training").code == 0
