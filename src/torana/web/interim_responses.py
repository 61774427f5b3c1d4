"""Limit the interim responses (1xx) and the rate of small chunks of servers that the gateway connects to.

An HTTP client skips interim responses until the response. The libraries skip any number, and read chunks of any
size, without a pause for other tasks while the data of one read lasts. A server that sends nothing else would
stop the gateway for seconds.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

#: HTTP clients, and the libraries that they import when they are used.
_LIBRARIES = {"httpx2": "httpcore2", "httpx": "httpcore"}
#: Maximum number of interim responses before a response; servers send one or two.
_MOST = 32
_TOO_MANY = f"The server sent more than {_MOST} interim responses."
#: The name of the counter in a connection.
_COUNT = "_interim_responses"

#: Chunks with fewer bytes are small. After some of them, other tasks run for some milliseconds: reading a chunk
#: takes about 16 microseconds.
_SMALL = 512
_SMALL_CHUNKS = 64
_PAUSE = 0.002
#: The name of the counter of small chunks in a connection.
_CHUNKS = "_small_chunks"


def bound_interim_responses() -> None:
    """Make asynchronous requests fail if a server sends too many. Idempotent.

    The error is ``RemoteProtocolError``, and with aiohttp ``ClientConnectionError``. Applies to clients that
    are imported already. Call it again after an import of others.
    """
    # The libraries create the connections themselves, so their classes are changed.
    for client, library in _LIBRARIES.items():
        if client in sys.modules:
            connection = import_module(f"{library}._async.http11").AsyncHTTP11Connection
            if not hasattr(connection, _COUNT):
                _bound(connection, import_module(library).RemoteProtocolError)
    if "aiohttp" in sys.modules:
        handler = import_module("aiohttp.client_proto").ResponseHandler
        if not hasattr(handler, _COUNT):
            _bound_aiohttp(handler, import_module("aiohttp").ClientConnectionError)


def _bound(connection: Any, error: type[Exception]) -> None:
    import h11

    receive_event = connection._receive_event  # noqa: SLF001 - there is no public place

    async def receive_bounded(self: Any, *args: Any, **options: Any) -> Any:
        event = await receive_event(self, *args, **options)
        if isinstance(event, h11.InformationalResponse):
            count = getattr(self, _COUNT) + 1
            setattr(self, _COUNT, count)
            if count > _MOST:
                raise error(_TOO_MANY)
        elif isinstance(event, h11.Response):
            setattr(self, _COUNT, 0)
        elif isinstance(event, h11.Data) and len(event.data) < _SMALL:
            chunks = getattr(self, _CHUNKS) + 1
            setattr(self, _CHUNKS, chunks)
            if chunks % _SMALL_CHUNKS == 0:
                await asyncio.sleep(_PAUSE)
        return event

    setattr(connection, _COUNT, 0)
    setattr(connection, _CHUNKS, 0)
    connection._receive_event = receive_bounded  # noqa: SLF001


def _bound_aiohttp(handler: Any, error: type[Exception]) -> None:
    read = handler.read

    async def read_bounded(self: Any) -> Any:
        found = await read(self)
        is_interim = 100 <= found[0].code < 200 and found[0].code != 101
        count = getattr(self, _COUNT) + 1 if is_interim else 0
        setattr(self, _COUNT, count)
        if count > _MOST:
            raise error(_TOO_MANY)
        return found

    setattr(handler, _COUNT, 0)
    handler.read = read_bounded
