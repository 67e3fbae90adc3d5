"""Steps with a cache: prefill and decode from configurations and from model files, against hand arithmetic."""

import dataclasses
import json
import re
import sys

import pytest
import torch

import memwall
from memwall.core.errors import UsageError
from memwall.frontend.torch.values.kv_caches import is_of_cache
from tests.unit.configs import LLAMA, WHISPER

pytest.importorskip("transformers", reason="transformers is not installed")

#: keys and values of one token in one layer of Llama-3-8B: 2 of 8 heads of 128 in bfloat16
PER_LAYER = 2 * 8 * 128 * 2
#: two layers of it, small: 4 heads of 16, of which 2 hold keys and values
SMALL = LLAMA | {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip


def roles(profile) -> dict[str, int]:
    return profile.graph.role_bytes


def of(profile, role):
    return [s for s in profile.graph.storages if s.role == role]


def test_a_decode_step_of_llama_3_8b(save):
    profile = memwall.profile(save(LLAMA), mode="decode", batch=32, context=4096, gpu="h100")
    cache = 32 * 4096 * 32 * PER_LAYER
    assert cache == 17_179_869_184
    assert roles(profile)["kv_cache"] == cache
    # transformers' dynamic cache copies: each layer reads what is there, writes one token more, and attention reads it
    grown = 32 * 4097 * 32 * PER_LAYER
    assert roles(profile)["kv_made"] == grown
    copies = [op for op in profile.graph.ops if op.name == "aten.cat" and op.module.endswith("self_attn")]
    values = profile.graph.values
    written = sum(values[i].spec.nbytes for op in copies for i in op.outputs if values[i].spec.shape[2] == 4097)
    assert written == grown
    # of 8,030,261,248 weights the embedding of 128,256 x 4,096 gives 32 rows
    read = {values[i].storage for op in profile.graph.ops for i in op.inputs}
    weights = sum(s.nbytes for s in of(profile, "parameter") if s.id in read and "embed" not in s.name)
    assert weights == 2 * (8_030_261_248 - 128_256 * 4_096)
    assert weights + 32 * 4096 * 2 == pytest.approx(15.01e9, rel=1e-3)
    # old keys are freed when they are copied: at the peak one tensor of one layer is there twice
    memory = profile.simulations[0].memory
    assert memory.kv_cache == pytest.approx(grown + cache / 64, rel=1e-4)
    assert profile.workload.mode == "decode"


def test_a_prefill_fills_the_cache_and_makes_logits_of_the_last_position(save):
    profile = memwall.profile(save(SMALL), mode="prefill", batch=3, prompt=32, gpu="h100")
    assert roles(profile)["kv_cache"] == 0
    # the cache is made in the step and is there after it: 2 layers, 2 of 2 heads of 16, bfloat16
    assert roles(profile)["kv_made"] == 3 * 32 * 2 * (2 * 2 * 16 * 2)
    assert profile.simulations[0].memory.kv_cache == roles(profile)["kv_made"]
    (head,) = [op for op in profile.graph.ops if op.module == "lm_head"]
    assert profile.graph.values[head.outputs[0]].spec.numel == 3 * 256


def test_a_prompt_after_others_reads_their_keys(save):
    profile = memwall.profile(save(SMALL), mode="prefill", batch=3, prompt=8, context=24, gpu="h100")
    assert roles(profile)["kv_cache"] == 3 * 24 * 2 * (2 * 2 * 16 * 2)
    assert roles(profile)["kv_made"] == 3 * 32 * 2 * (2 * 2 * 16 * 2)


def test_a_window_holds_no_more_than_it_sees(save):
    mistral = SMALL | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16}
    profile = memwall.profile(save(mistral), mode="decode", context=40, gpu="h100")
    token = 2 * (2 * 2 * 16 * 2)
    assert roles(profile)["kv_made"] == 16 * token
    # what the prompt left is a view: 15 tokens of each of two heads, which lie 40 tokens apart
    lists = sum(s.nbytes for s in of(profile, "kv_cache") if s.name.endswith(("keys", "values")))
    assert lists == 2 * 2 * (40 + 15) * 16 * 2


