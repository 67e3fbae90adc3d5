"""One line of a question is an option everywhere."""

import json
from dataclasses import fields
from typing import Annotated, Unpack

import click
import pytest

from memwall.cli.options import asked
from memwall.core.question import Option, filled, options_of, signature_of
from memwall.gate.reading import settings_of
from memwall.points import options_of as axes_of
from memwall.report.json_schema import schema_text, settings_schema
from memwall.serving.question import DecodeOptions, SearchOptions, ServeOptions
from memwall.step import Step
from memwall.training.kinds import LAYOUT, NUMBERS, OPTIONS
from memwall.training.layout import FLAGS, KEYS, SETTINGS, Parallelism
from memwall.training.question import Job, LayoutSearch


class Wider(Step, total=False):
    lanes: Annotated[int | None, Option(None, "How many lanes there are.", least=2, metavar="N")]


@signature_of(Wider)
def answer(target: str, **step: Unpack[Wider]) -> int:
    return filled(Wider, step).lanes


def test_one_line_is_a_keyword():
    assert answer("x", lanes=4) == 4
    assert answer("x") is None
    with pytest.raises(TypeError, match="'lane'"):
        answer("x", lane=4)


def test_one_line_is_an_option_of_the_command_line():
    command = click.command("x")(asked(Wider, "lanes")(lambda lanes: click.echo(lanes)))
    text = command.get_help(click.Context(command))
    assert "--lanes N" in text and "How many lanes there are." in text and "x>=2" in text


def test_one_line_is_an_axis_a_setting_and_a_property():
    assert "lanes" in axes_of(answer)
    assert settings_of(Wider)["lanes"] == (int,)
    assert settings_schema(Wider)["properties"]["lanes"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}], "description": "How many lanes there are.",
    }  # fmt: skip


@pytest.mark.parametrize("question", [Step, Job, LayoutSearch, Parallelism, ServeOptions, DecodeOptions, SearchOptions])
def test_every_option_has_a_help_and_a_default_of_its_type(question):
    for name, said in options_of(question).items():
        assert said.help or said.internal, name
        assert said.default in (None, ()) or isinstance(said.default, said.types), name


class LongerJob(Job, total=False):
    warmup: Annotated[bool, Option(True, "Steps before the one that is timed.")]


@signature_of(LongerJob)
def trained(target: str, *, layout: str, **job: Unpack[LongerJob]) -> bool:
    return filled(LongerJob, job).warmup


def test_one_line_of_a_job_is_a_keyword_an_option_and_an_axis():
    assert trained("x", layout="dp=2") and not trained("x", layout="dp=2", warmup=False)
    command = click.command("x")(asked(LongerJob, "warmup", of="Of training: ")(lambda no_warmup: None))
    assert "--no-warmup  Of training: steps before the one that is timed." in command.get_help(click.Context(command))
    assert {"warmup", "state", "batch", "seq"} <= {*axes_of(trained, "layout")}


def test_a_field_of_a_layout_is_a_key_with_its_reader_and_an_axis():
    """All but ``chunks``, which a schedule says; the defaults are those of the dataclass."""
    keys = {said.flag or name for name, said in options_of(Parallelism).items() if not said.internal}
    assert {*KEYS} == {*SETTINGS} == keys == {name.removeprefix("parallel.") for name in LAYOUT}
    assert {item.name for item in fields(Parallelism)} - {*options_of(Parallelism)} == set()
    assert options_of(Parallelism)["schedule"].default == "1f1b" and "async" in FLAGS and "tp" not in FLAGS
    assert {name for name in OPTIONS if name not in NUMBERS} == {
        "batch", "seq", "dtype", "autocast", "parallel.tp", "parallel.sp", "parallel.cp", "parallel.ep",
    }  # fmt: skip


def test_the_schema_of_settings_is_that_of_a_step():
    assert json.loads(schema_text("settings")) == settings_schema(Step)
