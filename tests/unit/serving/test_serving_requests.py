"""Requests on a simulated server: by hand, against a loop over every step, and what must hold of any server."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import Policy, Speculation
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.requests import Disaggregated, simulate_requests
from memwall.serving.simulation.served import Requests, ServedRequest, Spread, batch_ranks, interval_ranks, sure_from
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine, Saturating, Windowed
from tests.unit.serving.naive_server import serve

RANGE = RequestLoad(prompt=Lengths(1024, 0.5, 1.0), generate=Lengths(128, 0.5, 1.0), concurrency=24, requests=120)
PLAIN = Policy(captured=())


def fixed(prompt, generate, **options):
    return RequestLoad(prompt=Lengths(prompt), generate=Lengths(generate), **options)


def trace(*rows):
    return RequestLoad(trace=tuple(AskedRequest(*row) for row in rows))


def test_one_request_alone():
    """TTFT is the step of its prompt, and each later token a decode step: contexts of 100, 101, 102."""
    steps = Affine(base_s=1, decode_s=0.5, context_s=0.01, prompt_s=0.1)
    found = simulate_requests(steps, fixed(100, 4, concurrency=1, requests=1), PLAIN)
    assert found.ttft.mean == pytest.approx(1 + 10)
    assert found.tpot.mean == pytest.approx(1.5 + 0.01 * 101)
    assert found.e2e.mean == pytest.approx(11 + 3 * 2.51)
    assert (found.tallies[0].steps, found.prompt_share, found.batch) == (4, 0.25, pytest.approx(7.53 / 18.53))
    assert found.tokens_per_s == pytest.approx(4 / 18.53)
    assert found.tokens_per_s_per_user == pytest.approx(1 / 2.51)


def test_a_prompt_over_the_budget_comes_in_chunks():
    """250 tokens in steps of 100, 100, 50; the cache before them is read again."""
    steps = Affine(base_s=1, decode_s=0, context_s=0.001, prompt_s=0.01)
    found = simulate_requests(
        steps, fixed(250, 2, concurrency=1, requests=1), replace(PLAIN, token_budget=100, max_batch=1)
    )
    assert found.ttft.mean == pytest.approx(3 + 2.5 + 0.001 * (100 + 200))


def test_two_requests_share_a_step_and_a_third_waits_for_a_place():
    """Batch of two: both prompts in one step of 3 s, then nine decode steps of 1 s; the third begins at 12 s."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0.1)
    found = simulate_requests(steps, trace((0, 10, 10), (0, 10, 10), (5, 20, 10)), replace(PLAIN, max_batch=2))
    assert [row.ttft_s for row in found.served] == pytest.approx([3, 3, 7 + 3])
    assert [row.end_s for row in found.served] == pytest.approx([12, 12, 24])
    assert found.served[2].wait_s == pytest.approx(7)


def test_decodes_go_on_in_a_chunked_step_and_wait_otherwise():
    """The second request arrives in the first one's third decode step: its prompt of 2 s is shared, or stalls it."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0.1)
    rows = (0, 10, 11), (4.5, 10, 11)
    shared = simulate_requests(steps, trace(*rows), PLAIN)
    apart = simulate_requests(steps, trace(*rows), replace(PLAIN, mixed=False, cut=False))
    assert [row.end_s for row in shared.served] == pytest.approx([2 + 10 + 1, 7 + 10])
    assert [row.end_s for row in apart.served] == pytest.approx([2 + 10 + 2, 7 + 10])
    assert shared.served[1].ttft_s == apart.served[1].ttft_s == pytest.approx(0.5 + 2)


def test_each_group_runs_a_prompt_of_its_own_however_long_it_is():
    """Three prompts of 150 tokens in steps of 100: one a step, and three where as many groups share the steps."""
    steps, policy = Affine(), replace(PLAIN, mixed=False, cut=False, token_budget=100)
    rows = [(0.0, 150, 1)] * 3
    assert simulate_requests(steps, trace(*rows), policy).tallies[0].steps == 3
    assert simulate_requests(steps, trace(*rows), policy.of_groups(3, 1)).tallies[0].steps == 1


def test_a_whole_prompt_waits_until_its_group_has_room():
    """Two groups with steps of 100 tokens: of prompts of 60 each takes one, since two of 60 are 120 tokens. 5 want
    three steps; together 200 tokens would have held three."""
    policy = replace(PLAIN, mixed=False, cut=False, token_budget=100).of_groups(2, 1)
    assert simulate_requests(Affine(), trace(*[(0.0, 60, 1)] * 5), policy).tallies[0].steps == 3


def test_a_group_takes_no_more_of_a_prompt_than_its_own_tokens():
    """A prompt of 300 tokens is on one of four groups of 100 tokens: three steps. Four such prompts take three too."""
    policy = replace(PLAIN, token_budget=100, max_batch=50).of_groups(4, 1)
    assert simulate_requests(Affine(), trace((0.0, 300, 1)), policy).tallies[0].steps == 3
    assert simulate_requests(Affine(), trace(*[(0.0, 300, 1)] * 4), policy).tallies[0].steps == 3


def test_the_decodes_of_a_group_take_its_tokens():
    """Two groups of 10 tokens. Two requests decode, one on each group, when a prompt of 27 comes: 9 tokens are left of
    its group in each step, of which it takes three."""
    policy = replace(PLAIN, token_budget=10, max_batch=4).of_groups(2, 1)
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0)
    found = simulate_requests(steps, trace((0, 10, 20), (0, 10, 20), (5, 27, 1)), policy)
    assert found.served[2].ttft_s == pytest.approx(3)


def test_whole_prompts_share_steps_with_decodes_and_are_not_cut():
    """Steps of 100 tokens, 1 s each. One request decodes, so that 99 tokens are left: of two prompts of 60 the second
    waits for the next step, of which a prompt that is cut has 39 tokens before and is done in the same one."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0)
    policy = replace(PLAIN, token_budget=100, cut=False, max_batch=50)
    found = simulate_requests(steps, trace((0, 10, 20), (4.5, 60, 1), (4.5, 60, 1)), policy)
    assert [row.ttft_s for row in found.served] == pytest.approx([1, 1.5, 2.5])
    assert found.served[0].end_s == pytest.approx(20)
    cut = simulate_requests(steps, trace((0, 10, 20), (4.5, 98, 1), (4.5, 98, 1)), replace(policy, cut=True))
    whole = simulate_requests(steps, trace((0, 10, 20), (4.5, 98, 1), (4.5, 98, 1)), policy)
    assert [run.tallies[0].prompt_steps for run in (cut, whole)] == [3, 3]