def test_states_of_a_recurrence_do_not_grow(save):
    mamba = {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2,
        "num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": 1, "vocab_size": 256, "conv_kernel": 4,
        "expand": 2, "chunk_size": 16, "dtype": "float32",
    }  # fmt: skip
    short, long = (
        memwall.profile(save(mamba), mode="decode", batch=2, context=n, gpu="h100").graph.role_bytes for n in (8, 48)
    )
    assert short["kv_cache"] == long["kv_cache"]
    # 8 heads of 16 x 32 states, and 4 columns of 128 + 2 x 32 channels, in 2 layers for 2 samples, float32
    assert short["kv_cache"] == 2 * 2 * 4 * (8 * 16 * 32 + 4 * (128 + 2 * 32))


T5 = {
    "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128,
    "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 256, "is_encoder_decoder": True,
    "dtype": "bfloat16",
}  # fmt: skip
BART = {
    "architectures": ["BartForConditionalGeneration"], "model_type": "bart", "d_model": 64, "encoder_layers": 2,
    "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "vocab_size": 256, "max_position_embeddings": 128, "dtype": "bfloat16",
}  # fmt: skip


def test_a_decode_step_of_whisper_reads_the_keys_of_the_sound_and_writes_none(save):
    profile = memwall.profile(save(WHISPER), mode="decode", batch=3, context=100, gpu="h100")
    cross = 2 * 2 * 1500 * 1280 * 2
    assert cross == 15_360_000
    assert roles(profile)["kv_cache"] == 3 * (cross + 2 * 2 * 100 * 1280 * 2)
    assert roles(profile)["kv_made"] == 3 * 2 * 2 * 101 * 1280 * 2  # of the text alone
    assert not [op for op in profile.graph.ops if op.module.startswith("model.encoder")]


def test_a_prompt_of_whisper_runs_the_encoder(save):
    profile = memwall.profile(save(WHISPER), mode="prefill", gpu="h100")
    assert roles(profile)["kv_made"] == 2 * 2 * (1500 + 4) * 1280 * 2
    # 2 layers with 12 x 1280^2 weights for each of 1,500 columns, keys of all of them, two convolutions; the keys and
    # values of 2 decoder layers, and four tokens through 2 layers of 14 x 1280^2 and the head
    encoder = 1500 * 2 * (12 * 1280**2 + 2 * 1500 * 1280) + 3 * 1280 * (3000 * 128 + 1500 * 1280)
    decoder = 2 * 2 * 1500 * 1280**2 + 4 * (2 * (14 * 1280**2 + 2 * 1502 * 1280) + 51866 * 1280)
    assert profile.model_flops == pytest.approx(2 * (encoder + decoder), rel=1e-3)


@pytest.mark.parametrize("fields", [T5, BART])
def test_the_encoder_reads_the_prompt(save, fields):
    decode = memwall.profile(save(fields), mode="decode", batch=2, prompt=40, context=10, gpu="h100")
    token = 3 * 2 * 64 * 2  # keys and values of three layers
    assert roles(decode)["kv_cache"] == 2 * (40 + 10) * token
    assert roles(decode)["kv_made"] == 2 * 11 * token
    prefill = memwall.profile(save(fields), mode="prefill", batch=2, prompt=40, gpu="h100")
    assert roles(prefill)["kv_made"] == 2 * (40 + 1) * token
    assert roles(prefill)["input"] == 2 * (40 + 1) * 8
    assert any("the encoder reads 40 tokens" in note for note in prefill.notes)


@pytest.mark.parametrize(
    ("fields", "given", "said"),
    [
        (WHISPER, {"mode": "decode", "context": 448}, "--context 447 is the most"),
        (WHISPER, {"mode": "prefill", "prompt": 449}, "--prompt 448 is the most"),
        (WHISPER, {"mode": "decode", "prompt": 8}, "--context says how many are in the cache"),
        (BART, {"mode": "prefill", "prompt": 129}, "129 tokens are beyond the 128 positions of the encoder"),
        (BART, {"mode": "prefill", "prompt": 8, "context": 3}, "is read by its encoder, which keeps no cache"),
        (BART, {"mode": "decode", "context": 128}, "--context 127 is the most"),
    ],
)
def test_what_no_step_of_an_encoder_decoder_can_be(save, fields, given, said):
    with pytest.raises(UsageError, match=said):
        memwall.profile(save(fields), gpu="h100", **given)


