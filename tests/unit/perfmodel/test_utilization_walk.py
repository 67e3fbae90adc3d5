"""Kernels whose blocks walk along a sequence: bytes, FLOPs and grids by hand, and the time of measured calls."""

import pytest

from memwall.bench.accuracy import score_files
from memwall.core.graph import Pipe
from memwall.hardware.lookup import load_gpu
from memwall.ops import linear_attention as linear
from memwall.ops import sparse_attention as sparse
from memwall.ops.served_calls import latent_chosen
from memwall.perfmodel.families import as_run, explain, predict
from memwall.perfmodel.roofline import predict_cost
from tests.unit.places import is_whole, part_of, truth

H100, H200, B200 = load_gpu("h100-sxm"), load_gpu("h200"), load_gpu("b200")
BF16, FP8 = Pipe.parse("tensor.bfloat16"), Pipe.parse("tensor.fp8")
#: Qwen3.5-35B-A3B: 16 heads of queries and keys, 32 of values, 128 numbers each
QWEN = linear.Heads(16, 32)


def test_a_cuda_block_convolves_a_channel_of_a_sequence():
    """2 sequences of 3000 tokens x 512 channels: 1024 blocks of 3 turns of 1024 tokens; 2 B x 3.07e6 numbers."""
    (work,) = linear.causal_conv(2, 3000, 512, rows=True).launches
    assert (work.blocks, work.steps) == (1024, 3)
    assert work.read_bytes == 2 * 2 * 3000 * 512 + 2 * 4 * 512
    assert work.write_bytes == 2 * 2 * 3000 * 512 + 2 * 2 * 3 * 512  # and the last three tokens
    (odd,) = linear.causal_conv(2, 3001, 512, rows=True).launches
    assert odd.steps == 6  # no whole vectors


def test_a_triton_block_convolves_eight_tokens_of_256_channels():
    (work,) = linear.causal_conv(2, 20, 1000).launches
    assert work.blocks == 2 * 3 * 4


def test_a_step_of_the_convolution_reads_and_writes_its_window():
    """64 sequences x 8192 channels: three tokens before and one new, 2 B each, and as many written."""
    cost = linear.conv_update(64, QWEN.channels)
    assert QWEN.channels == 2 * 16 * 128 + 32 * 128 == 8192
    assert (cost.read_bytes, cost.write_bytes) == (2 * 64 * 8192 * 4 + 2 * 4 * 8192, 2 * 64 * 8192 * 4)


def test_a_decode_of_the_delta_rule_reads_and_writes_the_state():
    """64 sequences of 32 states of 128 x 128 float32 numbers: 134 MB each way; q, k, v, two gates and a result."""
    cost = linear.delta_decode(64, QWEN)
    state = 64 * 32 * 128 * 128 * 4
    assert cost.read_bytes == state + 2 * 64 * (2 * 16 * 128 + 32 * 130)
    assert cost.write_bytes == state + 2 * 64 * 32 * 128
    (work,) = cost.launches
    assert work.blocks == 64 * 32 * 4  # 32 of 128 values each
    halved = linear.delta_decode(64, QWEN, state_dtypes=("bfloat16", "float32"))
    assert cost.read_bytes - halved.read_bytes == state // 2


def test_a_prompt_of_the_delta_rule_needs_the_recurrence_alone():
    """1000 tokens x 32 heads: state times key, its change and state times query, 2 x 128 x 128 each. Chunks of 64 do
    more: 16 of them, 1024 tokens, for which 2 x 64 x (3 x 128 + 2 x 128) inside a chunk besides."""
    cost = linear.delta_prefill(1, 1000, QWEN, fused=True)
    assert cost.flops == {BF16: 1000 * 32 * 3 * 2 * 128 * 128}
    (work,) = cost.launches
    assert (work.blocks, work.steps) == (32, 16)
    assert work.flops == 1024 * 32 * (3 * 2 * 128 * 128 + 2 * 64 * 5 * 128)


def test_five_triton_kernels_take_the_chunks_and_one_walks_along_them():
    parallel, walked = linear.delta_prefill(2, 1000, QWEN).launches
    assert (parallel.count, parallel.blocks, parallel.steps) == (5, 2 * 32 * 16, 1)
    assert (walked.count, walked.blocks, walked.steps) == (1, 2 * 32 * 2, 16)
    (fused,) = linear.delta_prefill(2, 1000, QWEN, fused=True).launches
    assert parallel.flops + walked.flops == fused.flops


