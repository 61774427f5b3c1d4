"""Messages that run a skill's script or a Python snippet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.cards import Card
from torana.models.builtin.choice import Chooser
from torana.models.builtin.explicit import ExplicitCall, Unclear
from torana.models.builtin.message import read
from torana.models.builtin.triggers import read_trigger
from torana.skills import SkillTrigger

WEATHER = Card(
    slug="weather",
    title="Weather",
    description="Forecasts.",
    triggers=(
        SkillTrigger(phrase="forecast for {place}", script="scripts/a.py", arguments=("--place", "{place}")),
        SkillTrigger(
            phrase="from {a} to {b} and back to {a}", script="scripts/b.sh", arguments=("{b}", "{a}{a}")
        ),
        SkillTrigger(phrase="what's up? (now)", script="scripts/c.py", arguments=()),
        SkillTrigger(phrase="{a} {b} {c} now", script="scripts/d.py", arguments=()),
    ),
)


@pytest.fixture
def chooser(tools: Mapping[str, ToolDefinition]) -> Iterator[Chooser]:
    chooser = Chooser(
        cards=[WEATHER], tools={**tools, "run_skill_script": ToolDefinition(name="run_skill_script")}
    )
    yield chooser
    chooser.close()


def script(name: str, *arguments: str) -> ExplicitCall:
    return ExplicitCall("run_skill_script", {"slug": "weather", "script": name, "arguments": list(arguments)})


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("forecast for Lisbon", script("scripts/a.py", "--place", "Lisbon")),
        ("Could you please Forecast  for São João?", script("scripts/a.py", "--place", "São João")),
        ("forecast for $(reboot); {place}", script("scripts/a.py", "--place", "$(reboot); {place}")),
        ("from Rome to Oslo and back to Rome", script("scripts/b.sh", "Oslo", "RomeRome")),
        ("What's up? (now)", script("scripts/c.py")),
    ],
)  # fmt: skip
def test_declared_phrase_runs_its_script(chooser: Chooser, message: str, call: ExplicitCall) -> None:
    assert chooser.choose(message) == call


def test_placeholders_between_texts_are_the_shortest_possible(chooser: Chooser) -> None:
    assert chooser.choose("a b c d now") == script("scripts/d.py")
    assert chooser.choose("a b now") != script("scripts/d.py")


@pytest.mark.parametrize("phrase", ["{a}{b}{c}x", "{a} {b} {c} x", "{a}{b}{b}x", "a{a}a{b}a{c}x"])
def test_phrases_with_several_placeholders_take_linear_time(phrase: str) -> None:
    trigger = SkillTrigger(phrase=phrase, script="scripts/a.py", arguments=())
    card = replace(WEATHER, triggers=(trigger,) * 64)

    # Backtracking takes 0.2 s for each phrase of the first, so that the test's time limit ends it.
    assert read_trigger(read("a " * 150), [card] * 100) is None
    assert read_trigger(read("a " * 4_900), [card]) is None


@pytest.mark.parametrize(
    "message",
    ["forecast", "the forecast for Lisbon", "from Rome to Oslo and back to Bonn", "what is a forecast for"],
)
def test_other_words_run_nothing(chooser: Chooser, message: str) -> None:
    choice = chooser.choose(message)

    assert not isinstance(choice, ExplicitCall)


def test_phrases_of_an_unapproved_skill_explain_and_do_not_shadow_rules(
    cards: tuple[Card, ...], tools: Mapping[str, ToolDefinition]
) -> None:
    what = SkillTrigger(phrase="what is {a}", script="scripts/a.py", arguments=("{a}",))
    refused = replace(WEATHER, triggers=(*WEATHER.triggers, what), refusal="It is not approved.")
    chooser = Chooser(
        cards=[refused, *cards], tools={**tools, "run_skill_script": ToolDefinition(name="run_skill_script")}
    )

    assert chooser.choose("forecast for Lisbon") == Unclear("It is not approved.")
    assert chooser.choose("what is 2 + 2") == ExplicitCall("calculate", {"expression": "2 + 2"})
    chooser.close()


def test_phrases_without_the_tool_explain_and_do_not_shadow_rules(
    tools: Mapping[str, ToolDefinition],
) -> None:
    what = SkillTrigger(phrase="what is {a}", script="scripts/a.py", arguments=("{a}",))
    chooser = Chooser(cards=[replace(WEATHER, triggers=(*WEATHER.triggers, what))], tools=tools)

    choice = chooser.choose("forecast for Lisbon")
    assert chooser.choose("what is 2 + 2") == ExplicitCall("calculate", {"expression": "2 + 2"})
    chooser.close()

    assert isinstance(choice, Unclear)
    assert choice.text.startswith("I cannot use the tool run_skill_script here")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("run python: sum(range(10))", "sum(range(10))"),
        ("Please run this Python code:\n```python\nx = 1\n  \nx + 1\n```", "x = 1\n  \nx + 1"),
        ("run the python snippet\nprint('a')\nprint('b')", "print('a')\nprint('b')"),
        ("evaluate python: {'a': [1]}", "{'a': [1]}"),
    ],
)
def test_python_code_runs_unchanged(chooser: Chooser, message: str, code: str) -> None:
    assert chooser.choose(message) == ExplicitCall("run_python", {"code": code})


@pytest.mark.parametrize("message", ["run python", "how do I run python: x", "my python runs: far"])
def test_mention_of_python_runs_nothing(chooser: Chooser, message: str) -> None:
    choice: Any = chooser.choose(message)

    assert not isinstance(choice, ExplicitCall)
