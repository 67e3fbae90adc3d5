"""Small random programs of elementwise ops, sums, softmaxes, views and writes in place, each by its seed.

``python -m tests.unit.random_programs FOLDER SEED...`` runs their kernels in Triton's interpreter: a line for each.
"""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.odd_cases import BF16, F16, F32, Case, mixed

SIZES = (1, 2, 3, 5, 7, 13)
UNARY = (torch.sigmoid, F.gelu, torch.tanh, F.relu, torch.neg, lambda x: x * 0.5 + 1)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum)
REDUCE = (torch.sum, torch.mean, torch.amax)
#: arguments of ``generate_nests``
PATHS = ({}, {"split": False}, {"split": True}, {"persistent": False, "split": False})


def program(seed: int) -> Case:
    """The program of a seed; its inputs are broadcast against each other."""
    draw = random.Random(seed)
    shape = tuple(draw.choice(SIZES) for _ in range(draw.randint(1, 4)))
    shapes = [shape, *(tuple(draw.choice((1, n)) for n in shape) for _ in range(draw.randint(0, 2)))]
    specs = [(one, draw.choice((F32, F32, F16, BF16))) for one in shapes]
    path, choices = draw.choice(PATHS), draw.randrange(1 << 30)
    return Case(lambda *tensors: _run(random.Random(choices), tensors), mixed(*specs), (), path=path)


def _run(draw: random.Random, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    known, writes = list(tensors), draw.random() < 0.3
    for _ in range(draw.randint(2, 6)):
        known.append(draw.choice(STEPS)(draw, draw.choice(known), known))
        if writes and draw.random() < 0.3:
            tensors[0].add_(1)
    return tuple(known[-3:])


def _unary(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    return draw.choice(UNARY)(x)


def _binary(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    fitting = [
        y for y in known if all(a == b or 1 in (a, b) for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))
    ]
    return draw.choice(BINARY)(x, draw.choice(fitting))


def _reduce(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    dims = tuple(d for d in range(x.dim()) if draw.random() < 0.5) or ((-1,) if x.dim() else ())
    return draw.choice(REDUCE)(x, dim=dims, keepdim=draw.random() < 0.7)


def _softmax(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    return draw.choice((torch.softmax, torch.log_softmax))(x, draw.randrange(max(x.dim(), 1)))


def _view(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    if draw.random() < 0.5:
        return x.permute(draw.sample(range(x.dim()), x.dim())) * 2
    return (x[..., ::2] if x.dim() else x) + 1


def _cat(draw: random.Random, x: Tensor, known: list[Tensor]) -> Tensor:
    return torch.cat((x, x * 2), draw.randrange(x.dim())) if x.dim() else x * 2


STEPS: tuple[Callable[[random.Random, Tensor, list[Tensor]], Tensor], ...] = (
    _unary, _binary, _binary, _reduce, _reduce, _softmax, _view, _cat,
)  # fmt: skip


def main(folder: str, *seeds: str) -> None:
    """Print a line of JSON for each kernel."""
    from tests.unit import generated_child, odd_cases  # asks for the interpreter

    torch.set_num_threads(1)
    generated_child.round_to_nearest()
    odd_cases.CASES |= {seed: program(int(seed)) for seed in seeds}
    for result in generated_child.cases(seeds, Path(folder)):
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
