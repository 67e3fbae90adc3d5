"""Files of recorded requests, in the formats in which others publish them."""

import json

import pytest

from memwall.core.errors import UsageError
from memwall.serving.simulation.trace_files import read_trace
from memwall.serving.simulation.workload import AskedRequest, RequestLoad


def traced(tmp_path, text, name="trace.csv", **options):
    (path := tmp_path / name).write_text(text)
    return read_trace(path, **options)


def mooncake(*rows):
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=False))) + "\n" for row in rows)


def test_our_own_is_read_in_the_order_of_arrival(tmp_path):
    text = "# made up\nprompt_tokens,arrival_s,generated_tokens,user\n5,12.5,7,a\n3,10,4,b\n"
    assert traced(tmp_path, text).requests == (AskedRequest(0.0, 3, 4), AskedRequest(2.5, 5, 7))
    assert traced(tmp_path, text, times_as_fast=2).requests[1].arrival_s == 1.25


def test_burstgpts_failed_requests_are_left_out(tmp_path):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,1,2,ChatGPT,472,18,490,Conversation log\n45,2,0,ChatGPT,1087,0,1087,Conversation log\n"
        "118,3,9,GPT-4,417,276,693,API log\n"
    )
    found = traced(tmp_path, text)
    assert found.requests == (AskedRequest(0.0, 472, 18), AskedRequest(113.0, 417, 276))
    assert found.note == "the load lacks 1 request of the trace that had no answer"


def test_azures_times_are_dates(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    found = traced(tmp_path, text).requests
    assert [asked[1:3] for asked in found] == [(374, 44), (396, 109)]
    assert found[1].arrival_s == pytest.approx(4.314579, abs=1e-5)


def test_mooncakes_blocks_of_512_tokens_are_what_prompts_share(tmp_path):
    """Times are in ms; the last block is as full as the prompt leaves it."""
    text = mooncake((27000, 1030, 52, [46, 47, 48]), (30000, 600, 26, [46, 49]))
    found = traced(tmp_path, text, "trace.jsonl").requests
    assert [(each.arrival_s, *each[1:3]) for each in found] == [(0.0, 1030, 52), (3.0, 600, 26)]
    assert found[0].content == ((46, 512), (47, 512), (48, 6))
    assert found[1].content == ((46, 512), (49, 88))


def test_a_share_that_is_cached_says_otherwise_than_blocks(tmp_path):
    found = traced(tmp_path, mooncake((0, 600, 9, [1, 2])), "trace.jsonl").requests
    assert RequestLoad(trace=found).reuses and not RequestLoad(trace=found, prefix_hit=0.0).reuses
    assert next(RequestLoad(trace=found, prefix_hit=0.0).asked()).content == ()
    with pytest.raises(UsageError, match="leave one out"):
        RequestLoad(trace=found, prefix_hit=0.5)


_OWN = "arrival_s,prompt_tokens,generated_tokens\n"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("arrival,prompt_tokens,generated_tokens\n1,2,3\n", "t.csv", "no column arrival_s; did you mean arrival?"),
        ("a,b\n1,2\n", "t.csv", "no trace that is known has the columns a, b"),
        (_OWN + "1,x,3\n", "t.csv", "t.csv:2: prompt_tokens is 'x', not a whole number"),
        (_OWN + "1,,3\n", "t.csv", "t.csv:2: prompt_tokens is '', not a whole number"),
        (_OWN + ",5,3\n", "t.csv", "t.csv:2: arrival_s is '', not a time"),
        (_OWN + "nan,5,3\n", "t.csv", "want an arrival of 0 s or later"),
        (_OWN + "-1,2,3\n", "t.csv", "t.csv:2: want an arrival of 0 s or later"),
        (_OWN + "1,2\n", "t.csv", "t.csv:2: 2 cells where the header has 3"),
        (_OWN, "t.csv", "has no request"),
        ("", "t.csv", "is empty"),
        ("", "t.jsonl", "has no request"),
        ("[1]\n", "t.jsonl", "t.jsonl:1 is no JSON object"),
        (mooncake((1, 2, 3)) + "{\n", "t.jsonl", "t.jsonl:2 is not JSON"),
        (mooncake((1, 2, 3), (1, 2)), "t.jsonl", "t.jsonl:2: no output_length"),
        (mooncake((1, 2, None)), "t.jsonl", "output_length is None, not a whole number"),
        (mooncake((1, 2, 3, 4)), "t.jsonl", "hash_ids is 4, not a list"),
        ("Timestamp,Request tokens,Response tokens\n1,2,0\n", "t.csv", "has no request that was answered"),
    ],
)
def test_a_wrong_trace_is_refused_in_one_line(tmp_path, text, name, message):
    with pytest.raises(UsageError) as raised:
        traced(tmp_path, text, name)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_no_speed_is_refused(tmp_path):
    with pytest.raises(UsageError, match="a trace 0 times as fast"):
        traced(tmp_path, _OWN + "1,2,3\n", times_as_fast=0)
