"""Budgets of messages, tokens, money and turns: tested and held back in the transactions that exist anyway.

What a model call may cost is held back before it is made, and what it did cost is charged when it is written
down. For a request the most is held back that it can be: a token for each byte, unless a provider has reported
less for the same. Where the most is more than is left, one call at a time may still be made that likely fits.
So what is charged passes a limit by one call at most; ``docs/decisions/0031-hold-back-the-most.md`` tells why.

All functions that take a connection belong into a transaction of whoever calls them: on SQLite those
follow each other, in every process, so that many calls at once cannot overspend.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from torana.errors import BudgetSpent
from torana.limits.policies import Limit, Limits, Whose, Window, day_of, minute_of, window_of
from torana.limits.prices import Prices
from torana.limits.standings import Policy, Standing, headers
from torana.messages import FILE_TEXT_LIMIT, MICRO, Turn, Usage, file_kind, utc_now
from torana.store import attachments, journal, transcript, usage
from torana.store.database import Connection
from torana.store.usage import Amount, Held

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse

#: Crossing one of these percentages is told in the log.
_WARNINGS = (80, 50)

#: Minutes for which rows of minutes are kept.
_MINUTES_KEPT = 60

#: Seconds after which it is worth trying again when too many turns wait at once.
_TURNS_RESET = 5

#: Bytes of text that are likely a token; and of a history's JSON, of which half at least is no text.
_BYTES = 3
_HISTORY_BYTES = 4
_HISTORY_FRAME = 2

#: Tokens of a picture, and of a PDF, whose pages are read and looked at: one for so many of its bytes, no less
#: than the second number and no more than the third.
_PICTURE = 2_000
_PDF = (10, 2_000, 100_000)

_SETTINGS: dict[Whose, str] = {
    "user": "TORANA_LIMITS_PER_USER",
    "token": "TORANA_LIMITS_PER_TOKEN",
    "global": "TORANA_LIMITS_GLOBAL",
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTokens:
    """The tokens of a request to a model that was not made yet: how many it likely has, and has at most."""

    likely: int
    most: int

    def __add__(self, other: RequestTokens) -> RequestTokens:
        return RequestTokens(likely=self.likely + other.likely, most=self.most + other.most)

    @classmethod
    def of_bytes(cls, size: int) -> RequestTokens:
        """The tokens of a text of so many bytes."""
        return cls(likely=_tokens(size), most=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is reckoned with before a model call, in tokens: rather too much than too little."""

    #: What the model may say; it is told so.
    output: int = 4096
    #: The instructions and the tools' definitions, where nothing measures them.
    overhead: int = 4000
    #: How many turns of its session a model is shown at most.
    history_turns: int = 21


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """A budget of which so many percent are spent now, and were not before."""

    policy: str
    account: str
    percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """How all limits of an admitted message stand, and what is to be told of them once it is committed."""

    standings: Sequence[Standing] = ()
    warned: Sequence[Warned] = ()
    #: The request for which something is held back.
    request: RequestTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Why a turn may not ask the model again, if it may not, and what is to be told once it is committed."""

    refusal: BudgetSpent | None = None
    warned: Sequence[Warned] = ()
    #: The request for which something is held back now.
    request: RequestTokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A limit as it applies to one account."""

    limit: Limit
    account: str
    whose: Whose

    @property
    def name(self) -> str:
        return f"{self.whose}-{self.limit.label}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """How full a rule's window is, and how much more is asked of it."""

    rule: _Rule
    spent: int
    reserved: int
    #: The most that may be spent, and what likely will be.
    asked: int
    likely: int
    window: Window | None

    @property
    def violated(self) -> bool:
        """True where the most does not fit, unless nothing else is held back and what is likely fits."""
        if self.asked == 0 or self.spent + self.reserved + self.asked <= self.rule.limit.quota:
            return False
        return self.reserved > 0 or self.is_spent

    @property
    def is_spent(self) -> bool:
        """True where what is likely does not fit, whatever becomes of what is held back."""
        return self.spent + self.likely > self.rule.limit.quota

    @property
    def free(self) -> int:
        return max(0, self.rule.limit.quota - self.spent - self.reserved)

    def taken(self, spent: int) -> _Level:
        """The level when what was asked is spent, so much of it, or held back."""
        reserved = self.reserved + self.asked - spent
        return replace(self, spent=self.spent + spent, reserved=reserved, asked=0, likely=0)


