"""A user requests paths whose masking in the log is slow."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from tests.attacks.conftest import GatewayProcess

_LENGTH = 9_999
_REQUESTS = 100


def cost_of_requests(gateway: GatewayProcess, client: httpx2.Client, path: str) -> float:
    """Return the processor time of requests for a path that does not exist."""
    before = gateway.cpu_seconds()
    for _ in range(_REQUESTS):
        assert client.get(path).status_code == 404
    return gateway.cpu_seconds() - before


@pytest.mark.parametrize("secret", ["-eyJ", "sk-"])
def test_path_of_secrets_costs_as_much_as_one_of_letters(
    new_gateway: Callable[..., GatewayProcess], secret: str
) -> None:
    gateway = new_gateway()
    gateway.start()

    with gateway.client() as client:
        letters = cost_of_requests(gateway, client, "/" + "a" * _LENGTH)
        secrets = cost_of_requests(gateway, client, "/" + (secret * _LENGTH)[:_LENGTH])

    assert secrets < 4 * letters, (secrets, letters)
