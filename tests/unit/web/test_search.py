"""The protocol of each search service, against a fake server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.standins.web import SITE, Internet

from torana.tools import ToolError, promises
from torana.tools.builtin.web import WebTools
from torana.web import BadResponse, WebFault
from torana.web.readable import Reader
from torana.web.search import Hit, Search, SearchName, open_search, search_fault

_URL = f"http://{SITE}"
_KEY = "s3cret-key"
_PATHS = {"searxng": "/search", "brave": "/res/v1/web/search", "tavily": "/search"}
_EXTRACT = {"searxng": "content", "brave": "description", "tavily": "content"}
_SERVICES = ("searxng", "brave", "tavily")


def _search(web: Internet, name: SearchName) -> Search:
    search = open_search(name, url=f"{_URL}/", api_key=_KEY, client=web.client())
    assert search
    return search


def _answer(web: Internet, name: str, results: Any) -> None:
    body = {"web": {"results": results}} if name == "brave" else {"results": results}
    web.page(_PATHS[name], json.dumps(body), type="application/json")


@pytest.mark.parametrize("name", _SERVICES)
async def test_search_returns_hits(web: Internet, name: SearchName) -> None:
    pages = [{"title": f"Gate {n}", "url": f"https://g.test/{n}", _EXTRACT[name]: "Stone."} for n in range(3)]
    _answer(web, name, [*pages, "nonsense", {"title": "without an address"}])
    hits = await _search(web, name).search("torana gates & więcej", count=2)
    assert hits == [Hit(f"Gate {n}", f"https://g.test/{n}", "Stone.") for n in range(2)]
    (seen,) = web.seen
    if name == "tavily":
        assert (seen.method, json.loads(seen.body)) == (
            "POST",
            {"query": "torana gates & więcej", "max_results": 2},
        )
    else:
        assert (seen.method, seen.body) == ("GET", b"")
        assert "?q=torana+gates+%26+wi%C4%99cej&" in seen.path
    headers = {"brave": ("x-subscription-token", _KEY)}.get(name, ("authorization", f"Bearer {_KEY}"))
    assert seen.headers[headers[0]] == headers[1]
    assert _KEY not in seen.path


@pytest.mark.parametrize("name", _SERVICES)
@pytest.mark.parametrize("body", ["", "<html>", "[]", "null", '{"results": 5, "web": 5}', "[" * 100_000])
async def test_invalid_responses_are_refused(web: Internet, name: SearchName, body: str) -> None:
    web.page(_PATHS[name], body, type="application/json")
    with pytest.raises(BadResponse):
        await _search(web, name).search("x", count=5)


@pytest.mark.parametrize("name", _SERVICES)
async def test_key_is_not_shown_or_sent_to_another_host(web: Internet, name: SearchName) -> None:
    search = _search(web, name)
    web.page(_PATHS[name], status=401)
    with pytest.raises(WebFault) as raised:
        await search.search("x", count=5)
    assert _KEY not in str(raised.value)
    web.moved(_PATHS[name], "http://other.test/")
    with pytest.raises(BadResponse):
        await search.search("x", count=5)
    assert {seen.headers["host"] for seen in web.seen} == {SITE}


async def test_redirect_of_a_service_without_key_is_refused(web: Internet) -> None:
    search = open_search("searxng", url=_URL, api_key=None, client=web.client())
    assert search
    web.moved("/search", f"{_URL}/elsewhere")
    with pytest.raises(BadResponse, match="redirects are not followed"):
        await search.search("x", count=5)
    assert len(web.seen) == 1


async def test_empty_brave_response_gives_no_hits(web: Internet) -> None:
    web.page(_PATHS["brave"], "{}", type="application/json")
    assert await _search(web, "brave").search("x", count=5) == []


@pytest.mark.parametrize(
    ("name", "url", "key", "missing"),
    [
        ("none", None, None, ""),
        ("none", "http://x.y", None, "TORANA_SEARCH too"),
        ("none", None, "k", "TORANA_SEARCH too"),
        ("searxng", None, None, "TORANA_SEARCH_URL"),
        ("searxng", "http://x.y", None, ""),
        ("brave", None, None, "TORANA_SEARCH_API_KEY"),
        ("brave", None, "k", ""),
        ("tavily", "http://x.y", None, "TORANA_SEARCH_API_KEY"),
        ("tavily", None, "k", ""),
    ],
)
def test_missing_settings_are_reported(
    name: SearchName, url: str | None, key: str | None, missing: str
) -> None:
    said = search_fault(name, url=url, api_key=key)
    assert missing in said
    assert bool(missing) == bool(said)
    assert (open_search(name, url=url, api_key=key) is None) == (bool(missing) or name == "none")


async def test_own_search_service_may_be_private(web: Internet) -> None:
    web.page("/search", '{"results": []}', type="application/json")
    search = open_search("searxng", url=f"http://127.0.0.1:{web.port}", api_key=None)
    assert search
    assert await search.search("x", count=1) == []


async def test_search_tool_formats_results_and_errors(web: Internet) -> None:
    tools = WebTools(client=web.client(), reader=Reader(), search=_search(web, "searxng"))
    assert [tool.__name__ for tool in tools.tools] == ["web_fetch", "web_search"]
    assert promises(tools.web_search)["permission"] == "ask"
    _answer(web, "searxng", [{"title": "A\nB", "url": "https://g.test/", "content": "x\u202e" + "y" * 900}])
    told = await tools.web_search(" gates ")
    assert f"- A B\n  https://g.test/\n  x{'y' * 498}\n" in told
    assert "is text from a search of the web" in told
    _answer(web, "searxng", [])
    assert await tools.web_search("gates") == "The search returned no results."
    with pytest.raises(ToolError, match="empty"):
        await tools.web_search("  ")
    web.page("/search", status=500)
    with pytest.raises(ToolError, match="answered 500"):
        await tools.web_search("gates")


def test_search_tool_is_absent_without_a_service(web_tools: WebTools) -> None:
    assert [tool.__name__ for tool in web_tools.tools] == ["web_fetch"]
