"""What holds with the oldest and the newest versions of libraries alike: ``make test-oldest``, ``make test-newest``.

Commands that read, write and draw run once on real inputs, and ``hf:`` in all modes for families of models that people
have. Other tests of the selection are marked ``versions`` where they lie: a capture, Inductor's groups, a kernel
compiled ahead and one in Triton's interpreter, a sweep with Dask.
"""

import json
import re
from typing import Any

import pytest

import memwall
from tests.unit.configs import target_of
from tests.unit.places import ROOT

pytestmark = pytest.mark.versions
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

#: two layers of 4 heads of 16
BASE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 128, "dtype": "bfloat16",
}  # fmt: skip
TWO_OF_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 16},
    "qwen3_moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "norm_topk_prob": True,
    },
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
    "mixtral": {"architectures": ["MixtralForCausalLM"], **TWO_OF_EIGHT},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 32},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 16, "sliding_window": 32,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
        "vocab_size": 256, "dtype": "bfloat16",
    },
    "phi3": {"architectures": ["Phi3ForCausalLM"], "pad_token_id": 0},
    "deepseek_v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 16,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {"architectures": ["GptOssForCausalLM"], "head_dim": 16, "sliding_window": 32, **TWO_OF_EIGHT},
    "bert": {"architectures": ["BertForMaskedLM"]},
}  # fmt: skip
SERVED = [name for name in FAMILIES if name != "bert"]
SIZES = {
    "inference": {"batch": 2, "seq": 48}, "training": {"batch": 2, "seq": 48}, "prefill": {"batch": 2, "prompt": 48},
    "decode": {"batch": 2, "context": 48},
}  # fmt: skip
LOAD = ("--gpu", "h100", "--prompt", "32", "--generate", "8")


@pytest.fixture
def hf(tmp_path):
    """``hf("llama")``: the target of a folder with that family's configuration."""

    def make(name: str) -> str:
        base = {} if name == "gpt2" else BASE
        return target_of(tmp_path / name, {"model_type": name, **base, **FAMILIES[name]})

    return make


#: cause of a difference between versions of transformers → the modules whose ops show it; the rest of a model is equal.
#: 4.56 makes the angles of rotary tables by a product of matrices, and Gemma 3's two tables apart;
#: counts positions from the length of the cache, and builds masks of windows, and Gemma's scale, by other ops;
#: copies keys and values to all heads under a mask, leaves Gemma 2's caps out, keeps DeepSeek's keys, not its latents;
#: runs one expert after another, GPT-OSS's all of them; BERT's embeddings read their types otherwise
PLACES = {
    "rotary tables": r"rotary_emb",
    "attention": r"(self_attn|\.attn|self_attn\.kv_b_proj)$",
    "experts": r"\.(mlp|block_sparse_moe)(\.(experts|gate|router)\b.*)?$",
    "embeddings": r"(embed_tokens|bert\.embeddings)$",
    "positions and masks": r"^(model|transformer|bert)$",
    "optimizer": r"^optimizer$",
    "rest": "",
}


def places(profile: memwall.Profile) -> dict[str, list[int]]:
    """Ops, FLOPs and compulsory bytes of each of PLACES that has ops."""
    found: dict[str, list[int]] = {}
    for op, cost in zip(profile.graph.ops, profile.costs[0], strict=True):
        place = next(name for name, pattern in PLACES.items() if re.search(pattern, op.module))
        before = found.get(place, [0, 0, 0])
        found[place] = [n + more for n, more in zip(before, (1, cost.total_flops, cost.bytes), strict=True)]
    return found


def stated(name: str) -> dict[str, Any]:
    """What is counted for a family, as the file states it: a value, or the values by the version since when."""
    return json.loads((ROOT / "tests/golden/versions.json").read_text(encoding="utf-8"))[name]


def known(name: str) -> dict[str, Any]:
    """What is counted for a family with the installed transformers."""
    here = _version(transformers.__version__)

    def now(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if not all(key[0].isdigit() for key in value):
            return {key: found for key, each in value.items() if (found := now(each)) is not None}
        return value[max((since for since in value if _version(since) <= here), key=_version)]

    return now(stated(name))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2])


def weights_products(profile: memwall.Profile) -> int:
    """FLOPs of products with weights, whatever attention, masks and rotary tables are made of."""
    graph = profile.graph
    weights = {storage.id for storage in graph.storages if storage.role == "parameter"}
    return sum(
        sum(cost.flops.values())
        for op, cost in zip(graph.ops, profile.costs[0], strict=True)
        if op.op_class == "contraction" and any(graph.values[i].storage in weights for i in op.inputs)
    )


