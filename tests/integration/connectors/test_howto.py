"""The connector in the guide to connectors works as the guide describes."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import torana
from torana.connectors.registry import Account, load, open_connector, read_accounts
from torana.connectors.runtime.hub import Connectors
from torana.connectors.runtime.ingress import Admission
from torana.limits.rates import MessageRates
from torana.messages import Turn, utc_now
from torana.people.pairing import Pairing
from torana.store.engine.database import Database
from torana.store.rows.audit import Act
from torana.testing import ScriptedModel
from torana.turns import Turns

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/howto/write-a-connector.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n# ([\w./]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with the files of the guide."""
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the guide's package, installed with its metadata."""
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    metadata = place / "myboard-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    return place


def test_connector_of_guide_has_under_60_lines() -> None:
    assert len(FILES["myboard/board.py"].splitlines()) < 60


@pytest.mark.long
def test_connector_of_guide_passes_contract(place: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    environ = {**os.environ, "PYTHONPATH": str(Path(torana.__file__).parents[1])}
    done = subprocess.run(command, cwd=place, env=environ, capture_output=True, text=True, check=False)
    told = re.search(r"(\d+) passed, (\d+) skipped", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert told
    assert int(told[1]) > 3 * int(told[2])


@pytest.mark.usefixtures("installed")
def test_connector_of_guide_is_found_by_name() -> None:
    (values,) = tomllib.loads(FILES["torana.toml"])["connectors"].values()
    kind = load("board")
    opened = open_connector(Account(name="board", kind="board", values=values))
    assert (kind.__module__, type(opened)) == ("myboard.board", kind)


@pytest.mark.usefixtures("installed")
async def test_approved_user_of_one_board_is_unknown_on_another(
    place: Path, database: Database, open_turns: Callable[..., Turns]
) -> None:
    pairing = Pairing(database=database, clock=utc_now)
    ended: list[Callable[[Turn], None]] = []

    def notify(turn: Turn) -> None:
        for listener in ended:
            listener(turn)

    turns = open_turns(ScriptedModel("welcome"), clock=utc_now, ended=notify)
    stand_in = runpy.run_path(str(place / "tests/test_board.py"))["BoardStandIn"]
    async with stand_in() as ours, stand_in() as theirs:
        theirs.token = "another"
        tables = {
            "ours": {**ours.settings(), "kind": "board"},
            "theirs": {**theirs.settings(), "kind": "board", "token": "another"},
        }
        hub = Connectors(
            accounts=read_accounts(tables, {}, reachable=False),
            admission=Admission(
                turns=turns, rates=MessageRates(per_user=0, overall=0), pairing=pairing, database=database
            ),
            holder="here",
        )
        ended.append(hub.on_turn_ended)
        await hub.start()
        try:
            await ours.say("hello")
            code = (await ours.shown(1))[0].text.split()[-1]
            act = Act(principal="operator", source="test", at=utc_now())
            await pairing.approve(code.rstrip("."), kinds=tables, act=act)
            welcomed = await ours.say("hello again")
            assert (await ours.shown(2))[1].text == "welcome"
            turn = await turns.reader.find_by_platform_message("ours", welcomed)
            assert turn is not None
            assert turn.user == "ours:ana"

            await theirs.say("hello")
            assert "You are not approved yet" in (await theirs.shown(1))[0].text
        finally:
            await hub.stop()


def test_guide_explains_global_ids() -> None:
    assert "**`global_ids`**" in PAGE
