"""``torana chat``: chat in the terminal, over the HTTP API."""

from __future__ import annotations

import getpass
import importlib
import json
import secrets
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from torana.cli.apps import new_app
from torana.cli.flags import ConfigFlag, DataDirFlag, settings_from
from torana.cli.remote import RunningGateway, gateway_at, other_token, running_gateway
from torana.cli.terminal import on_one_line, printable
from torana.messages import utc_now

if TYPE_CHECKING:
    import httpx2

    from torana.config import Loaded

app = new_app()

_SCHEDULING = ("schedule_once", "schedule_repeating")
_UNHEARD = "Schedules run only while a gateway runs: torana serve"
#: The maximum number of pages read before a prompt; the next prompt continues after them.
_PAGES = 5
_HELP = "/new starts a new conversation, /quit or Ctrl-D ends the chat, Ctrl-C stops waiting for an answer."


@app.command()
def chat(
    message: Annotated[
        list[str] | None, typer.Argument(help=("Send this message, print the answer, and exit."))
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="The channel to continue. Default: the user's own channel.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The user id. Default: your name on this machine.")] = None,
    config: ConfigFlag = None,
    data_dir: DataDirFlag = None,
) -> None:
    """Chat with the agent, through the running gateway or a temporary one."""
    loaded = settings_from(config=config, data_dir=data_dir)
    user = user or _login()
    with _gateway(loaded) as client:
        talk = _Talk(client, channel=channel or f"terminal:{user}", user=user)
        if message:
            answered = talk.say(" ".join(message))
        elif sys.stdin.isatty():
            answered = _converse(talk)
        else:
            answered = _read_out(talk)
    if talk.scheduled and running_gateway(loaded.settings) is None:
        typer.echo(_UNHEARD, err=True)
    if not answered:
        raise typer.Exit(1)


