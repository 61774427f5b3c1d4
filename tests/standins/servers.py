"""Real servers of the system's packages, started for a test and stopped after it."""

from __future__ import annotations

import asyncio
import random
import socket
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from tests.waiting import PATIENCE


def free_port() -> int:
    """Return a free port below those that the system gives to clients, so that no connection takes it."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), closing(socket.create_server(("127.0.0.1", port))):
            return port


async def certify(directory: Path, name: str = "localhost") -> None:
    """Write ``certificate.pem`` and ``key.pem`` for a name of this machine, self-signed."""
    request = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1", "-days", "2")
    files = ("-keyout", str(directory / "key.pem"), "-out", str(directory / "certificate.pem"))
    process = await asyncio.create_subprocess_exec(*request, *names, *files, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


@asynccontextmanager
async def serving(*command: str, port: int, env: dict[str, str] | None = None) -> AsyncGenerator[None]:
    """Run a server in the foreground, from the moment when it accepts connections; kill it at the end."""
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=STDOUT, env=env)
    assert process.stdout is not None
    output = bytearray()

    async def read(stream: asyncio.StreamReader) -> None:
        while data := await stream.read(4096):
            output.extend(data)

    reading = asyncio.create_task(read(process.stdout))
    try:
        async with asyncio.timeout(PATIENCE):
            while not await _answers(port):
                assert process.returncode is None, output.decode(errors="replace")
                await asyncio.sleep(0.01)
        yield
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading
        # The transport of a subprocess closes one callback after its end.
        process._transport.close()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.transport.abort()
    return True
