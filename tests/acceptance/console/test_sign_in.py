"""The page is served to everybody, and shows what its token may read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx2
import pytest
from playwright.sync_api import expect
from tests.acceptance.console.conftest import OPERATOR, Visit, client, new_token
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

#: The largest page that a browser loads, compressed.
LARGEST_PAGE = 60_000

#: Everything that a token for messages alone may ask for.
FOR_MESSAGES = {"/", "/v1/me", "/v1/messages", "/v1/events", "/v1/sessions", "/v1/turns"}


def test_page_has_the_same_bytes_with_and_without_a_token(serve: Callable[..., Gateway]) -> None:
    gateway = serve()
    headers = {"Accept": "text/html", "Accept-Encoding": "gzip"}
    with httpx2.Client(base_url=gateway.url, headers=headers, trust_env=False, timeout=PATIENCE) as stranger:
        refused = stranger.get("/")
    with client(gateway) as operator:
        served = operator.get("/", headers=headers)

    assert (refused.status_code, served.status_code) == (401, 200)
    assert refused.content == served.content
    assert len(gzip.compress(served.content)) <= LARGEST_PAGE
    assert "script-src 'sha256-" in served.headers["Content-Security-Policy"]
    assert "require-trusted-types-for 'script'" in served.headers["Content-Security-Policy"]


def test_token_is_kept_in_memory_only(serve: Callable[..., Gateway], visit: Callable[..., Visit]) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()

    stored = page.evaluate(
        "() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])"
    )
    assert OPERATOR not in stored
    assert OPERATOR not in page.url
    page.reload()
    expect(page.get_by_label("Token", exact=True)).to_be_visible()


def test_token_is_kept_until_the_tab_is_closed_on_request(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    visited = visit(serve().url)
    page = visited.page
    page.get_by_label("Keep until this tab is closed").check()
    visited.sign_in(OPERATOR)
    page.reload()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    assert page.evaluate("() => sessionStorage.length") == 0


def test_unknown_token_is_refused_with_a_reason(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    page = visit(serve().url).page
    page.get_by_label("Token", exact=True).fill("wrong")
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("alert")).to_contain_text("not valid")
    expect(page.get_by_label("Token", exact=True)).to_have_value("wrong")


def test_gateway_without_a_token_has_no_sign_in(
    new_gateway: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    gateway = new_gateway()
    gateway.start()
    page = visit(gateway.url).page

    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_have_count(0)


def new_code(gateway: Gateway, **body: object) -> str:
    with client(gateway) as operator:
        made = operator.post("/v1/sign-in-codes", json=body).raise_for_status().json()
    return str(made["code"])


def test_one_time_code_signs_in_once(serve: Callable[..., Gateway], visit: Callable[..., Visit]) -> None:
    gateway = serve()
    code = new_code(gateway, scopes=["message", "read"])
    page = visit(f"{gateway.url}#/sign-in?code={code}").page
    expect(page.get_by_role("main")).to_contain_text("signs in as operator")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    expect(page.get_by_role("link", name="Tokens")).to_have_count(0)
    assert code not in page.evaluate("() => location.href + JSON.stringify(history.state)")

    again = visit(f"{gateway.url}#/sign-in?code={code}").page
    expect(again.get_by_role("status")).to_contain_text("cannot be used")
    expect(again.get_by_label("Token", exact=True)).to_be_visible()


def test_link_of_another_person_signs_in_after_a_question_only(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    gateway = serve()
    visited = visit(f"{gateway.url}#/sign-in?code={new_code(gateway, user='mallory')}")
    page = visited.page
    expect(page.get_by_role("main")).to_contain_text("This link signs in as mallory.")
    assert [one.url for one in visited.requests if one.method == "POST"] == []
    page.get_by_role("button", name="Cancel").click()

    expect(page.get_by_label("Token", exact=True)).to_be_visible()
    with client(gateway) as operator:
        assert operator.get("/v1/tokens").json()["items"] == []


def test_question_names_the_sign_in_that_the_link_replaces(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    gateway = serve()
    visited = visit(gateway.url)
    page, link = visited.page, f"{gateway.url}?#/sign-in?code="
    page.get_by_label("Keep until this tab is closed").check()
    visited.sign_in(new_token(gateway, "message", "read", user="ana"))

    page.goto(link + new_code(gateway, user="mallory"))
    expect(page.get_by_role("main")).to_contain_text("This ends your sign-in as ana.")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("ana · Torana")).to_be_visible()

    page.goto(f"{gateway.url}?2#/sign-in?code={new_code(gateway, user='bob')}")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_text("bob · Torana")).to_be_visible()
    assert page.evaluate("() => sessionStorage.length") == 0


def test_used_code_is_refused_after_the_question(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    gateway = serve()
    code = new_code(gateway)
    page = visit(f"{gateway.url}#/sign-in?code={code}").page
    expect(page.get_by_role("main")).to_contain_text("signs in as operator")
    with client(gateway, code) as other:
        other.post("/v1/sign-in").raise_for_status()
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("alert")).to_contain_text("cannot be used")


def test_revoked_token_leads_to_the_sign_in(serve: Callable[..., Gateway], visit: Callable[..., Visit]) -> None:
    gateway = serve()
    visited = visit(gateway.url, token=new_token(gateway, "message", "read", user="ana"))
    visited.page.get_by_role("textbox", name="Message").fill("hello")
    with client(gateway) as operator:
        (token,) = operator.get("/v1/tokens").json()["items"]
        operator.delete(f"/v1/tokens/{token['id']}").raise_for_status()

    # Another request of the page may show the sign-in first, so this waits for no button.
    visited.page.keyboard.press("Enter")
    expect(visited.page.get_by_role("status")).to_contain_text("Sign in again")


def test_token_for_messages_sees_no_view_of_operators_and_asks_for_none(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    gateway = serve()
    visited = visit(gateway.url, token=new_token(gateway, "message", user="ana"))
    visited.send("what is 17 % of 2,340")
    expect(visited.turn()).to_contain_text("397.8")
    for name in ("status", "tokens", "logs", "settings", "users"):
        visited.open_view(name)
        expect(visited.page.get_by_role("textbox", name="Message")).to_be_visible()

    assert {"/".join(path.split("/")[:3]) for path in visited.paths} <= FOR_MESSAGES
    refused = [one.url for one in visited.requests if (answer := one.response()) and answer.status == 403]
    assert refused == []


@pytest.mark.parametrize("strips_prefix", [True, False])
def test_console_works_behind_a_proxy_under_a_prefix(
    serve: Callable[..., Gateway],
    publish: Callable[..., str],
    visit: Callable[..., Visit],
    strips_prefix: bool,
) -> None:
    url = publish(serve(), strips_prefix=strips_prefix)
    visited = visit(url, token=OPERATOR)
    visited.send("what is 17 % of 2,340")

    expect(visited.turn()).to_contain_text("397.8")
    assert all(path.startswith("/api/") for path in visited.paths)


def test_languages_follow_the_browser_and_can_be_chosen(
    serve: Callable[..., Gateway], visit: Callable[..., Visit]
) -> None:
    page = visit(serve().url, locale="de-DE").page
    expect(page.get_by_role("button", name="Anmelden")).to_be_visible()
    page.get_by_label("Sprache").select_option("zh")

    expect(page.get_by_role("button", name="登录")).to_be_visible()
    assert page.evaluate("() => document.documentElement.lang") == "zh"
