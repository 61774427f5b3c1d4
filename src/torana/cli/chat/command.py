"""Run ``torana chat``: send one message, send the lines of a pipe, or show a prompt."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import httpx2
import platformdirs
import typer

from torana.cli.chat.attachments import AttachedFile
from torana.cli.chat.conversation import Conversation
from torana.cli.chat.gateways import local_gateway, remote_gateway
from torana.cli.chat.output import MarkdownOutput, PlainOutput
from torana.cli.chat.prompt import ChatPrompt, ask_yes_or_no, open_history
from torana.cli.flags import settings_from
from torana.cli.remote import RunningGateway, running_gateway

_NOT_RUNNING = "Schedules run only while a gateway runs: torana serve"
_STDIN = ["-"]
_HELP = "Each line is a message. /new starts a new conversation, /quit ends the chat."

#: Seconds. The gateway sends a comment every 15 s between events.
_TIMEOUT = httpx2.Timeout(60, connect=10)


@dataclass(slots=True, kw_only=True)
class ChatCommand:
    """A chat with the options of the command."""

    message: list[str]
    files: Sequence[AttachedFile]
    channel: str | None
    user: str | None
    keeps_history: bool
    _scheduled: bool = field(default=False, init=False)

    def run_locally(self, *, config: Path | None, data_dir: Path | None) -> bool:
        """Chat with the gateway on the data directory; return whether each message has a complete reply."""
        loaded = settings_from(config=config, data_dir=data_dir)
        self.user = self.user or _login()
        with local_gateway(loaded) as gateway:
            answered = self._run(gateway)
        if self._scheduled and running_gateway(loaded.settings) is None:
            typer.echo(_NOT_RUNNING, err=True)
        return answered

    def run_remotely(self, url: str, *, variable: str) -> bool:
        """Chat with the gateway at a URL; return whether every message received a complete reply."""
        return self._run(remote_gateway(url, variable))

    def _run(self, gateway: RunningGateway) -> bool:
        with asyncio.Runner() as runner:
            client = gateway.async_client(timeout=_TIMEOUT)
            output = MarkdownOutput() if sys.stdout.isatty() else PlainOutput()
            conversation = Conversation(
                client=client,
                output=output,
                ask=ask_yes_or_no if sys.stdin.isatty() else _ask_without_terminal,
                channel=self.channel or f"terminal:{self.user or _login()}",
                user=self.user,
            )
            try:
                if self.message or not sys.stdin.isatty():
                    return self._send_all(runner, conversation)
                file = platformdirs.user_state_path("torana") / "chat-history"
                history = open_history(file if self.keeps_history else None)
                prompt = ChatPrompt(conversation=conversation, output=MarkdownOutput(), history=history)
                runner.run(prompt.run())
                return True
            finally:
                self._scheduled = conversation.scheduled
                runner.run(client.aclose())

    def _send_all(self, runner: asyncio.Runner, conversation: Conversation) -> bool:
        """Send the message of the command line, or the lines of a pipe; return whether each has a reply."""
        if self.message == _STDIN:
            text = sys.stdin.buffer.read().decode(errors="replace").strip()
            if not text:
                raise typer.BadParameter("standard input contains no message")
            return runner.run(conversation.send(text, self.files))
        if self.message:
            return runner.run(conversation.send(" ".join(self.message), self.files))
        lines = (line.decode(errors="replace") for line in sys.stdin.buffer)
        # The lines are read outside of the loop, so that Ctrl-C interrupts the wait for the next one.
        outcomes = [_take(runner, conversation, line) for line in _until_quit(lines)]
        return all(outcomes)


def _take(runner: asyncio.Runner, conversation: Conversation, line: str) -> bool:
    """Handle a line of a pipe; return False for a message that received no complete reply."""
    match line:
        case "/new":
            conversation.start_new_channel()
            typer.echo("A new conversation.")
        case "/help":
            typer.echo(_HELP)
        case "":
            pass
        case _:
            return runner.run(conversation.send(line))
    return True


def _until_quit(lines: Iterable[str]) -> Iterable[str]:
    stripped = (line.strip() for line in lines)
    return takewhile(lambda line: line not in ("/quit", "/exit"), stripped)


async def _ask_without_terminal(_tool: str, _arguments: str) -> None:
    """Answer no question: there is no terminal."""


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name, as in many containers
        return "local"
