"""Principals and the turns of their messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torana.messages import Principal, Turn, owner_of, utc_now

OPERATOR = Principal(name="operator")
TOKEN = Principal(name="token:tok_1", token="tok_1")
ANA = Principal(name="token:tok_2", token="tok_2", user="ana", owner=owner_of("ana"))

TURN = Turn(
    id="turn_1",
    owner="gateway",
    session_id="ses_1",
    channel="desk",
    seq=1,
    principal="operator",
    token=None,
    user="ana",
    content="pay",
    state="running",
    attempt=1,
    created_at=utc_now(),
)


@pytest.mark.parametrize(
    ("sender", "principal", "may"),
    [
        (OPERATOR, OPERATOR, True),
        (OPERATOR, TOKEN, False),
        (OPERATOR, ANA, False),
        (TOKEN, TOKEN, True),
        (TOKEN, replace(TOKEN, name="token:tok_3"), True),  # rotated
        (TOKEN, OPERATOR, False),
        (ANA, ANA, True),
        (ANA, replace(ANA, name="token:tok_4", token="tok_4"), True),
        (ANA, OPERATOR, False),
        (ANA, TOKEN, False),
    ],
)
def test_only_the_same_user_or_token_may_have_sent_a_message(
    sender: Principal, principal: Principal, *, may: bool
) -> None:
    turn = replace(TURN, owner=sender.owner, token=sender.token)

    assert principal.may_have_sent(turn) is may
