"""What collectives hand on of known numbers: rank 2 of 8, each of which holds what this one does."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

import memwall

RANKS, RANK = 8, 2


def run(body, *assume):
    """The profile of ``body(x)`` of a [4096, 16] tensor on one rank."""

    class Program(nn.Module):
        def forward(self, x):
            return body(x)

    def model():
        dist.init_process_group("nccl")
        return Program()

    workload = memwall.Workload(model, (torch.zeros(4096, 16),))
    return memwall.profile(workload, cluster="dgx-h100", world=RANKS, rank=RANK, assume=assume)


def numbers(x):
    """0 to 7, known."""
    return torch.arange(RANKS, device=x.device)


def into(shape, call):
    def body(x):
        made = torch.empty(shape, dtype=torch.int64, device=x.device)
        call(made, numbers(x))
        return made

    return body


def in_place(op):
    def body(x):
        dist.all_reduce(made := numbers(x), op=op)
        return made

    return body


def listed(x):
    made = [torch.empty_like(numbers(x)[:1]) for _ in range(RANKS)]
    dist.all_to_all(made, list(numbers(x).chunk(RANKS)))
    return torch.cat(made)


def gathered_list(x):
    made = [torch.empty_like(numbers(x)) for _ in range(RANKS)]
    dist.all_gather(made, numbers(x))
    return torch.cat(made)


def scattered_list(x):
    made = torch.empty_like(numbers(x)[:1])
    dist.reduce_scatter(made, list(numbers(x).chunk(RANKS)))
    return made


def uneven(x):
    """This rank sends 1 number to each of the first four and 1 to each other but none to the last: 0 to 6."""
    sizes = [1] * (RANKS - 1) + [0]
    made = torch.empty(RANKS, dtype=torch.int64, device=x.device)
    dist.all_to_all_single(made, numbers(x)[:-1], [1] * RANKS, sizes)
    return made


def broadcast(x):
    dist.broadcast(made := numbers(x), 0)
    return made


@pytest.mark.parametrize(("body", "wanted"), [
    (into(RANKS, dist.all_to_all_single), [RANK] * RANKS),
    (into(RANKS * RANKS, dist.all_gather_into_tensor), [*range(RANKS)] * RANKS),
    (into(1, dist.reduce_scatter_tensor), [RANK * RANKS]),
    (in_place(dist.ReduceOp.SUM), [n * RANKS for n in range(RANKS)]),
    (in_place(dist.ReduceOp.MAX), [*range(RANKS)]),
    (listed, [RANK] * RANKS),
    (gathered_list, [*range(RANKS)] * RANKS),
    (scattered_list, [RANK * RANKS]),
    (uneven, [RANK] * RANKS),
    (broadcast, [*range(RANKS)]),
    (lambda x: functional.all_reduce(numbers(x), "sum", dist.group.WORLD), [n * RANKS for n in range(RANKS)]),
    (lambda x: functional.all_to_all_single(numbers(x), None, None, dist.group.WORLD), [RANK] * RANKS),
])  # fmt: skip
def test_ranks_that_are_alike_send_what_this_one_has(body, wanted):
    found = []

    def read(x):
        found.append(body(x).tolist())
        return x

    made = run(read)
    assert found[-1] == wanted
    assert any(note.startswith("assumed: ranks=alike") and "test_sent_values.py" in note for note in made.notes)


def test_no_product_over_ranks_is_guessed():
    found = []

    def read(x):
        found.append(in_place(dist.ReduceOp.PRODUCT)(x).tolist())
        return x

    assert any(note.startswith("assumed: rounded=4") for note in run(read).notes)
    assert found[-1] == [4] * RANKS


def exchange(x):
    """Rows go to two experts on each rank, by counts that are exchanged before them."""
    chosen = x.softmax(-1).topk(1, -1).indices[:, 0]
    counts = torch.bincount(chosen, minlength=2 * RANKS)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, received = (each.view(RANKS, 2).sum(1).tolist() for each in (counts, arriving))
    rows = x.new_empty(sum(received), 16)
    dist.all_to_all_single(rows, x[chosen.argsort()], received, sent)
    return rows @ rows.new_ones(16, 16)


def multiplied_rows(made):
    (product,) = (op for op in made.graph.ops if op.name == "aten.mm")
    return made.graph.values[product.outputs[0]].spec.shape[0]


def test_balanced_experts_receive_as_many_rows_as_they_send():
    # 4,096 rows over 16 experts: 256 for each, of which this rank's two are sent 2 x 256 by each of 8 ranks
    assert multiplied_rows(run(exchange)) == 4096


def test_another_assumption_holds_where_it_is_asked_for():
    made = run(exchange, "ranks=unknown")
    assert any(note.startswith("assumed: rounded=4") for note in made.notes)
    assert multiplied_rows(made) == 4 * RANKS  # 4 of each rank
