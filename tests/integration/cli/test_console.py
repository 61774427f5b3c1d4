"""The log of ``torana serve`` and the tables of other commands on a terminal."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from rich.cells import cell_len
from tests.integration.cli.terminal import command_in
from tests.standins.servers import free_port
from tests.waiting import PATIENCE, eventually

from torana.store.engine.lock import read_address

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

IDS = re.compile(r"(?:turn|ses)_[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-")


def test_console_shows_one_line_for_each_message_and_the_file_all_ids(place: Place) -> None:
    with command_in(place, "serve", "--port", str(free_port())) as terminal:
        terminal.expect("torana setup\n")
        with httpx2.Client(
            base_url=read_address(place.data_dir) or "", trust_env=False, timeout=PATIENCE
        ) as client:
            for content in ("hello", "what is 2 + 2", "what is 3 + 3"):
                answer = client.post("/message", json={"content": content, "channelId": "kitchen"})
                answer.raise_for_status()
            refused = client.get("/no/such/path")
            assert refused.status_code == 404
        log_file = place.data_dir / "logs" / "torana.log"
        eventually(lambda: "/no/such/path" in log_file.read_text())  # it is logged after the response
        terminal.type("\x03")
        assert terminal.exit_code() == 0
        shown = terminal.text.splitlines()

    *messages, missing = (line for line in shown if "[info" in line and "gateway_" not in line)
    assert len(messages) == 3
    for line in messages:
        assert re.fullmatch(
            r"\S{24} \[info    \] turn_ended channel=kitchen model=builtin seconds=[\d.]+ state=completed", line
        )
    assert missing.endswith("path=/no/such/path status=404")
    assert not IDS.search("".join(shown))
    log = log_file.read_text()
    assert len(set(re.findall(r'"turn_id": "(turn_\w+)"', log))) == 3
    assert len(set(re.findall(r'"session_id": "(ses_\w+)"', log))) == 1
    # The last event of each name.
    events: dict[str, Any] = {event["event"]: event for line in log.splitlines() if (event := json.loads(line))}
    assert events["turn_accepted"]["request_id"] == answer.headers["x-request-id"]
    assert events["turn_ended"]["turn_id"] == events["turn_accepted"]["turn_id"]
    request = events["request"]
    assert request["request_id"] == refused.headers["x-request-id"] == refused.json()["requestId"]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/no/such/path", 404)


@pytest.mark.long
def test_tables_fit_a_terminal_of_80_columns(place: Place) -> None:
    place.serve()
    label = "a description that is too long for a line of this table"
    assert place.run("token", "create", "--user", "ana", "--label", label)[0] == 0
    message = {"content": "remind me tomorrow at 9 to call my sister about the plans for the weekend"}
    httpx2.post(
        f"{read_address(place.data_dir)}/message", json=message, trust_env=False, timeout=PATIENCE
    ).raise_for_status()
    for command in ("turns", "sessions", "schedules", "tools", "token"):
        with command_in(place, command, "list") as terminal:
            assert terminal.exit_code() == 0, command
            lines = terminal.text.splitlines()
        assert len(lines) >= 3, command
        assert max(map(cell_len, lines)) <= 80, command
