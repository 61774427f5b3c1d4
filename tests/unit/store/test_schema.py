"""Schemas are compared by meaning, whichever migrations a database went through."""

import pytest

from torana.store.engine.schema import differences, same


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT CHECK (text IN ('a', 'b')), UNIQUE (id, text)) STRICT",
        "CREATE TABLE \"notes\"(text TEXT CHECK(text IN ('a','b')),\nUNIQUE(id,text),id TEXT NOT NULL) STRICT",
    ],
)
def test_order_spaces_and_quotes_are_ignored(other: str) -> None:
    sql = (
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT CHECK (text IN ('a', 'b')), UNIQUE (id, text)) STRICT"
    )

    assert same(("notes", sql), ("notes", other))


@pytest.mark.parametrize(
    "other",
    [
        "CREATE TABLE notes (id TEXT, text TEXT DEFAULT 'a,b') STRICT",
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT 'a, b') STRICT",
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT 'a,b')",
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT 'a,b', text TEXT DEFAULT 'a,b') STRICT",
        "CREATE TABLE notes (id TEXT NOT NULL COLLATE NOCASE, text TEXT DEFAULT 'a,b') STRICT",
        "CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT 'a,b', CHECK (load_extension('x'))) STRICT",
        'CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT "a,b") STRICT',
    ],
)
def test_different_columns_options_and_defaults_differ(other: str) -> None:
    sql = "CREATE TABLE notes (id TEXT NOT NULL, text TEXT DEFAULT 'a,b') STRICT"

    assert not same(("notes", sql), ("notes", other))


def test_index_on_another_table_or_in_another_order_differs() -> None:
    sql = "CREATE INDEX recent ON notes (owner, at)"

    assert not same(("notes", sql), ("turns", sql))
    assert not same(("notes", sql), ("notes", "CREATE INDEX recent ON notes (at, owner)"))


def test_brackets_without_an_end_are_one_token() -> None:
    """A search for the end of each of them takes minutes."""
    found = ("a", "CREATE TABLE a (x) -- " + "[a" * 200_001)

    assert differences({("table", "a"): found}, {("table", "a"): ("a", "CREATE TABLE a (x)")}) == [
        "the table 'a' is changed"
    ]


def test_each_difference_is_named() -> None:
    found = {("table", "a"): ("a", "CREATE TABLE a (x)"), ("trigger", "t"): ("a", "CREATE TRIGGER t …")}
    expected = {("table", "a"): ("a", "CREATE TABLE a (y)"), ("index", "i"): ("a", "CREATE INDEX i ON a (y)")}

    assert differences(found, expected) == [
        "the trigger 't' is added",
        "the table 'a' is changed",
        "the index 'i' is missing",
    ]


def test_control_characters_in_names_are_escaped() -> None:
    assert differences({("view", "\x1b[2J\n" + "x" * 1000): ("v", "")}, {}) == [
        r"the view '\x1b[2J\n" + "x" * 55 + "' is added"
    ]
