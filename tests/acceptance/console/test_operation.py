"""An operator sees what the gateway did, and manages users, tokens, schedules and skills."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from tests.acceptance.console.conftest import OPERATOR, Models, Visit, client

from torana.testing.openai_server import Answer, Call, ChatRequest

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

Serve = Callable[..., "Gateway"]
Visits = Callable[..., Visit]

MICRO = 1_000_000


def talk(gateway: Gateway, *contents: str, user: str = "ana") -> None:
    """Send messages over HTTP."""
    with client(gateway) as operator:
        for content in contents:
            body = {"content": content, "channelId": "kitchen", "userId": user}
            operator.post("/message", json=body).raise_for_status()


def test_list_is_exported_as_csv_and_json(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    talk(gateway, "what is 17 % of 2,340", "12 km in miles")
    visited = visit(gateway.url, token=OPERATOR)
    visited.open_view("turns")
    page = visited.page
    with page.expect_download() as download:
        page.get_by_role("button", name="Export CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    with page.expect_download() as download:
        page.get_by_role("button", name="Export JSON").click()
    items = json.loads(download.value.path().read_text())

    assert [row["Message"] for row in rows] == ["12 km in miles", "what is 17 % of 2,340"]
    assert [item["id"] for item in items] == [row["Id"] for row in rows]


def test_usage_equals_the_ledger_to_the_micro_dollar(serve: Serve, visit: Visits, model: Models) -> None:
    gateway = serve(model(lambda _: "hello"), TORANA_PRICES="openai-chat:stand-in 0.15 0.60")
    talk(gateway, "one", "two", "three")
    with client(gateway) as operator:
        total = operator.get("/v1/usage", params={"days": 30, "by": "user"}).json()["breakdown"]["total"]
    visited = visit(gateway.url, token=OPERATOR)
    visited.open_view("usage?by=user")
    page = visited.page
    tables = page.get_by_role("button", name="Export CSV")
    expect(tables).to_have_count(2)
    with page.expect_download() as download:
        tables.last.click()
    *users, last = list(csv.DictReader(io.StringIO(download.value.path().read_text())))

    assert round(float(last["Cost"]) * MICRO) == total["costMicroUsd"]
    assert sum(round(float(user["Cost"]) * MICRO) for user in users) == total["costMicroUsd"]


def test_turn_is_shown_with_its_steps_and_calls(serve: Serve, visit: Visits, model: Models) -> None:
    def reply(request: ChatRequest) -> Answer:
        return " ".join(request.results) or [Call("calculate", {"expression": "6 * 7"})]

    gateway = serve(model(reply))
    talk(gateway, "what is 6 * 7?")
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    visited.open_view("turns")
    page.get_by_role("main").get_by_role("link", name="what is 6 * 7?").click()

    steps = page.get_by_role("table")
    expect(steps.get_by_role("row").filter(has_text="calculate")).to_contain_text("completed")
    expect(steps.get_by_role("row").filter(has_text="Model")).to_have_count(2)
    expect(page.locator(".tool-call")).to_contain_text("6 * 7 = 42")


def test_token_is_created_shown_once_rotated_and_revoked(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    visited.open_view("tokens")
    page.get_by_role("button", name="Create token").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Label").fill("Ana's phone")
    dialog.get_by_role("button", name="Create token").click()
    secret = page.locator(".copyable code")
    expect(secret).to_contain_text("torana_")
    shown = secret.text_content() or ""
    page.keyboard.press("Escape")
    expect(page.get_by_text(shown)).to_have_count(0)

    row = page.get_by_role("row").filter(has_text="Ana's phone")
    row.get_by_role("button", name="Rotate").click()
    page.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    expect(secret).not_to_have_text(shown)
    page.keyboard.press("Escape")
    active = row.filter(has_text="active")
    expect(active).to_have_count(2)  # the old token is valid for another hour
    for left in (1, 0):
        active.first.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(active).to_have_count(left)


def test_dialog_is_open_as_soon_as_it_is_on_the_page(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    visited.open_view("tokens")
    page.evaluate(
        """() => {
            window.dialogs = [];
            new MutationObserver(() => window.dialogs.push(...document.querySelectorAll("dialog")
                .values().map(dialog => dialog.matches(":modal"))))
                .observe(document.body, { childList: true, subtree: true });
        }"""
    )
    page.get_by_role("button", name="Create token").first.click()
    expect(page.get_by_role("dialog")).to_be_visible()
    opened = page.evaluate("() => window.dialogs")
    assert opened
    assert all(opened)  # a key that is pressed now reaches the dialog


def test_user_is_exported_and_erased_with_a_receipt(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    talk(gateway, "remember that my sister is called Ondine")
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    visited.open_view("users")
    page.get_by_role("link", name="ana", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export data").click()
    assert download.value.path().read_bytes().startswith(b"PK")
    page.get_by_role("button", name="Erase user").click()
    page.get_by_role("dialog").get_by_role("button", name="Erase user").click()

    expect(page.get_by_role("status").filter(has_text="memories")).to_be_visible()
    with client(gateway) as operator:
        assert operator.get("/v1/users/ana/memories").json()["items"] == []


def test_schedule_is_added_run_paused_and_removed(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    visited.open_view("schedules")
    page.get_by_role("button", name="Add schedule").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Text").fill("Water the roses")
    dialog.get_by_label("Kind").select_option(label="Task for the agent")
    dialog.get_by_label("Repetition").select_option("rule")
    dialog.get_by_label("Time or rule").fill("every day at 9")
    dialog.get_by_role("button", name="Add schedule").click()
    row = page.get_by_role("row").filter(has_text="Water the roses")
    row.get_by_role("button", name="Run now").click()
    expect(row).to_contain_text("$0.00")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_role("button", name="Run now")).to_have_count(0)
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row).to_have_count(0)


def test_expired_token_leads_to_the_sign_in(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    with client(gateway) as operator:
        body = {"label": "short", "user": "ana", "scopes": ["message", "read"], "expiresIn": 15}
        token = operator.post("/v1/tokens", json=body).raise_for_status().json()["token"]
    page = visit(gateway.url, token=token).page
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()

    expect(page.get_by_role("status").filter(has_text="Sign in again")).to_be_visible(timeout=60_000)
