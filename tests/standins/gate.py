"""A gate at which code in another process waits until the test opens it."""

from __future__ import annotations

import socket
from contextlib import ExitStack


class Gate:
    """A listener on a local port: a waiting process stays connected until the gate opens.

    An open gate stays open, also after a restart of the process.
    """

    def __init__(self, *, patience: float = 30.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(patience)
        self._open = ExitStack()
        self._open.enter_context(self._listener)
        self.port: int = self._listener.getsockname()[1]

    def reached(self) -> None:
        """Wait until a process waits at the gate."""
        self._open.enter_context(self._listener.accept()[0])

    def open(self) -> None:
        """Release all waiting processes. Idempotent."""
        self._open.close()

    @property
    def tool(self) -> str:
        """Return the source of a module with a tool, ``dawdle``, that waits at the gate."""
        return _TOOL.replace("PORT", str(self.port))

    @property
    def slow_import(self) -> str:
        """Return the source of a module with such a tool, whose import waits at the gate."""
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