def test_a_scan_of_mamba_2_by_hand():
    """Nemotron 3 Nano: 64 heads of 64 numbers with 128 of state. Into the state and out of it, 2 x 64 x 128 a head;
    inside chunks of 128 the scores of 8 groups, 2 x 128 x 128 each, and their product with 64 numbers of each head."""
    space = linear.StateSpace(64, 64, 128, 8)
    assert (space.numbers, space.channels) == (64 * 64 * 128, 64 * 64 + 2 * 8 * 128)
    cost = linear.scan_prefill(1, 256, space)
    assert cost.flops == {BF16: 256 * 64 * 2 * 2 * 64 * 128}
    parallel, walked = cost.launches
    assert parallel.flops == 256 * (8 * 2 * 128 * 128 + 64 * 2 * 128 * 64 + 64 * 2 * 2 * 64 * 128)
    assert walked.steps == 2
    state = 4 * 32 * 64 * 64 * 128
    assert linear.scan_decode(32, space).write_bytes == state + 2 * 32 * 64 * 64


def test_an_index_takes_as_many_queries_as_have_128_heads():
    """GLM-5, 32 heads of 128: four queries a block. 512 tokens after 3584: 128 blocks of at most 16 steps of 256."""
    cost = sparse.index_scores(1, 32, 512, 4096)
    pairs = 512 * 3584 + 512 * 513 // 2
    assert cost.flops == {FP8: 2 * pairs * 32 * 128}
    assert cost.write_bytes == 4 * pairs
    (work,) = cost.launches
    assert (work.blocks, work.steps) == (128, 16)
    (lone,) = sparse.index_scores(8, 32, 1, 4096).launches  # four sequences in a block
    assert (lone.blocks, lone.steps) == (2, 64)


def test_sparse_attention_walks_along_all_places_for_a_choice():
    """GLM-5: 2048 places, 64 a step, though there are 300 tokens; 64 heads x 64 keys x (576 + 512) a step. The last ten
    of 300 tokens see 291 to 300, 2955 in all, with keys of 192 and values of 128 numbers."""
    cost = latent_chosen(1, 10, 64, 300, 2048)
    work = as_run(cost.launches[0], H100)
    assert (work.kind, work.blocks, work.steps) == ("sparse_prefill", 10, 32)
    assert work.flops == 10 * 32 * 2 * 64 * 64 * 1088
    assert cost.flops == {BF16: 2 * 64 * 2955 * 320}
    assert cost.read_bytes == 2 * 300 * 576 + 2 * 10 * 64 * 576 + 4 * 10 * 300


def test_rows_that_are_no_longer_than_what_is_chosen_are_not_searched():
    """Four rows of 100, 101, 102 and 103 scores, of each the 101 largest: 205 scores of two rows are read."""
    (work,) = sparse.choice(4, 100, 103, 101).launches
    assert (work.blocks, work.read_bytes, work.write_bytes) == (4, 4 * 205, 4 * 4 * 101)
    assert work.mean_steps == pytest.approx(205 / 4 / 1024)
    (none,) = sparse.choice(4, 98, 101, 101).launches
    assert (none.steps, none.read_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("engine", "cache", "heads", "queries", "on_h100", "on_b200"),
    [
        ("vllm", "bfloat16", 16, 1, "sparse_prefill", "latent"),  # platforms/cuda.py: up to 16 heads FlashInfer's
        ("vllm", "bfloat16", 32, 1, "sparse_prefill", "sparse_prefill"),
        ("vllm", "fp8", 32, 1, "sparse_decode", "latent"),
        ("vllm", "fp8", 16, 64, "sparse_decode", "sparse_gen_fp8"),  # flashmla_sparse.py: MIN_HEADS_FOR_BF16_PREFILL
        ("vllm", "fp8", 32, 64, "sparse_prefill", "sparse_gen_fp8"),
        ("trtllm", "bfloat16", 32, 1, "sparse_rows", "latent"),  # forward_sparse_mla_kvcache_bf16
        ("trtllm", "bfloat16", 32, 64, "sparse_rows", "sparse_gen"),
        ("sglang", "bfloat16", 32, 1, "latent", "latent"),  # fa3, trtllm
        ("sglang", "bfloat16", 32, 64, "sparse_prefill", "sparse_prefill"),  # flashmla_sparse
        ("sglang", "fp8", 32, 64, "sparse_decode", "sparse_gen_fp8"),  # flashmla_kv, trtllm
    ],
)
def test_which_kernel_attends_to_chosen_latents(engine, cache, heads, queries, on_h100, on_b200):
    (work,) = latent_chosen(4, queries, heads, 4096, 2048, engine=engine, cache=cache).launches
    kinds = [getattr(as_run(work, gpu), "kind", "latent") for gpu in (H100, B200)]
    assert kinds == [on_h100, on_b200]


