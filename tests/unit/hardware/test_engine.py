"""Engines as data: versions, what a step takes on a GPU, files of a user's own."""

from dataclasses import replace

import pytest

from memwall.core.errors import UsageError
from memwall.hardware.engine import ENGINES, EngineHost, load_engine
from memwall.hardware.lookup import load_gpu


def test_an_engine_alone_is_the_newest_that_is_known():
    newest = load_engine("vllm")
    assert replace(load_engine(f"vllm@{newest.version}"), name="vllm") == newest


@pytest.mark.parametrize("name", ENGINES)
def test_every_version_that_changes_something_can_be_asked_for(name):
    with pytest.raises(UsageError) as error:
        load_engine(f"{name}@0.0")
    oldest, newest = str(error.value).partition("there is ")[2].partition(",")[0].split(" to ")
    assert load_engine(f"{name}@{oldest}").kernels == load_engine(f"{name}@{newest}").kernels == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm@0.8.5", "no version '0.8.5' of vllm; there is 0.9 to"),
        ("vllm@99.0", "no version '99.0' of vllm"),
        ("vllm@", "no version '' of vllm"),
        ("vllm@latest", "no version 'latest' of vllm"),
        ("vllm@0.11\nx", "no version '0.11?x' of vllm"),
        ("vlm@0.11", "no engine 'vlm@0.11'"),
        ("vlm", "no engine 'vlm'; did you mean vllm?"),
    ],
)
def test_a_version_that_is_not_known_is_one_line(name, said):
    with pytest.raises(UsageError) as error:
        load_engine(name)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_graphs_of_vllm_0_11():
    """``Capturing CUDA graph shapes: 67/67``: 1, 2, 4 and every 8th batch up to 512."""
    assert load_engine("vllm@0.11.0").captured(512) == (1, 2, 4, *range(8, 513, 8))


def test_graphs_of_vllm_0_12():
    """51 of them: every 16th batch from 256 on."""
    assert load_engine("vllm@0.12").captured(512) == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def test_graphs_of_sglang():
    """``[1, 2, 4, 8, 12] + range(16, 257, 8) + range(272, 512, 16) + range(512, most + 1, 32)``."""
    known = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 641, 32)]
    assert load_engine("sglang").captured(640) == tuple(known)


def test_graphs_hold_no_more_sequences_than_a_step_has():
    """A flag that asks for graphs up to a trillion sequences had all memory filled with them."""
    assert max(load_engine("vllm").captured(10**12)) == 65_536


def test_attention_is_apart_from_graphs_before_vllm_0_11():
    found = [load_engine(f"vllm@{version}").attention_apart for version in ("0.9", "0.10.2", "0.11", "0.12")]
    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    ("engine", "gpu", "batch", "tokens", "graph"),
    [
        ("vllm@0.12", "h100", 1024, 8192, 512),
        ("vllm@0.12", "a100-80gb-sxm", 256, 2048, 512),
        ("vllm@0.12", "l40s", 256, 2048, 512),
        ("vllm@0.27.1", "b200", 1024, 8192, 512),
        ("vllm@0.28", "b200", 1024, 16384, 1024),
        ("vllm@0.28", "mi300x", 1024, 16384, 512),
        ("vllm@0.28", "h100", 1024, 8192, 512),
        ("sglang", "b200", 2048, 16384, 512),
        ("sglang", "h100", 2048, 8192, 256),
        ("sglang", "l4", 2048, 2048, 24),
        ("sglang", "t4", 2048, 2048, 8),
        ("trtllm", "h100", 2048, 8192, 512),
    ],
)
def test_what_a_step_takes_on_a_gpu(engine, gpu, batch, tokens, graph):
    """``get_batch_defaults`` of vLLM, ``_handle_gpu_memory_settings`` of SGLang, ``BuildConfig`` of TensorRT-LLM."""
    found = load_engine(engine).limits(load_gpu(gpu))
    assert (found.max_batch, found.token_budget, found.largest_graph) == (batch, tokens, graph)


def test_four_gpus_of_sglang_have_larger_graphs():
    assert load_engine("sglang").limits(load_gpu("h100"), tp=4).largest_graph == 512


def test_groups_share_the_tokens_that_sglang_takes():
    """``chunked_prefill_size // dp_size``: 8,192 of an H100 in 8 groups."""
    assert load_engine("sglang").limits(load_gpu("h100"), dp=8).token_budget == 1024


def test_each_group_of_vllm_has_all_tokens():
    assert load_engine("vllm").limits(load_gpu("h100"), dp=8).token_budget == 8192


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(f'schema = "memwall.engine/1"\n{text}')
    return str(path)


def test_a_file_has_what_differs_from_its_base(tmp_path):
    found = load_engine(written(tmp_path, 'base = "vllm@0.10"\nstep_s = 0.005\nprefill = "whole"\n'))
    assert (found.host.step_s, found.prefill) == (0.005, "whole")
    assert found.attention_apart and found.host.launch_s == load_engine("vllm@0.10").host.launch_s


def test_a_file_that_changes_is_read_again(tmp_path):
    load_engine(written(tmp_path, 'base = "vllm"\nstep_s = 0.005\n'))
    assert load_engine(written(tmp_path, 'base = "vllm"\nstep_s = 0.006\n')).host.step_s == 0.006


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step_s = 0.005\n", "base is None; want the engine that it differs from"),
        ('base = "vllm@0.1"\n', "no version '0.1' of vllm"),
        ('base = "vllm"\nstepp_s = 1\n', "no number of an engine named 'stepp_s'; did you mean step_s?"),
        ('base = "vllm"\nstep_s = -1\n', "step_s must be a number of 0 or more"),
        ('base = "vllm"\nstep_s = nan\n', "step_s must be a number of 0 or more"),
        ('base = "vllm"\nkernels_factor = 0\n', "kernels_factor must be a positive number"),
        ('base = "vllm"\nkernels = "sglang"\n', "no number of an engine named 'kernels'"),
        ('base = "vllm"\ngraph = [[1, 2]]\n', "graph has rows of a first batch"),
        ('base = "vllm"\ngraph = [[0, 2, 1]]\n', "all above 0"),
        ('base = "vllm"\nttft_low = 3\nttft_high = 1\n', "ttft_low is above ttft_high"),
        ('base = "vllm"\ntpot_apart_low = 2\n', "tpot_apart_low is above tpot_apart_high"),
        ('base = "vllm"\nlimit = [{least_gib = 70, max_batch = 1, token_budget = 1, largest_graph = 1}]\n',
         "the last limit has no condition"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_one_line(tmp_path, text, said):
    with pytest.raises(UsageError) as error:
        load_engine(written(tmp_path, text))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "host.toml").write_text('schema = "memwall.host/1"\nname = "x"\n')
    with pytest.raises(UsageError, match=r"want 'memwall.engine/1'"):
        load_engine(tmp_path / "host.toml")


def test_all_seconds_of_the_cpu_by_a_factor():
    host = EngineHost("", step_s=1, launch_s=2, request_s=3, sequence_s=4, kernels_factor=5)
    assert host.scaled(2) == EngineHost("", step_s=2, launch_s=4, request_s=6, sequence_s=8, kernels_factor=5)
