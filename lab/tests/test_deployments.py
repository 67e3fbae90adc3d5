"""Tables of deployments: what their rows say of engines, by hand; and what is simulated."""

import json
from collections import Counter

import pytest

from memwall.bench.accuracy import read_measured
from memwall.core.errors import UsageError
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.served import Requests, ServedRequest
from memwall.serving.simulation.workload import RequestLoad
from memwall.serving.steps import Layout
from memwall_lab.deployments import Deployment, Engines, deployment_rows, waves
from tests.unit.places import truth

HEAD = (
    "id,backend,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,tp_size,pp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,prefill_num_workers,prefill_tp_size,prefill_attention_dp_size,"
    "prefill_moe_tp_size,prefill_moe_ep_size,decode_batch_size,decode_num_workers,decode_tp_size,"
    "decode_attention_dp_size,decode_moe_tp_size,decode_moe_ep_size,ttft_ms,tpot_ms,concurrency,origin,backend_version"
)
SEEN = "InferenceX db-dump"
MODEL = "deepseek-ai/DeepSeek-R1"


@pytest.fixture
def read(tmp_path):
    """Rows of a table, given as the cells that differ from an engine of 8 GPUs on H200."""
    folder = tmp_path / "configs" / MODEL.replace("/", "--")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({}), encoding="utf-8")

    def table(*rows):
        plain = {
            "id": "x", "backend": "trtllm", "model_path": MODEL, "system": "h200_sxm", "precision": "fp8",
            "mode": "agg", "isl": 1024, "osl": 1024, "gemm_quant_mode": "fp8", "moe_quant_mode": "fp8", "tp_size": 8,
            "attention_dp_size": 1, "moe_tp_size": 8, "moe_ep_size": 1, "ttft_ms": 100, "tpot_ms": 10,
            "concurrency": 64, "origin": "csv",
        }  # fmt: skip
        lines = [",".join(str({**plain, **row}.get(name, "")) for name in HEAD.split(",")) for row in rows]
        path = tmp_path / "rows.csv"
        path.write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")
        return read_measured(path)

    return table


def engines(sample: Deployment) -> list[tuple[int, int, int, int]]:
    """(engines, tp, dp, ep) of engines that decode, and of engines of prompts."""
    pools = [sample.decodes, *([sample.prompts] if sample.prompts else [])]
    return [(pool.engines, pool.layout.tp, pool.layout.dp, pool.layout.ep) for pool in pools]


