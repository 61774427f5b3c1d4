"""The line protocol of IRC (RFC 1459 and IRCv3)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

#: Bytes of text in a line, and lines in a message: a whole line, with prefix and names, has 512 bytes.
LINE = 380
LINES = 4

CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
_TAG_ESCAPES = {":": ";", "s": " ", "r": "\r", "n": "\n"}


@dataclass(frozen=True, slots=True)
class IrcMessage:
    tags: Mapping[str, str]
    source: str
    command: str
    params: tuple[str, ...]

    @classmethod
    def parse(cls, line: str) -> IrcMessage:
        """Parse a line; an invalid line has an empty command."""
        tags, source = "", ""
        if line.startswith("@"):
            tags, _, line = line[1:].partition(" ")
        line = line.lstrip(" ")
        if line.startswith(":"):
            source, _, line = line[1:].partition(" ")
        line, colon, trailing = line.lstrip(" ").partition(" :")
        command, *params = line.split() or [""]
        return cls(_tags(tags), source, command.upper(), (*params, trailing) if colon else tuple(params))

    @property
    def nick(self) -> str:
        return self.source.partition("!")[0]

    @property
    def text(self) -> str:
        """The last parameter, which contains the text."""
        return self.params[-1] if self.params else ""

    def param(self, place: int) -> str:
        """Return a parameter in lower case, for comparing names; empty if it is missing."""
        return self.params[place].lower() if place < len(self.params) else ""


def _tags(text: str) -> dict[str, str]:
    pairs = (tag.partition("=") for tag in text.split(";") if tag)
    return {
        name: re.sub(r"\\(.?)", lambda found: _TAG_ESCAPES.get(found[1], found[1]), value)
        for name, _, value in pairs
    }


def wrap(text: str, limit: int) -> list[str]:
    """Split a text into lines of at most ``limit`` bytes, without empty lines and control characters."""
    lines: list[str] = []
    for line in text.splitlines():
        rest = CONTROLS.sub("", line.replace("\t", "    ")).rstrip()
        while len(data := rest.encode(errors="replace")) > limit:
            head = data[:limit].decode(errors="ignore")
            cut = rest.rfind(" ", len(head) // 2, len(head) + 1)
            cut = cut if cut > 0 else len(head)
            lines.append(rest[:cut].rstrip())
            rest = rest[cut:].lstrip()
        lines.append(rest)
    return [line for line in lines if line.strip()]


def measure(text: str) -> int:
    """Return the size of a text; a short line counts as a full one, because servers limit lines."""
    return LINE * len(wrap(text, LINE))


async def read_messages(reader: asyncio.StreamReader) -> AsyncGenerator[IrcMessage]:
    """Yield the lines of a server, until the connection ends."""
    while line := await reader.readline():
        try:
            text = line.decode()
        except UnicodeDecodeError:  # an encoding from before UTF-8
            text = line.decode("cp1252", errors="replace")
        yield IrcMessage.parse(text.rstrip("\r\n"))


def printable(text: str) -> str:
    return CONTROLS.sub("", text)[:200]
