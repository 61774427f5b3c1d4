"""A crash during an installation leaves a complete skill or none."""

from __future__ import annotations

import asyncio
import importlib
import os
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
from tests.unit.skills.archives import tarred
from tests.unit.skills.test_changes import ACT, NEEDY_TEA, Place

from torana.skills import CORE_DIR, Skills, parse_skill
from torana.skills.grants import InstalledSkills
from torana.skills.installation.staging import sweep
from torana.store.engine.places import SqlitePlace
from torana.store.engine.sqlite import SqliteDatabase
from torana.store.rows.extensions.skills import read_decisions


def _exit(*_arguments: object, **_options: object) -> None:
    os._exit(9)


async def install_until(place: Path, where: str, newer: str) -> None:
    """Install a skill or its new version, and exit with 9 on reaching the named function."""
    here = Place(place, SqliteDatabase(path=place / "torana.db"))
    await here.changes.decisions.start()
    if newer == "newer":
        await here.install_and_approve()
    module, _, name = where.rpartition(".")
    setattr(importlib.import_module(module), name, _exit)
    archive = tarred({**NEEDY_TEA, "tea/new": "x"})
    if newer == "newer":
        await here.changes.update_from_archive("tea", archive, act=ACT)
    else:
        await here.changes.install_archive(archive, origin="test", act=ACT)


def die(place: Path, where: str, newer: str) -> None:
    """Run ``install_until``, in a process of its own."""
    asyncio.run(install_until(place, where, newer))


@pytest.mark.parametrize("newer", ["newer", pytest.param("first", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("torana.skills.installation.staging.unpack", False),
        ("torana.skills.installation.staging.parse_skill", False),
        ("torana.skills.installation.staging.replace", False),  # after the rename
        ("torana.store.rows.extensions.skills.put", False),
        ("torana.store.rows.extensions.skills.record", False),
        ("torana.skills.installation.decisions.sweep", True),
    ],
)
def test_crash_at_any_step_leaves_a_complete_skill_or_none(
    path: Path, where: str, kept: bool, newer: str, processes: ForkServerContext
) -> None:
    place = path.parent
    process = processes.Process(target=die, args=(place, where, newer))
    process.start()
    process.join()
    assert process.exitcode == 9
    decided = read_decisions(SqlitePlace(path.parent))
    named = {name for decision in decided.values() for name in decision.folders}
    assert len(named) == (newer == "newer") + kept
    installed = InstalledSkills(root=place / "installed", decided=decided)
    skills = Skills(core_dir=CORE_DIR, user_dir=None, environ={}, installed=installed)
    assert (skills.catalogue().get("tea") is not None) == (newer == "newer")
    for name in named:
        parse_skill(place / "installed" / name / "tea", source="user")
    sweep(place / "installed", keep=named)
    assert {entry.name for entry in (place / "installed").iterdir()} == named
