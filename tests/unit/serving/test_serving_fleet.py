"""Several engines: which takes a request, and how many run; by hand."""

from dataclasses import dataclass, replace

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.engine import Policy
from memwall.serving.simulation.fleet import ROUTES, Autoscale, Fleet, Replicas
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.requests import Disaggregated, simulate_requests
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine

PLAIN = Policy(captured=())
STEPS = Affine(base_s=0, decode_s=0, context_s=0, prompt_s=1)


@dataclass(eq=False)
class Busy:
    """An engine with so many requests, which has kept so many tokens of the next prompt."""

    load: int = 0
    kept: int = 0

    def found(self, request):
        return self.kept


@dataclass
class Prompt:
    prompt: int = 100


def routed(route, *engines, number=0):
    return engines.index(ROUTES[route](engines, Prompt(), number))


def test_a_server_with_a_constant_time_and_random_arrivals_is_a_queue_of_its_kind():
    """M/D/1: a wait of u / (2 (1 - u)) times the service, 1/2 of it at u = 1/2, 1 1/2 at 3/4."""
    policy = replace(PLAIN, max_batch=1)
    for rate, wait_s in ((0.5, 0.5), (0.75, 1.5)):
        load = RequestLoad(prompt=Lengths(1), generate=Lengths(1), rate_per_s=rate, requests=60_000)
        assert simulate_requests(STEPS, load, policy).wait.mean == pytest.approx(wait_s, rel=0.06)


def test_even_arrivals_wait_for_nothing():
    load = RequestLoad(prompt=Lengths(1), generate=Lengths(1), rate_per_s=0.99, burst=0, requests=500)
    assert simulate_requests(STEPS, load, replace(PLAIN, max_batch=1)).wait.mean == pytest.approx(0)


def test_each_of_two_replicas_in_turn_has_half_of_the_load():
    """Requests that come evenly: every second one is at one engine, as if half of them came to it alone."""
    load = RequestLoad(prompt=Lengths(3), generate=Lengths(20), rate_per_s=0.2, burst=0, requests=400)
    alone = simulate_requests(Affine(base_s=1), load, PLAIN)
    twice = replace(load, rate_per_s=0.4, requests=800)
    both = simulate_requests(Affine(base_s=1), twice, PLAIN, Fleet(replicas=2, route="round-robin"))
    assert both.ttft.mean == pytest.approx(alone.ttft.mean) and both.tpot.p99 == pytest.approx(alone.tpot.p99)
    assert [tally.steps for tally in both.tallies] == pytest.approx([alone.tallies[0].steps] * 2, rel=0.01)


def test_requests_go_to_the_engine_with_the_fewest():
    """10 s, 1 s and 1 s: the third finds the second done where the fewest are, and the first in turn."""
    load = RequestLoad(trace=tuple(AskedRequest(at, n, 1) for at, n in ((0, 10), (0.5, 1), (2, 1))))
    ends = {
        route: [row.end_s for row in simulate_requests(STEPS, load, PLAIN, Fleet(replicas=2, route=route)).served]
        for route in ("least-loaded", "round-robin")
    }
    assert ends == {"least-loaded": [10, 1.5, 3], "round-robin": [10, 1.5, 11]}


def test_a_router_that_looks_for_prefixes_computes_each_once():
    """Two prompts of 64 tokens, asked as a a b b a a b b, one after another: in turn each engine computes both once and
    finds 48 tokens four times; by prefix one engine computes each once, and six times 48 are found."""
    names = "aabbaabb"
    rows = [AskedRequest(1000.0 * i, 64, 1, content=((name, 64),)) for i, name in enumerate(names)]
    load = RequestLoad(trace=tuple(rows))
    found = {
        route: simulate_requests(STEPS, load, PLAIN, Fleet(replicas=2, route=route)).cached_share
        for route in ("round-robin", "prefix")
    }
    assert found == {"round-robin": 4 * 48 / 512, "prefix": 6 * 48 / 512}


def test_a_prefix_counts_where_it_is_worth_it_and_the_load_is_balanced():
    """More than 30 of 100 tokens; an engine is ahead with more than 64 requests and more than half again as many."""
    assert routed("prefix", Busy(0, 30), Busy(9, 31)) == 1
    assert routed("prefix", Busy(0, 0), Busy(9, 30)) == 0
    assert routed("prefix", Busy(0, 0), Busy(64, 90)) == 1
    assert routed("prefix", Busy(0, 0), Busy(65, 90)) == 0
    assert routed("prefix", Busy(140, 0), Busy(210, 90)) == 1


