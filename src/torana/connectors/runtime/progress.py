"""Show typing indicators and growing replies while turns run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from torana.aio import wait_first
from torana.connectors.base import Capabilities, Connector, Part, Place, RetryLater
from torana.connectors.runtime.addressing import read_place
from torana.connectors.transport.splitting import pieces
from torana.errors import GatewayError
from torana.messages import Turn
from torana.store.engine.database import Database
from torana.store.rows import deliveries
from torana.store.rows.deliveries import Delivery
from torana.turns import Turns

#: Timeout, in seconds, for one call of the platform.
_CALL = 30.0

#: The suffix of a growing text.
_MORE = " …"

_log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False, kw_only=True)
class ProgressReporter:
    """Shows the progress of an account's running turns. Errors here lose nothing.

    ``connector`` returns the account's current connection, or None. ``rendering`` has the threads that
    render texts.
    """

    turns: Turns
    database: Database
    connector: Callable[[], Connector[Any] | None]
    clock: Callable[[], datetime]
    rendering: Executor
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], init=False)
    #: For each turn, a lock that is held while its preview is sent.
    _showing: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock], init=False)

    def start(self, turn: Turn) -> None:
        if turn.has_ended or turn.place is None or turn.id in self._tasks:
            return
        task = asyncio.create_task(self._report(turn, read_place(turn.place)), name=f"progress {turn.id}")
        self._tasks[turn.id] = task
        self._showing[turn.id] = asyncio.Lock()
        task.add_done_callback(lambda _: self._leave(turn.id))

    async def wait_until_hidden(self, delivery: Delivery) -> None:
        """Wait until no preview can overwrite the delivery.

        For the first part of the reply, wait until the progress of the turn is no longer shown. For a question,
        which may replace the preview, wait only until the current preview call has ended.
        """
        turn_id = delivery.turn_id
        if turn_id not in self._tasks:
            return
        if delivery.part == 0:
            await asyncio.wait([self._tasks[turn_id]])
        else:
            async with self._showing[turn_id]:
                pass  # later previews are sent as a new message, and do not edit this one

    def _leave(self, turn_id: str) -> None:
        self._tasks.pop(turn_id, None)
        self._showing.pop(turn_id, None)

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _report(self, turn: Turn, place: Place) -> None:
        growing = _Growing()
        typing = asyncio.create_task(self._type(place))
        showing = asyncio.create_task(self._show(turn, place, growing))
        try:
            with suppress(GatewayError):  # the turn was deleted, or the gateway stops
                async for event in self.turns.reader.events(turn):
                    growing.take(event.type, event.data)
        finally:
            typing.cancel()
            growing.end()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                showing.cancel()
            await asyncio.gather(typing, showing, return_exceptions=True)

    async def _type(self, place: Place) -> None:
        while True:
            connector = self.connector()
            every = connector.abilities.typing_every if connector else None
            if connector is not None and every is not None:
                with suppress(Exception):
                    async with asyncio.timeout(_CALL):
                        await connector.typing(place)
            await self.pause(every or (5.0 if connector else 0.5))

    async def _show(self, turn: Turn, place: Place, growing: _Growing) -> None:
        """Show the growing text repeatedly, until the turn has ended or an error occurs."""
        while text := await growing.more(self._every(), self.pause):
            connector = self.connector()
            if connector is None or not connector.abilities.edits or not connector.settings.previews:
                return
            try:
                async with self._showing[turn.id]:
                    is_shown = await self._show_once(turn, place, connector, text)
                if not is_shown and not growing.asked:
                    return
            except RetryLater as error:
                await growing.rest(error.seconds or connector.abilities.edit_every, self.pause)
            except Exception as error:  # noqa: BLE001 - the outbox delivers the reply itself
                _log.info("preview_stopped", extra={"turn_id": turn.id, "reason": type(error).__name__})
                return

    async def _show_once(self, turn: Turn, place: Place, connector: Connector[Any], text: str) -> bool:
        """Show the text; return False if there is no preview, or an earlier call's outcome is unknown."""
        work = partial(deliveries.preview, turn=turn, text=text, at=self.clock())
        found = await self.database.run(work)
        if found is None or not (found.is_new or found.row.shown_as):
            return False
        await self._send_preview(connector, place, found.row, found.text)
        return True

    async def _send_preview(self, connector: Connector[Any], place: Place, row: Delivery, text: str) -> None:
        loop = asyncio.get_running_loop()
        rendered = await loop.run_in_executor(self.rendering, _preview, text, connector.abilities)
        part = Part(key=row.preview_key, place=place, text=rendered, edits=row.shown_as or None)
        async with asyncio.timeout(_CALL):
            shown_as = await connector.send(part)
        if not row.shown_as:
            record = partial(deliveries.record_preview, number=row.number, shown_as=shown_as)
            await self.database.persist(record, pause=self.pause)

    def _every(self) -> float:
        connector = self.connector()
        return connector.abilities.edit_every if connector else 1.0


def _preview(text: str, abilities: Capabilities) -> str:
    """Return the beginning of a growing text, as much as fits in one message of the platform."""
    return abilities.render(next(pieces(text[: 4 * abilities.length].rstrip() + _MORE, abilities)))


class _Growing:
    """The text of a running turn, collected from its events."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._last = ""
        #: True if the text has visibly changed since the last call of ``more``.
        self._is_new = False
        #: True if the turn has asked a question: the text after it is a separate message.
        self.asked = False
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    def take(self, type_: str, data: Any) -> None:
        if type_ == "message.delta":
            self._pieces.append(data["text"])
            self._is_new = self._is_new or bool(data["text"].strip())
        elif type_ in ("turn.resumed", "message.snapshot"):
            self._pieces = [data["text"]]
            self._is_new = data["text"].strip() not in ("", self._last.strip())
        elif type_ == "approval.required":
            self.asked = True
        self._changed.set()

    def end(self) -> None:
        self._ended.set()
        self._changed.set()

    async def rest(self, seconds: float, pause: Callable[[float], Awaitable[None]]) -> None:
        await wait_first(self._ended, pause(seconds))

    async def more(self, every: float, pause: Callable[[float], Awaitable[None]]) -> str:
        """Wait ``every`` seconds and for a visible change, and return the text; empty if the turn has ended."""
        await self.rest(every, pause)
        while not self._ended.is_set() and not self._is_new:
            self._changed.clear()
            await self._changed.wait()
        if self._ended.is_set():
            return ""
        self._last = "".join(self._pieces)
        self._pieces, self._is_new = [self._last], False
        return self._last
