"""The ends of turns that the agent does not answer."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime

from torana.errors import Draining, GatewayError, TurnCancelled
from torana.messages import Failure, Turn
from torana.sessions import history
from torana.store.engine.database import Connection
from torana.store.rows import turns as rows
from torana.store.rows.audit import Act, auditable_act, record
from torana.store.rows.turns import Ending
from torana.turns.journal import settled_text

_log = logging.getLogger(__name__)


def cancelled_outcome(at: datetime) -> Ending:
    """Return the outcome of a turn that was cancelled before it started."""
    failure = TurnCancelled()
    return Ending(at=at, state="cancelled", failure=Failure(code=failure.code, detail=failure.detail))


def cut_off(turn: Turn, text: str, at: datetime) -> Ending:
    """Return the outcome of a turn that was cancelled after it started; the reply contains its text so far."""
    kept = history.dump(history.cut_off(turn.content, text), speaker=turn.user)
    return replace(cancelled_outcome(at), reply=text or None, history=kept)


def failed_outcome(error: BaseException, at: datetime) -> Ending:
    """Return the outcome of a turn that failed. Details of an unexpected exception are only logged."""
    if isinstance(error, GatewayError):
        _log.warning("turn_failed", extra={"code": error.code, "detail": error.detail})
    else:
        _log.error("turn_failed_on_bug", exc_info=error)
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
    """Cancel a queued turn, or the turn that it was merged into.

    Returns the turn, or None if the owner has no such turn, and the turns that ended: none if the turn is
    running (its task ends it) or had already ended. ``act`` is recorded in the audit record if the turn belongs
    to a user.
    """
    turn = rows.target(connection, owner, turn_id)
    if turn is None or turn.has_ended:
        return turn, []
    if (noted := auditable_act(turn.owner, act)) is not None:
        record(connection, noted, "turn.cancel", turn.id)
    if turn.state != "queued":
        rows.request_cancel(connection, turn.id)
        return turn, []
    begun = turn.attempt > 0
    ending = cut_off(turn, settled_text(connection, turn), at) if begun else cancelled_outcome(at)
    return turn, rows.end_queued(connection, turn, ending)


def draining_error() -> Draining:
    """Return the error for callers that wait for a turn when the gateway stops."""
    return Draining(
        "The gateway was stopped. The message is answered by another replica or after the next start."
    )
