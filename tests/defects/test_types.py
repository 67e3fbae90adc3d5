"""Types of transformers that were refused: speech, audio, text whose Python asks for masks' values."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def _save(folder, config):
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize("config", [
    {"model_type": "fun_asr_nano_encoder", **TINY, "num_timestamp_prediction_layers": 0},
    {"model_type": "vibevoice_acoustic_tokenizer_encoder", "num_filters": 4, "downsampling_ratios": [2, 4],
     "depths": [1, 1, 1], "hidden_size": 6},
    {"model_type": "timesfm", **TINY, "head_dim": 16, "context_length": 64},
    {"model_type": "xmod", **TINY, "vocab_size": 99},
], ids=lambda config: config["model_type"])  # fmt: skip
def test_f47_sound_text_and_series_are_given_as_the_processor_would(run, folder, config):
    """Stacked columns, halves of codecs, padding of series and languages were given as no model takes them."""
    _save(folder, config)
    done = run("profile", "hf:config.json", "--gpu", "h100", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["graph"]["ops"]


LED = {
    "model_type": "led", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 99,
    "attention_window": 32, "max_encoder_position_embeddings": 512, "max_decoder_position_embeddings": 512,
}  # fmt: skip


def test_f51_masks_of_floating_numbers_are_known(run, folder):
    """Values of floating tensors were not known, though masks that are added to scores follow from the inputs."""
    _save(folder, LED)
    done = run("profile", "hf:config.json", "--gpu", "h100", "--seq", "512", "--json")
    assert done.code == 0, done.err
    assert not any(note.startswith("assumed") for note in json.loads(done.out)["capture"].get("notes", ()))


SPEECH = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.duration, self.decoder = nn.Linear(64, 1), nn.Linear(64, 80)

    def forward(self, x):
        durations = self.duration(x).exp().round().long().flatten()
        return self.decoder(torch.repeat_interleave(x, durations, dim=0))

def model():
    return Net()

def inputs():
    return (torch.randn(32, 64),)
"""


def test_f51_predicted_durations_are_assumed_and_stated(run, folder):
    """Durations that a model predicts and rounds had no assumption: what they repeat was refused."""
    (folder / "speech.py").write_text(SPEECH, encoding="utf-8")
    for assumed, repeats in (([], 4), (["--assume", "rounded=7"], 7)):
        done = run("profile", "speech.py", "--gpu", "h100", "--json", *assumed)
        assert done.code == 0, done.err
        record = json.loads(done.out)
        flops = [op["flops"] for op in record["graph"]["ops"] if op["name"].startswith("aten.addmm")]
        assert sum(flops) == 2 * 32 * 64 * 1 + 2 * 32 * repeats * 64 * 80
        assert f"rounded={repeats}" in " ".join(record["capture"]["notes"])
