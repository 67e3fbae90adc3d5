"""``hf:``: the class, the inputs and the labels that a transformers configuration leads to. No weights, no network."""

from __future__ import annotations

import contextlib
import copy
import json
import sys

import pytest
import torch

from memwall.core.errors import MissingError, UsageError
from memwall.frontend.torch.library_answers import library_answers
from memwall.frontend.workload import resolve

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 99, "num_key_value_heads": 1, "max_position_embeddings": 64, **TINY}
BERT = {"model_type": "bert", "vocab_size": 99, "max_position_embeddings": 40, **TINY}


@pytest.fixture
def save(tmp_path):
    def to(config: dict) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return f"hf:{tmp_path}"

    return to


def run(target: str, **options):
    """Build on meta, copy as a tracer may, and run forward."""
    workload = resolve(target, **options)
    with torch.device("meta"), library_answers(contextlib.nullcontext, lambda assumed: None):
        module = copy.deepcopy(workload.model())
        module.train(options.get("mode") == "training")
        inputs = workload.inputs()
        output = module(**inputs)
    return (module, {name: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in inputs.items()}, output)


@pytest.mark.parametrize(("config", "name", "inputs"), [
    (LLAMA, "LlamaForCausalLM", {"input_ids": ((2, 64), "int64")}),
    (
        {**LLAMA, "architectures": ["LlamaModel"], "dtype": "bfloat16"},
        "LlamaModel",
        {"input_ids": ((2, 64), "int64")},
    ),
    ({**BERT, "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM", {"input_ids": ((2, 40), "int64")}),
    (
        {"model_type": "vit", "image_size": 32, "patch_size": 16, "dtype": "float16", **TINY},
        "ViTForImageClassification",
        {"pixel_values": ((2, 3, 32, 32), "float16")},
    ),
    (
        {"model_type": "whisper", "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
         "encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 50,
         "max_target_positions": 20, "vocab_size": 99, "pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1},
        "WhisperForConditionalGeneration",
        {"input_features": ((2, 80, 100), "float32"), "decoder_input_ids": ((2, 20), "int64")},
    ),
    (
        {"model_type": "t5", "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2,
         "vocab_size": 99},
        "T5ForConditionalGeneration",
        {"input_ids": ((2, 512), "int64"), "decoder_input_ids": ((2, 512), "int64")},
    ),
    (
        {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 8,
         "text_config": {**TINY, "vocab_size": 99}, "vision_config": {**TINY, "image_size": 32, "patch_size": 16}},
        "CLIPModel",
        {"input_ids": ((2, 77), "int64"), "pixel_values": ((2, 3, 32, 32), "float32")},
    ),
], ids=["llama", "llama-headless", "bert", "vit", "whisper", "t5", "clip"])  # fmt: skip
def test_class_and_inputs_by_modality(save, config, name, inputs):
    module, made, _ = run(save(config), batch=2)
    assert (type(module).__name__, made) == (name, inputs)
    assert module.config._attn_implementation == "sdpa"
    assert next(module.parameters()).dtype == getattr(torch, config.get("dtype", "float32"))


@pytest.mark.parametrize(
    "architecture", ["BertForMaskedLM", "BertForSequenceClassification", "BertForQuestionAnswering"]
)
def test_training_passes_labels_so_that_the_output_has_a_loss(save, architecture):
    target = save({**BERT, "architectures": [architecture]})
    assert run(target, mode="training")[2].loss is not None
    assert run(target, mode="inference")[2].loss is None


def test_causal_attention_stays_a_flag_and_not_a_mask(save, monkeypatch):
    seen = []

    def spy(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **_):
        seen.append((attn_mask is None, is_causal))
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    run(save(LLAMA))
    assert seen == [(True, True)]


def test_sizes_and_inputs_of_the_user(save):
    target = save(LLAMA)
    assert run(target, batch=3, seq=5)[1]["input_ids"][0] == (3, 5)
    assert run(target, input_specs=["input_ids=i64[1,7]"])[1]["input_ids"][0] == (1, 7)
    with pytest.raises(UsageError, match="no effect with --input"):
        resolve(target, batch=3, input_specs=["input_ids=i64[1,7]"])
    with pytest.raises(UsageError, match="takes no token ids"):
        resolve(save({"model_type": "vit", **TINY}), seq=5)


@pytest.mark.parametrize(("config", "says"), [
    ({}, 'no "model_type"'),
    ([], 'no "model_type"'),
    ({"model_type": 3}, 'no "model_type"'),
    ({"model_type": "no-such"}, "has no model type 'no-such'"),
    ({"model_type": "no-such", "auto_map": {"AutoModel": "evil.Model"}}, "its own code is not run"),
    ({"model_type": "llama", "vocab_size": "many"}, "config.json"),
])  # fmt: skip
def test_what_a_bad_configuration_says(save, config, says):
    with pytest.raises(UsageError) as caught:
        resolve(save(config))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_transformers(save, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingError, match=r"pip install 'memwall\[hf\]'"):
        resolve(save(LLAMA))
