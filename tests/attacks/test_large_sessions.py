"""A user prepares sessions whose search or deletion costs far more than the messages that created them."""

from __future__ import annotations

from collections.abc import Callable

from tests.attacks.conftest import GatewayProcess

from torana.testing.openai_server import ChatRequest, OpenAIStandIn

_TOKEN = "0123456789abcdef0123456789"
_FORKS = 1_000
_LONG_REPLY = "x" * 950_000


def test_search_of_many_forks_costs_less_than_the_forks(new_gateway: Callable[..., GatewayProcess]) -> None:
    """All copies of a turn have the same time, which is also their number in the index."""
    gateway = new_gateway(gateway_token=_TOKEN)
    gateway.start()
    [mallory] = gateway.create_tokens("mallory", operator=_TOKEN)
    with gateway.client(token=mallory) as client:
        session = client.post("/message", json={"content": "zebra"}).json()["sessionId"]
        before = gateway.cpu_seconds()
        for _ in range(_FORKS):
            assert client.post(f"/v1/sessions/{session}/fork", json={}).status_code == 201
        forked = gateway.cpu_seconds()
        complete = False
        while not complete:
            complete = client.get("/v1/search", params={"q": "zebra"}).json()["complete"]
        searched = gateway.cpu_seconds()

    assert searched - forked < (forked - before) / 2


def _answer_long(_: ChatRequest) -> str:
    return _LONG_REPLY


def test_deletion_of_a_session_with_long_replies_takes_small_transactions(
    new_gateway: Callable[..., GatewayProcess], new_model: Callable[..., OpenAIStandIn]
) -> None:
    """Every other user waits for a transaction, and the log of the database holds all of its pages."""
    gateway = new_gateway(
        gateway_token=_TOKEN,
        model="openai-chat:stand-in",
        model_api_key="none",
        model_base_url=new_model(reply=_answer_long).url,
    )
    gateway.start()
    [mallory] = gateway.create_tokens("mallory", operator=_TOKEN)
    log = gateway.data_dir / "torana.db-wal"
    with gateway.client(token=mallory) as client:
        bodies = [{"content": f"message {number}", "channelId": "long"} for number in range(30)]
        replies = [client.post("/message", json=body).json() for body in bodies]
        before = log.stat().st_size
        deleted = client.delete(f"/v1/sessions/{replies[-1]['sessionId']}").json()

    assert deleted["turns"] == 30
    assert log.stat().st_size < before + 2 * 2**20
