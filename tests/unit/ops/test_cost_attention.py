"""Fused attention. Expected values are worked out beside the assertions."""

import pytest

from memwall.ops.attention import pairs_up_to
from memwall.ops.served_calls import served_attention
from tests.unit.cost_calls import TENSOR_BF16, TF32, cost, expanded, spec

FLASH = "aten._scaled_dot_product_flash_attention"


def _inputs(b, h, s, d, *, t=None, hk=None, dv=None, dtype="bfloat16"):
    t, hk, dv = t or s, hk or h, dv or d
    return [
        ("query", spec(b, h, s, d, dtype=dtype)),
        ("key", spec(b, hk, t, d, dtype=dtype)),
        ("value", spec(b, hk, t, dv, dtype=dtype)),
    ]


def _outputs(b, h, s, dv, dtype="bfloat16"):
    return [spec(b, h, s, dv, dtype=dtype), spec(b, h, s, dtype="float32")]


def test_dense_forward():
    result = cost(FLASH, _inputs(2, 4, 128, 64), _outputs(2, 4, 128, 64), is_causal=False)
    assert result.flops == {TENSOR_BF16: 33_554_432}  # 2*4 heads * 128*128 pairs * (2*64 + 2*64)
    assert result.dense_flops == 33_554_432
    assert result.read_bytes == 393_216  # 3 * 2*4*128*64 * 2
    assert result.write_bytes == 135_168  # 131,072 and 2*4*128 float32
    assert (result.extra_flops, result.kernels) == (0, 1)


def test_causal_counts_the_pairs_on_and_under_the_diagonal():
    result = cost(FLASH, _inputs(2, 4, 128, 64), _outputs(2, 4, 128, 64), is_causal=True)
    assert result.total_flops == 16_908_288  # 8 heads * (128*129/2 = 8,256) * 256
    assert result.dense_flops == 33_554_432


def test_backward_is_twice_forward_and_recomputes_scores_on_top():
    inputs = [("grad_out", spec(2, 4, 128, 64)), *_inputs(2, 4, 128, 64), ("out", spec(2, 4, 128, 64)),
              ("logsumexp", spec(2, 4, 128, dtype="float32"))]  # fmt: skip
    grads = [spec(2, 4, 128, 64)] * 3
    result = cost(f"{FLASH}_backward", inputs, grads, is_causal=True)
    assert result.total_flops == 33_816_576  # 2 * 16,908,288
    assert result.dense_flops == 67_108_864
    assert result.extra_flops == 8_454_144  # 8 * 8,256 pairs * 2*64
    # grad_out again (131,072 B), a float for each of 1,024 queries written and read (2 * 4,096), and float32 dQ three
    # times: 3 * 65,536 * 4
    assert result.extra_bytes == 925_696
    assert result.kernels == 3


@pytest.mark.parametrize(("sizes", "lengths", "flops", "read_bytes"), [
    # grouped queries: the query heads' FLOPs, 32 * 16*16 * 4*128; the key heads' bytes, 32*16*128*2 + 2 * 8*16*128*2
    ((1, 32, 16, 128), {"hk": 8}, 4_194_304, 196_608),
    # a decode step reads the cache: 8 * 4096 * 4*128 and 2 * 8*4096*128*2 + 8*128*2
    ((1, 8, 1, 128), {"t": 4096}, 16_777_216, 16_779_264),
])  # fmt: skip
def test_grouped_queries_and_a_decode_step(sizes, lengths, flops, read_bytes):
    result = cost(FLASH, _inputs(*sizes, **lengths), _outputs(*sizes), is_causal=False)
    assert (result.total_flops, result.read_bytes) == (flops, read_bytes)


def test_cache_slice_reads_the_slice_only():
    # the first 100 of 4096 positions of a cache [1, 8, 4096, 128]
    part = expanded((1, 8, 100, 128), (8 * 4096 * 128, 4096 * 128, 128, 1))
    inputs = [("query", spec(1, 8, 1, 128)), ("key", part), ("value", part)]
    result = cost(FLASH, inputs, _outputs(1, 8, 1, 128))
    assert result.read_bytes == 411_648  # 2 * 8*100*128*2 + 8*128*2


def test_value_head_size_and_key_length_of_their_own():
    result = cost(FLASH, _inputs(1, 1, 3, 4, t=5, dv=8), _outputs(1, 1, 3, 8), is_causal=True)
    # top-left: query i sees i + 1 keys: 1 + 2 + 3 = 6 pairs, each 2*4 + 2*8
    assert (result.total_flops, result.dense_flops) == (144, 360)


