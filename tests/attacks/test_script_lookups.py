"""A skill script connects to a host whose name server does not answer, on many connections at once."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import pytest
from tests.attacks.conftest import GatewayProcess
from tests.attacks.scripts import install_script, run_script
from tests.parts import require

_HOST = "slow.example.org"
#: More threads than the lookup and the script's run may take, and fewer than the connections.
_FEW_THREADS = 8

_SCRIPT = f"""
import os, socket, threading

def connect():
    with socket.create_connection(("127.0.0.1", 3128), timeout=60) as connection:
        connection.sendall(b"CONNECT {_HOST}:443 HTTP/1.1\\r\\n\\r\\n")
        print("answered", connection.recv(12), flush=True)
        os._exit(0)

for _ in range(30):
    threading.Thread(target=connect).start()
"""


@pytest.fixture
def silent_name_server(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the command in front of a gateway that asks a name server that never answers."""
    address = "127.0.0.77"
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as server:
        configuration = tmp_path / "resolv.conf"
        configuration.write_text(f"nameserver {address}\noptions timeout:3 attempts:1\n")
        mount = f'mount --bind {configuration} /etc/resolv.conf && exec "$@"'
        prefix = ("unshare", "--mount", "sh", "-c", mount, "sh")
        try:
            server.bind((address, 53))
            subprocess.run([*prefix, "true"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a name server and a namespace of mounts need root: {error}")
        yield prefix


def test_lookups_of_a_script_occupy_one_thread(
    new_gateway: Callable[..., GatewayProcess], silent_name_server: tuple[str, ...]
) -> None:
    require("bwrap", "bubblewrap")
    gateway = new_gateway()
    gateway.start(prefix=silent_name_server)
    with gateway.client(timeout=300) as client, ThreadPoolExecutor(1) as pool:
        install_script(client, _SCRIPT, hosts=[_HOST])
        threads = [gateway.process.num_threads()]
        attack = pool.submit(run_script, client)
        while not wait([attack], timeout=0.02).done:
            threads.append(gateway.process.num_threads())
        reply = attack.result()

    assert "answered b'HTTP/1.1 502'" in reply
    assert max(threads) < threads[0] + _FEW_THREADS
