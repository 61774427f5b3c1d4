"""The turns of this process that have not ended, and the callers that wait for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from torana.errors import Erased
from torana.limits.request_tokens import RequestTokens
from torana.measurements import Measurements
from torana.messages import Turn
from torana.tracing import SpanPlace
from torana.turns.events.activity import Activity
from torana.turns.events.log import EventLog
from torana.turns.events.sharing import EventSharing
from torana.turns.outcomes import draining_error
from torana.turns.queue import BlockedSessions, blocked_error
from torana.turns.slots import Slot
from torana.turns.timings import TurnTimings

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LiveTurn:
    """A turn that has not ended, with its state when it was accepted or recovered."""

    turn: Turn
    ending: asyncio.Future[Turn]
    #: The number of callers that wait for the end.
    callers: int = 0
    #: The monotonic time at which the turn was accepted or recovered.
    since: float = field(default_factory=time.monotonic)
    #: The context in which the turn was accepted, with its log fields and its trace. The turn runs in it.
    context: Context = field(default_factory=copy_context)
    #: Set when the agent has begun to run.
    begun: bool = False
    task: asyncio.Task[None] | None = None
    #: Set while the agent runs. Only then may the task be cancelled without losing the turn's end.
    slot: Slot | None = None
    cancelled: bool = False
    #: The user added a message to the running turn.
    steered: bool = False
    #: The times of the current attempt, once its journal is open.
    timings: TurnTimings | None = None
    #: Set while the database cannot be written.
    delayed: asyncio.Event = field(default_factory=asyncio.Event)
    #: The first model request, for which the accepting transaction reserved tokens.
    request: RequestTokens | None = None
    #: Set when the turn has settled a step, waits for an approval, or has ended.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    #: Set, and replaced by a new event, when a call of the turn begins to wait for an approval.
    approval_requested: asyncio.Event = field(default_factory=asyncio.Event)

    def note_approval_request(self) -> None:
        """Wake the callers that wait for an approval, and the recovery that runs this turn alone."""
        self.settled.set()
        self.wake_callers_for_approval()

    def wake_callers_for_approval(self) -> None:
        """Wake the callers that wait for an approval, also of a turn that another replica runs."""
        self.approval_requested.set()
        self.approval_requested = asyncio.Event()

    async def wait_for_end(self) -> Turn:
        """Return the ended turn. Raises the error of ``abandon``."""
        self.callers += 1
        try:
            return await asyncio.shield(self.ending)
        finally:
            self.callers -= 1

    @property
    def awaits_approval(self) -> bool:
        return self.slot is not None and self.slot.waiting_calls > 0

    def abandon(self, error: Exception) -> None:
        """End the waits of callers with an error: the turn does not end in this process."""
        self.ending.set_exception(error)
        self.ending.exception()  # asyncio warns of an exception that no caller retrieves
        self.settled.set()


class LiveTurns:
    """Registry of the turns that have not ended; opens and closes their event logs."""

    def __init__(
        self,
        *,
        log: EventLog,
        sharing: EventSharing | None = None,
        on_end: Callable[[Turn], None] | None = None,
        measurements: Measurements | None = None,
    ) -> None:
        """Call ``on_end`` with every turn that ends; it must not block."""
        self.log = log
        self.sharing = sharing or EventSharing()
        self.activity = Activity()
        self.measurements = measurements or Measurements()
        self._on_end = on_end
        self._live: dict[str, LiveTurn] = {}
        self.blocked = BlockedSessions()

    def __iter__(self) -> Iterator[Turn]:
        return iter([one.turn for one in self._live.values()])  # turns may end while a caller iterates

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._live

    def counts(self) -> dict[str, int]:
        """Return the numbers of turns that run, that wait for an approval, and that are queued."""
        running = sum(one.task is not None for one in self._live.values())
        waiting = sum(one.awaits_approval for one in self._live.values())
        return {"running": running - waiting, "waiting": waiting, "queued": len(self._live) - running}

    def oldest_wait(self) -> float:
        """Return the seconds since the oldest turn began to wait for its agent; 0 if no turn waits."""
        since = min((one.since for one in self._live.values() if not one.begun), default=None)
        return 0.0 if since is None else time.monotonic() - since

    def get(self, turn_id: str) -> LiveTurn | None:
        return self._live.get(turn_id)

    def has_session(self, session_id: str) -> bool:
        return any(one.turn.session_id == session_id for one in self._live.values())

    def entries(self) -> Sequence[LiveTurn]:
        return list(self._live.values())

    def awaiting_approval(self, session_id: str) -> str | None:
        """Return the id of the session's turn that waits for an approval and holds up the turns behind it."""
        for turn_id, one in self._live.items():
            if one.turn.session_id == session_id and one.awaits_approval:
                return turn_id
        return None

    def add(
        self, turn: Turn, *, settled: str = "", request: RequestTokens | None = None, elsewhere: bool = False
    ) -> LiveTurn:
        """Register and return a turn, and open the event log of its current or next attempt.

        A turn that is registered already, because another replica ran it, keeps its waiting callers.

        ``settled`` is the text that earlier attempts settled. ``request`` is the first model request, if the
        accepting transaction reserved tokens for it. Another replica has accepted the turn if it runs or waits
        ``elsewhere``.
        """
        one = self._live.get(turn.id)
        if one is None:
            ending = asyncio.get_running_loop().create_future()
            self._live[turn.id] = one = LiveTurn(turn=turn, ending=ending)
        one.turn, one.request = turn, request
        if not elsewhere:
            self.activity.publish_turn("turn.accepted", turn, state=turn.state)
        attempt = turn.attempt + (turn.state == "queued")
        if self.log.attempt(turn.id) == attempt and self.log.text(turn.id) == settled:
            return one  # registered before the turn was claimed
        self.log.open(turn.id, attempt=attempt)
        if attempt == 1:
            self.log.append(turn.id, "turn.accepted", {"id": turn.id, "channelId": turn.channel})
        else:
            self.log.append(turn.id, "turn.resumed", {"attempt": attempt, "text": settled})
        return one

    def begin(self, one: LiveTurn) -> None:
        one.begun = True
        self.sharing.begin(one.turn.id)
        self.activity.publish_turn("turn.started", one.turn)
        with self.measurements.tracer.span("queue", SpanPlace(since=one.since)):
            pass
        self.measurements.add("queue", time.monotonic() - one.since)

    def end(self, ended: Sequence[Turn], *, elsewhere: bool = False) -> None:
        """Remove ended turns, and notify the waiting callers, the event streams and ``on_end``.

        Turns that another replica has ended (``elsewhere``) are neither measured nor passed to ``on_end``.
        """
        for turn in ended:
            one = self._live.get(turn.id)
            if not elsewhere:
                self._end(turn, one)
            elif one is not None and one.task is None:
                self.sharing.end(turn.id, elsewhere=True)
                self._close(turn, one)

    def _close(self, ended: Turn, one: LiveTurn | None) -> None:
        if one is not None:
            del self._live[ended.id]
            one.ending.set_result(ended)
            one.settled.set()
            if one.task is None and ended.reply:
                self._complete_text(ended.id, ended.reply)
            self.log.append(ended.id, ended.last_event, {})

    def _complete_text(self, turn_id: str, reply: str) -> None:
        """Add the part of the reply that the log lacks: another replica has recorded its deltas."""
        text = self.log.text(turn_id)
        if text and reply.startswith(text):
            if rest := reply.removeprefix(text):
                self.log.append(turn_id, "message.delta", {"text": rest})
        else:
            self.log.append(turn_id, "message.snapshot", {"text": reply})

    def _end(self, ended: Turn, one: LiveTurn | None) -> None:
        if one is not None:
            self.measurements.add("turn", time.monotonic() - one.since, ended.state)
        self.sharing.end(ended.id, elsewhere=False)
        self._close(ended, one)
        failure = ended.failure and ended.failure.code
        self.activity.publish_turn("turn.ended", ended, state=ended.state, error=failure)
        if self._on_end is not None:
            try:
                self._on_end(ended)
            except Exception:  # noqa: BLE001 - an error in a listener must not stop the session
                _log.exception("turn_end_listener_failed")
        _log.info("turn_ended", extra=_summary(ended))

    def forget(self, turn_ids: Iterable[str]) -> None:
        """Remove turns that another replica has deleted, and give their waiting callers an error."""
        for turn_id in turn_ids:
            one = self._live.get(turn_id)
            if one is not None and one.task is None:
                del self._live[turn_id]
                self.sharing.end(turn_id, elsewhere=True)
                one.abandon(Erased(f"the turn {turn_id!r} was erased"))
                self.log.append(turn_id, "turn.failed", {})
                self.log.forget(turn_id)
                self.activity.publish_turn("turn.ended", one.turn, state="cancelled", error=None)

    def block(self, session_id: str) -> None:
        """Mark a session as blocked, and give its waiting callers and event streams an error."""
        self.blocked.add(session_id)
        for one in [one for one in self._live.values() if one.turn.session_id == session_id]:
            del self._live[one.turn.id]
            one.abandon(blocked_error())
            self.log.append(one.turn.id, "turn.failed", {})

    async def wait_for_other_replicas(self, seconds: float) -> None:
        """Wait until other replicas have ended the turns that callers wait for. No turn runs here any more."""
        for one in self._live.values():
            one.task = None
        awaited = [one.ending for one in self._live.values() if one.callers]
        if awaited:
            await asyncio.wait(awaited, timeout=seconds)

    def close(self) -> None:
        """Close the event logs, and end the waits of callers with an error."""
        self.log.close()
        self.activity.close()
        for one in self._live.values():
            one.abandon(draining_error())
        self._live.clear()


def _summary(ended: Turn) -> dict[str, object]:
    fields: dict[str, object] = {"turn_id": ended.id, "channel": ended.channel, "state": ended.state}
    if ended.ended_at is not None:
        fields["seconds"] = round((ended.ended_at - ended.created_at).total_seconds(), 2)
    if ended.failure is not None:
        fields["code"] = ended.failure.code
    return fields | {"model": ended.model} if ended.model else fields
