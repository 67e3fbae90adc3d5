"""``hf:``: the class, the inputs and the labels that a transformers configuration leads to. No weights, no network."""

import contextlib
import copy
import json
import re
import sys

import pytest
import torch

from memwall.core.errors import MissingError, UsageError
from memwall.frontend.targets import resolve
from memwall.frontend.torch.dispatch.library_answers import library_answers
from memwall.frontend.torch.options import TraceOptions
from memwall.frontend.torch.run import trace

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
LLAMA = {"model_type": "llama", "vocab_size": 99, "num_key_value_heads": 1, "max_position_embeddings": 64, **TINY}
BERT = {"model_type": "bert", "vocab_size": 99, "max_position_embeddings": 40, **TINY}


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
    ({"model_type": "no-such"}, "has no model type 'no-such'; profile it with a version that has it, or from a model"),
    ({"model_type": "llamaa"}, "has no model type 'llamaa'; did you mean llama?"),
    ({"model_type": "no-such", "auto_map": {"AutoModel": "evil.Model"}}, "its own code is not run"),
    ({"model_type": "llama", "vocab_size": "many"}, "config.json"),
])  # fmt: skip
def test_what_a_bad_configuration_says(save, config, says):
    with pytest.raises(UsageError) as caught:
        resolve(save(config))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.defect("4")
def test_a_transformers_that_does_not_load_is_not_said_to_be_missing(save, monkeypatch):
    """Any import error without a name was taken for a library that is not installed, as that of transformers for a
    library of another version."""
    import importlib

    def fail(name):
        raise ImportError("huggingface-hub>=1.0 is required, but found huggingface-hub==0.30.\nTry: pip install")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(MissingError, match=r"^this needs transformers, which is installed but does not load: hugging"):
        resolve(save(LLAMA))


def test_without_transformers(save, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingError, match=r"pip install 'memwall-roofline\[hf\]'"):
        resolve(save(LLAMA))


TEXT = {"model_type": "llama", **TINY, "num_key_value_heads": 1, "vocab_size": 99, "max_position_embeddings": 2048}
CLIP = {"model_type": "clip_vision_model", **TINY, "image_size": 28, "patch_size": 14, "projection_dim": 32}


@pytest.mark.parametrize(("config", "sizes", "inputs"), [
    (  # LLaVA: (28 / 14)² tokens for each image
        {"model_type": "llava", "text_config": TEXT, "vision_config": CLIP, "image_token_index": 98},
        {"seq": 10, "images": 2},
        {"input_ids": (1, 10 + 2 * 4), "pixel_values": (2, 3, 28, 28)},
    ),
    (  # LLaVA-NeXT at 28 x 56: the whole image, then two tiles of 2 x 2 tokens with a new line after each of two rows
        {"model_type": "llava_next", "text_config": TEXT, "vision_config": CLIP, "image_token_index": 98,
         "image_grid_pinpoints": [[28, 56], [56, 28]]},
        {"seq": 10, "image": "28x56"},
        {"input_ids": (1, 10 + 4 + 2 * 4 + 2), "pixel_values": (1, 3, 3, 28, 28), "image_sizes": (1, 2)},
    ),
    (
        {"model_type": "videomae", "image_size": 32, "patch_size": 16, "num_frames": 4, **TINY},
        {},
        {"pixel_values": (1, 4, 3, 32, 32)},
    ),
    ({"model_type": "wav2vec2", **TINY}, {"seconds": 2}, {"input_values": (1, 32_000)}),
], ids=["llava", "llava-next", "video", "sound"])  # fmt: skip
def test_inputs_are_what_the_processor_makes(save, config, sizes, inputs):
    traced = trace(resolve(save(config), **sizes), TraceOptions())
    assert [tuple(given["shape"]) for given in traced.workload.inputs] == list(inputs.values())
    assert "tower not run" not in str(traced.facts.notes)


def test_an_image_that_does_not_fit_is_left_out_and_said(save):
    config = {"model_type": "llava", "text_config": TEXT, "vision_config": CLIP, "image_token_index": 98}
    traced = trace(resolve(save(config), image="14x42"), TraceOptions())
    assert [given["shape"] for given in traced.workload.inputs] == [[1, 512]]
    assert any(note.startswith("image tower not run: ") for note in traced.facts.notes)


