"""The steady state of a server: by hand, and against simulations that run for long."""

import itertools
import math
from dataclasses import replace

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation import steady
from memwall.serving.simulation.engine import Policy, Speculation
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.requests import simulate_requests
from memwall.serving.simulation.steady import largest_batch, steady_state
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine, Saturating

#: engines x prompt, generate x policy x clients, or the share of the largest rate; none of the lengths that the limits
#: of doubt were chosen with (128, 1024, 4096 and 32768 prompt tokens)
GRID = [
    *itertools.product((Affine, Saturating), ((300, 400), (700, 150), (2500, 200)),
                       (Policy(), Policy(mixed=False, cut=False)), (1, 20, 150, 0.2, 0.6)),
    *itertools.product((Affine,), ((6000, 60), (20000, 300)), (Policy(token_budget=2048),), (3, 40, 0.6, 0.9)),
]  # fmt: skip


def both(make, lengths, policy, load):
    """Steady state and simulation of clients, or of the same drawn arrivals."""
    prompt, generate = lengths
    workload = RequestLoad(prompt=Lengths(prompt, 0.5, 1.0), generate=Lengths(generate, 0.5, 1.0), concurrency=1)
    if isinstance(load, int):
        workload = replace(workload, concurrency=load)
        long = replace(workload, requests=max(3000, 30 * load), warmup=max(1000, 10 * load))
        return steady_state(make(), workload, policy), simulate_requests(make(), long, policy)
    most = steady_state(make(), workload, policy).most_requests_per_s
    drawn = replace(workload, concurrency=None, rate_per_s=load * most, requests=4000)
    long = RequestLoad(trace=tuple(drawn.asked()), warmup=500)
    return steady_state(make(), long, policy), simulate_requests(make(), long, policy)


@pytest.mark.parametrize("grid", [GRID[::14], pytest.param(GRID, marks=pytest.mark.whole)], ids=["some", "all"])
def test_the_grid_agrees_with_simulations_or_doubts(grid):
    """TPOT within 5 %, TTFT within 15 %, unless the result says why not; most of the grid is not doubted."""
    wrong, doubted = [], []
    for cell in grid:
        found, run = both(*cell)
        tpot, ttft = found.tpot.mean / run.tpot.mean - 1, found.ttft.mean / run.ttft.mean - 1
        doubted += [cell] if found.doubt else []
        if not found.doubt and (abs(tpot) > 0.05 or abs(ttft) > 0.15):
            wrong.append((cell, f"{tpot:+.1%}", f"{ttft:+.1%}"))
    assert not wrong
    assert len(doubted) <= len(grid) / 4


def test_one_client_by_hand():
    """A prompt of 100 takes 11 s; nine decodes at 1.5 s and a mean context of 104.5 tokens."""
    steps = Affine(base_s=1, decode_s=0.5, context_s=0.01, prompt_s=0.1)
    found = steady_state(
        steps, RequestLoad(prompt=Lengths(100), generate=Lengths(10), concurrency=1), Policy(captured=())
    )
    assert found.ttft.mean == pytest.approx(11)
    assert found.tpot.mean == pytest.approx(1.5 + 1.045)
    assert found.requests_per_s == pytest.approx(1 / (11 + 9 * 2.545))
    assert found.first_wave_s == pytest.approx(11)
    assert found.ttft.p99 is None and not found.doubt and not found.overloaded


@pytest.mark.parametrize("policy", [Policy(), Policy(max_batch=16), Policy(mixed=False, cut=False)])
def test_littles_law(policy):
    workload = RequestLoad(prompt=Lengths(500), generate=Lengths(100), concurrency=64)
    found = steady_state(Affine(), workload, policy)
    latency_s = found.ttft.mean + 99 * found.tpot.mean
    assert found.requests_per_s * latency_s == pytest.approx(64)


def test_a_full_cache_is_the_largest_batch():
    """Ten sequences of 1,000 and half of 200 tokens, and the next one, in 69 blocks: 11,500 of 11,040 bytes are ten."""
    steps = Affine(capacity_bytes=11_500)
    workload = RequestLoad(prompt=Lengths(1000), generate=Lengths(200), concurrency=32)
    assert largest_batch(steps, workload) == 10
    found = steady_state(steps, workload)
    assert found.largest_batch == 10 and found.batch < 10
    run = simulate_requests(steps, replace(workload, requests=1500, warmup=300))
    assert found.tpot.mean == pytest.approx(run.tpot.mean, rel=0.1)  # which preempts, and computes again
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.1)


def test_a_reserve_leaves_fewer_places():
    """1,200 tokens and the next one in 76 blocks: nine, not ten; between them as much as is reserved."""
    steps, workload = (
        Affine(capacity_bytes=11_500),
        RequestLoad(prompt=Lengths(1000), generate=Lengths(200), concurrency=32),
    )
    assert largest_batch(steps, workload, Policy(reserve=1.0)) == 9
    run = simulate_requests(steps, replace(workload, requests=1500, warmup=300), Policy(reserve=1.0))
    assert run.preemptions == 0
    found = steady_state(steps, workload, Policy(reserve=1.0))
    assert found.tokens_per_s == pytest.approx(run.tokens_per_s, rel=0.03)
    assert found.wall == run.wall == "cache"


