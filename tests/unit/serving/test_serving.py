"""Objectives of a server, and the cheapest candidate that keeps them."""

import math
from dataclasses import replace

import pytest

from memwall.analysis.quantities import SERVED
from memwall.core.errors import UsageError
from memwall.hardware.engine import EngineHost
from memwall.hardware.prices import CostRates
from memwall.serving.candidates import Decoding, ServerCandidate, best, objective, stop, value_of
from memwall.serving.simulation.engine import Policy
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.requests import simulate_requests
from memwall.serving.simulation.steady import steady_state
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine

PLAIN = Policy(captured=())


def one_request(name="a", decode_s=0.1, prompt_s=0.01, **options):
    """A prompt of 100 tokens, then ten at ``decode_s``: TTFT 1 s, 11 tokens in 2 s by default."""
    steps = Affine(base_s=0, decode_s=decode_s, context_s=0, prompt_s=prompt_s)
    workload = RequestLoad(prompt=Lengths(100), generate=Lengths(11), concurrency=1, requests=1)
    return ServerCandidate(name=name, run=simulate_requests(steps, workload, PLAIN), **options)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ttft<9", 1.0), ("ttft_p99<900ms", 1.0), ("tpot_p50_s<1", 0.1), ("e2e<3s", 2.0),
        ("tokens_per_s>1", 5.5), ("tokens_per_s_per_user>20/s", 10.0), ("tokens_per_s_per_gpu>=1", 2.75),
        ("requests_per_s>1", 0.5), ("preemptions<1", 0), ("cost_per_mtok<2 USD", 2 * 1.98 / 3600 / 5.5 * 1e6),
        ("cost_per_prompt_mtok<2$", 2 * 1.98 / 3600 / 50 * 1e6), ("energy_per_token<1J", 2 * 550 / 5.5),
        ("watts_per_gpu<600W", 550), ("usd_per_million_tokens_low<2$", 0.8 * 2 * 1.98 / 3600 / 5.5 * 1e6),
        ("usd_per_million_tokens_high<2$", 1.2 * 2 * 1.98 / 3600 / 5.5 * 1e6),
        ("usd_per_million_tokens_spot<2$", 0.5 * 2 * 1.98 / 3600 / 5.5 * 1e6),
        ("grams_per_million_tokens<9kg", 2 * 550 / 5.5 / 3.6 * 400),
        ("ttft_low<1s", 0.5), ("ttft_high<4s", 3.0), ("tpot_low<1s", 0.08), ("tpot_high<1s", 0.12),
    ],
)  # fmt: skip
def test_values_by_hand(text, value):
    engine = EngineHost("", ttft_low=0.5, ttft_high=3, tpot_low=0.8, tpot_high=1.2)
    rates = CostRates(usd_per_gpu_hour=1.98, grams_per_kwh=400, spot=0.5)
    candidate = one_request(gpus=2, rates=rates, watts_per_gpu=550, engine=engine, is_closed=True)
    assert value_of(candidate, objective(text)) == pytest.approx(value)


def test_goodput_is_of_requests_that_keep_every_limit_of_a_request():
    """TTFTs of 3, 3 and 10 s, in 24 s with 10 tokens each, of 1 s: two of three keep 5 s, all keep 1.5 s a token, and
    none makes two tokens a second. Limits of money are of no request; without any other there is no goodput."""
    steps = Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0.1)
    asked = tuple(AskedRequest(*row) for row in ((0, 10, 10), (0, 10, 10), (5, 20, 10)))
    run = simulate_requests(steps, RequestLoad(trace=asked), Policy(captured=(), max_batch=2))

    def goodput(*limits):
        made = ServerCandidate(name="", run=run, limits=tuple(map(objective, limits)))
        return made.goodput_share, made.goodput_per_s, made.goodput_tokens_per_s

    assert goodput("ttft_p99<5s", "tpot<1.5s", "cost_per_mtok<1$") == pytest.approx((2 / 3, 2 / 24, 20 / 24))
    assert goodput("tokens_per_s_per_user>2/s") == (0, 0, 0)
    assert goodput("cost_per_mtok<1$") == goodput() == (None, None, None)


