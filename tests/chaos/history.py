"""The observations of the clients of a cluster, and the check that the cluster has kept its promises."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

State = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]

Promise = Literal[
    "an acknowledged message is stored",
    "an acknowledged message ends",
    "a message becomes one turn",
    "a turn belongs to the session and the user of its message",
    "a session keeps the order of its messages",
    "a session answers its messages in order",
    "the history of a session has every answer once, in order",
    "an answer never changes",
    "an answer belongs to its message",
    "a tool that must not be repeated runs at most once",
    "only a cancelled turn is cancelled, and no turn fails",
    "a stream agrees with the stored answer",
    "a request is answered as documented",
]

#: The answer to a message whose tool may or may not have run.
UNKNOWN = "Its outcome is unknown"

_NAME = re.compile(r"\bs\d+n\d+\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a client. No other message has its name, which is its idempotency key."""

    name: str
    user: str
    channel: str
    content: str
    #: A part of the answer.
    answer: str
    #: Whether it calls a tool that must not be repeated.
    acts: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a turn."""

    state: State
    reply: str | None


@dataclass(slots=True, kw_only=True)
class History:
    """The observations of all clients, in order of time."""

    sent: dict[str, Message] = field(default_factory=dict[str, Message])
    #: The name of a message and the id of its turn, for each acknowledgement, also a repeated one.
    acknowledged: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: Each end of a turn that a client has seen.
    ended: list[tuple[str, Outcome]] = field(default_factory=list[tuple[str, Outcome]])
    #: The text of a turn that its event stream had at the end.
    streamed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    #: The turns that clients wanted to cancel.
    cancelled: set[str] = field(default_factory=set[str])
    #: Requests that were refused for a time, with their responses.
    refusals: list[str] = field(default_factory=list[str])
    #: Responses that no client expects.
    unexpected: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn in the database at the end."""

    id: str
    channel: str
    user: str
    seq: int
    content: str
    state: State
    reply: str | None
    #: The place of its end among all ends.
    ended: int


@dataclass(slots=True, kw_only=True)
class Stored:
    """The database and the effects of the tools at the end."""

    turns: list[StoredTurn]
    #: The turns in the histories of the sessions, in order.
    history: list[str]
    #: The number of effects of each message that acts.
    effects: Mapping[str, int]


class Violation(NamedTuple):
    """A promise that was not kept, and the evidence."""

    promise: Promise
    evidence: str


def check(history: History, stored: Stored) -> list[Violation]:
    """Return all violations."""
    check = _Check(history, stored)
    parts = (
        check.acceptance(),
        check.origins(),
        check.order(),
        check.outcomes(),
        check.answers(),
        check.effects(),
        check.streams(),
    )
    unexpected = [Violation("a request is answered as documented", text) for text in history.unexpected]
    return [violation for part in parts for violation in part] + unexpected


