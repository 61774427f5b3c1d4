"""Measure the console in a real browser: ``python -m bench.page``.

Requires Chromium (``apt install chromium``). The model answers at once.
"""

from __future__ import annotations

import asyncio
import gzip
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.table import Table

from bench.client import Connection
from bench.measures import with_model
from bench.servers import Server, instant_model, torana

#: The messages and answers of the long session, and the tokens of the long answers.
_MESSAGES, _TOKENS = 5_000, 20_000

#: Messages before the first measurement of the heap, and between the first and the second.
_WARM_UP, _MEASURED = 50, 500

_CHANNEL = "long"
_BOX = "textarea.composer-text"

#: Opens the newest session, and returns the milliseconds until a complete turn is on the page.
_OPEN = """async () => {
    const start = performance.now();
    document.querySelector(".session-list a").click();
    while (!document.querySelector(".turn-footer")) await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""

#: Returns whether the last turn on the page has this text and is answered.
_IS_ANSWERED = """text => {
    const turn = document.querySelector("article.turn:last-child");
    return turn?.querySelector(".message-text").textContent === text && turn.querySelector(".turn-footer");
}"""

Row = tuple[str, str, str]


def main() -> None:
    """Measure the console, and print a table."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing; install it with: apt install chromium")
    console = Console(stderr=True)
    table = Table("measure", "measured", "must")
    with tempfile.TemporaryDirectory(prefix="torana-page-") as home, console.status("starting") as status:
        for row in _measure(Path(home), chromium, status.update):
            table.add_row(*row)
    Console().print(table)


def _measure(home: Path, chromium: str, show: Callable[[str], None]) -> Iterator[Row]:
    with instant_model() as model, torana(home, **with_model(model), queue="1000") as server:
        with urllib.request.urlopen(server.url) as response:
            size = len(gzip.compress(response.read())) / 1000
        yield "size of the page, compressed", f"{size:.1f} kB", "60 kB"
        show(f"writing a session of {_MESSAGES:,} messages")
        asyncio.run(_write_session(server))
        with _browser(chromium) as page:
            show("opening the page")
            page.goto(server.url)
            page.wait_for_selector(_BOX)
            usable = page.evaluate("() => performance.now()")
            yield "from the request to a usable page", f"{usable:.0f} ms", "1000 ms"
            yield f"opening a session of {_MESSAGES:,} messages", _open_session(page), "1000 ms"
            for kind, order in (("Markdown", "write"), ("one paragraph", "ramble")):
                show(f"streaming an answer of {_TOKENS:,} tokens, {kind}")
                tasks = _stream(page, f"{order} {_TOKENS} every 0.0005")
                yield f"tasks over 50 ms while {_TOKENS:,} tokens stream, {kind}", tasks, "0"
            show(f"sending {_WARM_UP + _MEASURED} messages")
            yield f"growth of the heap over {_MEASURED} messages", f"{_heap_growth(page):.1f} MB", "flat"


async def _write_session(server: Server) -> None:
    connection = await Connection.open(server.url)
    for number in range(_MESSAGES // 2):
        body = {"content": f"message {number}", "channelId": _CHANNEL, "userId": "local"}
        await connection.post("/message", body)
    connection.close()


@contextmanager
def _browser(chromium: str) -> Generator[Page]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def _open_session(page: Page) -> str:
    link = page.locator(".session-list a").first
    link.wait_for()
    took = page.evaluate(_OPEN)
    return f"{took:.0f} ms, {page.locator('article.turn').count()} turns on the page"


def _stream(page: Page, text: str) -> str:
    """Return the number of long tasks of the browser, and the longest.

    Processor time counts, because other programs of the machine lengthen the elapsed time.
    """
    session: Any = page.context.new_cdp_session(page)
    tasks: list[float] = []
    is_complete = False

    def take(part: dict[str, Any]) -> None:
        ended = (event for event in part["value"] if event["name"] == "ThreadControllerImpl::RunTask")
        tasks.extend(event.get("tdur", 0) / 1000 for event in ended)

    def complete(_end: object) -> None:
        nonlocal is_complete
        is_complete = True

    session.on("Tracing.dataCollected", take)
    session.on("Tracing.tracingComplete", complete)
    session.send("Tracing.start", {"categories": "toplevel"})
    _send(page, text)
    session.send("Tracing.end")
    while not is_complete:
        page.wait_for_timeout(100)
    session.detach()
    return f"{sum(task > 50 for task in tasks)}, the longest {max(tasks):.0f} ms"


def _heap_growth(page: Page) -> float:
    session: Any = page.context.new_cdp_session(page)

    def heap() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(page.evaluate("() => performance.memory.usedJSHeapSize")) / 1e6

    for number in range(_WARM_UP):
        _send(page, f"message {number}")
    before = heap()
    for number in range(_MEASURED):
        _send(page, f"message {number}")
    return heap() - before


def _send(page: Page, text: str) -> None:
    """Send a message, and wait for the end of its answer."""
    page.fill(_BOX, text)
    page.keyboard.press("Enter")
    page.wait_for_function(_IS_ANSWERED, arg=text, timeout=300_000)


if __name__ == "__main__":
    main()
