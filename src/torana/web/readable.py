"""A page of HTML as the text that a person reads of it."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE
from dataclasses import dataclass
from pathlib import Path

from torana.web import extracting

#: Seconds for one page, and how many are read at once.
_PATIENCE = 30.0
_AT_ONCE = 2


class Unreadable(Exception):
    """No text can be had of the page."""


@dataclass(frozen=True, slots=True)
class Readable:
    """What a page says. Both may be empty."""

    title: str
    #: Markdown, with links.
    text: str


class Reader:
    """Reads pages, each in a process of its own: a hostile one is stopped, and none holds up the others.

    The process knows nothing of the gateway's environment.
    """

    def __init__(self, *, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def read(self, html: str, url: str) -> Readable:
        """The text of a page that was found at ``url``. Raises ``Unreadable``."""
        command = [sys.executable, "-I", str(Path(extracting.__file__)), url]
        data = html.encode("utf-8", "replace")
        try:
            async with self._places, asyncio.timeout(self._patience):
                said = json.loads(await _output(command, data))
        except TimeoutError as error:
            raise Unreadable(f"It takes longer than {self._patience:g} s to read.") from error
        except ValueError as error:
            raise Unreadable("It is built so that it cannot be read.") from error
        return Readable(title=said["title"], text=said["text"])


async def _output(command: list[str], data: bytes) -> bytes:
    """What the program writes, be it nothing because it died; it does not outlive the call."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env={})
    try:
        output, _ = await process.communicate(data)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output
