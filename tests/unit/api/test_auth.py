from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from torana.api.middleware.authentication import Authentication
from torana.errors import StoreUnavailable, Unauthorized
from torana.messages import Principal

Ask = Callable[..., Coroutine[Any, Any, Any]]

TOKEN = "correct horse battery staple"
SECRET = "torana_" + "x" * 43
PLAIN = 'Bearer realm="torana"'
INVALID = 'Bearer realm="torana", error="invalid_token"'


async def principal(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with who asks."""
    await PlainTextResponse(scope["state"]["principal"].name)(scope, receive, send)


def page(headers: Mapping[str, str]) -> PlainTextResponse:
    return PlainTextResponse("a page", status_code=401, headers=headers)


class Pauses:
    """Notes how long it was asked to sleep, and does not."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


async def holder(secret: str) -> Principal | None:
    """Knows one secret that was made."""
    return Principal(name="token:tok_1") if secret == SECRET else None


def guarded(token: str | None = TOKEN, sleep: Pauses | None = None) -> Authentication:
    return Authentication(
        principal, token=token, authenticate=holder, closed_door=page, sleep=sleep or Pauses()
    )


async def test_the_token_makes_an_operator(ask: Ask):
    answer = await ask(guarded(), "GET", "/skills", [("Authorization", f"Bearer {TOKEN}")])
    assert answer.body == b"operator"


async def test_without_a_token_everyone_is_local(ask: Ask):
    answer = await ask(guarded(token=None), "GET", "/skills", [("Authorization", "Bearer whatever")])
    assert answer.body == b"local"


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_a_token_that_was_made_is_its_holder_on_a_guarded_and_an_open_gateway(
    ask: Ask, token: str | None
):
    answer = await ask(guarded(token), "GET", "/skills", [("Authorization", f"Bearer {SECRET}")])
    assert answer.body == b"token:tok_1"


@pytest.mark.parametrize(
    "sent",
    [
        [f"Bearer {SECRET}x"],
        ["Bearer torana_"],
        [f"bearer  {SECRET[:-1]}"],
        # One of them is good, but which one is meant?
        [f"Bearer {SECRET}", "Bearer whatever"],
        ["Bearer whatever", f"Bearer {SECRET}"],
    ],
)
async def test_an_open_gateway_refuses_what_means_to_be_a_token_and_is_none(ask: Ask, sent: list[str]):
    with pytest.raises(Unauthorized):
        await ask(guarded(token=None), "GET", "/skills", [("Authorization", value) for value in sent])


async def test_with_a_broken_store_the_gateways_own_token_is_taken_and_no_other(ask: Ask):
    async def broken(_secret: str) -> Principal | None:
        raise StoreUnavailable

    app = Authentication(principal, token=TOKEN, authenticate=broken, closed_door=page)
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
async def test_nothing_else_is_health(ask: Ask, method: str, path: str):
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
        # Two of them: which one a proxy before us looked at is anyone's guess.
        ([f"Bearer {TOKEN}", f"Bearer {TOKEN}"], PLAIN),
        (["Bearer wrong"], INVALID),
        ([f"Bearer {TOKEN}x"], INVALID),
        ([f"Bearer {TOKEN[:-1]}"], INVALID),
        ([f"Bearer {TOKEN.upper()}"], INVALID),
        (["Bearer \xff\xfe"], INVALID),
    ],
)
async def test_everything_but_the_token_is_refused(ask: Ask, sent: list[str], challenge: str):
    with pytest.raises(Unauthorized) as caught:
        await ask(guarded(), "GET", "/skills", [("Authorization", value) for value in sent])
    assert caught.value.headers == {"WWW-Authenticate": challenge}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_scheme_is_known_in_any_case_and_spaces_do_not_count(ask: Ask, scheme: str):
    answer = await ask(guarded(), "GET", "/skills", [("Authorization", f"{scheme}   {TOKEN} ")])
    assert answer.body == b"operator"


# The last byte of these is a blank in Latin-1, as header values are read: U+00A0 and U+0085.
@pytest.mark.parametrize("token", ["clé à", "Zürich Å", "пароль 密码 🔑"])
async def test_a_token_may_hold_any_character(ask: Ask, token: str):
    sent = f"Bearer {token}".encode().decode("latin-1")
    assert (await ask(guarded(token), "GET", "/skills", [("Authorization", sent)])).body == b"operator"


@pytest.mark.parametrize(
    ("path", "accept", "shown"),
    [("/", "text/html,*/*;q=0.8", True), ("/", "*/*", False), ("/skills", "text/html", False)],
)
async def test_a_person_who_visits_the_root_is_shown_a_page(ask: Ask, path: str, accept: str, shown: bool):
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


async def test_repeated_failures_are_slowed_up_to_a_second(ask: Ask):
    pauses = Pauses()
    await fail(ask, guarded(sleep=pauses), 40)
    assert pauses.taken[:6] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0]
    assert len(pauses.taken) == 37  # the first three cost nothing
    assert max(pauses.taken) == 1.0


@pytest.mark.parametrize("token", [TOKEN, None], ids=["guarded", "open"])
async def test_guesses_at_tokens_are_slowed_like_any_other_and_a_good_one_is_not(ask: Ask, token: str | None):
    pauses = Pauses()
    app = guarded(token, pauses)
    for number in range(5):
        guess = f"Bearer torana_{number:043}"
        with pytest.raises(Unauthorized):
            await ask(app, "GET", "/skills", [("Authorization", guess)])
    assert pauses.taken == [0.05, 0.1]
    await ask(app, "GET", "/skills", [("Authorization", f"Bearer {SECRET}")])
    assert pauses.taken == [0.05, 0.1]


async def test_only_the_failing_address_is_slowed(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 3, client="192.0.2.1")
    await fail(ask, app, 3, client="192.0.2.2")
    assert pauses.taken == []


async def test_a_valid_token_is_never_slowed_whatever_failed_at_its_address(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 9)
    pauses.taken.clear()
    await ask(app, "GET", "/skills", [("Authorization", f"Bearer {TOKEN}")])
    await ask(app, "GET", "/health")
    assert pauses.taken == []


async def test_so_many_addresses_are_remembered_and_no_more(ask: Ask):
    pauses = Pauses()
    app = guarded(sleep=pauses)
    await fail(ask, app, 3, client="first")
    for number in range(4096):
        await fail(ask, app, 1, client=f"other {number}")
    await fail(ask, app, 1, client="first")
    assert pauses.taken == []
