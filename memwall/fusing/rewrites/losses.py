"""A linear layer and the cross entropy of its output, chunk by chunk: logits of all rows are never in memory.

After ``torch.nn.functional.linear_cross_entropy`` of torch 2.13 with ``LinearCrossEntropyOptions()`` on CUDA
(torch/nn/modules/linear_cross_entropy.py, policy ``compact``): for each chunk of rows the logits are made in one buffer
(float32 for bfloat16), turned into their gradient in place, and at once multiplied into the gradients of the input and
of the weight, which is read and written by every chunk; backward scales both by the incoming gradient. Bytes saved:
logits, log-softmax and their gradients. Time paid: each chunk reads the weight twice and reads and writes its gradient,
and softmax and gradient are separate ops over the buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from memwall.core.flow import Flow
from memwall.core.graph import Graph, Op
from memwall.fusing.rewrites.rewrite import Priced, Rewrite, new_op
from memwall.ops import Cost

#: ops that pass the logits, or their gradient, through unchanged
_COPIES = ("aten._to_copy", "aten.clone", "aten.copy", "aten.slice_backward")
_PRODUCTS = ("aten.mm", "aten.addmm")
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class LinearLoss:
    """A linear layer whose output only feeds a cross entropy, and the backward of both. Fields are value ids.
    ``forward`` and ``backward`` are the op ids that a chunked loss replaces; ``bias`` and the gradients are -1 where
    there are none."""

    module: str
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    x: int
    weight: int
    target: int
    loss: int
    grad_out: int
    bias: int = -1
    grad_x: int = -1
    grad_weight: int = -1
    grad_bias: int = -1


def linear_losses(graph: Graph) -> tuple[LinearLoss, ...]:
    """The linear losses of a training graph."""
    flow = Flow.of(graph)
    losses = (_linear_loss(graph, flow, op) for op in graph.ops if op.name.startswith("aten.nll_loss_forward"))
    return tuple(loss for loss in losses if loss is not None)


def default_rows(rows: int, classes: int, features: int) -> int:
    """Rows of a chunk as torch chooses them (``aspect_ratio:2``): half of the rows whose logits are as large as the
    input, a power of two."""
    wanted = -(-rows // -(-classes // features))
    return max(1, min((1 << (wanted - 1).bit_length()) // 2, rows))


def with_chunked_loss(graph: Graph, costs: Sequence[Cost], loss: LinearLoss, chunk_rows: int | None = None) -> Priced:
    """The graph with the loss computed in chunks of ``rows``; None takes torch's choice."""
    rewrite = Rewrite(graph, costs)
    _LossChunks(rewrite, loss, chunk_rows).replace()
    return rewrite.result()


def _linear_loss(graph: Graph, flow: Flow, nll: Op) -> LinearLoss | None:
    log_softmax = _writer(graph, flow, nll, "self")
    if log_softmax is None or not log_softmax.name.startswith("aten._log_softmax"):
        return None
    chain = [log_softmax]
    while (before := _writer(graph, flow, chain[0], "self")) is not None and before.name.startswith(_COPIES):
        chain.insert(0, before)
    if before is None or not before.name.startswith(_PRODUCTS):
        return None
    forward = (before, *chain, nll)
    gradient = _gradient_chain(graph, flow, log_softmax)
    if not gradient:
        return None
    named = dict(zip(before.arguments, before.inputs, strict=True))
    users = _users(graph, flow, gradient[-1])
    products = [op for op in users if op.name.startswith("aten.mm")]
    sums = [op for op in users if op.name.startswith("aten.sum")]
    if not products or len(products) + len(sums) != len(users) or len(products) > 2 or len(sums) > 1:
        return None
    weight = named["mat2"]
    weights = graph.values[weight].storage
    by_kind = {any(graph.values[v].storage == weights for v in op.inputs): op.outputs[0] for op in products}
    backward = (*gradient, *products, *sums)
    return LinearLoss(
        before.module,
        tuple(op.id for op in forward),
        tuple(op.id for op in backward),
        named.get("mat1", named["self"]),
        weight,
        nll.inputs[nll.arguments.index("target")],
        nll.outputs[0],
        gradient[0].inputs[gradient[0].arguments.index("grad_output")],
        named["self"] if "mat1" in named else -1,
        by_kind.get(True, -1),
        by_kind.get(False, -1),
        sums[0].outputs[0] if sums else -1,
    )


