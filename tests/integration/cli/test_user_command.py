"""Export and erasure with the program in a separate process, checked on every byte on disk."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import httpx2
import pytest
from tests.waiting import PATIENCE

from torana.store.engine.lock import read_address
from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

#: A text of Ana that must be nowhere afterwards in any form, and a text of Ben that stays.
MARKER = "zanzibarium"
OTHER = "kilimanjarium"

TOOLS = '''
from dawdling import dawdle
from torana.tools import tool

@tool(idempotent=True)
async def hold(text: str) -> str:
    """Never end."""
    return await dawdle()

@tool(idempotent=True)
def echo(text: str) -> str:
    """Say it again."""
    return f"echo {text}"

@tool(idempotent=True)
def explode(text: str) -> str:
    """Fail on a bug whose words quote what was said."""
    raise RuntimeError(f"cannot {text}")
'''

Command = tuple[int, str, str]


def act(request: ChatRequest) -> Answer:
    """Call the tool that the message begins with, and repeat its result."""
    if request.results:
        return "\n".join(request.results)
    word, _, text = request.text.partition(" ")
    if word == "remember":
        return [Call("remember", {"text": text, "subject": "code"})]
    if word == "save":
        return [Call("write_file", {"name": "notes.txt", "text": text})]
    if word == "exceed":
        return [Call("echo", {"text": text})] * 4
    return [Call(word, {"text": text})] if word in ("hold", "echo", "explode") else f"You said: {request.text}"


class Client:
    """A client of the gateway of a place, and of its commands."""

    def __init__(self, place: Place, model: OpenAIStandIn, settings: dict[str, str]) -> None:
        self._place = place
        self.model = model
        self._settings = settings
        self.gateway = place.serve(**settings)
        self.url = f"{read_address(place.data_dir)}"

    def say(self, content: str, *, channel: str, user: str = "ana", **headers: str) -> dict[str, Any]:
        body = {"content": content, "channelId": channel, "userId": user}
        answer = httpx2.post(f"{self.url}/message", json=body, headers=headers, timeout=30, trust_env=False)
        return answer.json()

    def run(self, *arguments: str, given: str = "") -> Command:
        return self._place.run(*arguments, given=given, **self._settings)


@pytest.fixture
def client(place: Place) -> Iterator[Client]:
    (place.path / "tricks.py").write_text(TOOLS)
    with OpenAIStandIn(reply=act) as model:
        yield Client(
            place,
            model,
            {
                "TORANA_TOOLS": "tricks:hold,tricks:echo,tricks:explode",
                "TORANA_TURN_TOOL_CALLS": "3",
                "TORANA_MODEL": "openai-chat:x",
                "TORANA_MODEL_BASE_URL": model.url,
                "TORANA_RATE_PER_USER": "0",
                "TORANA_RATE_GLOBAL": "0",
            },
        )


def files_with(place: Place, *needles: bytes) -> set[str]:
    """Return the files of the data directory that contain one of the texts, ignoring case."""
    files = [file for file in place.data_dir.rglob("*") if file.is_file()]
    found = {file for file in files for needle in needles if needle.lower() in file.read_bytes().lower()}
    return {str(file.relative_to(place.data_dir)) for file in found}


def leave_traces(place: Place, client: Client) -> None:
    """Write Ana's marker to every place that a text of hers can reach."""
    client.say(f"my code is {MARKER}", channel="room", **{"Idempotency-Key": MARKER})
    client.say(f"and mine is {OTHER}", channel="room", user="ben")
    for number in (1, 2):  # the second supersedes the first
        client.say(f"remember the code {MARKER}{number}", channel="home")
    assert client.say(f"echo {MARKER}", channel="home")["reply"] == f"echo {MARKER}"
    assert client.say(f"save {MARKER}", channel="home")["reply"] == "Saved notes.txt (11 bytes)."
    client.say(f"explode {MARKER}", channel="home")
    assert client.say(f"exceed {MARKER}", channel="home")["code"] == "turn_limit"
    later = {"Prefer": "respond-async"}
    client.say(f"hold {MARKER}", channel=f"cut {MARKER}", **later)
    place.gate.reached()
    cut = client.say(f"{MARKER} waits", channel=f"cut {MARKER}", **later)
    httpx2.post(f"{client.url}/v1/turns/{cut['id']}/cancel", trust_env=False, timeout=PATIENCE)
    client.say(f"{MARKER} waits too", channel=f"cut {MARKER}", **later)
    with closing(sqlite3.connect(place.data_dir / "torana.db", timeout=10)) as connection, connection:
        connection.execute("UPDATE sessions SET title = ?, summary = ?", (MARKER, MARKER))
        connection.execute(
            "INSERT INTO tokens (id, owner, user, label, digest, scopes, created_at) "
            "VALUES ('tok_1', 'user:ana', 'ana', ?, x'00', 'message', '2026-03-02 09:30:00')",
            (MARKER,),
        )
    (place.data_dir / "torana.db.before-0003").write_text(f"a copy with {MARKER}")


