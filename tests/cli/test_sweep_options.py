"""Each option of ``memwall profile``, ``memwall serve`` and layouts of training is an axis of ``memwall sweep``, or is
listed here with the reason why it is none."""

import json

import click
import pytest

from memwall.cli.profile import command as profile
from memwall.serving.command import command as serve
from memwall.sweeping.kinds import KINDS
from memwall.sweeping.vary import _KEYWORDS, parse_axes
from tests.cli.test_sweep_training import RANKED
from tests.unit.commands import MODEL

pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 8, "vocab_size": 512,
         "max_position_embeddings": 4096, "dtype": "bfloat16", **TINY}  # fmt: skip
SEEN = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS = {
    "llama": LLAMA,
    "mixtral": {**LLAMA, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4},
    "resnet": {"architectures": ["ResNetModel"], "model_type": "resnet", "embedding_size": 16,
               "hidden_sizes": [16, 32], "depths": [1, 1]},
    "timesformer": {"architectures": ["TimesformerModel"], "model_type": "timesformer", "image_size": 32,
                    "patch_size": 16, "num_frames": 8, **SEEN},
    "sound": {"architectures": ["Wav2Vec2Model"], "model_type": "wav2vec2", **SEEN},
    "llava": {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 500,
              "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model", "image_size": 32,
                                                      "patch_size": 16, **SEEN}},
    "pixtral": {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "image_token_index": 500,
                "text_config": LLAMA, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
                "vision_config": {"model_type": "pixtral", "image_size": 64, "patch_size": 16, **SEEN}},
    "clips": {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "image_token_id": 500,
              "video_token_id": 501, "dtype": "bfloat16",
              "text_config": {**LLAMA, "model_type": "qwen2_vl_text",
                              "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}},
              "vision_config": {"model_type": "qwen2_vl", "depth": 1, "embed_dim": 64, "hidden_size": 256,
                                "num_heads": 2, "patch_size": 16}},
    "heard": {"architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio",
              "audio_token_index": 500, "text_config": LLAMA,
              "audio_config": {"model_type": "qwen2_audio_encoder", "d_model": 64, "encoder_layers": 1,
                               "encoder_attention_heads": 2, "encoder_ffn_dim": 64}},
}  # fmt: skip
PROGRAMS = {
    "mlp": MODEL, "ranked": RANKED,
    "routed": """
import torch

class Routed(torch.nn.Module):
    def forward(self, x):
        return x[(x > 0).nonzero()[:, 0]] * 2

def model():
    return Routed()

def inputs():
    return (torch.zeros(64, 64),)
""",
}  # fmt: skip

