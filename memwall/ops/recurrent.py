"""Recurrent layers that a library runs as one call: cuDNN's, MIOpen's, oneDNN's.

``weight`` lists, per layer and direction, w_ih [gates*H, in], w_hh [gates*H, H], then biases and a projection. Every
matrix multiplies every one of the T*B rows of the input; the gates' element-wise steps follow in the same kernels.

All of a call is one launch, a :class:`memwall.ops.product_launches.Recurrent`: its kernels overlap. Their number is
cuDNN's for its standard algorithm, or for the persistent one where the shape alone decides for it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial

from memwall.core.graph import Pipe, TensorSpec
from memwall.ops import loops
from memwall.ops.base import Call, Cost
from memwall.ops.contraction import product_flops, product_pipe
from memwall.ops.passes import streamed, vector_flops
from memwall.ops.product_launches import Recurrent
from memwall.ops.registry import define, formula
from memwall.ops.results import products as results

op = partial(formula, "contraction", is_recurrent=True)

#: cuDNN's numbers of the cells
_MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
#: gates -> the cell that has so many, where no mode is given
_CELL_OF = {1: "rnn_tanh", 3: "gru", 4: "lstm"}
#: cell -> FLOPs of a step per hidden element, without and with biases, as its element-wise ops would count: the sum of
#: each gate's two products, 3 per sigmoid, 1 per tanh, and the blend of states (LSTM 4, GRU 5 with its reset gate)
_CELLS = {"lstm": (19, 27), "gru": (14, 20), "rnn_tanh": (2, 4), "rnn_relu": (1, 3)}
#: the same of its gradient: 3 per derivative of a sigmoid or tanh (5 in an LSTM, 3 in a GRU), the products of the chain
#: rule (6 and 5), the sums where a state is used more than once (2 each); with biases a sum for each of their gradients
_CELLS_BACKWARD = {"lstm": (23, 27), "gru": (16, 20), "rnn_tanh": (4, 5), "rnn_relu": (1, 2)}


def _cost(call: Call, weights: tuple[TensorSpec, ...], passes: int) -> Cost:
    """``passes``: the products of each weight matrix with all rows."""
    launch = _launch(call, weights, passes)
    elements = sum(weight.numel for weight in weights if len(weight.shape) == 2)
    data = call.need("input")
    flops = Counter({launch.pipe: product_flops(passes * launch.rows * elements, data.dtype)})
    flops.update(_gate_flops(call, launch, passes))
    return call.cost(flops, launches=(launch,))


def _gate_flops(call: Call, launch: Recurrent, passes: int) -> dict[Pipe, int]:
    """FLOPs of the element-wise steps of all layers and directions."""
    biased = call.attributes.get("has_biases", _stride(call) >= 4)
    # a gradient of the inputs alone sums none for the biases
    steps = _CELLS_BACKWARD[launch.cell][biased and passes > 1] if launch.backward else _CELLS[launch.cell][biased]
    each = launch.rows * launch.hidden * steps
    return vector_flops(call.need("input"), launch.layers * launch.directions * each)


def _launch(call: Call, weights: tuple[TensorSpec, ...], passes: int) -> Recurrent:
    data, attributes = call.need("input"), call.attributes
    packed, stride = attributes.get("batch_sizes"), max(_stride(call), 1)
    first = [weight.shape for weight in weights[:stride] if len(weight.shape) == 2]
    rows, state = math.prod(data.shape[:-1]), first[1][1]
    steps = len(packed) if packed else data.shape[attributes.get("batch_first", False) and len(data.shape) > 2]
    hidden = attributes.get("hidden_size") or (first[2][1] if len(first) > 2 else state)
    directions = 2 if attributes.get("bidirectional") else 1
    gates = max(first[0][0] // max(hidden, 1), 1)
    mode = attributes.get("mode")
    launch = Recurrent(
        pipe=product_pipe(data.dtype, attributes),
        dtype=data.dtype,
        backward="_backward" in call.name,
        cell=_CELL_OF.get(gates, "rnn_tanh") if mode is None else _MODES[mode],
        of_weights=passes > 1,
        steps=max(steps, 1),
        rows=rows,
        layers=max(len(weights) // stride // directions, 1),
        directions=directions,
        inputs=first[0][1],
        hidden=hidden,
        state=state,
        gates=gates,
        packed=bool(packed),
        itemsize=data.itemsize,
        dropout=bool(attributes.get("dropout")),
    )
    read, written = _requested(weights, rows, 1 if launch.is_small else launch.steps, stride)
    return replace(launch, count=_kernels(launch), read_bytes=passes * read, write_bytes=passes * written)


def _kernels(launch: Recurrent) -> int:
    """The product of the inputs for all steps; then, at each step, the recurrent product, the cell and a projection, or
    one kernel for all steps where the weights stay on chip. Backward also the gradients of the weights and the sums
    for the biases. Dropout between layers is a kernel of its own."""
    each = 1 if launch.is_small else launch.steps * (3 if launch.is_projected else 2)
    gradients = (4 if launch.is_projected else 3) if launch.backward and launch.of_weights else 0
    dropouts = (launch.layers - 1) * launch.dropout
    return launch.layers * launch.directions * (1 + each + gradients) + dropouts


def _requested(weights: tuple[TensorSpec, ...], rows: int, steps: int, stride: int) -> tuple[int, int]:
    """Bytes that one pass of products reads and writes: the input's for all steps at once, the others at each of those
    steps that read their weights again."""
    read = written = 0
    for first in range(0, len(weights), stride):
        matrices = [weight for weight in weights[first : first + stride] if len(weight.shape) == 2]
        for number, weight in enumerate(matrices):
            times = steps if number else 1
            (n, k), row_bytes = weight.shape, math.ceil(rows / times) * weight.itemsize
            read += times * (weight.nbytes + k * row_bytes)
            written += times * n * row_bytes
    return read, written


def _stride(call: Call) -> int:
    """Tensors per layer and direction."""
    known: int | None = call.attributes.get("weight_stride0")
    if known:
        return known
    if "mkldnn" in call.name:
        return 2
    layers = call.attributes.get("num_layers")
    if layers:
        return len(call.args("weight")) // (layers * (2 if call.attributes.get("bidirectional") else 1))
    return 4 if call.attributes.get("has_biases", True) else 2


@op("_cudnn_rnn miopen_rnn", results=results.recurrent)
def recurrent(call: Call) -> Cost:
    """All layers, directions and steps of an RNN, LSTM or GRU."""
    return _cost(call, call.args("weight"), 1)


@op("_cudnn_rnn_backward miopen_rnn_backward", results=results.recurrent_backward)
def recurrent_backward(call: Call) -> Cost:
    """Two products per weight matrix: the gradients of its input and, where the call returns it, of itself."""
    weights = call.args("weight")
    return _cost(call, weights, 2 if len(call.outputs) >= len(weights) else 1)


@op("mkldnn_rnn_layer")
def recurrent_layer(call: Call) -> Cost:
    """One layer and direction, as torch calls it on a CPU."""
    return _cost(call, tuple(spec for name in ("weight0", "weight1") for spec in call.args(name)), 1)


@op("mkldnn_rnn_layer_backward")
def recurrent_layer_backward(call: Call) -> Cost:
    """Two products per weight matrix of one layer and direction."""
    return _cost(call, tuple(spec for name in ("weight1", "weight2") for spec in call.args(name)), 2)


@formula("elementwise", "_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward", loop=loops.opaque)
def recurrent_cell_backward(call: Call) -> Cost:
    """The gates' gradients, before the two products that take them further."""
    is_lstm, state = "lstm" in call.name, call.arg("cx") or call.need("grad_hy")
    per_element = _CELLS_BACKWARD["lstm" if is_lstm else "gru"][bool(call.attributes.get("has_bias"))]
    return streamed(call.cost(vector_flops(state, state.numel * per_element)), state.numel)


@formula("elementwise", "_thnn_fused_lstm_cell _thnn_fused_gru_cell", loop=loops.opaque, results=results.gates)
def recurrent_cell(call: Call) -> Cost:
    """The gates of an LSTM (4) or GRU (3) cell after its two products."""
    hidden = call.outputs[0]
    plain, biased = _CELLS["lstm" if "lstm" in call.name else "gru"]
    per_element = biased if call.arg("input_bias") is not None else plain
    return streamed(call.cost(vector_flops(hidden, hidden.numel * per_element)), hidden.numel)


define("_cudnn_rnn _cudnn_rnn_backward", tf32_switch="cudnn")