def test_units_of_objectives():
    assert objective("ttft_p99 < 500ms").amount == 0.5
    assert objective("tpot<=30 ms").amount == pytest.approx(0.03)
    assert objective("cache_use<90%").amount == pytest.approx(0.9)
    assert objective("tokens_per_s>1.5k/s").amount == 1500


def test_the_cheapest_that_holds_and_what_stops_the_next_cheaper():
    """Cost per token: 4 at 5.5/s, 2 at 3.5/s, 1 at 1.0/s, so that the slow ones are cheaper."""
    fast = one_request("fast", rates=CostRates(usd_per_gpu_hour=4))
    middle = one_request("middle", decode_s=0.2143, rates=CostRates(usd_per_gpu_hour=2))
    slow = one_request("slow", decode_s=1.0, rates=CostRates(usd_per_gpu_hour=0.2), wall="bandwidth")
    found = best([fast, slow, middle], ["tpot<300ms"])
    assert found.candidate is middle and found.cheaper.candidate is slow
    assert str(found.cheaper) == ("slow, misses TPOT < 300.00 ms with 1.00 s: steps of decodes, limited by bandwidth")
    assert best([fast, slow, middle], []).cheaper is None
    assert best([fast, slow, middle], ["tpot<100.1ms"]).candidate is fast


@pytest.mark.defect("16")
def test_a_load_is_compared_with_no_other():
    """The cheapest server was picked among all loads, so that one with 1 client was the next cheaper of one with 64.
    USD an hour by tokens a second: small 2 / 5.5 and 2 / 1, large 8 / 7.33 and 8 / 3.67."""
    from memwall.serving.candidates import choices

    def served(load, name, price, decode_s):
        return one_request(name, load=load, decode_s=decode_s, rates=CostRates(usd_per_gpu_hour=price))

    one = [served("1 client", "small", 2, 0.1), served("1 client", "large", 8, 0.05)]
    many = [served("64 clients", "small", 2, 1.0), served("64 clients", "large", 8, 0.2)]
    first, second = choices([*one, *many], ["tpot<300ms"])
    assert (first.load, first.best.candidate, first.best.cheaper) == ("1 client", one[0], None)
    assert (second.load, second.best.candidate, second.best.cheaper.candidate) == ("64 clients", many[1], many[0])
    first, second = choices([*one, *many], ["tpot<60ms"])
    assert first.best.candidate is one[1] and second.best is None
    assert second.unmet == "no candidate keeps TPOT < 60.00 ms: 200.00 ms is the best, of large"


def test_walls():
    """What stops a server: a full cache, a full batch, prompts, or too high a rate."""
    workload = RequestLoad(prompt=Lengths(512), generate=Lengths(64), concurrency=64, requests=300)

    def wall(text, workload=workload, policy=PLAIN, run=simulate_requests, **options):
        return stop(ServerCandidate(name="a", run=run(Affine(**options), workload, policy)), [objective(text)]).wall

    assert wall("ttft<1us", capacity_bytes=9000) == "requests wait for the KV cache"
    assert wall("ttft<1us", policy=Policy(max_batch=8)) == "requests wait for a place in the largest batch"
    assert wall("ttft<1us") == "steps with prompts"
    assert wall("tpot<1us", policy=Policy(max_batch=2)) == "steps of decodes"
    assert wall("ttft<1us", capacity_bytes=9000, run=steady_state) == "requests wait for the KV cache"
    assert wall("ttft<1us", policy=Policy(max_batch=8), run=steady_state).endswith("largest batch")
    assert wall("ttft<1us", run=steady_state) == "steps with prompts"
    many = RequestLoad(prompt=Lengths(512), generate=Lengths(64), rate_per_s=1e4)
    assert wall("ttft<1us", workload=many, run=steady_state) == "requests come faster than they are served"


