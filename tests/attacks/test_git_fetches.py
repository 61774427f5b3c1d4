"""An operator's assistant installs many skills at once from a git server that does not answer."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.attacks.conftest import GatewayProcess

_INSTALLS = 8
#: The fetches that the gateway makes at the same time.
_FETCHES = 2
#: Seconds that the server waits for another connection.
_PATIENCE = 3.0


class SilentServer(socketserver.ThreadingTCPServer):
    """Holds its connections until more are open than allowed, or until it has waited long enough."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.connections = self.most = 0
        self._open = 0
        self._changed = threading.Condition()
        self._end: float | None = None

    @property
    def address(self) -> str:
        return f"git+https://127.0.0.1:{self.server_address[1]}/tea.git"

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._end = self._end or time.monotonic() + _PATIENCE
            self.connections += 1
            self._open += 1
            self.most = max(self.most, self._open)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > _FETCHES, timeout=max(0, self._end - time.monotonic()))
            self._open -= 1


@pytest.fixture
def server() -> Iterator[SilentServer]:
    with SilentServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_few_fetches_run_at_the_same_time(
    new_gateway: Callable[..., GatewayProcess], server: SilentServer
) -> None:
    gateway = new_gateway(web_allow="127.0.0.1")
    gateway.start()
    issued = gateway.run_command("token", "create", "--scope", "skills", "--json")
    token = json.loads(issued.stdout)["token"]

    with gateway.client(token=token) as client, ThreadPoolExecutor(_INSTALLS) as pool:
        body = {"source": server.address}
        installs = [pool.submit(client.post, "/v1/skills", json=body) for _ in range(_INSTALLS)]
        responses = [install.result() for install in installs]

    assert [response.status_code for response in responses] == [400] * _INSTALLS, responses[0].text
    assert (server.connections, server.most) == (_INSTALLS, _FETCHES)
