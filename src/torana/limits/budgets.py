"""Budgets of messages, tokens, money and turns, with reservations.

The possible cost of a model request is reserved before it is sent, and the actual cost is charged when the
response is stored. The reservation is the maximum: one token per byte, unless a provider has reported less for
the same content. If the maximum does not fit but the likely amount does, one request at a time is still
allowed. So a limit is exceeded by at most one request; see ``docs/decisions/0031-hold-back-the-most.md``. The
requests of a message count for the period in which it was accepted, also if its turn waited.

Functions with a connection run in the caller's transaction. Write transactions run one after the other, on
SQLite and on PostgreSQL, so concurrent requests cannot overspend.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torana.errors import BudgetSpent
from torana.limits.limit_usage import (
    BudgetWarning,
    LimitUsages,
    crossed_warnings,
    refusal_of,
    spent_of,
    status_of,
)
from torana.limits.policies import Limits, day_of, minute_of
from torana.limits.prices import Prices
from torana.limits.rate_limit_status import LimitStatus
from torana.limits.request_tokens import RequestTokens, likely_of_bytes, likely_tokens, tokens_of_files
from torana.messages import MICRO, Turn, Usage, utc_now
from torana.store.engine.database import Connection
from torana.store.rows import attachments, journal, transcript, usage
from torana.store.rows.reports import spending
from torana.store.rows.reports.spending import SpentAmount
from torana.store.rows.shared_turns import list_requesting
from torana.store.rows.usage import Amount, Reservation

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

#: Bytes of a history's JSON per token: the likely and the smallest number. About half of the JSON is not text.
_HISTORY_BYTES = 4
_HISTORY_FRAME = 2

#: Minutes of usage rows that are stored.
_MINUTES_KEPT = 60

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Assumed tokens of a model request: too many rather than too few."""

    #: Maximum tokens of the response; the model receives it as a setting.
    output: int = 4096
    #: The instructions and tool definitions, if they are not measured.
    overhead: int = 4000
    #: Maximum number of turns in the history window.
    history_turns: int = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The state of all limits for an admitted message, and the warnings to log after the commit."""

    statuses: Sequence[LimitStatus] = ()
    warned: Sequence[BudgetWarning] = ()
    #: The request for which tokens are reserved.
    request: RequestTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The refusal of further model requests, if there is one, and the warnings to log after the commit."""

    refusal: BudgetSpent | None = None
    warned: Sequence[BudgetWarning] = ()
    #: The request for which tokens are reserved.
    request: RequestTokens | None = None


