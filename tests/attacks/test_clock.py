"""The machine's clock was years ahead and is set back while a gateway runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from tests.attacks.conftest import GatewayProcess
from tests.waiting import eventually

_YEARS = timedelta(days=3 * 365)


#: A module that each Python process imports at its start. It sets the wall clock ahead by the number of seconds
#: in a file, which may change. The monotonic clock stays right, as on a real machine.
_SITE = """
import time
from datetime import datetime
from pathlib import Path

_ahead = Path(__file__).with_name("ahead")
_right_time = time.time
time.time = lambda: _right_time() + int(_ahead.read_text())

class _Datetime(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.fromtimestamp(time.time(), tz)

import torana.messages
torana.messages.datetime = _Datetime
"""


class MachineClock:
    """The wall clock of one gateway process."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._ahead = gateway.home / "ahead"
        self.set_ahead(timedelta())
        (gateway.home / "sitecustomize.py").write_text(_SITE)

    def set_ahead(self, by: timedelta) -> None:
        """Set the clock ahead of the right time by this much."""
        new = self._ahead.with_suffix(".new")
        new.write_text(str(int(by.total_seconds())))
        new.replace(self._ahead)


def _due(client: httpx2.Client, schedule: str) -> datetime:
    found: dict[str, Any] = client.get(f"/v1/schedules/{schedule}").json()
    return datetime.fromisoformat(found["dueAt"])


def test_rate_limited_user_waits_a_minute_after_the_clock_is_set_back(
    new_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = new_gateway(rate_per_user="2")
    clock = MachineClock(gateway)
    clock.set_ahead(_YEARS)
    gateway.start()
    said = {"content": "hello", "userId": "ana"}
    with gateway.client() as client:
        answers = [client.post("/message", json=said).status_code for _ in range(3)]
        clock.set_ahead(timedelta())
        refused = client.post("/message", json=said)
    assert answers == [200, 200, 429]
    assert refused.status_code != 429 or 0 < int(refused.headers["Retry-After"]) <= 60


def test_daily_schedule_recovers_after_the_clock_is_set_back(
    new_gateway: Callable[..., GatewayProcess],
) -> None:
    gateway = new_gateway()
    clock = MachineClock(gateway)
    gateway.start()
    daily = {"text": "call Ana", "rule": "every day at 9"}
    with gateway.client() as client:
        active, paused = (client.post("/v1/schedules", json=daily).json()["id"] for _ in range(2))
        client.post(f"/v1/schedules/{paused}/pause")
        clock.set_ahead(_YEARS)
        # A new schedule wakes the ticker, which then handles all that is due by the wrong clock.
        client.post("/v1/schedules", json=daily)
        client.post(f"/v1/schedules/{paused}/resume")
        wrong = datetime.now(UTC) + _YEARS / 2
        eventually(lambda: min(_due(client, active), _due(client, paused)) > wrong)
        clock.set_ahead(timedelta())
        client.post("/v1/schedules", json=daily)
        right = datetime.now(UTC) + timedelta(days=3)
        eventually(lambda: max(_due(client, active), _due(client, paused)) < right)
