"""A user sends bodies of megabytes that are invalid at their end."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx2
from tests.attacks.conftest import GatewayProcess

_BYTES = 7_800_000
_REQUESTS = 6


def invalid_body(text: str) -> bytes:
    """Return a body with a file whose name repeats the text, and whose data is not text."""
    return f'{{"content":"x","files":[{{"name":"{text * (_BYTES // len(text))}","data":1}}]}}'.encode()


def send(client: httpx2.Client, body: bytes) -> list[int]:
    """Send the body again and again, and return the statuses of the responses."""
    headers = {"Content-Type": "application/json"}
    return [client.post("/v1/messages", content=body, headers=headers).status_code for _ in range(_REQUESTS)]


def test_refused_bodies_count_for_the_rate(new_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = new_gateway(rate_per_user="2")
    gateway.start()
    issued = gateway.run_command("token", "create", "--user", "mallory", "--json")
    with gateway.client(token=json.loads(issued.stdout)["token"]) as client:
        assert send(client, invalid_body("\\\\,")) == [400, 400, *[429] * (_REQUESTS - 2)]


def test_body_of_escapes_costs_as_much_as_one_of_commas(new_gateway: Callable[..., GatewayProcess]) -> None:
    gateway = new_gateway()
    gateway.start()
    costs: list[float] = []
    with gateway.client() as client:
        for text in ("aa,", '\\",'):
            before = gateway.cpu_seconds()
            assert send(client, invalid_body(text)) == [400] * _REQUESTS
            costs.append(gateway.cpu_seconds() - before)
    plain, escapes = costs

    assert escapes < 2 * plain, (escapes, plain)
