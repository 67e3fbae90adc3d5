"""``memwall serve``: what it prints, writes and refuses."""

import json
import re

import pytest

from memwall.hardware.engine import engine_host
from tests.unit.configs import SHORT_LLAMA, WHISPER, target_of
from tests.unit.gating import run_here

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def traced(tmp_path):
    """The configuration of a model, which is traced wherever it is served."""
    return target_of(tmp_path / "llama", SHORT_LLAMA)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Its decode step, traced once and saved."""
    folder = tmp_path_factory.mktemp("model")
    target = target_of(folder / "llama", SHORT_LLAMA)
    words = ("--mode", "decode", "--batch", "2", "--context", "8191", "-o", "llama.json")
    assert run_here(folder, "profile", target, *words)[0] == 0
    return str(folder / "llama.json")


@pytest.fixture(scope="module")
def slow_cpu(tmp_path_factory):
    """vLLM of a version, with a CPU that takes 0.1 ms to launch a kernel."""
    path = tmp_path_factory.mktemp("engine") / "slow.toml"
    path.write_text('schema = "memwall.engine/1"\nbase = "vllm@0.12"\nlaunch_s = 1e-4\n', encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def answer(model, tmp_path_factory):
    """What a server of one client does, as JSON."""
    return run_here(tmp_path_factory.mktemp("answer"), "serve", model, "--concurrency", "1", "--json")[1]


def points(run, *words):
    result = run("serve", *words, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_a_table_of_loads(run, model, tmp_path):
    files = ("-o", str(tmp_path / "s.csv"), "-o", str(tmp_path / "s.html"))
    result = run("serve", model, *["--gpu", "h100", "--tp", "1", "2", "--concurrency", "1", "16"], *files)
    assert result.code == 0, result.err
    assert "h100-sxm x 2" in result.out and "16 clients" in result.out
    assert len((tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()) == 5
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert "TPOT" in page and "tokens/s of a user" in page


@pytest.mark.parametrize(
    "words",
    [
        ("--gpu", "h100", "a100", "--tp", "1", "2", "--concurrency", "1", "16", "--price", "h100=2", "a100=1",
         "--slo", "tpot<2ms"),
        ("--gpu", "v100", "h100", "--concurrency", "4", "--kv", "fp8"),  # one is refused
        ("--concurrency", "8", "--disaggregate", "1:2", "--weights", "fp8"),
    ],
)  # fmt: skip
def test_what_it_saves_is_shown_again(run, model, tmp_path, words):
    """Each kind, byte for byte."""
    kinds = ("json", "html", "md", "csv", "svg", "txt")
    files = [word for kind in kinds for word in ("-o", str(tmp_path / f"served.{kind}"))]
    served = run("serve", model, "--prompt", "512", "--generate", "32", *words, *files)
    shown = run("report", str(tmp_path / "served.json"), *(word.replace("served", "shown") for word in files))
    assert served.code == shown.code == 0 and served.out == shown.out
    for kind in kinds:
        assert (tmp_path / f"served.{kind}").read_bytes() == (tmp_path / f"shown.{kind}").read_bytes(), kind


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.pop("points"), "has no 'points'"),
        (lambda record: record.update(engines=[]), "record.engines is empty"),
        (lambda record: record["points"][0].update(tpot_s="soon"), "record.points[0].tpot_s must be a number"),
        (lambda record: record["engines"][0]["decode"]["Product"].update(time_s=0), "time_s must be above 0"),
        (lambda record: record["engines"][0].update(prompt={}), "is empty, and that of the other step is not"),
        (
            lambda record: record.update(objectives=[{"quantity": "luck", "amount": 1, "text": ""}]),
            "is 'luck'; want one",
        ),
        (lambda record: record.update(schema="memwall.serving/2"), "newer memwall (schema memwall.serving/2)"),
    ],
)
def test_damaged_answers_get_one_line(run, answer, tmp_path, change, said):
    record = json.loads(answer)
    change(record)
    (tmp_path / "bad.json").write_text(json.dumps(record), encoding="utf-8")
    result = run("report", str(tmp_path / "bad.json"))
    assert result.code == 2 and said in result.error
    assert "--by has no use for what a server does" in run("report", str(tmp_path / "bad.json"), "--by", "op").error


def test_an_option_of_other_records_is_refused_as_it_was_typed(run, answer, tmp_path):
    (tmp_path / "served.json").write_text(answer, encoding="utf-8")
    refused = run("report", str(tmp_path / "served.json"), "--figure", "walls", "-o", str(tmp_path / "walls.svg"))
    assert refused.code == 2 and "--figure has no use for what a server does" in refused.error


def test_requests_that_come_too_fast_have_no_time_to_first_token(run, model):
    """JSON has no number for endless."""
    result = run("serve", model, "--closed-form", "--rate", "1e5", "--json")
    assert "Infinity" not in result.out
    record = json.loads(result.out)
    assert record["points"][0]["ttft_s"] is None and record["points"][0]["tpot_s"] > 0
    assert any("overloaded: 1e+05 requests per second come" in note for note in record["notes"])


def test_one_client_gets_the_times_of_lone_steps(run, model):
    (point,) = points(run, model, "--gpu", "h100", "--concurrency", "1", "--prompt", "512", "--generate", "64")[
        "points"
    ]
    # 2 layers and the head: 0.44 G + 0.53 G weights in bfloat16 at 3.35 TB/s at most
    layer = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    least_s = (2 * layer + 2 * 4096 * 128256) / 3.35e12
    assert least_s < point["tpot_s"] - engine_host("vllm").step_s < 1.6 * least_s
    assert point["tpot_p50_s"] == pytest.approx(point["tpot_s"], rel=0.05)
    assert point["ttft_s"] > 2 * 512 * layer / 2 / 989e12  # the prompt's FLOPs at the peak
    assert point["tokens_per_s_per_user"] == pytest.approx(1 / point["tpot_s"])
    # keys and values of 576 tokens in 2 layers
    assert point["kv_bytes_per_sequence"] == 576 * 2 * (2 * 8 * 128 * 2)


def test_quantised_weights_are_stored_as_the_scheme_says(run, model):
    (point,) = points(run, model, "--weights", "int4", "--concurrency", "1")["points"]
    quantised = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    groups = quantised / 128
    others = 2 * 128256 * 4096 * 2 + 5 * 4096 * 2  # table and head, norms
    assert point["weights_bytes"] == pytest.approx(quantised / 2 + groups * 2 + others, rel=1e-6)


def test_an_fp8_cache_halves_its_bytes(run, model):
    plain, halved = (points(run, model, "--concurrency", "1", *more)["points"][0] for more in ((), ("--kv", "fp8")))
    assert 2 * halved["kv_bytes_per_sequence"] == plain["kv_bytes_per_sequence"]


@pytest.mark.parametrize(
    ("stated", "itemsize", "note"),
    [
        ({"quant_algo": "FP8", "quant_method": "modelopt", "kv_cache_scheme": "FP8"}, 1, None),
        ({"quant_algo": "NVFP4", "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, 1, None),
        ({"quant_method": "awq", "kv_cache_scheme": None}, 2, None),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "INT8"}, 2, "the checkpoint's cache, int8, is not modeled"),
    ],
)
def test_a_checkpoint_says_how_its_cache_is_stored(run, tmp_path, stated, itemsize, note):
    """Keys and values of 8 heads of 128 in 2 layers; engines take the format for which the checkpoint has scales."""
    target = target_of(tmp_path, SHORT_LLAMA | {"quantization_config": stated})
    found = points(run, target, "--concurrency", "1")
    (point,) = found["points"]
    assert point["kv_bytes_per_sequence"] == 1280 * 2 * (2 * 8 * 128) * itemsize
    assert note is None or any(line.startswith(note) for line in found["notes"])
    # the scales of modelopt's fp8 were calibrated
    assert found["weights"] == {"FP8": "fp8_static", "NVFP4": "nvfp4"}.get(stated.get("quant_algo"), "int4_awq")


def test_a_draft_that_is_always_right_makes_several_tokens_a_step(run, model):
    """The model drafts for itself: 2 guesses and a verification of 3 tokens take 3 steps, and make 1 or 3 tokens."""
    plain, never, always = (
        points(run, model, "--concurrency", "1", *more)["points"][0]["tpot_s"]
        for more in ((), *(("--draft", model, "--draft-tokens", "2", "--accept", chance) for chance in "01"))
    )
    host_s = engine_host("vllm").step_s  # of each verification, which makes 1 token, 1 or 3
    assert never - host_s == pytest.approx(3 * (plain - host_s), rel=0.1)
    assert always - host_s / 3 == pytest.approx(plain - host_s, rel=0.1)


def test_a_module_of_the_models_own_guesses(run, save, tmp_path):
    """A llama of 2 layers whose configuration states a module that guesses: a layer and the head, run once for each
    guess, hold a layer, 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336) bytes, and its part of the cache."""
    model = save(SHORT_LLAMA | {"num_nextn_predict_layers": 2})
    words = ("serve", model, "--concurrency", "1", "--draft", "mtp", "--accept", "0")
    said = run(*words, "-o", tmp_path / "two.json").out
    assert "draft     its own module (MTP), 2 tokens, each right at 0%" in said
    (two,) = json.loads((tmp_path / "two.json").read_text(encoding="utf-8"))["points"]
    (alone,), (one,) = (
        points(run, model, "--concurrency", "1", *more)["points"] for more in ((), (*words[4:], "--draft-tokens", "1"))
    )
    layer = 2 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert one["weights_bytes"] - alone["weights_bytes"] == pytest.approx(layer, rel=1e-3)
    assert one["reserved_bytes"] == alone["reserved_bytes"]
    assert one["kv_bytes_per_sequence"] == pytest.approx(1.5 * alone["kv_bytes_per_sequence"], rel=0.02)
    bandwidth = 3.35e12  # no guess is right: each adds a module's time, which reads its layer and the head
    guess_s = two["tpot_s"] - one["tpot_s"]
    assert 1 < guess_s / ((layer + 2 * 4096 * 128256) / bandwidth) < 1.4


def test_a_draft_is_named_and_held(run, model):
    """Its weights, buffers and cache are on the same GPU; the model drafts for itself."""
    words = ("serve", model, "--concurrency", "4", "--draft", model, "--draft-tokens", "3", "--accept", "0.6")
    assert "draft     llama, 3 tokens, each right at 60%" in run(*words).out
    (alone,), (both,) = (points(run, *each)["points"] for each in (words[1:4], words[1:]))
    for held in ("weights_bytes", "reserved_bytes", "kv_bytes_per_sequence"):
        assert both[held] == 2 * alone[held]


@pytest.mark.defect("16")
def test_what_waits_for_the_engines_cpu_says_so(run, model, slow_cpu):
    """A time to first token that was alike on four machines was explained by "no faster than that".

    Kernels of 513 tokens of two layers take microseconds each, 0.1 ms to launch; a graph holds those of 512."""
    words = ("serve", model, "--concurrency", "1", "--engine", slow_cpu, "--prompt")
    long, short = (run(*words, tokens).out for tokens in ("513", "512"))
    said = "h100-sxm: a lone prompt waits for the CPU, which issues its kernels at the speed of vllm"
    assert said in " ".join(long.split()) and said not in " ".join(short.split())


def test_a_steady_state_says_where_a_simulation_is_more_exact(run, model):
    alike, drawn = (run("serve", model, "--closed-form", "--concurrency", "8", *more).out
                    for more in ((), ("--lengths", "0.5-1.0")))  # fmt: skip
    assert "h100-sxm, 8 clients: requests of one length that began together stay in step" in alike
    assert "stay in step" not in drawn


def test_a_steady_state_says_what_the_first_requests_wait(run, model):
    """64 prompts at once; a simulated run has them among its requests."""
    words = ("--concurrency", "64", "--lengths", "0.5-1.0")
    solved = " ".join(run("serve", model, "--closed-form", *words).out.split())
    later, whole = re.search(
        r"64 clients: TTFT, ([\d.]+) ms, is that of later .* a run has ([\d.]+) ms", solved
    ).groups()
    (found,) = points(run, model, *words)["points"]
    assert float(later) < 0.9 * float(whole) and float(whole) == pytest.approx(1e3 * found["ttft_s"], rel=0.1)


def test_engines_apart_take_their_gpus(run, model):
    (point,) = points(run, model, "--concurrency", "8", "--disaggregate", "1:2")["points"]
    assert (point["tp"], point["gpus"]) == (1, 3)
    (one,) = points(run, model, "--concurrency", "8")["points"]
    assert point["tpot_s"] < one["tpot_s"]  # no prompt stands in the way of a decode


@pytest.mark.parametrize(("words", "ends"), [((), (0.83, 1.26)), (("--disaggregate", "1:2"), (0.79, 1.45))])
def test_intervals_are_of_engines_as_these(run, model, words, ends):
    """hardware_specs/engines/vllm.toml."""
    (point,) = points(run, model, "--concurrency", "8", *words)["points"]
    assert [point[f"tpot_{end}_s"] / point["tpot_s"] for end in ("low", "high")] == pytest.approx(ends)


def test_a_trace_of_requests(run, model, tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt_tokens,generated_tokens\n0,100,10\n5,200,10\n", encoding="utf-8")
    (point,) = points(run, model, "--trace", str(path), "-o", str(tmp_path / "s.svg"))["points"]
    drawn = (tmp_path / "s.svg").read_text(encoding="utf-8")
    assert "Throughput against speed" in drawn and "Time to first token" not in drawn  # against which load?
    (alone,) = points(run, model, "--concurrency", "1", "--prompt", "150", "--generate", "10")["points"]
    assert point["tpot_s"] == pytest.approx(alone["tpot_s"], rel=0.02)


def test_weights_that_do_not_fit_name_a_number_of_gpus_that_divides_the_heads(run, tmp_path):
    """8 layers as wide as those of Llama-3-405B: 3 GPUs of 24 GB would hold 59 GB, of 128 heads 4 are the next divisor.

    A layer has 16384 x (2 x 16384 + 2 x 1024 + 3 x 53248) weights, and two tables have 128,256 x 16,384."""
    wide = SHORT_LLAMA | {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 8,
                    "num_attention_heads": 128}  # fmt: skip
    result = run("serve", target_of(tmp_path, wide), "--gpu", "l4", "--concurrency", "1")
    assert result.code == 2 and result.err.rstrip().endswith("--tp 4 is the least that divides the heads")


def test_an_objective_picks_the_cheapest(run, model):
    words = ("--gpu", "h100", "--tp", "1", "2", "--concurrency", "1", "64", "--price", "h100=2.5", "--slo")
    found = points(run, model, *words, "tpot<1.6ms")
    kept = [p for p in found["points"] if p["tpot_s"] < 1.6e-3]
    cheapest = min(kept, key=lambda p: p["usd_per_million_tokens"])
    clients = "1 client" if cheapest["concurrency"] == 1 else "64 clients"
    assert found["best"] == f"h100-sxm{'' if cheapest['tp'] == 1 else ' x 2'}, {clients}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tp", "3"), "3 GPUs do not divide 32 heads; --tp 2 does"),
        (("--weights", "fp9"), "no scheme of weights 'fp9'; did you mean fp8?"),
        (("--kv", "int3"), "no dtype of the cache 'int3'"),
        (("--engine", "tgi"), "no engine 'tgi'"),
        (("--slo", "tpot<1us"), "no candidate keeps TPOT < 1.00 us"),
        (("--price", "b200=3"), "a price of b200, which is not among the GPUs"),
        (("--price", "h100"), "--price takes NAME=USD"),
        (("--tp", "x"), "--tp takes whole numbers from 1 to 1,000,000, not 'x'"),
        (("--tp", "1000001"), "from 1 to 1,000,000, not '1000001'"),
        (("--utilization", "2"), "above 0 and up to 1, not 2"),
        (("--rate", "3", "--concurrency", "2"), "--rate and --concurrency say how requests come: give one"),
        (("--prompt", "20000"), "8,192"),
        (("--disaggregate", "2"), "--disaggregate takes engines of prompts and of decodes, such as 1:2"),
        (("--disaggregate", "1:1", "--closed-form"), "have no closed form: leave out --closed-form"),
        (("--trace", "no.csv"), "no.csv"),
        (("--prompt", "8000"), "a prompt of 7,936 is the most"),
        (("--slo", "ttft=3"), "want one such as 'ttft_p99<500ms'"),
        (("--what-if", "fuse:layers.*"), "--what-if fuse:layers.*: of a server the GPU's, the host's and the links'"),
        (("--what-if", "dtype=bf16"), "--weights, --kv and --dtype say what they read"),
        (("--dtype", "float16"), "is already traced: leave --dtype out"),
        (("--what-if", "link_bytes_per_s*=2"), "no link joins these engines' GPUs; --tp 2 or a --cluster does"),
        (("--what-if", "dram_bytes_per_s*=0"), "on h100-sxm, dram_bytes_per_s must be a positive number"),
    ],
)
def test_bad_input_gets_one_line(run, model, words, said):
    result = run("serve", model, "--gpu", "h100", *words)
    assert said in result.error and result.code == 2


MIXTRAL = SHORT_LLAMA | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024, "intermediate_size": 2048,
    "num_attention_heads": 16, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
}  # fmt: skip
INT8 = {"config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}, "quant_method": "compressed-tensors"}


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (7, 'quantization_config is \'7\'; want a table such as {"quant_method": "fp8"}'),
        ({"quant_method": "quip-magic"}, "weights quantised as quip-magic are not modeled; --weights says"),
        (json.loads(json.dumps(INT8).replace("8", '"x"')), "weights quantised as compressed-tensors are not modeled"),
    ],
)
def test_quantisation_that_is_not_known(run, tmp_path, stated, said):
    target = target_of(tmp_path, SHORT_LLAMA | {"quantization_config": stated})
    assert said in run("serve", target, "--concurrency", "1").error
    assert run("serve", target, "--concurrency", "1", "--weights", "fp8").code == (2 if stated == 7 else 0)


def test_int8_experts_are_int8(run, tmp_path):
    """8 bits of each weight and a scale of 2 bytes for each column; the products run on 16-bit activations."""
    (point,) = points(run, target_of(tmp_path, MIXTRAL | {"quantization_config": INT8}), "--concurrency", "1")["points"]
    expert, scales = 3 * 1024 * 2048, 2 * (2 * 2048 + 1024)
    attention, columns = 1024 * 2048 + 1024 * 1024, 2 * (2048 + 1024)
    layer = 8 * (expert + scales) + attention + columns + 2 * 8 * 1024  # and the router, in bfloat16
    assert point["weights_bytes"] == 2 * layer + 2 * 2 * 32000 * 1024 + 2 * (2 * 2 + 1) * 1024
    from memwall.ops import served_calls

    (pipe,) = served_calls.experts(4, 1024, 2048, 2, 8, dtype="int8_wo").flops
    assert pipe.dtype == "float16"


def test_mixed_precision_is_that_of_each_module(run, tmp_path):
    """fp8 in attention (a scale of 4 bytes for a matrix), 4 bits and a scale of a byte for 16 numbers in experts; the
    head in fp8, the router and the output of attention as they are. Names are the checkpoint's."""
    layers = {f"backbone.layers.{i}.self_attn.{name}_proj": {"quant_algo": "FP8"} for i in range(2) for name in "qkv"}
    layers |= {f"backbone.layers.{i}.mlp.experts.{e}.w{w}": {"quant_algo": "W4A16_NVFP4", "group_size": 16}
               for i in range(2) for e in range(8) for w in range(3)}  # fmt: skip
    layers["lm_head"] = {"quant_algo": "FP8"}
    stated = {"quant_algo": "MIXED_PRECISION", "quant_method": "modelopt", "quantized_layers": layers}
    target = target_of(tmp_path, MIXTRAL | {"quantization_config": stated})
    found = points(run, target, "--concurrency", "1")
    qkv, out, expert = 1024 * 2048, 1024 * 1024, 3 * 1024 * 2048
    layer = qkv + 4 + 2 * out + 8 * expert * 9 // 16 + 2 * 8 * 1024
    table, head, norms = 2 * 32000 * 1024, 32000 * 1024 + 4, 2 * (2 * 2 + 1) * 1024
    assert found["points"][0]["weights_bytes"] == 2 * layer + table + head + norms
    assert "weights are fp8_static in 7 modules, w4a16_nvfp4 in 2 modules, the others as they are" in found["notes"]
    (plain,) = points(run, target, "--concurrency", "1", "--weights", "fp8")["points"]
    assert plain["weights_bytes"] == pytest.approx(2 * (qkv + out + 8 * expert + 2 * 8 * 1024) + 2 * table, rel=1e-3)
    groups = {"a": {"weights": {"num_bits": 8, "type": "float"}}, "b": {"weights": {"num_bits": 4, "type": "float"}}}
    several = target_of(
        tmp_path, MIXTRAL | {"quantization_config": {"quant_method": "modelopt", "config_groups": groups}}
    )
    assert "weights quantised as modelopt are not modeled; --weights says" in run("serve", several).error


