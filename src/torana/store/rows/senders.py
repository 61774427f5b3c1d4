"""Rows of senders: pairing requests and the operator's decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from torana.store.engine.tables import senders
from torana.store.rows.audit import Act, record

SenderState = Literal["pending", "approved", "denied"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A sender who asked for access, identified by the connector's kind and the platform's id."""

    kind: str
    sender: str
    #: The account that was asked, and the address of the reply (JSON).
    account: str
    place: str
    name: str

    @property
    def key(self) -> str:
        """The sender's id with the connector's kind, such as `telegram:12345`."""
        return f"{self.kind}:{self.sender}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderRecord:
    """A sender's request, and the operator's decision about it.

    ``user`` is set only in the state ``approved``. ``codes`` is the number of pairing codes that were sent.
    """

    asker: Asker
    state: SenderState
    user: str | None
    codes: int
    asked_at: datetime
    decided_at: datetime | None


def get(connection: Connection, kind: str, sender: str) -> SenderRecord | None:
    """Return the stored sender, or None."""
    row = connection.execute(_GET, {"kind": kind, "sender": sender}).mappings().first()
    return None if row is None else _to_record(row)


def approved_ids(connection: Connection, kind: str, most: int) -> list[str]:
    """Return up to ``most`` ids of approved senders of a kind, latest first."""
    let_in = (senders.c.kind == kind) & (senders.c.state == "approved")
    latest = sa.select(senders.c.sender).where(let_in).order_by(senders.c.decided_at.desc(), senders.c.sender)
    return list(connection.execute(latest.limit(most)).scalars())


def count_pending(connection: Connection, account: str, since: datetime, until: datetime) -> int:
    """Return the number of pending senders of an account who asked between these times."""
    waits = (senders.c.state == "pending") & (senders.c.account == account) & _asked_between(since, until)
    return int(connection.execute(sa.select(sa.func.count()).where(waits)).scalar_one())


def ask(connection: Connection, asker: Asker, *, code: bytes, codes: int, at: datetime) -> None:
    """Store a sender's request with the digest of its code; it replaces an earlier one."""
    connection.execute(_DELETE, _key(asker))
    request = {"state": "pending", "code": code, "codes": codes, "asked_at": at}
    connection.execute(sa.insert(senders), asdict(asker) | request)


def by_code(connection: Connection, code: bytes, since: datetime, until: datetime) -> SenderRecord | None:
    """Return the pending sender who received the code with that digest between these times."""
    row = (
        connection.execute(
            sa.select(senders).where(
                senders.c.code == code, senders.c.state == "pending", _asked_between(since, until)
            )
        )
        .mappings()
        .first()
    )
    return None if row is None else _to_record(row)


def decide(
    connection: Connection, asker: Asker, state: Literal["approved", "denied"], *, user: str | None, act: Act
) -> SenderRecord:
    """Store the operator's decision, which may be changed later, and delete the pairing code.

    A denied sender keeps its user, so that an erasure of the user finds it.
    """
    values: dict[str, Any] = {"state": state, "code": None, "decided_at": act.at}
    if state == "approved":
        values["user"] = user
    if connection.execute(_DECIDE, _key(asker) | values).rowcount == 0:
        connection.execute(sa.insert(senders), asdict(asker) | {"codes": 0, "asked_at": act.at} | values)
    record(connection, act, f"sender.{state}", asker.key, user=user)
    found = get(connection, asker.kind, asker.sender)
    assert found is not None  # noqa: S101 - it was written just now
    return found


def list_senders(connection: Connection, *, limit: int) -> list[SenderRecord]:
    """Return the senders, newest first."""
    rows = connection.execute(
        sa.select(senders).order_by(senders.c.asked_at.desc(), senders.c.sender).limit(limit)
    )
    return [_to_record(row) for row in rows.mappings()]


def of_user(user: str) -> sa.ColumnElement[bool]:
    """Return the condition for a user's rows, by the approved user or by the sender's own id."""
    return (senders.c.user == user) | (senders.c.kind + ":" + senders.c.sender == user)


def _asked_between(since: datetime, until: datetime) -> sa.ColumnElement[bool]:
    return (senders.c.asked_at > since) & (senders.c.asked_at < until)


def _key(asker: Asker) -> dict[str, str]:
    return {"b_kind": asker.kind, "b_sender": asker.sender}


def _to_record(row: RowMapping) -> SenderRecord:
    values: Mapping[str, Any] = dict(row)
    rest = {name: values[name] for name in ("state", "codes", "asked_at", "decided_at")}
    user = values["user"] if values["state"] == "approved" else None
    return SenderRecord(asker=Asker(**{one.name: values[one.name] for one in fields(Asker)}), user=user, **rest)


_GET = sa.select(senders).where(
    senders.c.kind == sa.bindparam("kind"), senders.c.sender == sa.bindparam("sender")
)
_this = (senders.c.kind == sa.bindparam("b_kind")) & (senders.c.sender == sa.bindparam("b_sender"))
_DELETE = sa.delete(senders).where(_this)
_DECIDE = sa.update(senders).where(_this)
