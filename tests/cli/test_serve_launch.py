"""``memwall serve`` of the command line that starts a server."""

import json
import shlex

import pytest

from memwall.serving import serve
from memwall.serving.launch import launch_line, options_of_point, read_launch
from memwall.serving.simulation.engine import CAPTURED
from tests.unit.configs import SHORT_LLAMA, target_of

pytest.importorskip("transformers", reason="transformers is not installed")
LOAD = ("--prompt", "64", "--generate", "16", "--concurrency", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a configuration in ``llama``."""
    target_of(tmp_path / "llama", SHORT_LLAMA)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The model, read once."""
    from memwall.serving import read_model

    return read_model(target_of(tmp_path_factory.mktemp("read") / "llama", SHORT_LLAMA))


def asked(run, *words):
    result = run("serve", *words)
    assert result.code == 0, result.err
    return result.out


def test_flags_are_options(run):
    """The same figures, but for the numbers of a step, which are vLLM's on an H100."""
    flags = asked(run, *LOAD, "--json", "--", "vllm", "serve", "llama", "-tp", "2", "--kv-cache-dtype", "fp8")
    options = ("--tp", "2", "--kv", "fp8", "--max-batch", "1024", "--token-budget", "8192")
    same = asked(run, "hf:llama", *LOAD, *options, "--json")
    assert json.loads(flags)["points"] == json.loads(same)["points"]


def test_each_flag_is_told(run):
    out = asked(
        run, *LOAD, "--", "vllm", "serve", "llama", "--max-num-seqs", "8", "--port", "80", "--cpu-offload-gb", "4"
    )
    assert "--max-num-seqs 8  max_batch  8" in out
    assert "--cpu-offload-gb 4: weights and caches are in the GPU's memory alone" in " ".join(out.split())
    assert "--port: nothing that is modeled depends on it" in out


def test_the_record_has_each_flag(run):
    found = json.loads(asked(run, *LOAD, "--json", "--", "vllm serve llama --max-num-seqs 8 --port 80"))
    assert found["launch"]["flags"] == [
        {"flag": "--max-num-seqs 8", "sets": "max_batch", "value": "8", "why": "", "quiet": False},
        {"flag": "--port", "sets": "", "value": "", "why": "", "quiet": True},
    ]


def test_a_record_is_shown_again(run, folder):
    out = asked(run, *LOAD, "-o", "s.json", "--", "vllm", "serve", "llama", "--enforce-eager")
    assert run("report", "s.json").out == out


def test_the_command_that_it_prints_starts_the_same(run):
    found = json.loads(asked(run, "hf:llama", *LOAD, "--max-batch", "8", "--json"))
    again = json.loads(asked(run, *LOAD, "--json", "--", *shlex.split(found["command"])))
    assert found["command"].startswith("vllm serve llama ") and again["points"] == found["points"]


def test_a_file_in_place_of_words(run, folder):
    (folder / "run.sh").write_text("vllm serve llama --max-num-seqs 8\n")
    assert "max_batch" in asked(run, "--launch", "run.sh", *LOAD)


def test_the_configuration_lies_where_target_says(run):
    out = asked(run, "hf:llama", *LOAD, "--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-num-seqs", "8")
    assert "vllm serve meta-llama/Llama-3.1-8B" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tp", "4", "--", "vllm", "serve", "llama", "-tp", "2"), "--tp 4 and -tp 2 of the launch line"),
        (("--prefix-hit", "0.5", "--", "vllm", "serve", "llama", "--no-enable-prefix-caching"), "say prefix_hit"),
        (("--engine", "sglang", "--", "vllm", "serve", "llama"), "--engine sglang and vLLM of the launch line"),
        (("--", "vllm", "serve", "org/model"), "hf download org/model config.json"),
        (("--", "vllm", "serve"), "names no model"),
        (("--launch", "none.sh"), "none.sh"),
        (("hf:llama", "--eager", "--captured", "8"), "no CUDA graph holds a batch"),
        ((), "name a TARGET, or the command of a server behind --"),
    ],
)  # fmt: skip
def test_one_line_for_what_is_wrong(run, words, said):
    result = run("serve", *words)
    assert result.code == 2 and said in result.err and len(result.err.splitlines()) == 1, result.err


def test_an_option_said_twice_alike(run):
    asked(run, *LOAD, "--tp", "2", "--", "vllm", "serve", "llama", "-tp", "2")


# -- what the flags change ---------------------------------------------------------------------------------------------


def point(model, **options):
    return serve(model, prompt=64, generate=16, concurrency=4, **options).points[0]


def test_a_batch_that_is_limited(model):
    """4 clients, of whom 2 are served at a time."""
    assert point(model, max_batch=2).candidate.run.batch <= 2 < point(model).candidate.run.batch


def test_kernels_without_graphs_wait_for_the_cpu(model):
    """25 kernels of 80 us each for the CPU are 2 ms; the kernels take 0.8."""
    eager, graph = (point(model, eager=each, engine="vllm@0.18") for each in (True, False))
    assert eager.steps.step_s(1, 64) == pytest.approx(eager.steps.host.step_s + 25 * 80e-6)
    assert graph.steps.step_s(1, 64) < eager.steps.step_s(1, 64)


def test_prompts_beyond_the_most_tokens_of_a_sequence_are_refused(model):
    from memwall.core.errors import UsageError

    with pytest.raises(UsageError, match="70"):
        point(model, max_context=70)


def test_memory_of_weights_and_cache(model):
    """Half of an H100 is weights and cache, without buffers."""
    steps = point(model, utilization=0.5, utilization_of="static").steps
    assert steps.capacity_bytes - steps.reserved_bytes == steps.gpu.dram_bytes // 2


def test_memory_that_weights_and_buffers_leave(model):
    """Half of what they leave is the cache."""
    steps = point(model, utilization=0.5, utilization_of="free").steps
    static = steps.weights_bytes + steps.reserved_bytes
    assert steps.capacity_bytes - static == (steps.gpu.dram_bytes - static) // 2


def test_more_tokens_of_a_step_take_more_memory(model):
    assert point(model, token_budget=32768).steps.reserved_bytes > point(model).steps.reserved_bytes


def test_the_defaults_of_an_engine_are_its_own(model):
    policy = serve(model, launch="vllm serve m", gpu="a100-80gb-sxm", concurrency=1).points[0].asked.policy
    assert (policy.max_batch, policy.token_budget, policy.captured) == (256, 2048, CAPTURED)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_point_has_a_command_in_each_engine(model, engine):
    """The cache has as many bytes, to a ten-thousandth of the memory, whatever the engine's share is of."""
    found = point(model, max_batch=8)
    line = launch_line(engine, "hf:m", options_of_point(found, engine=engine))
    again = point(model, launch=line)
    free = [each.steps.capacity_bytes - each.steps.weights_bytes - each.steps.reserved_bytes for each in (found, again)]
    assert abs(free[0] - free[1]) < 2e-4 * found.gpu.dram_bytes
    assert read_launch(line).options["max_batch"] == again.asked.policy.max_batch == 8


def test_search_prints_the_winner_for_each_engine(run):
    found = json.loads(run("search", "hf:llama", "--gpus", "1", *LOAD, "--json").out)
    assert [read_launch(found["commands"][engine]).engine for engine in ("vllm", "sglang", "trtllm")] == [
        "vllm", "sglang", "trtllm",
    ]  # fmt: skip
