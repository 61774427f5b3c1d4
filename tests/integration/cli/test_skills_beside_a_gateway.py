"""``torana skills`` while a gateway runs: the gateway receives what the command fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.unit.skills.archives import SKILL

from torana.store.engine.lock import read_address

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

OPERATOR = {"TORANA_GATEWAY_TOKEN": "a-token-of-more-than-sixteen-characters"}


def _loaded(place: Place) -> list[str]:
    headers = {"Authorization": f"Bearer {OPERATOR['TORANA_GATEWAY_TOKEN']}"}
    url = f"{read_address(place.data_dir)}/skills"
    answer = httpx2.get(url, headers=headers, timeout=30, trust_env=False)
    return [skill["slug"] for skill in answer.json()]


def _source(place: Place) -> Path:
    folder = place.path / "tea"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL)
    return folder


def test_skill_is_installed_updated_and_removed_beside_a_gateway(place: Place) -> None:
    place.serve(**OPERATOR)
    source = _source(place)
    code, out, err = place.run("skills", "install", str(source), **OPERATOR)
    assert (code, err, out.splitlines()[0]) == (0, "", "tea is in quarantine")
    assert "tea" not in _loaded(place)
    assert place.run("skills", "approve", "tea", "--yes", **OPERATOR) == (0, "tea is active\n", "")
    assert "tea" in _loaded(place)
    (source / "SKILL.md").write_text(SKILL + "Add milk.\n")
    code, out, _ = place.run("skills", "update", "tea", "--json", **OPERATOR)
    assert (code, json.loads(out)["origin"]) == (0, str(source))
    assert "Add milk." in json.loads(out)["newer"]["instructions"]
    assert place.run("skills", "disable", "tea", **OPERATOR)[0] == 0
    assert "tea" not in _loaded(place)
    assert place.run("skills", "remove", "tea", **OPERATOR) == (0, "tea is removed\n", "")
    entries = json.loads(place.run("audit", "--json")[1])["items"]
    assert {(entry["principal"], entry["source"]) for entry in entries} == {("operator", "127.0.0.1")}


def test_approval_warns_about_a_secret_that_the_gateway_lacks(place: Place) -> None:
    place.serve(**OPERATOR)
    front = "name: tea\ndescription: Brews tea.\nmetadata: {torana: {secrets: [KETTLE_KEY]}}"
    (_source(place) / "SKILL.md").write_text(f"---\n{front}\n---\n")
    place.run("skills", "install", str(place.path / "tea"), **OPERATOR)
    (place.path / ".env").write_text("KETTLE_KEY=a-key\n")
    assert place.run("skills", "approve", "tea", "--yes", **OPERATOR) == (
        0,
        "tea is active\n",
        "warning: the secret KETTLE_KEY is not set; put it into .env and restart the gateway\n",
    )


def test_refusal_of_the_gateway_is_one_line(place: Place) -> None:
    place.serve(**OPERATOR)
    source = _source(place)
    (source / "SKILL.md").write_text("no front matter")
    code, out, err = place.run("skills", "install", str(source), **OPERATOR)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "front matter" in err


def test_installation_needs_the_gateways_token(place: Place) -> None:
    place.serve(**OPERATOR)
    code, _, err = place.run("skills", "install", str(_source(place)))
    assert (code, "set TORANA_GATEWAY_TOKEN" in err) == (1, True)
