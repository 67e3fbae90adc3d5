"""Workloads of a server: lengths, arrivals, traces, and what an engine's policy refuses."""

import itertools
import statistics

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import Engine, Policy, Speculation
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine


def test_a_range_of_nominal_is_drawn_evenly():
    workload = RequestLoad(prompt=Lengths(1000, 0.8, 1.0), concurrency=1, requests=4000)
    tokens = [asked.prompt_tokens for asked in workload.asked()]
    assert (min(tokens), max(tokens)) == (800, 1000)
    assert statistics.mean(tokens) == pytest.approx(900, rel=0.01)


def test_poisson_arrivals_have_the_rate_and_the_seed_decides():
    workload = RequestLoad(rate_per_s=5, requests=4000)
    arrivals = [asked.arrival_s for asked in workload.asked()]
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.2, rel=0.05)
    assert list(workload.asked()) == list(RequestLoad(rate_per_s=5, requests=4000).asked())
    assert list(workload.asked()) != list(RequestLoad(rate_per_s=5, requests=4000, seed=1).asked())


def test_a_prefix_is_cached_in_whole_blocks_but_for_the_last_token():
    assert RequestLoad(concurrency=1, prefix_hit=0.5).cached(100) == 48
    assert RequestLoad(concurrency=1, prefix_hit=1.0).cached(64) == 48


@pytest.mark.parametrize("burst", [0.0, 0.5, 3.0])
def test_arrivals_in_bursts_have_the_rate_and_the_coefficient_of_variation(burst):
    arrivals = [asked.arrival_s for asked in RequestLoad(rate_per_s=5, burst=burst, requests=20_000).asked()]
    gaps = [b - a for a, b in itertools.pairwise(arrivals)]
    assert statistics.mean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.mean(gaps) == pytest.approx(burst, rel=0.05, abs=1e-9)


def test_each_turn_has_its_session_in_front():
    """50 tokens that all sessions begin with, then 100 new ones and an answer of 20 in each turn."""
    load = RequestLoad(prompt=Lengths(100), generate=Lengths(20), turns=3, system_prompt=50, concurrency=1, requests=6)
    assert [asked.prompt_tokens for asked in load.asked()] == 2 * [150, 150 + 120, 150 + 240]
    assert load.longest.tokens == 390 + 20 and load.usual.prompt_tokens == 270
    assert load.mean_context == 270 + 10


def test_turns_come_at_the_rate_of_requests_and_after_a_pause_of_a_mean():
    load = RequestLoad(turns=4, think_s=2.0, rate_per_s=8, requests=8000)
    sessions = load.sessions
    assert sessions[-1][0].arrival_s == pytest.approx(1000, rel=0.05)
    assert [asked.arrival_s for asked in sessions[0][1:]] == [None] * 3
    assert statistics.mean(asked.think_s for each in sessions for asked in each[1:]) == pytest.approx(2, rel=0.05)
    assert {each[0].think_s for each in sessions} == {0.0}


def test_sessions_are_whole_and_each_client_has_two():
    assert RequestLoad(turns=4, concurrency=1, requests=10).count == 12
    assert RequestLoad(turns=30, concurrency=10).count == 10 * 2 * 30