@pytest.mark.defect("1", "2")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_same_weights_caches_and_products(hf, name):
    """No version but the pinned one was ever run, so that a renamed argument of transformers was seen by users first.

    Of Llama by hand: 2 bytes of 2 * 256 * 64 embedding and head, 64 norm and 2 layers of 2 * 64 * 64 + 2 * 64 * 32
    + 3 * 64 * 128 + 2 * 64 are 213,632; keys and values of 48 tokens of 2 samples in 2 layers of 2 heads of 16 are
    24,576; a token's products are 2 * (2 * 36,864 + 16,384).
    """
    found: dict[str, Any] = {}
    for mode, sizes in SIZES.items():
        if name == "bert" and mode in ("prefill", "decode"):
            continue
        # on kernels that no newer torch changes: what libraries record is compared
        profile = memwall.profile(hf(name), mode=mode, gpu="h100", torch="2.9", **sizes)
        roles = profile.graph.role_bytes
        found |= {"weights": roles["parameter"], mode: weights_products(profile), f"{mode} in": places(profile)}
        found |= {"prefill": {"filled": roles.get("kv_made")}, "decode": {"cache": roles.get("kv_cache")}}.get(mode, {})
    assert found == known(name)
    if name == "llama":
        assert found["weights"] == 213_632 and found["cache"] == found["filled"] == 24_576
        assert found["decode"] == 2 * 2 * (2 * 36_864 + 16_384)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_versions_change_has_a_cause_and_spares_weights_caches_and_products(name):
    """Of the file: which modules of a family run other ops in another version, and that the rest is equal."""
    said = stated(name)
    whole = {key for key, value in said.items() if isinstance(value, dict) and not key.endswith(" in")}
    if name == "gpt_oss":  # 4.56 ran all experts on all tokens
        assert whole == {"inference", "prefill", "decode"}
    elif name == "deepseek_v3":  # latents are kept since 5.23, and the gate is of float32 since 5.24
        assert whole == {"weights", "filled", "cache", "inference", "training", "prefill", "decode"}
    else:
        assert whole == set()
    parts = [part for key, value in said.items() if key.endswith(" in") for part in value.items()]
    differing = {place for place, value in parts if isinstance(value, dict)}
    causes = {"positions and masks", *(() if name in ("gpt2", "bert") else ("rotary tables",))}
    causes |= {"experts"} if name in ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss") else set()
    causes |= {"attention"} if name in ("mistral", "gemma2", "gemma3", "deepseek_v3", "gpt_oss") else set()
    causes |= {"embeddings"} if name in ("gemma2", "bert") else set()
    causes |= {"optimizer"} if name == "deepseek_v3" else set()
    assert differing == causes and {place for place, _ in parts} > differing


@pytest.mark.parametrize("name", SERVED)
def test_a_family_is_served_searched_and_swept(hf, run, name):
    """The cache of every model was said not to be there under transformers 5.24, by each command that serves one."""
    served = run("serve", hf(name), *LOAD, "--json")
    assert served.code == 0, served.err
    token = json.loads(served.out)["kv_bytes_per_token"]
    if name == "llama":
        assert token == 2 * 2 * 2 * 16 * 2
    if name == "deepseek_v3":  # of 2 layers: 16 numbers of the latent and 8 that rotate
        assert token == 2 * (16 + 8) * 2
    if name not in ("llama", "deepseek_v3"):  # what the others ask is what a server does
        return
    searched = run("search", hf(name), *LOAD, "--gpus", "1", "--concurrency", "2", "--json")
    assert searched.code == 0, searched.err
    assert {row["kv_bytes_per_token"] for row in json.loads(searched.out)["simulated"]} == {token}
    swept = memwall.sweep(hf(name), {"batch": [1, 2], "context": [48], "gpu": ["h100"]}, of="decode", workers=0)
    assert len(swept) == 2 and swept["time_s"].gt(0).all()


def test_commands_run(run, gates, folder, monkeypatch):
    """The versions that ``pip install`` takes, and the oldest that are promised, were run by nobody."""
    from memwall.cli import COMMANDS

    monkeypatch.setenv("MEMWALL_CACHE", str(folder / "cache"))
    made = ("-o", "page.html", "-o", "page.md", "-o", "roofline.png", "-o", "step.json", "-o", "rows.csv")
    commands = (
        ("profile", "net.py", "--gpu", "a100", "h100", "--mode", "training", *made),
        ("compare", "--gpu", "v100", "h100"),
        ("report", "step.json", "-o", "again.html"), ("fuse", "net.py", "--policy", "memwall", "-o", "fused.md"),
        ("sweep", "net.py", "--vary", "batch=1,2", "gpu=a100,h100", "--no-cache", "-o", "points.parquet"),
        ("gate", "net.py", "--gpu", "h100", "--limit", "kernels=9", "-o", "junit.xml"),
        ("measure", "net.py", "--device", "cpu", "--executor", "eager", "--samples", "1", "--gpu", "h100",
         "-o", "measured.json", "--record", "runs"),
        ("drift", "runs"), ("bound", "mm(bf16[64,64], bf16[64,64])", "--gpu", "h100", "--measured", "5us"),
        ("accuracy", "measured.json"), ("comm", "--cluster", "dgx-h100", "--max", "2K"), ("ops", "contraction"),
        ("gpus", "h100"), ("clusters", "dgx-h100"), ("cache",), ("open", ".", "-o", "index.html"),
    )  # fmt: skip
    elsewhere = {"serve", "search", "calibrate", "mcp"}  # above, and in test_calibrate.py and test_mcp.py
    assert {words[0] for words in commands} | elsewhere == {*COMMANDS}
    for words in commands:
        with gates.shared():
            done = run(*words)
        assert done.code == 0, (words, done.err)
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "points.parquet").read_bytes().startswith(b"PAR1")
