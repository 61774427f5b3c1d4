"""Limits on the number of unanswered messages, and blocked sessions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from torana.errors import GatewayError, Overloaded, QueueFull, StoreUnavailable
from torana.messages import Inbound, Turn
from torana.store.rows.shared_turns import UnfinishedTurn
from torana.turns.outcomes import draining_error

_BLOCKED = (
    "The session is blocked: the gateway could not store the end of a turn. The gateway's log has the reason, "
    "and the gateway tries again automatically. Send the message again later."
)


#: A message or a turn, which the limits count by its owner, channel, user and token.
Queued: TypeAlias = Inbound | Turn | UnfinishedTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Limits on unanswered messages. A message, or the retry of a failed turn, above a limit is refused."""

    per_session: int = 20
    per_user: int = 50
    overall: int = 1000

    def check(self, queued: Queued, live: Collection[Queued]) -> None:
        if len(live) >= self.overall:
            raise Overloaded(headers={"Retry-After": "5"})
        ours = [turn for turn in live if turn.owner == queued.owner]
        in_session = sum(turn.channel == queued.channel for turn in ours) if queued.channel is not None else 0
        sender = _sender(queued)
        of_sender = sum(_sender(turn) == sender for turn in ours) if any(sender) else 0
        if in_session >= self.per_session or of_sender >= self.per_user:
            raise QueueFull(headers={"Retry-After": "5"})


def _sender(message: Queued) -> tuple[str | None, str | None]:
    """Return the user. Without a user, return the created token, which then counts like a user."""
    return message.user, None if message.user is not None else message.token


class BlockedSessions(set[str]):
    """The ids of the sessions in which the end of a turn could not be written yet."""

    def check(self, session_id: str) -> None:
        if session_id in self:
            raise QueueFull(_BLOCKED, headers={"Retry-After": "60"})

    def not_running_error(self, session_id: str) -> GatewayError:
        """Return the error for an unfinished turn that this process does not run."""
        return blocked_error() if session_id in self else draining_error()


def blocked_error() -> StoreUnavailable:
    """Return the error for the callers that wait for turns of a blocked session."""
    return StoreUnavailable(_BLOCKED)
