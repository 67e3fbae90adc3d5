"""Losses of classes, sequences and margins: cross entropy, CTC, RNN transducers, multi-class margins."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from memwall.core.graph import TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost, fetched_bytes
from memwall.ops.domains import class_number, counted_targets
from memwall.ops.passes import launched, looped, pass_over, per_element, stream_of, streamed, vector_flops
from memwall.ops.registry import formula
from memwall.ops.results import rows as results
from memwall.ops.results import windows

op = partial(formula, "reduction")
#: a cross entropy belongs to the softmax before it
picked = partial(formula, "normalization")

#: threads of a block of the losses of pictures, of which one takes the places of 128 (NLLLoss2d.cu)
_PICTURE_THREADS = 1024

#: of a state of a lattice: its three predecessors added in log space (three differences, three exponentials, two adds,
#: a logarithm, an add) and the symbol's log probability (LossCTC.cu, ctc_loss_log_alpha_gpu_kernel)
_CTC_STATE = 11
#: the same with two predecessors, each with a log probability of its own (Graves 2012, equation 16)
_TRANSDUCER_STATE = 8
#: memory round trips of a time step, which waits for the one before: the states, then the barrier
_STEP_TRIPS = 2
_THREADS = 512


def _lattice(call: Call) -> tuple[TensorSpec, TensorSpec]:
    """Log probabilities [T, B, classes] and the states' [B, T, 2 L + 1]."""
    states = call.arg("log_alpha") or call.outputs[1]
    return call.need("log_probs"), states


@op("_ctc_loss")
def ctc_loss(call: Call) -> Cost:
    """11 per state of the lattice; time steps wait for each other. The log probabilities of the targets are
    read, one for each state."""
    scores, states = _lattice(call)
    read = call.bytes_except("log_probs") + min(scores.nbytes, states.numel * scores.itemsize)
    cost = call.cost(vector_flops(states, _CTC_STATE * states.numel), read_bytes=read)
    return _stepwise(cost, states)


def _stepwise(cost: Cost, states: TensorSpec) -> Cost:
    """The cost as one launch of which a block goes through the time steps of a sequence."""
    batch, steps = states.shape[0], states.shape[1]
    blocks = math.ceil(batch * min(states.shape[2], _THREADS) / _THREADS)
    return streamed(cost, states.numel, steps=_STEP_TRIPS * steps, blocks=blocks)


@op("_ctc_loss_backward")
def ctc_loss_backward(call: Call) -> Cost:
    """The lattice from its end (11 per state), its product with the forward one summed for each class (3 more), and 3
    per log probability: exp, a difference, the product with the loss's gradient."""
    scores, states = _lattice(call)
    lattice, classes = (_CTC_STATE + 3) * states.numel, 3 * scores.numel
    cost = call.cost(vector_flops(scores, lattice + classes))
    beta = _stepwise(Cost(vector_flops(states, lattice), states.nbytes, states.nbytes), states)
    rest = stream_of(call.cost(vector_flops(scores, classes)), scores.numel)
    return launched(cost, *beta.launches, rest)


@op("_cudnn_ctc_loss")
def cudnn_ctc_loss(call: Call) -> Cost:
    """The loss and its gradient at once, of scores [T, B, classes] whose softmax cuDNN takes itself: 5 per score, and 3
    for the gradient. The states of the lattice are few next to the classes, and not counted."""
    scores = call.need("log_probs")
    return streamed(call.cost(vector_flops(scores, 8 * scores.numel)), scores.numel, steps=scores.shape[0], blocks=1)


@op("torchaudio::rnnt_loss_forward")
def transducer_loss(call: Call) -> Cost:
    """Logits [B, T, U, classes]: a log softmax (4 per logit: max, subtract, exp, sum), the lattice both ways (8 per
    state each), and the gradient (3 per logit; rnnt/gpu/gpu_kernels.cuh). T + U steps wait for each other."""
    logits = call.need("logits")
    states = logits.numel // max(logits.shape[-1], 1)
    flops = 7 * logits.numel + 2 * _TRANSDUCER_STATE * states
    cost = call.cost(vector_flops(logits, flops))
    diagonals = sum(logits.shape[1:3])
    denominators = pass_over(logits.nbytes, states * logits.itemsize, logits.numel)
    both = 2 * states * logits.itemsize
    lattice = replace(pass_over(both, both, states), steps=_STEP_TRIPS * diagonals, blocks=logits.shape[0])
    return launched(cost, denominators, lattice, stream_of(cost, logits.numel))