FILE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)
    def forward(self, x, cache=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = torch.cat((cache["k"], k), 1), torch.cat((cache["v"], v), 1)
        out = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return out, {"k": k, "v": v}

def model():
    return Net()

def inputs(batch=2, seq=16):
    return {"x": torch.randn(batch, seq, 64)}
"""
DECODE = """
def decode_inputs(batch=2, context=16):
    kept = lambda: torch.randn(batch, context, 64)
    return {"x": torch.randn(batch, 1, 64), "cache": {"k": kept(), "v": kept()}}
"""


def test_a_file_says_what_a_step_is_given(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(FILE + DECODE, encoding="utf-8")
    decode = memwall.profile(str(path), mode="decode", batch=4, context=100, gpu="h100")
    assert roles(decode)["kv_cache"] == 2 * 4 * 100 * 64 * 4
    assert roles(decode)["input"] == 4 * 64 * 4
    # the length of a prompt is the seq of inputs()
    prefill = memwall.profile(str(path), mode="prefill", prompt=32, gpu="h100")
    assert roles(prefill)["input"] == 2 * 32 * 64 * 4
    path.write_text(FILE, encoding="utf-8")
    with pytest.raises(UsageError, match=r"has no decode_inputs\(\); add 'def decode_inputs\(batch=1, context=1024\)'"):
        memwall.profile(str(path), mode="decode", gpu="h100")


WORKLOAD = """
import memwall

def workload(batch=2, context=16, mode="decode"):
    given = _inputs(batch, 32) if mode == "prefill" else _decode_inputs(batch, context)
    return memwall.Workload(Net, given)
"""


def test_a_workload_is_told_the_mode(tmp_path):
    path = tmp_path / "net.py"
    text = (FILE + DECODE).replace("def model()", "def _model()")
    path.write_text(re.sub(r"def (\w*inputs)", r"def _\1", text) + WORKLOAD, encoding="utf-8")
    decode = memwall.profile(str(path), mode="decode", batch=4, context=100, gpu="h100")
    assert roles(decode)["kv_cache"] == 2 * 4 * 100 * 64 * 4
    assert decode.capture["serving"] == {"context": 100}
    prefill = memwall.profile(str(path), mode="prefill", batch=3, gpu="h100")
    assert roles(prefill)["input"] == 3 * 32 * 64 * 4 and not roles(prefill)["kv_cache"]


@pytest.mark.parametrize("place", ["config.json", "generation_config.json"])
def test_a_static_cache_is_read_whole(save, tmp_path, place):
    """A buffer of 48 tokens, of which 16 are there: attention reads all, masked, and nothing is copied."""
    asked = {"cache_implementation": "static", "max_cache_len": 48}
    target = save(SMALL | (asked if place == "config.json" else {}))
    (tmp_path / "generation_config.json").write_text(json.dumps(asked if place != "config.json" else {}), "utf-8")
    decode = memwall.profile(target, mode="decode", batch=3, context=16, gpu="h100", policy=["eager", "server"])
    token = 2 * (2 * 2 * 16 * 2)
    assert roles(decode)["kv_cache"] == 3 * 48 * token and not roles(decode).get("kv_made")
    attention = [cost for op, cost in zip(decode.graph.ops, decode.costs[0], strict=True) if op.op_class == "attention"]
    assert len(attention) == 2
    assert sum(cost.read_bytes for cost in attention) > 3 * 48 * token
    assert decode.graph.role_bytes["kv_cache"] == decode.simulations[0].memory.kv_cache
    assert any("a buffer of 48 tokens, all of which attention reads" in note for note in decode.notes)
    # a prompt is written into the buffer
    prefill = memwall.profile(target, mode="prefill", batch=3, prompt=20, gpu="h100")
    assert roles(prefill)["kv_made"] == 3 * 48 * token
    # what a server would run is the same model
    dynamic = memwall.profile(save(SMALL), mode="decode", batch=3, context=16, gpu="h100")
    (tmp_path / "generation_config.json").write_text("{}", "utf-8")
    from memwall.serving.steps import Layout, served

    assert served(decode.graph).kv_bytes(40, Layout()) == served(dynamic.graph).kv_bytes(40, Layout()) == 40 * token


def test_caches_of_other_kinds_are_refused(save):
    with pytest.raises(UsageError, match="cache_implementation is 'quantized'; static and dynamic are modeled"):
        memwall.profile(save(SMALL | {"cache_implementation": "quantized"}), mode="decode", context=16, gpu="h100")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mode": "decode", "context": 64}, "64 tokens in the cache and 1 more are beyond the 64 positions"),
        ({"mode": "prefill", "prompt": 65}, "--prompt 64 is the most"),
        ({"mode": "prefill", "prompt": 8, "context": 70}, "--context 63 is the most"),
        ({"mode": "decode", "input_specs": ["i64[1,1]"]}, "--input makes no cache"),
        ({"mode": "decode", "prompt": 8}, "--context says how many are in the cache"),
        ({"mode": "decode", "seq": 8}, "--seq has no meaning in --mode decode; give --context"),
        ({"mode": "inference", "context": 8}, "--context is of --mode prefill and --mode decode"),
    ],
)
def test_what_no_step_can_be(save, given, said):
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        memwall.profile(save(SMALL), gpu="h100", **given)


def test_models_without_a_cache_have_no_such_step(save):
    bert = {"architectures": ["BertModel"], "model_type": "bert", "num_hidden_layers": 1}
    with pytest.raises(UsageError, match="no cache is found among what forward of BertForSequenceClassification"):
        memwall.profile(save({**bert, "architectures": ["BertForSequenceClassification"]}), mode="decode", gpu="h100")


@pytest.fixture
def added(monkeypatch, save):
    """``added(kind)``: the target of a small configuration of a class that is added to transformers."""

    def add(kind):
        # not what a test imported: transformers puts another module in its own place when it first imports a model
        monkeypatch.setattr(sys.modules["transformers"], kind.__name__, kind, raising=False)
        return save(SMALL | {"architectures": [kind.__name__]})

    return add


@pytest.mark.defect("1")
def test_a_cache_is_found_by_what_it_is(added):
    """The parameter of a cache was looked up in a list of two names, and transformers 5.24 took a third.

    Two layers of 2 heads of 16, keys and values in bfloat16, for 3 samples of 24 tokens, and one token more.
    """
    from transformers import LlamaForCausalLM
    from transformers.cache_utils import Cache
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.utils import ModelOutput

    (theirs,) = {"past_key_values", "cache"} & {field.name for field in dataclasses.fields(CausalLMOutputWithPast)}

    @dataclasses.dataclass
    class Output(ModelOutput):
        logits: torch.Tensor | None = None
        remembered: Cache | None = None

    class RememberingForCausalLM(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, use_cache: bool | None = None, remembered: Cache | None = None,
                    logits_to_keep: int = 0) -> tuple | Output:  # fmt: skip
            given = {"use_cache": use_cache, "logits_to_keep": logits_to_keep, theirs: remembered}
            made = super().forward(input_ids, **given)
            return Output(logits=made.logits, remembered=getattr(made, theirs))

    profile = memwall.profile(added(RememberingForCausalLM), mode="decode", batch=3, context=24, gpu="h100")
    token = 2 * (2 * 2 * 16 * 2)
    assert roles(profile)["kv_cache"] == 3 * 24 * token and roles(profile)["kv_made"] == 3 * 25 * token
    (step,) = (note for note in profile.notes if "new token" in note)
    assert step == "1 new token for each of 3 samples, 24 tokens each in the cache"


@pytest.mark.defect("1")
def test_a_cache_that_is_not_found_is_not_said_to_be_none(added):
    """A model whose cache has an unknown name was said to keep none."""
    from transformers import LlamaForCausalLM

    class ForgettingForCausalLM(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return super().forward(input_ids).logits

    with pytest.raises(UsageError, match="no cache is found among what forward of ForgettingForCausalLM takes"):
        memwall.profile(added(ForgettingForCausalLM), mode="decode", gpu="h100")


def test_the_page_names_the_step(save):
    from memwall.report import render

    profile = memwall.profile(save(SMALL), mode="decode", context=16, gpu="h100")
    page = " ".join(render(profile, "text").split())
    assert "1 new token for each of 1 sample, 16 tokens each in the cache" in page
    assert "kv cache" in page and "in the decode step" in page
    assert {row.phase for row in memwall_rows(profile)} == {"decode"}


def memwall_rows(profile):
    from memwall.analysis.table import kernel_rows

    return kernel_rows(profile, profile.simulations[0])


def test_the_step_is_kept_and_planned(save, tmp_path):
    profile = memwall.profile(save(SMALL), mode="decode", context=16, gpu="h100", policy=["eager", "memwall", "ideal"])
    eager, planned, ideal = (s.totals for s in profile.simulations)
    assert ideal.dram_bytes <= planned.dram_bytes <= eager.dram_bytes
    profile.save(tmp_path / "step.json")
    again = memwall.Profile.load(tmp_path / "step.json")
    assert again.workload.mode == "decode" and again.simulations[0].memory == profile.simulations[0].memory


def test_nothing_of_the_callers_changes():
    """A cache that the caller holds is copied for the trace."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(**{k: v for k, v in SMALL.items() if k not in ("architectures", "model_type")})
    with torch.device("meta"):
        model = LlamaForCausalLM(settings)
    cache = DynamicCache(config=settings)
    for layer in range(2):
        cache.update(torch.zeros(1, 2, 8, 16), torch.zeros(1, 2, 8, 16), layer)
    ids = torch.zeros(1, 1, dtype=torch.long)
    profile = memwall.profile(model, {"input_ids": ids, "past_key_values": cache}, mode="decode", gpu="h100")
    assert roles(profile)["kv_cache"] == 2 * 2 * 2 * 8 * 16 * 4
    assert cache.get_seq_length() == 8


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("input.past_key_values.layers.0.keys", True), ("input.kv_cache.3", True), ("mems.1", True), ("input.past", True),
     ("layer_past.0", True), ("input.cache_position", False), ("input.past_values", False),
     ("input.past_time_features", False), ("input.past_observed_mask", False), ("input.cached_table", False)],
)  # fmt: skip
def test_a_cache_is_known_by_its_name(path, wanted):
    assert is_of_cache(path) is wanted


