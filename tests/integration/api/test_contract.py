"""The contract's three endpoints."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from torana import __version__
from torana.app import App
from torana.config import Settings
from torana.errors import ModelFailed
from torana.testing import ScriptedModel

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]

TOKEN = "a-token-of-more-than-sixteen-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
EVERY_PATH = ["/", "/docs", "/openapi.json", "/health", "/skills", "/v1/turns/turn_x", "/nope"]


def test_gateway_listens_on_localhost_port_18789_by_default():
    assert (Settings().host, Settings().port) == ("127.0.0.1", 18789)


@pytest.mark.parametrize("path", EVERY_PATH)
@pytest.mark.asyncio(loop_scope="module")
async def test_every_path_also_works_under_api_prefix(shared_client: httpx2.AsyncClient, path: str):
    plain, prefixed = await shared_client.get(path), await shared_client.get(f"/api{path}")
    assert prefixed.status_code == plain.status_code
    if path not in ("/health", "/nope", "/v1/turns/turn_x"):  # fields with times or with the request's id
        assert prefixed.content == plain.content


async def test_message_is_accepted_under_api_prefix(client: httpx2.AsyncClient):
    first = await client.post("/message", json={"content": "hi", "channelId": "c"})
    second = await client.post("/api/message", json={"content": "hi", "channelId": "c"})
    assert first.json()["sessionId"] == second.json()["sessionId"]


async def test_api_prefix_redirects_to_its_root(client: httpx2.AsyncClient):
    answer = await client.get("/api")
    assert (answer.status_code, answer.headers["location"]) == (307, "api/")
    assert (await client.get(httpx2.URL("/api").join("api/"))).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
@pytest.mark.parametrize("prefix", ["", "/api", "/behind/a/proxy"])
@pytest.mark.asyncio(loop_scope="module")
async def test_links_work_under_any_prefix(shared_client: httpx2.AsyncClient, path: str, prefix: str):
    page = await shared_client.get(path)
    links = [part.partition('"')[0] for part in page.text.split('href="')[1:]]
    assert links
    for link in links:
        target = httpx2.URL(f"http://x{prefix}{path}").join(link)
        assert target.path.startswith(prefix + "/")
        assert (await shared_client.get(target.path.removeprefix(prefix))).status_code == 200


# --- the token


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(start_shared: Start, tmp_path_factory: pytest.TempPathFactory) -> httpx2.AsyncClient:
    """A client of a gateway with a token, which the client does not send."""
    return (await start_shared(gateway_token=TOKEN, data_dir=tmp_path_factory.mktemp("guarded")))[1]


@pytest.mark.parametrize("path", EVERY_PATH)
@pytest.mark.parametrize("prefix", ["", "/api"])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_path_but_health_requires_configured_token(
    guarded: httpx2.AsyncClient, path: str, prefix: str
):
    without = await guarded.get(prefix + path)
    with_token = await guarded.get(prefix + path, headers=BEARER)
    assert without.status_code == (200 if path == "/health" else 401)
    assert with_token.status_code != 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/message", "/skills", "/health", "/nope"])
@pytest.mark.asyncio(loop_scope="module")
async def test_every_method_requires_configured_token(guarded: httpx2.AsyncClient, method: str, path: str):
    assert (await guarded.request(method, path)).status_code == 401


async def test_request_without_token_reveals_and_stores_nothing(
    start: Start, stored: Callable[[App], Awaitable[int]]
):
    app, client = await start(gateway_token=TOKEN)
    refused = await client.post("/message", json={"content": "hi"})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == 'Bearer realm="torana"'
    assert (refused.json()["error"], refused.json()["code"]) == ("Unauthorized", "unauthorized")
    assert await stored(app) == 0
    assert (await client.post("/message", json={"content": "hi"}, headers=BEARER)).status_code == 200


async def test_token_in_query_is_ignored(start: Start):
    _, client = await start(gateway_token=TOKEN)
    for name in ("token", "access_token"):
        assert (await client.get("/skills", params={name: TOKEN})).status_code == 401


@pytest.mark.parametrize("sent", [b"Bearer \xff\xfe", "Bearer пароль".encode(), f"Bearer {TOKEN}é".encode()])
async def test_non_ascii_token_is_unauthorized(start: Start, sent: bytes):
    _, client = await start(gateway_token=TOKEN)
    answer = await client.get("/skills", headers={b"Authorization": sent})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


# --- GET /health


async def test_health_has_exactly_six_fields(client: httpx2.AsyncClient):
    answer = await client.get("/health")
    body = answer.json()
    assert answer.status_code == 200
    assert {name: type(value) for name, value in body.items()} == {
        "status": str,
        "version": str,
        "uptime": int,
        "memory": str,
        "skills": dict,
        "connectors": list,
    }
    assert (body["status"], body["version"]) == ("ok", __version__)
    assert len([part for part in body["version"].split(".") if part.isdecimal()]) == 3


async def test_health_counts_listed_skills_by_source(client: httpx2.AsyncClient):
    counts = (await client.get("/health")).json()["skills"]
    sources = [record["source"] for record in (await client.get("/skills")).json()]
    assert counts == {"core": sources.count("core"), "user": sources.count("user")}
    assert counts["core"] > 0


async def test_draining_gateway_has_health_503_and_refuses_messages(gateway: tuple[App, httpx2.AsyncClient]):
    app, client = gateway
    await app.turns.stop(grace=0)
    health = await client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "draining")
    refused = await client.post("/message", json={"content": "hi"})
    assert (refused.status_code, refused.json()["code"]) == (503, "draining")
    assert int(refused.headers["retry-after"]) > 0


# --- GET /skills

MEMBERS = [
    "slug",
    "title",
    "source",
    "description",
    "requiresAuth",
    "version",
    "license",
    "eligible",
    "missing",
]


async def test_skills_are_records_sorted_by_source_and_slug(client: httpx2.AsyncClient):
    records = (await client.get("/skills")).json()
    assert {tuple(record) for record in records} == {(*MEMBERS, "tags", "digest")}
    order = [(record["source"], record["slug"]) for record in records]
    assert order == sorted(order)
    assert {tuple(record["missing"]) for record in records} == {("env", "bins")}


@pytest.mark.parametrize("form", ["{0}", "W/{0}", '"x", {0}', "*", ' {0} , W/"y"'])
async def test_unchanged_skills_are_304(client: httpx2.AsyncClient, form: str):
    etag = (await client.get("/skills")).headers["etag"]
    answer = await client.get("/skills", headers={"If-None-Match": form.format(etag)})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", etag)


@pytest.mark.parametrize("tag", [b'"another"', b"", "é".encode(), b'"*"'])
async def test_skills_are_sent_when_etag_differs(client: httpx2.AsyncClient, tag: bytes):
    assert (await client.get("/skills", headers={b"If-None-Match": tag})).status_code == 200


# --- POST /message


async def test_message_response_has_documented_fields(start: Start):
    _, client = await start(ScriptedModel("It is 2."))
    sent = await client.post("/message", json={"content": "1+1?", "channelId": "c", "userId": "ana"})
    body = sent.json()
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["cache-control"] == "no-store"
    assert {name: body[name] for name in ("reply", "channelId", "userId", "status", "model")} == {
        "reply": "It is 2.",
        "channelId": "c",
        "userId": "ana",
        "status": "completed",
        "model": "scripted",
    }
    assert body["id"].startswith("turn_")
    assert body["sessionId"].startswith("ses_")
    assert set(body["usage"]) == {"inputTokens", "outputTokens", "costUsd", "estimatedInput"}
    assert sum(body["usage"]["estimatedInput"].values()) == body["usage"]["inputTokens"]
    assert datetime.fromisoformat(body["createdAt"]).utcoffset() is not None
    assert len(body) == 9


async def test_reply_is_string_when_model_returns_no_text(start: Start):
    _, client = await start(ScriptedModel(" "))
    assert (await client.post("/message", json={"content": "hi"})).json()["reply"].strip() == ""


@pytest.mark.parametrize(("first", "second"), [(12345, "12345"), ("x" * 256, "x" * 256), ("é", "é")])
async def test_same_channel_uses_same_session(client: httpx2.AsyncClient, first: object, second: object):
    answers = [await client.post("/message", json={"content": "hi", "channelId": c}) for c in (first, second)]
    assert answers[0].json()["sessionId"] == answers[1].json()["sessionId"]
    assert answers[1].json()["channelId"] == str(first)


@pytest.mark.parametrize(("first", "second"), [("a", "A"), ("\u00e9", "e\u0301"), ("1", "01"), ("a", "a ")])
async def test_channels_are_compared_exactly(client: httpx2.AsyncClient, first: str, second: str):
    answers = [await client.post("/message", json={"content": "hi", "channelId": c}) for c in (first, second)]
    assert answers[0].json()["sessionId"] != answers[1].json()["sessionId"]


@pytest.mark.parametrize("absent", [{}, {"channelId": None}, {"channelId": ""}])
async def test_message_without_channel_starts_session_that_can_continue(
    client: httpx2.AsyncClient, absent: dict[str, Any]
):
    first = (await client.post("/message", json={"content": "hi"} | absent)).json()
    second = (await client.post("/message", json={"content": "hi"} | absent)).json()
    assert first["sessionId"] != second["sessionId"]
    again = (await client.post("/message", json={"content": "hi", "channelId": first["channelId"]})).json()
    assert again["sessionId"] == first["sessionId"]


@pytest.mark.parametrize("absent", [{}, {"userId": None}, {"userId": ""}])
async def test_response_without_user_has_null_user(client: httpx2.AsyncClient, absent: dict[str, Any]):
    assert (await client.post("/message", json={"content": "hi"} | absent)).json()["userId"] is None


async def test_integer_user_becomes_decimal_string(client: httpx2.AsyncClient):
    assert (await client.post("/message", json={"content": "hi", "userId": 7})).json()["userId"] == "7"


async def test_unknown_fields_are_ignored(client: httpx2.AsyncClient):
    unknown = {"onBusy": "reject", "x": {"y": [1, None, "\x01"]}, "": 0}
    assert (await client.post("/message", json={"content": "hi"} | unknown)).status_code == 200


@pytest.mark.parametrize("media_type", ["application/json", "application/vnd.api+json; charset=utf-8"])
async def test_json_media_types_are_accepted(client: httpx2.AsyncClient, media_type: str):
    body = b'{"content": "hi"}'
    assert (await client.post("/message", content=body, headers={"Content-Type": media_type})).is_success


# --- limits


async def test_rate_limit_headers_are_sent_on_success(start: Start):
    _, client = await start(rate_per_user=20, rate_global=100)
    answer = await client.post("/message", json={"content": "hi", "userId": "ana"})
    assert answer.headers["ratelimit-policy"] == '"user";q=20;w=60, "global";q=100;w=60'
    assert answer.headers["ratelimit"].startswith('"user";r=19;t=')


async def test_without_a_user_only_the_global_limit_applies(start: Start):
    _, client = await start(rate_per_user=1, rate_global=100)
    answers = [await client.post("/message", json={"content": "hi"}) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].headers["ratelimit-policy"] == '"global";q=100;w=60'
    assert answers[2].headers["ratelimit"].startswith('"global";r=97;t=')


async def test_user_over_rate_limit_is_refused_and_nothing_is_stored(
    start: Start, stored: Callable[[App], Awaitable[int]]
):
    app, client = await start(rate_per_user=1, rate_global=100)
    body = {"content": "hi", "userId": "ana", "channelId": "c"}
    assert (await client.post("/message", json=body)).status_code == 200
    kept = await stored(app)
    refused = await client.post("/message", json=body)
    problem = refused.json()
    assert (refused.status_code, problem["error"], problem["code"]) == (429, "Rate limited", "rate_limited")
    assert problem["violatedPolicies"] == ["user"]
    assert problem["retryAfterMs"] == int(refused.headers["retry-after"]) * 1000 > 0
    assert "TORANA_RATE_PER_USER" in problem["detail"]
    assert refused.headers["ratelimit"].startswith('"user";r=0;t=')
    assert refused.headers["ratelimit-policy"]
    assert await stored(app) == kept
    # It consumed nothing of the other limit, and its text reveals nothing about other users.
    other = await client.post("/message", json={"content": "hi", "userId": "bob"})
    assert (other.status_code, other.headers["ratelimit"][:14]) == (200, '"user";r=0;t=6')
    assert (
        (await client.post("/message", json={"content": "hi"})).headers["ratelimit"].startswith('"global";r=97')
    )


async def test_invalid_request_uses_no_rate_limit(start: Start):
    _, client = await start(rate_global=1)
    assert (await client.post("/message", json={"content": " "})).status_code == 400
    assert (await client.post("/message", json={"content": "hi"})).status_code == 200
    assert (await client.post("/message", json={"content": "hi"})).json()["violatedPolicies"] == ["global"]


@pytest.mark.parametrize("path", ["/message", "/v1/messages"])
async def test_body_of_a_message_over_the_rate_limit_is_not_parsed(start: Start, path: str):
    _, client = await start(rate_global=1)
    assert (await client.post(path, json={"content": "hi"})).status_code == 200

    refused = await client.post(path, content="no JSON", headers={"content-type": "application/json"})

    assert (refused.status_code, refused.json()["violatedPolicies"]) == (429, ["global"])


async def test_disabled_limits_send_no_headers(client: httpx2.AsyncClient):
    answer = await client.post("/message", json={"content": "hi", "userId": "ana"})
    assert not {"ratelimit", "ratelimit-policy"} & set(answer.headers)


async def test_health_and_skills_have_no_rate_limit(start: Start):
    _, client = await start(rate_global=1)
    for path in ("/health", "/skills"):
        assert [(await client.get(path)).status_code for _ in range(3)] == [200] * 3


# --- failures behind the API


async def test_model_failure_is_502_with_reason(start: Start):
    _, client = await start(ScriptedModel([ModelFailed("the provider says: no credit")]))
    answer = await client.post("/message", json={"content": "hi"})
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, problem["code"]) == (502, "model_failed")
    assert "no credit" in problem["detail"]
    assert "reply" not in problem


async def test_bug_in_agent_is_problem_without_traceback(start: Start):
    _, client = await start(ScriptedModel([KeyError("a secret place")]))
    answer = await client.post("/message", json={"content": "hi"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_large_pages_are_made_once(
    client: httpx2.AsyncClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await client.get(path)
    monkeypatch.delattr("torana.api.routes.pages.JSONResponse")
    monkeypatch.delattr("torana.api.routes.pages._templates")

    assert (await client.get(path)).content == first.content
