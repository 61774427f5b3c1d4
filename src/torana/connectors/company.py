"""Shows on the platform that a turn runs, and its reply while it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID, uuid5

from torana.connectors.base import Abilities, Connector, Part, Place, TryLater
from torana.connectors.places import read_place
from torana.connectors.splitting import pieces
from torana.errors import GatewayError
from torana.lasting import either
from torana.messages import Turn
from torana.store import deliveries
from torana.store.database import Database
from torana.store.deliveries import Delivery
from torana.turns import Turns

#: Seconds for one call of the platform.
_CALL = 30.0

#: What stands behind a text that grows.
_MORE = " …"

_log = logging.getLogger(__name__)


class Company:
    """Keeps the turns of one account company while they run. Whatever goes wrong here is no loss."""

    def __init__(
        self,
        *,
        turns: Turns,
        database: Database,
        connector: Callable[[], Connector[Any] | None],
        clock: Callable[[], datetime],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``connector`` gives the account's connection of the moment, if it has one."""
        self._turns = turns
        self._database = database
        self._connector = connector
        self._clock = clock
        self._pause = pause
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: Held while a turn's preview is being shown.
        self._showing: dict[str, asyncio.Lock] = {}

    def keep(self, turn: Turn) -> None:
        """Keep a turn company until it has ended."""
        if turn.ended or turn.place is None or turn.id in self._tasks:
            return
        task = asyncio.create_task(self._keep(turn, read_place(turn.place)), name=f"company {turn.id}")
        self._tasks[turn.id] = task
        self._showing[turn.id] = asyncio.Lock()
        task.add_done_callback(lambda _: self._leave(turn.id))

    async def left(self, delivery: Delivery) -> None:
        """Wait until no preview is shown any more in the place of a delivery: not at all of a turn that has
        ended, not in that message of one that asks a question.
        """
        turn_id = delivery.turn_id
        if turn_id not in self._tasks:
            return
        if delivery.part == 0:
            await asyncio.wait([self._tasks[turn_id]])
        else:
            async with self._showing[turn_id]:
                pass  # what comes after it sees that the message is a question

    def _leave(self, turn_id: str) -> None:
        self._tasks.pop(turn_id, None)
        self._showing.pop(turn_id, None)

    async def stop(self) -> None:
        """Leave all of them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, turn: Turn, place: Place) -> None:
        growing = _Growing()
        typing = asyncio.create_task(self._type(place))
        showing = asyncio.create_task(self._show(turn, place, growing))
        try:
            with suppress(GatewayError):  # it was deleted, or the gateway stops
                async for event in self._turns.events(turn):
                    growing.take(event.type, event.data)
        finally:
            typing.cancel()
            growing.end()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                showing.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(typing, return_exceptions=True)
            await asyncio.gather(showing, return_exceptions=True)

    async def _type(self, place: Place) -> None:
        while True:
            connector = self._connector()
            every = connector.abilities.typing_every if connector else None
            if connector is not None and every is not None:
                with suppress(Exception):
                    async with asyncio.timeout(_CALL):
                        await connector.typing(place)
            await self._pause(every or (5.0 if connector else 0.5))

    async def _show(self, turn: Turn, place: Place, growing: _Growing) -> None:
        """Show the text as it is, again and again, until the turn has ended or something goes wrong."""
        while text := await growing.more(self._every(), self._pause):
            connector = self._connector()
            if connector is None or not connector.abilities.edits or not connector.settings.previews:
                return
            try:
                async with self._showing[turn.id]:
                    is_shown = await self._show_once(turn, place, connector, text)
                if not is_shown and not growing.asked:
                    return
            except TryLater as error:
                await growing.rest(error.seconds or connector.abilities.edit_every, self._pause)
            except Exception as error:  # noqa: BLE001 - the reply itself is delivered by others
                _log.info("a preview ended", extra={"turn_id": turn.id, "reason": type(error).__name__})
                return

    async def _show_once(self, turn: Turn, place: Place, connector: Connector[Any], text: str) -> bool:
        """Show the text; False where there is no preview, or nobody knows whether it is shown."""
        work = partial(deliveries.preview, turn=turn, text=text, at=self._clock())
        found = await self._database.run(work)
        if found is None or not (found.is_new or found.row.shown_as is not None):
            return False
        await self._shown(connector, place, found.row, found.text)
        return True

    async def _shown(self, connector: Connector[Any], place: Place, row: Delivery, text: str) -> None:
        rendered = await asyncio.to_thread(_preview, text, connector.abilities)
        # Another key than the reply's: a platform that knows the key would not show the reply any more.
        key = str(uuid5(UUID(row.id.removeprefix("dlv_")), "preview"))
        part = Part(key=key, place=place, text=rendered, edits=row.shown_as)
        async with asyncio.timeout(_CALL):
            shown_as = await connector.send(part)
        if row.shown_as is None:
            await self._database.run(partial(deliveries.shown, number=row.number, shown_as=shown_as))

    def _every(self) -> float:
        connector = self._connector()
        return connector.abilities.edit_every if connector else 1.0


def _preview(text: str, abilities: Abilities) -> str:
    """Return the beginning of a text that grows, as the platform shows it in one message."""
    return abilities.render(next(pieces(text[: 4 * abilities.length].rstrip() + _MORE, abilities)))


class _Growing:
    """The text of a turn as its events tell it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._last = ""
        #: Whether there is more to see than in the last text.
        self._is_new = False
        #: Whether the turn has asked something: then what comes behind is a message of its own.
        self.asked = False
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    def take(self, type_: str, data: Any) -> None:
        """Take an event of the turn's."""
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
        """Nothing more comes."""
        self._ended.set()
        self._changed.set()

    async def rest(self, seconds: float, pause: Callable[[float], Awaitable[None]]) -> None:
        """Let some time go, less where the turn ends."""
        await either(self._ended, pause(seconds))

    async def more(self, every: float, pause: Callable[[float], Awaitable[None]]) -> str:
        """The text, once there is more to see and some time has gone; empty when the turn has ended."""
        await self.rest(every, pause)
        while not self._ended.is_set() and not self._is_new:
            self._changed.clear()
            await self._changed.wait()
        if self._ended.is_set():
            return ""
        self._last = "".join(self._pieces)
        self._pieces, self._is_new = [self._last], False
        return self._last
