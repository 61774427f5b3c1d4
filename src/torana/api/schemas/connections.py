"""Bodies of connectors, deliveries, senders and the status of the gateway."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torana.api.schemas.base import CLEAN, Id, Page, ReadFrom, Renamed, RequestBody, Time, Wire
from torana.api.schemas.mcp import McpServerBody
from torana.messages import DeliveryState
from torana.store.rows.senders import SenderState

_Who = Annotated[
    str,
    Field(
        description="The code that the sender received, or the connector's kind and the sender's id on the "
        "platform: `telegram:12345`.",
        min_length=1,
        max_length=300,
        pattern=CLEAN,
    ),
]


class ConnectorBody(Wire):
    """The status of a connector account."""

    account: str
    kind: str
    state: Literal["starting", "active", "backing_off", "refused"]
    since: Annotated[Time, Field(description="The time of the last change of `state`.")]
    reason: Annotated[str | None, Field(description="The reason why the account is not active.")]
    next_try: Annotated[Time | None, Field(description="The time of the next connection attempt.")]
    connections: Annotated[int, Field(description="The number of connections since the start.")]
    last_heard: Annotated[Time | None, Field(description="The time of the last message from the platform.")]
    link: str | None
    """The address that opens a chat with the account, if the platform has one."""
    deliveries: dict[str, int]
    """The number of deliveries that are in progress or wait for the operator, by state."""


class ReloadBody(Wire):
    """The result of reloading the settings."""

    changed: list[str]
    """The accounts that were connected, reconnected or disconnected. A refused account is reconnected even if
    its settings did not change.
    """


class TurnCounts(Wire):
    """The numbers of turns that have not ended."""

    running: int
    waiting: Annotated[int, Field(description="Turns that wait for an approval.")]
    queued: int


class StatusBody(Wire):
    """The status of the gateway."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    uptime: Annotated[int, Field(description="Whole seconds since the start.")]
    model: list[str]
    """The configured models, in the order in which they are tried."""
    turns: TurnCounts
    connectors: list[ConnectorBody]
    mcp: list[McpServerBody]


class DeliveryBody(Wire):
    """A part of a reply that is sent to a chat platform."""

    id: str
    account: str
    turn_id: str | None
    part: int
    """The position of the part in the reply, from 0. 500,000 or more marks a notification that tells a program
    that a turn has ended.
    """
    state: DeliveryState
    text: Annotated[str, Field(description="The text to send; empty after it was sent.")]
    tries: int
    due_at: Time
    reason: Annotated[str | None, Field(description="The reason why the delivery is late or has failed.")]
    created_at: Time
    ended_at: Time | None


class DeliveriesBody(Page[DeliveryBody]):
    """A page of deliveries."""


class SenderBody(Renamed):
    """A sender on a chat platform who asked to talk to the agent."""

    sender: Annotated[str, ReadFrom("asker.key")]
    """The connector's kind and the platform's id: `telegram:12345`."""
    name: Annotated[str, ReadFrom("asker.name")]
    """The name that the platform shows; senders choose it freely."""
    account: Annotated[str, ReadFrom("asker.account")]
    state: SenderState
    user: Annotated[str | None, Field(description="The sender's user id in Torana.")]
    asked_at: Time
    decided_at: Time | None


class SendersBody(Wire):
    """The senders."""

    items: list[SenderBody]


class PairingRequest(RequestBody):
    """The sender to approve. Unknown fields are ignored."""

    who: _Who
    user: Id | None = None
    """The user id that the sender gets. Without it the user id is `kind:id`."""


class DenialRequest(RequestBody):
    """The sender to deny. Unknown fields are ignored."""

    who: _Who