def test_steps_over_filled_places_are_shared_among_all_multiprocessors():
    """100 tokens before and 28 new ones see 101 to 128, 114.5 on average: two steps of 64 keys for each of 28 rows."""
    (work,) = latent_chosen(1, 28, 64, 128, 2048, engine="trtllm").launches
    walk = as_run(work, B200)
    assert (walk.blocks, walk.steps) == (56, 1)


def test_prompts_of_deepseek_v4_run_four_sequences_at_a_time():
    """Nine sequences: three passes of three kernels, six others; a window of 128 and 32 entries, 64 a step."""
    (work,) = sparse.sparse_window(9, 128, 16, 4096, 32, window=128).launches
    assert (work.passes, work.count, work.steps) == (3, 15, 3)
    assert work.blocks == 9 * 16 * 2
    (decode,) = sparse.sparse_window(9, 128, 1, 4096, 32, window=128).launches
    assert (decode.passes, decode.count) == (1, 7)


def test_a_cast_reads_two_bytes_and_writes_one():
    assert [(w.read_bytes, w.write_bytes) for w in sparse.cast_fp8(8, 128).launches] == [(2048, 1024)]
    moved = [(w.read_bytes, w.write_bytes) for w in sparse.cast_fp8(8, 128, kind="cast_eager").launches]
    assert moved == [(2048, 4096), (4096, 4096), (4096, 1024), (1024, 1024)]  # float32 between the kernels
    (work,) = sparse.amax(8, 4096).launches
    assert (work.read_bytes, work.count) == (2 * 8 * 4096, 2)  # a memset, and the kernel


def test_waves_take_turns():
    """As many blocks as an H100 has multiprocessors take one wave, one more takes two, each of the same length."""
    one, two = (
        predict(latent_chosen(1, queries, 64, 4096, 2048).launches[0], H100)
        for queries in (H100.sm_count, H100.sm_count + 1)
    )
    assert (one.facts["waves"], two.facts["waves"]) == (1, 2)
    assert two.facts["walk_s"] == pytest.approx(2 * one.facts["walk_s"])


def test_blackwell_pairs_the_blocks_of_128_heads():
    work = sparse.sparse_window(1, 128, B200.sm_count, 128, 1, window=128).launches[0]
    assert work.blocks == 2 * B200.sm_count
    assert (predict(work, B200).facts["waves"], predict(work, H200).facts["waves"]) == (1, 3)


def test_a_long_prompt_takes_as_long_as_its_chunks_follow_each_other():
    """One head of one sequence: twice the tokens take twice as long; 32 heads no longer than one."""
    short, long = (
        predict_cost(linear.delta_prefill(1, tokens, linear.Heads(1, 1), fused=True), H200).time_s
        for tokens in (16384, 32768)
    )
    assert long == pytest.approx(2 * short, rel=0.05)
    many = predict_cost(linear.delta_prefill(1, 16384, linear.Heads(16, 32), fused=True), H200).time_s
    assert many < 1.1 * short


def test_the_words_say_what_decides():
    (work,) = latent_chosen(1, 10, 64, 300, 2048).launches
    said = explain(work, H200, predict(work, H200))
    assert said.startswith("10 blocks of 32 steps in 1 wave on 132 SMs take ")


#: tables and the largest median error of rows that no constant is fitted to
TABLES = {"aic_gated_delta": 0.12, "aic_mamba2": 0.12, "aic_sparse_kernels": 0.15, "aic_quantize": 0.15}


@pytest.mark.parametrize("table", TABLES)
def test_measured_calls_that_no_constant_was_fitted_to(table, request, tmp_path):
    path = truth(f"{table}.csv")
    if path is None:
        pytest.skip(f"{table} is not here")
    found = score_files([path if is_whole(request) else part_of(path, 4, tmp_path)], split=True)
    errors = sorted(abs(row.error) for row in found.split.held_out)
    assert len(errors) > 100
    assert errors[len(errors) // 2] < TABLES[table]
    assert not [row.shape for row in found.rows if row.is_violation]