@pytest.mark.parametrize("budget", [8192, 1024, 400])
def test_chains_with_few_states_are_near_whole_ones(budget, monkeypatch):
    """With 50 states for 200 clients; prompts of 600 tokens fit into each step, come close to it, or fill it."""
    workload = RequestLoad(prompt=Lengths(600), generate=Lengths(200), concurrency=200)
    whole = steady_state(Affine(), workload, Policy(token_budget=budget))
    monkeypatch.setattr(steady, "_MOST_STATES", 50)
    few = steady_state(Affine(), workload, Policy(token_budget=budget))
    assert few != whole or budget == 8192  # where so few prompts wait that both chains give the same digits
    assert few.tpot.mean == pytest.approx(whole.tpot.mean, rel=0.03)
    assert few.ttft.mean == pytest.approx(whole.ttft.mean, rel=0.15)


def test_the_first_wave_waits_for_its_prompts():
    workload = RequestLoad(prompt=Lengths(1000, 0.8, 1.0), generate=Lengths(300), concurrency=100)
    for policy in (Policy(), Policy(token_budget=2000), Policy(mixed=False, cut=False)):
        run = simulate_requests(Affine(), replace(workload, requests=100), policy)
        found = steady_state(Affine(), workload, policy)
        assert found.first_wave_s == pytest.approx(run.ttft.mean, rel=0.05)
        assert found.ttft.mean < found.first_wave_s / 4


@pytest.mark.parametrize("clients", [4, 32, 300])
def test_a_benchmark_of_ten_requests_for_each_client_has_the_first_wave_in_its_mean(clients):
    """With 32 clients the first wave more than doubles the mean TTFT."""
    workload = RequestLoad(prompt=Lengths(4096, 0.8, 1.0), generate=Lengths(512, 0.8, 1.0), concurrency=clients)
    for make in (Affine, Saturating):
        run, found = simulate_requests(make(), workload), steady_state(make(), workload)
        assert found.run_ttft_s == pytest.approx(run.ttft.mean, rel=0.1)
        assert clients != 32 or found.ttft.mean < run.ttft.mean / 2


def test_clients_of_one_length_stay_in_step():
    """A wave of 32 prompts stalls few decodes again and again: the simulated TTFT is more than twice the steady one."""
    alike = RequestLoad(prompt=Lengths(1024), generate=Lengths(256), concurrency=32)
    drawn = replace(alike, prompt=Lengths(1024, 0.8, 1.0))
    run, found = simulate_requests(Affine(), replace(alike, requests=640)), steady_state(Affine(), alike)
    assert run.ttft.mean > 2 * found.ttft.mean
    assert "stay in step" in found.doubt
    assert not steady_state(Affine(), drawn).doubt and not steady_state(Affine(), replace(alike, concurrency=1)).doubt


def test_speculation_is_faster_by_its_expected_tokens():
    workload = RequestLoad(prompt=Lengths(100), generate=Lengths(401), concurrency=1)
    plain, guessed = (
        steady_state(
            Affine(prompt_s=0, decode_s=0, context_s=0), workload, Policy(max_batch=8, speculation=speculation)
        )
        for speculation in (None, Speculation(draft_tokens=1, accept=0.6))
    )
    assert plain.tpot.mean / guessed.tpot.mean == pytest.approx(1.6)


def test_too_high_a_rate_is_overloaded_and_near_it_is_doubted():
    workload = RequestLoad(prompt=Lengths(1024), generate=Lengths(256), concurrency=1)
    most = steady_state(Affine(), workload).most_requests_per_s
    over = steady_state(Affine(), replace(workload, concurrency=None, rate_per_s=1.2 * most))
    assert over.overloaded == f"overloaded: {1.2 * most:.4g} requests per second come, and {most:.4g}/s is the most"
    assert over.ttft.mean == math.inf and over.requests_per_s == most
    near = steady_state(Affine(), replace(workload, concurrency=None, rate_per_s=0.9 * most))
    assert "90% of the most" in near.doubt and not near.overloaded


def test_a_trace_is_taken_at_its_rate():
    rows = tuple(AskedRequest(i / 10, 500, 100) for i in range(101))
    found = steady_state(Affine(), RequestLoad(trace=rows))
    assert found == steady_state(Affine(), RequestLoad(prompt=Lengths(500), generate=Lengths(100), rate_per_s=10))


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (RequestLoad(generate=Lengths(1), concurrency=4), "steady_state wants 2 or more, simulate_requests 1"),
        (RequestLoad(trace=(AskedRequest(0.0, 5, 5), AskedRequest(0.0, 5, 5))), "simulate_requests runs it"),
    ],
)
def test_what_has_no_steady_state_is_refused(workload, message):
    with pytest.raises(UsageError, match=message):
        steady_state(Affine(), workload)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"rate_per_s": 1.0, "burst": 2.0}, "not Poisson have no closed form"),
        ({"concurrency": 2, "turns": 3, "think_s": 9.0, "prefix_hit": 0.0}, "time between turns has no closed form"),
        ({"concurrency": 2, "turns": 3}, "what requests share has no closed form"),
        ({"rate_per_s": 1.0, "system_prompt": 64}, "what requests share has no closed form"),
    ],
)
def test_what_has_no_closed_form_is_refused(load, message):
    with pytest.raises(UsageError, match=message):
        steady_state(Affine(), RequestLoad(**load))


def test_the_first_requests_of_a_trace_have_a_rate_of_their_own():
    """Eleven requests in 10 s, of which the first three come in 1 s: 2 a second."""
    rows = tuple(AskedRequest(at, 64, 8) for at in (0, 0.5, 1, *range(3, 11)))
    assert steady_state(Affine(), RequestLoad(trace=rows, requests=3)).requests_per_s == pytest.approx(2)
    assert steady_state(Affine(), RequestLoad(trace=rows)).requests_per_s == pytest.approx(1)
