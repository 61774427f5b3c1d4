"""Bounds on the unanswered messages of a session, a user and a token."""

from __future__ import annotations

import pytest

from torana.errors import QueueFull
from torana.messages import GATEWAY_OWNER, Inbound
from torana.turns.queue import Queue

QUEUE = Queue(per_user=2)


def message(*, user: str | None = None, token: str | None = None) -> Inbound:
    return Inbound(owner=GATEWAY_OWNER, principal="somewhere", content="hello", user=user, token=token)


@pytest.mark.parametrize(("user", "token"), [("ana", None), ("ana", "tok_1"), (None, "tok_1")])
def test_sender_has_a_share_of_the_queue(user: str | None, token: str | None) -> None:
    waiting = [message(user=user, token=token)] * 2

    with pytest.raises(QueueFull):
        QUEUE.check(message(user=user, token=token), waiting)


@pytest.mark.parametrize(("user", "token"), [("bob", None), ("bob", "tok_1"), (None, "tok_2"), (None, None)])
def test_senders_do_not_fill_the_shares_of_others(user: str | None, token: str | None) -> None:
    waiting = [message(user="ana", token="tok_1"), message(token="tok_1")] * 2

    QUEUE.check(message(user=user, token=token), waiting)


def test_gateway_token_without_a_user_is_not_limited() -> None:
    QUEUE.check(message(), [message()] * 5)