def test_quantised_weights_are_counted_as_built_and_said(save):
    quantised = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    traced = trace(resolve(save({**LLAMA, "quantization_config": quantised})), TraceOptions())
    assert traced.workload.dtype == "bfloat16"  # what is left of a model whose dtype is not said
    weights = 3 * 32 * 64  # of the one MLP; attention and the head are not converted
    built, packed = weights * 2, weights * 4.25 / 8
    assert traced.facts.notes[0] == (
        "weights quantised as mxfp4 are not modeled: they are counted as bfloat16, "
        f"{built / 1e3:.2f} kB instead of about {packed / 1e3:.2f} kB"
    )


@pytest.mark.parametrize(("given", "says"), [
    ({"image": "3by3"}, "--image must be HEIGHTxWIDTH"), ({"seconds": 0}, "--seconds must be a number above 0"),
    ({"images": 2}, "takes no images"), ({"seconds": 1.5}, "takes no sound"),
])  # fmt: skip
def test_sizes_that_cannot_be(save, given, says):
    with pytest.raises(UsageError, match=says):
        resolve(save(LLAMA), **given)


def test_seconds_that_whisper_does_not_take(save):
    """Each of the encoder's 1,500 positions stands for 20 ms, and the feature extractor pads to all of them."""
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    target = save({"model_type": "whisper", **heads, "encoder_layers": 1, "decoder_layers": 1, "d_model": 16})
    with pytest.raises(UsageError, match="--seconds 45 was given, but WhisperForConditionalGeneration takes 30 s"):
        resolve(target, seconds=45.0)
    assert resolve(target, seconds=30.0).inputs()["input_features"].shape == (1, 80, 3000)


@pytest.mark.defect("4")
def test_a_library_for_another_torch_is_named_whatever_it_raises(save, monkeypatch):
    """Only import errors were taken for a library that does not load; torchvision for another torch raises others."""
    import transformers

    found = type(transformers).__getattr__

    def fail(self, name):
        if name.startswith("ViTFor"):
            raise RuntimeError("operator torchvision::nms does not exist")
        return found(self, name)

    monkeypatch.setattr(type(transformers), "__getattr__", fail)
    monkeypatch.delitem(vars(transformers), "ViTForImageClassification", raising=False)
    with pytest.raises(
        MissingError, match=r"cannot load ViT.*torchvision::nms does not exist; install what it imports"
    ):
        resolve(save({"model_type": "vit", **TINY, "architectures": ["ViTForImageClassification"]}))


BROKEN = """
import pathlib, sys
there = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(there))
import memwall
from memwall.core.errors import MissingError, UsageError
from memwall.frontend.targets.target import resolve
for folder in sorted(there.glob("hf_*")):
    try:
        resolve(f"hf:{folder}")
    except (MissingError, UsageError) as error:
        print(error)
    else:
        print("loaded")
"""


@pytest.mark.defect("4")
def test_a_broken_torchvision_is_named_by_whatever_asks_for_it_first(tmp_path, forks):
    """Only what transformers hands out by name was watched; its configurations import torchvision as well, and a table
    of them raised whatever that raises.

    A library as ``pip install`` leaves it for another torch, in a process of its own: what is imported once stays.
    """
    library = tmp_path / "torchvision"
    library.mkdir()
    (library / "__init__.py").write_text('raise RuntimeError("operator torchvision::nms does not exist")\n')
    described = tmp_path / "torchvision-0.29.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.29.0\n")
    named = {"architectures": ["ViTForImageClassification"]}
    for name, config in (("hf_a", LLAMA), ("hf_b", {"model_type": "vit"}), ("hf_c", {"model_type": "vit", **named})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    said = forks.printed(BROKEN, tmp_path).splitlines()
    assert len(said) == 3
    for line in said:
        assert re.fullmatch(r"transformers cannot load .*: operator torchvision::nms does not exist; install .*", line)
