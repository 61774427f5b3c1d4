"""The listener for callers from outside."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from torana.connectors.base import HookRequest, HookResponse
from torana.connectors.hooks import HooksListener
from torana.errors import OperatorError


class Answers:
    """What was called, and what is answered."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, HookRequest]] = []
        self.response: HookResponse | Exception = HookResponse(body=b"ok")

    async def __call__(self, account: str, request: HookRequest) -> HookResponse:
        self.calls.append((account, request))
        if isinstance(self.response, Exception):
            raise self.response
        return self.response


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def client(answers: Answers) -> AsyncGenerator[httpx.AsyncClient]:
    listener = HooksListener(host="127.0.0.1", port=0, answer=answers)
    await listener.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.port}") as client:
        yield client
    await listener.stop()


async def test_a_call_reaches_its_account_as_it_was_sent(client: httpx.AsyncClient, answers: Answers) -> None:
    answer = await client.post("/hooks/my-line?a=1&b=", content=b"\xff{}", headers={"X-Signature": "abc"})

    assert (answer.status_code, answer.content) == (200, b"ok")
    ((account, request),) = answers.calls
    assert (account, request.method, request.body) == ("my-line", "POST", b"\xff{}")
    assert request.query == {"a": "1", "b": ""}
    assert request.headers["x-signature"] == "abc"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 404),
        ("GET", "/", 404),
        ("POST", "/message", 404),
        ("POST", "/hooks/", 404),
        ("POST", "/hooks/a/b", 404),
        ("DELETE", "/hooks/a", 405),
    ],
)
async def test_nothing_else_is_served(
    client: httpx.AsyncClient, answers: Answers, method: str, path: str, status: int
) -> None:
    assert (await client.request(method, path)).status_code == status
    assert answers.calls == []


async def test_a_call_that_is_too_large_is_not_read(client: httpx.AsyncClient, answers: Answers) -> None:
    assert (await client.post("/hooks/a", content=bytes(3_000_000))).status_code == 413
    assert answers.calls == []


async def test_what_goes_wrong_has_the_platform_call_again(client: httpx.AsyncClient, answers: Answers) -> None:
    answers.response = OSError("the store cannot be written")

    answer = await client.post("/hooks/a")

    assert (answer.status_code, answer.content) == (503, b"")


async def test_a_port_that_is_taken_is_told() -> None:
    first = HooksListener(host="127.0.0.1", port=0, answer=Answers())
    await first.start()
    second = HooksListener(host="127.0.0.1", port=first.port, answer=Answers())

    with pytest.raises(OperatorError, match="TORANA_HOOKS_PORT"):
        await second.start()

    await first.stop()
