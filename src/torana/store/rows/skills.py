"""Rows of skills: installed skills and the operator's decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from torana.store.engine.dialects import insert
from torana.store.engine.places import DatabasePlace
from torana.store.engine.tables import skills
from torana.store.rows.audit import Act, record

SkillState = Literal["quarantine", "active", "disabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDecision:
    """The decision on a skill. A skill placed by hand has no ``folder`` and no ``origin``."""

    slug: str
    #: The origin, and the skill's folder in it.
    origin: str | None = None
    subfolder: str | None = None
    #: The skill's directory in the directory of installed skills.
    folder: str | None = None
    #: The digest of the files that the decision applies to.
    digest: str
    state: SkillState
    #: The resources that its scripts may use, as JSON; None means no resources.
    granted: str | None = None
    installed_at: datetime
    decided_by: str | None = None
    decided_at: datetime | None = None
    #: A newer version, in quarantine.
    next_folder: str | None = None
    next_digest: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the directories that the skill needs."""
        return tuple(folder for folder in (self.folder, self.next_folder) if folder is not None)


def list_decisions(connection: Connection) -> dict[str, SkillDecision]:
    """Return all decisions by slug, in alphabetical order."""
    rows = connection.execute(sa.select(skills).order_by(skills.c.slug)).mappings()
    return {row["slug"]: SkillDecision(**row) for row in rows}


def put(connection: Connection, decision: SkillDecision, *, act: Act, action: str, **detail: Any) -> None:
    """Store the state of a skill, and record the action."""
    values = asdict(decision)
    statement = insert(skills).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["slug"], set_=values))
    record(connection, act, action, decision.slug, digest=decision.digest, **detail)


def remove(connection: Connection, slug: str, *, act: Act) -> None:
    """Delete a skill's row, and record the action."""
    connection.execute(sa.delete(skills).where(skills.c.slug == slug))
    record(connection, act, "skill.remove", slug)


def read_decisions(place: DatabasePlace) -> dict[str, SkillDecision]:
    """Return all decisions; none if the database is missing or has no table of skills.

    Raises ``OperatorError`` if it cannot be read.
    """
    return place.read(_list_if_table_exists) if place.exists() else {}


def _list_if_table_exists(connection: Connection) -> dict[str, SkillDecision]:
    return list_decisions(connection) if sa.inspect(connection).has_table("skills") else {}