class Budgets:
    """The limits that are kept as rows. Without any, usage is counted and nothing else is done."""

    def __init__(
        self,
        *,
        limits: Limits,
        prices: Prices,
        estimate: Estimate | None = None,
        fixed_tokens: Callable[[], RequestTokens] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``fixed_tokens`` measures the part that all requests begin with: instructions and tools' definitions.

        It is called in the database's thread.
        """
        self._limits = limits
        self._prices = prices
        self._estimate = estimate or Estimate()
        overhead = RequestTokens(likely=self._estimate.overhead, most=self._estimate.overhead)
        self._fixed_tokens = fixed_tokens or (lambda: overhead)
        self._clock = clock

    @property
    def bound_calls(self) -> bool:
        """Whether tokens or money are limited, so that something is held back before each model call."""
        return self._limits.bound_calls

    def admit(
        self, connection: Connection, turn: Turn, *, messages: int = 1, rates: Sequence[Standing] = ()
    ) -> Admitted:
        """Count a turn that was just written down and hold back what its first model call may cost.

        All limits are tested before any is touched: a message that is refused consumes nothing. Raises
        ``BudgetSpent`` with the names of all violated policies. 0 ``messages`` is a turn that runs again;
        ``rates`` are limits that were tested before, and are told of together with these.
        """
        at = self._now()
        asked = likely = Amount(messages=messages)
        request: RequestTokens | None = None
        if self._limits.bound_calls:
            request = self._first_request(connection, turn)
            asked, likely = self._reckoned(asked, request.most), self._reckoned(likely, request.likely)
        levels = [*self._levels(connection, turn, asked, likely, at), *self._at_once(connection, turn)]
        if any(level.violated for level in levels):
            raise _refusal(levels, at, rates)
        if asked != Amount():
            usage.add(connection, usage.accounts_of(turn), self._periods(at), asked)
        if self._limits.bound_calls:
            self._hold(connection, turn, asked, turn.usage, at)
        if self._limits.bound_minutes:
            before = minute_of(datetime.fromtimestamp(at.timestamp() - 60 * _MINUTES_KEPT, UTC))
            usage.forget_minutes(connection, usage.accounts_of(turn), before=before)
        after = [level.taken(spent_of(level.rule.limit, asked)) for level in levels]
        return Admitted(
            standings=[*rates, *(_standing(level, at) for level in after)],
            warned=_warned(after, Amount(messages=messages)),
            request=request,
        )

    def settle(self, connection: Connection, turn: Turn, responses: Sequence[ModelResponse]) -> Settled:
        """Charge a step of a turn, and hold back what its next model call may cost.

        Where that is too much nothing is held back any more, and the answer says why.
        """
        at = self._now()
        before = usage.held(connection, turn.id)
        spent = self._prices.usage(responses)
        used = usage.settle(connection, turn, spent=spent, at=at, before=before)
        warned = self._warnings(connection, turn, before, used, at)
        if not self._limits.bound_calls:
            usage.hold(connection, turn.id, Held(tokens=0, microusd=0, on=None, used=used))
            return Settled(warned=warned)
        last = responses[-1].usage
        said = last.input_tokens + last.output_tokens
        # A provider that tells no usage is believed to have used what was held back.
        tokens = said if last.input_tokens else max(said, before.tokens)
        request = RequestTokens(likely=tokens, most=tokens)
        return replace(self._claim(connection, turn, request, used, at), warned=warned)

    def resume(self, connection: Connection, turn: Turn) -> Settled:
        """See to it that something is held back for a turn that goes on after a crash."""
        held = usage.held(connection, turn.id)
        if held.on is not None or not self._limits.bound_calls:
            return Settled()
        request = self._first_request(connection, turn)
        return self._claim(connection, turn, request, held.used, self._now())

    def hold(self, connection: Connection, turn: Turn, request: RequestTokens) -> Settled:
        """Hold back what a turn's next model call may cost, where less is held back by now."""
        if not self._limits.bound_calls:
            return Settled()
        held = usage.held(connection, turn.id)
        if held.on is not None and request.most <= (before := held.tokens - self._estimate.output):
            return Settled(request=replace(request, most=before))
        at = self._now()
        usage.settle(connection, turn, spent=Usage(), at=at, before=held)
        return self._claim(connection, turn, request, held.used, at)

    def has_room(self, connection: Connection, turn: Turn, request: RequestTokens) -> bool:
        """Whether a model call on a turn's behalf that is not its own fits, for which nothing is held back."""
        if not self._limits.bound_calls:
            return True
        asked, likely = self._reckoned(Amount(), request.most), self._reckoned(Amount(), request.likely)
        return not any(one.violated for one in self._levels(connection, turn, asked, likely, self._now()))

    def add_result(
        self, connection: Connection, turn: Turn, result: bytes, *, likely: int | None = None
    ) -> Settled:
        """Hold back what a tool's result adds to the turn's next model call.

        ``likely`` is how many tokens its request likely had before, where that is known.
        """
        if not self._limits.bound_calls:
            return Settled()
        at = self._now()
        held = usage.held(connection, turn.id)
        if held.on is None:  # it was refused already
            return Settled()
        usage.settle(connection, turn, spent=Usage(), at=at, before=held)
        before = held.tokens - self._estimate.output
        request = RequestTokens(likely=before if likely is None else likely, most=before)
        request += RequestTokens.of_bytes(len(result))
        return self._claim(connection, turn, request, held.used, at)

    def stop(self, connection: Connection, turn: Turn, said: str, *, asked: int | None = None) -> None:
        """Charge a model call that was stopped, whose usage is not told: its request, and what it had said.

        ``asked`` is how many tokens the request likely had; None is as many as were held back for it. Where
        nothing was held back for it nothing is charged.
        """
        held = usage.held(connection, turn.id)
        if held.on is None:
            return
        request = held.tokens - self._estimate.output if asked is None else asked
        output = _tokens(len(said.encode()))
        cost = self._prices.most(request, output) / MICRO
        call = Usage(input_tokens=request, output_tokens=output, cost_usd=cost)
        used = usage.settle(connection, turn, spent=call, at=self._now(), before=held)
        usage.hold(connection, turn.id, Held(tokens=0, microusd=0, on=None, used=used))

    def charge(self, connection: Connection, turn: Turn, responses: Sequence[ModelResponse]) -> None:
        """Charge model calls that were made on a turn's behalf and are not its own; nothing was held back."""
        used = usage.since(Usage(), self._prices.usage(responses))
        usage.add(connection, usage.accounts_of(turn), self._periods(self._now()), used)

    def held(self, connection: Connection, turn: Turn) -> Held | None:
        """What a turn holds before it is ended, for ``warnings``; None where there is nothing to warn of."""
        return usage.held(connection, turn.id) if self._limits.all else None

    def warnings(self, connection: Connection, turn: Turn, before: Held | None) -> list[Warned]:
        """What is to be told of budgets when a turn has ended that held so much before."""
        return self._warnings(connection, turn, before, turn.usage, self._now()) if before else []

    def tell(self, warned: Sequence[Warned]) -> None:
        """Write to the log which budgets were half spent, or nearly, by what was just committed."""
        for warning in warned:
            _log.warning(
                "%s %% of a budget are spent",
                warning.percent,
                extra={"policy": warning.policy, "account": warning.account},
            )

    def _warnings(
        self, connection: Connection, turn: Turn, before: Held, used: Usage, at: datetime
    ) -> list[Warned]:
        if not self._limits.all:
            return []
        charged_at = at if before.on is None else datetime.fromisoformat(before.on).replace(tzinfo=UTC)
        levels = self._levels(connection, turn, Amount(), Amount(), charged_at)
        return _warned(levels, usage.since(before.used, used))

    def _claim(
        self, connection: Connection, turn: Turn, request: RequestTokens, used: Usage, at: datetime
    ) -> Settled:
        """Hold back what a call with a request of so many tokens may cost, or say why that is too much."""
        asked, likely = self._reckoned(Amount(), request.most), self._reckoned(Amount(), request.likely)
        levels = self._levels(connection, turn, asked, likely, at)
        if any(level.violated for level in levels):
            usage.hold(connection, turn.id, Held(tokens=0, microusd=0, on=None, used=used))
            return Settled(refusal=_refusal(levels, at))
        usage.add(connection, usage.accounts_of(turn), self._periods(at), asked)
        self._hold(connection, turn, asked, used, at)
        return Settled(request=request)

    def _hold(self, connection: Connection, turn: Turn, asked: Amount, used: Usage, at: datetime) -> None:
        held = Held(
            tokens=asked.reserved_tokens, microusd=asked.reserved_microusd, on=self._periods(at)[-1], used=used
        )
        usage.hold(connection, turn.id, held)

    def _first_request(self, connection: Connection, turn: Turn) -> RequestTokens:
        """The tokens of a turn's first request, as far as they are known without reading the history.

        The agent measures it before it asks, and has more held back where that is too little.
        """
        said = transcript.history_size(
            connection, turn.owner, turn.session_id, turns_limit=self._estimate.history_turns
        )
        if turn.attempt > 1 or turn.state == "queued":
            said += journal.size(connection, turn.id)
        files = attachments.sizes(connection, turn.id) if turn.files else ()
        content = RequestTokens(likely=_likely_tokens(turn.content), most=len(turn.content.encode()))
        history = RequestTokens(likely=math.ceil(said / _HISTORY_BYTES), most=math.ceil(said / _HISTORY_FRAME))
        return self._fixed_tokens() + content + history + tokens_of_files(files)

    def _reckoned(self, asked: Amount, request: int) -> Amount:
        output = self._estimate.output
        cost = self._prices.most(request, output)
        return replace(asked, reserved_tokens=request + output, reserved_microusd=cost)

    def _periods(self, at: datetime) -> list[str]:
        """The rows that something is counted on at a moment; the last one is the finest."""
        return [day_of(at), minute_of(at)] if self._limits.bound_minutes else [day_of(at)]

    def _rules(self, turn: Turn) -> list[_Rule]:
        of_each: list[tuple[Whose, str | None, Sequence[Limit]]] = [
            ("user", turn.user and usage.of_user(turn.user), self._limits.per_user),
            ("token", turn.token and usage.of_token(turn.token), self._limits.per_token),
            ("global", usage.GATEWAY, self._limits.overall),
        ]
        return [
            _Rule(limit=limit, account=account, whose=whose)
            for whose, account, limits in of_each
            if account is not None
            for limit in limits
        ]

    def _levels(
        self, connection: Connection, turn: Turn, asked: Amount, likely: Amount, at: datetime
    ) -> list[_Level]:
        """The levels of all that is limited in a time."""
        read: dict[tuple[str, Window], Amount] = {}
        levels: list[_Level] = []
        for rule in self._rules(turn):
            if rule.limit.period is None:
                continue
            window = window_of(rule.limit.period, at)
            key = rule.account, window
            if key not in read:
                read[key] = usage.total(connection, rule.account, first=window.first, last=window.last)
            levels.append(
                _Level(
                    rule=rule,
                    spent=spent_of(rule.limit, read[key]),
                    reserved=reserved_of(rule.limit, read[key]),
                    asked=spent_of(rule.limit, asked) + reserved_of(rule.limit, asked),
                    likely=spent_of(rule.limit, likely) + reserved_of(rule.limit, likely),
                    window=window,
                )
            )
        return levels

    def _at_once(self, connection: Connection, turn: Turn) -> list[_Level]:
        """The levels of turns that have no answer yet; the one that is admitted is written down already."""
        levels: list[_Level] = []
        for rule in self._rules(turn):
            if rule.limit.period is None:
                user = turn.user if rule.whose == "user" else None
                token = turn.token if rule.whose == "token" else None
                others = usage.unanswered(connection, user=user, token=token) - 1
                levels.append(_Level(rule=rule, spent=0, reserved=others, asked=1, likely=1, window=None))
        return levels

    def _now(self) -> datetime:
        return self._clock().astimezone(UTC)


def spent_of(limit: Limit, amount: Amount) -> int:
    """What of an amount a limit counts as spent."""
    match limit.unit:
        case "messages":
            return amount.messages
        case "tokens":
            return amount.tokens
        case "usd":
            return amount.microusd
        case "turns":
            return 0


def reserved_of(limit: Limit, amount: Amount) -> int:
    """What of an amount a limit counts as held back."""
    match limit.unit:
        case "tokens":
            return amount.reserved_tokens
        case "usd":
            return amount.reserved_microusd
        case "messages" | "turns":
            return 0


def _likely_tokens(text: str) -> int:
    """How many tokens a text likely is: of rare scripts and emoji each byte may be one."""
    size = len(text.encode())
    rare = size - sum(character.isascii() for character in text)
    return rare + _tokens(size - rare)


def _tokens(size: int) -> int:
    """How many tokens so many bytes of text are, rather too many."""
    return math.ceil(size / _BYTES)


def tokens_of_files(sizes: Sequence[tuple[str, int]]) -> RequestTokens:
    """How many tokens files are for a model, by their media types and sizes, rather too many.

    Nothing bounds what a provider takes for a picture or a PDF: of those the most is what is likely.
    """
    text = tokens = 0
    for media_type, size in sizes:
        match file_kind(media_type):
            case "image":
                tokens += _PICTURE
            case "pdf":
                per_token, least, most = _PDF
                tokens += min(max(size // per_token, least), most)
            case _:
                text += size
    likely = tokens + _tokens(min(text, FILE_TEXT_LIMIT * _BYTES))
    # A character that is shown has at most four bytes.
    return RequestTokens(likely=likely, most=tokens + min(text, FILE_TEXT_LIMIT) * 4)


def _warned(levels: Sequence[_Level], charged: Amount) -> list[Warned]:
    """The budgets that a charge brought over a mark; the charge is in the levels already."""
    found: list[Warned] = []
    for level in levels:
        quota = level.rule.limit.quota
        before = level.spent - spent_of(level.rule.limit, charged)
        crossed = next((m for m in _WARNINGS if before * 100 < m * quota <= level.spent * 100), None)
        if crossed is not None:
            found.append(Warned(policy=level.rule.name, account=level.rule.account, percent=crossed))
    return found


def _standing(level: _Level, at: datetime) -> Standing:
    """How a rule stands behind what was asked of it."""
    rule = level.rule
    policy = Policy(
        name=rule.name,
        quota=rule.limit.quota,
        setting=_SETTINGS[rule.whose],
        key=rule.account,
        window=level.window.seconds if level.window else 0,
        counted=rule.limit.unit,
    )
    return Standing(
        policy=policy,
        remaining=level.free,
        reset=_wait(level, at),
        spent=level.spent * 100 // rule.limit.quota if level.window else None,
    )


def _wait(level: _Level, at: datetime) -> int:
    """Seconds until a window ends."""
    return max(1, math.ceil((level.window.ends - at).total_seconds())) if level.window else _TURNS_RESET


def _retry_after(level: _Level, at: datetime) -> int:
    """Seconds until there may be room: what is held back is freed when its call ends."""
    return _wait(level, at) if level.is_spent else min(_wait(level, at), _TURNS_RESET)


def _refusal(levels: Sequence[_Level], at: datetime, rates: Sequence[Standing] = ()) -> BudgetSpent:
    violated = [level for level in levels if level.violated]
    wait = max(_retry_after(level, at) for level in violated)
    return BudgetSpent(
        " ".join(_told(level) for level in violated) + f" Try again in {wait} s.",
        headers=headers([*rates, *(_standing(level, at) for level in levels)]) | {"Retry-After": str(wait)},
        extra={"retryAfterMs": wait * 1000, "violatedPolicies": [level.rule.name for level in violated]},
    )


def _told(level: _Level) -> str:
    """What is wrong with one limit, and the cure."""
    limit, setting = level.rule.limit, _SETTINGS[level.rule.whose]
    told = f"The limit is {limit.words} ({setting})"
    if limit.unit == "messages":
        return f"{told}."
    if limit.unit == "turns":
        return f"{told} that have no answer yet."
    if level.likely > limit.quota:
        return (
            f"{told}, less than the {limit.amount(level.likely)} that are held back for one model call; raise "
            "it, or lower TORANA_MAX_OUTPUT_TOKENS."
        )
    return (
        f"{told}; {limit.amount(level.free)} are left, and a model call may take {limit.amount(level.asked)}."
    )
