"""Words to the gateway itself: taken before anything is queued, and answered without the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from torana.messages import Turn
from torana.store import sessions as session_rows
from torana.store import turns as rows
from torana.store.database import Database

#: What a message has to be, and nothing else, to be taken.
WORDS = ("/stop", "/status", "/new", "/help")

_HELP = """\
/new begins a new conversation, /stop ends what is running, /status tells what runs and waits. \
Everything else is a message to the agent."""


class Controls:
    """Obeys a control word for one channel."""

    def __init__(self, *, database: Database, cancel: Callable[[str, str], Awaitable[Turn]]) -> None:
        self._database = database
        self._cancel = cancel

    @staticmethod
    def word(content: str) -> str | None:
        """The control word that a message is; None for a message to the agent."""
        word = content.strip().casefold()
        return word if word in WORDS else None

    async def obey(self, word: str, *, owner: str, channel: str) -> str:
        """Do it, and say what was done."""
        live = await self._database.run(partial(rows.of_channel, owner=owner, channel=channel))
        running = [turn for turn in live if turn.state == "running"]
        match word:
            case "/stop":
                for turn in running:
                    await self._cancel(owner, turn.id)
                return "Stopped." if running else "Nothing is running here."
            case "/new":
                await self._database.run(partial(session_rows.start_afresh, owner=owner, channel=channel))
                return "A new conversation: what was said here before is not shown to the agent any more."
            case "/help":
                return _HELP
            case _:
                return f"Running here: {len(running)}. Waiting: {len(live) - len(running)}."