def test_a_whole_prompt_longer_than_a_step_is_alone_next_to_decodes():
    """A step of 100 tokens with one decode, and prompts of 250 and of 20: the long one is the only one of its step."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0)
    policy = replace(PLAIN, token_budget=100, cut=False, max_batch=50)
    found = simulate_requests(steps, trace((0, 10, 20), (4.5, 250, 1), (4.5, 20, 1)), policy)
    assert [row.ttft_s for row in found.served[1:]] == pytest.approx([1.5, 2.5])


def test_groups_and_stages_have_tokens_and_graphs_each():
    """Four groups of two stages: 8 steps of 100 tokens are under way, of 40 sequences; a graph of 3 sequences of each
    step holds 24 in all."""
    found = replace(PLAIN, token_budget=100, max_batch=10, captured=(1, 3)).of_groups(4, 2)
    assert (found.token_budget, found.max_batch, found.captured, found.groups) == (800, 40, (8, 24), 8)


def test_a_full_cache_preempts_the_youngest_once():
    """Six blocks of 16 for two requests of 32 + 32 tokens. Each takes three blocks until the token after its 48th
    wants a fourth: at 16 decode steps the second one falls, and comes back for its prompt and 17 tokens when the first
    has its last one: a prompt of 49 tokens, then 14 decodes."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0, capacity_bytes=96)
    found = simulate_requests(steps, trace((0, 32, 32), (0, 32, 32)), PLAIN)
    assert found.preemptions == 1
    assert [row.end_s for row in found.served] == pytest.approx([32, 32 + 1 + 14])
    assert [row.ttft_s for row in found.served] == [1, 1]


def test_a_reserve_preempts_nobody():
    """The same cache: two of 32 + 32 tokens want nine blocks in the end, with the next token, so the second waits."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0, capacity_bytes=96)
    found = simulate_requests(steps, trace((0, 32, 32), (0, 32, 32)), replace(PLAIN, reserve=1.0))
    assert found.preemptions == 0 and found.wall == "cache"
    assert [row.end_s for row in found.served] == pytest.approx([32, 64])


def test_a_cached_prefix_is_not_computed():
    steps = Affine(base_s=0, decode_s=0, context_s=0, prompt_s=1)
    assert simulate_requests(steps, fixed(100, 1, concurrency=1, requests=1, prefix_hit=0.8)).ttft.mean == 100 - 80


def test_speculation_makes_the_expected_tokens():
    """Two drafts at 0.5 make 1.75 tokens a step: 70 tokens after the first are 40 steps."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0)
    policy = replace(PLAIN, speculation=Speculation(draft_tokens=2, accept=0.5))
    found = simulate_requests(steps, fixed(10, 71, concurrency=1, requests=1), policy)
    assert found.tallies[0].steps == 1 + 40
    assert found.tpot.mean == pytest.approx(1 / 1.75)