class Budgets:
    """The limits that are stored as rows. Without limits, usage is only counted."""

    def __init__(
        self,
        *,
        limits: Limits,
        prices: Prices,
        estimate: Estimate | None = None,
        fixed_tokens: Callable[[], RequestTokens] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``fixed_tokens`` measures the instructions and tool definitions, in the database's thread."""
        self._limits = limits
        self._levels = LimitUsages(limits=limits)
        self.prices = prices
        self._estimate = estimate or Estimate()
        overhead = RequestTokens(likely=self._estimate.overhead, most=self._estimate.overhead)
        self._fixed_tokens = fixed_tokens or (lambda: overhead)
        self._clock = clock

    @property
    def bound_calls(self) -> bool:
        """Return whether tokens or money are limited, so that each model call needs a reservation."""
        return self._limits.bound_calls

    def admit(
        self, connection: Connection, turn: Turn, *, messages: int = 1, rates: Sequence[LimitStatus] = ()
    ) -> Admitted:
        """Count a new turn, and reserve the possible cost of its first model request.

        All limits are checked first: a refused message consumes nothing. Raises ``BudgetSpent`` with the names
        of all violated policies. 0 ``messages`` means a retry of a counted message. ``rates`` are limits that
        the caller has checked; they are reported together with these.
        """
        at = self._now()
        asked = likely = Amount(messages=messages)
        request: RequestTokens | None = None
        if self._limits.bound_calls:
            request = self._first_request(connection, turn)
            asked, likely = self._estimate_amounts(asked, request)
        levels = [
            *self._levels.in_windows(connection, turn, asked, likely, at),
            *self._levels.of_unanswered(connection, turn),
        ]
        if any(level.is_violated for level in levels):
            raise refusal_of(levels, at, rates)
        if asked != Amount():
            usage.add(connection, usage.accounts_of(turn), self._periods(at), asked)
            spending.add(connection, turn, day_of(at), SpentAmount(messages=messages))
        if self._limits.bound_calls:
            usage.store_reservation(
                connection, turn.id, _reservation(asked, on=self._periods(at)[-1], used=turn.usage)
            )
        if self._limits.bound_minutes:
            before = minute_of(datetime.fromtimestamp(at.timestamp() - 60 * _MINUTES_KEPT, UTC))
            usage.forget_minutes(connection, usage.accounts_of(turn), before=before)
        after = [level.with_spent(spent_of(level.rule.limit, asked)) for level in levels]
        return Admitted(
            statuses=[*rates, *(status_of(level, at) for level in after)],
            warned=crossed_warnings(after, Amount(messages=messages)),
            request=request,
        )

    def settle(self, connection: Connection, turn: Turn, responses: Sequence[ModelResponse]) -> Settled:
        """Charge a step of a turn, and reserve the possible cost of its next model request.

        If that does not fit, nothing is reserved and the result contains the refusal.
        """
        at = self._now()
        before = usage.read_reservation(connection, turn.id)
        spent = self.prices.usage(responses)
        used = usage.settle(connection, turn, spent=spent, at=at, before=before)
        warned = self._warnings(connection, turn, before, used, at)
        if not self._limits.bound_calls:
            usage.store_reservation(connection, turn.id, Reservation(tokens=0, microusd=0, on=None, used=used))
            return Settled(warned=warned)
        last = responses[-1].usage
        reported = last.input_tokens + last.output_tokens
        # Without reported usage, the reserved amount is assumed.
        tokens = reported if last.input_tokens else max(reported, before.tokens)
        request = RequestTokens(likely=tokens, most=tokens)
        return replace(self._claim(connection, turn, request, used, at), warned=warned)

    def hold(self, connection: Connection, turn: Turn, request: RequestTokens) -> Settled:
        """Reserve the possible cost of a model request about to be sent, unless that much is reserved already.

        Until the request is settled, ``charge_interrupted`` charges it after a crash.
        """
        if not self._limits.bound_calls:
            return Settled()
        held = usage.read_reservation(connection, turn.id)
        requests = held.requests + 1
        if held.on is not None and request.most <= (before := held.tokens - self._estimate.output):
            usage.store_reservation(connection, turn.id, replace(held, requests=requests))
            return Settled(request=replace(request, most=before))
        at = self._now()
        usage.settle(connection, turn, spent=Usage(), at=at, before=held)
        return self._claim(connection, turn, request, held.used, at, requests=requests)

    def release(self, connection: Connection, turn: Turn) -> None:
        """Release the reservation of a turn that waits for a person; ``hold`` reserves again."""
        held = usage.read_reservation(connection, turn.id)
        if held.on is not None:
            _end_reservation(connection, turn, Usage(), held, self._now())

    def charge_interrupted(self, connection: Connection, *, own: bool = False) -> list[BudgetWarning]:
        """Charge the reserved amounts of requests that the end of a process interrupted.

        The provider may charge for them, and their usage is unknown. With ``own`` these are the requests of
        this process, whose turns have been stopped.
        """
        at = self._now()
        warned: list[BudgetWarning] = []
        for turn in list_requesting(connection, own=own):
            held = usage.read_reservation(connection, turn.id)
            output = min(held.tokens, self._estimate.output)
            spent = Usage(
                input_tokens=held.requests * (held.tokens - output),
                output_tokens=held.requests * output,
                cost_usd=held.requests * held.microusd / MICRO,
            )
            used = _end_reservation(connection, turn, spent, held, at)
            warned += self._warnings(connection, turn, held, used, at)
        return warned

    def allows_summary(
        self, connection: Connection, turn: Turn, request: RequestTokens, *, percent: int
    ) -> bool:
        """Return whether a summary for a turn's session fits the limits and the share in percent.

        ``percent`` is the share of a session's tokens that its summaries may use. If no turn has reported
        usage, the share is unknown, and every ``percent`` but 0 allows the summary. Nothing is reserved.
        """
        if percent == 0:
            return False
        spent = transcript.spent_tokens(connection, turn.session_id)
        summaries = spent.summaries + request.likely
        if spent.turns and summaries * 100 > percent * (spent.turns + summaries):
            return False
        if not self._limits.bound_calls:
            return True
        asked, likely = self._estimate_amounts(Amount(), request)
        levels = self._levels.in_windows(connection, turn, asked, likely, self._now())
        return not any(level.is_violated for level in levels)

    def add_result(
        self, connection: Connection, turn: Turn, result: bytes, *, likely: int | None = None
    ) -> Settled:
        """Reserve the tokens that a tool's result adds to the turn's next model request.

        ``likely`` is the likely size of the previous model request, if known.
        """
        if not self._limits.bound_calls:
            return Settled()
        at = self._now()
        held = usage.read_reservation(connection, turn.id)
        if held.on is None:  # refused, released or continued; ``hold`` reserves
            return Settled()
        usage.settle(connection, turn, spent=Usage(), at=at, before=held)
        before = held.tokens - self._estimate.output
        request = RequestTokens(likely=before if likely is None else likely, most=before)
        request += RequestTokens.of_bytes(len(result))
        return self._claim(connection, turn, request, held.used, at)

    def stop(self, connection: Connection, turn: Turn, written: int, *, asked: int | None = None) -> None:
        """Charge an interrupted model request, whose usage is unknown: the request and the output so far.

        ``written`` is the size of the output so far in bytes: text, thinking and tool calls. ``asked`` is the
        likely size of the request in tokens; if None, the reserved size is used. Charges nothing if nothing was
        reserved.
        """
        held = usage.read_reservation(connection, turn.id)
        if held.on is None:
            return
        request = held.tokens - self._estimate.output if asked is None else asked
        output = likely_of_bytes(written)
        cost = self.prices.most(request, output) / MICRO
        call = Usage(input_tokens=request, output_tokens=output, cost_usd=cost)
        _end_reservation(connection, turn, call, held, self._now())

    def charge(self, connection: Connection, turn: Turn, responses: Sequence[ModelResponse]) -> None:
        """Charge requests for summaries of a turn's session, without a reservation.

        If the turn was erased during the request, its channel is not stored again.
        """
        spent = self.prices.usage(responses)
        used = usage.difference(Usage(), spent)
        used = replace(used, summary_tokens=used.tokens)
        periods = self._periods(self._now())
        usage.add(connection, usage.accounts_of(turn), periods, used)
        is_stored = usage.is_stored(connection, turn.id)
        amount = usage.spent_of(used)
        spending.add(connection, turn, periods[0], amount, shares=spent, with_place=is_stored)
        transcript.add_summary_tokens(connection, turn.session_id, used.tokens)

    def reservation_of(self, connection: Connection, turn: Turn) -> Reservation | None:
        """Return a turn's reservation before its end, for ``warnings``; None if no warning is possible."""
        return usage.read_reservation(connection, turn.id) if self._limits.all else None

    def warnings(self, connection: Connection, turn: Turn, before: Reservation | None) -> list[BudgetWarning]:
        """Return the budget warnings to log after a turn with this reservation has ended."""
        return self._warnings(connection, turn, before, turn.usage, self._now()) if before else []

    def _warnings(
        self, connection: Connection, turn: Turn, before: Reservation, used: Usage, at: datetime
    ) -> list[BudgetWarning]:
        if not self._limits.all:
            return []
        charged_at = at if before.on is None else datetime.fromisoformat(before.on).replace(tzinfo=UTC)
        levels = self._levels.in_windows(connection, turn, Amount(), Amount(), charged_at)
        return crossed_warnings(levels, usage.difference(before.used, used))

    def _claim(
        self,
        connection: Connection,
        turn: Turn,
        request: RequestTokens,
        used: Usage,
        at: datetime,
        *,
        requests: int = 0,
    ) -> Settled:
        """Reserve the possible cost of a request, or return the refusal."""
        asked, likely = self._estimate_amounts(Amount(), request)
        levels = self._levels.in_windows(connection, turn, asked, likely, at)
        if any(level.is_violated for level in levels):
            usage.store_reservation(connection, turn.id, Reservation(tokens=0, microusd=0, on=None, used=used))
            return Settled(refusal=refusal_of(levels, at))
        usage.add(connection, usage.accounts_of(turn), self._periods(at), asked)
        held = _reservation(asked, on=self._periods(at)[-1], used=used, requests=requests)
        usage.store_reservation(connection, turn.id, held)
        return Settled(request=request)

    def _first_request(self, connection: Connection, turn: Turn) -> RequestTokens:
        """Return the tokens of a turn's first request, estimated without reading the history.

        The agent measures the request before it sends it, and reserves more if necessary.
        """
        size = transcript.history_size(
            connection, turn.owner, turn.session_id, turns_limit=self._estimate.history_turns
        )
        if turn.attempt > 1 or turn.state == "queued":
            size += journal.size(connection, turn.id)
        files = attachments.sizes(connection, turn.id) if turn.files else ()
        content = RequestTokens(likely=likely_tokens(turn.content), most=len(turn.content.encode()))
        history = RequestTokens(likely=math.ceil(size / _HISTORY_BYTES), most=math.ceil(size / _HISTORY_FRAME))
        return self._fixed_tokens() + content + history + tokens_of_files(files)

    def _estimate_amounts(self, asked: Amount, request: RequestTokens) -> tuple[Amount, Amount]:
        """Return the amount with the maximum and with the likely cost of a request."""
        output = self._estimate.output
        most, likely = (
            replace(asked, reserved_tokens=size + output, reserved_microusd=self.prices.most(size, output))
            for size in (request.most, request.likely)
        )
        return most, likely

    def _periods(self, at: datetime) -> list[str]:
        """Return the periods that contain the time ``at`` and count amounts, the shortest last."""
        return [day_of(at), minute_of(at)] if self._limits.bound_minutes else [day_of(at)]

    def _now(self) -> datetime:
        return self._clock().astimezone(UTC)


def log_warnings(warned: Sequence[BudgetWarning]) -> None:
    """Log budgets whose usage crossed a warning level."""
    for warning in warned:
        _log.warning(
            "budget_warning",
            extra={"percent": warning.percent, "policy": warning.policy, "account": warning.account},
        )


def _end_reservation(
    connection: Connection, turn: Turn, spent: Usage, held: Reservation, at: datetime
) -> Usage:
    """Charge what a turn has spent, and reserve nothing more. Returns the turn's total usage."""
    used = usage.settle(connection, turn, spent=spent, at=at, before=held)
    usage.store_reservation(connection, turn.id, Reservation(tokens=0, microusd=0, on=None, used=used))
    return used


def _reservation(asked: Amount, *, on: str, used: Usage, requests: int = 0) -> Reservation:
    return Reservation(
        tokens=asked.reserved_tokens, microusd=asked.reserved_microusd, on=on, used=used, requests=requests
    )
