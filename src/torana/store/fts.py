"""What is alike wherever SQLite's FTS5 searches texts: its tokenizer, and how a query is written for it."""

from __future__ import annotations

from collections.abc import Sequence

from torana.store.words import words

#: Different words of a query that are looked for; those that follow are ignored.
QUERY_LIMIT = 64

#: The texts are already cut into words, so only a separator may end one: all other categories belong to it.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* M* N* P* S* C*'"


def terms(text: str) -> list[str]:
    """The different words of a query, in order, at most ``QUERY_LIMIT``."""
    return list(dict.fromkeys(words(text)))[:QUERY_LIMIT]


def begins_words(term: str) -> bool:
    """Whether a term stands for all words that begin with it: a lone character of a script without spaces."""
    return len(term) == 1 and not term.isascii()


def any_of(found: Sequence[str]) -> str:
    """The FTS5 expression for texts with any of the terms; no search syntax in them has a meaning."""
    return " OR ".join(quoted(term) for term in found)


def quoted(term: str) -> str:
    """The term as an FTS5 string."""
    string = '"' + term.replace('"', '""') + '"'
    return string + "*" if begins_words(term) else string
