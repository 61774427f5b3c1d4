"""The address and the state of the Redis server."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.redis_server import RedisProcess

from torana.errors import ConfigInvalid, OperatorError
from torana.store.redis.server import RedisServer


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://ana:geheim@redis.example:6380/3", "redis.example:6380/3"),
        ("rediss://:geheim@redis.example", "redis.example:6379"),
        ("unix:///run/redis.sock?password=geheim", "/run/redis.sock"),
        ("redis://redis.example?password=geheim", "redis.example:6379"),
    ],
)
def test_address_is_shown_without_the_password(url: str, shown: str) -> None:
    assert f"{RedisServer(url)} {RedisServer(url)!r}" == f"{shown} {shown}"


@pytest.mark.parametrize(
    "url", ["redis://h:geheim/0", "redis://h?db=geheim", "redis://h?geheim=1", "redis://[geheim/0"]
)
def test_unreadable_address_is_refused_without_its_value(url: str) -> None:
    with pytest.raises(ConfigInvalid, match="redis_url: the address cannot be read") as caught:
        RedisServer(url)
    assert "geheim" not in str(caught.value)


def test_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)

    with pytest.raises(ConfigInvalid, match=r"redis_url: the library for Redis is not installed; .*redis\]"):
        RedisServer("redis://h")


async def test_server_is_described(redis: RedisProcess) -> None:
    described = await RedisServer(redis.url).describe()

    assert described.startswith(("Redis ", "Valkey "))
    assert f"on 127.0.0.1:{redis.port}/0, writes in " in described


async def test_description_names_the_reason_why_a_server_cannot_be_used(redis: RedisProcess) -> None:
    with pytest.raises(OperatorError, match=r"cannot be used: .*invalid username-password pair"):
        await RedisServer(f"redis://ana:geheim@127.0.0.1:{redis.port}/0").describe()
    with pytest.raises(OperatorError, match=r"cannot be used: Error .* connecting to 127\.0\.0\.1:1"):
        await RedisServer("redis://127.0.0.1:1").describe()
    redis.execute("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(OperatorError, match="read only replica"):
        await RedisServer(redis.url).describe()


@pytest.fixture
def tls_server(tmp_path: Path) -> Generator[tuple[int, Path]]:
    """A server with TLS: its port, and its certificate."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=redis", "-days", "1"]
    new += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(new, capture_output=True, check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    options = ["--tls-port", str(port), "--tls-auth-clients", "no", "--requirepass", "geheim"]
    options += ["--tls-key-file", str(key), "--tls-cert-file", str(certificate)]
    with RedisProcess(*options, password="geheim"):
        yield port, certificate


async def test_certificate_of_a_server_with_tls_is_verified(tls_server: tuple[int, Path]) -> None:
    port, certificate = tls_server
    url = f"rediss://:geheim@127.0.0.1:{port}/0"

    assert (await RedisServer(f"{url}?ssl_ca_certs={certificate}").describe()).startswith("Redis ")
    with pytest.raises(OperatorError, match="certificate verify failed") as caught:
        await RedisServer(url).describe()
    assert "geheim" not in str(caught.value)