def test_engines_of_prompts_take_them_as_the_route_says():
    """Prompts of 10 s and 1 s; the third comes when the second is done, and in turn it waits for the first."""
    server = Disaggregated(prompt=STEPS, decode=Affine(base_s=0), prompt_engines=2, link_bytes_per_s=float("inf"))
    load = RequestLoad(trace=tuple(AskedRequest(at, n, 1) for at, n in ((0, 10), (0.5, 1), (2, 1))))
    assert simulate_requests(server, load, PLAIN).served[2].end_s == 3
    assert simulate_requests(server, load, PLAIN, Fleet(route="round-robin")).served[2].end_s == 11
    with pytest.raises(UsageError, match="give no replicas"):
        simulate_requests(server, load, PLAIN, Fleet(replicas=2))


def test_engines_start_at_once_and_take_requests_later():
    """Five requests at two for each engine want three: two start at the look after 15 s, and take requests at 45 s."""
    engines = [Busy(5), Busy(), Busy()]
    pool = Replicas(engines, Fleet(autoscale=Autoscale(least=1, most=3, requests=2, startup_s=30)))
    assert pool.check_s == 15 and pool.pick(Prompt(), 14.0) is engines[0]
    pool.scale()
    assert pool.check_s == 30 and pool.pick(Prompt(), 44.0) is engines[0]
    assert pool.pick(Prompt(), 45.0) is engines[1]
    assert pool.mean_on == 1  # at the one look so far
    pool.scale()
    assert pool.mean_on == 2  # 1 and 3 engines


def test_engines_stop_after_five_minutes_and_end_their_requests_first():
    """Three are wanted at 15 s, one from then on; the look at 15 s counts until 315 s, when the emptiest two stop. The
    one that still has a request is on until it has none."""
    engines = [Busy(5), Busy(), Busy()]
    pool = Replicas(engines, Fleet(autoscale=Autoscale(least=1, most=3, requests=2, startup_s=0)))
    pool.scale()
    engines[0].load, engines[2].load = 1, 1
    while pool.check_s < 315:
        pool.scale()
    assert pool.pick(Prompt(), 301.0) is engines[1]  # the emptiest of three
    pool.scale()
    assert pool.pick(Prompt(), 316.0) is engines[2]
    before = pool.mean_on * 21  # looks from 15 s to 315 s
    pool.scale()
    assert pool.mean_on * 22 - before == pytest.approx(2)


def test_an_overloaded_engine_is_helped():
    """One request a second, of 2 s each, one at a time: alone the queue grows without end; with two it does not."""
    load = RequestLoad(prompt=Lengths(2), generate=Lengths(1), rate_per_s=1, burst=0, requests=1000)
    policy = replace(PLAIN, max_batch=1)
    alone = simulate_requests(STEPS, load, policy)
    scale = Autoscale(least=1, most=4, requests=2, startup_s=10)
    helped = simulate_requests(STEPS, load, policy, Fleet(autoscale=scale))
    assert alone.ttft.mean > 400 and helped.ttft.mean < 40
    assert alone.engines_on is None and 2 < helped.engines_on < 4


def test_looks_at_engines_that_wait_for_years_are_one():
    """Two requests 30 years apart, between which a look each 15 seconds finds the one engine idle."""
    load = RequestLoad(trace=(AskedRequest(0, 10, 1), AskedRequest(9e8, 10, 1)))
    scale = Autoscale(least=1, most=2, requests=1)
    found = simulate_requests(STEPS, load, PLAIN, Fleet(autoscale=scale))
    assert found.engines_on == 1 and found.served[1].ttft_s == found.served[0].ttft_s


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fleet(replicas=1_000_000), "1,000,000 replicas are not simulated"),
        (lambda: Fleet(replicas=0), "0 replicas are not simulated; want 1 to 10,000"),
        (lambda: Fleet(route="prefixes"), "no route 'prefixes'; did you mean prefix?"),
        (lambda: Autoscale(least=3, most=2, requests=1), "from 3 to 2 engines"),
        (lambda: Autoscale(least=1, most=2, requests=0), "of 0 requests each"),
        (lambda: Autoscale(least=1, most=2, requests=1, startup_s=-1), "starts in -1 s"),
        (lambda: Fleet(replicas=2, autoscale=Autoscale(least=1, most=2, requests=1)), "leave out their number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(make, message):
    with pytest.raises(UsageError) as raised:
        make()
    assert message in str(raised.value) and "\n" not in str(raised.value)
