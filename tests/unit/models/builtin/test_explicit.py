"""Tools without a rule of their own: explicit calls, and messages that name a tool."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.tools import ToolDefinition

from torana.models.builtin.cards import Card
from torana.models.builtin.choice import Chooser
from torana.models.builtin.explicit import ExplicitCall, Unclear, read_call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("use deploy_status", ExplicitCall("deploy_status", {})),
        ("Use `deploy_status`.", ExplicitCall("deploy_status", {})),
        ("deploy_status()", ExplicitCall("deploy_status", {})),
        ('use find_customer {"name": "Ann"}', ExplicitCall("find_customer", {"name": "Ann"})),
        ('find_customer("Ann, \\"the\\" Lee")', ExplicitCall("find_customer", {"name": 'Ann, "the" Lee'})),
        (r"find_customer(name='O\'Hara')", ExplicitCall("find_customer", {"name": "O'Hara"})),
        ('open_ticket("Printer", 2)', ExplicitCall("open_ticket", {"title": "Printer", "priority": 2})),
        (
            'open_ticket(priority = 2, "Printer")',
            ExplicitCall("open_ticket", {"priority": 2, "title": "Printer"}),
        ),
        (
            'use open_ticket {"title": "x", "priority": 1}',
            ExplicitCall("open_ticket", {"title": "x", "priority": 1}),
        ),
        ('use every_get-sum {"a": 2, "b": 3}', ExplicitCall("every_get-sum", {"a": 2, "b": 3})),
        ("every_get-sum(a=2, b=3)", ExplicitCall("every_get-sum", {"a": 2, "b": 3})),
    ],
)
def test_explicit_calls_are_parsed(tools: Mapping[str, ToolDefinition], text: str, call: ExplicitCall) -> None:
    assert read_call(text, tools) == call


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("find_customer()", 'Write it as use find_customer {"name": …};'),
        ("use find_customer", 'Write it as use find_customer {"name": …};'),
        ('open_ticket("x")', 'use open_ticket {"title": …, "priority": …}'),
        ('open_ticket("x", 1, 2)', "more values than arguments"),
        ('open_ticket("x", title="y", priority=1)', "title has two values"),
        ('open_ticket(title="x", priority=1, colour="red")', "Write it as"),
        ("find_customer(Ann)", "in double quotes"),
        ('find_customer("Ann" "Lee")', "no comma between two values"),
        (r'find_customer("\ud800")', "as itself"),
        ("open_ticket('x', NaN)", "NaN is not a number"),
        ('use find_customer {"name": }', "cannot read the arguments"),
        ('use find_customer {"name": "Ann"', "cannot read the arguments"),
        ("find_customer(" + "[" * 9000 + ")", "cannot read the arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_explained(
    tools: Mapping[str, ToolDefinition], text: str, why: str
) -> None:
    answer = read_call(text, tools)
    assert isinstance(answer, Unclear)
    assert why in answer.text


def test_explicit_call_precedes_every_rule(chooser: Chooser) -> None:
    assert chooser.choose('find_customer("2+2")') == ExplicitCall("find_customer", {"name": "2+2"})


@pytest.mark.parametrize(
    "text", ["use nosuch", "nosuch(1)", "use", "find_customer", "use find_customer or not"]
)
def test_message_without_an_offered_tool_is_no_call(tools: Mapping[str, ToolDefinition], text: str) -> None:
    assert read_call(text, tools) is None


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("use deploy_nope {}", "deploy_nope"),
        ("use nope_nope", "nope_nope"),
        ('use count_text {"text": "a b"}', "count_text"),
        ('use nosuch {"broken', "nosuch"),
        ("find_costumer(name='Ann')", "find_costumer"),
        ("How many words are in this text: to be or not", "count_text"),
    ],
)
def test_unavailable_tool_is_named(
    cards: tuple[Card, ...], tools: Mapping[str, ToolDefinition], text: str, tool: str
) -> None:
    chooser = Chooser(cards=cards, tools={name: tool for name, tool in tools.items() if name != "count_text"})
    choice = chooser.choose(text)
    chooser.close()
    assert isinstance(choice, Unclear)
    assert choice.text.startswith(f"I cannot use the tool {tool} here: it does not exist, ")
    assert choice.text.endswith("Did you mean find_customer?") == (tool == "find_costumer")


@pytest.mark.parametrize("text", ["use it", "use e-mail", "f(x)", "hello(world)", "use butter."])
def test_ambiguous_message_is_no_call(chooser: Chooser, text: str) -> None:
    assert chooser.choose(text) is None


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("show the deploy status", ExplicitCall("deploy_status", {})),
        ('find the customer "Ann Lee"', ExplicitCall("find_customer", {"name": "Ann Lee"})),
        ("Find the customer “Ann Lee”, please", ExplicitCall("find_customer", {"name": "Ann Lee"})),
    ],
)
def test_message_with_a_whole_tool_name_calls_it(chooser: Chooser, text: str, call: ExplicitCall) -> None:
    assert chooser.choose(text) == call


@pytest.mark.parametrize(
    "text",
    [
        "find customer Ann",  # it is unclear which words are the name
        'find the customer "Ann" or "Bob"',
        'open a ticket "Printer"',  # needs a number too
        'send the invoice "7"',  # needs a number, not a text
        "how do I see the deploy status?",
        "don't show the deploy status",
        "never deploy; status?",
        "what is the status",
        "the deploy status of my garden furniture is a matter of taste and weather",
    ],
)
def test_arguments_are_never_guessed(chooser: Chooser, text: str) -> None:
    assert chooser.choose(text) is None


@given(st.text("use deploy_status find_customer(){}[]\"'=,:1 ", max_size=60))
def test_any_call_is_parsed_or_refused(tools: Mapping[str, ToolDefinition], text: str) -> None:
    call = read_call(text, tools)
    assert not isinstance(call, ExplicitCall) or call.tool in tools
