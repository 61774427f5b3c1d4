import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from torana.api.middleware.same_site import SameSiteCheck
from torana.errors import CrossSite, HostNotAllowed

Ask = Callable[..., Coroutine[Any, Any, Any]]

APP = SameSiteCheck(PlainTextResponse("in"), allowed_hosts=["Gate.Example"], origins=["https://app.example"])
HERE = ("Host", "localhost:18789")


async def passes(ask: Ask, *headers: tuple[str, str], method: str = "POST", path: str = "/message") -> bool:
    try:
        return (await ask(APP, method, path, headers)).body == b"in"
    except (HostNotAllowed, CrossSite):
        return False


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:18789",
        "LOCALHOST.",
        "127.0.0.1:18789",
        "[::1]:18789",
        "[::1]",
        "192.0.2.7",  # the address comes from the request, and no header can change it
        "gate.example",
        "gate.example:443",
        socket.gethostname(),
    ],
)
async def test_local_and_allowed_hosts_are_accepted(ask: Ask, host: str):
    assert await passes(ask, ("Host", host))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example:18789",
        "",
        ":18789",
        "[",
        "[evil.example]",
        "::1:18789",
        "user@localhost",
        "localhost, evil.example",
        "\xe9\xff",
        "2130706433",  # 127.0.0.1 as one number
        "a" * 5000,
    ],
)
async def test_other_hosts_are_refused(ask: Ask, host: str):
    with pytest.raises(HostNotAllowed):
        await ask(APP, "GET", "/skills", [("Host", host)])


@pytest.mark.parametrize("headers", [[], [HERE, HERE], [HERE, ("Host", "evil.example")]])
async def test_missing_or_second_host_is_refused(ask: Ask, headers: list[tuple[str, str]]):
    with pytest.raises(HostNotAllowed):
        await ask(APP, "GET", "/skills", headers)


@pytest.mark.parametrize(
    "headers",
    [
        [],  # no browser
        [("Origin", "http://localhost:18789")],
        [("Origin", "https://app.example")],
        [("Origin", "https://app.example"), ("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-origin"), ("Origin", "http://localhost:18789")],
        [("Sec-Fetch-Site", "none")],
    ],
)
async def test_requests_from_own_or_allowed_page_are_accepted(ask: Ask, headers: list[tuple[str, str]]):
    assert await passes(ask, HERE, *headers)


@pytest.mark.parametrize(
    "headers",
    [
        [("Origin", "http://evil.example")],
        [("Origin", "null")],
        [("Origin", "http://localhost:3000")],
        [("Origin", "http://[")],
        [("Origin", "")],
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site")],  # another port of this machine is another site
        [("Sec-Fetch-Site", "cross-site"), ("Origin", "http://localhost:18789")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")],
    ],
)
async def test_foreign_page_cannot_post(ask: Ask, headers: list[tuple[str, str]]):
    with pytest.raises(CrossSite):
        await ask(APP, "POST", "/message", [HERE, *headers])


async def test_foreign_link_may_be_followed_but_not_framed(ask: Ask):
    visit = [HERE, ("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")]
    assert await passes(ask, *visit, ("Sec-Fetch-Dest", "document"), method="GET", path="/")
    assert not await passes(ask, *visit, ("Sec-Fetch-Dest", "iframe"), method="GET", path="/")


async def test_health_accepts_foreign_host_and_page(ask: Ask):
    foreign = [("Host", "evil.example"), ("Sec-Fetch-Site", "cross-site")]
    assert await passes(ask, *foreign, method="GET", path="/health")
