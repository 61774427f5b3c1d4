"""How turns end that the agent does not answer."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from torana.errors import Draining, GatewayError, TurnCancelled
from torana.messages import Failure, Turn
from torana.sessions import history
from torana.store import turns as rows
from torana.store.audit import Act, on_a_users, record
from torana.store.database import Connection
from torana.store.turns import Ending
from torana.turns.journal import settled_text

_log = logging.getLogger(__name__)


def cancelled(at: datetime) -> Ending:
    """The end of a turn that was cancelled before it had begun."""
    failure = TurnCancelled()
    return Ending(at=at, state="cancelled", failure=Failure(code=failure.code, detail=failure.detail))


def cut_off(turn: Turn, text: str, at: datetime) -> Ending:
    """The end of a turn that was cancelled when it had begun; what it had said is kept."""
    kept = history.dump(history.cut_off(turn.content, text), speaker=turn.user)
    return replace(cancelled(at), reply=text or None, history=kept)


def failed(error: BaseException, at: datetime) -> Ending:
    """The end of a turn on which something went wrong; a bug's own words are for the log alone."""
    if isinstance(error, GatewayError):
        _log.warning("turn failed", extra={"code": error.code, "detail": error.detail})
    else:
        _log.error("turn failed on a bug", exc_info=error)
        error = GatewayError()
    seconds = error.headers.get("Retry-After")
    failure = Failure(
        code=error.code,
        detail=error.detail,
        retry_after=int(seconds) if seconds else None,
        policies=tuple(error.extra.get("violatedPolicies", ())),
    )
    return Ending(at=at, state="failed", failure=failure)


def cancel(
    connection: Connection, owner: str, turn_id: str, *, act: Act | None, at: datetime
) -> tuple[Turn | None, list[Turn]]:
    """Cancel a turn that waits, or the one that it was merged into; no task ends it.

    Returns the turn that is meant, None where the owner has none of that id, and what has ended: nothing where
    that turn runs, and is for its task to end, or had ended before. An operator's act is written down.
    """
    turn = rows.target(connection, owner, turn_id)
    if turn is None or turn.ended:
        return turn, []
    if (noted := on_a_users(turn.owner, act)) is not None:
        record(connection, noted, "turn.cancel", turn.id)
    if turn.state != "queued":
        return turn, []
    begun = turn.attempt > 0
    ending = cut_off(turn, settled_text(connection, turn), at) if begun else cancelled(at)
    return turn, rows.end_queued(connection, turn, ending)


def stopped() -> Draining:
    """What those are told who wait for a turn when the gateway stops."""
    return Draining("The gateway was stopped; the message is answered after its next start.")