APART = {"mode": "disagg", "tp_size": "", "attention_dp_size": "", "moe_tp_size": "", "moe_ep_size": ""}
STATED = {
    **APART, "origin": SEEN, "decode_batch_size": 16, "decode_num_workers": 4, "decode_tp_size": 8,
    "decode_attention_dp_size": 1, "decode_moe_tp_size": 1, "decode_moe_ep_size": 8, "prefill_num_workers": 1,
    "prefill_tp_size": 1, "prefill_attention_dp_size": 4, "prefill_moe_tp_size": 1, "prefill_moe_ep_size": 4,
}  # fmt: skip
UNSTATED = {
    **APART, "decode_tp_size": 8, "decode_attention_dp_size": 1, "decode_moe_tp_size": 4, "decode_moe_ep_size": 2,
    "prefill_tp_size": 4, "prefill_attention_dp_size": 1, "prefill_moe_tp_size": 1, "prefill_moe_ep_size": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({}, [(1, 8, 1, 1)]),
        ({"tp_size": 4, "attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16}, [(1, 1, 4, 1)]),
        ({"tp_size": 1, "attention_dp_size": 8, "moe_tp_size": 1, "moe_ep_size": 8}, [(1, 1, 8, 8)]),
        ({"tp_size": 64, "moe_tp_size": 8, "moe_ep_size": 8}, [(1, 8, 1, 8)]),
        (STATED, [(4, 8, 1, 8), (1, 1, 4, 4)]),
        (UNSTATED, [(4, 8, 1, 8), (1, 4, 1, 4)]),
        ({**UNSTATED, "decode_tp_size": 32, "concurrency": 2048}, [(1, 1, 32, 32), (1, 4, 1, 4)]),
        # 24 GPUs do not divide 256 experts: 8 times 3 do
        (
            {**UNSTATED, "decode_tp_size": 24, "decode_moe_tp_size": 3, "decode_moe_ep_size": 8, "concurrency": 2048},
            [(1, 1, 24, 8), (1, 4, 1, 4)],
        ),
    ],
)
def test_the_engines_that_a_row_states(read, row, expected):
    (sample,) = read({"concurrency": 63, **row}).of(Deployment)  # of which no list has any
    assert engines(sample) == expected


def test_a_row_takes_the_engines_of_the_one_that_states_them(read):
    other, own = read(STATED, {**UNSTATED, "tpot_ms": 9}).of(Deployment)
    assert engines(own) == engines(other)
    assert own.measured == pytest.approx({"TPOT": 0.009, "TTFT": 0.1})
    whole = {"tp_size": 36, "moe_tp_size": 36}  # 4 engines of 8 GPUs, and one of 4 that runs prompts
    assert engines(read(STATED, whole).of(Deployment)[1]) == engines(other)
    both = {**APART, "decode_tp_size": 36, "prefill_tp_size": 36}
    for row in (whole, both, {**both, "decode_tp_size": 12, "prefill_tp_size": 12}):
        found = read({}, {**row, "concurrency": 65})
        assert len(found.of(Deployment)) == 1
        assert "prompts and decodes together" in next(iter(found.skipped))


#: one GPU, which holds no DeepSeek, and a second deployment of the same load
LONE = {**UNSTATED, "decode_tp_size": 1, "prefill_tp_size": 1, "decode_moe_tp_size": 1, "decode_moe_ep_size": 1,
        "prefill_moe_ep_size": 1}  # fmt: skip
SECOND = {**STATED, "decode_num_workers": 2, "tpot_ms": 12, "ttft_ms": 90}


@pytest.mark.parametrize(
    ("others", "times", "expected"),
    [
        ((STATED, SECOND), {"tpot_ms": 12.000001, "ttft_ms": 90}, [(2, 8, 1, 8), (1, 1, 4, 4)]),  # the second's
        ((STATED,), {"tpot_ms": 11}, [(4, 8, 1, 8), (1, 1, 4, 4)]),  # there is no other
        ((STATED, SECOND), {"tpot_ms": 11}, [(4, 1, 1, 1), (1, 1, 1, 1)]),  # it may be of either
    ],
)
def test_a_row_with_the_times_of_another_is_that_row(read, others, times, expected):
    *_, own = read(*others, {**LONE, **times}).of(Deployment)
    assert engines(own) == expected


def test_a_row_that_is_faster_than_its_deployment_speculates(read):
    found = read(STATED, {**UNSTATED, "tpot_ms": 7})
    assert len(found.of(Deployment)) == 1
    ((why, count),) = found.skipped.items()
    assert "speculates" in why and count == 1


def test_fewer_clients_are_taken_where_a_row_is_one_of_several_engines(read):
    (sample,) = read({"batch_size": 16, "concurrency": 64}).of(Deployment)
    assert sample.workload.concurrency == 16


def test_without_a_configuration_rows_say_so(read, tmp_path):
    with pytest.raises(UsageError, match="no configuration of nobody/knows"):
        read({"model_path": "nobody/knows"})


def test_the_first_of_ten_requests_waits_for_all_others():
    """Two clients; the first requests have their first token after 3 s, the later ones after 1 s: 0.1 x 3 + 0.9 x 1."""
    rows = [ServedRequest(0, 0, 3, 9, 10, 4)] * 2 + [ServedRequest(9, 9, 10, 16, 10, 4)] * 2
    run = Requests(served=tuple(rows), tallies=(), span_s=16)
    load = RequestLoad(prompt=Lengths(10), generate=Lengths(4), concurrency=2, requests=4)
    assert waves(run, load, "ttft_s") == pytest.approx(1.2)
    assert waves(run, load, "tpot_s") == pytest.approx(2.0)


@pytest.mark.slow
def test_a_few_real_deployments_are_modeled_better_than_by_the_roofline():
    table = truth("serving_e2e.csv")
    if table is None:
        pytest.skip("serving_e2e.csv is not here")
    samples = [s for s in read_measured(table).of(Deployment) if s.name == "Qwen/Qwen3-32B" and not s.in_fit_half]
    rows = deployment_rows(samples[::40], Engines(), Counter())
    assert rows
    for figure in ("TPOT", "TTFT"):
        own = [row for row in rows if row.op_class.startswith(figure)]
        others = [abs(row.r1_s / row.measured_s - 1) for row in own]
        assert sum(abs(row.error) for row in own) < sum(others)


@pytest.mark.parametrize(
    ("row", "cache"),
    [
        ({"model_path": "nvidia/DeepSeek-V3.1-NVFP4", "backend": "vllm", "gemm_quant_mode": "nvfp4"}, "float8_e4m3fn"),
        ({"backend": "vllm"}, ""),
        ({"gemm_quant_mode": "fp8_block"}, ""),
    ],
)
def test_checkpoints_of_modelopt_keep_their_cache_in_fp8(read, tmp_path, row, cache):
    """hf_quant_config.json of nvidia's checkpoints says kv_cache_quant_algo FP8, which TensorRT-LLM and vLLM take."""
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4").mkdir()
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4/config.json").write_text("{}", encoding="utf-8")
    (sample,) = read(row).of(Deployment)
    assert sample.decodes.layout.kv == cache


@pytest.mark.parametrize(
    ("backend", "version", "engine", "cache"),
    [
        ("vllm", "0.19.0", "vllm@0.19.0", "float8_e4m3fn"),
        ("vllm", "0.17.0", "vllm@0.17.0", ""),
        ("vllm", "", "vllm@0.11", ""),
        ("vllm", "nightly-5b8c30d62b754b57", "vllm@0.18", ""),
        ("sglang", "0.5.9", "sglang", ""),
    ],
)
def test_versions_have_their_engine_and_cache(read, tmp_path, backend, version, engine, cache):
    """128 clients of MiniMax-M2.5 on two B200 (0.19.0; 8,192 and 1,024 tokens) wait 11.52 s and take 46.6 ms a token:
    of 11.52 + 922 x 0.0466 = 54.5 s a request decodes for 43.0, so that 101 sequences do. In bfloat16 each token takes
    62 x 4 x 128 x 2 x 2 bytes of a GPU; 101 sequences of 7,834 tokens, 100 GB, next to 115 GB of weights on 192 GB."""
    (tmp_path / "configs/MiniMaxAI--MiniMax-M2.5").mkdir()
    (tmp_path / "configs/MiniMaxAI--MiniMax-M2.5/config.json").write_text("{}", encoding="utf-8")
    row = {"backend": backend, "backend_version": version, "model_path": "MiniMaxAI/MiniMax-M2.5"}
    (sample,) = read(row).of(Deployment)
    assert (sample.engine, sample.decodes.layout.kv) == (engine, cache)


def test_a_row_without_clients_states_the_largest_batch(read):
    stated, alone = read({"batch_size": 64}, {"batch_size": 64, "concurrency": ""}).of(Deployment)
    assert (stated.states_batch, alone.states_batch, alone.workload.concurrency) == (False, True, 64)


def test_layouts_say_how_many_gpus():
    assert Layout(tp=2, dp=4, pp=3).gpus == 24 and Layout(tp=2, dp=4, pp=3).stage_gpus == 8


def test_a_listed_row_has_its_engines_drafts_and_graphs(read):
    """InferenceX lists 144 clients of TensorRT-LLM on H200 with 3 drafts and without, on 9 engines of 8 GPUs each."""
    rows = ({**UNSTATED, "concurrency": 144, "tpot_ms": ms} for ms in (12.9, 20.2))
    faster, slower = read(*rows).of(Deployment)
    assert engines(faster) == engines(slower) == [(9, 8, 1, 8), (1, 8, 1, 8)]
    assert (faster.draft_tokens, slower.draft_tokens) == (3, 0)
    assert max(slower.graphs) == 8192


def test_a_row_has_the_drafts_of_its_recipe(read):
    """recipes/h200/8k1k/bs8-1p6d-mtp.yaml: speculative-num-draft-tokens 3, the token that is verified among them."""
    sglang = {**UNSTATED, "backend": "sglang", "concurrency": 2, "isl": 8192, "decode_tp_size": 8}
    (sample,) = read(sglang).of(Deployment)
    assert (sample.draft_tokens, engines(sample)) == (2, [(6, 8, 1, 1), (1, 8, 1, 1)])
    # max-running-requests of the engines that decode, chunked-prefill-size of the others
    assert (sample.decodes.batch, sample.policy(sample.prompts).token_budget) == (16, 32768)


#: 12 clients of TensorRT-LLM on B300, which InferenceX lists on 4 engines of 4 GPUs
TWELVE = {**UNSTATED, "system": "b300_sxm", "precision": "fp4", "gemm_quant_mode": "nvfp4", "isl": 8192,
          "concurrency": 12, "decode_tp_size": 4}  # fmt: skip


def test_a_group_takes_the_sequences_of_its_recipe(read, tmp_path):
    """ctx1_gen4_tep4_batch2_eplb0_mtp0.yaml: each engine takes 2 of its 3 clients."""
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4").mkdir()
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4/config.json").write_text("{}", encoding="utf-8")
    (sample,) = read(TWELVE).of(Deployment)
    assert engines(sample)[0] == (4, 4, 1, 4)
    assert (sample.policy(sample.decodes).max_batch, sample.decodes.copies) == (2, None)


def test_experts_are_copied_as_in_their_recipe(read, tmp_path):
    """ctx3_gen1_dep32_batch64_eplb288_mtp1.yaml: 288 places for 256 experts."""
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4").mkdir()
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4/config.json").write_text("{}", encoding="utf-8")
    row = {**TWELVE, "system": "gb200", "isl": 1024, "concurrency": 2253, "decode_tp_size": 32}
    faster, slower = read({**row, "tpot_ms": 10}, {**row, "tpot_ms": 20}).of(Deployment)
    assert (faster.draft_tokens, faster.decodes.copies, faster.decodes.batch) == (1, 32, 64)
    assert (slower.draft_tokens, slower.decodes.copies) == (0, None)


@pytest.mark.parametrize(("engine", "mixed"), [("sglang", False), ("trtllm", True)])
def test_a_deployment_fills_steps_as_its_engine_does(read, engine, mixed):
    """SGLang's chunked_prefill_size on 141 GB, in steps without decodes; max_num_tokens of TensorRT-LLM."""
    (sample,) = read({"backend": engine, "isl": 2048}).of(Deployment)
    policy = sample.policy(sample.decodes)
    assert (policy.mixed, policy.cut, policy.token_budget, policy.max_batch) == (mixed, False, 8192, 2048)


def test_engines_of_prompts_do_not_cut_them(read):
    """TensorRT-LLM's enable_chunked_prefill is off by default."""
    (sample,) = read(STATED).of(Deployment)
    assert (sample.policy(sample.prompts).mixed, sample.policy(sample.decodes).mixed) == (False, True)


#: all GPUs of a deployment of SGLang on GB200
WHOLE = {**APART, "backend": "sglang", "system": "gb200", "isl": 8192, "concurrency": 384, "prefill_tp_size": 72,
         "decode_tp_size": 72}  # fmt: skip


def test_clients_that_no_list_has_are_of_the_nearest(read):
    """Lists have 512 clients and more on 5 engines of 8 GPUs and one of 32, 2,048 and more on 6 of 8 and one of 24."""
    (sample,) = read(WHOLE).of(Deployment)
    assert engines(sample) == [(1, 1, 32, 32), (5, 1, 8, 8)]


def test_a_lone_gpu_is_of_the_deployment_that_another_row_states(read):
    lone = {**WHOLE, "decode_tp_size": 1, "prefill_tp_size": 1}
    whole, own = read(WHOLE, lone).of(Deployment)
    assert engines(own) == engines(whole)


@pytest.mark.parametrize(
    ("row", "clients", "expected"),
    [
        # InferenceX lists TensorRT-LLM on H200 with whole experts on each GPU, whatever the row says
        ({"concurrency": 32, "batch_size": 32}, 32, [(1, 8, 1, 8)]),
        # 64 groups are 8 GPUs named twice: their batches of 2 are 128 clients
        ({"tp_size": 1, "attention_dp_size": 64, "moe_tp_size": 8, "moe_ep_size": 8, "batch_size": 2,
          "concurrency": 128}, 128, [(1, 1, 8, 8)]),
    ],
)  # fmt: skip
def test_one_engine_as_it_is_listed(read, row, clients, expected):
    (sample,) = read(row).of(Deployment)
    assert engines(sample) == expected and sample.workload.concurrency == clients


@pytest.mark.parametrize(("weights", "engines"), [("nvfp4", ("sglang", "")), ("fp8", ("", ""))])
def test_experts_of_prompts_in_nvfp4_run_in_the_backend_of_the_recipes(read, tmp_path, weights, engines):
    """``moe_config: {backend: TRTLLM}`` of engines of prompts, whose kernels SGLang runs too; 256 clients of 32 GPUs in
    fp8, and 666 in nvfp4, are listed."""
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4").mkdir()
    (tmp_path / "configs/nvidia--DeepSeek-V3.1-NVFP4/config.json").write_text("{}", encoding="utf-8")
    clients = {"nvfp4": 666, "fp8": 256}[weights]
    formats = dict.fromkeys(("precision", "gemm_quant_mode", "moe_quant_mode"), weights)
    row = {**UNSTATED, **formats, "system": "gb200", "decode_tp_size": 32, "concurrency": clients}
    (sample,) = read(row).of(Deployment)
    assert (sample.prompts.layout.experts_engine, sample.decodes.layout.experts_engine) == engines
