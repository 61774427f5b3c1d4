"""Bodies of chat platforms: how accounts stand, deliveries, and who may talk."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from torana.api.shapes.base import CLEAN, Id, Wire
from torana.api.shapes.mcp import McpServerBody
from torana.store.deliveries import DeliveryState
from torana.store.senders import SenderState


class ConnectorBody(Wire):
    """How a connector's account stands."""

    account: str
    kind: str
    state: Literal["starting", "active", "backing_off", "refused"]
    since: AwareDatetime
    reason: Annotated[str | None, Field(description="Why it is not active.")]
    next_try: AwareDatetime | None
    connections: Annotated[int, Field(description="How often it was connected since the start.")]
    last_heard: AwareDatetime | None
    deliveries: Annotated[
        dict[str, int], Field(description="Deliveries that are under way or wait for the operator, by state.")
    ]


class ReloadBody(Wire):
    """What other settings changed."""

    changed: Annotated[
        list[str],
        Field(description="The accounts that are connected anew, for the first time, or not any more."),
    ]


class TurnCounts(Wire):
    """Turns that have not ended."""

    running: int
    waiting: Annotated[int, Field(description="Those that wait for somebody's approval.")]
    queued: int


class StatusBody(Wire):
    """How the gateway stands."""

    status: Literal["ok", "degraded", "draining"]
    version: str
    uptime: Annotated[int, Field(description="Whole seconds since its start.")]
    model: list[str]
    turns: TurnCounts
    connectors: list[ConnectorBody]
    mcp: list[McpServerBody]


class DeliveryBody(Wire):
    """A part of a reply on its way to a platform."""

    id: str
    account: str
    turn_id: str | None
    part: Annotated[
        int,
        Field(description="Counts a reply's parts from 0; from 500,000 on it tells a program of a turn's end."),
    ]
    state: DeliveryState
    text: Annotated[str, Field(description="What is to be said; empty once it was sent.")]
    tries: int
    due_at: AwareDatetime
    reason: Annotated[str | None, Field(description="Why it is not there yet, or never will be.")]
    created_at: AwareDatetime
    ended_at: AwareDatetime | None


class DeliveriesBody(Wire):
    """A page of deliveries."""

    items: list[DeliveryBody]
    next: Annotated[str | None, Field(description="`after` for the next page.")]


class SenderBody(Wire):
    """Somebody on a platform who asked to talk."""

    sender: Annotated[str, Field(description="The connector's kind and the platform's id: `telegram:12345`.")]
    name: Annotated[str, Field(description="As the platform shows it; anybody may choose any.")]
    account: str
    state: SenderState
    user: Annotated[str | None, Field(description="Who they are here.")]
    asked_at: AwareDatetime
    decided_at: AwareDatetime | None


class SendersBody(Wire):
    """Those who asked."""

    items: list[SenderBody]


class PairingRequest(Wire):
    """Who may talk. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    who: Annotated[
        str,
        Field(
            description="The code that they got, or the connector's kind and their id: `telegram:12345`.",
            min_length=1,
            max_length=300,
            pattern=CLEAN,
        ),
    ]
    user: Annotated[Id, Field(description="Who they are here; without it `kind:id`.")] = None


class DenialRequest(Wire):
    """Who may not talk. Unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"pattern": CLEAN}})

    who: Annotated[
        str,
        Field(
            description="The code that they got, or the connector's kind and their id: `telegram:12345`.",
            min_length=1,
            max_length=300,
            pattern=CLEAN,
        ),
    ]
