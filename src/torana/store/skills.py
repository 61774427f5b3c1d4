"""Rows of skills: what was installed, and what the operator decided about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import Connection

from torana.store.audit import Act, record
from torana.store.reading import read_database
from torana.store.tables import skills

SkillState = Literal["quarantine", "active", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """How a skill stands. One that was placed by hand has no ``folder`` and no ``origin``."""

    slug: str
    #: Where it came from, and the folder of it there.
    origin: str | None = None
    subfolder: str | None = None
    #: The directory below that of the installed skills which holds its own folder.
    folder: str | None = None
    #: Of the files that the decision is about.
    digest: str
    state: SkillState
    #: What its scripts may use, as JSON; None is nothing at all.
    granted: str | None = None
    installed_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    #: A newer version, in quarantine.
    next_folder: str | None = None
    next_digest: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """The directories that it needs."""
        return tuple(folder for folder in (self.folder, self.next_folder) if folder is not None)


def listed(connection: Connection) -> dict[str, Decision]:
    """All of them, by their slugs, in that order."""
    rows = connection.execute(sa.select(skills).order_by(skills.c.slug)).mappings()
    return {row["slug"]: Decision(**row) for row in rows}


def put(connection: Connection, decision: Decision, *, act: Act, action: str, **detail: Any) -> None:
    """Write down how a skill stands from now on, and the act that made it so."""
    values = asdict(decision)
    statement = insert(skills).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["slug"], set_=values))
    record(connection, act, action, decision.slug, digest=decision.digest, **detail)


def remove(connection: Connection, slug: str, *, act: Act) -> None:
    """Forget a skill; that it was removed is written down."""
    connection.execute(sa.delete(skills).where(skills.c.slug == slug))
    record(connection, act, "skill.remove", slug)


def read_decisions(path: Path) -> dict[str, Decision]:
    """All of them, from a database that may be missing or of before there were any.

    Raises ``DataDirUnusable`` for one that cannot be read.
    """
    return read_database(path, _listed_if_any) if path.exists() else {}


def _listed_if_any(connection: Connection) -> dict[str, Decision]:
    return listed(connection) if sa.inspect(connection).has_table("skills") else {}
