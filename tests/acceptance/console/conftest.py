"""Fixtures that use the console as a person does: with a real browser, against the installed gateway."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect, sync_playwright
from tests.health import certificates
from tests.parts import end_without, require

from torana.testing.openai_server import Fault, OpenAIStandIn, Rule

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway

OPERATOR = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"

WIDE, PHONE = (1280, 800), (360, 740)
Scheme = Literal["light", "dark"]

# A loaded machine takes longer than Playwright's five seconds.
expect.set_options(timeout=20_000)

#: The browser reports the 401 of the page itself as an error.
_EXPECTED = "status of 401"


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """An open console, and the requests that it has made."""

    page: Page
    faults: list[str]
    requests: list[Request] = field(default_factory=list[Request])

    def sign_in(self, token: str) -> None:
        """Enter a token on the page that asks for it."""
        self.page.get_by_label("Token", exact=True).fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_label("Token", exact=True)).to_have_count(0)

    def send(self, text: str) -> None:
        """Write a message and send it."""
        self.page.get_by_role("textbox", name="Message").fill(text)
        self.page.get_by_role("button", name="Send").click()

    def turn(self, number: int = -1) -> Locator:
        """Return a message with its answer, by default the newest one."""
        return self.page.locator("article.turn").nth(number)

    def open_view(self, route: str) -> None:
        """Open a view by its route, such as ``usage``."""
        self.page.evaluate("route => { location.hash = '#/' + route }", route)

    @property
    def paths(self) -> set[str]:
        """Return the paths of all requests."""
        return {urlsplit(request.url).path for request in self.requests}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = require("chromium", "chromium")
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visit]]:
    """``visit(url, token=…)`` opens the console in a browser of its own.

    At the end, the test fails if a page violated its policy, reported an error, or asked another origin.
    """
    with ExitStack() as opened:

        def start(url: str, *, token: str | None = None, size: tuple[int, int] = WIDE, **options: Any) -> Visit:
            common: dict[str, Any] = {"locale": "en-US", "has_touch": size == PHONE}
            viewport: Any = {"width": size[0], "height": size[1]}
            context = browser.new_context(viewport=viewport, **{**common, **options})
            opened.callback(context.close)
            visited = open_page(context.new_page(), url)
            opened.callback(lambda: _check(visited))
            if token:
                visited.sign_in(token)
            return visited

        yield start


def open_page(page: Page, url: str) -> Visit:
    """Open the console in a page, and note its requests and its faults."""
    visited = Visit(page=page, faults=[])

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and _EXPECTED not in message.text:
            visited.faults.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: visited.faults.append(str(error)))
    page.on("request", lambda request: visited.requests.append(request))
    page.goto(url)
    return visited


def _check(visited: Visit) -> None:
    origin = urlsplit(visited.page.url)[:2]
    asked = [one.url for one in visited.requests if one.url.startswith("http")]
    assert [url for url in asked if urlsplit(url)[:2] != origin] == []
    assert visited.faults == []


class Models(Protocol):
    """Starts OpenAI-compatible servers that answer by a rule."""

    def __call__(self, reply: Rule, *, faults: Iterable[Fault] = ()) -> OpenAIStandIn: ...


@pytest.fixture
def model() -> Iterator[Models]:
    """``model(rule)`` starts an OpenAI-compatible server that answers by the rule."""
    with ExitStack() as running:

        def start(reply: Rule, *, faults: Iterable[Fault] = ()) -> OpenAIStandIn:
            return running.enter_context(OpenAIStandIn(reply=reply, faults=faults))

        yield start


@pytest.fixture
def serve(new_gateway: Callable[..., Gateway]) -> Callable[..., Gateway]:
    """``serve(model)`` starts a gateway with the operator's token; without a model, the builtin one answers."""

    def start(model: OpenAIStandIn | None = None, **settings: str) -> Gateway:
        using = {"TORANA_MODEL": "openai-chat:stand-in", "TORANA_MODEL_BASE_URL": model.url} if model else {}
        common = {"TORANA_GATEWAY_TOKEN": OPERATOR, "TORANA_COMPACT": "false", "TORANA_RATE_GLOBAL": "0"}
        gateway = new_gateway(**{**common, **using, **settings})
        gateway.start()
        return gateway

    return start


def client(gateway: Gateway, token: str = OPERATOR) -> httpx2.Client:
    """Return an HTTP client of a gateway."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.Client(
        base_url=gateway.url, headers=headers, timeout=30, trust_env=False, verify=certificates()
    )


def new_token(gateway: Gateway, *scopes: str, user: str | None = None) -> str:
    """Create a token and return its secret."""
    with client(gateway) as operator:
        body = {"label": "test", "user": user, "scopes": scopes}
        made = operator.post("/v1/tokens", json=body).raise_for_status().json()
        return str(made["token"])


@pytest.fixture(scope="session")
def axe() -> str:
    """The script of axe-core, which finds faults of accessibility."""
    npm = require("npm", "npm")
    root = subprocess.run([npm, "root", "--global"], capture_output=True, text=True, check=True).stdout.strip()
    script = Path(root) / "axe-core" / "axe.min.js"
    if not script.exists():
        end_without("axe-core", cure="npm install --global axe-core@4.14.1")
    return script.read_text()


def find_violations(page: Page, axe: str) -> list[str]:
    """Return the violations that axe finds: their rule, and the element."""
    page.evaluate(f"() => {{ {axe}; return null }}")
    found = page.evaluate("async () => (await axe.run(document)).violations")
    return [f"{one['id']}: {json.dumps([node['html'][:160] for node in one['nodes']])}" for one in found]
