"""The times of one attempt of a turn, until they are stored."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic_ai.messages import ModelResponse

from torana.messages import MICRO, Turn, Usage, utc_now
from torana.store.rows.reports.timings import Timing, TimingKind, TimingState

#: Maximum number of timings of an attempt; further ones are dropped.
_LIMIT = 1_000


@dataclass(slots=True)
class RequestTime:
    """A model request that is measured; the caller sets its response."""

    response: ModelResponse | None = None


class TurnTimings:
    """Notes when the actions of an attempt begin and end. The transactions of its journal store the times."""

    def __init__(self, turn: Turn, *, usage_of: Callable[[Sequence[ModelResponse]], Usage]) -> None:
        """``usage_of`` returns the usage and cost of responses."""
        self._turn = turn
        self._usage_of = usage_of
        self._times: list[Timing] = []
        #: The numbers of the times that changed since they were stored.
        self._changed: set[int] = set()
        self._calls: dict[tuple[int, str], int] = {}

    def begin_queue(self, *, waited: float) -> None:
        """Note that the turn waits for its start, since ``waited`` seconds ago."""
        now = utc_now()
        since = datetime.fromtimestamp(now.timestamp() - waited, tz=now.tzinfo)
        self._begin("queue", at=self._turn.created_at if self._turn.attempt == 1 else since)

    def end_queue(self) -> None:
        self._end(0, "completed")

    @contextmanager
    def request(self, step: int) -> Generator[RequestTime]:
        """Measure a model request of a step. An error fails it; a cancellation leaves it to ``end_all``."""
        number = self._begin("model", step=step)
        measured = RequestTime()
        try:
            yield measured
        except Exception:
            self._end(number, "failed")
            raise
        self._end(number, "completed")
        if measured.response is not None and number >= 0:
            self._times[number] = self._with_usage(self._times[number], measured.response)

    def begin_call(self, step: int, call_id: str, tool: str) -> None:
        self._calls[step, call_id] = self._begin("tool", step=step, name=tool, call_id=call_id)

    def end_call(self, step: int, call_id: str, state: TimingState) -> None:
        self._end(self._calls.pop((step, call_id), -1), state)

    def end_all(self, state: TimingState) -> None:
        """End all actions in progress, which failed with the turn or were interrupted."""
        for number, one in enumerate(self._times):
            if one.ended_at is None:
                self._end(number, state)

    def times(self) -> Sequence[Timing]:
        return tuple(self._times)

    def unstored(self) -> Sequence[Timing]:
        """Return the times to store in the next transaction."""
        return tuple(self._times[number] for number in sorted(self._changed))

    def note_stored(self, stored: Sequence[Timing]) -> None:
        """Note the times that a transaction has stored. A time that has changed since is stored again."""
        self._changed -= {one.number for one in stored if self._times[one.number] is one}

    def _begin(
        self,
        kind: TimingKind,
        *,
        at: datetime | None = None,
        step: int | None = None,
        name: str | None = None,
        call_id: str | None = None,
    ) -> int:
        number = len(self._times)
        if number >= _LIMIT:
            return -1
        one = Timing(
            turn_id=self._turn.id,
            attempt=self._turn.attempt,
            number=number,
            kind=kind,
            started_at=at or utc_now(),
            step=step,
            name=name,
            call_id=call_id,
        )
        self._times.append(one)
        self._changed.add(number)
        return number

    def _end(self, number: int, state: TimingState) -> None:
        if 0 <= number < len(self._times):
            self._times[number] = replace(self._times[number], state=state, ended_at=utc_now())
            self._changed.add(number)

    def _with_usage(self, time: Timing, response: ModelResponse) -> Timing:
        used = self._usage_of([response])
        return replace(
            time,
            name=response.model_name,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            microusd=round(used.cost_usd * MICRO),
        )
