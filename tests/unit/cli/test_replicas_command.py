"""``torana replicas`` without replicas; tests/acceptance/test_replicas.py has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def test_database_of_one_gateway_has_no_replicas(command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, error = command("replicas", "list")

    assert code == 2
    assert "only a PostgreSQL database is shared" in error


def test_replicas_without_postgresql_are_refused(
    command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORANA_REPLICAS", "true")
    code, _, error = command("turns", "list")

    assert code == 2
    assert "several gateways need a PostgreSQL database; set database_url" in error
