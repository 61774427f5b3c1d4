"""A process that dies while it installs leaves a skill that is whole, or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import ROOT

import torana
from torana.skills import CORE_DIR, Skills, parse_skill
from torana.skills.installed import InstalledSkills
from torana.skills.staging import sweep
from torana.store.skills import read_decisions

#: Installs a skill, or its newer version, and dies when it comes to the function that is named.
DYING = """
import asyncio, importlib, os, sys
from pathlib import Path
from tests.unit.skills.test_changes import ACT, NEEDY_TEA, Place
from tests.unit.skills.archives import tarred
from torana.store.database import Database

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


@pytest.mark.parametrize("newer", ["newer", "first"])
@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("torana.skills.staging.unpack", False),
        ("torana.skills.staging.parse_skill", False),
        ("torana.skills.staging.replace", False),  # behind the rename
        ("torana.store.skills.put", False),
        ("torana.store.skills.record", False),
        ("torana.skills.changes.sweep", True),
    ],
)
def test_whenever_it_dies(path: Path, where: str, kept: bool, newer: str) -> None:
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
