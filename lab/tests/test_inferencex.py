"""Rows of InferenceX that state no engines: the engines that its lists have, by hand."""

import pytest

from memwall.serving.steps import Layout
from memwall_lab.tables.inferencex import Deployed, Listed, in_order, listed

B300 = ("b300_sxm", "trtllm", "nvfp4", "1024", "1024")
GB200 = ("gb200", "sglang", "fp8", "1024", "1024")


@pytest.mark.parametrize(
    ("load", "clients", "gpus", "is_whole", "expected"),
    [
        # 10 clients are listed with 3 drafts on 5 engines of 8 GPUs, and without on 5 of 4
        (B300, 10, 8, False, [(3, (1, 2, "dep"), (5, 8, "tep"))]),
        (B300, 10, 4, False, [(0, (1, 2, "dep"), (5, 4, "tep"))]),
        (B300, 10, 40, False, [(3, (1, 2, "dep"), (5, 8, "tep"))]),  # all that decode
        (B300, 10, 22, True, [(0, (1, 2, "dep"), (5, 4, "tep"))]),  # 1 x 2 + 5 x 4
        (B300, 10, 16, False, []),
        # 72 = 3 x 8 + 48, and 48 = 2 x 8 + 32; 5,120 clients are in no list, and 4,096 with 72 GPUs are the nearest
        (GB200, 2048, 72, True, [(0, (3, 8, "dep"), (1, 48, "dep"))]),
        (GB200, 4096, 48, True, [(0, (2, 8, "dep"), (1, 32, "dep"))]),
        (GB200, 5120, 72, True, [(0, (3, 8, "dep"), (1, 48, "dep"))]),
        (GB200, 5120, 48, False, []),
    ],
)
def test_the_deployments_that_a_row_may_be_of(load, clients, gpus, is_whole, expected):
    found = listed(load, clients, gpus, is_whole)
    assert [(each.draft_tokens, *((p.engines, p.gpus, p.split) for p in (each.prompts, each.decodes))) for each in found
            ] == expected  # fmt: skip


def test_layouts_of_splits():
    sizes = {split: Listed(1, 8, split).held(Layout(engine="trtllm")) for split in ("tp", "tep", "dp", "dep")}
    assert {split: (own.tp, own.dp, own.ep) for split, own in sizes.items()} == {
        "tp": (8, 1, 1), "tep": (8, 1, 8), "dp": (1, 8, 1), "dep": (1, 8, 8)}  # fmt: skip


@pytest.mark.parametrize(
    ("load", "clients", "gpus", "expected"),
    [
        # c1_ctx1_gen9_tep8_batch1_eplb0_mtp0 and ctx1_gen3_tep16_batch8_eplb0_mtp0 of the lists: 11 clients of 9
        # engines that take one each, and 30 of 3 that take 8
        (("h200_sxm", "trtllm", "fp8", "1024", "1024"), 11, 72, [(1, None)]),
        (("h100_sxm", "trtllm", "fp8", "8192", "1024"), 30, 48, [(8, None), (8, None)]),
        # DECODE_MAX_BATCH_SIZE=256 and PREFILL_MAX_NUM_TOKENS=8448 of the list of 2025
        (("gb200", "trtllm", "nvfp4", "8192", "1024"), 2150, 8, [(256, 8448), (256, 8448)]),
    ],
)
def test_what_the_engines_of_a_list_take(load, clients, gpus, expected):
    found = listed(load, clients, gpus, is_whole=False)
    assert [(each.batch, each.prompt_tokens) for each in found] == expected


PROMPTS, ONE, FOUR = Listed(1, 4, "dep"), Listed(1, 8, "dep"), Listed(4, 8, "tep")
FASTER, FEW, MANY = (Deployed((64,), *own) for own in ((3, PROMPTS, ONE), (0, PROMPTS, FOUR), (0, PROMPTS, ONE)))


@pytest.mark.parametrize(
    ("found", "time_s", "times_s", "slowest_s", "expected"),
    [
        # three times, of which two are of the same deployment, of two
        ((FASTER, MANY), 7.0, (7.0, 12.0, 12.3), 12.3, FASTER),
        ((FASTER, MANY), 12.3, (7.0, 12.0, 12.3), 12.3, MANY),
        ((FASTER, FEW, MANY), 9.0, (7.0, 9.0, 12.0), 12.0, FEW),
        # a lone time speculates if others of the load take 1.3 times as long
        ((FASTER, MANY), 7.0, (7.0,), 12.0, FASTER),
        ((FASTER, MANY), 7.0, (7.0,), 9.0, MANY),
        ((MANY,), 7.0, (7.0, 12.0), 12.0, MANY),
    ],
)
def test_times_in_their_order(found, time_s, times_s, slowest_s, expected):
    assert in_order(found, time_s, times_s, slowest_s) is expected
