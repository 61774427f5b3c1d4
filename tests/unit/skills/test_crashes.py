"""A crash during an installation leaves a complete skill or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROOT

import torana
from torana.skills import CORE_DIR, Skills, parse_skill
from torana.skills.grants import InstalledSkills
from torana.skills.installation.staging import sweep
from torana.store.rows.skills import read_decisions

#: Installs a skill or its new version, and exits when it reaches the named function.
DYING = """
import asyncio, importlib, os, sys
from pathlib import Path
from tests.unit.skills.test_changes import ACT, NEEDY_TEA, Place
from tests.unit.skills.archives import tarred
from torana.store.engine.database import Database

place, where, newer = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "newer"

async def main():
    here = Place(place, Database(path=place / "torana.db"))
    await here.changes.start()
    if newer:
        await here.install_and_approve()
    module, _, name = where.rpartition(".")
    setattr(importlib.import_module(module), name, lambda *args, **more: os._exit(9))
    archive = tarred({**NEEDY_TEA, "tea/new": "x"})
    if newer:
        await here.changes.renew("tea", archive, act=ACT)
    else:
        await here.changes.take_in(archive, origin="test", act=ACT)

asyncio.run(main())
"""


@pytest.mark.parametrize("newer", ["newer", pytest.param("first", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("torana.skills.installation.staging.unpack", False),
        ("torana.skills.installation.staging.parse_skill", False),
        ("torana.skills.installation.staging.replace", False),  # after the rename
        ("torana.store.rows.skills.put", False),
        ("torana.store.rows.skills.record", False),
        ("torana.skills.installation.installer.sweep", True),
    ],
)
def test_crash_at_any_step_leaves_a_complete_skill_or_none(
    path: Path, where: str, kept: bool, newer: str
) -> None:
    place = path.parent
    command = [sys.executable, "-c", DYING, str(place), where, newer]
    source = Path(torana.__file__).parents[1]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": f"{source}:{ROOT}"}, check=False, timeout=60)
    assert done.returncode == 9
    decided = read_decisions(path)
    named = {name for decision in decided.values() for name in decision.folders}
    assert len(named) == (newer == "newer") + kept
    installed = InstalledSkills(root=place / "installed", decided=decided)
    skills = Skills(core_dir=CORE_DIR, user_dir=None, environ={}, installed=installed)
    assert (skills.catalogue().get("tea") is not None) == (newer == "newer")
    for name in named:
        parse_skill(place / "installed" / name / "tea", source="user")
    sweep(place / "installed", keep=named)
    assert {entry.name for entry in (place / "installed").iterdir()} == named