@pytest.mark.parametrize("stated", ["expert_dtype", "quantized_layers"])
def test_experts_in_four_bits_and_the_rest_in_blocks_of_fp8(run, tmp_path, stated):
    """DeepSeek-V4's ``expert_dtype``, a scale of a byte for 32 numbers, and NVIDIA's of it, one for 16, whose other
    modules are as they were: fp8 with a scale of 4 bytes for 128 x 128. The head and the routers are not quantised."""
    method = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    layers = {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4"} for i in range(2)}
    more = {"expert_dtype": "fp4", "quantization_config": method}
    if stated == "quantized_layers":
        more = {"quantization_config": method | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}
    (point,) = points(run, target_of(tmp_path, MIXTRAL | more), "--concurrency", "1")["points"]
    attention, expert = 1024 * 2048 + 1024 * 1024, 3 * 1024 * 2048
    scaled = {"expert_dtype": 17, "quantized_layers": 18}[stated]  # of 32 parts of a byte
    layer = attention + attention // 128**2 * 4 + 8 * expert * scaled // 32 + 2 * 8 * 1024
    assert point["weights_bytes"] == 2 * layer + 2 * 2 * 32000 * 1024 + 2 * (2 * 2 + 1) * 1024


def test_what_is_left_alone_is_named_as_in_the_checkpoint(run, tmp_path):
    """Nemotron's checkpoints say backbone where transformers says model."""
    stated = {"quant_algo": "FP8", "quant_method": "modelopt", "ignore": ["backbone.layers.1.self_attn.*", "lm_head"]}
    (point,) = points(run, target_of(tmp_path, SHORT_LLAMA | {"quantization_config": stated}), "--concurrency", "1")[
        "points"
    ]
    attention, mlp = 4096 * 6144 + 4096 * 4096, 3 * 4096 * 14336
    others = 2 * 2 * 128256 * 4096 + 5 * 4096 * 2
    scales = 4 * 4 + 2 * 4  # of one matrix each, fused ones are one; QKV and output of one layer alone
    assert point["weights_bytes"] == pytest.approx(3 * attention + 2 * mlp + others, abs=scales)


@pytest.mark.defect("10")
def test_a_lever_is_what_its_command_serves(run, model):
    """A server said which wall its decodes have, and nothing of what would make decodes or prompts faster."""
    words = (model, "--prompt", "513", "--generate", "8", "--concurrency", "1", "2")
    found = points(run, *words)
    (verdict,) = found["verdicts"]
    assert (verdict["engine"], verdict["load"]) == ("h100-sxm", "2 clients")
    for phase in verdict["phases"]:
        now_s = found["points"][-1][phase["figure"]]
        assert phase["levers"][0]["saved_s"] > 0
        for lever in phase["levers"][:3]:
            # the option, without the quotes of a shell
            shown = points(run, *words, *lever["options"].replace("'", "").split())
            told = shown["what_ifs"][-1]["after"] if "--what-if" in lever["options"] else shown["points"][-1]
            assert told[phase["figure"]] == lever["time_s"]
            assert lever["saved_s"] == now_s - lever["time_s"]


@pytest.mark.defect("10")
def test_what_binds_decodes_and_prompts_of_a_server(run, model, slow_cpu):
    """A server said nothing of what binds a prompt, and of a decode only the wall of most of its kernels' time: two
    layers of Llama read 0.9 + 1.05 GB in a decode; their prompt of 513 tokens waits for the CPU's launches."""
    words = (model, "--prompt", "513", "--generate", "8", "--concurrency", "1", "--tp", "1", "--engine", slow_cpu)
    result = run("serve", *words, "--what-if", "dispatch_s/=2", "--json")
    (verdict,), (halved,) = (json.loads(result.out)[key] for key in ("verdicts", "what_ifs"))
    decode, prefill = verdict["phases"]
    assert (decode["step"], decode["bound_by"]) == ("a decode step of 1 sequence", "bandwidth")
    assert (prefill["step"], prefill["bound_by"]) == ("a lone prompt of 513 tokens", "host")
    layer = 2 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    least_s = (2 * layer + 2 * 4096 * 128256) / 3.35e12
    assert least_s / 2 < decode["saved_s"] < 1.2 * least_s / 2
    host = engine_host(slow_cpu)
    # a CUDA graph holds the decode: the CPU adds its seconds of a step alone, half of them with twice its speed
    saved_s = halved["before"]["decode_step_s"] - halved["after"]["decode_step_s"]
    assert saved_s == pytest.approx(host.step_s / 2, rel=1e-9)
    assert prefill["saved_s"] == halved["before"]["prompt_step_s"] - halved["after"]["prompt_step_s"]
    said = run("serve", *words).out
    assert "A lone prompt of 513 tokens takes" in said and "the engine's CPU binds it" in " ".join(said.split())


@pytest.mark.defect("16")
def test_the_picture_and_the_table_say_which_sequences_they_count(run, model, tmp_path):
    """A table's largest batch was of sequences that are half generated and the picture's of finished ones, unsaid.

    Two layers with 8 heads of 128 for keys and values: 8,192 bytes a token; 4,096 + 4,096 tokens are 67.1 MB."""
    words = (model, "--prompt", "4096", "--generate", "4095", "--concurrency", "1", "-o", str(tmp_path / "s.svg"))
    found, page = points(run, *words), " ".join(run("serve", *words).out.split())
    (engine,) = found["engines"]
    free = engine["capacity_bytes"] - engine["weights_bytes"] - engine["reserved_bytes"]
    assert f"{free // (8191 * 8192):,} at their longest" in (tmp_path / "s.svg").read_text(encoding="utf-8")
    assert "the most that the scheduler takes and the cache holds while they grow, half generated in the mean" in page


@pytest.mark.defect("10")
def test_levers_of_many_engines_are_left_out_and_said_so(run, model):
    """What would make servers faster was never told, and told of many it would take long: six engines say so."""
    result = run(
        "serve", model, "--gpu", "h100", "h200", "b200", "--tp", "1", "2", "--concurrency", "1", "--generate", "2"
    )
    assert "What would make it faster" not in result.out
    assert "what would make it faster is told of up to 5 engines, and not of these 6" in " ".join(result.out.split())


def test_a_gpu_that_lacks_the_dtype_is_left_out(run, model, traced):
    said = "v100-sxm2-16gb: bfloat16, the model's dtype, does not run there; --dtype float16 does"
    assert said in run("serve", model, "--gpu", "v100", "h100", "--concurrency", "1").out
    assert said in run("serve", model, "--gpu", "v100").error
    assert run("serve", traced, "--gpu", "v100", "--dtype", "float16", "--concurrency", "1").code == 0
    assert "no floating dtype named 'float17'" in run("serve", traced, "--dtype", "float17").error


def test_a_saved_decode_step_is_served(run, model, traced, tmp_path):
    prompt = str(tmp_path / "p.json")
    words = ("--concurrency", "4", "--gpu", "b200")
    assert points(run, model, *words)["points"] == points(run, traced, *words)["points"]
    run("profile", traced, "--mode", "prefill", "--prompt", "8", "-o", prompt)
    assert "llama is a profile of prefill; one of --mode decode is served" in run("serve", prompt).error


def test_only_a_trace_that_is_too_long_is_tried_with_fewer_tokens(monkeypatch, traced):
    from memwall.core.errors import TooManyOps, UsageError
    from memwall.serving import model as serving

    asked = []

    def refuse(target, context, **options):
        asked.append(context)
        raise (TooManyOps if len(asked) == 1 else UsageError)("no")

    monkeypatch.setattr(serving, "profile", refuse)
    with pytest.raises(UsageError):
        serving.read_model(traced)
    assert asked == [8191, 2047]
    with pytest.raises(UsageError):
        serving.read_model(traced)
    assert asked == [8191, 2047, 8191]


def test_an_encoder_runs_before_the_first_token(run, tmp_path):
    target = target_of(tmp_path, WHISPER)
    (point,) = points(run, target, "--concurrency", "1", "--generate", "100")["points"]
    # keys and values of 1,500 columns, and of 4 + 100 tokens, in two layers
    assert point["kv_bytes_per_sequence"] == 2 * 2 * (1500 + 104) * 1280 * 2
    # 12 x 1280^2 weights of two layers, keys and values for two others, and attention of all columns to all
    encoder = 2 * 1500 * 2 * (12 * 1280**2 + 2 * 1280**2 + 2 * 1500 * 1280)
    computed_s = point["ttft_s"] - point["tpot_s"] - engine_host("vllm").request_s
    assert encoder / 989e12 < computed_s < 10 * encoder / 989e12
    # no decode runs it: 2 layers of 14 x 1280^2 weights and the head, and the keys
    least_s = 2 * (2 * 14 * 1280**2 + 51866 * 1280 + 2 * 2 * 1500 * 1280) / 3.35e12
    assert least_s < point["tpot_s"] - engine_host("vllm").step_s < 3 * least_s
    (shared,) = points(run, target, "--concurrency", "1", "--tp", "2", "--generate", "100")["points"]
    assert 2 * shared["kv_bytes_per_sequence"] == point["kv_bytes_per_sequence"]
    assert shared["weights_bytes"] == pytest.approx(point["weights_bytes"] / 2, rel=0.08)


def test_an_encoder_of_text_reads_the_prompt(run, tmp_path):
    fields = {
        "architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048,
        "num_layers": 2, "num_heads": 8, "vocab_size": 32128, "is_encoder_decoder": True, "dtype": "bfloat16",
    }  # fmt: skip
    target = target_of(tmp_path, fields)
    words = ("--concurrency", "1", "--generate", "50", "--prompt")
    said = run("serve", target, *words, "3000", "-o", tmp_path / "long.json").out
    assert "3,000 tokens to the encoder, 50 out" in said
    (long,) = json.loads((tmp_path / "long.json").read_text(encoding="utf-8"))["points"]
    (short,) = points(run, target, *words, "300")["points"]
    for point, n in ((short, 300), (long, 3000)):
        assert point["kv_bytes_per_sequence"] == 2 * 2 * (n + 51) * 512 * 2
    assert long["ttft_s"] > short["ttft_s"]
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_tokens,generated_tokens\n0,100,10\n", encoding="utf-8")
    said = "is traced with one prompt: give clients or --rate, no --trace"
    assert said in run("serve", target, "--trace", str(tmp_path / "requests.csv")).error


def test_a_model_without_a_cache_has_no_server(run, tmp_path):
    (tmp_path / "net.py").write_text("import torch\nmodel = torch.nn.Linear(8, 8)\n", encoding="utf-8")
    result = run("serve", str(tmp_path / "net.py"))
    assert result.code == 2 and "decode_inputs" in result.error


def test_a_step_under_the_server_policy_alone_is_shown(run, tmp_path):
    target = target_of(tmp_path, SHORT_LLAMA)
    shown = run("profile", target, "--mode", "decode", "--batch", "2", "--context", "64", "--policy", "server", "--gpu",
                "h100")  # fmt: skip
    assert shown.code == 0 and "H100" in shown.out, shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draft-tokens", "3"), "--draft-tokens has no effect without --draft"),
        (("--accept", "0.9"), "--accept has no effect without --draft"),
        (("--draft", "mtp"), "llama has no module that guesses tokens: its configuration states none of"),
        (("--trace", "t.csv", "--generate", "9"), "--generate has no effect with --trace"),
        (("--trace", "t.csv"), "t.csv:2: prompt_tokens is 'abc', not a whole number"),
    ],
)
def test_options_without_effect_and_numbers_that_are_none(run, model, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,generated_tokens\n0,abc,10\n", encoding="utf-8")
    refused = run("serve", model, *words)
    assert refused.code == 2 and said in refused.err


def test_percentiles_say_how_sure_they_are(run, model):
    """The largest of 40 requests is no upper end of the 99th percentile, and one of the median."""
    found = points(run, model, "--concurrency", "4", "--prompt", "64", "--generate", "16", "--requests", "40")
    rows = {row["quantity"]: row for row in found["percentiles"]}
    assert {row["requests"] for row in rows.values()} == {40}
    assert rows["ttft_p99_s"]["high_s"] is None
    assert rows["ttft_p50_s"]["low_s"] <= rows["ttft_p50_s"]["value_s"] <= rows["ttft_p50_s"]["high_s"]
    assert rows["ttft_p99_s"]["value_s"] == found["points"][0]["ttft_p99_s"]


def test_what_the_client_adds_is_in_front_of_the_first_token(run, model):
    words = (model, "--concurrency", "1", "--prompt", "64", "--generate", "16", "--requests", "20")
    (bare,), (slow,) = (points(run, *words, *more)["points"] for more in ((), ("--client", "30")))
    assert slow["ttft_s"] - bare["ttft_s"] == pytest.approx(0.03, abs=1e-6)
    assert slow["tpot_s"] == pytest.approx(bare["tpot_s"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--trace", "TRACE", "--turns", "2"), "--trace with --turns: a trace has the requests"),
        (("--trace", "TRACE", "--prompt", "4"), "--prompt has no effect with --trace"),
        (("--lengths", "pairs.csv", "--prompt", "4"), "--prompt has no effect with --lengths FILE"),
        (("--turns", "2", "--prefix-hit", "0.5"), "leave one out"),
        (("--turns", "1", "--think", "2"), "--think has no effect without --turns of 2 or more"),
        (("--turns", "2", "--closed-form"), "has no closed form"),
        (("--rate", "2", "--burst", "2", "--closed-form"), "not Poisson have no closed form"),
        (("--replicas", "2", "--closed-form"), "several replicas have no closed form"),
        (("--replicas", "2", "--disaggregate", "1:1"), "leave out --replicas"),
        (("--disaggregate", "1:2", "--route", "prefix"), "--route prefix of one engine of prompts has no effect"),
        (("--autoscale", f"1:{'9' * 5000}:2"), "--autoscale takes"),
        (("--autoscale", "1:2"), "--autoscale takes the least and the most replicas"),
        (("--client", "nan"), "want 0 to 1e+09"),
    ],
)
def test_loads_that_contradict_themselves_are_refused(run, model, tmp_path, words, said):
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,generated_tokens\n0,16,8\n", encoding="utf-8")
    result = run("serve", model, *(word.replace("TRACE", str(tmp_path / "trace.csv")) for word in words))
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert said in result.error


def test_the_command_line_of_replicas_says_how_many_it_starts(run, model):
    words = (model, "--concurrency", "4", "--prompt", "64", "--generate", "16", "--requests", "20")
    assert points(run, *words, "--replicas", "3")["command"].endswith("# 3 of these, behind a router")
    assert "#" not in points(run, *words)["command"]


def test_each_of_several_replicas_holds_what_one_does(run, model):
    words = (model, "--concurrency", "4", "--prompt", "64", "--generate", "16", "--requests", "20", "--max-batch", "9")
    assert "; up to 9 sequences run at once" in " ".join(run("serve", *words).out.split())
    assert "; up to 9 sequences of an engine run at once" in " ".join(
        run("serve", *words, "--replicas", "3").out.split()
    )


def test_a_trace_of_prompts_that_begin_alike_is_served_by_replicas(run, model, tmp_path):
    """Two prompts of 512 tokens, each three times: by prefix the last ones find all but the last block."""
    rows = [{"timestamp": 2000 * i, "input_length": 512, "output_length": 4, "hash_ids": [i % 2]} for i in range(6)]
    (path := tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = points(run, model, "--trace", str(path), "--replicas", "2", "--route", "prefix")
    assert found["points"][0]["cached_share"] == pytest.approx(4 * 496 / (6 * 512))
    assert (found["points"][0]["prompt_tokens"], found["points"][0]["gpus"]) == (512, 2)
