"""What engines keep of prompts and answers: sessions, shared prefixes, and memory that runs out; counted by hand."""

from dataclasses import replace

import pytest

from memwall.serving.simulation.engine import Policy
from memwall.serving.simulation.lengths import Lengths
from memwall.serving.simulation.prefixes import PrefixCache
from memwall.serving.simulation.requests import Disaggregated, simulate_requests
from memwall.serving.simulation.workload import AskedRequest, RequestLoad
from tests.unit.serving.engines import Affine

PLAIN = Policy(captured=())
#: a second for each token of a prompt, and nothing else
PROMPTS = Affine(base_s=0, decode_s=0, context_s=0, prompt_s=1)
A, B = (("a", 64),), (("b", 64),)


def ran(*rows, steps=PROMPTS, policy=PLAIN):
    """TTFTs of requests (arrival, prompt, answer, content)."""
    load = RequestLoad(trace=tuple(AskedRequest(at, n, m, content=content) for at, n, m, content in rows))
    return [row.ttft_s for row in simulate_requests(steps, load, policy).served]


def kept(*contents):
    """A cache that has computed all of some contents, the last one last, and holds none."""
    cache = PrefixCache()
    for content in contents:
        cache.release(content, cache.hold(content, 0, sum(tokens for _, tokens in content)))
    return cache


def test_whole_blocks_are_found_and_the_last_token_never():
    cache = kept((("a", 40), ("b", 10)))
    assert cache.found((("a", 40), ("b", 10)), 1000) == 48
    assert cache.found((("a", 40), ("b", 10)), 48) == 32
    assert cache.found((("a", 40), ("c", 100)), 1000) == 32
    assert cache.found((("c", 100), ("a", 40)), 1000) == 0


def test_the_least_recently_used_goes_first_from_its_end():
    """128 tokens idle; for 96 the first ones lose their last 32, then all; a part in front of both outlives them."""
    cache = kept(A, B)
    cache.trim(96)
    assert (cache.found(A, 1000), cache.found(B, 1000), cache.idle_tokens) == (32, 64, 96)
    cache.trim(20)
    assert (cache.found(A, 1000), cache.found(B, 1000), cache.idle_tokens) == (0, 16, 20)
    front = kept((("s", 64), *A), (("s", 64), *B))
    front.trim(128)
    assert [front.found((("s", 64), *each), 1000) for each in (A, B)] == [64, 128]


def test_what_a_request_holds_does_not_go():
    cache = PrefixCache()
    parts = cache.hold(A, 0, 64)
    assert cache.hold(A, 0, 64) == parts == 1  # another request
    cache.release(A, 1)
    cache.trim(0)
    assert cache.found(A, 1000) == 64 and cache.idle_tokens == 0
    cache.release(A, 1)
    assert cache.idle_tokens == 64
    cache.trim(0)
    assert cache.found(A, 1000) == 0


def test_a_turn_computes_what_its_session_has_not():
    """The second prompt has 202 tokens, of which the first turn left 102 in the cache: 96 in whole blocks."""
    load = RequestLoad(prompt=Lengths(100), generate=Lengths(2), turns=2, concurrency=1, requests=2)
    found = simulate_requests(PROMPTS, load, PLAIN)
    assert [row.ttft_s for row in found.served] == [100, 202 - 96]
    assert found.cached_share == 96 / 302


def test_nothing_is_kept_where_the_share_is_said_to_be_none():
    load = RequestLoad(prompt=Lengths(100), generate=Lengths(2), turns=2, concurrency=1, requests=2, prefix_hit=0.0)
    found = simulate_requests(PROMPTS, load, PLAIN)
    assert [row.ttft_s for row in found.served] == [100, 202] and found.cached_share is None


def test_a_user_thinks_between_an_answer_and_the_next_turn():
    """Decodes take 1 s: the second turn of a trace's client comes its pause after the answer."""
    load = RequestLoad(prompt=Lengths(16), generate=Lengths(5), turns=2, think_s=3.0, concurrency=1, requests=2)
    pause_s = [asked.think_s for asked in load.asked()][1]
    first, second = simulate_requests(Affine(base_s=1, decode_s=0, context_s=0, prompt_s=0), load, PLAIN).served
    assert pause_s > 0 and second.arrival_s == pytest.approx(first.end_s + pause_s)


@pytest.mark.parametrize(("room", "left"), [(10**9, 80), (256, 80), (224, 48), (192, 16)])
def test_a_running_request_takes_memory_from_what_is_kept(room, left):
    """The first request leaves 112 tokens, and the second one ends with 176; of what is left the third finds whole
    blocks of its prompt of 96 without the last token, 80 at most."""
    content = (("a", 112),)
    rows = ((0, 96, 16, content), (1000, 160, 16, (("b", 176),)), (2000, 96, 16, content))
    assert ran(*rows, steps=replace(PROMPTS, capacity_bytes=room)) == [96, 160, 96 - left]


def test_a_prompt_in_work_is_not_found_before_it_is_computed():
    """One in a step of its own, the next at the same time: both compute all. Later ones compute the last block."""
    policy = replace(PLAIN, token_budget=64, max_batch=8)
    assert ran((0, 64, 1, A), (0, 64, 1, A), (500, 64, 1, A), policy=policy)[2] == 16
    both = ran((0, 64, 2, A), (0, 64, 2, A), policy=replace(PLAIN, token_budget=128, max_batch=8))
    assert both == [128, 128]


def test_an_engine_of_prompts_keeps_prompts_and_no_answers():
    """The second prompt has 48 + 32 + 48 tokens; the engine of prompts has computed the first 48 of them."""
    server = Disaggregated(prompt=PROMPTS, decode=replace(PROMPTS, prompt_s=0), link_bytes_per_s=float("inf"))
    load = RequestLoad(prompt=Lengths(48), generate=Lengths(32), turns=2, concurrency=1, requests=2)
    assert [row.found_tokens for row in simulate_requests(server, load, PLAIN).served] == [0, 48]


def test_a_preempted_request_finds_what_it_had():
    """Six blocks for two requests of 32 + 32 tokens: the second falls, and its prompt of 32 tokens stays in the two
    blocks that the first one's 64 tokens leave. It is not computed again, at half a second a token."""
    steps = replace(PROMPTS, base_s=1, prompt_s=0.5, capacity_bytes=96)
    ends = []
    for contents in ((A, B), ((), ())):
        rows = tuple(AskedRequest(0.0, 32, 32, content=content) for content in contents)
        found = simulate_requests(steps, RequestLoad(trace=rows), PLAIN)
        assert found.preemptions == 1
        ends.append(found.served[1].end_s)
    assert ends[1] - ends[0] == pytest.approx(16)
