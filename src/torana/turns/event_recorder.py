"""Record the events of a running turn, and the text and costs that its end needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torana.agent.journal import settled_messages
from torana.agent.text import GrowingText, text_of
from torana.messages import EventType
from torana.store.rows.turns import Ending
from torana.turns.events.log import EventLog
from torana.turns.events.sharing import EventSharing
from torana.turns.journal import TurnJournal
from torana.turns.slots import Slot


class EventRecorder:
    """Writes the agent's events to the log and shows them to other replicas.

    It collects the text for a turn that is cut off.
    """

    def __init__(self, log: EventLog, sharing: EventSharing, turn_id: str, slot: Slot) -> None:
        self._log = log
        self._sharing = sharing
        self._turn_id = turn_id
        self._slot = slot
        self._journal: TurnJournal | None = None
        self._text = GrowingText()
        #: Where the text of the last model request begins.
        self._request_start = 0

    def begin(self, journal: TurnJournal) -> None:
        """Start with the text that earlier attempts settled."""
        self._journal = journal
        self._text = GrowingText(text_of(settled_messages(journal)))
        self._request_start = self._text.length

    @property
    def text(self) -> str:
        return str(self._text)

    def with_costs(self, ending: Ending, *, stopped: bool = False) -> Ending:
        """Return the turn's end with its costs. ``stopped`` is true after an interrupted model request."""
        if self._journal is None:
            return ending
        self._journal.timings.end_all("failed" if ending.state == "failed" else "interrupted")
        written = None
        if stopped and self._journal.was_asking:
            text = self.text[self._request_start :]
            written = len(text.encode()) + self._journal.unsaid
        return replace(
            ending,
            spent=self._journal.owed,
            stopped_at=written,
            stopped_request=self._journal.estimated_request,
            times=self._journal.timings.unstored(),
        )

    def __call__(self, type_: EventType, data: Mapping[str, Any], /) -> None:
        if type_ == "message.delta":
            self._text.append(data["text"])
        elif type_ in ("tool.started", "tool.finished"):
            self._slot.count(1 if type_ == "tool.started" else -1)
            self._request_start = self._text.length
        self._log.append(self._turn_id, type_, data)
        self._sharing.publish(self._turn_id, type_, data)
