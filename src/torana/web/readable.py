"""Convert an HTML page to readable text."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from torana.web import extract_program
from torana.workers.fair_slots import FairSlots
from torana.workers.worker import Worker, WorkerError

#: Seconds for one page.
_PAGE_TIMEOUT = 30.0
#: Seconds of processor time for one page.
_PROCESSOR = 10
#: The number of concurrent pages, in total and for each user.
_AT_ONCE, _PER_USER = 3, 1
#: Bytes of memory for one page. A page of 58,000 tags takes 140 MB.
_MEMORY = 256 * 1024**2


class Unreadable(Exception):
    """The page has no text that can be read."""


@dataclass(frozen=True, slots=True)
class Readable:
    title: str
    #: Markdown, with links.
    text: str


class Reader:
    """Reads each page in its own worker process, so that a hostile page is stopped.

    Workers are not reused: a page that takes over its worker cannot change another page. Waiting users are
    served in turn.
    """

    def __init__(self, *, patience: float = _PAGE_TIMEOUT) -> None:
        self._patience = patience
        self._places = FairSlots(total=_AT_ONCE, per_user=_PER_USER)

    async def read(self, html: str, url: str, *, user: str) -> Readable:
        """Return the text of a page from ``url``. Raises ``Unreadable``."""
        try:
            async with self._places.slot(user), asyncio.timeout(self._patience):
                return Readable(**await _read(html, url))
        except TimeoutError as error:
            raise Unreadable(f"Extracting its text takes longer than {self._patience:g} s.") from error
        except WorkerError as error:
            raise Unreadable("Its structure cannot be read.") from error


async def _read(html: str, url: str) -> dict[str, str]:
    worker = await Worker.start(memory=_MEMORY)
    try:
        return await worker.call(extract_program.read_bounded, {"html": html, "url": url}, seconds=_PROCESSOR)
    finally:
        await worker.end()
