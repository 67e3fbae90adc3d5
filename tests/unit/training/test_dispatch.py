"""How tokens get to experts of other GPUs: bytes on each level counted by hand."""

import pytest
import torch
from torch import nn

import memwall
from memwall.core.errors import UsageError
from memwall.hardware.cluster import load_cluster
from memwall.ops.launches import Message
from memwall.ops.routing import expected_groups
from memwall.perfmodel.collectives import collective_s
from memwall.training.dispatch import Routing, hybrid_legs, hybrid_time
from tests.unit.small_modules import Experts, Routed

TOKENS, WIDTH, EXPERTS, TOP_K = 64, 32, 16, 2


def test_groups_that_a_token_reaches():
    """Of 4 experts on 2 nodes two are chosen: of the 6 pairs one leaves a node out, so each is reached 5 times of 6."""
    assert expected_groups(4, 2, 2) == pytest.approx(2 * 5 / 6)
    assert expected_groups(4, 2, 4) == 2
    assert expected_groups(8, 3, 1) == 1


def test_a_token_is_sent_once_to_each_node_and_once_to_each_gpu_there():
    """4 GPUs on 2 nodes with an expert each: of a token's 600 bytes 5/3 copies between the nodes, 2 inside them."""
    legs = hybrid_legs(2 * 600, 4, 2, Routing(2, 4))
    assert [(pytest.approx(nbytes), ranks, per_node) for nbytes, ranks, per_node in legs] == [
        (1000, 2, 1),
        (1200, 2, 2),
    ]
    assert [leg.ranks for leg in hybrid_legs(2 * 600, 4, 4, Routing(2, 4))] == [4]  # one node
    assert [leg.ranks for leg in hybrid_legs(2 * 600, 4, 1, Routing(2, 4))] == [4]  # a GPU a node


def test_the_slower_level_counts():
    """16 GPUs of two DGX H100, 8 of 128 experts: the network carries each token once where an all-to-all sends half of
    its 8 rows there, and takes longer than NVLink."""
    cluster, rows = load_cluster("dgx-h100"), 8 * 4096 * 2048 * 2
    found = hybrid_time(Message(op="all_to_all", nbytes=rows, group="0-15"), cluster, Routing(8, 128))
    between = collective_s("all_to_all", rows / 8 * expected_groups(128, 8, 2), 2, cluster, per_node=1)
    assert found.time_s == pytest.approx(between.time_s)
    assert found.sent_bytes["network"] == pytest.approx(4096 * 2048 * 2, rel=0.01)  # all tokens, to the other node
    assert collective_s("all_to_all", rows, 16, cluster).sent_bytes["network"] == pytest.approx(8 * rows / 2, rel=0.01)


class Unchosen(Routed):
    def choose(self, tokens):
        scores = self.router(tokens)[:, :TOP_K]
        return scores, scores.long()


class Model(nn.Module):
    def __init__(self, chooses=True):
        super().__init__()
        kind = Routed if chooses else Unchosen
        self.layers = nn.ModuleList(kind(Experts(EXPERTS, WIDTH, WIDTH), WIDTH, EXPERTS, TOP_K) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def found(layout, **how):
    inputs = (torch.zeros(TOKENS, WIDTH, dtype=torch.bfloat16),)
    return memwall.parallel(Model(**how), inputs, layout=layout, cluster="dgx-h100")


def test_a_layout_with_hybridep():
    """16 GPUs, one of the 16 experts each: two messages a layer forward and two backward, on both levels; what the
    first layer reads takes no gradient."""
    rows = TOKENS * TOP_K * WIDTH * 2
    flat = found("dp=16,ep=16,microbatches=3")
    assert flat.messages()["all_to_all", rows, 16] == (4 * 4 - 1) * 3
    hybrid = flat.on("dp=16,ep=16,microbatches=3,dispatcher=hybridep")
    nodes, gpus = (1 - 8 * 7 / (16 * 15)) * 2, (1 - 15 * 14 / (16 * 15)) * 16  # 2 of 16 experts, of 8 and of 15
    for copies, ranks in ((nodes, 2), (gpus, 8)):
        assert hybrid.messages()["all_to_all", round(TOKENS * WIDTH * 2 * copies), ranks] == (4 * 4 - 1) * 3
    assert ("all_to_all", rows, 16) not in hybrid.messages()
    assert hybrid.step.model_flops == flat.step.model_flops
    assert found("dp=16,ep=16,microbatches=3,dispatcher=hybridep").step.time_s == hybrid.step.time_s


def test_layouts_that_cannot_be():
    cases = (
        ("dp=8,dispatcher=hybridep", "dispatcher=hybridep brings tokens to experts of other GPUs: give ep=2"),
        ("dp=8,a2a_overlap", "a2a_overlap hides messages to experts of other GPUs: give ep=2"),
        ("dp=8,ep=8,pp=2,schedule=zb,a2a_overlap", "give 1f1b or interleaved:N"),
        ("dp=8,ep=8,fsdp=full,a2a_overlap", "messages of fsdp=full in each microbatch is not modeled"),
        ("dp=8,ep=8,dispatcher=deepep", "there is alltoall, hybridep"),
    )
    for layout, why in cases:
        with pytest.raises(UsageError, match=why):
            found(layout)
    with pytest.raises(UsageError, match=r"no torch\.topk of the model says how many experts"):
        found("dp=8,ep=8,dispatcher=hybridep", chooses=False)
