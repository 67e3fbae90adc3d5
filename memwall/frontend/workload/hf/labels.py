"""Labels for heads that compute their own loss."""

from __future__ import annotations

from typing import Any

from memwall.frontend.workload.hf.asked import Asked

#: Ends of the names of classes that take labels, one for each token or one for each sample.
_TOKEN_LABELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForTokenClassification")
_SAMPLE_LABELS = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification",
                  "ForAudioClassification", "ForQuestionAnswering")  # fmt: skip


def with_labels(asked: Asked, inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs with labels: of class 0, which exists whatever the number of classes; without any where the head takes
    none."""
    import torch

    name = asked.model.__name__
    if name.endswith(_TOKEN_LABELS) and asked.takes("labels"):
        ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
        return inputs if ids is None else {**inputs, "labels": torch.zeros(ids.shape, dtype=torch.int64)}
    if not name.endswith(_SAMPLE_LABELS):
        return inputs
    taken = ("start_positions", "end_positions") if name.endswith("ForQuestionAnswering") else ("labels",)
    made = {label: torch.zeros(asked.batch, dtype=torch.int64) for label in taken if asked.takes(label)}
    return {**inputs, **made}