def _writer(graph: Graph, flow: Flow, op: Op, argument: str) -> Op | None:
    """The op that made an argument; for a copy the only one it has."""
    position = op.arguments.index(argument) if argument in op.arguments else 0
    if not flow.reads[op.id]:
        return None
    number = flow.writer[flow.reads[op.id][position][1]]
    return graph.ops[number] if number >= 0 else None


def _users(graph: Graph, flow: Flow, op: Op) -> list[Op]:
    """The later ops that read what an op writes."""
    return [graph.ops[r] for _, version in flow.writes[op.id] for r in flow.readers[version] if r > op.id]


def _gradient_chain(graph: Graph, flow: Flow, log_softmax: Op) -> list[Op]:
    """From the loss's backward to the last op before the products: each result is read by the next op only."""
    version = flow.writes[log_softmax.id][0][1]
    readers = [graph.ops[r] for r in flow.readers[version]]
    chain = [op for op in readers if op.name.startswith("aten.nll_loss_backward")]
    if len(chain) != 1:
        return []
    while True:
        after = _users(graph, flow, chain[-1])
        onward = [op for op in after if op.name.startswith(("aten._log_softmax_backward_data", *_COPIES))]
        if len(onward) != 1 or len(after) != 1:
            return chain if len(chain) > 1 else []
        chain.append(onward[0])


