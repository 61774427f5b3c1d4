"""The number of values of a JSON text is bounded without parsing it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.json_bounds import count_values, has_more_values, without_deep_values, without_dense_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def values_of(document: Any) -> int:
    match document:
        case list():
            return 1 + sum(map(values_of, cast("list[Any]", document)))
        case dict():
            return 1 + sum(map(values_of, cast("dict[str, Any]", document).values()))
        case _:
            return 1


def pruned(document: Any, depth: int) -> Any:
    match document:
        case list() | dict() if not depth:
            return None
        case list():
            return [pruned(item, depth - 1) for item in cast("list[Any]", document)]
        case dict():
            return {name: pruned(item, depth - 1) for name, item in cast("dict[str, Any]", document).items()}
        case _:
            return document


@given(JSON, st.integers(1, 50), st.booleans())
def test_text_with_more_values_is_found(document: Any, limit: int, ascii_only: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only).encode()

    if values_of(document) > limit:
        assert has_more_values(text, limit)


@given(JSON)
def test_each_container_counts_at_most_twice(document: Any) -> None:
    text = json.dumps(document).encode()

    assert not has_more_values(text, 2 * values_of(document))


@pytest.mark.parametrize("strings", [b'""', b'"":', rb'"\\"', b'"\n'])
def test_more_strings_than_values_and_names_are_too_many(strings: bytes) -> None:
    assert has_more_values(strings * 21 + b'"[[[[[[[[[["', 10)


@pytest.mark.parametrize("text", [b'["' + b",[{" * 1_000 + b'"]', b'["' + rb"\",[" * 1_000 + b'"]'])
def test_values_in_strings_do_not_count(text: bytes) -> None:
    assert count_values(text, 10) == 2


def test_escaped_backslash_does_not_continue_a_string() -> None:
    assert has_more_values(rb'["\\",1,1,1,1]', 5)


@pytest.mark.parametrize("line_end", [b"\n", b"\r", b"\r\n"])
def test_string_without_an_end_hides_no_values_of_the_next_line(line_end: bytes) -> None:
    assert has_more_values(b': "' + line_end + b"data: [1,1,1]", 3)


@given(JSON, st.integers(0, 5))
def test_values_nested_deeper_become_null(document: Any, depth: int) -> None:
    assert json.loads(without_deep_values(json.dumps(document), depth)) == pruned(document, depth)


@pytest.mark.parametrize("text", ["[" * 5_000, "]" * 5_000, "[[[]", '{"a": [[', '["[[[['])
def test_invalid_text_stays_invalid(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Unterminated|Extra"):
        json.loads(without_deep_values(text, 2))


EVENTS = frozenset({"events"})


def sparse(document: Any, *, limit: int = 3, length: int = 10**6) -> Any:
    text = json.dumps(document, separators=(",", ":"))
    return json.loads(without_dense_values(text, EVENTS, limit=limit, length=length))


@given(JSON)
def test_only_values_in_items_of_named_lists_are_dropped(document: Any) -> None:
    assert sparse([document], limit=0) == [document] or '"events"' in json.dumps(document)
    item = {"a": "x", "b": document}
    (found,) = sparse({"events": [item]}, limit=0)["events"]
    assert found == {**item, "b": None if isinstance(document, list | dict) else document}


def test_dense_values_are_dropped_alone() -> None:
    dense, usual = [0] * 4, {"a": [1, 2], "b": "[,[,[,"}
    document = {
        "rooms": {"events": [{"a": dense}, usual, {"a": {"events": [dense]}}, dense]},
        "others": [dense, {"events": "[", "x": dense}],
    }
    assert sparse(document) == {
        "rooms": {"events": [{"a": None}, usual, {"a": {"events": [None]}}, dense]},
        "others": [dense, {"events": "[", "x": dense}],
    }


def test_values_of_usual_length_are_kept() -> None:
    document = {"events": [{"a": ["x" * 8] * 100, "b": [0] * 100}]}
    assert sparse(document, length=10) == {"events": [{"a": ["x" * 8] * 100, "b": None}]}


@given(st.text('[]{},:"\\events 1'))
def test_any_text_is_accepted(text: str) -> None:
    without_dense_values(text, EVENTS, limit=2, length=10**6)
