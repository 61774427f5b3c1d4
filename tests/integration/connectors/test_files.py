"""Files pass from a platform through the gateway to a model provider."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from torana.app import build
from torana.config import load
from torana.connectors import registry
from torana.connectors.base import Connector
from torana.testing import ChatRequest, OpenAIStandIn
from torana.testing.chat import Chat

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 2_000
PDF = b"%PDF-1.7\n%\xe2\xe3"


def describe(request: ChatRequest) -> str:
    """Reply with the text of the newest message, or with the types of its parts."""
    content = request.messages[-1]["content"]
    return content if isinstance(content, str) else " ".join(part["type"] for part in content)


@pytest.fixture
def server() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(reply=describe) as server:
        yield server


@pytest.fixture
async def start(tmp_path: Path, server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """``await start(chat, model_files="image")`` starts a gateway with the chat as its platform."""
    async with AsyncExitStack() as stack:

        async def begin(chat: Chat, **settings: str) -> None:
            def load_chat(_kind: str) -> type[Connector[Any]]:
                return chat.connector

            monkeypatch.setattr(registry, "load", load_chat)
            told = {"model": "openai-chat:seeing", "model_base_url": server.url, "data_dir": str(tmp_path)}
            told |= settings | {"connectors": json.dumps({"home": {"kind": "chat", **chat.settings()}})}
            environ = {f"TORANA_{name.upper()}": value for name, value in told.items()}
            loaded = load(flags={}, environ=environ, cwd=tmp_path, user_dir=tmp_path)
            app = build(loaded, started=time.monotonic())
            stack.push_async_callback(app.close)
            await app.start()

        yield begin


async def test_image_pdf_and_text_reach_provider(start: Any, server: OpenAIStandIn) -> None:
    chat = Chat(allow=["*"])
    await start(chat, model_files="text,image,pdf")
    for number, file in enumerate(
        [("cat.png", "image/png", PNG), ("doc.pdf", "application/pdf", PDF), ("a.txt", "text/plain", b"hello")]
    ):
        await chat.say("look", file=file)
        await chat.shown(number + 1)

    told = [one.text for one in await chat.shown(3)]
    assert told == ["text text text image_url", "text text text file", "text text text"]
    picture, document, text = (request.messages[-1]["content"] for request in server.requests)
    assert picture[0]["text"] == "look\n[image: cat.png, image/png, 2.0 kB]"
    assert picture[-1]["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert base64.b64encode(PDF).decode() in document[-1]["file"]["file_data"]
    assert text[-1]["text"] == "a.txt:\nhello\n[end of a.txt]"
    # Of earlier messages only the names are sent again, and the instructions say so.
    assert [message["content"] for message in server.requests[2].messages if message["role"] == "user"][:2] == [
        "look\n[image: cat.png, image/png, 2.0 kB]",
        "look\n[file: doc.pdf, application/pdf, 0.0 kB]",
    ]
    assert "names a file of a message" in server.requests[0].messages[0]["content"]


async def test_model_receives_only_text_files_by_default(start: Any) -> None:
    chat = Chat(allow=["*"])
    await start(chat)
    await chat.say("look", file=("cat.png", "image/png", PNG))
    await chat.shown(1)
    await chat.say("read", file=("a.txt", "text/plain", b"hello"))

    told = [one.text for one in await chat.shown(2)]
    assert told == ["look\n[image: cat.png, image/png, 2.0 kB]", "text text text"]


async def test_too_large_file_is_only_named(start: Any) -> None:
    chat = Chat(allow=["*"], file_bytes=1_000)
    await start(chat, model_files="image")
    await chat.say("look", file=("cat.png", "image/png", PNG))
    assert [one.text for one in await chat.shown(1)] == ["look\n[image: cat.png, image/png, 2.0 kB, too large]"]