def test_erasure_removes_the_text_from_every_file(place: Place, client: Client) -> None:
    leave_traces(place, client)
    before = files_with(place, MARKER.encode())
    assert {"torana.db-wal", "torana.db.before-0003", "logs/torana.log"} <= before

    code, out, err = client.run("user", "erase", "ana", "--yes", "--json")

    assert (code, err) == (0, "")
    assert json.loads(out)["counts"] == {
        "sessions": 2,
        "turns": 10,
        "memories": 2,
        "schedules": 0,
        "keys": 1,
        "tokensRevoked": 1,
        "files": 1,
        "copies": 1,
    }
    needles = (MARKER.encode(), hashlib.sha256(MARKER.encode()).hexdigest().encode())
    assert files_with(place, *needles) == set()
    client.say("what did we say?", channel="room", user="ben")
    shown = str(client.model.requests[-1].messages)
    assert OTHER in shown
    assert MARKER not in shown
    client.gateway.send_signal(signal.SIGTERM)
    assert client.gateway.wait(30) == 0
    assert files_with(place, *needles) == set()
    assert "torana.db" in files_with(place, OTHER.encode())


def test_erasure_keeps_log_lines_of_other_users(place: Place, client: Client) -> None:
    client.say(f"explode {MARKER}", channel="a")
    client.say(f"explode {OTHER}", channel="b", user="ben")
    assert client.run("user", "erase", "ana", "--yes")[0] == 0
    client.say("explode again", channel="b", user="ben")
    log = (place.data_dir / "logs" / "torana.log").read_text()
    assert MARKER not in log
    assert f"cannot {OTHER}" in log
    assert "cannot again" in log


def test_export_is_complete_and_private(place: Place, client: Client) -> None:
    client.say(f"echo {MARKER}", channel="a", user="ä na")
    client.say(f"save {MARKER}", channel="a", user="ä na")
    # Another user of a shared directory can guess names.
    (place.path / "mine").write_text("mine")
    (place.path / "ana.zip.part").symlink_to("mine")
    code, out, err = client.run("user", "export", "ä na", "-o", "ana.zip")
    assert (code, err) == (0, "")
    assert (place.path / "mine").read_text() == "mine"
    assert out.startswith("ana.zip (")
    assert out.endswith(
        "): sessions 1, turns 2, files 0, workspace 1, memories 0, schedules 0, tokens 0, approvals 0, "
        "accounts 0\n"
    )
    file = place.path / "ana.zip"
    assert file.stat().st_mode & 0o777 == 0o600
    with ZipFile(file) as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read("manifest.json"))["counts"]["turns"] == 2
        assert archive.read("workspace/notes.txt") == MARKER.encode()
    assert {file.name for file in place.path.glob("*ana.zip*")} == {"ana.zip", "ana.zip.part"}
    code, _, err = client.run("user", "export", "ben", "-o", "ana.zip")
    assert (code, err) == (1, "ana.zip already exists; name another file\n")


def test_export_of_an_unknown_user_writes_no_file(place: Place, client: Client) -> None:
    client.say("echo this", channel="a", user="ana")
    code, out, err = client.run("user", "export", "anna", "-o", "anna.zip")
    assert (code, out) == (1, "")
    assert err == "there is no data of a user 'anna'; check the spelling of the id\n"
    assert not list(place.path.glob("anna.zip*"))
    code, out, err = client.run("user", "export", "ana", "-o", "ana.zip", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["counts"]["turns"] == 1


def test_erasure_asks_for_confirmation(client: Client) -> None:
    client.say("echo this", channel="a")
    code, out, _ = client.run("user", "erase", "ana", given="n\n")
    assert code == 1
    assert "'ana'" in out
    _, out, err = client.run("user", "erase", "ana", "--json", given="y\n")
    assert json.loads(out)["counts"]["turns"] == 1
    assert "'ana'" in err


def test_receipt_of_an_erasure_is_readable(client: Client) -> None:
    client.say("echo this", channel="a")
    code, out, err = client.run("user", "erase", "ana", "--yes")
    assert (code, err) == (0, "")
    assert out.startswith("Erased 'ana' at ")
    assert ": sessions 1, turns 1\n\nKept:\n- " in out
    assert "\n\nOut of reach of the gateway:\n- " in out


def test_commands_without_a_gateway_report_it(place: Place) -> None:
    for arguments in (("user", "erase", "ana", "--yes"), ("user", "export", "ana", "-o", "x.zip")):
        code, out, err = place.run(*arguments)
        assert (code, out) == (1, "")
        assert "torana serve" in err
    assert not (place.path / "x.zip").exists()
