"""The console in a real browser: ``python -m bench.page``.

It needs Chromium (``apt install chromium``). The model answers at once.
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

#: The messages and answers of the long session, and the pieces of the long answer.
_MESSAGES, _PIECES = 5_000, 20_000

#: Messages that are sent before the heap is measured first, and between both measures.
_WARM_UP, _HOUR = 50, 500

_CHANNEL = "long"
_BOX = "textarea.composer-text"

#: Opens the newest session, and returns the milliseconds until a complete turn is on the page.
_OPEN = """async () => {
    const start = performance.now();
    document.querySelector(".session-list a").click();
    while (!document.querySelector(".turn-footer")) await new Promise(requestAnimationFrame);
    return performance.now() - start;
}"""

#: Notes the duration of each task over 50 ms.
_WATCH = """() => {
    window.longTasks = [];
    const note = (list) => window.longTasks.push(...list.getEntries().map((task) => task.duration));
    new PerformanceObserver(note).observe({ type: "longtask" });
}"""

#: Whether the last turn on the page is the answered one of this text.
_IS_ANSWERED = """text => {
    const turn = document.querySelector("article.turn:last-child");
    return turn?.querySelector(".message-text").textContent === text && turn.querySelector(".turn-footer");
}"""

Row = tuple[str, str, str]


def main() -> None:
    """Measure, and print a table."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("chromium is missing; install it with: apt install chromium")
    console = Console(stderr=True)
    table = Table("measure", "measured", "must")
    with tempfile.TemporaryDirectory(prefix="torana-page-") as home, console.status("starting") as status:
        for row in _measure(Path(home), chromium, status.update):
            table.add_row(*row)
    Console().print(table)


def _measure(home: Path, chromium: str, say: Callable[[str], None]) -> Iterator[Row]:
    with instant_model() as model, torana(home, **with_model(model), queue="1000") as server:
        with urllib.request.urlopen(server.url) as response:
            size = len(gzip.compress(response.read())) / 1000
        yield "size of the page, compressed", f"{size:.1f} kB", "60 kB"
        say(f"writing a session of {_MESSAGES:,} messages")
        asyncio.run(_write_session(server))
        with _browser(chromium) as page:
            say("opening the page")
            page.goto(server.url)
            page.wait_for_selector(_BOX)
            usable = page.evaluate("() => performance.now()")
            yield "from the request to a usable page", f"{usable:.0f} ms", "1000 ms"
            yield f"opening a session of {_MESSAGES:,} messages", _open_session(page), "1000 ms"
            say(f"streaming an answer of {_PIECES:,} pieces")
            yield f"tasks over 50 ms while {_PIECES:,} pieces stream", _stream(page), "0"
            say(f"sending {_WARM_UP + _HOUR} messages")
            yield f"growth of the heap over {_HOUR} messages", f"{_heap_growth(page):.1f} MB", "flat"


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


def _stream(page: Page) -> str:
    page.evaluate(_WATCH)
    _send(page, f"stream {_PIECES} every 0.0005")
    tasks: list[float] = page.evaluate("() => window.longTasks")
    return f"{len(tasks)}, the longest {max(tasks, default=0):.0f} ms"


def _heap_growth(page: Page) -> float:
    session: Any = page.context.new_cdp_session(page)

    def heap() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(page.evaluate("() => performance.memory.usedJSHeapSize")) / 1e6

    for number in range(_WARM_UP):
        _send(page, f"message {number}")
    before = heap()
    for number in range(_HOUR):
        _send(page, f"message {number}")
    return heap() - before


def _send(page: Page, text: str) -> None:
    """Send a message, and wait for the end of its answer."""
    page.fill(_BOX, text)
    page.keyboard.press("Enter")
    page.wait_for_function(_IS_ANSWERED, arg=text, timeout=300_000)


if __name__ == "__main__":
    main()
