"""Full-text queries: the terms of a query, and their syntax in SQLite's FTS5."""

from __future__ import annotations

from collections.abc import Sequence

from torana.store.engine.tokenizer import WORD_LIMIT, words

#: Maximum number of different words in a query; the rest are ignored.
QUERY_LIMIT = 64
#: Maximum number of characters of a query that are read.
_LENGTH_LIMIT = QUERY_LIMIT * WORD_LIMIT

#: Maximum number of words that match as prefixes. For each prefix, the database reads all words of all owners
#: that begin with it: 64 prefixes took half a second of the database's thread in 2,000 messages.
_PREFIX_LIMIT = 2

#: The texts are already split into words, so only separators end a word.
TOKENIZER = "unicode61 remove_diacritics 2 categories 'L* M* N* P* S* C*'"


def terms(text: str) -> list[str]:
    """Return the first ``QUERY_LIMIT`` different words of a query, in order; of the prefixes, only two.

    Unusual characters take a tenth of a second: call it in a thread.
    """
    found = list(dict.fromkeys(words(text[:_LENGTH_LIMIT])))
    left_out = set([term for term in found if begins_words(term)][_PREFIX_LIMIT:])
    return [term for term in found if term not in left_out][:QUERY_LIMIT]


def begins_words(term: str) -> bool:
    """Return whether a term matches as a prefix: a single character of a script without spaces."""
    return len(term) == 1 and not term.isascii()


def any_of(found: Sequence[str]) -> str:
    """Return the FTS5 expression for texts with any of the terms; search syntax in them is quoted."""
    return " OR ".join(quote_term(term) for term in found)


def quote_term(term: str) -> str:
    """Return the term as an FTS5 string."""
    string = '"' + term.replace('"', '""') + '"'
    return string + "*" if begins_words(term) else string
