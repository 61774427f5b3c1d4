"""The requests of web pages that a gateway accepts and refuses."""

from collections.abc import Awaitable, Callable

import httpx2
import pytest

from torana.app import App

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]
Stored = Callable[[App], Awaitable[int]]

TOKEN = "a-token-of-more-than-sixteen-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LISTED = {"Origin": "https://app.example"}
PREFLIGHT = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.mark.parametrize("path", ["/", "/skills", "/message", "/nope", "/openapi.json", "/v1/turns/x"])
async def test_open_gateway_refuses_foreign_host(start: Start, stored: Stored, path: str):
    app, client = await start()
    answer = await client.post(path, json={"content": "hi"}, headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (403, "host_not_allowed")
    assert answer.json()["error"] == "Forbidden"
    assert "TORANA_ALLOWED_HOSTS" in answer.json()["detail"]
    assert await stored(app) == 0


async def test_allowed_host_is_accepted(start: Start):
    _, client = await start(allowed_hosts="gate.example")
    assert (await client.get("/skills", headers={"Host": "gate.example:8080"})).status_code == 200


async def test_gateway_with_token_accepts_any_host(start: Start):
    _, client = await start(gateway_token=TOKEN)
    assert (await client.get("/skills", headers=BEARER | {"Host": "gate.example"})).status_code == 200


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
async def test_foreign_page_cannot_post_to_open_gateway(
    start: Start, stored: Stored, headers: dict[str, str], media_type: str
):
    app, client = await start()
    answer = await client.post(
        "/message", content=b'{"content": "hi"}', headers=headers | {"Content-Type": media_type}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "cross_site")
    assert await stored(app) == 0


@pytest.mark.parametrize(
    ("site", "token", "opens"),
    [
        ("none", None, True),
        ("same-origin", None, True),
        ("same-site", None, False),  # another port of this machine
        ("cross-site", None, False),
        ("cross-site", TOKEN, True),  # the console asks for the token
    ],
)
async def test_other_site_opens_console_of_open_gateway_only_with_a_click(
    start: Start, site: str, token: str | None, opens: bool
):
    _, client = await start(**({"gateway_token": token} if token else {}))
    headers = {"Accept": "text/html", "Sec-Fetch-Site": site}
    navigation = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    page = await client.get("/", headers=headers | navigation)

    assert ("<script" in page.text) is opens
    assert ('<a href="./">Open the console</a>' in page.text) is not opens
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]


async def test_health_ignores_host_and_origin(start: Start):
    _, client = await start()
    foreign = {"Host": "evil.example", "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert (await client.get("/health", headers=foreign)).status_code == 200
    assert (await client.get("/api/health", headers=foreign)).status_code == 200


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_cors_is_off_by_default(start: Start, token: str | None):
    _, client = await start(**({"gateway_token": token} if token else {}))
    preflight = await client.options("/message", headers=LISTED | PREFLIGHT)
    assert (preflight.status_code, preflight.headers["content-type"]) == (
        401 if token else 403,
        "application/problem+json",
    )
    assert not [name for name in preflight.headers if name.startswith("access-control-")]


async def test_preflight_from_allowed_origin_needs_no_token_and_has_no_body(start: Start):
    _, client = await start(gateway_token=TOKEN, cors_origins="https://app.example")
    for path in ("/message", "/api/message"):
        answer = await client.options(path, headers=LISTED | PREFLIGHT)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_preflight_from_other_origin_needs_token(start: Start):
    _, client = await start(gateway_token=TOKEN, cors_origins="https://app.example")
    answer = await client.options("/message", headers=PREFLIGHT | {"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_only_preflight_needs_no_token(start: Start):
    _, client = await start(gateway_token=TOKEN, cors_origins="https://app.example")
    answers = [
        await client.options("/message", headers=LISTED),
        await client.post("/message", json={"content": "hi"}, headers=LISTED | PREFLIGHT),
        await client.get("/skills", headers=LISTED | PREFLIGHT),
    ]
    assert [answer.status_code for answer in answers] == [401, 401, 401]


@pytest.mark.parametrize("token", [None, TOKEN])
async def test_page_of_allowed_origin_reads_answers_and_errors(start: Start, token: str | None):
    _, client = await start(cors_origins="https://app.example", **({"gateway_token": token} if token else {}))
    headers = LISTED | {"Sec-Fetch-Site": "cross-site"} | (BEARER if token else {})
    for body, status in (({"content": "hi"}, 200), ({"content": ""}, 400)):
        answer = await client.post("/message", json=body, headers=headers)
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_page_of_allowed_origin_reads_401(start: Start):
    _, client = await start(gateway_token=TOKEN, cors_origins="https://app.example")
    answer = await client.post("/message", json={"content": "hi"}, headers=LISTED)
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_documentation_page_loads_and_runs_nothing(start: Start):
    _, client = await start()
    page = await client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert not [word for word in ("<script", "src=", "@import", "url(", "<link", "<form") if word in page.text]


async def test_browser_without_token_gets_the_console(start: Start):
    _, client = await start(gateway_token=TOKEN)
    refused = await client.get("/", headers={"Accept": "text/html"})
    served = await client.get("/", headers=BEARER)
    assert (refused.status_code, served.status_code) == (401, 200)
    assert refused.headers["www-authenticate"] == 'Bearer realm="torana"'
    assert refused.content == served.content
    assert refused.headers["content-security-policy"] == served.headers["content-security-policy"]
    assert served.headers["cross-origin-opener-policy"] == "same-origin"
    assert (await client.get("/")).json()["code"] == "unauthorized"


async def test_console_is_compressed_for_browsers_that_accept_it(start: Start):
    _, client = await start()
    plain = await client.get("/", headers={"Accept-Encoding": "identity"})
    compressed = await client.get("/", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert compressed.headers["content-encoding"] == "gzip"
    assert compressed.content == plain.content
    assert int(compressed.headers["content-length"]) < len(plain.content) / 3


async def test_documentation_page_lists_every_path_and_status(start: Start):
    _, client = await start()
    page = (await client.get("/docs")).text
    document = (await client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path}" in page
    assert "`" not in page
    assert "<code>Authorization: Bearer &lt;token&gt;</code>" in page
    for status in ("401", "413", "415", "429", "502", "504"):
        assert f"<td>{status}</td>" in page