class _Talk:
    """A conversation: sends lines and prints answers."""

    def __init__(self, client: httpx2.Client, *, channel: str, user: str) -> None:
        self._client = client
        self._channel = channel
        self._user = user
        self._in_line = False
        self._turn = ""
        #: The turn that was followed when the gateway stopped.
        self._broken_off = ""
        #: The start of the chat: earlier answers are not printed.
        self._began = utc_now()
        #: The turns whose answers have been printed.
        self._seen: set[str] = set()
        #: The cursor of the last page of each session.
        self._pages: dict[str, str] = {}
        #: Whether the agent created a schedule.
        self.scheduled = False

    def take(self, line: str) -> bool:
        """Handle a line; return False for a message that got no complete answer."""
        if line == "/new":
            self._channel = f"terminal:{self._user}:{secrets.token_hex(4)}"
            typer.echo("A new conversation.")
        elif line == "/help":
            typer.echo(_HELP)
        elif line:
            return self.say(line)
        return True

    def say(self, content: str) -> bool:
        """Send a message, print the answer as it arrives, and return whether it is complete."""
        import httpx2

        # Input in an encoding other than UTF-8 contains surrogates, which JSON cannot encode.
        content = content.encode(errors="replace").decode()
        body = {"content": content, "channelId": self._channel, "userId": self._user}
        headers = {"Accept": "text/event-stream"}
        try:
            with self._client.stream("POST", "message", json=body, headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    return self._is_refusal(response.json())
                return self._follow(response)
        except httpx2.TransportError as error:
            return self._complain(f"no gateway responds at {self._client.base_url}: {error}")

    def catch_up(self) -> None:
        """Print other answers in the channel since the chat began: of schedules, and of abandoned waits.

        A turn that was interrupted by the gateway's stop is followed again once it asks a question or has
        ended.
        """
        import httpx2

        with suppress(httpx2.TransportError):  # the next message reports the missing gateway
            if self._broken_off:
                self._resume()
            for message in self._messages():
                if message["role"] == "assistant" and message["turnId"] not in self._seen:
                    self._seen.add(message["turnId"])
                    if datetime.fromisoformat(message["createdAt"]) >= self._began:
                        typer.echo(printable(message["content"]))

    def _resume(self) -> None:
        place = f"v1/turns/{self._broken_off}"
        turn = self._client.get(place)
        if not turn.is_error and turn.json()["status"] not in ("queued", "running"):
            self._turn, self._broken_off = self._broken_off, ""
            with self._client.stream("GET", f"{place}/events") as response:
                self._follow(response)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """Yield the channel's messages that this token may read, from the last page that was read."""
        wanted = {"channelId": self._channel, "userId": self._user, "limit": "1"}
        found = self._client.get("v1/sessions", params=wanted)
        for session in () if found.is_error else found.json()["items"]:
            place = f"v1/sessions/{session['id']}/messages"
            for _ in range(_PAGES):
                page = self._client.get(place, params=self._behind(place))
                document: dict[str, Any] = {"items": [], "next": None} if page.is_error else page.json()
                yield from document["items"]
                if document["next"] is None:
                    break
                self._pages[place] = document["next"]

    def _behind(self, place: str) -> dict[str, str]:
        return {"limit": "200", "after": self._pages.get(place, "")}

    def leave(self) -> None:
        """Say where the answer appears after the wait was abandoned."""
        self._end_line()
        typer.echo("Stopped waiting. The answer will appear in the conversation.")

    def _follow(self, response: httpx2.Response) -> bool:
        import httpx2

        with suppress(httpx2.TransportError):  # the same as a response without its last event
            for event, data in _events(response):
                match event:
                    case "message.delta" | "message.snapshot":
                        self._print(data["text"])
                    case "turn.accepted":
                        self._turn = data["id"]
                    case "approval.required":
                        self._ask(data)
                    case "tool.finished" if data["tool"] in _SCHEDULING:
                        self.scheduled = True
                    case "turn.completed":
                        typer.echo()
                        self._in_line = False
                        self._seen.add(self._turn)
                        return True
                    case "turn.failed":
                        self._seen.add(self._turn)
                        return self._is_refusal(data)
                    case _:
                        pass
        self._broken_off = self._turn
        return self._complain(
            f"The gateway stopped. It answers the message after its next start: torana turns show {self._turn}"
        )

    def _ask(self, asked: dict[str, Any]) -> None:
        """Ask the user whether a tool may run. Without a terminal, deny it."""
        from torana.store.rows.approval_questions import visible

        self._end_line()
        arguments = json.dumps(asked["arguments"], ensure_ascii=False)
        what = visible(f"{asked['tool']} with {arguments}")
        body = {"decision": "approve", "digest": asked["digest"]}
        if not sys.stdin.isatty():
            self._complain(f"Denied {what}: there is no terminal to ask on.")
            body = {"decision": "deny", "reason": "there was no terminal to ask on"}
        elif not _is_yes(f"Allow {what}? [y/N] "):
            body = {"decision": "deny"}
        answer = self._client.post(f"v1/approvals/{quote(asked['id'], safe='')}", json=body)
        if answer.is_error:
            self._complain(answer.json()["detail"])

    def _print(self, text: str) -> None:
        typer.echo(printable(text), nl=False)
        sys.stdout.flush()
        self._in_line = True

    def _is_refusal(self, problem: dict[str, Any]) -> bool:
        if problem["code"] == "unauthorized":
            return self._complain(other_token(str(self._client.base_url)))
        return self._complain(f"{problem['error']}: {problem['detail']}")

    def _complain(self, why: str) -> bool:
        self._end_line()
        typer.echo(printable(why), err=True)
        return False

    def _end_line(self) -> None:
        if self._in_line:
            typer.echo()
            self._in_line = False


def _converse(talk: _Talk) -> bool:
    """Chat until the user ends it. Print other answers of the channel before each prompt."""
    with suppress(ImportError):
        importlib.import_module("readline")  # importing it gives input() line editing
    typer.echo(_HELP)
    for line in _until_quit(_read_lines()):
        try:
            talk.take(line)
            talk.catch_up()
        except KeyboardInterrupt:
            talk.leave()
    return True


def _read_out(talk: _Talk) -> bool:
    """Send the lines of a pipe one at a time. Return whether all were answered."""
    lines = (line.decode(errors="replace") for line in sys.stdin.buffer)
    outcomes = [talk.take(line) for line in _until_quit(lines)]
    return all(outcomes)


def _is_yes(question: str) -> bool:
    try:
        return input(on_one_line(question)).strip().casefold() in ("y", "yes")
    except EOFError:
        typer.echo()
        return False


def _read_lines() -> Iterator[str]:
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return


def _until_quit(lines: Iterable[str]) -> Iterator[str]:
    stripped = (line.strip() for line in lines)
    return takewhile(lambda line: line not in ("/quit", "/exit"), stripped)


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in many containers
        return "local"


@contextmanager
def _gateway(loaded: Loaded) -> Generator[httpx2.Client]:
    """Yield a client of the gateway on this data directory, or of a temporary gateway."""
    import httpx2

    # The gateway sends a comment every 15 s between events.
    timeout = httpx2.Timeout(60, connect=10)
    running = running_gateway(loaded.settings)
    if running is not None:
        with running.client(timeout=timeout) as client:
            yield client
    else:
        with _own_gateway(loaded) as own, own.client(timeout=timeout) as client:
            yield client


@contextmanager
def _own_gateway(loaded: Loaded) -> Generator[RunningGateway]:
    """Run a gateway in a thread, on a free port of this machine.

    It uses the token of the settings, so that a second ``torana chat`` can use it as well.
    """
    from torana.cli.gateway import Gateway, listen
    from torana.store.engine.lock import DataDirLock
    from torana.telemetry import configure_logging

    local = replace(loaded, settings=loaded.settings.model_copy(update={"host": "127.0.0.1"}))
    with listen("127.0.0.1", 0) as listener, ThreadPoolExecutor(1, "torana-gateway") as thread:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with DataDirLock(data_dir=loaded.settings.data_dir, address=address):
            configure_logging(level="error", format="console", file=None, stream=sys.stderr)
            up_or_failed = threading.Event()
            gateway = Gateway(loaded=local, on_ready=up_or_failed.set)
            running = thread.submit(gateway.run, listener)
            running.add_done_callback(lambda _: up_or_failed.set())
            try:
                up_or_failed.wait()
                if not running.done():
                    yield gateway_at(address, loaded.settings)
            finally:
                gateway.stop()
                running.result()  # raises the error of the gateway


def _events(response: httpx2.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    event = ""
    for line in _lines(response):
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            yield event, json.loads(value)


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Yield the lines of a stream; httpx2's own method also splits at U+2028, which JSON may contain."""
    rest = ""
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