#: 64 experts of 3 matrices [256, 512] in bfloat16, 4 of them for each token
MIXTURE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 512,
    "moe_intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 2,
    "head_dim": 64, "num_experts": 64, "num_experts_per_tok": 4, "vocab_size": 1024, "dtype": "bfloat16",
}  # fmt: skip
EXPERT = 3 * 256 * 512 * 2


def of_experts(profile) -> list[tuple[int, int]]:
    """Of each op with experts' weights the bytes that it reads of them, and those that any run reads."""
    graph, found = profile.graph, []
    for op, cost in zip(graph.ops, profile.costs[0], strict=True):
        values = [graph.values[i] for i in op.inputs]
        names = [graph.storages[value.storage].name for value in values]
        if any(".experts." in name for name in names) and op.phase != "optimizer":
            others = sum(v.spec.nbytes for v, name in zip(values, names, strict=True) if ".experts." not in name)
            found.append((cost.read_bytes - others, cost.least_read_bytes - others))
    return found


@pytest.mark.defect("19b")
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_a_decode_step_reads_the_experts_that_tokens_choose(save, batch):
    """A decode step of a mixture was billed the weights of every expert, of which its tokens choose a few."""
    profile = memwall.profile(
        save(MIXTURE), mode="decode", batch=batch, context=16, gpu="h100", policy=["eager", "server"]
    )
    read, least = (sum(column) for column in zip(*of_experts(profile), strict=True))
    # 64 (1 - (60/64)^batch) by chance: 4, 25.8, 62.97; tokens may choose the same 4
    assert (read, least) == ({1: 4, 8: 26, 64: 63}[batch] * EXPERT, 4 * EXPERT)
    plan = profile.schedule(profile.gpus[0], "server").plan
    served = [work for group in plan.groups for work in group.cost.launches if hasattr(work, "expert_bytes")]
    assert sum(work.active * work.expert_bytes for work in served) == pytest.approx(read, rel=0.05)
    eager, server = (simulation.totals for simulation in profile.simulations)
    assert eager.bound_s < server.time_s
    assert any("experts=balanced" in note for note in profile.notes) == (batch > 1)


