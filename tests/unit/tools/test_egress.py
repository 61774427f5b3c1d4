"""The proxy of a sandbox bounds the lookups and the bytes of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from torana.tools.sandbox import egress as egress_module
from torana.tools.sandbox.egress import Egress
from torana.web import Unreachable

HOSTS = ["one.example.com:81", "two.example.com:81"]


class Lookups:
    """Notes the lookups; each fails while ``fails`` is true, and has no reachable address otherwise."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.most = self.running = 0
        self.fails = False

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        self.hosts.append(host)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self.fails:
            raise Unreachable(host)
        return ["127.0.0.1"]


@pytest.fixture
def lookups() -> Lookups:
    return Lookups()


async def connect(path: Path, host: str) -> bytes:
    """Return the first line of the proxy's answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
    line = await reader.readline()
    writer.close()
    return line


async def test_connections_to_the_same_host_share_a_lookup(tmp_path: Path, lookups: Lookups) -> None:
    egress = Egress(hosts=HOSTS, resolve=lookups.resolve)
    await egress.open(tmp_path / "proxy")

    answers = await asyncio.gather(*(connect(tmp_path / "proxy", host) for host in HOSTS * 10))

    assert all(answer.startswith(b"HTTP/1.1 502") for answer in answers)  # nothing listens on port 81
    assert sorted(lookups.hosts) == ["one.example.com", "two.example.com"]
    assert lookups.most == 1
    await egress.close()


async def test_failed_lookup_is_repeated(tmp_path: Path, lookups: Lookups) -> None:
    lookups.fails = True
    egress = Egress(hosts=HOSTS, resolve=lookups.resolve)
    await egress.open(tmp_path / "proxy")
    await connect(tmp_path / "proxy", HOSTS[0])
    await connect(tmp_path / "proxy", HOSTS[0])

    assert lookups.hosts == ["one.example.com"] * 2
    await egress.close()


@pytest.mark.parametrize(("sent", "received"), [(3_000, 0), (0, 3_000)])
async def test_connections_are_closed_after_too_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lookups: Lookups, sent: int, received: int
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * received)
        await reader.read()
        writer.close()

    monkeypatch.setattr(egress_module, "TRAFFIC_LIMIT", 5_000)
    monkeypatch.setattr(egress_module, "_CONNECTION_BYTES", 0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    egress = Egress(hosts=[host], resolve=lookups.resolve)
    await egress.open(tmp_path / "proxy")

    bodies: list[int] = []
    for _ in range(2):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "proxy")
        writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode() + b"x" * sent)
        writer.write_eof()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        bodies.append(len(await reader.read()))
        writer.close()

    assert bodies == [received, 0]
    assert egress.exceeded_traffic
    assert (await connect(tmp_path / "proxy", host)).startswith(b"HTTP/1.1 503")
    await egress.close()
    server.close()


async def test_run_that_opens_many_connections_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lookups: Lookups
) -> None:
    monkeypatch.setattr(egress_module, "TRAFFIC_LIMIT", 3 * 16 * 1024)
    egress = Egress(hosts=HOSTS, resolve=lookups.resolve)
    await egress.open(tmp_path / "proxy")

    answers = [await connect(tmp_path / "proxy", HOSTS[0]) for _ in range(4)]

    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 502"] * 3 + [b"HTTP/1.1 503"]
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        await connect(tmp_path / "proxy", HOSTS[0])
    await egress.close()
