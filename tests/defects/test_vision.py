"""Models of images, videos and robots, and what their Python asks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers")

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
GEMMA = {"model_type": "gemma", **TINY, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 99}
SIGLIP = {"model_type": "siglip_vision_model", **TINY, "image_size": 28, "patch_size": 14, "vision_use_head": False}
HIERA = {"model_type": "sam2_hiera_det_model", "hidden_size": 8, "embed_dim_per_stage": [8, 16, 32, 64],
         "num_attention_heads_per_stage": [1, 2, 4, 8], "blocks_per_stage": [1, 1, 1, 1],
         "global_attention_blocks": []}  # fmt: skip


@pytest.mark.parametrize("fields", [
    {"model_type": "minicpmv4_7_vision", **TINY, "image_size": 56, "patch_size": 14},
    {"model_type": "inkling2_vision", **TINY, "patch_size": 14, "spatial_merge_size": 2, "text_hidden_size": 32},
    {"model_type": "video_llama_3_vision", **TINY, "patch_size": 14},
    {"model_type": "muse_glimmer_assistant", **TINY, "num_key_value_heads": 1, "head_dim": 16, "block_size": 4,
     "target_layer_ids": [0, 1, 2], "layer_types": ["full_attention"]},
    {"model_type": "pi0", "dit_config": GEMMA, "vlm_config": {
        "model_type": "paligemma", "text_config": GEMMA, "vision_config": SIGLIP, "projection_dim": 32,
        "image_token_id": 99}},
    {"model_type": "sam2_video", "vision_config": {
        "backbone_config": HIERA, "backbone_channel_list": [64, 32, 16, 8]}},
], ids=lambda fields: fields["model_type"])  # fmt: skip
def test_f47_inputs_of_images_videos_and_robots(run, folder, fields):
    """The processors of these models lay images out in ways of their own, or hand over a session or a robot's state,
    and the models were given pixels that do not fit, or were refused."""
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    result = run("profile", f"hf:{folder}", "--gpu", "h100")
    assert result.code == 0, result.err


MASKED = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(100, 4096)

    def forward(self, ids, features):
        x = self.table(ids)
        mask = (ids == 7).unsqueeze(-1).expand_as(x)
        assert x[mask].numel() == features.numel()
        return x.masked_scatter(mask, features)

def model():
    return Net()

def inputs():
    ids = torch.zeros(1, 2100, dtype=torch.long)
    ids[:, :64] = 7
    return ids, torch.randn(64, 4096)
"""


def test_f51_a_mask_of_tokens_is_known_however_wide_the_tokens_are(run, folder):
    """A mask of tokens that is expanded to their width has more than a million elements, whose values were not carried
    along, so that half of them were assumed to be true."""
    (folder / "masked.py").write_text(MASKED, encoding="utf-8")
    result = run("profile", "masked.py", "--gpu", "h100", "--json")
    assert result.code == 0, result.err
    assert "nonzero=" not in result.out


ASKED = {
    "a list as index": "n = n[:, [2, 0]]; assert n.tolist() == [[2, 0], [5, 3]]",
    "a format": "assert f'expert_{n[0, 1]}, {n.sum():>4d}' == 'expert_1,   15'",
}


@pytest.mark.parametrize("line", ASKED.values(), ids=ASKED.keys())
def test_f51_lists_as_indices_and_numbers_in_texts(run, folder, line):
    """An index that is a list became a tensor without its numbers, and a known number was formatted as a tensor."""
    (folder / "asks.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x, n):\n"
        f"        {line}\n        return x * 2\n\n"
        "def model():\n    return Net()\n\ndef inputs():\n"
        "    return torch.randn(4, 4), torch.arange(6).view(2, 3)\n",
        encoding="utf-8",
    )
    assert (result := run("profile", "asks.py", "--gpu", "h100")).code == 0, result.err
