"""Permissions and approvals on the command line of a running gateway."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.integration.cli.terminal import chat_in, command_in
from tests.waiting import PATIENCE, eventually

from torana.store.engine.lock import read_address
from torana.testing.openai_server import Call, ChatRequest, OpenAIStandIn

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

ASKS = json.dumps(
    [
        {"tool": "calculate", "permission": "ask"},
        {"tool": "kalculate", "permission": "deny"},
        {"tool": "convert_units", "user": "ben", "permission": "deny"},
    ]
)


def _send(place: Place, content: str) -> str:
    body = {"content": content, "channelId": content, "userId": "ana"}
    headers = {"Prefer": "respond-async"}
    address = read_address(place.data_dir)
    return httpx2.post(
        f"{address}/message", json=body, headers=headers, trust_env=False, timeout=PATIENCE
    ).json()["id"]


def _open_approval(place: Place) -> list[dict[str, Any]]:
    code, out, err = place.run("approvals", "list", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["items"]


def _turn(place: Place, turn_id: str) -> dict[str, Any] | None:
    address = read_address(place.data_dir)
    turn = httpx2.get(f"{address}/v1/turns/{turn_id}", trust_env=False, timeout=PATIENCE).json()
    return turn if turn["endedAt"] else None


def test_calls_are_listed_approved_and_denied(place: Place) -> None:
    place.serve(TORANA_PERMISSIONS=ASKS)
    assert place.run("approvals", "list") == (0, "No tool call waits for approval.\n", "")
    turns = [_send(place, content) for content in ("what is 1 + 1", "what is 2 + 2", "what is 3 + 3")]
    found = eventually(lambda: listed if len(listed := _open_approval(place)) == 3 else None)
    asked = {item["turnId"]: item for item in found}
    first, second = (asked[turn] for turn in turns[:2])
    listed = place.run("approvals", "list")[1]
    assert all(turn in listed for turn in turns)

    assert all(one["id"] in listed and "1 + 1" in listed for one in asked.values())

    by_call = place.run("approvals", "approve", turns[0], first["callId"], "--yes")[1]
    assert by_call == f'{first["id"]}  calculate\n{{\n "expression": "1 + 1"\n}}\ncalculate is approved\n'
    changed = ("--arguments", '{"expression": "5+5"}')
    other = place.run("approvals", "approve", second["id"], "--yes", *changed)[1]
    assert "2 + 2" in other
    assert other.endswith('instead:\n{\n "expression": "5+5"\n}\ncalculate is approved\n')
    denied = place.run(
        "approvals", "deny", turns[2], "--reason", "not today"
    )  # only one call of the turn is open
    assert "3 + 3" in denied[1]
    assert denied[1].endswith("\ncalculate is denied\n")
    assert place.run("approvals", "deny", turns[2])[2].startswith(f"{turns[2]} has no open approval; ")
    again = place.run("approvals", "deny", first["id"])
    assert again[0] == 1
    assert "already approved" in again[2]
    assert place.run("approvals", "approve", first["id"])[1].endswith("calculate is approved\n")

    replies = [eventually(partial(_turn, place, turn))["reply"] for turn in turns]
    assert "2" in replies[0]
    assert "10" in replies[1]
    assert "it was denied, with the reason: not today" in replies[2]
    for wrong in ("{", "[]"):
        assert place.run("approvals", "approve", turns[0], "x", "--arguments", wrong)[0] == 2


def test_approval_needs_a_confirmation_of_the_printed_call(place: Place) -> None:
    place.serve(TORANA_PERMISSIONS=ASKS)
    turn = _send(place, "what is 1 + 1")
    (asked,) = eventually(lambda: _open_approval(place))

    for name, more in ((turn, ()), (asked["id"], ()), (turn, ("--yes",))):
        code, out, err = place.run("approvals", "approve", name, *more)
        assert (code, "1 + 1" in out) == (1, True)
        assert "nothing was approved" in err
        assert f"`torana approvals approve {asked['id']} --yes`" in err
    for answer, code in (("n", 1), ("y", 0)):
        with command_in(place, "approvals", "approve", turn) as terminal:
            assert "1 + 1" in terminal.expect("Approve? [y/N]")
            assert [one["id"] for one in _open_approval(place)] == [asked["id"]]
            terminal.type(f"{answer}\n")
            assert terminal.exit_code() == code

    assert "2" in eventually(partial(_turn, place, turn))["reply"]


def test_hidden_characters_of_a_call_are_printed_escaped(place: Place) -> None:
    place.serve(TORANA_PERMISSIONS=ASKS)
    turn = _send(place, "what is 1 + 1")
    (asked,) = eventually(lambda: _open_approval(place))
    hidden = json.dumps({"expression": "1\x1b[2J\u202e"})

    code, out, err = place.run("approvals", "approve", asked["id"], "--yes", "--arguments", hidden)

    assert (code, err) == (0, "")
    assert "\\u001b[2J\\u202e" in out
    assert eventually(partial(_turn, place, turn))


def test_tools_list_shows_permissions_and_the_doctor_unknown_tools(place: Place) -> None:
    without = place.run("tools", "list")
    assert without[0] == 1
    assert "no gateway runs" in without[2]
    place.serve(TORANA_PERMISSIONS=ASKS)

    code, out, err = place.run("tools", "list", "--user", "ben")
    rows = {line.split()[0]: line for line in out.splitlines()}

    assert code == 0
    assert rows["convert_units"].split()[1:4] == ["deny", "rule", "3"]
    assert "ask" in rows["calculate"]
    assert err == "warning: [[permissions]] names unknown tools: kalculate\n"
    document = json.loads(place.run("tools", "list", "--json")[1])
    (units,) = [item for item in document["items"] if item["name"] == "convert_units"]
    assert (units["permission"], units["why"]) == ("allow", "the tool's default")
    findings = json.loads(place.run("doctor", "--json", TORANA_PERMISSIONS=ASKS)[1])
    (permissions,) = [item for item in findings if item["check"] == "permissions"]
    assert permissions["detail"] == "3 rules; warning: there is no tool kalculate"


def test_chat_on_a_terminal_asks_for_approval(place: Place) -> None:
    with chat_in(place, TORANA_PERMISSIONS=ASKS) as screen:
        screen.prompt()
        screen.type("what is 1 + 1\r")
        screen.expect(
            r'calculate asks to run with:\n│ \{\n│  "expression": "1 \+ 1"\n│ \}\nAllow calculate\? \[y/N\]\Z'
        )
        screen.type("y\r")
        screen.expect(r"= 2\n>\Z")
        screen.type("what is 2 + 2\r")
        screen.expect(r"\? \[y/N\]\Z")
        screen.type("\r")
        screen.expect(r"it was denied(.|\n)*\n>\Z")
        screen.type("/quit\r")
        assert screen.exit_code() == 0


def test_chat_prints_all_arguments_of_a_call_that_is_higher_than_the_terminal(place: Place) -> None:
    arguments = {"expression": f"98765 + {' + '.join(['11'] * 800)}"}

    def reply(request: ChatRequest) -> list[Call]:
        return [Call("calculate", arguments)]

    with OpenAIStandIn(reply=reply) as server:
        model = {"TORANA_MODEL": "openai-chat:x", "TORANA_MODEL_BASE_URL": server.url}
        with chat_in(place, **model, TORANA_PERMISSIONS=ASKS) as screen:
            screen.prompt()
            screen.resize(10)
            screen.type("add it all up\r")
            screen.expect(r"^Allow calculate\? \[y/N\]\Z")

    _, printed = screen.output.decode().split("calculate asks to run with:")
    rows = printed.partition("\x1b")[0].strip().splitlines()
    assert {row[:2] for row in rows} == {"│ "}
    assert json.loads("".join(row[2:] for row in rows)) == arguments


def test_chat_without_a_terminal_denies_the_call(place: Place) -> None:
    code, out, err = place.run("chat", "what", "is", "1", "+", "1", TORANA_PERMISSIONS=ASKS)

    assert code == 0
    assert "there was no terminal to ask on" in out
    assert "there is no terminal to ask on" in err
