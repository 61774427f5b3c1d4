"""Schedules whose time the clock always skips, so that a search for it finds nothing."""

from __future__ import annotations

from collections.abc import Callable

from tests.attacks.conftest import GatewayProcess

#: The searches of 20 such rules took 90 seconds of processor time.
RULES = ["*/30 2 * 3 SUN#2", "*/5 2 * 3 SUN#2", "*/15 2 8-14 3 */7", "*/20 2 8-14 3 */7"] * 5
SECONDS = 10


def test_rules_that_are_never_due_cost_little(new_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = new_gateway()
    gateway.start()
    before = gateway.cpu_seconds()

    with gateway.client() as client:
        for rule in RULES:
            body = {"text": "task", "rule": rule, "timezone": "America/New_York"}
            answer = client.post("/v1/schedules", json=body)
            assert answer.status_code == 400, answer.text
            assert "is not due within ten years" in answer.json()["detail"]
        assert client.get("/health").json()["status"] == "ok"

    assert gateway.cpu_seconds() - before < SECONDS
