"""Labels in training, as each head wants them; a head that memwall has none for trains on the sum of its outputs.

Detection and mask heads match their outputs to the objects of an image on the host, which needs data: they get none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from memwall.frontend.hf.asked import AskedModel, number

Inputs = Mapping[str, Tensor]
#: characters that a second of speech is written with
_CHARACTERS_PER_S = 15
#: columns of a spectrogram that a token is spoken in
_COLUMNS_PER_TOKEN = 4


def _zeros(*shape: int) -> Tensor:
    """Class 0, which exists whatever the number of classes."""
    return torch.zeros(shape, dtype=torch.int64)


def _tokens(asked: AskedModel, inputs: Inputs) -> Tensor | None:
    if "decoder_input_ids" in inputs:
        return _zeros(*inputs["decoder_input_ids"].shape)
    return _zeros(*inputs["input_ids"].shape[:2]) if "input_ids" in inputs else None  # of text, with codes or without


def _codes(asked: AskedModel, inputs: Inputs) -> Tensor:
    """CSM: a code of each codebook, which is what the processor's sound becomes."""
    return _zeros(asked.batch, asked.seq, number(asked.config, "num_codebooks") or 1)


def _sample(asked: AskedModel, inputs: Inputs) -> Tensor:
    return _zeros(asked.batch)


def _transcript(asked: AskedModel, inputs: Inputs) -> Tensor:
    """Letters of a second of speech, none of them the blank."""
    seconds = float(asked.sizes.get("seconds", 1.0))
    return _zeros(asked.batch, max(1, int(seconds * _CHARACTERS_PER_S))) + 1


def _heard(asked: AskedModel, inputs: Inputs) -> Tensor | None:
    """A mask of a spectrogram's columns, from which CTC takes its lengths."""
    features = inputs.get("input_features")
    return None if features is None else torch.ones(features.shape[:2], dtype=torch.int64)


def _pixel(asked: AskedModel, inputs: Inputs) -> Tensor:
    return _zeros(asked.batch, *asked.image)


def _hidden_patches(asked: AskedModel, inputs: Inputs) -> Tensor:
    height, width = (size // asked.patch for size in asked.image)
    hidden = torch.arange(height * width) % 2 == 0
    return hidden.expand(asked.batch, -1)


def _future(asked: AskedModel, inputs: Inputs) -> Tensor:
    from memwall.frontend.hf.makers import MAKERS

    return MAKERS["future_values"](asked)


def _motion(asked: AskedModel, inputs: Inputs) -> Tensor:
    """pi0: the actions that follow, of the shape of the noise that they are denoised from."""
    return _zeros(*inputs["noise"].shape).to(asked.dtype)


def _durations(asked: AskedModel, inputs: Inputs) -> Tensor:
    """FastSpeech 2: columns of the spectrogram that each token takes."""
    return _zeros(*inputs["input_ids"].shape) + _COLUMNS_PER_TOKEN


def _spoken(asked: AskedModel, inputs: Inputs) -> Tensor:
    """The spectrogram that is spoken, as long as its durations."""
    batch, tokens = inputs["input_ids"].shape
    return _zeros(batch, tokens * _COLUMNS_PER_TOKEN, asked.mels).to(asked.dtype)


def _of_tokens(asked: AskedModel, inputs: Inputs) -> Tensor:
    return _zeros(*inputs["input_ids"].shape, 1).to(asked.dtype)


def _yes(asked: AskedModel, inputs: Inputs) -> Any:
    return True


Make = Callable[[AskedModel, Inputs], Any]

#: End of a class's name → its labels by parameter of forward; the first that fits, and only what forward takes.
_HEADS: tuple[tuple[tuple[str, ...], Mapping[str, Make]], ...] = (
    (("CsmForConditionalGeneration",), {"input_ids": _codes, "labels": _codes}),
    (("ForPreTraining",), {"labels": _tokens, "next_sentence_label": _sample, "sentence_order_label": _sample}),
    (("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification"),
     {"labels": _tokens, "actions": _motion}),
    (("ForQuestionAnswering",), {"start_positions": _sample, "end_positions": _sample}),
    (("ForSequenceClassification", "ForImageClassification", "ForVideoClassification", "ForAudioClassification",
      "ForNextSentencePrediction"), {"labels": _sample}),
    (("ForCTC",), {"labels": _transcript, "attention_mask": _heard}),
    (("ForSemanticSegmentation",), {"labels": _pixel}),
    (("ForMaskedImageModeling", "ForPreTraining"), {"bool_masked_pos": _hidden_patches}),
    (("ForPrediction",), {"future_values": _future}),
    (("Model", "WithHifiGan"), {
        "return_loss": _yes, "duration_labels": _durations, "spectrogram_labels": _spoken, "pitch_labels": _of_tokens,
        "energy_labels": _of_tokens,
    }),
)  # fmt: skip


def with_labels(asked: AskedModel, inputs: dict[str, Any], note: Callable[[str], None]) -> dict[str, Any]:
    """The inputs with the labels of the model's head; ``note`` is told where it has none."""
    name = asked.model.__name__
    wanted = next((made for ends, made in _HEADS if name.endswith(ends)), {})
    labels = {key: make(asked, inputs) for key, make in wanted.items() if asked.takes(key)}
    labels = {key: label for key, label in labels.items() if label is not None}
    if not labels:
        note(f"the loss is the sum of the outputs: memwall has no labels for {name}")
    if asked.takes("mm_token_type_ids") and "input_ids" in inputs:  # of text alone all are 0, and some want them
        inputs = {"mm_token_type_ids": _zeros(*inputs["input_ids"].shape), **inputs}
    return {**inputs, **labels}
