import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from torana.api.middleware import authentication
from torana.api.middleware.authentication import Authentication
from torana.errors import StoreUnavailable, Unauthorized
from torana.messages import Principal

Ask = Callable[..., Coroutine[Any, Any, Any]]

TOKEN = "correct horse battery staple"
SECRET = "torana_" + "x" * 43
CODE = "torana_code_" + "x" * 43
PLAIN = 'Bearer realm="torana"'
INVALID = 'Bearer realm="torana", error="invalid_token"'


async def principal(scope: Scope, receive: Receive, send: Send) -> None:
    """Return the name of the principal."""
    await PlainTextResponse(scope["state"]["principal"].name)(scope, receive, send)


async def page(_request: Request, headers: Mapping[str, str]) -> PlainTextResponse:
    return PlainTextResponse("a page", status_code=401, headers=headers)


class Pauses:
    """Record delays instead of sleeping."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def holder(secret: str) -> Principal | None:
    """Return the principal of the only created token."""
    return Principal(name="token:tok_1") if secret == SECRET else None


async def code_holder(secret: str) -> Principal | None:
    """Return the principal of the only sign-in code."""
    return Principal(name="operator", scopes=frozenset()) if secret == CODE else None


def guarded(token: str | None = TOKEN, sleep: Pauses | None = None) -> Authentication:
    return Authentication(
        principal,
        token=token,
        authenticate=holder,
        sign_in=code_holder,
        unauthorized_page=page,
        sleep=sleep or Pauses(),
    )


async def test_gateway_token_gives_operator_principal(ask: Ask):
    answer = await ask(guarded(), "GET", "/skills", [("Authorization", f"Bearer {TOKEN}")])
    assert answer.body == b"operator"


async def test_open_gateway_gives_local_principal(ask: Ask):
    answer = await ask(guarded(token=None), "GET", "/skills", [("Authorization", "Bearer whatever")])
    assert answer.body == b"local"


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_created_token_gives_its_principal_on_guarded_and_open_gateway(ask: Ask, token: str | None):
    answer = await ask(guarded(token), "GET", "/skills", [("Authorization", f"Bearer {SECRET}")])
    assert answer.body == b"token:tok_1"


async def test_code_signs_in_only_at_its_path(ask: Ask):
    code = [("Authorization", f"Bearer {CODE}")]
    for method in ("GET", "POST"):
        assert (await ask(guarded(), method, "/v1/sign-in", code)).body == b"operator"
    for method, path in [("DELETE", "/v1/sign-in"), ("GET", "/skills"), ("POST", "/v1/sign-in-codes")]:
        with pytest.raises(Unauthorized):
            await ask(guarded(), method, path, code)


@pytest.mark.parametrize("credential", [TOKEN, SECRET, CODE + "x", ""])
async def test_sign_in_accepts_no_other_credential(ask: Ask, credential: str):
    with pytest.raises(Unauthorized):
        await ask(guarded(), "POST", "/v1/sign-in", [("Authorization", f"Bearer {credential}")])


@pytest.mark.parametrize("credential", [SECRET, CODE, "whatever"])
async def test_sign_in_on_open_gateway_has_local_principal(ask: Ask, credential: str):
    sent = [("Authorization", f"Bearer {credential}")]
    assert (await ask(guarded(token=None), "POST", "/v1/sign-in", sent)).body == b"local"


@pytest.mark.parametrize(
    "sent",
    [
        [f"Bearer {SECRET}x"],
        ["Bearer torana_"],
        [f"bearer  {SECRET[:-1]}"],
        # One of them is valid, but it is unclear which one counts.
        [f"Bearer {SECRET}", "Bearer whatever"],
        ["Bearer whatever", f"Bearer {SECRET}"],
    ],
)
async def test_open_gateway_refuses_invalid_created_token(ask: Ask, sent: list[str]):
    with pytest.raises(Unauthorized):
        await ask(guarded(token=None), "GET", "/skills", [("Authorization", value) for value in sent])


async def test_broken_store_leaves_only_gateway_token_usable(ask: Ask):
    async def broken(_secret: str) -> Principal | None:
        raise StoreUnavailable

    app = Authentication(principal, token=TOKEN, authenticate=broken, sign_in=broken, unauthorized_page=page)
    assert (await ask(app, "GET", "/skills", [("Authorization", f"Bearer {TOKEN}")])).body == b"operator"
    with pytest.raises(StoreUnavailable):
        await ask(app, "GET", "/skills", [("Authorization", f"Bearer {SECRET}")])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_health_needs_no_token(ask: Ask, method: str):
    assert (await ask(guarded(), method, "/health")).body == b"local"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/health"),
        ("OPTIONS", "/health"),
        ("GET", "/health/"),
        ("GET", "//health"),
        ("GET", "/healthz"),
    ],
)
async def test_other_methods_and_paths_like_health_need_token(ask: Ask, method: str, path: str):
    with pytest.raises(Unauthorized):
        await ask(guarded(), method, path)


@pytest.mark.parametrize(
    ("sent", "challenge"),
    [
        ([], PLAIN),
        ([""], PLAIN),
        (["Bearer"], PLAIN),
        (["Bearer  "], PLAIN),
        (["Basic dXNlcjpwYXNz"], PLAIN),
        ([TOKEN], PLAIN),
        # Two headers: it is unclear which of them a proxy in front has checked.
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], PLAIN),
        (["Bearer wrong"], INVALID),
        ([f"Bearer {TOKEN}x"], INVALID),
        ([f"Bearer {TOKEN[:-1]}"], INVALID),
        ([f"Bearer {TOKEN.upper()}"], INVALID),
        (["Bearer \xff\xfe"], INVALID),
    ],
)
async def test_missing_or_wrong_token_is_refused_with_challenge(ask: Ask, sent: list[str], challenge: str):
    with pytest.raises(Unauthorized) as caught:
        await ask(guarded(), "GET", "/skills", [("Authorization", value) for value in sent])
    assert caught.value.headers == {"WWW-Authenticate": challenge}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_bearer_scheme_ignores_case_and_extra_spaces(ask: Ask, scheme: str):
    answer = await ask(guarded(), "GET", "/skills", [("Authorization", f"{scheme}   {TOKEN} ")])
    assert answer.body == b"operator"


# The last byte of these is a blank in Latin-1, as header values are read: U+00A0 and U+0085.
@pytest.mark.parametrize("token", ["clé à", "Zürich Å", "пароль 密码 🔑"])
async def test_gateway_token_may_contain_any_character(ask: Ask, token: str):
    sent = f"Bearer {token}".encode().decode("latin-1")
    assert (await ask(guarded(token), "GET", "/skills", [("Authorization", sent)])).body == b"operator"


@pytest.mark.parametrize(
    ("path", "accept", "shown"),
    [("/", "text/html,*/*;q=0.8", True), ("/", "*/*", False), ("/skills", "text/html", False)],
)
async def test_browser_without_token_gets_page_at_root(ask: Ask, path: str, accept: str, shown: bool):
    try:
        answer = await ask(guarded(), "GET", path, [("Accept", accept)])
    except Unauthorized:
        assert not shown
    else:
        assert shown
        assert (answer.status, answer.body, answer.headers["www-authenticate"]) == (401, b"a page", PLAIN)


async def fail(ask: Ask, app: Authentication, times: int, client: str = "192.0.2.1") -> None:
    for _ in range(times):
        with pytest.raises(Unauthorized):
            await ask(app, "GET", "/skills", client=client)


async def test_delay_of_repeated_failures_grows_to_one_second(ask: Ask):
    pauses = Pauses()
    await fail(ask, guarded(sleep=pauses), 40)
    assert pauses.taken[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert len(pauses.taken) == 37  # the first three are not delayed
    assert max(pauses.taken) == 1.0


@pytest.mark.parametrize("token", [TOKEN, None], ids=["guarded", "open"])
async def test_guesses_of_created_tokens_are_delayed_and_valid_token_is_not(ask: Ask, token: str | None):
    pauses = Pauses()
    app = guarded(token, pauses)
    for number in range(5):
        guess = f"Bearer torana_{number:043}"
        with pytest.raises(Unauthorized):
            await ask(app, "GET", "/skills", [("Authorization", guess)])
    assert pauses.taken == [0.05, 0.1]
    await ask(app, "GET", "/skills", [("Authorization", f"Bearer {SECRET}")])
    assert pauses.taken == [0.05, 0.1]


async def test_failures_of_one_address_do_not_delay_another(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 3, client="192.0.2.1")
    await fail(ask, app, 3, client="192.0.2.2")
    assert pauses.taken == []


async def test_valid_token_is_not_delayed_after_failures(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 9)
    pauses.taken.clear()
    await ask(app, "GET", "/skills", [("Authorization", f"Bearer {TOKEN}")])
    await ask(app, "GET", "/health")
    assert pauses.taken == []


async def test_oldest_address_is_forgotten_after_4096_others(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 3, client="first")
    for number in range(4096):
        await fail(ask, app, 1, client=f"other {number}")
    await fail(ask, app, 1, client="first")
    assert pauses.taken == []


class Busy:
    """An application and lookups of tokens that wait until the test continues, and count what waits."""

    def __init__(self) -> None:
        self.looked_up = 0
        self.processed = 0
        self.go_on = asyncio.Event()

    async def look_up(self, secret: str) -> Principal | None:
        self.looked_up += 1
        return Principal(name="token", user="ana", owner="user:ana", token=secret, scopes=frozenset())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.processed += 1
        await self.go_on.wait()
        await PlainTextResponse("done")(scope, receive, send)

    def app(self) -> Authentication:
        return Authentication(
            self, token=TOKEN, authenticate=self.look_up, sign_in=code_holder, unauthorized_page=page
        )


async def _settle() -> None:
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("method", "path", "at_once"), [("GET", "/v1/turns", 4), ("POST", "/message", 20)])
async def test_few_requests_of_a_user_are_processed_at_a_time_but_all_messages(
    ask: Ask, method: str, path: str, at_once: int
):
    busy = Busy()
    app = busy.app()
    requests = [
        asyncio.ensure_future(ask(app, method, path, [("Authorization", f"Bearer torana_{number % 2}")]))
        for number in range(20)
    ]
    await _settle()
    assert busy.processed == at_once
    operator = asyncio.ensure_future(ask(app, method, path, [("Authorization", f"Bearer {TOKEN}")]))
    await _settle()
    assert busy.processed == at_once + 1

    busy.go_on.set()
    assert [answer.body for answer in await asyncio.gather(*requests, operator)] == [b"done"] * 21


async def test_request_that_waits_long_gives_its_place_to_the_next(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(authentication, "_PROCESSING", 0)
    busy = Busy()
    app = busy.app()
    sent = [("Authorization", "Bearer torana_1")]
    requests = [asyncio.ensure_future(ask(app, "GET", "/v1/turns", sent)) for _ in range(20)]
    await _settle()
    assert busy.processed == 20
    busy.go_on.set()
    await asyncio.gather(*requests)


async def test_few_lookups_of_a_secret_are_made_at_a_time(ask: Ask):
    go_on = asyncio.Event()
    secrets: list[str] = []

    async def look_up(secret: str) -> Principal | None:
        secrets.append(secret)
        await go_on.wait()
        return await holder(SECRET)

    app = Authentication(principal, token=TOKEN, authenticate=look_up, sign_in=look_up, unauthorized_page=page)
    requests = [
        asyncio.ensure_future(ask(app, "GET", "/skills", [("Authorization", f"Bearer torana_{number % 2}")]))
        for number in range(20)
    ]
    await _settle()
    assert Counter(secrets) == {"torana_0": 4, "torana_1": 4}
    go_on.set()
    await asyncio.gather(*requests)
