"""Parse Markdown in linear time.

Users can make a model write texts, such as runs of brackets, for which a Markdown parser needs far more than
linear time. Each construct that the parser scans repeatedly has a limit; text beyond a limit is plain text.
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

#: Maximum nesting of lists (two levels each) and quotations (one). Each line costs time for its levels.
_LEVELS = 20

#: Maximum nesting of brackets: the parser scans each following character this many times.
_BRACKETS = 8

#: Size of the slices of a paragraph that are searched for marks: both ends of a mark are in one slice.
_SLICE = 2_000

#: A table row needs at least one cell per this many columns: the parser adds empty cells for the rest.
_COLUMNS = 8

#: The separator of a table's cells.
_PIPE = re.compile(r"(?<!\\)\|")


def parse(markdown: str) -> Sequence[Token]:
    """Return the text's blocks as the tokens of ``markdown_it``, with their marks in ``children``.

    Marks are searched in slices of a paragraph. Lists and quotations that are nested too deep, and rows that
    do not match the header of their table, become paragraphs.
    """
    return _parser().parse(markdown)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # 1 MB, and only for gateways with chats
    from markdown_it.rules_block import paragraph, table

    def deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
        # The parser would drop the content of one more list.
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
    parser.block.ruler.after("table", "odd_row", odd_row, {"alt": ["blockquote"]})  # also ends a table
    parser.core.ruler.at("inline", partial(_find_marks, marks))
    return parser


def _cells(state: StateBlock, line: int) -> int:
    start = state.bMarks[line] + state.tShift[line]
    cells = _PIPE.split(state.src[start : state.eMarks[line]].strip())
    return len(cells) - (not cells[0]) - (len(cells) > 1 and not cells[-1])


def _find_marks(parser: MarkdownIt, state: StateCore) -> None:
    for token in state.tokens:
        if token.type == "inline":
            token.children = []
            for text in _slices(token.content):
                found: list[Token] = []
                token.children += parser.inline.parse(text, parser, state.env, found)


def _slices(text: str) -> Iterator[str]:
    """Cut a paragraph into slices, before a line end or a space if there is one."""
    start = 0
    while len(text) - start > _SLICE:
        half, end = start + _SLICE // 2, start + _SLICE
        cut = max(text.rfind("\n", half, end), 0) or max(text.rfind(" ", half, end), 0) or end
        yield text[start:cut]
        start = cut
    yield text[start:]
