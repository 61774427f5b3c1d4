"""Names, channels, messages and calls that try to forge lines of the operator's command output."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

from torana.testing.openai_server import Answer, Call, ChatRequest, OpenAIStandIn

#: Each character that may start a new line for a reader, followed by a forged row.
_HOSTILE = (
    "eve\nFORGED one\rFORGED two\x0bFORGED three\x85FORGED four\u2028FORGED five\x1b[2K\x1b[1A\u202eevil\u2066"
)
#: Characters that must not reach a terminal, besides line feeds.
_STEERING = {"\r", "\x0b", "\x0c", "\x1b", "\x85", "\u2028", "\u2029", "\u202e", "\u2066", "\u200b"}
#: The commands whose list has one row, which is the attacker's.
_ONE_ROW = ("sessions", "turns", "approvals", "schedules", "token")
_SKILL = "---\nname: sly\ndescription: {description}\n---\nDo nothing.\n"


def _remember(request: ChatRequest) -> Answer:
    return [Call("remember", {"text": _HOSTILE})]


def _rows(printed: str) -> list[str]:
    """Return the lines of a table below its heading."""
    assert not _STEERING & set(printed)
    lines = printed.split("\n")
    assert not [line for line in lines if line.startswith("FORGED")]
    return [line for line in lines[1:] if line]


def test_hostile_names_do_not_start_new_table_rows(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    model = new_model(reply=_remember)
    gateway = new_gateway(
        toml='[[permissions]]\ntool = "remember"\npermission = "ask"\n',
        model="openai-chat:stand-in",
        model_api_key="k",
        model_base_url=model.url,
    )
    folder = gateway.home / "skills" / "sly"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(_SKILL.format(description=json.dumps(_HOSTILE)))
    gateway.environ["TORANA_SKILLS_DIR"] = str(folder.parent)
    gateway.start()
    who = {"userId": _HOSTILE, "channelId": _HOSTILE}
    with gateway.client() as client:
        said = {"content": _HOSTILE, **who}
        client.post("/message", json=said, headers={"Prefer": "respond-async"}).raise_for_status()
        schedule = {"text": _HOSTILE, "rule": "every day at 9", **who}
        client.post("/v1/schedules", json=schedule).raise_for_status()
        token = {"user": _HOSTILE, "label": _HOSTILE}
        client.post("/v1/tokens", json=token).raise_for_status()
        eventually(lambda: client.get("/v1/approvals").json()["items"])

    def listed(command: str) -> str:
        return gateway.run_command(command, "list").stdout

    with ThreadPoolExecutor(max_workers=2) as pool:
        printed = pool.map(listed, _ONE_ROW)
        for command, table in zip(_ONE_ROW, printed, strict=True):
            assert len(_rows(table)) == 1, command
    # The core skills are listed before the attacker's.
    assert len([row for row in _rows(listed("skills")) if "FORGED" in row]) == 1