def test_an_overloaded_server_keeps_no_bound_on_the_first_token():
    many = RequestLoad(prompt=Lengths(512), generate=Lengths(64), rate_per_s=1e4)
    candidate = ServerCandidate(name="a", run=steady_state(Affine(), many))
    assert value_of(candidate, objective("ttft<3600s")) == math.inf
    assert "with endless: requests come faster" in str(stop(candidate, [objective("ttft<3600s")]))


@pytest.mark.parametrize(
    ("objectives", "message"),
    [
        (["ttft<500ms"], "no candidate keeps TTFT < 500.00 ms: 800.00 ms is the best, of quick prompts"),
        (["ttft<900ms", "tpot<150ms"], "no candidate keeps all objectives; the nearest, "),
        (["tfft<500ms"], "no quantity of a server 'tfft'; did you mean ttft?"),
        (["ttft<5 mins"], "no unit 'mins'"),
        (["ttft>5ms"], "better when lower; want ttft<5ms"),
        (["tokens_per_s<5"], "better when higher; want tokens_per_s>5"),
        (["ttft=5ms"], "cannot read the objective"),
        (["ttft<+5%"], "cannot read the objective"),
        (["cost_per_mtok<2"], "usd_per_million_tokens is unknown of all candidates; give the price"),
    ],
)
def test_what_cannot_be_kept_or_read_is_one_line(objectives, message):
    candidates = [one_request("even"), one_request("quick prompts", decode_s=0.3, prompt_s=0.008)]
    with pytest.raises(UsageError) as raised:
        best(candidates, objectives)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_price_of_some_is_no_comparison():
    with pytest.raises(UsageError, match="no price of b: costs compare where all candidates have one, or none"):
        best([one_request("a", rates=CostRates(usd_per_gpu_hour=1.0)), one_request("b")], [])
    with pytest.raises(UsageError, match="give one or more"):
        best([], [])


def test_the_cost_of_a_decode_step_has_the_interval_of_its_time():
    """8 tokens in 4 ms on 2 GPUs of 1.8 USD an hour: 0.5 USD a million, from 0.8 to 1.2 times that."""
    sizes = {"weights_bytes": 1, "held_bytes": 1, "kv_bytes": 1, "capacity_bytes": 9, "limited_by": "bandwidth"}
    rates, engine = CostRates(usd_per_gpu_hour=1.8), EngineHost("", tpot_low=0.8, tpot_high=1.2)
    step = Decoding(batch=8, gpus=2, time_s=4e-3, rates=rates, engine=engine, **sizes)
    assert [step.usd_end("low"), step.usd_end("high")] == pytest.approx([0.4, 0.6])


def test_a_cost_of_requests_at_a_rate_has_no_interval():
    """Their tokens come as fast as they are asked for, whatever TPOT is."""
    assert one_request(rates=CostRates(usd_per_gpu_hour=1.0), engine=EngineHost("")).usd_end("low") is None


def test_percentiles_need_a_simulation():
    steady = steady_state(Affine(), RequestLoad(concurrency=4))
    with pytest.raises(UsageError, match="ttft_p99_s is unknown of all candidates; ttft_s is known"):
        best([ServerCandidate(name="a", run=steady)], ["ttft_p99<1s"])


def test_every_quantity_of_a_server_is_read():
    limits = (objective("ttft<9"),)
    known = {
        "rates": CostRates(usd_per_gpu_hour=1.0, grams_per_kwh=1.0, spot=0.5),
        "is_closed": True,
        "watts_per_gpu": 1.0,
        "kv_bytes_per_token": 1,
        "engine": EngineHost(""),
    }
    run = one_request().run
    reused = tuple(row._replace(found_tokens=16) for row in run.served)
    run = replace(run, engines_on=1.0, served=reused)  # of replicas that start and stop, with prompts in the cache
    candidate = ServerCandidate(name="a", run=run, limits=limits, **known)
    assert [name for name, row in SERVED.items() if row.read("serve", candidate) is None] == []
