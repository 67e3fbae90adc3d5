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


def target_of(folder: Path, fields: Mapping[str, Any]) -> str:
    """The target of a folder, which is made, with a configuration in it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    return f"hf:{folder}"
