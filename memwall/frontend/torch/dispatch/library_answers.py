"""What transformers asks of tensors' values that a trace does not know, with the answer where nothing is padded.

transformers reads the attention mask on the host to see whether the mask may be left out, and the position ids to see
whether several sequences are packed into one. Each question is put as it is; where it needs data that a trace does not
have, the answer is for inputs without padding, and it is noted, as it is an assumption. The few tiny kernels that
compute an answer are left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from memwall.core import compat
from memwall.core.errors import NeedsData
from memwall.frontend.torch.process.failures import wanted_data
from memwall.frontend.torch.process.loaded import modules_below
from memwall.frontend.torch.values.known import KnownValues

#: (question, its arguments) → the answer where no input is padded, and what it assumes; empty if that changes no op.
Answer = tuple[Callable[..., Any], str]

_CHECKED = "the model's checks of its inputs' values hold"
_UNPADDED, _UNPACKED = "no input is padded", "no input holds several packed sequences"


def _without_mask(question: Callable[..., Any], mask: Any, *args: Any, **kwargs: Any) -> Any:
    """What a question that takes the mask first answers where there is no mask."""
    return question(None, *args, **kwargs)


def _always(value: Any) -> Callable[..., Any]:
    return lambda question, *args, **kwargs: value


#: Module → function, or method of a class → its answer.
_ANSWERS: Mapping[str, Mapping[str, Answer]] = {
    "transformers.masking_utils": {
        "find_packed_sequence_indices": (_always(None), _UNPACKED),
        "fast_all": (_always(True), _UNPADDED),
        compat.name_of("ignore_bidirectional_mask"): (_without_mask, _UNPADDED),
        "create_recurrent_attention_mask": (_always(None), _UNPADDED),
    },
    "transformers.utils.import_utils": {"torch_compilable_check": (_always(None), _CHECKED)},
    "transformers.modeling_utils": {"PreTrainedModel.warn_if_padding_and_no_attention_mask": (_always(None), "")},
}

#: packages whose modules hold the functions above by name
_PACKAGES = tuple({name.partition(".")[0] for name in _ANSWERS})


@contextlib.contextmanager
def library_answers(
    unrecorded: Callable[[], Any], note: Callable[[str], None], known: KnownValues | None = None
) -> Iterator[None]:
    """Answer while the body runs, in the modules that are imported already. ``unrecorded`` makes a context whose calls
    are not recorded; ``note`` is called with an assumption whenever one is made; detected boxes become ``known``."""
    asking = [module for package in _PACKAGES for module in modules_below(package)]
    with contextlib.ExitStack() as stack:
        for name, answers in _ANSWERS.items():
            module = sys.modules.get(name)
            for path, answer in answers.items() if module else ():
                for holder, key, question in _holders(module, path, asking):
                    asked = partial(_ask, question, answer, unrecorded, note)
                    replaced = _method(asked) if isinstance(holder, type) else asked
                    stack.enter_context(patch.object(holder, key, replaced))
        stack.enter_context(_synchronised_norms(note))
        stack.enter_context(_detected_boxes(known))
        stack.enter_context(_whole_generations(note))
        yield


@contextlib.contextmanager
def _synchronised_norms(note: Callable[[str], None]) -> Iterator[None]:
    """``nn.SyncBatchNorm`` takes tensors of accelerators alone, and asks which ranks had samples unless a CUDA graph is
    captured: tensors without data are one, and all had."""
    forward = torch.nn.SyncBatchNorm.forward

    def run(module: torch.nn.SyncBatchNorm, data: torch.Tensor) -> torch.Tensor:
        if module.training:
            note("every rank has samples for its synchronised batch norms")
        with (
            patch.object(compat.torch_c, compat.name_of("privateuse1_backend_name"), lambda: data.device.type),
            patch.object(torch.cuda, "is_available", lambda: True),
            patch.object(torch.cuda, "is_current_stream_capturing", lambda: True),
        ):
            return forward(module, data)

    with patch.object(torch.nn.SyncBatchNorm, "forward", run):
        yield


@contextlib.contextmanager
def _detected_boxes(known: KnownValues | None) -> Iterator[None]:
    """torchvision's detectors paste masks and keypoints into boxes whose sizes Python reads: they are assumed."""
    heads: Any = getattr(sys.modules.get("torchvision.models.detection.roi_heads"), "RoIHeads", None)
    if heads is None or known is None:
        yield
        return
    detect = heads.postprocess_detections

    def run(self: Any, logits: Any, regression: Any, proposals: Any, image_shapes: Any) -> Any:
        boxes, *others = detect(self, logits, regression, proposals, image_shapes)
        for found, (height, width) in zip(boxes, image_shapes, strict=True):
            if known.assumptions is not None and not known.has(found):
                known.give(found, *known.assumptions.boxes(len(found), height, width))
        return boxes, *others

    with patch.object(heads, "postprocess_detections", run):
        yield


@contextlib.contextmanager
def _whole_generations(note: Callable[[str], None]) -> Iterator[None]:
    """``generate()`` stops at its length: which token ends a sequence depends on weights."""
    criteria: Any = getattr(sys.modules.get("transformers.generation.stopping_criteria"), "EosTokenCriteria", None)
    if criteria is None:
        yield
        return

    def call(self: Any, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        note("generate() makes as many tokens as it may: no sequence ends before")
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    with patch.object(criteria, "__call__", call):
        yield


def _ask(
    question: Callable[..., Any],
    answer: Answer,
    unrecorded: Callable[[], Any],
    note: Callable[[str], None],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The true answer where the values are known, else the answer for inputs without padding."""
    try:
        with unrecorded():
            found = question(*args, **kwargs)
            return found if getattr(found, "dim", None) is None or found.dim() else bool(found)
    except Exception as error:
        if not isinstance(error, NeedsData) and wanted_data(error) is None:
            raise
    supply, assumed = answer
    if assumed:
        note(assumed)
    return supply(question, *args, **kwargs)


def _holders(module: ModuleType | None, path: str, asking: list[ModuleType]) -> list[tuple[Any, str, Any]]:
    """Where a function is held: a class, or its module and modules that imported it by name; each with its key."""
    owner, _, key = path.rpartition(".")
    if owner:
        holder = getattr(module, owner, None)
        return [(holder, key, vars(holder)[key])] if holder is not None and key in vars(holder) else []
    question = getattr(module, key, None)
    if question is None:
        return []
    return [(m, key, question) for m in asking if vars(m).get(key) is question]


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)