class _LossChunks:
    """Writes the ops of the chunked loss. Shapes: input [n, f], weight [v, f], logits of a chunk [r, v]."""

    def __init__(self, rewrite: Rewrite, loss: LinearLoss, chunk_rows: int | None) -> None:
        self.rewrite, self.loss = rewrite, loss
        values = rewrite.values
        self.n, self.f = values[loss.x].spec.shape
        self.v = values[loss.weight].spec.shape[1]
        self.rows = chunk_rows or default_rows(self.n, self.v, self.f)
        self.dtype = values[loss.x].spec.dtype
        self.is_half = self.dtype in _HALF
        self.exact = "float32" if self.is_half else self.dtype
        buffer = self.exact if self.dtype == "bfloat16" else self.dtype
        self.weight = rewrite.transposed(loss.weight)
        self.logits = rewrite.tensor((self.rows, self.v), buffer)
        self.grad_x = loss.grad_x
        self.grad_weight = loss.grad_weight
        if self.grad_weight >= 0 and values[self.grad_weight].spec.shape != (self.v, self.f):
            self.grad_weight = rewrite.transposed(self.grad_weight)
        self.grad_bias = loss.grad_bias if loss.grad_bias < 0 else rewrite.view(loss.grad_bias, (self.v,), (1,))
        self.row_weight = rewrite.tensor((self.n,), self.exact)
        self.sum = rewrite.tensor((), self.exact)
        self.x_exact = rewrite.tensor((self.rows, self.f), self.exact) if self.is_half else -1
        self.ops: list[Op] = []

    def _op(self, name: str, outputs: Sequence[int], attributes: dict | None = None, /, **inputs: int) -> int:
        self.ops.append(new_op(f"aten.{name}", "forward", self.loss.module, inputs.items(), outputs, attributes or {}))
        return outputs[0]

    def _new(
        self, name: str, shape: Sequence[int], dtype: str, attributes: dict | None = None, /, **inputs: int
    ) -> int:
        return self._op(name, (self.rewrite.tensor(shape, dtype),), attributes, **inputs)

    def _inplace(self, name: str, target: int, attributes: dict | None = None, /, **others: int) -> int:
        return self._op(name, (target,), attributes, self=target, **others)

    def replace(self) -> None:
        """Put the loop where the loss was computed, the scaling where the gradients were."""
        self._prepare()
        for start in range(0, self.n, self.rows):
            self._chunk(start, min(self.rows, self.n - start))
        self._op("_to_copy", (self.loss.loss,), self=self.sum)
        self.rewrite.replace(self.loss.forward, self.loss.forward[-1], self.ops)
        self.ops = []
        for gradient in (self.grad_x, self.grad_weight, self.grad_bias):
            if gradient >= 0:
                self._inplace("mul_.Tensor", gradient, other=self.loss.grad_out)
        scaling = [dataclasses.replace(op, phase="backward") for op in self.ops]
        self.rewrite.replace(self.loss.backward, self.loss.backward[0], scaling)

    def _prepare(self) -> None:
        """The weight of each row (0 where it is ignored, -1/n else), and cleared sums."""
        mask = self._new("eq.Scalar", (self.n,), "bool", self=self.loss.target)
        kept = self._new("bitwise_not", (self.n,), "bool", self=mask)
        self._op("_to_copy", (self.row_weight,), self=kept)
        total = self._new("sum", (), self.exact, {"dim": None}, self=self.row_weight)
        self._inplace("div_.Tensor", self.row_weight, other=total)
        for buffer in (self.sum, self.grad_weight, self.grad_bias):
            if buffer >= 0:
                self._op("zeros", (buffer,))

    def _chunk(self, start: int, count: int) -> None:
        rewrite, loss = self.rewrite, self.loss
        logits = rewrite.rows(self.logits, 0, count)
        x = rewrite.rows(loss.x, start, count)
        target = rewrite.rows(loss.target, start, count)
        share = rewrite.rows(self.row_weight, start, count)
        if self.is_half and self.grad_weight >= 0:
            self._op("copy_", (rewrite.rows(self.x_exact, 0, count),), src=x)
        self._op("mm", (logits,), self=x, mat2=loss.weight)
        if loss.bias >= 0:
            self._inplace("add_.Tensor", logits, other=loss.bias)
        largest = self._new("amax", (count, 1), self.exact, {"dim": [1], "keepdim": True}, self=logits)
        self._inplace("sub_.Tensor", logits, other=largest)
        picked = self._new("gather", (count, 1), self.exact, {"dim": 1}, self=logits, index=target)
        self._add_dot(share, picked)
        self._inplace("exp_", logits)
        total = self._new("sum.dim_IntList", (count,), self.exact, {"dim": [1]}, self=logits)
        factor = self._new("div.Tensor", (count,), self.exact, self=share, other=total)
        self._inplace("mul_.Tensor", logits, other=rewrite.view(factor, (count, self.v), (1, 0)))
        self._add_dot(share, self._inplace("log_", total))
        self._gradients(start, count, logits, x, target, share)

    def _add_dot(self, share: int, value: int) -> None:
        self._inplace("add_.Tensor", self.sum, other=self._new("dot", (), self.exact, self=share, tensor=value))

    def _gradients(self, start: int, count: int, logits: int, x: int, target: int, share: int) -> None:
        rewrite = self.rewrite
        if self.grad_bias >= 0:
            summed = self._new("sum.dim_IntList", (self.v,), self.exact, {"dim": [0]}, self=logits)
            self._inplace("sub_.Tensor", self.grad_bias, other=summed)
            self._inplace("index_add_", self.grad_bias, {"dim": 0}, index=target, source=share)
        factor = logits
        if rewrite.values[logits].spec.dtype != self.dtype:
            factor = self._new("_to_copy", (count, self.v), self.dtype, self=logits)
        if self.grad_x >= 0:
            rows = self._new("index_select", (count, self.f), self.dtype, {"dim": 0}, self=self.weight, index=target)
            grad = rewrite.rows(self.grad_x, start, count)
            self._op("mul.Tensor", (grad,), self=rows, other=rewrite.view(share, (count, self.f), (1, 0)))
            self._op("addmm", (grad,), self=grad, mat1=factor, mat2=self.weight)
        if self.grad_weight >= 0:
            self._op("addmm_", (self.grad_weight,), self=self.grad_weight, mat1=rewrite.transposed(factor), mat2=x)
            self._scatter(count, x, target, share)

    def _scatter(self, count: int, x: int, target: int, share: int) -> None:
        """The rows of the input, weighted, onto the rows of the weight's gradient that their targets name."""
        rewrite = self.rewrite
        weighted = rewrite.view(share, (count, self.f), (1, 0))
        if self.is_half:
            source = self._inplace("mul_.Tensor", rewrite.rows(self.x_exact, 0, count), other=weighted)
            source = self._new("_to_copy", (count, self.f), self.dtype, self=source)
        else:
            source = self._new("mul.Tensor", (count, self.f), self.dtype, self=x, other=weighted)
        self._inplace("index_add_", self.grad_weight, {"dim": 0}, index=target, source=source)