def test_no_request_is_below_the_shortest():
    """Half of 100 tokens and more behind 20 of all, of which a quarter is cached; 16 of answers, half at least."""
    lengths = {"prompt": Lengths(100, 0.5, 1.0), "generate": Lengths(16, 0.5, 1.0), "concurrency": 1}
    assert RequestLoad(**lengths, prefix_hit=0.25).shortest[1:3] == (37, 8)
    assert RequestLoad(**lengths, system_prompt=20, prefix_hit=0.0).shortest[1:3] == (70, 8)
    assert RequestLoad(**lengths, system_prompt=20).shortest[1:3] == (1, 8)  # all but the last token may be kept
    rows = tuple(AskedRequest(at, n, m) for at, n, m in ((0, 40, 9), (1, 90, 3)))
    assert RequestLoad(trace=rows).shortest[1:3] == (40, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RequestLoad(rate_per_s=-1.0), "-1 requests per second; want a rate of 1e-09 to 1e+09"),
        (lambda: RequestLoad(), "give concurrency, rate_per_s or a trace"),
        (lambda: RequestLoad(concurrency=4, rate_per_s=1.0), "arrive in one way"),
        (lambda: RequestLoad(concurrency=0), "want a concurrency of 1"),
        (lambda: RequestLoad(concurrency=1, prefix_hit=1.5), "want 0 to 1"),
        (lambda: RequestLoad(concurrency=1, requests=5, warmup=5), "4 is the most"),
        (lambda: RequestLoad(concurrency=1, requests=0), "0 requests are no workload; want 1 to 10,000,000"),
        (lambda: RequestLoad(rate_per_s=1.0, burst=-1), "want a coefficient of variation of 0.001 to 1000"),
        (lambda: RequestLoad(rate_per_s=1.0, burst=1e-160), "1 for Poisson, or 0"),
        (lambda: RequestLoad(rate_per_s=5e-324), "want a rate of 1e-09 to 1e+09"),
        (lambda: RequestLoad(rate_per_s=1.0, turns=2, think_s=-1), "-1 s between an answer and the next turn"),
        (lambda: RequestLoad(concurrency=1, turns=2, prefix_hit=0.5), "leave one out"),
        (lambda: RequestLoad(concurrency=1, turns=0), "1 to 1,000 turns"),
        (lambda: Lengths(0), "want 1 or more"),
        (lambda: Speculation(draft_tokens=3, accept=1.2), "not 1.2; 1 is the nearest"),
        (lambda: Policy(token_budget=128, max_batch=256), "max_batch 128 is the most"),
        (lambda: Policy(reserve=2), "want 0 (none) to 1"),
        (lambda: Engine(Affine(weights_bytes=90, capacity_bytes=50), Policy()), "2 times as many GPUs hold them"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message):
    with pytest.raises(UsageError) as raised:
        make()
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_expected_tokens_of_speculation_by_hand():
    """Three drafts at 0.8: 1 + 0.8 + 0.64 + 0.512."""
    assert Speculation(draft_tokens=3, accept=0.8).tokens_per_step == pytest.approx(2.952)
    assert Speculation(draft_tokens=3, accept=0.0).tokens_per_step == 1
    assert Speculation(draft_tokens=3, accept=1.0).tokens_per_step == 4


def test_a_decode_step_runs_the_next_captured_batch():
    engine = Engine(Affine(base_s=0, decode_s=1, context_s=0), Policy())
    assert [engine.decode_s(n, 0) for n in (1, 3, 5, 9, 257, 600)] == [1, 4, 8, 16, 272, 600]


def test_a_speculative_step_drafts_and_verifies():
    """Two sequences of 100 tokens, two drafts: two draft steps, and one step of three new tokens each."""
    target = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0.1)
    draft = Affine(base_s=0.25, decode_s=0, context_s=0.001)
    engine = Engine(target, Policy(captured=(), speculation=Speculation(draft_tokens=2, accept=0.5, draft=draft)))
    assert engine.step_s(2, 200) == pytest.approx(1 + 0.1 * 6 + (0.25 + 0.2) + (0.25 + 0.202))


def test_interpolated_times_are_near_those_of_the_steps():
    """Affine times exactly; the square root within the bound of its curvature: 1/4 / 8 / 16^2."""
    affine, curved = Affine(), Affine()
    curved.step_s = lambda decodes, context, prefills=(): context**0.5
    for context in (17.5, 333, 4097, 123456.75):
        exact = affine.base_s + affine.decode_s + affine.context_s * context
        assert Engine(affine, Policy()).decode_s(1, context) == pytest.approx(exact, rel=1e-12)
        assert Engine(curved, Policy()).decode_s(1, context) == pytest.approx(context**0.5, rel=1 / 4 / 8 / 16**2)