def test_disaggregated_engines_by_hand():
    """A prompt of 100 takes 10 s, its cache of 112 bytes (7 blocks) 2 s on the link, and then a token each second; the
    second prompt is computed meanwhile, and joins 10 s later."""
    both = Affine(base_s=0, decode_s=0, context_s=0, prompt_s=0.1), Affine(base_s=1, decode_s=0, context_s=0)
    server = Disaggregated(prompt=both[0], decode=both[1], link_bytes_per_s=56)
    policy = replace(PLAIN, token_budget=100, max_batch=100)
    found = simulate_requests(server, trace((0, 100, 21), (0, 100, 21)), policy)
    assert [row.ttft_s for row in found.served] == pytest.approx([12, 22])
    assert [row.end_s for row in found.served] == pytest.approx([32, 42])
    assert simulate_requests(replace(server, prompt_engines=2), trace((0, 100, 2), (0, 100, 2)), policy).ttft.p99 == 12


@pytest.mark.parametrize("make", [Affine, Saturating, Windowed])
@pytest.mark.parametrize(("mixed", "cut"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("cache", [10**9, 14_000])
@pytest.mark.parametrize("arrivals", [{}, {"concurrency": None, "rate_per_s": 40.0}])
def test_stretches_are_the_loop_over_every_step(make, mixed, cut, cache, arrivals):
    """A cache of 14,000 tokens forces preemptions. Times of these engines are affine between nodes but for kinks."""
    steps, policy = make(capacity_bytes=cache), Policy(mixed=mixed, cut=cut, token_budget=2048, max_batch=20)
    workload = replace(RANGE, prefix_hit=0.25, **arrivals)
    found = simulate_requests(steps, workload, policy)
    slow, preempted, count = serve(steps, list(workload.asked()), policy, workload.concurrency)
    by_end = sorted(end for _, end in slow)
    assert sorted(row.end_s for row in found.served) == pytest.approx(by_end, rel=1e-9)
    assert sorted(row.ttft_s for row in found.served) == pytest.approx(sorted(ttft for ttft, _ in slow), rel=1e-6)
    assert (found.preemptions, found.tallies[0].steps) == (preempted, count)
    assert (cache < 10**9) == (preempted > 0)


def test_curved_times_are_near_the_loop_over_every_step():
    """Decodes that take the root of the context: each step within 0.1 %, so the ends too."""
    steps = Affine()
    steps.step_s = lambda decodes, context, prefills=(): 1e-3 + 1e-4 * context**0.5 + 1e-5 * sum(n for n, _ in prefills)
    found = simulate_requests(steps, RANGE)
    slow, _, _ = serve(steps, list(RANGE.asked()), Policy(), RANGE.concurrency)
    assert sorted(row.end_s for row in found.served) == pytest.approx(sorted(end for _, end in slow), rel=1e-3)


def test_few_steps_are_asked_for():
    """A thousand requests of 256 tokens take some 4,000 steps; times of decodes are shared by requests."""
    asked = []
    steps = Affine()
    price = steps.step_s
    steps.step_s = lambda *args: asked.append(args) or price(*args)
    workload = RequestLoad(prompt=Lengths(1024, 0.8, 1.0), generate=Lengths(256), concurrency=64, requests=1000)
    found = simulate_requests(steps, workload)
    with_prompts = found.tallies[0].steps * found.prompt_share
    assert len(asked) - with_prompts < 200 < found.tallies[0].steps / 10


@pytest.mark.parametrize("policy", [Policy(), Policy(mixed=False, cut=False), Policy(max_batch=10)])
def test_littles_law(policy):
    """Requests per second times their latency are the clients, but for the ramps at both ends."""
    found = simulate_requests(Affine(), replace(RANGE, requests=4000), policy)
    assert found.requests_per_s * found.e2e.mean == pytest.approx(24, rel=0.01)


def test_the_same_workload_gives_the_same_result():
    first, second = (simulate_requests(Saturating(), replace(RANGE, concurrency=None, rate_per_s=9.0)) for _ in "ab")
    assert first == second
    assert first != simulate_requests(Saturating(), replace(RANGE, concurrency=None, rate_per_s=9.0, seed=1))


def test_a_warm_up_is_left_out():
    """The first wave waits for all its prompts; later requests do not."""
    whole = simulate_requests(Affine(), replace(RANGE, requests=400))
    later = simulate_requests(Affine(), replace(RANGE, requests=400, warmup=48))
    assert len(later.served) == 352
    assert later.ttft.mean < whole.ttft.mean
    assert later.served == whole.served[48:]


def test_percentiles_by_hand():
    assert Spread.of(range(101)) == Spread(50, 50, 90, 99)
    assert Spread.of([None, 3.0]) == Spread(3.0, 3.0, 3.0, 3.0)
    assert Spread.of([None]) is None


def test_the_ranks_that_a_percentile_lies_between():
    """Of 100 values the median lies between the 42nd and the 59th: P(B <= 41) = 0.044, P(B <= 58) = 0.956 of a binomial
    of 100 at 1/2. The largest of 200 is below the 99th percentile with 0.99^200 = 13 %, that of 299 with less than 5 %,
    as Wilks's 299 says."""
    assert interval_ranks(100, 0.5) == (42, 59)
    assert interval_ranks(200, 0.99)[1] == 201
    assert [interval_ranks(count, 0.99)[1] <= count for count in (298, 299)] == [False, True]
    assert sure_from(0.99) == 299 and sure_from(0.9) == 29
    assert interval_ranks(1, 0.5) == (0, 2)


def test_the_ranks_of_values_that_depend_on_their_neighbours():
    """Ten batches of two. Of values that rise, five batches are below the median and five above: shares of 1 and 0 have
    the deviation sqrt(10 / 4 / 9) = 0.527, so half an interval is 1.833 * 0.527 / sqrt(10) = 0.3055 of 20 values, from
    3.9 to 16.1. Of values that go up and down, one of each batch is below it. Fewer than ten count as independent."""
    assert batch_ranks(range(20), 0.5) == (3, 17)
    assert batch_ranks([0.0, 1.0] * 10, 0.5) == (10, 11)
    assert batch_ranks([9.0, *range(20)], 0.5) == (4, 17)  # 21 * 0.1945, 21 * 0.8055; the first fills no batch
    assert batch_ranks(range(9), 0.5) == interval_ranks(9, 0.5)


def test_intervals_of_waits_in_one_queue_hold_the_percentile():
    """An autoregressive series, x = 0.9 x before + noise, whose median is 0: 1,000 values are worth some fifty."""
    source, held = random.Random(0), Counter()
    for _ in range(300):
        values, x = [], source.gauss() / math.sqrt(1 - 0.81)
        for _ in range(1000):
            values.append(x := 0.9 * x + source.gauss())
        rows = tuple(ServedRequest(0.0, 0.0, value, 0.0, 1, 1) for value in values)
        low, high = Requests(served=rows, tallies=(), span_s=1.0).interval("ttft", 0.5)
        few, many = (sorted(values)[rank - 1] for rank in interval_ranks(1000, 0.5))
        held.update(batches=low <= 0 <= high, independent=few <= 0 <= many)
    assert 0.84 * 300 < held["batches"] < 0.95 * 300 and held["independent"] < 0.5 * 300


def test_intervals_hold_the_percentile_in_nine_of_ten_runs():
    """Medians and 90th percentiles of exponential times, ln 2 and ln 10, in 400 runs of 60, and in some more, as the
    wider of two intervals counts."""
    source = random.Random(0)
    held = Counter()
    for _ in range(400):
        rows = [ServedRequest(0.0, 0.0, source.expovariate(1), 9.0, 1, 1) for _ in range(60)]
        found = Requests(served=tuple(rows), tallies=(), span_s=1.0)
        for share in (0.5, 0.9):
            low, high = found.interval("ttft", share)
            held[share] += low <= -math.log(1 - share) <= (math.inf if high is None else high)
    assert 0.88 * 400 < held[0.5] < 0.97 * 400 and 0.88 * 400 < held[0.9] < 0.97 * 400


def test_one_request_bounds_a_high_percentile_from_below_alone():
    """It is below the 99th percentile in 99 of 100 runs, and below the median in every second one."""
    found = simulate_requests(Affine(), fixed(10, 4, concurrency=1, requests=1), PLAIN)
    assert found.interval("ttft", 0.99) == (found.served[0].ttft_s, None)
    assert found.interval("ttft", 0.5) == (None, None)


@pytest.mark.parametrize(
    ("steps", "workload", "message"),
    [
        (Affine(max_context=8192), fixed(9000, 256, concurrency=1), "a prompt of 7,936 is the most"),
        (Affine(max_context=100), fixed(10, 256, concurrency=1), "99 tokens of both is the most"),
        (Affine(capacity_bytes=1000), fixed(900, 256, concurrency=1), "991 tokens fit"),
        (Affine(capacity_bytes=50, weights_bytes=120), fixed(9, 2, concurrency=1), "3 times as many GPUs hold them"),
        (Affine(capacity_bytes=5, reserved_bytes=9), fixed(9, 2, concurrency=1), "no number of GPUs helps"),
        (Disaggregated(prompt=Affine(), decode=Affine(max_context=99), link_bytes_per_s=1), fixed(99, 2, rate_per_s=1),
         "a prompt of 97 is the most"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_one_line(steps, workload, message):
    with pytest.raises(UsageError) as raised:
        simulate_requests(steps, workload)
    assert message in str(raised.value) and "\n" not in str(raised.value)