@pytest.mark.defect("19b")
def test_a_gpu_without_a_grouped_product_says_so(save):
    """The grouped product of a mixture was modeled on GPUs that torch has none for, without a word."""
    from memwall.analysis.dtypes import emulations

    profile = memwall.profile(save(MIXTURE), mode="decode", batch=2, context=16, gpu=["h100", "a100", "v100", "p100"])
    said = [any("no grouped matmul" in text for text in emulations(profile, each)) for each in profile.simulations]
    assert said == [False, True, True, True]


@pytest.mark.defect("19b")
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_a_gpu_without_a_grouped_product_multiplies_expert_by_expert(mode):
    """The experts of a mixture had no formula on GPUs for which transformers multiplies expert by expert: no FLOPs,
    and the bytes of all of them."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**MIXTURE)).to(torch.bfloat16)
    tokens = {"input_ids": torch.zeros(8, 1, dtype=torch.long)}
    profile = memwall.profile(model, tokens, gpu="v100", mode=mode, loss=lambda output: output.logits.sum())
    assert "transformers.grouped_mm_fallback" not in profile.coverage.unmodeled
    passes = 2 if mode == "training" else 1
    assert sum(read for read, _ in of_experts(profile)) == pytest.approx(passes * 26 * EXPERT, rel=0.01)
    ran = [cost for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True) if "fallback" in op.name]
    # 8 tokens of 4 experts with 3 matrices [256, 512], in backward two products of each; a launch for 26 experts,
    # and one of zeros for each result
    forward = 2 * 8 * 4 * 3 * 256 * 512
    assert sum(cost.total_flops for cost in ran) == forward * {1: 1, 2: 3}[passes]
    assert [len(cost.launches) for cost in ran] == [27, 27, 54, 54][: 2 * passes]


@pytest.mark.defect("19b")
def test_a_server_reads_the_experts_that_an_assumption_names(save):
    """The server policy billed experts that tokens choose by chance, whatever the user assumed of the choice."""
    profile = memwall.profile(
        save(MIXTURE), mode="decode", batch=8, context=16, gpu="h100", policy="server", assume="experts=same"
    )
    plan = profile.schedule(profile.gpus[0], "server").plan
    (served,) = [work for group in plan.groups for work in group.cost.launches if hasattr(work, "expert_bytes")]
    # 8 tokens have the same 4 of 64 experts: 8 rows each
    assert (served.active * served.expert_bytes, served.loads) == (4 * EXPERT, ((8, 4),))


@pytest.mark.defect("19b")
@pytest.mark.parametrize(("form", "mode"), [
    ("grouped_mm", "inference"), ("grouped_mm", "training"), ("batched_mm", "training"), ("eager", "training"),
])  # fmt: skip
def test_every_form_of_experts_reads_those_that_are_chosen(form, mode):
    """One form of a mixture's experts read all weights, another those that were chosen in turn."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(**MIXTURE, experts_implementation=form)
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(config).to(torch.bfloat16)
    tokens = {"input_ids": torch.zeros(8, 1, dtype=torch.long)}
    profile = memwall.profile(model, tokens, gpu="h100", mode=mode, loss=lambda output: output.logits.sum())
    # 26 of 64 experts, of 8 tokens; the gradient of the rows reads them again, but for those that were copied
    passes = 2 if mode == "training" and form != "batched_mm" else 1
    assert sum(read for read, _ in of_experts(profile)) == pytest.approx(passes * 26 * EXPERT, rel=0.01)


