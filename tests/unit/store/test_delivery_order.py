"""The order of deliveries in one chat."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.engine import Connection, Engine

from torana.store.rows import deliveries as rows
from torana.store.rows.deliveries import Delivery

AT = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


def add(connection: Connection, text: str) -> Delivery:
    rows.add_notice(connection, "home", "home/ana", "{}", text=text, at=AT)
    return rows.list_deliveries(connection, "gateway", limit=1)[0]


def send_all(connection: Connection) -> list[str]:
    sent: list[str] = []
    while heads := rows.heads(connection, "home", AT):
        (head,) = heads
        sent.append(head.text)
        rows.record_sent(connection, head.number, f"shown-{head.number}", AT)
    return sent


def test_parts_of_a_reply_are_sent_before_the_next_reply(engine: Engine) -> None:
    with engine.begin() as connection:
        long, _ = add(connection, "one two three"), add(connection, "next")

        # The rows of the second and third part get higher numbers than the next reply.
        rows.cut(connection, long, ["one", "two", "three"], "")

        assert send_all(connection) == ["one", "two", "three", "next"]


def test_parts_of_two_replies_do_not_mix(engine: Engine) -> None:
    with engine.begin() as connection:
        first, second = add(connection, "a b"), add(connection, "c d")
        rows.cut(connection, second, ["c", "d"], "")
        rows.cut(connection, first, ["a", "b"], "")

        assert send_all(connection) == ["a", "b", "c", "d"]
