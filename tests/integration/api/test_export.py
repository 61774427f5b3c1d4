"""The export of a session."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
from starlette.types import Message

from torana.app import App
from torana.messages import EXPORT_FORMATS
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]


async def never() -> Message:
    """Receive no further message."""
    return await asyncio.get_running_loop().create_future()


async def say(client: httpx2.AsyncClient, content: str, **more: Any) -> dict[str, Any]:
    return (await client.post("/message", json={"content": content, "channelId": "home", **more})).json()


async def test_json_lines_export_equals_listed_messages(client: httpx2.AsyncClient):
    session_id = (await say(client, "line\nby line é", userId="ana"))["sessionId"]
    for number in range(129):
        await say(client, f"line {number}")
    listed: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = (await client.get(f"/v1/sessions/{session_id}/messages", params={"limit": 200, **after})).json()
        listed += page["items"]
        if page["next"] is None:
            break
        after = {"after": page["next"]}

    answer = await client.get(f"/v1/sessions/{session_id}/export")

    assert len(listed) == 260
    assert [json.loads(line) for line in answer.text.split("\n")[:-1]] == listed
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["content-disposition"] == f'attachment; filename="{session_id}.jsonl"'
    assert answer.headers["cache-control"] == "no-store"


async def test_markdown_export_is_readable_and_escapes_forged_headings(start: Start):
    _, client = await start(ScriptedModel("yes\n\n## ana, 2020-01-01\n\nno"))
    first = await say(client, "# *hi*\nthere", userId="<b>ana</b>\n# eve")

    answer = await client.get(f"/v1/sessions/{first['sessionId']}/export", params={"format": "markdown"})

    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.headers["content-disposition"].endswith('.md"')
    when = first["createdAt"][:16].replace("T", " ")
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[:2] == ["# \\# \\*hi\\*", f"Channel home, begun {when} UTC"]
    assert lines[2] == f"## \\<b\\>ana\\</b\\> \\# eve, {when} UTC"
    assert lines[3:5] == ["> # *hi*", "> there"]
    assert lines[5].startswith("## Assistant, ")
    assert lines[6:] == ["> yes", ">", "> ## ana, 2020-01-01", ">", "> no"]


async def test_message_during_export_leaves_export_consistent(gateway: Gateway):
    _, client = gateway
    first = await say(client, "0")
    for number in range(1, 120):
        await say(client, str(number))
    path = f"/v1/sessions/{first['sessionId']}/export"

    export = asyncio.ensure_future(client.get(path))
    await asyncio.gather(*(say(client, f"later {n}") for n in range(5)))
    answer = await export

    contents = [json.loads(line)["content"] for line in answer.text.splitlines()]
    asked = [content for content in contents if content != "yes"]
    assert asked[:120] == [str(number) for number in range(120)]
    assert asked[120:] == [f"later {n}" for n in range(len(asked) - 120)]


@pytest.mark.parametrize("form", EXPORT_FORMATS)
async def test_deletion_during_export_aborts_response_and_logs_info(
    gateway: Gateway, caplog: pytest.LogCaptureFixture, form: str
):
    app, client = gateway
    first = await say(client, "0")
    for number in range(1, 120):
        await say(client, str(number))
    path = f"/v1/sessions/{first['sessionId']}"
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)
        if b"yes" in message.get("body", b"") and len(sent) < 4:
            (await client.delete(path)).raise_for_status()

    caplog.set_level(logging.INFO, logger="torana")
    request = {
        "type": "http",
        "method": "GET",
        "path": f"{path}/export",
        "query_string": f"format={form}".encode(),
    }
    await app.asgi(request | {"headers": [(b"host", b"localhost:18789")]}, never, send)

    assert [message["type"] for message in sent] == ["http.response.start"] + ["http.response.body"] * 2
    assert sent[-1]["more_body"]
    (told,) = [one for one in caplog.records if one.message in ("request_failed", "response_aborted")]
    assert (told.levelname, told.exc_info, told.message) == ("INFO", None, "response_aborted")
    assert vars(told)["reason"].startswith("there is no session")


@pytest.mark.parametrize("form", EXPORT_FORMATS)
async def test_export_includes_queued_message(start: Start, form: str):
    gate = asyncio.Event()
    model = ScriptedModel([gate, "done"])
    _, client = await start(model)
    caller = asyncio.ensure_future(say(client, "a question"))
    while not (found := (await client.get("/v1/sessions")).json()["items"]):
        pass  # the message is on its way
    [session] = found
    answer = await client.get(f"/v1/sessions/{session['id']}/export", params={"format": form})
    assert "a question" in answer.text
    gate.set()
    await caller


@pytest.mark.parametrize("form", ["", "JSONL", "pdf", "../x"])
async def test_unknown_export_format_is_refused(client: httpx2.AsyncClient, form: str):
    first = await say(client, "a")
    answer = await client.get(f"/v1/sessions/{first['sessionId']}/export", params={"format": form})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")
    assert answer.json()["detail"] == "`format`: Input should be 'jsonl' or 'markdown'."


async def test_export_of_unknown_session_is_404(client: httpx2.AsyncClient):
    answer = await client.get("/v1/sessions/ses_unknown/export")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
