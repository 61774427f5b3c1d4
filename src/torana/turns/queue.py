"""Bounds on the number of queued messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torana.errors import Overloaded, QueueFull
from torana.messages import Inbound, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Limits on unanswered messages. A message, or the retry of a failed turn, above a limit is refused."""

    per_session: int = 20
    per_user: int = 50
    overall: int = 1000

    def check(self, queued: Inbound | Turn, live: Collection[Turn | Inbound]) -> None:
        """Raise ``Overloaded`` or ``QueueFull`` if there is no room for another message."""
        if len(live) >= self.overall:
            raise Overloaded(headers={"Retry-After": "5"})
        ours = [turn for turn in live if turn.owner == queued.owner]
        in_session = sum(turn.channel == queued.channel for turn in ours) if queued.channel is not None else 0
        sender = _sender(queued)
        of_sender = sum(_sender(turn) == sender for turn in ours) if any(sender) else 0
        if in_session >= self.per_session or of_sender >= self.per_user:
            raise QueueFull(headers={"Retry-After": "5"})


def _sender(message: Turn | Inbound) -> tuple[str | None, str | None]:
    """Return the user; without one, the created token, which has the share of a user."""
    return message.user, None if message.user is not None else message.token
