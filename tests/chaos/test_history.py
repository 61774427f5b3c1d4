"""The check of histories finds each kind of broken promise, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.chaos.history import (
    UNKNOWN,
    History,
    Message,
    Outcome,
    Promise,
    State,
    Stored,
    StoredTurn,
    check,
)

Break = Callable[[History, Stored], object]


def message(channel: int, number: int) -> Message:
    name = f"s{channel}n{number}"
    return Message(
        name=name,
        user=f"u{channel}",
        channel=f"s{channel}",
        content=f'use note {{"text": "{name}"}}',
        answer=f"noted {name}",
        acts=True,
    )


def good() -> tuple[History, Stored]:
    """Return the history of two sessions with three messages each, of which the last is cancelled."""
    history, stored = History(), Stored(turns=[], history=[], effects={})
    effects: dict[str, int] = {}
    for channel in range(2):
        for number in range(3):
            sent = message(channel, number)
            state: State = "cancelled" if number == 2 else "completed"
            reply = None if number == 2 else sent.answer
            turn = f"t{channel}{number}"
            history.sent[sent.name] = sent
            history.acknowledged += [(sent.name, turn), (sent.name, turn)]
            history.ended.append((turn, Outcome(state, reply)))
            if reply is None:
                history.cancelled.add(turn)
            else:
                history.streamed.append((turn, reply))
                effects[sent.name] = 1
            stored.history.append(turn)
            stored.turns.append(
                StoredTurn(
                    id=turn,
                    channel=sent.channel,
                    user=sent.user,
                    seq=number + 1,
                    content=sent.content,
                    state=state,
                    reply=reply,
                    ended=len(stored.turns) + 1,
                )
            )
    stored.effects = effects
    return history, stored


def change(stored: Stored, id_: str, **values: object) -> None:
    """Change a stored turn."""
    stored.turns = [replace(turn, **values) if turn.id == id_ else turn for turn in stored.turns]


def change_answer(history: History, stored: Stored, reply: str) -> None:
    """Give a turn another reply, and let all clients see it."""
    change(stored, "t01", reply=reply)
    history.ended = [
        (id_, Outcome("completed", reply) if id_ == "t01" else seen) for id_, seen in history.ended
    ]
    history.streamed = [(id_, reply if id_ == "t01" else text) for id_, text in history.streamed]


def test_good_history_has_no_violation() -> None:
    assert check(*good()) == []


def test_message_without_acknowledgement_may_be_stored_or_not() -> None:
    history, stored = good()
    history.sent["s0n3"] = message(0, 3)
    assert check(history, stored) == []
    late = replace(stored.turns[-1], id="t03", channel="s0", user="u0", seq=4, content=message(0, 3).content)
    stored.turns.append(replace(late, state="completed", reply=message(0, 3).answer))
    stored.history.append("t03")
    assert check(history, stored) == []


def test_outcome_of_an_interrupted_tool_may_be_unknown() -> None:
    history, stored = good()
    change_answer(history, stored, f"{UNKNOWN}.")
    assert check(history, stored) == []


def lose(history: History, stored: Stored) -> None:
    stored.turns = [turn for turn in stored.turns if turn.id != "t01"]
    stored.history.remove("t01")


def double(history: History, stored: Stored) -> None:
    stored.turns.append(replace(stored.turns[1], id="again", seq=9, ended=9))
    stored.history.append("again")


def swap(history: History, stored: Stored) -> None:
    change(stored, "t00", seq=2)
    change(stored, "t01", seq=1)
    stored.history[:2] = ["t01", "t00"]


def fail(history: History, stored: Stored) -> None:
    change(stored, "t01", state="failed")
    history.ended[1] = ("t01", Outcome("failed", stored.turns[1].reply))


BROKEN: dict[str, tuple[Break, Promise]] = {
    "lost": (lose, "an acknowledged message is stored"),
    "never answered": (
        lambda _, stored: change(stored, "t01", state="running"),
        "an acknowledged message ends",
    ),
    "doubled": (double, "a message becomes one turn"),
    "repeated with another turn": (
        lambda history, _: history.acknowledged.append(("s0n1", "t00")),
        "a message becomes one turn",
    ),
    "swapped": (swap, "a session keeps the order of its messages"),
    "answered out of order": (
        lambda _, stored: change(stored, "t00", ended=7),
        "a session answers its messages in order",
    ),
    "told out of order": (
        lambda _, stored: stored.history.insert(0, stored.history.pop(1)),
        "the history of a session has every answer once, in order",
    ),
    "told twice": (
        lambda _, stored: stored.history.insert(1, "t01"),
        "the history of a session has every answer once, in order",
    ),
    "not told": (
        lambda _, stored: stored.history.remove("t01"),
        "the history of a session has every answer once, in order",
    ),
    "changed answer": (
        lambda history, _: history.ended.append(("t01", Outcome("completed", "noted s0n1 again"))),
        "an answer never changes",
    ),
    "changed end": (
        lambda history, _: history.ended.append(("t01", Outcome("cancelled", None))),
        "an answer never changes",
    ),
    "foreign session": (
        lambda _, stored: change(stored, "t01", channel="s1", seq=9, ended=9),
        "a turn belongs to the session and the user of its message",
    ),
    "foreign user": (
        lambda _, stored: change(stored, "t01", user="u1"),
        "a turn belongs to the session and the user of its message",
    ),
    "foreign answer": (
        lambda history, stored: change_answer(history, stored, "noted s1n0"),
        "an answer belongs to its message",
    ),
    "answer with a foreign part": (
        lambda history, stored: change_answer(history, stored, "noted s0n1 and s1n0"),
        "an answer belongs to its message",
    ),
    "effect missing": (
        lambda _, stored: setattr(stored, "effects", {**stored.effects, "s0n1": 0}),
        "an answer belongs to its message",
    ),
    "effect doubled": (
        lambda _, stored: setattr(stored, "effects", {**stored.effects, "s0n1": 2}),
        "a tool that must not be repeated runs at most once",
    ),
    "cancelled for no reason": (
        lambda history, _: history.cancelled.remove("t02"),
        "only a cancelled turn is cancelled, and no turn fails",
    ),
    "failed": (fail, "only a cancelled turn is cancelled, and no turn fails"),
    "stream with less text": (
        lambda history, _: history.streamed.append(("t01", "noted ")),
        "a stream agrees with the stored answer",
    ),
    "unexpected response": (
        lambda history, _: history.unexpected.append("POST /message: 500"),
        "a request is answered as documented",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_promise_is_found(kind: str) -> None:
    history, stored = good()
    plant, promise = BROKEN[kind]
    plant(history, stored)

    found = {violation.promise for violation in check(history, stored)}
    assert promise in found
