"""A page of HTML as the text that a person reads of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from torana.web import extracting
from torana.workers.worker import Worker, WorkerError

#: Seconds for one page, and how many are read at once.
_PATIENCE = 30.0
_AT_ONCE = 2
#: Seconds of processor time and bytes of memory for one page.
_PROCESSOR = 30
_MEMORY = 1024**3


class Unreadable(Exception):
    """No text can be had of the page."""


@dataclass(frozen=True, slots=True)
class Readable:
    """What a page says. Both may be empty."""

    title: str
    #: Markdown, with links.
    text: str


class Reader:
    """Reads pages, each in a worker process of its own: a hostile one is stopped, and none holds up the others.

    A worker that has read one page reads no other: a page that takes it over changes no other page.
    """

    def __init__(self, *, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def read(self, html: str, url: str) -> Readable:
        """The text of a page that was found at ``url``. Raises ``Unreadable``."""
        try:
            async with self._places, asyncio.timeout(self._patience):
                return Readable(**await _read(html, url))
        except TimeoutError as error:
            raise Unreadable(f"It takes longer than {self._patience:g} s to read.") from error
        except WorkerError as error:
            raise Unreadable("It is built so that it cannot be read.") from error


async def _read(html: str, url: str) -> dict[str, str]:
    worker = await Worker.start(memory=_MEMORY)
    try:
        return await worker.call(extracting.read_bounded, {"html": html, "url": url}, seconds=_PROCESSOR)
    finally:
        await worker.end()
