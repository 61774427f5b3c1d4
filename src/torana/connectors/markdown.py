"""Markdown as blocks and marks, at a cost that grows with the length of the text and no faster.

A model writes what its readers talk it into, and some texts, such as runs of brackets, cost a parser far
more than their length. Each thing that is looked at again and again has a bound here. What is beyond a bound
is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_core import StateCore
    from markdown_it.token import Token

#: Levels of lists and quotations in each other: a list is two, a quotation one. Every line costs its levels.
_LEVELS = 20

#: Brackets in brackets: each character behind them is looked at so many times.
_BRACKETS = 8

#: Characters of a paragraph that are searched for marks at a time: a mark has its two ends within them.
_SLICE = 2_000

#: A row of a table has at least one cell for so many columns, as a parser fills it up with empty cells.
_COLUMNS = 8

#: What parts the cells of a table.
_PIPE = re.compile(r"(?<!\\)\|")


def parse(markdown: str) -> Sequence[Token]:
    """Return the text's blocks as the tokens of ``markdown_it``, with their marks in ``children``.

    Marks are found in slices of a paragraph. Lists and quotations that are nested too deep, and rows that do
    not go with the head of their table, are paragraphs.
    """
    return _parser().parse(markdown)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # 1 MB, and only for gateways with chats
    from markdown_it.rules_block import paragraph, table

    def deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        # One list more, and the parser would drop what is in it.
        return not silent and state.level >= _LEVELS - 2 and paragraph(state, start, end, silent)

    def columns(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        if not silent and table(state, start, end, True):
            state.env["columns"] = _cells(state, start)
        return table(state, start, end, silent)

    def odd_row(state: StateBlock, start: int, _end: int, _silent: bool) -> bool:
        if state.parentType != "table":
            return False
        wanted = state.env["columns"]
        return not wanted <= _COLUMNS * _cells(state, start) <= _COLUMNS * wanted

    marks = MarkdownIt("commonmark", {"html": False, "maxNesting": _BRACKETS}).enable("strikethrough")
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _LEVELS}).enable("table")
    parser.block.ruler.before("table", "deep", deep)
    parser.block.ruler.at("table", columns, {"alt": ["paragraph", "reference"]})
    parser.block.ruler.after("table", "odd_row", odd_row, {"alt": ["blockquote"]})  # which ends a table, too
    parser.core.ruler.at("inline", partial(_find_marks, marks))
    return parser


def _cells(state: StateBlock, line: int) -> int:
    """Return how many cells a line of a table has."""
    start = state.bMarks[line] + state.tShift[line]
    cells = _PIPE.split(state.src[start : state.eMarks[line]].strip())
    return len(cells) - (not cells[0]) - (len(cells) > 1 and not cells[-1])


def _find_marks(parser: MarkdownIt, state: StateCore) -> None:
    """Give each paragraph its marks."""
    for token in state.tokens:
        if token.type == "inline":
            token.children = []
            for text in _slices(token.content):
                found: list[Token] = []
                token.children += parser.inline.parse(text, parser, state.env, found)


def _slices(text: str) -> Iterator[str]:
    """Cut a paragraph in slices, before the end of a line or before a space where there is one."""
    start = 0
    while len(text) - start > _SLICE:
        half, end = start + _SLICE // 2, start + _SLICE
        cut = max(text.rfind("\n", half, end), 0) or max(text.rfind(" ", half, end), 0) or end
        yield text[start:cut]
        start = cut
    yield text[start:]
