"""The position up to which an account has processed the homeserver's events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from torana.connectors.base import IncomingMessage, OutcomeUnknown, PermanentError, RetryLater
from torana.connectors.platforms.matrix.client import Homeserver
from torana.connectors.transport.concurrency import Hear
from torana.connectors.transport.http import text_at

_log = logging.getLogger(__name__)

_KIND = "torana.since"


@dataclass(slots=True)
class _Poll:
    """The events of a poll: the token after them, empty if it is not stored, and the messages in progress."""

    token: str
    open: int


class PolledMessages:
    """Processes the messages of a poll."""

    def __init__(self, poll: _Poll, hear: Hear, finished: Callable[[_Poll], Awaitable[None]]) -> None:
        self._poll = poll
        self._hear = hear
        self._finished = finished

    async def hear(self, heard: IncomingMessage) -> None:
        """Begin to process a message."""
        self._poll.open += 1
        await self._hear(heard, partial(self._finished, self._poll))

    def keep(self, token: str) -> None:
        """Store this token when the messages of the poll and of all earlier polls are processed."""
        self._poll.token = token


class SyncPosition:
    """The token of the last poll whose messages, and those of all earlier polls, are processed.

    It is stored in the account data on the homeserver, so that the next run continues there, on any machine.
    """

    def __init__(self, home: Homeserver) -> None:
        self._home = home
        self._path = home.account_data_path(_KIND)
        #: The polls that are not finished, or that wait for an earlier one.
        self._polls: deque[_Poll] = deque()
        self._storing = asyncio.Lock()

    async def load(self) -> str:
        """Return the stored token, or an empty text."""
        return text_at(await self._home.call("GET", self._path), "token")

    async def store(self, token: str) -> None:
        """Store a token; on failure, events are repeated with the same ids."""
        try:
            await self._home.call("PUT", self._path, {"token": token})
        except (PermanentError, RetryLater, OutcomeUnknown) as e:
            _log.warning("matrix_sync_token_not_stored", extra={"reason": str(e)})

    @asynccontextmanager
    async def poll(self, hear: Hear) -> AsyncGenerator[PolledMessages]:
        """Process the messages of a poll inside the block. Its token is stored when they are processed."""
        poll = _Poll(token="", open=1)
        self._polls.append(poll)
        yield PolledMessages(poll, hear, finished=self._finish)
        await self._finish(poll)

    async def _finish(self, poll: _Poll) -> None:
        """Count a processed message, and store the token of the last poll without messages in progress."""
        poll.open -= 1
        async with self._storing:
            token = ""
            while self._polls and not self._polls[0].open:
                token = self._polls.popleft().token or token
            if token:
                await self.store(token)
