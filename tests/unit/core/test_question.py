"""One line of a question is an option everywhere."""

from __future__ import annotations

import json
from typing import Annotated, Unpack

import click
import pytest

from memwall.cli.options import asked
from memwall.core.question import Option, filled, options_of, signature_of
from memwall.gate.reading import settings_of
from memwall.points import options_of as axes_of
from memwall.step import Step
from tools.schemas import settings_schema


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


def test_every_option_of_a_step_has_a_help_and_a_default_of_its_type():
    for name, said in options_of(Step).items():
        assert said.help, name
        assert said.default in (None, ()) or isinstance(said.default, said.types), name


def test_the_shipped_schema_of_settings_is_that_of_a_step(monkeypatch):
    from importlib.resources import files

    shipped = files("memwall.report").joinpath("schemas/settings-1.schema.json").read_text(encoding="utf-8")
    assert json.loads(shipped)["properties"] == settings_schema(Step)["properties"]