@op("torchaudio::forced_align")
def forced_alignment(call: Call) -> Cost:
    """The best path through CTC's lattice: comparisons and an add per state, time steps after each other."""
    scores, targets = call.need("log_probs"), call.need("targets")
    states = math.prod(scores.shape[:2]) * (2 * targets.shape[-1] + 1)
    cost = call.cost(vector_flops(scores, states))
    return streamed(cost, states, steps=_STEP_TRIPS * scores.shape[1], blocks=scores.shape[0])


#: threads of the block that takes a row, and load latencies besides its loop: the target, its score, and the sum of
#: what the threads found, which one of them makes (MultiMarginLoss.cu, MULTIMARGIN_THREADS)
_MARGIN_THREADS, _MARGIN_STEPS = 128, 2.5


@op("multi_margin_loss")
@op("multi_margin_loss_backward")
def multi_margin(call: Call) -> Cost:
    """A difference, a sum with the margin, its use (with ``p`` 2 a square) and the reduction's add; 2 backward."""
    data, flops = call.need("self"), 2 if "backward" in call.name else 3
    classes = data.shape[-1] if data.shape else 1
    rows = data.numel // max(classes, 1)
    return looped(
        call.cost(vector_flops(data, flops * data.numel)),
        data.numel,
        rows * _MARGIN_THREADS,
        math.ceil(classes / _MARGIN_THREADS) + _MARGIN_STEPS,
        "a block goes over each row",
        _MARGIN_THREADS,
    )


# each class against each target of a row: 3 FLOP a pair; how many targets a row has is in data: one, the least
op("multilabel_margin_loss_forward multilabel_margin_loss_backward")(per_element("self", 3))


def _loss_threads(targets: int) -> int:
    """Threads of the only block that picks the losses of a batch (Loss.cu, nll_loss_threads, since torch 2.8)."""
    return min(max(1 << round(math.log2(max(targets // 16, 1))), 32), 1024)


@picked("nll_loss_forward", loop=loops.nll, results=results.nll_loss, domains={"target": class_number})
@picked("nll_loss2d_forward", results=results.nll_loss)
def nll_loss(call: Call) -> Cost:
    """Reads one element per target, not the whole row; one add per target where the loss is reduced: one block goes
    through all targets, and waits for each and then for its score (Loss.cu); of pictures each has a block for every
    131,072 places (NLLLoss2d.cu)."""
    scores, target, weight = call.need("self"), call.need("target"), call.arg("weight")
    read = fetched_bytes(scores, target.numel) + target.nbytes
    if weight is not None:
        read += fetched_bytes(weight, target.numel)
    reduced = bool(call.attributes.get("reduction", 1))
    cost = call.cost(vector_flops(scores, target.numel * reduced), read_bytes=read)
    if not reduced:
        return streamed(cost, target.numel)
    if "2d" not in call.name:
        threads = call.attributes.get("threads") or _loss_threads(target.numel)
        return streamed(cost, target.numel, round_trips=2 * math.ceil(target.numel / threads))
    images = target.shape[0] if target.shape else 1
    threads = _PICTURE_THREADS * max(target.numel // max(images, 1) // (128 * _PICTURE_THREADS), 1) * images
    steps = 2 * math.ceil(target.numel / max(threads, 1))
    about = "a thread goes over places, and waits for each target and then for its score"
    return looped(cost, target.numel, threads, steps, about, _PICTURE_THREADS)


@picked("nll_loss_backward", loop=loops.point, results=windows.like_input,
    domains={"target": class_number, "total_weight": counted_targets})  # fmt: skip
@picked("nll_loss2d_backward", results=windows.like_input)
def nll_loss_backward(call: Call) -> Cost:
    """Writes the whole gradient: zeros, then one element per target. The scores themselves are not read."""
    target, weight = call.need("target"), call.arg("weight")
    read = target.nbytes + sum(spec.nbytes for spec in (call.need("grad_output"), call.arg("total_weight")) if spec)
    if weight is not None:
        read += fetched_bytes(weight, target.numel)
    again = pass_over(read, target.numel * call.outputs[0].itemsize, target.numel)
    return call.cost(read_bytes=read, launches=(pass_over(0, call.write_bytes), again))
