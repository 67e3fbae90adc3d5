"""Which products to pad: the model next to torch's decision trees, which its developers' timings taught.

    python lab/benchmarks/padding_trees.py

Random products, each size of 768 to 20,000 (the trees know none below), 40 % of them rounded down to a multiple of 8,
operands in either layout. Printed, of the products that a tree is sure of: on how many the model agrees, and how many
of the products that the model pads the tree pads too.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from random import Random

sys.path[:0] = [str(Path(__file__).parents[2])]

import torch  # noqa: E402
from torch._inductor.autoheuristic.artifacts._PadMMA100 import PadMMA100  # noqa: E402
from torch._inductor.autoheuristic.artifacts._PadMMH200 import PadMMH200  # noqa: E402
from torch._inductor.autoheuristic.autoheuristic_utils import pad_mm_operations  # noqa: E402
from torch._inductor.fx_passes import pad_mm  # noqa: E402

from memwall.core.graph import TensorSpec  # noqa: E402
from memwall.hardware.lookup import load_gpu  # noqa: E402
from memwall.inductor.padding import seconds  # noqa: E402

TREES = {"a100-80gb-sxm": PadMMA100(), "h200": PadMMH200()}
LEAST, COUNT = 768, 1500


def agreement(name: str, dtype: torch.dtype) -> Counter[tuple[bool, bool]]:
    """(the tree pads, the model pads) -> the products of which the tree is sure."""
    tree, gpu, random, found = TREES[name], load_gpu(name), Random(0), Counter[tuple[bool, bool]]()
    step, named = pad_mm.get_alignment_size_dtype(dtype), str(dtype).removeprefix("torch.")
    for _ in range(COUNT):
        m, k, n = (_size(random) for _ in range(3))
        added = [pad_mm.get_padded_length(size, step) for size in (m, k, n)]
        if not any(added):
            continue
        given = [TensorSpec(*_laid(random, *shape), named) for shape in ((m, k), (k, n))]
        left, right = (torch.empty_strided(one.shape, one.strides, dtype=dtype, device="meta") for one in given)
        context = pad_mm.get_context(left, right, False, False, *added)
        context.apply_operations(pad_mm_operations())
        sure, pads = max(tree.get_best_choices(context))
        if sure >= tree.get_confidence_threshold():
            plain_s, padded_s = seconds(given, (False, False), {}, gpu)
            found[bool(pads), plain_s > 1.1 * padded_s] += 1
    return found


def _size(random: Random) -> int:
    size = int(2 ** random.uniform(9.6, 14.3))
    return size if random.random() < 0.6 else max(LEAST, size // 8 * 8)


def _laid(random: Random, rows: int, columns: int) -> tuple[tuple[int, int], tuple[int, int]]:
    return (rows, columns), (columns, 1) if random.random() < 0.5 else (1, rows)


def main() -> None:
    for name in TREES:
        for dtype in (torch.float16, torch.float32):
            found = agreement(name, dtype)
            same, sure, ours = (
                found[True, True] + found[False, False],
                found.total(),
                found[True, True] + found[False, True],
            )
            padded = f"{found[True, True]} of the {ours} that the model pads" if ours else "the model pads none"
            print(f"{name} {dtype}: the same for {same} of {sure} ({100 * same / sure:.0f} %); {padded}")


if __name__ == "__main__":
    main()