def test_raw_flash_aligns_at_the_bottom_right_and_has_windows():
    inputs = [("query", spec(1, 3, 1, 4)), ("key", spec(1, 5, 1, 4)), ("value", spec(1, 5, 1, 4))]
    out = [spec(1, 3, 1, 4)]
    # query i sees keys 0..i+2: 3 + 4 + 5 = 12 pairs, each 2*4 + 2*4
    assert cost("aten._flash_attention_forward", inputs, out, is_causal=True).total_flops == 192
    # window of one key to the left: keys i+1, i+2: 6 pairs
    windowed = cost("aten._flash_attention_forward", inputs, out, is_causal=True, window_size_left=1)
    assert windowed.total_flops == 96


@pytest.mark.parametrize(("mask_type", "pairs"), [(0, 15), (1, 6), (2, 12)])
def test_mask_types_of_the_efficient_kernel(mask_type, pairs):
    inputs = [("query", spec(1, 3, 1, 4)), ("key", spec(1, 5, 1, 4)), ("value", spec(1, 5, 1, 4))]
    result = cost("aten._efficient_attention_forward", inputs, [spec(1, 3, 1, 4)], custom_mask_type=mask_type)
    assert result.total_flops == pairs * 16


def test_packed_sequences_count_as_equal_lengths():
    # 64 tokens in 4 sequences: 4 * 16*16 pairs * 2 heads * 4*8
    tokens = spec(64, 2, 8)
    lengths = spec(5, dtype="int32")
    inputs = [("query", tokens), ("key", tokens), ("value", tokens), ("cum_seq_q", lengths), ("cum_seq_k", lengths)]
    assert cost("aten._flash_attention_forward", inputs, [tokens]).total_flops == 65_536


def test_expanded_mask_is_read_once():
    mask = expanded((2, 4, 128, 128), (0, 0, 128, 1))
    result = cost("aten._scaled_dot_product_efficient_attention", [*_inputs(2, 4, 128, 64), ("attn_bias", mask)],
                  _outputs(2, 4, 128, 64))  # fmt: skip
    assert result.read_bytes == 393_216 + 32_768  # 128*128*2
    assert result.total_flops == 33_554_432  # a mask that is data skips nothing


def test_float32_runs_on_tf32_and_counts_one_product():
    result = cost("aten._scaled_dot_product_efficient_attention", _inputs(1, 1, 4, 4, dtype="float32"),
                  _outputs(1, 1, 4, 4, dtype="float32"))  # fmt: skip
    assert result.flops == {TF32: 256}  # 16 pairs * 16
    assert result.extra_flops == 0


@pytest.mark.parametrize(
    ("queries", "keys", "diagonal"), [(3, 5, 0), (5, 3, 0), (4, 4, -2), (4, 6, 2), (2, 3, 9), (3, 2, -7)]
)
def test_pairs_against_counting(queries, keys, diagonal):
    counted = sum(1 for i in range(queries) for j in range(keys) if j <= i + diagonal)
    assert pairs_up_to(queries, keys, diagonal) == counted


def test_the_random_state_is_touched_only_where_something_is_dropped():
    state = [spec(2, dtype="uint64"), spec(dtype="uint64")]
    outputs = [spec(1, 2, 64, 32), spec(1, 2, 64, dtype="float32"), *state]
    inputs = [(name, spec(1, 2, 64, 32)) for name in ("query", "key", "value")]
    plain = cost("aten._scaled_dot_product_flash_attention", inputs, outputs, dropout_p=0.0)
    assert plain.write_bytes == 8_704  # 2*64*32*2 and 2*64*4
    dropped = cost("aten._scaled_dot_product_flash_attention", inputs, outputs, dropout_p=0.1)
    assert dropped.write_bytes == 8_728
    back = [("grad_out", inputs[0][1]), *inputs, ("out", outputs[0]), ("logsumexp", outputs[1]),
            ("rng_state", state[0]), ("unused", state[1])]  # fmt: skip
    result = cost("aten._scaled_dot_product_flash_attention_backward", back, [inputs[0][1]] * 3, dropout_p=0.0)
    assert result.read_bytes == 41_472  # five of 8,192 and 512


def test_a_prompt_with_a_window_multiplies_no_pair_beyond_it():
    """1000 tokens of 8 heads of 64 numbers that see 100 keys each, the first ones fewer: 95,050 pairs instead of
    500,500. All keys are read once."""
    windowed, whole = (served_attention(1, 8, 2, 1000, 1000, 64, "bfloat16", most=most) for most in (100, 0))
    assert windowed.total_flops == 4 * 8 * 64 * 95_050
    assert windowed.launches[0].pairs == 95_050
    assert whole.total_flops == 4 * 8 * 64 * 500_500
    assert windowed.read_bytes == whole.read_bytes
