"""The program inside the sandbox that forwards connections on its loopback to the proxy, and starts the script.

It is not imported but copied into the sandbox, where any Python of the system runs it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

PORT = 3128
PROXY = "/run/egress.sock"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        out_reader, out_writer = await asyncio.open_unix_connection(PROXY)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, out_writer), _pump(out_reader, writer))
    out_writer.close()
    writer.close()


async def _serve(listener: socket.socket) -> None:
    server = await asyncio.start_server(_forward, sock=listener)
    await server.serve_forever()


def main() -> None:
    """Replace this process by the command in the arguments; a child process forwards connections."""
    # Bound before the fork, so that the script's first connection succeeds.
    listener = socket.create_server(("127.0.0.1", PORT))
    if os.fork():
        os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - what the sandbox was to run
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    asyncio.run(_serve(listener))


if __name__ == "__main__":
    main()
