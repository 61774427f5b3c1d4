"""The machine's clock is set back while a gateway runs, after it was years ahead."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.attacks.conftest import GatewayProcess
from tests.parts import require
from tests.waiting import eventually

_YEARS = timedelta(days=3 * 365)


class MachineClock:
    """The wall clock of one process; its monotonic clock stays right, as on a real machine."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set_ahead(timedelta())

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which a process has this clock."""
        printed = subprocess.run(
            [require("faketime", "faketime"), "now", "printenv", "LD_PRELOAD"],
            capture_output=True,
            text=True,
            check=True,
        )
        return {
            "LD_PRELOAD": printed.stdout.strip(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set_ahead(self, by: timedelta) -> None:
        """Set the clock so far ahead of the right time."""
        self._file.write_text(f"+{int(by.total_seconds())}s\n")


@pytest.fixture
def clock(tmp_path: Path) -> MachineClock:
    return MachineClock(tmp_path / "clock")


def _started(gateway: GatewayProcess, clock: MachineClock) -> GatewayProcess:
    gateway.environ |= clock.environ
    gateway.start()
    return gateway


def _shown_by(client: httpx.Client) -> datetime:
    """The time by the gateway's clock."""
    return parsedate_to_datetime(client.get("/health").headers["Date"])


def _set(client: httpx.Client, clock: MachineClock, ahead: timedelta) -> None:
    """Set the clock of the gateway, and wait until the gateway shows it."""
    clock.set_ahead(ahead)
    eventually(lambda: abs(_shown_by(client) - ahead - datetime.now(UTC)) < timedelta(minutes=1))


def _due(client: httpx.Client, schedule: str) -> datetime:
    found: dict[str, Any] = client.get(f"/v1/schedules/{schedule}").json()
    return datetime.fromisoformat(found["dueAt"])


def test_a_user_at_the_limit_waits_a_minute_after_the_clock_was_set_back(
    new_gateway: Callable[..., GatewayProcess], clock: MachineClock
) -> None:
    gateway = new_gateway(rate_per_user="2")
    clock.set_ahead(_YEARS)
    _started(gateway, clock)
    said = {"content": "hello", "userId": "ana"}
    with gateway.client() as client:
        answers = [client.post("/message", json=said).status_code for _ in range(3)]
        _set(client, clock, timedelta())
        refused = client.post("/message", json=said)
    assert answers == [200, 200, 429]
    assert refused.status_code != 429 or 0 < int(refused.headers["Retry-After"]) <= 60


def test_a_daily_schedule_comes_back_after_the_clock_was_set_back(
    new_gateway: Callable[..., GatewayProcess], clock: MachineClock
) -> None:
    gateway = _started(new_gateway(), clock)
    daily = {"text": "call Ana", "rule": "every day at 9"}
    with gateway.client() as client:
        active, paused = (client.post("/v1/schedules", json=daily).json()["id"] for _ in range(2))
        client.post(f"/v1/schedules/{paused}/pause")
        _set(client, clock, _YEARS)
        # A new schedule wakes the ticker, which then deals with all that is due by the wrong clock.
        client.post("/v1/schedules", json=daily)
        client.post(f"/v1/schedules/{paused}/resume")
        wrong = datetime.now(UTC) + _YEARS / 2
        eventually(lambda: min(_due(client, active), _due(client, paused)) > wrong)
        _set(client, clock, timedelta())
        client.post("/v1/schedules", json=daily)
        right = datetime.now(UTC) + timedelta(days=3)
        eventually(lambda: max(_due(client, active), _due(client, paused)) < right)
