"""A user asks a gateway to fetch from its own public addresses and from neighbours on its network."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.parts import require
from tests.waiting import eventually

_CLONE_NEWNET = 0x40000000
_ALLOW_FETCH = '[[permissions]]\ntool = "web_fetch"\npermission = "allow"\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A network namespace with its own public addresses, and a second one on the same link.

    Everything that this thread starts is in the first namespace. A web server listens on each machine.
    """

    own: tuple[str, ...]
    neighbour: tuple[str, ...]
    port: int
    logs: tuple[Path, Path]

    def requests(self) -> int:
        """The number of requests that both servers have answered."""
        return sum(log.read_text().count("GET /") for log in self.logs)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with ExitStack() as stack:
        _enter_new_namespace(stack)
        network = Network(
            own=("198.41.0.4", "[2a00:1450::4]"),
            neighbour=("198.41.0.5", "[2a00:1450::5]"),
            port=8099,
            logs=(tmp_path / "own.log", tmp_path / "neighbour.log"),
        )
        other = _serve(stack, network, network.logs[1], prefix=("unshare", "--net"))
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "inside", "type", "veth", "peer", "name", "outside")
        here, there = Path("/proc/thread-self/ns/net"), Path(f"/proc/{other}/ns/net")
        eventually(lambda: there.readlink() != here.readlink())
        _ip("link", "set", "outside", "netns", str(other))
        _give_addresses("inside", network.own)
        _give_addresses("outside", network.neighbour, prefix=("nsenter", f"--net=/proc/{other}/ns/net"))
        _serve(stack, network, network.logs[0])
        for host in (*network.own, *network.neighbour):
            eventually(lambda host=host: _answers(f"http://{host}:{network.port}/"))
        yield network


def _enter_new_namespace(stack: ExitStack) -> None:
    """Put this thread into a new network namespace until the stack unwinds."""
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    stack.callback(os.close, before)
    if libc.unshare(_CLONE_NEWNET) != 0:
        pytest.skip(f"a network namespace cannot be made: {os.strerror(ctypes.get_errno())}")
    stack.callback(libc.setns, before, _CLONE_NEWNET)


def _ip(*arguments: str, prefix: tuple[str, ...] = ()) -> None:
    command = [*prefix, require("ip", "iproute2"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "not permitted" in done.stderr:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def _give_addresses(interface: str, hosts: tuple[str, ...], *, prefix: tuple[str, ...] = ()) -> None:
    for host in hosts:
        address = host.strip("[]")
        options = ("64", "nodad") if ":" in address else ("24",)
        _ip("addr", "add", f"{address}/{options[0]}", "dev", interface, *options[1:], prefix=prefix)
    _ip("link", "set", interface, "up", prefix=prefix)


def _serve(stack: ExitStack, network: Network, log: Path, *, prefix: tuple[str, ...] = ()) -> int:
    """Start a web server on all addresses, and return its process id."""
    page = log.with_suffix("")
    page.mkdir()
    (page / "index.html").write_text("<p>a page of the inside</p>")
    command = [*prefix, sys.executable, "-u", "-m", "http.server", "--bind", "::", str(network.port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=page, stdout=output, stderr=output)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process.pid


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url, trust_env=False, timeout=2).status_code == 200
    except httpx2.TransportError:
        return False


def test_own_addresses_and_neighbours_are_not_fetched(
    network: Network, new_gateway: Callable[..., GatewayProcess]
) -> None:
    gateway = new_gateway(toml=_ALLOW_FETCH, web_allow="2a00:1450::5")
    gateway.start()
    before = network.requests()

    def fetch_in_turn(host: str) -> str:
        with gateway.client() as client:
            said = {"content": f"Fetch http://{host}:{network.port}/"}
            return client.post("/message", json=said).text

    for host in network.own:
        assert "is an address of this machine" in fetch_in_turn(host)
    assert "on a network that this machine is directly connected to" in fetch_in_turn(network.neighbour[0])
    assert network.requests() == before
    assert "a page of the inside" in fetch_in_turn(network.neighbour[1])
    assert network.requests() == before + 1
