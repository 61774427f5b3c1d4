"""The page heals itself after a killed gateway and a lost connection, without a reload and without a repeat."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from tests.acceptance.console.conftest import OPERATOR, Models, Visit, open_page
from tests.acceptance.console.test_conversation import Gate

from torana.testing.openai_server import ChatRequest, Reply

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

Serve = Callable[..., "Gateway"]
Visits = Callable[..., Visit]

#: The browser reports requests that found no gateway.
LOST = ("ERR_CONNECTION", "ERR_INTERNET_DISCONNECTED", "ERR_INCOMPLETE", "ERR_NETWORK", "ERR_EMPTY")


def forget_lost_requests(visited: Visit) -> None:
    visited.faults[:] = [fault for fault in visited.faults if not any(lost in fault for lost in LOST)]


def test_answer_is_completed_after_the_gateway_was_killed(serve: Serve, visit: Visits, model: Models) -> None:
    gate, numbers = Gate(), count()

    def reply(_: ChatRequest) -> Reply:
        first = next(numbers) == 0
        return Reply(pieces=gate.pieces("One more", " two")) if first else Reply(answer="One two three.")

    gateway = serve(model(reply))
    visited = visit(gateway.url, token=OPERATOR)
    page = visited.page
    page.evaluate("() => { window.isSamePage = true }")
    visited.send("count")
    expect(visited.turn()).to_contain_text("One")
    gateway.stop(signal.SIGKILL)
    expect(page.get_by_text("The connection to the gateway is lost")).to_be_visible()
    gateway.start()

    expect(visited.turn()).to_contain_text("One two three.", timeout=30_000)
    expect(page.get_by_text("The connection to the gateway is lost")).to_have_count(0)
    expect(page.locator("article.turn")).to_have_count(1)
    assert page.evaluate("() => window.isSamePage") is True
    visited.send("again")
    expect(page.locator("article.turn")).to_have_count(2)
    gate.open()
    forget_lost_requests(visited)


def test_message_that_was_written_offline_is_sent_once(serve: Serve, visit: Visits) -> None:
    visited = visit(serve().url, token=OPERATOR)
    page = visited.page
    visited.send("what is 17 % of 2,340")
    expect(visited.turn()).to_contain_text("397.8")
    page.context.set_offline(True)
    visited.send("12 km in miles")
    expect(visited.turn()).to_contain_text("Sending")
    page.context.set_offline(False)

    expect(visited.turn()).to_contain_text("7.45", timeout=30_000)
    expect(page.locator("article.turn")).to_have_count(2)
    forget_lost_requests(visited)


def test_two_tabs_show_the_same_conversation(serve: Serve, visit: Visits) -> None:
    gateway = serve()
    here = visit(gateway.url)
    here.page.get_by_label("Keep until this tab is closed").check()
    here.sign_in(OPERATOR)
    here.send("what is 17 % of 2,340")
    expect(here.turn()).to_contain_text("397.8")
    expect(here.page.get_by_role("navigation", name="Conversations").get_by_role("link")).to_have_count(1)

    there = open_page(here.page.context.new_page(), here.page.url)
    there.sign_in(OPERATOR)
    expect(there.turn()).to_contain_text("397.8")
    here.send("12 km in miles")
    expect(there.turn()).to_contain_text("7.45")
    there.send("14 km in miles")
    expect(here.turn()).to_contain_text("8.69")
    expect(here.page.locator("article.turn")).to_have_count(3)
    expect(there.page.locator("article.turn")).to_have_count(3)
    assert there.faults == []
