from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.tools.base import ToolError
from torana.tools.builtin.json_query import query_json

SHOP = """{"items": [{"name": "pen", "price": 1.5}, {"name": "ink", "price": 12, "tags": ["a", "b"]}],
           "a b": "naïve", "none": null, "yes": true}"""
MANY = "[" + ",".join("[1,2,3]" for _ in range(12_000)) + "]"


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("$.items[0].name", "pen"),
        ("items[1].name", "ink"),
        ("['a b']", "naïve"),
        ("items[*].price", "[1.5, 12]"),
        ("$..name", '["pen", "ink"]'),
        ("$.items[-1].tags[0, 1]", '["a", "b"]'),
        ("$.items[?@.price < 10].name", "pen"),
        ("$.items[?@['price'] > 2 && @.name != 'x'].name", "ink"),
        ("$.items[?@.name != $['a b'] && @.price < 10].name", "pen"),
        ("$.items[?@.name != '$$'].name", '["pen", "ink"]'),
        ("none", "null"),
        ("yes", "true"),
        ("items[0]", '{"name": "pen", "price": 1.5}'),
    ],
)
def test_values_are_selected_by_path(path: str, answer: str) -> None:
    assert query_json(SHOP, path) == answer


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        (SHOP, "nope", "There is no value at “$.nope”"),
        (SHOP, "$.items[", "is not valid"),
        (SHOP, "", "1 to 200 characters"),
        (SHOP, "x" * 201, "1 to 200 characters"),
        (SHOP, "$..*..*", "one “..”"),
        (SHOP, "$[0,1][0,1]", "one list"),
        (SHOP, "$[?@..x]", "plain paths"),
        (SHOP, "$[?@[?@.x]]", "plain paths"),
        (SHOP, "$[?count(@.*) > 1]", "plain paths"),
        (SHOP, "$[?search(@.a, '(a+)+$')]", "are not available"),
        (SHOP, "$[?(((@.a)))]", "There is no value at"),
        (SHOP, "$.items[?$.none == $.yes]", "at most 8 conditions and one path from $"),
        (SHOP, "$[?@.a" + "&&@.a" * 8 + "]", "at most 8 conditions and one path from $"),
        (SHOP, "$[?@.a" + "||@.a" * 7 + "]", "There is no value at"),
        ("{a: 1}", "$", "line 1, column 2"),
        ("", "$", "not JSON"),
        ("NaN", "$", "NaN is not a JSON number"),
        ("[" * 5000 + "]" * 5000, "$..x", "nested too deeply"),
        (" " * 100_001, "$", "at most 100,000"),
    ],
)
def test_invalid_query_is_refused_with_a_reason(text: str, path: str, why: str) -> None:
    with pytest.raises(ToolError) as refused:
        query_json(text, path)
    assert why in str(refused.value)


def test_commas_and_question_marks_in_names_are_literal() -> None:
    assert query_json('{"?..,": {"a,b": 1}}', "$['?..,']['a,b']") == "1"


def test_result_length_is_bounded() -> None:
    assert "the first 100" in query_json(MANY, "$[*][0]")
    assert len(query_json(json.dumps("x" * 50_000), "$")) < 8_200


def test_lone_surrogates_and_nul_are_replaced() -> None:
    assert query_json(r'"a\ud800b\u0000c"', "$") == "a?b�c"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(st.characters(categories=["L"])),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_root_path_returns_the_document(value: object) -> None:
    answer = query_json(json.dumps(value), "$")
    assert answer == value if isinstance(value, str) else json.loads(answer) == value


@given(st.text("$.[]*?@'\"ab01,:&|<>=!() ", max_size=40))
def test_any_path_is_evaluated_or_refused(path: str) -> None:
    with suppress(ToolError):
        assert query_json(SHOP, path)
