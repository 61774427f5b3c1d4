"""Print the replies and notes of a chat: as plain text, or as Markdown on a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from torana.cli.terminal import printable

if TYPE_CHECKING:
    from markdown_it.token import Token

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")


class PlainOutput:
    """Prints replies as they arrive, for pipes and files: no notes, no Markdown."""

    def __init__(self) -> None:
        self._in_line = False

    def add(self, text: str) -> None:
        """Print more of the reply."""
        typer.echo(printable(text), nl=False)
        sys.stdout.flush()
        self._in_line = True

    def finish(self) -> None:
        """End the reply with a line break, even if the reply is empty."""
        typer.echo()
        self._in_line = False

    def pause(self) -> None:
        """End the line, for other output."""
        self._end_line()

    def replace(self, text: str) -> None:
        """Print the whole reply; earlier text cannot be removed."""
        self._end_line()
        self.add(text)

    def note(self, line: str) -> None:
        """Print nothing."""

    def error(self, line: str) -> None:
        """Print an error on standard error, on a line of its own."""
        self._end_line()
        typer.echo(printable(line), err=True)

    def _end_line(self) -> None:
        if self._in_line:
            self.finish()


class MarkdownOutput:
    """Prints replies as Markdown: each block when it is complete, wrapped between words."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._pending = ""
        self._printed = False

    def add(self, text: str) -> None:
        """Add text, and print the blocks that it completes."""
        self._pending += printable(text)
        end = _end_of_blocks(self._pending)
        if end:
            self._print(self._pending[:end])
            self._pending = self._pending[end:]

    def finish(self) -> None:
        """Print the last block."""
        self._print(self._pending)
        self._pending, self._printed = "", False

    def pause(self) -> None:
        """Print the reply so far, for other output."""
        self.finish()

    def replace(self, text: str) -> None:
        """Print the whole reply; earlier blocks cannot be removed."""
        self._pending = ""
        self.add(text)

    def note(self, line: str) -> None:
        """Print a dim line below the text so far."""
        self.finish()
        self._console.print(Text(printable(line), style="dim"))

    def error(self, line: str) -> None:
        """Print an error in red below the text so far."""
        self.finish()
        self._console.print(Text(printable(line), style="red"))

    def _print(self, block: str) -> None:
        if not block.strip():
            return
        if self._printed:
            self._console.print()
        # A link shows its address: a model must not hide it behind other words.
        document = Markdown(_with_hard_breaks(block), hyperlinks=False)
        _escape_tokens(document.parsed)
        self._console.print(document)
        self._printed = True


#: Prints a chat. All text is untrusted.
Output: TypeAlias = PlainOutput | MarkdownOutput


def _escape_tokens(tokens: Iterable[Token]) -> None:
    """Escape the characters that the parser has decoded from entities and from the addresses of links."""
    for token in tokens:
        token.content = printable(token.content)
        _escape_tokens(token.children or ())


def _end_of_blocks(text: str) -> int:
    """Return the end of the last empty line that is not inside a code block; 0 if there is none."""
    end, start = 0, 0
    for line, is_code in _lines(text):
        start += len(line)
        if line == "\n" and not is_code:
            end = start
    return end


def _with_hard_breaks(text: str) -> str:
    """Return Markdown with a hard line break at each line end outside code blocks, as in chats."""
    return "".join(line if is_code else line.replace("\n", "  \n") for line, is_code in _lines(text))


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, with its end, and whether it belongs to a fenced code block."""
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = found[1] if (found := _FENCE.match(line)) else ""
        yield line, bool(fence or mark)
        if not fence:
            fence = mark
        elif mark[:1] == fence[0] and len(mark) >= len(fence):
            fence = ""
