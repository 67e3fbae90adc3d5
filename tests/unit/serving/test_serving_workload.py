"""Workloads of a server: lengths, arrivals, traces, and what an engine's policy refuses."""

import itertools
import statistics

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import Engine, Policy, Speculation
from memwall.serving.simulation.workload import AskedRequest, Lengths, RequestLoad, read_trace
from tests.unit.serving.engines import Affine


def test_a_range_of_nominal_is_drawn_evenly():
    workload = RequestLoad(prompt=Lengths.parse(1000, "0.8-1.0"), concurrency=1, requests=4000)
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


def test_a_trace_is_read_in_the_order_of_arrival(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("# made up\nprompt_tokens,arrival_s,generated_tokens,user\n5,12.5,7,a\n3,10,4,b\n")
    assert read_trace(path) == (AskedRequest(0.0, 3, 4), AskedRequest(2.5, 5, 7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival,prompt_tokens,generated_tokens\n1,2,3\n", "no column arrival_s; did you mean arrival?"),
        ("arrival_s,prompt_tokens,generated_tokens\n1,x,3\n", "trace.csv:2: "),
        ("arrival_s,prompt_tokens,generated_tokens\n-1,2,3\n", "trace.csv:2: want an arrival of 0 s or later"),
        ("arrival_s,prompt_tokens,generated_tokens\n", "has no request"),
    ],
)
def test_a_wrong_trace_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_trace(path)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RequestLoad(rate_per_s=-1.0), "-1 requests per second; want a rate above 0"),
        (lambda: RequestLoad(), "give concurrency, rate_per_s or a trace"),
        (lambda: RequestLoad(concurrency=4, rate_per_s=1.0), "arrive in one way"),
        (lambda: RequestLoad(concurrency=0), "want a concurrency of 1"),
        (lambda: RequestLoad(concurrency=1, prefix_hit=1.5), "want 0 to 1"),
        (lambda: RequestLoad(concurrency=1, requests=5, warmup=5), "4 is the most"),
        (lambda: RequestLoad(concurrency=1, requests=0), "0 requests are no workload; want 1 or more"),
        (lambda: Lengths.parse(10, "a-b"), "want one such as 0.8-1.0"),
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
