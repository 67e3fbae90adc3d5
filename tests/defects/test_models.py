"""Models of transformers as people have them: masks, configurations, inputs."""

import json

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


TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 300}  # fmt: skip


@pytest.fixture
def config(folder):
    """``config({...})``: the target of a folder with that configuration in it."""

    def write(fields: dict) -> str:
        (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
        return f"hf:{folder}"

    return write


def test_f45_a_model_with_several_main_inputs(run, config):
    """oneformer's main_input_name is a list, which was looked up in a table as a name."""
    small = {"encoder_layers": 1, "decoder_layers": 2, "is_training": False, "num_queries": 4,
             "backbone_config": {
                 "model_type": "swin", "embed_dim": 12, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2],
                 "image_size": 64, "out_features": ["stage1", "stage2", "stage3", "stage4"]}}  # fmt: skip
    target = config({"model_type": "oneformer", **small})
    result = run("profile", target, "--gpu", "h100", "--real", "--json")  # its masks follow from its outputs
    assert result.code == 0, result.err
    shapes = [given["shape"] for given in json.loads(result.out)["workload"]["inputs"]]
    assert [1, 3, 64, 64] in shapes
    assert [1, 77] in shapes, "the task's tokens, task_seq_len of them"


def test_f47_images_are_given_as_the_processor_would(run, config):
    """A vision-language model was given pixels that do not fit it, or no image at all, and nothing was said."""
    vision = {"model_type": "qwen2_vl", "embed_dim": 32, "hidden_size": 64, "depth": 1, "num_heads": 2,
              "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "image_size": 56}  # fmt: skip
    text = {"model_type": "qwen2_vl_text", **TINY, "rope_parameters": {
        "rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}}  # fmt: skip
    ids = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
    target = config({
        "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": vision,
        "text_config": text, **ids,
    })  # fmt: skip
    result = run("profile", target, "--gpu", "h100", "--seq", 20, "--json")
    assert result.code == 0, result.err
    shapes = [given["shape"] for given in json.loads(result.out)["workload"]["inputs"]]
    assert [16, 3 * 2 * 14 * 14] in shapes, "(56 / 14)² patches of two frames of 14 x 14 pixels"
    assert [1, 3] in shapes, "the grid"
    assert [1, 20 + 2 + 16 // 4] in shapes, "text, two marks, a token for each 2 x 2 patches"


@pytest.mark.parametrize("fields", [
    {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300, "num_heads": 8,
     "head_dim": 16, "state_size": 16, "n_groups": 1, "time_step_limit": [0.0, {"__float__": "Infinity"}]},
    {"model_type": "qwen3_5", "text_config": {**TINY, "head_dim": 16, "layer_types": ["full_attention"] * 2},
     "vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 64, "out_hidden_size": 64}},
], ids=["special-float", "composite"])  # fmt: skip
def test_f48_configurations_that_transformers_wrote(run, config, fields):
    """Infinity is written as {"__float__": "Infinity"} and was not decoded; composite configurations were handed to the
    class of their text part."""
    result = run("profile", config(fields), "--gpu", "h100", "--seq", 16)
    assert result.code == 0, result.err


def test_f50_ranges_and_zeros_meet_while_a_model_is_built(run, folder):
    """While a model was built, arange stayed on the host and zeros went to meta, so that cat of both failed and the
    weights were built on the host."""
    (folder / "tables.py").write_text(TABLES, encoding="utf-8")
    result = run("profile", "tables.py", "--gpu", "h100")
    assert result.code == 0, result.err
    assert "on the host" not in result.err


TABLES = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.cat((torch.arange(4), torch.zeros(4))))
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return self.linear(x * self.rates)

def model():
    return Net()

def inputs():
    return (torch.randn(2, 8),)
"""


def test_f57_one_token_is_no_decode_step(run, config):
    """--seq 1 looks like a decode step but has no cache, and nothing said so."""
    result = run("profile", config({"model_type": "llama", **TINY}), "--gpu", "h100", "--seq", 1)
    assert result.code == 0, result.err
    assert "cache" in result.out
