"""Chat platforms: their settings, what is to be said there, and who may talk. The operator's alone."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from torana.api import shapes, wire
from torana.api.access import act, needs
from torana.api.openapi import COMMON, OF_BODIES, documented, json_body
from torana.api.parameters import After, Id, Limit
from torana.api.services import NO_STORE, Services
from torana.errors import BadRequest, Conflict, NotFound
from torana.messages import EVERYONE
from torana.store.deliveries import DELIVERY_STATES, Delivery
from torana.store.senders import Paired

_State = Annotated[
    str,
    Query(
        description="Only those in this state.",
        max_length=20,
        json_schema_extra={"enum": ["", *DELIVERY_STATES]},
    ),
]


def add_connectors(router: APIRouter, services: Services) -> None:
    """``/v1/connectors/reload``: the settings of chat platforms, changed while the gateway runs."""

    @router.post(
        "/v1/connectors/reload",
        dependencies=[needs("admin")],
        response_model=shapes.ReloadBody,
        response_description="The accounts that changed.",
        responses=documented(*COMMON, Conflict),
        summary="Read the settings again, and connect those accounts anew whose own have changed",
    )
    async def reload_connectors(request: Request) -> Response:
        changed = await services.connections.reload(act(request))
        return JSONResponse({"changed": list(changed)}, headers=NO_STORE)


def add_deliveries(router: APIRouter, services: Services) -> None:
    """``/v1/deliveries``: what is to be said on chat platforms."""

    @router.get(
        "/v1/deliveries",
        dependencies=[needs("admin")],
        response_model=shapes.DeliveriesBody,
        response_description="A page of deliveries, the newest first.",
        responses=documented(*COMMON, BadRequest),
        summary="What was said on chat platforms, is under way, or waits for the operator",
    )
    async def list_deliveries(state: _State = "", limit: Limit = "50", after: After = "") -> Response:
        page = await services.connections.deliveries.listed(
            EVERYONE,
            state=wire.one_of("state", state, DELIVERY_STATES) if state else None,
            limit=wire.page_size(limit),
            after=after or None,
        )
        items = [delivery_body(delivery) for delivery in page.items]
        return JSONResponse({"items": items, "next": page.next}, headers=NO_STORE)

    @router.post(
        "/v1/deliveries/{delivery_id}/retry",
        dependencies=[needs("admin")],
        response_model=shapes.DeliveryBody,
        response_description="The delivery, which is under way again.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Try a delivery again that was refused, came too late, or may have arrived",
    )
    async def retry_delivery(request: Request, delivery_id: Id) -> Response:
        delivery = await services.connections.deliveries.retry(EVERYONE, delivery_id, act=act(request))
        return JSONResponse(delivery_body(delivery), headers=NO_STORE)

    @router.post(
        "/v1/deliveries/{delivery_id}/drop",
        dependencies=[needs("admin")],
        response_model=shapes.DeliveryBody,
        response_description="The delivery, which is given up.",
        responses=documented(*COMMON, NotFound, Conflict),
        summary="Give up a delivery that is not being sent at this moment",
    )
    async def drop_delivery(request: Request, delivery_id: Id) -> Response:
        delivery = await services.connections.deliveries.drop(EVERYONE, delivery_id, act=act(request))
        return JSONResponse(delivery_body(delivery), headers=NO_STORE)


def add_pairing(router: APIRouter, services: Services) -> None:
    """``/v1/pairing``: who asked to talk on a platform, and the operator's word."""

    @router.get(
        "/v1/pairing",
        dependencies=[needs("admin")],
        response_model=shapes.SendersBody,
        response_description="Those who asked, the newest first; at most 200.",
        responses=documented(*COMMON),
        summary="Who asked to talk on a chat platform, may, or may not",
    )
    async def list_senders() -> Response:
        items = [sender_body(paired) for paired in await services.connections.pairing.listed()]
        return JSONResponse({"items": items}, headers=NO_STORE)

    @router.post(
        "/v1/pairing/approve",
        dependencies=[needs("admin")],
        response_model=shapes.SenderBody,
        response_description="They may talk.",
        responses=documented(*COMMON, *OF_BODIES, NotFound),
        summary="Let somebody talk, by the code that they got or by their id; several ids may be one user",
        openapi_extra={"requestBody": json_body("PairingRequest", {"who": "K7M2PQ4X", "user": "alice"})},
    )
    async def approve_sender(request: Request) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        user = wire.identifier(document, "user")
        connections = services.connections
        paired = await connections.pairing.approve(
            _who(document), user=user, kinds=connections.kinds(), act=act(request)
        )
        return JSONResponse(sender_body(paired), headers=NO_STORE)

    @router.post(
        "/v1/pairing/deny",
        dependencies=[needs("admin")],
        response_model=shapes.SenderBody,
        response_description="They may not talk.",
        responses=documented(*COMMON, *OF_BODIES, NotFound),
        summary="Let somebody not talk, or not any more",
        openapi_extra={"requestBody": json_body("DenialRequest", {"who": "telegram:12345"})},
    )
    async def deny_sender(request: Request) -> Response:
        document = await wire.read_object(request, within=services.body_timeout)
        connections = services.connections
        paired = await connections.pairing.deny(_who(document), kinds=connections.kinds(), act=act(request))
        return JSONResponse(sender_body(paired), headers=NO_STORE)


def delivery_body(delivery: Delivery) -> dict[str, Any]:
    """A delivery as a resource."""
    return {
        "id": delivery.id,
        "account": delivery.account,
        "turnId": delivery.turn_id,
        "part": delivery.part,
        "state": delivery.state,
        "text": delivery.text,
        "tries": delivery.tries,
        "dueAt": delivery.due_at.isoformat(),
        "reason": delivery.reason,
        "createdAt": delivery.created_at.isoformat(),
        "endedAt": delivery.ended_at and delivery.ended_at.isoformat(),
    }


def sender_body(paired: Paired) -> dict[str, Any]:
    """Somebody who asked, as a resource."""
    return {
        "sender": f"{paired.asker.kind}:{paired.asker.sender}",
        "name": paired.asker.name,
        "account": paired.asker.account,
        "state": paired.state,
        "user": paired.user,
        "askedAt": paired.asked_at.isoformat(),
        "decidedAt": paired.decided_at and paired.decided_at.isoformat(),
    }


def _who(document: dict[str, Any]) -> str:
    who = document.get("who")
    if not isinstance(who, str) or not 0 < len(who) <= 300:
        raise wire.wrong("who", "must be a code, or an id such as telegram:12345")
    return who