#: kind -> option -> its two values, and further options and the target where another than the kind's is needed
AXES = {
    "profile": {
        "gpu": "a100,h100", "mode": "inference,training", "policy": "eager,memwall",
        "optimizer": "sgd,adamw:fused mode=training", "dtype": "bf16,fp16", "autocast": "bf16,fp16", "batch": "1,2",
        "seq": "16,32", "image": "64,128 @resnet", "images": "1,2 @llava", "video": "4,8 @timesformer",
        "seconds": "1,2 @sound",
        "prompt": "16,32 mode=prefill", "context": "16,32 mode=decode",
        "input_specs": "f32[2,64],f32[8,64] @mlp", "assume": "nonzero=0.1,nonzero=0.5 @routed",
        "dims": "batch=1,batch=8 @sized.onnx",
        "attention": "flash,math", "torch": "2.9,2.13",
        "cuda_graph": "yes,no", "real": "yes,no @mlp", "max_ops": "5000,6000",
        "replay": "yes,no", "no_grad": "yes,no mode=forward", "host": "bare-metal,cloud-vm",
        "cluster": "dgx-h100,hgx-b200 @ranked world=8", "world": "2,4 @ranked cluster=dgx-h100",
        "rank": "0,1 @ranked cluster=dgx-h100 world=8",
    },
    "decode": {
        "gpu": "a100,h100", "tp": "1,2", "ep": "1,2 tp=2 @mixtral", "dp": "1,2", "pp": "1,2",
        "cluster": "dgx-h100,aws-p5 tp=2", "batch": "1,2", "context": "16,32", "weights": "model,fp8",
        "kv": "model,fp8", "dtype": "bf16,fp16", "engine": "vllm@0.10,sglang", "utilization": "0.5,0.9",
        "routing": "balanced,power-law:1.2 @mixtral", "straggler": "0.8,1",
        "redundant": "2,4 routing=power-law:1.2 tp=2 ep=2 @mixtral",
        "kwh": "0.1,0.2", "grams_per_kwh": "200,400", "pue": "1.2,1.5 kwh=0.1", "busy": "0.5,1", "spot": "0.4,0.5",
    },
    "serve": {
        "gpu": "a100,h100", "tp": "1,2", "ep": "1,2 tp=2 @mixtral", "dp": "1,2", "pp": "1,2",
        "cluster": "dgx-h100,aws-p5 tp=2", "prompt": "16,32", "generate": "8,16", "lengths": "1,0.5-1.0",
        "concurrency": "1,2", "rate": "1,2", "weights": "model,fp8", "kv": "model,fp8", "prefix_hit": "0,0.5",
        "utilization": "0.5,0.9", "engine": "vllm,sglang", "closed_form": "yes,no", "trace": "a.csv,b.csv",
        "draft": "hf:llama,hf:mixtral", "draft_tokens": "2,3 draft=hf:llama", "accept": "0.5,0.9 draft=hf:llama",
        "disaggregate": "1:1,1:2", "dtype": "bf16,fp16",
        "images": "1,2 @llava", "image": "32,64 images=1 @pixtral", "frames": "2,4 @clips", "audio": "1,2 @heard",
        "captured": "1,8", "eager": "yes,no",
        "max_batch": "1,2 concurrency=4", "max_context": "64,128 prompt=16 generate=8", "token_budget": "512,1024",
        "prefill": "chunked,apart", "utilization_of": "all,free",
        "routing": "balanced,power-law:1.2 @mixtral", "straggler": "0.8,1",
        "redundant": "2,4 routing=power-law:1.2 tp=2 ep=2 @mixtral",
        "trace_scale": "1,2 trace=a.csv", "burst": "0,3 rate=2", "turns": "1,2", "think": "0,1 turns=2",
        "system_prompt": "16,32", "requests": "10,20", "client": "0,30", "replicas": "1,2", "failed": "0,1 replicas=2",
        "route": "round-robin,prefix replicas=2", "autoscale": "1:2:4,1:3:4", "startup": "1,2 autoscale=1:2:4",
        "kwh": "0.1,0.2", "grams_per_kwh": "200,400", "pue": "1.2,1.5 kwh=0.1", "busy": "0.5,1", "spot": "0.4,0.5",
    },
    "training": {
        "host": "bare-metal,cloud-vm",
        "dtype": "bf16,fp32", "autocast": "bf16,fp16", "batch": "1,2", "seq": "16,32", "gpu": "h100,b200",
        "cluster": "dgx-h100,hgx-b200", "world": "2,4", "policy": "eager,memwall", "state": "mixed,float32",
        "overlap": "yes,no", "parallel.pp": "1,2", "parallel.dp": "1,2", "parallel.microbatches": "1,2",
        "parallel.schedule": "1f1b,gpipe parallel.pp=2 parallel.microbatches=2",
        "parallel.async": "yes,no parallel.tp=2 parallel.sp=yes", "parallel.fsdp": "none,full parallel.dp=2",
        "parallel.recompute": "none,full", "parallel.tp": "1,2", "parallel.cp": "1,2",
        "parallel.dispatcher": "alltoall,hybridep parallel.dp=2 parallel.ep=2 @mixtral",
        "parallel.a2a_overlap": "yes,no parallel.dp=2 parallel.ep=2 parallel.microbatches=2 @mixtral",
        "parallel.ep": "1,2 parallel.dp=2 @mixtral", "parallel.sp": "yes,no parallel.tp=2",
        "parallel.shards": "2,4 parallel.dp=4 parallel.fsdp=full",
    },
}  # fmt: skip
#: option of a command that is no axis -> why
SHOWN, ASKED = "how the result is shown or written", "what is done with points: sweep has an option of this name"
NO_AXES = {
    "profile": {
        **dict.fromkeys(("top", "sort", "by", "depth", "figure", "output", "style", "json", "quiet", "no-progress",
                         "debug", "rules", "explain"), SHOWN),
        "what-if": "a table of its own next to one result", "nodes": "so many GPUs: the axis world",
        "scale": "several numbers of GPUs: the axis world",
        "strict": "an error, no other result: --where 'coverage==1'", "ncu": "a file that is compared with the result",
        "hlo": "what a trace is read with, no other result",
        "other-rank": "further ranks of one result: the axis rank",
        "parallel": "a whole layout: each of its keys is an axis, parallel.tp",
    },
    "serve": {
        **dict.fromkeys(("output", "style", "json", "quiet", "no-progress", "debug"), SHOWN),
        "price": ASKED, "slo": "conditions on points: --where 'ttft_p99<500ms'",
        "what-if": "a table of its own next to one result",
        "launch": "a whole command line: what its flags set are axes",
    },
}  # fmt: skip
_KINDS = {"profile": ("profile", "training"), "serve": ("serve", "decode")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    for name, config in CONFIGS.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name, text in PROGRAMS.items():
        (place / f"{name}.py").write_text(text, encoding="utf-8")
    for name, row in (("a", "0,16,8"), ("b", "0,32,8")):
        (place / f"{name}.csv").write_text(f"arrival_s,prompt_tokens,generated_tokens\n{row}\n", encoding="utf-8")
    return place


def _write_onnx(path):
    from tests.unit.onnx_files import given, node, result, save

    save(path, [node("y = Relu(x)")], [given("x", "batch", 64)], [result("y")])


def test_every_option_is_in_a_table_of_axes_or_has_a_reason():
    for kind in KINDS.values():
        assert set(AXES[kind.name]) == set(kind.options), kind.name
    for name, command in {"profile": profile, "serve": serve}.items():
        axes = {option for kind in _KINDS[name] for option in KINDS[kind].options}
        flags = {opt.removeprefix("--"): param for param in command.params if isinstance(param, click.Option)
                 for opt in param.opts if opt.startswith("--")}  # fmt: skip
        keywords = {flag: _KEYWORDS.get(flag.replace("-", "_"), flag.replace("-", "_")) for flag in flags}
        assert {flag for flag, key in keywords.items() if key not in axes} == set(NO_AXES[name]), name


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "option"), [(kind, option) for kind, own in AXES.items() for option in own])
def test_an_option_is_an_axis(kind, option, folder, monkeypatch):
    """Both values are points with results; two numbers or names make different ones, but where they need not."""
    from memwall.sweeping.axes import Space
    from memwall.sweeping.run import Question, run

    monkeypatch.chdir(folder)
    monkeypatch.setenv("MEMWALL_CACHE", str(folder / "cache"))
    values, *others = AXES[kind][option].split()
    target = next((word[1:] for word in others if word.startswith("@")), "llama")
    if target.endswith(".onnx"):
        _write_onnx(folder / target)
    elif target in CONFIGS:
        target = f"hf:{target}"
    else:
        target = f"{target}.py"
    flag = {"input_specs": "input", "dims": "dim", "replay": "no_replay"}.get(option, option)
    set_ones = [word for word in others if not word.startswith("@")]
    spaces = [Space(target, parse_axes([f"{flag}={values}", *set_ones], KINDS[kind]))]
    prices = {"h100-sxm": 2.0} if option == "spot" else {}
    frame = run(spaces, Question(kind=KINDS[kind], workers=0, prices=prices)).frame
    assert frame["error"].tolist() == ["", ""] and frame[option].nunique(dropna=False) == 2 and frame["id"].is_unique