#: three layers of RecurrentGemma, the last of which attends: 4 heads of 16, one of keys and values
RECURRENT = {
    "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", "hidden_size": 64,
    "lru_width": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 192, "vocab_size": 256, "torch_dtype": "float32",
}  # fmt: skip
#: two layers of FalconMamba: 128 channels with 16 numbers of state and 4 of a window each
MAMBA = {
    "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "hidden_size": 64, "state_size": 16,
    "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 256, "conv_kernel": 4, "time_step_rank": 4,
    "torch_dtype": "float32",
}  # fmt: skip


@pytest.mark.defect("39b")
def test_a_cache_that_a_model_changes_in_place(save):
    """A model that hands its cache back in no output was refused a decode step: it "leaves no past_key_values"."""
    made = [memwall.profile(save(RECURRENT), mode="decode", batch=2, context=context) for context in (24, 48)]
    # keys and values of the layer that attends
    assert [roles(each)["kv_cache"] for each in made] == [2 * 2 * 24 * 16 * 4, 2 * 2 * 48 * 16 * 4]
    assert len(made[0].graph.ops) == len(made[1].graph.ops)  # one step, whatever was before


@pytest.mark.defect("39b")
@pytest.mark.parametrize("config", [MAMBA, RECURRENT])
def test_what_the_call_before_a_step_loops_over_counts_as_none(save, config):
    """The call that fills the states went over all of its tokens in Python, which took minutes or passed the most ops
    that a trace may have."""
    made = memwall.profile(save(config), mode="decode", batch=2, context=1000, max_ops=900)
    if config is MAMBA:
        assert roles(made)["kv_cache"] == 2 * 2 * 128 * (16 + 4) * 4
    assert all(op.phase == "forward" for op in made.graph.ops)


@pytest.mark.defect("39b")
def test_a_trace_that_is_too_long_names_no_option_that_a_command_lacks(save):
    """memwall serve advised --max-ops, which it does not have."""
    with pytest.raises(
        UsageError, match=r"shorten the sequence \(--seq, --prompt or --context\).*of memwall profile\)$"
    ):
        memwall.profile(save(MAMBA), mode="prefill", prompt=1000, max_ops=900)
