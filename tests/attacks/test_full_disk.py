"""A full disk, and a limit on file sizes."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.unit.skills.archives import tarred
from tests.waiting import eventually

NewGateway = Callable[..., GatewayProcess]

#: Bytes above the size of the log at which writing fails: in the accepting transaction, in the transaction that
#: ends the turn, and after both.
ROOMS = range(4_000, 100_000, 16_000)


def post(client: httpx2.Client, channel: str) -> httpx2.Response:
    """Send a message that needs some disk space."""
    return client.post("/message", json={"content": "what is 2+2 " + "x" * 3000, "channelId": channel})


def reply_of(client: httpx2.Client, place: str) -> str | None:
    """Return the reply of a turn once it has completed."""
    turn: dict[str, Any] = client.get(f"/{place}").json()
    return turn["reply"] if turn["status"] == "completed" else None


def check_answer(client: httpx2.Client, answer: httpx2.Response) -> str | None:
    """Return the path of a turn that is answered later; None for a message that was answered or refused."""
    if answer.status_code == 200:
        return None
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    health = client.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
    instance: str = answer.json()["instance"]
    return instance if instance.startswith("v1/turns/") else None


def test_file_size_limit_neither_blocks_nor_loses_messages(new_gateway: NewGateway) -> None:
    gateway = new_gateway()
    gateway.start()
    log = gateway.data_dir / "torana.db-wal"
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    later: list[str] = []
    refused = 0
    with gateway.client() as client:
        post(client, "before").raise_for_status()
        for room in ROOMS:
            limit = (log.stat().st_size + room, resource.RLIM_INFINITY)
            gateway.process.rlimit(psutil.RLIMIT_FSIZE, limit)
            answer = post(client, f"with {room}")
            place = check_answer(client, answer)
            if place is not None:
                later.append(place)
                assert post(client, f"behind {room}").status_code == 503
            refused += answer.status_code == 503
            gateway.process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
            eventually(lambda: client.get("/health").json()["status"] == "ok")
            assert post(client, f"after {room}").status_code == 200
        assert refused > len(later) > 0
        assert all("4" in eventually(lambda place=place: reply_of(client, place)) for place in later)


def test_file_that_does_not_fit_is_no_internal_error(new_gateway: NewGateway) -> None:
    gateway = new_gateway()
    gateway.start()
    archive = tarred(
        {"big/SKILL.md": "---\nname: big\ndescription: Big.\n---\n# Big\n", "big/data": "x" * 2_000_000}
    )
    with gateway.client(timeout=120) as client:

        def install() -> httpx2.Response:
            headers = {"Content-Type": "application/octet-stream"}
            return client.post("/v1/skills", content=archive, headers=headers)

        gateway.process.rlimit(psutil.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
        refused = install()
        gateway.process.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
        install().raise_for_status()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_full_disk_blocks_no_message_and_recovers(new_gateway: NewGateway, small_disk: Path) -> None:
    gateway = new_gateway(data_dir=str(small_disk / "data"), log_level="debug")
    gateway.start()
    ballast = small_disk / "ballast"
    later: list[str] = []
    with gateway.client() as client:
        post(client, "before").raise_for_status()
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(3 << 20))
        answers = [post(client, f"full {number}") for number in range(5)]
        assert 503 in [answer.status_code for answer in answers]
        later = [place for answer in answers if (place := check_answer(client, answer))]
        assert client.get("/v1/sessions").status_code == 200  # existing data can be read
        ballast.unlink()
        eventually(lambda: client.get("/health").json()["status"] == "ok")
        assert post(client, "after").status_code == 200
        assert all("4" in eventually(lambda place=place: reply_of(client, place)) for place in later)


def test_start_on_a_full_disk_fails_clearly_and_can_be_repeated(
    new_gateway: NewGateway, small_disk: Path
) -> None:
    gateway = new_gateway(data_dir=str(small_disk / "data"))
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 * 1024 * 1024 - 65_536))

    done = gateway.run_command("serve")

    assert done.returncode == 1
    assert "full" in done.stderr or "No space left" in done.stderr
    assert not (small_disk / "data" / "torana.db").exists()
    ballast.unlink()
    gateway.start()
    with gateway.client() as client:
        post(client, "after").raise_for_status()
