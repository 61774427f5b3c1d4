"""Messages that refer to an earlier one, misspelt messages, and small talk."""

from __future__ import annotations

from typing import Any

import pytest

from torana.models.builtin.choice import Chooser
from torana.models.builtin.explicit import ExplicitCall
from torana.models.builtin.languages import FixedReply, language_of, languages


@pytest.mark.parametrize(
    ("earlier", "text", "tool", "arguments"),
    [
        (["what time is it in Tokyo"], "and in Paris?", "current_time", {"place": "Paris"}),
        (["what time is it in Tokyo", "and in Paris?"], "what about Rome", "current_time", {"place": "Rome"}),
        (
            ["5 miles in km", "and 10 miles?"],
            "and in meters",
            "convert_units",
            {"value": 10.0, "from_unit": "miles", "to_unit": "meters"},
        ),
        (["days until christmas"], "and until easter", "days_between", {"start": "today", "end": "easter"}),
        (["2 + 2"], "times 3", "calculate", {"expression": "(2 + 2) times 3"}),
        (["2 + 2", "times 3"], "minus 1", "calculate", {"expression": "((2 + 2) times 3) minus 1"}),
        (["add milk to my packing list"], "what is on it", "show_list", {"name": "packing"}),
        (["add milk to my packing list"], "and eggs", "add_to_list", {"name": "packing", "entries": ["eggs"]}),
        (["add milk to my list"], "and eggs", "add_to_list", {"name": "shopping", "entries": ["eggs"]}),
        (
            ["add milk to my shopping list", "hello"],
            "remove milk",
            "remove_from_list",
            {"name": "shopping", "entries": ["milk"]},
        ),
        (
            ["remind me to water the plants"],
            "tomorrow at 9",
            "schedule_once",
            {"text": "water the plants", "at": "tomorrow at 9"},
        ),
        (["remind me tomorrow at 9 to sing"], "cancel it", "cancel_schedule", {"which": "sing"}),
        (["roll a die"], "again", "pick_random", {"low": 1, "high": 6}),
    ],
)  # fmt: skip
def test_message_is_completed_from_earlier_ones(
    chooser: Chooser, earlier: list[str], text: str, tool: str, arguments: dict[str, Any]
) -> None:
    assert chooser.choose(text, earlier) == ExplicitCall(tool, arguments)


@pytest.mark.parametrize(
    ("earlier", "text"),
    [
        ([], "and in Paris?"),
        ([], "and eggs"),
        ([], "cancel it"),
        ([], "remove milk"),
        (["what time is it in Tokyo", "2 + 2"], "and in Paris?"),
        (["add milk to my shopping list", "2 + 2"], "and eggs"),
        (["add milk to my shopping list"], "add subtitles to my video"),
        (["remind me to water the plants", "2 + 2"], "tomorrow at 9"),
        (["5 miles in km"], "and in love"),
    ],
)
def test_message_without_a_fitting_earlier_one_is_not_matched(
    chooser: Chooser, earlier: list[str], text: str
) -> None:
    assert not isinstance(chooser.choose(text, earlier), ExplicitCall)


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("waht time is it in Tokyo", "current_time", {"place": "Tokyo"}),
        (
            "remnid me tomorow at 9 to clal the wether man",
            "schedule_once",
            {"text": "clal the wether man", "at": "tomorrow at 9"},
        ),
        ("conver 5 mles to km", "convert_units", {"value": 5.0, "from_unit": "miles", "to_unit": "km"}),
        ("cancle the pizza reminder", "cancel_schedule", {"which": "pizza"}),
    ],
)
def test_spelling_mistakes_are_corrected_outside_of_the_users_own_words(
    chooser: Chooser, text: str, tool: str, arguments: dict[str, Any]
) -> None:
    assert chooser.choose(text) == ExplicitCall(tool, arguments)


@pytest.mark.parametrize(
    "text", ["delte the file a.txt", "forgett my name", "remve milk from my shopping list"]
)
def test_nothing_is_deleted_for_a_misspelt_message(chooser: Chooser, text: str) -> None:
    assert not isinstance(chooser.choose(text), ExplicitCall)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("kannst du mir helfen", "de"),
        ("où est la gare", "fr"),
        ("¿dónde está mi libro?", "es"),
        ("今天天气怎么样", "zh"),
        ("where is my book", "en"),
        ("die hard is on", "en"),
        ("como", "es"),
        ("これは何ですか", "en"),
        ("", "en"),
    ],
)
def test_language_is_recognised(text: str, code: str) -> None:
    assert language_of(text) is languages()[code]


@pytest.mark.parametrize("text", ["Danke!", "merci beaucoup", "¡Gracias!", "谢谢。", "ok, thanks a lot :)"])
def test_thanks_get_a_fixed_reply_without_examples(chooser: Chooser, text: str) -> None:
    reply = chooser.choose(text)

    assert isinstance(reply, FixedReply)
    assert reply.examples == "none"