class _Check:
    """The promises, each checked by one method."""

    def __init__(self, history: History, stored: Stored) -> None:
        self._history = history
        self._stored = stored
        self._turns = {turn.id: turn for turn in stored.turns}
        #: The message of each acknowledged turn.
        self._messages = {turn: history.sent[name] for name, turn in history.acknowledged}

    def acceptance(self) -> Iterator[Violation]:
        turns: defaultdict[str, set[str]] = defaultdict(set)
        for name, turn in self._history.acknowledged:
            turns[name].add(turn)
        for name, ids in turns.items():
            if len(ids) > 1:
                yield Violation("a message becomes one turn", f"{name} became {sorted(ids)}")
        for turn, message in self._messages.items():
            if turn not in self._turns:
                yield Violation("an acknowledged message is stored", f"{turn} of {message.name} is missing")
            elif self._turns[turn].state in ("queued", "running", "waiting"):
                state = self._turns[turn].state
                yield Violation("an acknowledged message ends", f"{turn} of {message.name} is {state}")
        # A message whose acknowledgement was lost may be stored all the same.
        unknown = Counter(self._history.sent[name].content for name in self._history.sent.keys() - turns.keys())
        for turn in self._turns.values():
            if turn.id not in self._messages and not unknown[turn.content]:
                yield Violation(
                    "a message becomes one turn", f"{turn.id} is a second or an unknown turn: {turn}"
                )
            elif turn.id not in self._messages:
                unknown[turn.content] -= 1

    def origins(self) -> Iterator[Violation]:
        for turn, message in self._known():
            place = (turn.channel, turn.user, turn.content)
            if place != (message.channel, message.user, message.content):
                promise: Promise = "a turn belongs to the session and the user of its message"
                yield Violation(promise, f"{turn.id} of {message} is in {place}")

    def order(self) -> Iterator[Violation]:
        accepted: defaultdict[str, list[StoredTurn]] = defaultdict(list)
        for turn, message in self._known():
            accepted[message.channel].append(turn)
        for channel, turns in accepted.items():
            yield from _falls("a session keeps the order of its messages", channel, turns, "seq")
            completed = [turn for turn in turns if turn.state == "completed"]
            in_order = sorted(completed, key=lambda turn: turn.seq)
            yield from _falls("a session answers its messages in order", channel, in_order, "ended")
        yield from self._told_order()

    def _told_order(self) -> Iterator[Violation]:
        promise: Promise = "the history of a session has every answer once, in order"
        told = Counter(self._stored.history)
        for turn in self._turns.values():
            times = told[turn.id]
            if times > 1 or (times == 0 and turn.state == "completed"):
                yield Violation(promise, f"{turn.id} is there {times} times")
        last: dict[str, StoredTurn] = {}
        for id_ in self._stored.history:
            turn = self._turns[id_]
            before = last.setdefault(turn.channel, turn)
            if turn.seq < before.seq:
                yield Violation(promise, f"{turn.channel}: {turn.id} stands behind {before.id}")
            last[turn.channel] = turn

    def outcomes(self) -> Iterator[Violation]:
        for id_, seen in self._history.ended:
            turn = self._turns.get(id_)
            if turn is not None and seen != Outcome(turn.state, turn.reply):
                now = Outcome(turn.state, turn.reply)
                yield Violation("an answer never changes", f"{id_} ended as {seen}, and now is {now}")
        for turn in self._turns.values():
            if turn.state == "failed" or (turn.state == "cancelled" and turn.id not in self._history.cancelled):
                yield Violation("only a cancelled turn is cancelled, and no turn fails", str(turn))

    def answers(self) -> Iterator[Violation]:
        promise: Promise = "an answer belongs to its message"
        for turn, message in self._known():
            if turn.state != "completed":
                continue
            reply = turn.reply or ""
            if message.answer not in reply and not (message.acts and UNKNOWN in reply):
                yield Violation(promise, f"{turn.id} of {message} has the reply {reply!r}")
            if foreign := set(_NAME.findall(reply)) - {message.name}:
                yield Violation(promise, f"{turn.id} of {message} has a reply for {foreign}")

    def effects(self) -> Iterator[Violation]:
        promise: Promise = "a tool that must not be repeated runs at most once"
        for name, times in self._stored.effects.items():
            if times > 1:
                yield Violation(promise, f"the tool of {name} ran {times} times")
        for turn, message in self._known():
            is_known = turn.state == "completed" and UNKNOWN not in (turn.reply or "")
            if message.acts and is_known and not self._stored.effects.get(message.name):
                yield Violation("an answer belongs to its message", f"the tool of {message.name} has not run")

    def streams(self) -> Iterator[Violation]:
        for id_, text in self._history.streamed:
            turn = self._turns.get(id_)
            if turn is not None and turn.state == "completed" and text != turn.reply:
                yield Violation(
                    "a stream agrees with the stored answer", f"{id_}: {text!r} is not {turn.reply!r}"
                )

    def _known(self) -> Iterator[tuple[StoredTurn, Message]]:
        """Yield the stored turns of acknowledged messages, in the order of their acknowledgements."""
        for id_, message in self._messages.items():
            if id_ in self._turns:
                yield self._turns[id_], message


def _falls(
    promise: Promise, channel: str, turns: Sequence[StoredTurn], name: Literal["seq", "ended"]
) -> Iterator[Violation]:
    """Yield a violation for each turn whose number is not larger than that of the turn before it."""
    for before, turn in pairwise(turns):
        if getattr(turn, name) <= getattr(before, name):
            yield Violation(promise, f"{channel}: the {name} of {turn.id} is not after that of {before.id}")
