"""Configurations of transformers models, and targets of folders with one of them in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Llama-3-8B
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
#: 2 of its layers
SHORT_LLAMA = LLAMA | {"num_hidden_layers": 2}
#: Whisper-large-v3 with 2 of its 32 layers on either side
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 1280,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 20, "decoder_attention_heads": 20,
    "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "num_mel_bins": 128, "max_source_positions": 1500,
    "max_target_positions": 448, "vocab_size": 51866, "is_encoder_decoder": True, "dtype": "bfloat16",
}  # fmt: skip


def target_of(folder: Path, fields: Mapping[str, Any]) -> str:
    """The target of a folder, which is made, with a configuration in it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return f"hf:{folder}"
