"""Limit the interim responses (1xx) of servers that the gateway connects to.

An HTTP client skips them until the response. The libraries skip any number, without a pause for other tasks
while the data of one read lasts, so a server that sends nothing else would stop the gateway for seconds.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

#: HTTP clients, and the libraries that they import when they are used.
_LIBRARIES = {"httpx2": "httpcore2", "httpx": "httpcore"}
#: Maximum number of interim responses before a response; servers send one or two.
_MOST = 32
#: The name of the counter in a connection.
_COUNT = "_interim_responses"


def bound_interim_responses() -> None:
    """Make asynchronous requests fail with ``RemoteProtocolError`` if a server sends too many. Idempotent.

    Applies to clients that are imported already. Call it again after an import of others.
    """
    for client, library in _LIBRARIES.items():
        if client in sys.modules:
            # The libraries create the connections themselves, so the class is changed.
            connection = import_module(f"{library}._async.http11").AsyncHTTP11Connection
            if not hasattr(connection, _COUNT):
                _bound(connection, import_module(library).RemoteProtocolError)


def _bound(connection: Any, error: type[Exception]) -> None:
    import h11

    receive_event = connection._receive_event  # noqa: SLF001 - there is no public place

    async def receive_bounded(self: Any, *args: Any, **options: Any) -> Any:
        event = await receive_event(self, *args, **options)
        if isinstance(event, h11.InformationalResponse):
            count = getattr(self, _COUNT) + 1
            setattr(self, _COUNT, count)
            if count > _MOST:
                raise error(f"The server sent more than {_MOST} interim responses.")
        elif isinstance(event, h11.Response):
            setattr(self, _COUNT, 0)
        return event

    setattr(connection, _COUNT, 0)
    connection._receive_event = receive_bounded  # noqa: SLF001
