"""A gate at which code in another process waits until the test lets it go on."""

from __future__ import annotations

import socket
from contextlib import ExitStack


class Gate:
    """Listens on a port of this machine: whoever waits is connected until it opens.

    Once it is open nobody waits any more, also after a restart.
    """

    def __init__(self, *, patience: float = 30.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(patience)
        self._open = ExitStack()
        self._open.enter_context(self._listener)
        self.port: int = self._listener.getsockname()[1]

    def reached(self) -> None:
        """Wait until somebody stands before it."""
        self._open.enter_context(self._listener.accept()[0])

    def open(self) -> None:
        """Let everybody go on. Idempotent."""
        self._open.close()

    @property
    def tool(self) -> str:
        """The source of a module with a tool, ``dawdle``, that waits here."""
        return _TOOL.replace("PORT", str(self.port))

    @property
    def slow_import(self) -> str:
        """The source of a module with such a tool, whose import waits here."""
        return _SLOW_IMPORT.replace("PORT", str(self.port))


_TOOL = '''
import asyncio
from contextlib import suppress
from torana.tools import tool

@tool(idempotent=True)
async def dawdle() -> str:
    """Take long."""
    with suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        try:
            await reader.read()
        finally:
            writer.close()
    return "dawdled to the end"
'''

_SLOW_IMPORT = """
import socket
from contextlib import suppress

with suppress(OSError), socket.create_connection(("127.0.0.1", PORT)) as gate:
    gate.recv(1)

def dawdle() -> str:
    return ""
"""
