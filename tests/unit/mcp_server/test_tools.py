"""What a tool takes: the words of its command, and nothing that a terminal alone has."""

import pytest

from memwall.core.errors import UsageError
from memwall.core.question import options_of
from memwall.mcp_server.tools import TOOLS, check, input_schema, words
from memwall.step import Step
from memwall.wings import part


def test_the_tools_have_their_names():
    assert [*TOOLS] == ["bound", "profile", "explain", "fuse", "compare", "serve", "gpus", "trace"]


@pytest.mark.parametrize(
    ("tool", "question"),
    [("profile", Step), ("serve", part("serving.ServeOptions")), ("bound", part("bounding.BoundOptions"))],
)
def test_every_option_of_a_question_is_a_property(tool, question):
    words_of_question = {said.spelled.replace("-", "_") for said in options_of(question).values()}
    assert words_of_question <= input_schema(tool)["properties"].keys()


def test_a_property_has_the_type_choices_and_least_of_its_option():
    taken = input_schema("profile")["properties"]
    assert (taken["batch"]["type"], taken["batch"]["minimum"]) == ("integer", 1)
    assert taken["cuda_graph"]["type"] == "boolean"
    assert "training" in taken["mode"]["enum"]
    assert taken["gpu"]["items"]["type"] == "string"
    assert input_schema("serve")["properties"]["concurrency"]["items"]["type"] == "integer"


@pytest.mark.parametrize("tool", TOOLS)
def test_no_tool_writes_a_file(tool):
    assert not {"output", "emit", "json"} & input_schema(tool)["properties"].keys()


@pytest.mark.parametrize(("given", "said"), [
    ({}, "'target' is a required property"),
    ({"target": 3}, "target: 3 is not of type 'string'"),
    ({"target": "m.py", "batch": "8"}, "batch: '8' is not of type 'integer'"),
    ({"target": "m.py", "batch": True}, "batch: True is not of type 'integer'"),
    ({"target": "m.py", "batch": 0}, "batch: 0 is less than the minimum of 1"),
    ({"target": "m.py", "gpu": [["h100"]]}, "gpu.0: \\['h100'\\] is not of type 'string'"),
    ({"target": "m.py", "mode": "train"}, "mode: 'train' is not one of"),
    ({"target": "a" * 20_001}, "target: 20,001 are more than 20,000"),
    ({"target": "m.py", "gpu": ["h100"] * 1_001}, "gpu: 1,001 are more than 1,000"),
    ({"target": "m.py", "bacth": 8}, "no option named 'bacth'; did you mean batch"),
])  # fmt: skip
def test_a_wrong_call_is_one_line(given, said):
    with pytest.raises(UsageError, match=said) as raised:
        check("profile", given)
    assert "\n" not in str(raised.value)


def test_a_call_becomes_a_command_line():
    given = {"target": "m.py", "gpu": ["h100", "a100"], "batch": 8.0, "cuda_graph": True, "strict": False}
    assert words("profile", given) == ["--gpu=h100", "--gpu=a100", "--batch=8", "--cuda-graph", "--", "m.py"]


def test_no_value_is_read_as_an_option():
    line = words("profile", {"target": "--output=x.json", "gpu": ["--output=y.json"]})
    assert line == ["--gpu=--output=y.json", "--", "--output=x.json"]


def test_a_flag_that_may_stand_alone_does():
    assert words("fuse", {"target": "m.py", "compile": []}) == ["--compile=", "--", "m.py"]
