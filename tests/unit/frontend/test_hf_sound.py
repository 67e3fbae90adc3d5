"""``hf:``: inputs of sound, of text whose first positions are padding's, and of time series, from the configuration."""

import pytest

from memwall.frontend.targets import resolve
from memwall.frontend.torch.options import TraceOptions
from memwall.frontend.torch.run import trace

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
W2V_BERT = {**TINY, "model_type": "wav2vec2-bert", "feature_projection_input_dim": 160, "output_hidden_size": 32}
CODEC = {"num_filters": 4, "downsampling_ratios": [2, 4], "depths": [1, 1, 1], "hidden_size": 6}


@pytest.mark.parametrize(("config", "sizes", "inputs"), [
    (  # 2 s are 200 columns of 80 bins; from every 6th, 7 are stacked: ⌈200 / 6⌉ of 7 · 80
        {"model_type": "fun_asr_nano_encoder", **TINY, "num_timestamp_prediction_layers": 0},
        {"seconds": 2},
        {"input_features": (1, 34, 560), "input_features_mask": (1, 34)},
    ),
    # 10 s are 1,000 columns of 80 bins, taken in pairs
    (W2V_BERT, {}, {"input_features": (1, 500, 160)}),
    (  # 10 s are 1,000 columns of 80 bins and their differences, taken in pairs
        {"model_type": "granite_speech5_encoder", **TINY, "context_size": 8},
        {},
        {"input_features": (1, 500, 320)},
    ),
    (  # 24,000 samples, in a multiple of 12 · 9
        {"model_type": "muse_spark_audio", "num_hidden_layers": 2, "patch_sizes": [12, 9], "hidden_sizes": [128, 256],
         "depths": [1, 1]},
        {},
        {"input_values": (1, 223 * 108)},
    ),
    ({"model_type": "vibevoice_acoustic_tokenizer_encoder", **CODEC}, {}, {"hidden_states": (1, 1, 24_000)}),
    # 24,000 samples / (2 · 4)
    ({"model_type": "vibevoice_acoustic_tokenizer_decoder", **CODEC}, {}, {"hidden_states": (1, 6, 3_000)}),
    (  # a token of text and one of each of three codebooks
        {"model_type": "kyutai_speech_to_text", **TINY, "num_codebooks": 3, "ffn_dim": 64, "codebook_vocab_size": 9,
         "vocab_size": 99, "audio_bos_token_id": 8, "audio_pad_token_id": 27, "pad_token_id": 3, "bos_token_id": 4},
        {"seq": 20},
        {"input_ids": (1, 20, 4)},
    ),
    (  # positions 0 and 1 are padding's: 62 are left, in a multiple of 8
        {"model_type": "roberta", **TINY, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 1},
        {},
        {"input_ids": (1, 56)},
    ),
    ({"model_type": "bert", **TINY, "vocab_size": 99, "max_position_embeddings": 64}, {}, {"input_ids": (1, 64)}),
    (  # a language for each sample, where the configuration names none
        {"model_type": "xmod", **TINY, "vocab_size": 99, "languages": ["en_XX", "de_DE"]},
        {"seq": 8},
        {"input_ids": (1, 8), "lang_ids": (1,)},
    ),
    (
        {"model_type": "timesfm", **TINY, "head_dim": 16, "context_length": 64},
        {},
        {"past_values": (1, 64), "past_values_padding": (1, 64), "freq": (1, 1)},
    ),
], ids=lambda value: value.get("model_type", "") if isinstance(value, dict) else "")  # fmt: skip
def test_inputs_are_what_the_processor_makes(save, config, sizes, inputs):
    traced = trace(resolve(save(config), **sizes), TraceOptions())
    assert [tuple(given["shape"]) for given in traced.workload.inputs] == list(inputs.values())


TRAINED = {
    "fastspeech2_conformer": (  # 6 tokens of 4 columns each
        {"model_type": "fastspeech2_conformer", "hidden_size": 16, "vocab_size": 30, "encoder_layers": 1,
         "decoder_layers": 1, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
         "encoder_linear_units": 32, "decoder_linear_units": 32},
        {"seq": 6},
        [(1, 6), (1, 6), (1, 24, 80), (1, 6, 1), (1, 6, 1)],
    ),
    "kyutai_speech_to_text": (  # labels are tokens of text, without the codes next to them
        {"model_type": "kyutai_speech_to_text", **TINY, "num_codebooks": 3, "ffn_dim": 64, "codebook_vocab_size": 9,
         "vocab_size": 99, "audio_bos_token_id": 8, "audio_pad_token_id": 27, "pad_token_id": 3, "bos_token_id": 4},
        {"seq": 20},
        [(1, 20, 4), (1, 20)],
    ),
    "reformer": (  # whole sequences alone: 8 x 16 positions
        {"model_type": "reformer", "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
         "feed_forward_size": 32, "attn_layers": ["local"], "axial_pos_shape": [8, 16], "axial_pos_embds_dim": [16, 16],
         "local_attn_chunk_length": 16, "vocab_size": 30},
        {},
        [(1, 128), (1, 128)],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "sizes", "inputs"), TRAINED.values(), ids=TRAINED)
def test_what_training_is_given(save, config, sizes, inputs):
    traced = trace(resolve(save(config), mode="training", **sizes), TraceOptions(mode="training"))
    assert [tuple(given["shape"]) for given in traced.workload.inputs] == inputs


def test_what_is_copied_to_the_host_while_a_model_is_built_needs_no_data(save):
    """The table of relative positions is made on the device of a number, which is the host."""
    config = {"model_type": "wav2vec2-conformer", **TINY, "conv_dim": [32] * 7, "num_conv_pos_embedding_groups": 4,
              "position_embeddings_type": "relative"}  # fmt: skip
    said: list[str] = []
    trace(resolve(save(config)), TraceOptions(), said.append)
    assert not [line for line in said if "needs data" in line]
