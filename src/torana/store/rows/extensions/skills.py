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
from torana.store.rows.extensions import change_counts, skill_archives

SkillState = Literal["quarantine", "active", "disabled"]


class DecisionChanged(Exception):
    """The decision has changed since it was read."""


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


def put(
    connection: Connection,
    decision: SkillDecision,
    *,
    before: SkillDecision | None,
    act: Act,
    action: str,
    archive: tuple[str, bytes] | None = None,
    **detail: Any,
) -> None:
    """Store a decision in place of ``before``, and record the action.

    ``archive`` is a folder of the decision and the archive of its files. Raises ``DecisionChanged``.
    """
    _check_unchanged(connection, decision.slug, before)
    values = asdict(decision)
    statement = insert(skills).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["slug"], set_=values))
    if archive is not None:
        skill_archives.put(connection, *archive)
    _record_change(connection)
    record(connection, act, action, decision.slug, digest=decision.digest, **detail)


def remove(connection: Connection, before: SkillDecision, *, act: Act) -> None:
    """Delete a skill's row and its archives, and record the action. Raises ``DecisionChanged``."""
    _check_unchanged(connection, before.slug, before)
    connection.execute(sa.delete(skills).where(skills.c.slug == before.slug))
    _record_change(connection)
    record(connection, act, "skill.remove", before.slug)


def _check_unchanged(connection: Connection, slug: str, before: SkillDecision | None) -> None:
    row = connection.execute(sa.select(skills).where(skills.c.slug == slug)).mappings().first()
    if (None if row is None else SkillDecision(**row)) != before:
        raise DecisionChanged


def _record_change(connection: Connection) -> None:
    """Count the change, so that other replicas notice it, and delete the archives that no skill needs."""
    folders = {folder for decision in list_decisions(connection).values() for folder in decision.folders}
    skill_archives.delete_all_but(connection, folders)
    change_counts.count(connection, "skills")


def read_decisions(place: DatabasePlace) -> dict[str, SkillDecision]:
    """Return all decisions; none if the database is missing or has no table of skills.

    Raises ``OperatorError`` if it cannot be read.
    """
    return place.read(_list_if_table_exists) if place.exists() else {}


def _list_if_table_exists(connection: Connection) -> dict[str, SkillDecision]:
    return list_decisions(connection) if sa.inspect(connection).has_table("skills") else {}
