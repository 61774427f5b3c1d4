"""Texts of models, users, tools and files run no script, load nothing foreign, and fake no approval."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, expect
from tests.acceptance.console.conftest import OPERATOR, Models, Visit, client
from tests.acceptance.console.payloads import PAYLOADS

from torana.testing.openai_server import Answer, Call, ChatRequest, Reply

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

Serve = Callable[..., "Gateway"]
Visits = Callable[..., Visit]

#: The views that show names and texts of others.
VIEWS = ("turns", "sessions", "approvals", "schedules", "users", "tokens", "audit", "logs", "usage?by=channel")

NAME = "<img src=x onerror=window.taken=1>.txt"


def check_page(page: Page) -> None:
    """Check that nothing ran, and that each link has a harmless scheme."""
    assert page.evaluate("() => window.taken") is None
    links: list[str] = page.locator(".main a").evaluate_all("all => all.map(one => one.protocol)")
    assert set(links) <= {"http:", "https:", ":"}


def test_messages_and_answers_run_nothing(serve: Serve, visit: Visits, model: Models) -> None:
    visited = visit(serve(model(lambda request: request.text)).url, token=OPERATOR)
    page = visited.page
    page.on("dialog", lambda dialog: visited.faults.append(f"a dialog: {dialog.message}"))
    for payload in PAYLOADS:
        visited.send(payload)
        expect(visited.turn().locator(".turn-footer")).to_be_visible()
        check_page(page)
    file: Any = {"name": NAME, "mimeType": "text/plain", "buffer": b"x"}
    page.locator("input[type=file]").set_input_files([file])
    visited.send("file")
    expect(visited.turn().locator(".turn-footer")).to_be_visible()
    expect(visited.turn()).to_contain_text(NAME)

    check_page(page)
    assert len(PAYLOADS) == 50
    assert page.locator(".approval").count() == 0


def test_mark_without_end_is_shown_as_text(serve: Serve, visit: Visits, model: Models) -> None:
    # The parser reads an address again for each of its characters: 200,000 stopped the page for seconds.
    reply = f"[a]({'x' * 200_000}) **b**"
    visited = visit(serve(model(lambda _: reply)).url, token=OPERATOR)
    visited.send("hello")
    expect(visited.turn().locator(".turn-footer")).to_be_visible()

    assert visited.turn().locator(".markdown").text_content() == reply


@pytest.mark.parametrize("reply", [">" * 9_000, "*_" * 4_500, "~~a **b ~~ " * 2_000, "a__b_c " * 100_000])
def test_text_of_too_many_marks_is_shown_as_text(
    serve: Serve, visit: Visits, model: Models, reply: str
) -> None:
    # Chromium lays nested elements out recursively: 3,000 quotations crashed the page. 100,000 elements in a
    # row stopped it for seconds. The model sends the text in large pieces: 100,000 words are not the subject.
    pieces = [reply[start : start + 10_000] for start in range(0, len(reply), 10_000)]
    visited = visit(serve(model(lambda _: Reply(pieces=pieces))).url, token=OPERATOR)
    visited.send("hello")
    expect(visited.turn().locator(".turn-footer")).to_be_visible()

    assert visited.turn().locator(".markdown").text_content() == reply


@pytest.mark.parametrize(("reply", "direction"), [("a\n" * 2_000, "ltr"), ("1. שלום a", "rtl")])
def test_answer_has_the_direction_of_its_first_letter(
    serve: Serve, visit: Visits, model: Models, reply: str, direction: str
) -> None:
    # With `auto`, Chromium took three seconds for 20,000 lines: it read all lines again for each new one.
    visited = visit(serve(model(lambda _: reply)).url, token=OPERATOR)
    visited.send("hello")
    expect(visited.turn().locator(".turn-footer")).to_be_visible()

    expect(visited.turn().locator(".markdown")).to_have_attribute("dir", direction)


def test_arguments_and_results_of_tools_run_nothing(serve: Serve, visit: Visits, model: Models) -> None:
    def reply(request: ChatRequest) -> Answer:
        return (
            "done"
            if request.results
            else [Call("count_text", {"text": text, "part": text}) for text in PAYLOADS]
        )

    visited = visit(serve(model(reply)).url, token=OPERATOR)
    visited.send("count")
    expect(visited.turn().locator(".turn-footer")).to_be_visible()
    visited.turn().locator("details.tools summary").click()

    expect(visited.turn().locator(".tool-call")).to_have_count(len(PAYLOADS))
    check_page(visited.page)
    assert visited.page.locator(".approval").count() == 0


def test_approval_shows_invisible_characters(serve: Serve, visit: Visits, model: Models) -> None:
    hidden = "\u202e\u200b\U000e0041\u3164\u00a0"
    asks = {"TORANA_PERMISSIONS": json.dumps([{"tool": "count_text", "permission": "ask"}])}
    gateway = serve(model(lambda _: [Call("count_text", {"text": f"a{hidden}b"})]), **asks)
    visited = visit(gateway.url, token=OPERATOR)
    visited.send("count")

    shown = r"a\u202e\u200b\udb40\udc41\u3164\u00a0b"
    expect(visited.turn().locator(".approval pre")).to_contain_text(shown)


def test_names_run_nothing(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    with client(gateway) as operator:
        for payload in PAYLOADS:
            body = {"content": "hello", "channelId": payload, "userId": payload}
            session = operator.post("/message", json=body).raise_for_status().json()["sessionId"]
            operator.patch(f"/v1/sessions/{session}", json={"title": payload[:90]}).raise_for_status()
            operator.post("/v1/tokens", json={"label": payload, "scopes": ["read"]}).raise_for_status()
            reminder = {"text": payload, "kind": "remind", "at": "tomorrow at 9"}
            operator.post("/v1/schedules", json=reminder).raise_for_status()
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    page.on("dialog", lambda dialog: visited.faults.append(f"a dialog: {dialog.message}"))
    for view in VIEWS:
        visited.open_view(view)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".spinner")).to_have_count(0)
        check_page(page)
