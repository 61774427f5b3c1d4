"""Each view is free of faults of accessibility, in two sizes and all colour schemes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect
from tests.acceptance.console.conftest import OPERATOR, PHONE, WIDE, Visit, client, find_violations

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

VIEWS = (
    "status", "turns", "sessions", "approvals", "memories?user=ana", "schedules", "usage", "users", "users/ana",
    "tokens", "connectors", "deliveries", "skills", "skills/calculator", "mcp", "audit", "logs", "settings",
)  # fmt: skip

#: The screenshots in `docs/images`: view, size and scheme. `make screenshots` takes them again.
SCREENSHOTS = {("chat", WIDE, "light"), ("usage", WIDE, "dark"), ("chat", PHONE, "light")}

MESSAGES = (
    "what is 17 % of 2,340",
    "remember that my sister is called Ondine",
    "remind me tomorrow at 9 to call Ben",
    "add milk and bread to my shopping list",
    "help",
)


@pytest.fixture
def gateway(serve: Callable[..., Gateway]) -> Gateway:
    """A gateway with something to show in most views."""
    gateway = serve(TORANA_LIMITS_PER_USER="50 messages/day")
    with client(gateway) as operator:
        for content in MESSAGES:
            body = {"content": content, "channelId": "kitchen", "userId": "ana"}
            operator.post("/message", json=body).raise_for_status()
        body = {"label": "Ana's phone", "user": "ana", "scopes": ["message", "read", "memory"]}
        operator.post("/v1/tokens", json=body).raise_for_status()
    return gateway


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark", "forced"])
def test_view_has_no_fault_of_accessibility(
    gateway: Gateway, visit: Callable[..., Visit], axe: str, size: tuple[int, int], scheme: str
) -> None:
    colours: dict[str, Any] = {"forced_colors": "active"} if scheme == "forced" else {"color_scheme": scheme}
    visited = visit(gateway.url, size=size, reduced_motion="reduce", **colours)
    page = visited.page
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    violations = {"sign-in": find_violations(page, axe)}
    visited.sign_in(OPERATOR)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    violations["welcome"] = find_violations(page, axe)
    with client(gateway) as operator:
        (session,) = operator.get("/v1/sessions").json()["items"]
        turn = operator.get("/v1/turns").json()["items"][0]["id"]

    for view in (*VIEWS, f"turns/{turn}", f"chat/{session['id']}"):
        visited.open_view(view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".spinner")).to_have_count(0)
        violations[view] = find_violations(page, axe)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0], view
        if view.startswith("chat/"):
            expect(page.locator(".turn-footer").last).to_be_in_viewport()
        _take_screenshot(page, view.partition("/")[0], size, scheme)

    assert {view: found for view, found in violations.items() if found} == {}


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_view_fits_the_page_from_right_to_left(
    gateway: Gateway, visit: Callable[..., Visit], size: tuple[int, int]
) -> None:
    visited = visit(gateway.url, token=OPERATOR, size=size)
    page = visited.page
    page.evaluate("() => { document.documentElement.dir = 'rtl' }")
    with client(gateway) as operator:
        operator.post(
            "/message", json={"content": "مرحبا", "channelId": "rtl", "userId": "ana"}
        ).raise_for_status()
        session = operator.get("/v1/sessions").json()["items"][0]["id"]

    for view in (*VIEWS, f"chat/{session}"):
        visited.open_view(view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".spinner")).to_have_count(0)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= size[0], view

    expect(page.get_by_text("مرحبا").last).to_have_css("direction", "rtl")
    message, answer = (visited.turn().locator(f".message.{who}").bounding_box() for who in ("user", "agent"))
    assert message
    assert answer
    assert message["x"] <= answer["x"], "a user's message is on the left, at the end of the line"
    if size == WIDE:
        side = page.get_by_role("navigation", name="Operate").bounding_box()
        assert side
        assert side["x"] > size[0] / 2


def _take_screenshot(page: Page, view: str, size: tuple[int, int], scheme: str) -> None:
    folder = os.environ.get("TORANA_SCREENSHOTS")
    if folder and (view, size, scheme) in SCREENSHOTS:
        name = f"console-{view}-{'wide' if size == WIDE else 'phone'}-{scheme}.png"
        page.screenshot(path=Path(folder) / name)
