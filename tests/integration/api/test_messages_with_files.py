"""``POST /v1/messages``: messages with files."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa
from pydantic_ai.messages import BinaryContent, ModelRequest, TextContent, UserPromptPart

from torana.api.files import BODY_LIMIT
from torana.app import App
from torana.errors import ModelFailed
from torana.message_files import FILE_LIMIT
from torana.store.engine.tables import attachments
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 92
RECEIVED = "; the model receives text (setting `model_files`)"
PDF = b"%PDF-1.7\n%\xe2\xe3"


def file(body: bytes, name: str = "a.txt") -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(body).decode()}


async def send(client: httpx2.AsyncClient, *files: Any, **headers: str) -> httpx2.Response:
    body = {"content": "look", "channelId": "c", "files": list(files)}
    return await client.post("/v1/messages", json=body, headers=headers)


def prompt_of(model: ScriptedModel, number: int = 0) -> list[Any]:
    """Return the content of the newest message that the model received."""
    request = model.requests[number].messages[-1]
    assert isinstance(request, ModelRequest)
    content = next(part.content for part in request.parts if isinstance(part, UserPromptPart))
    return [content] if isinstance(content, str) else list(content)


async def test_model_receives_files_and_message_names_them(start: Start):
    model = ScriptedModel("A cat.")
    _, client = await start(model, model_files="text,image,pdf")
    answer = await send(client, file(PNG, "cat.png"), file(PDF, "doc.pdf"), file(b"hello", "notes.csv"))
    assert (answer.status_code, answer.json()["reply"]) == (200, "A cat.")
    said, *parts = prompt_of(model)
    assert said == (
        "look\n[image: cat.png, image/png, 0.1 kB]\n[file: doc.pdf, application/pdf, 0.0 kB]\n"
        "[file: notes.csv, text/plain, 0.0 kB]"
    )
    assert [part.media_type for part in parts if isinstance(part, BinaryContent)] == [
        "image/png",
        "application/pdf",
    ]
    last = parts[-1]
    assert isinstance(last, TextContent)
    assert last.content == "notes.csv:\nhello\n[end of notes.csv]"


async def test_message_without_files_is_like_one_to_the_contract(start: Start):
    _, client = await start(ScriptedModel("one", "two"))
    body = {"content": "hi", "channelId": "c"}
    with_files = (await client.post("/v1/messages", json=body)).json()
    assert set(with_files) == set((await client.post("/message", json=body)).json())


@pytest.mark.parametrize(
    ("files", "detail"),
    [
        ("a.txt", "must be a list"),
        ([file(b"")] * 6, "must have at most 5 items"),
        ([file(b"a"), "b"], "item 1 must have a `name` and `data`, which are strings"),
        ([{"name": "a.txt"}], "item 0 must have a `name` and `data`, which are strings"),
        ([{"name": "a.txt", "data": "no base64!"}], "item 0 must have `data` in base64"),
        ([{"name": "a.txt", "data": "Ä"}], "item 0 must have `data` in base64"),
        ([file(b"a" * (FILE_LIMIT + 1))], "item 0 has 3,750,001 bytes; the maximum is 3,750,000"),
        (
            [file(b"MZ\x90\0")],
            f"item 0 is neither a text, nor a picture, nor a PDF file{RECEIVED}",
        ),
        (
            [file(PNG)],
            f"item 0 is of the kind image{RECEIVED}",
        ),
    ],
)
async def test_invalid_files_are_refused(client: httpx2.AsyncClient, files: Any, detail: str):
    answer = await client.post("/v1/messages", json={"content": "look", "files": files})
    assert (answer.status_code, answer.json()["errors"]) == (400, [{"pointer": "/files", "detail": detail}])


async def test_body_over_the_limit_is_refused(client: httpx2.AsyncClient):
    answer = await client.post("/v1/messages", json={"content": "look", "files": "a" * BODY_LIMIT})
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(("size", "then"), [(10, 200), (300_000, 429)])
async def test_refused_body_counts_as_a_message_if_it_is_large(start: Start, size: int, then: int):
    _, client = await start(rate_global=1)
    refused = await send(client, {"name": "x" * size, "data": 1})

    assert refused.status_code == 400
    assert (await client.post("/message", json={"content": "hi"})).status_code == then


async def test_location_is_relative_to_the_request(start: Start):
    _, client = await start(ScriptedModel("one"))
    answer = await send(client, Prefer="respond-async")
    place = answer.request.url.join(answer.headers["Location"])
    assert (answer.status_code, (await client.get(place)).status_code) == (202, 200)


async def test_key_compares_the_contents_of_files(start: Start):
    _, client = await start(ScriptedModel("one"))
    key = {"Idempotency-Key": "k"}
    first = await send(client, file(b"same size"), **key)
    again = await send(client, file(b"same size"), **key)
    other = await send(client, file(b"Same size"), **key)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")


async def test_retried_turn_has_its_files(start: Start):
    model = ScriptedModel([ModelFailed("down")], "A cat.")
    _, client = await start(model)
    failed = await send(client, file(b"hello"), Accept="text/event-stream")
    assert failed.status_code == 200
    turn = json.loads(failed.text.partition("data: ")[2].partition("\n")[0])["id"]
    await client.post(f"/v1/turns/{turn}/retry")
    await model.asked(2)
    assert prompt_of(model, 1) == prompt_of(model, 0)


async def test_files_of_the_newest_ten_failed_turns_of_a_user_stay(start: Start):
    app, client = await start(ScriptedModel(*[[ModelFailed("down")]] * 13))

    async def fail(content: str, **more: str) -> None:
        body = {"content": content, "files": [file(content.encode())], **more}
        assert (await client.post("/v1/messages", json=body)).status_code == 502

    await fail("of another user", userId="ben")
    for number in range(12):
        await fail(str(number))
    stored = sa.select(attachments.c.body).order_by(attachments.c.id)
    bodies = await app.database.run(lambda c: c.execute(stored).scalars().all())
    # The files of the last message were added after older ones were deleted.
    assert bodies == [b"of another user", *(str(number).encode() for number in range(1, 12))]


async def test_one_user_reads_few_bodies_with_files_at_a_time(start: Start):
    app, client = await start()
    uploads = app.services.uploads
    async with uploads.slot("local"), uploads.slot("local"):
        waiting = asyncio.create_task(send(client, file(b"hello")))
        async with uploads.slot("another"):
            assert not waiting.done()
        # A message without files has no such limit.
        assert (await client.post("/message", json={"content": "hi"})).status_code == 200
    assert (await waiting).status_code == 200
