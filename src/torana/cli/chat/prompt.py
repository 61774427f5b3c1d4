"""The prompt of a chat on a terminal."""

from __future__ import annotations

import asyncio
import shlex
import signal
import termios
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from torana.cli.chat.attachments import AttachedFile, read_file
from torana.cli.chat.conversation import Conversation
from torana.cli.chat.output import MarkdownOutput
from torana.cli.terminal import marked
from torana.errors import OperatorError

HELP = (
    "/new starts a new conversation, /stop cancels what runs in it, /status shows it, /approve asks about "
    "waiting tool calls, /attach FILE adds a file to the next message, /model shows the model, /quit or Ctrl-D "
    "ends the chat.\n"
    "Enter sends. Alt-Enter, or a \\ at the end of a line, starts a new line. Ctrl-C cancels a running reply "
    "and clears the line; twice, it ends the chat."
)

_CONTINUED = "\\"
_ATTACH = "/attach"
#: Seconds between two searches for late replies and reminders.
_CHECK_INTERVAL = 2.0
#: Seconds within which a second Ctrl-C at an empty prompt ends the chat.
_INTERRUPT_INTERVAL = 2.0


class ChatHistory(FileHistory):
    """The lines that the user sent, in a file that only the user can read."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises ``OSError`` if it cannot be written."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)
        super().__init__(str(path))

    def store_string(self, string: str) -> None:
        """Append a line; on a full disk, it is kept in memory only."""
        with suppress(OSError):
            super().store_string(string)


class ChatPrompt:
    """Reads messages, and prints late replies and reminders while it waits for one."""

    def __init__(self, *, conversation: Conversation, output: MarkdownOutput, history: History) -> None:
        self._conversation = conversation
        self._output = output
        self._session: PromptSession[str | None] = PromptSession(
            "> ",
            history=history,
            multiline=True,
            prompt_continuation="  ",
            key_bindings=_key_bindings(self._interrupt),
        )
        self._interrupted_at = float("-inf")
        #: The files of the next message.
        self._files: list[AttachedFile] = []

    async def run(self) -> None:
        """Chat until the user ends it."""
        self._output.note(HELP)
        draft = ""
        while True:
            try:
                line = await self._read(draft)
            except EOFError:
                return
            draft = ""
            if line is None:
                draft = self._session.default_buffer.text
                await self._interruptible(self._conversation.resume())
            elif line.strip() in ("/quit", "/exit"):
                return
            elif line.strip():
                await self._take(line.strip())

    async def _read(self, draft: str) -> str | None:
        """Return the next message, or None if an interrupted turn can be continued."""
        watching = asyncio.create_task(self._watch())
        try:
            return await self._session.prompt_async(default=draft)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        """Print replies that arrive at the prompt, and leave it when an interrupted turn can continue."""
        while True:
            for reply in await self._conversation.late_replies():
                await run_in_terminal(lambda reply=reply: self._print(reply))
            if await self._conversation.can_resume():
                self._session.app.exit(result=None)
                return
            await asyncio.sleep(_CHECK_INTERVAL)

    def _print(self, reply: str) -> None:
        self._output.add(reply)
        self._output.finish()

    async def _take(self, line: str) -> None:
        match line:
            case "/help":
                self._output.note(HELP)
            case "/new":
                self._conversation.start_new_channel()
                self._output.note("A new conversation.")
            case "/model":
                model = await self._conversation.model()
                self._output.note(model or "The token may not read the model (scope admin).")
            case "/approve":
                if not await self._conversation.decide_open_approvals():
                    self._output.note("No tool call waits for approval.")
            case _ if line.split()[0] == _ATTACH:
                self._attach(line.removeprefix(_ATTACH))
            case _:
                files, self._files = self._files, []
                await self._interruptible(self._conversation.send(line, files))

    def _attach(self, paths: str) -> None:
        """Add files to the next message; without a path, remove them."""
        try:
            found = [read_file(path) for path in shlex.split(paths)]
        except (ValueError, OperatorError) as error:
            self._output.error(str(error))
            return
        self._files = [*self._files, *found] if found else []
        names = ", ".join(map(str, self._files))
        self._output.note(f"With the next message: {names}." if names else "No file is attached.")

    async def _interruptible(self, work: Coroutine[Any, Any, bool]) -> None:
        """Run the work, which follows a turn. Ctrl-C cancels the turn; a second Ctrl-C ends the wait for it."""
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(work)
        cancelling: set[asyncio.Task[bool]] = set()

        def interrupt() -> None:
            typer.echo()  # the terminal shows ^C
            if cancelling:
                running.cancel()
            else:
                cancelling.add(asyncio.create_task(self._conversation.cancel()))

        loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            await running
        except asyncio.CancelledError:
            self._output.error("Stopped waiting. The reply will appear here.")
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in cancelling:
                task.cancel()

    def _interrupt(self, event: KeyPressEvent) -> None:
        """Clear the line; at an empty prompt, end the chat at the second key press."""
        now = time.monotonic()
        if event.current_buffer.text:
            event.current_buffer.reset()
        elif now - self._interrupted_at < _INTERRUPT_INTERVAL:
            event.app.exit(exception=EOFError())
            return
        else:
            run_in_terminal(lambda: self._output.note("Press Ctrl-C again to end the chat."))
        self._interrupted_at = now


def open_history(path: Path | None) -> History:
    """Return the history in a file; without a file, or if it cannot be written, in memory."""
    if path is not None:
        with suppress(OSError):
            return ChatHistory(path)
    return InMemoryHistory()


async def ask_yes_or_no(tool: str, arguments: str) -> bool:
    """Ask whether a tool may run; every answer but yes means no, also Ctrl-C and Ctrl-D.

    The arguments are printed above the prompt: of a prompt that is higher than the terminal, only the end is
    visible. Keys that were pressed before the question appeared do not answer it.
    """
    typer.echo(f"{tool} asks to run with:\n{marked(arguments)}")
    session: PromptSession[str] = PromptSession()

    def forget_keys() -> None:
        clear_typeahead(session.input)
        termios.tcflush(session.input.fileno(), termios.TCIFLUSH)

    try:
        question = f"Allow {tool}? [y/N] "
        answer = await session.prompt_async(question, handle_sigint=False, pre_run=forget_keys)
    except (EOFError, KeyboardInterrupt):
        return False
    return answer.strip().casefold() in ("y", "yes")


def _key_bindings(interrupt: Any) -> KeyBindings:
    keys = KeyBindings()
    keys.add("c-c")(interrupt)

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line_before_cursor.endswith(_CONTINUED):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def start_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
