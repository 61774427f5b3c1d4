"""Connectors, deliveries and senders. All of these endpoints require the scope ``admin``."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request

from torana.api.dependencies import act, services_of
from torana.api.openapi import json_body, problem_responses
from torana.api.parameters import After, Id, Limit, one_of_values, page_size
from torana.api.request_body import one_of, read_body
from torana.api.routes.router import new_router, require_scopes
from torana.api.schemas.connections import (
    DeliveriesBody,
    DeliveryBody,
    DenialRequest,
    PairingRequest,
    ReloadBody,
    SenderBody,
    SendersBody,
)
from torana.messages import DELIVERY_STATES, EVERYONE

_State = Annotated[str, one_of_values("Only deliveries in this state.", DELIVERY_STATES)]

router = new_router(require_scopes("admin"))


@router.post(
    "/v1/connectors/reload",
    response_description="The accounts that changed.",
    responses=problem_responses({409: "The settings are invalid. None of them was applied."}),
    summary="Read the settings again, and reconnect the accounts whose settings changed",
)
async def reload_connectors(request: Request) -> ReloadBody:
    return ReloadBody(changed=list(await services_of(request).connections.reload(act(request))))


deliveries = "/v1/deliveries"


@router.get(
    deliveries,
    response_description="A page of deliveries, the newest first.",
    responses=problem_responses({400: "`state`, `limit` or `after` is invalid."}),
    summary="List the deliveries to chat platforms: sent, in progress, and held for the operator",
)
async def list_deliveries(
    request: Request, state: _State = "", limit: Limit = "50", after: After = ""
) -> DeliveriesBody:
    page = await services_of(request).connections.deliveries.list_deliveries(
        EVERYONE,
        state=one_of("state", state, DELIVERY_STATES) if state else None,
        limit=page_size(limit),
        after=after or None,
    )
    return DeliveriesBody.model_validate(page)


@router.post(
    f"{deliveries}/{{delivery_id}}/retry",
    response_description="The delivery, in progress again.",
    responses=problem_responses(
        {404: "There is no such delivery.", 409: "The delivery is not held, so it cannot be retried."}
    ),
    summary="Retry a held delivery",
    description="A delivery is held if the platform refused it, if it was too late, or if its outcome is "
    "unknown. The message may then appear twice.",
)
async def retry_delivery(request: Request, delivery_id: Id) -> DeliveryBody:
    delivery = await services_of(request).connections.deliveries.retry(EVERYONE, delivery_id, act=act(request))
    return DeliveryBody.model_validate(delivery)


@router.post(
    f"{deliveries}/{{delivery_id}}/drop",
    response_description="The dropped delivery.",
    responses=problem_responses(
        {404: "There is no such delivery.", 409: "The delivery is being sent, or has ended."}
    ),
    summary="Drop a delivery that is not being sent",
)
async def drop_delivery(request: Request, delivery_id: Id) -> DeliveryBody:
    delivery = await services_of(request).connections.deliveries.drop(EVERYONE, delivery_id, act=act(request))
    return DeliveryBody.model_validate(delivery)


@router.get(
    "/v1/pairing",
    response_description="The senders, the newest first, at most 200.",
    responses=problem_responses(),
    summary="List the senders on chat platforms with the operator's decisions",
)
async def list_senders(request: Request) -> SendersBody:
    senders = await services_of(request).connections.pairing.list_senders()
    return SendersBody.model_validate({"items": senders})


@router.post(
    "/v1/pairing/approve",
    response_description="The approved sender.",
    responses=problem_responses(
        {404: "The code is unknown or has expired, or no connector has this kind."}, reads_body=True
    ),
    summary="Approve a sender by code or id; several senders can be one user",
    openapi_extra={"requestBody": json_body(PairingRequest)},
)
async def approve_sender(request: Request) -> SenderBody:
    body = await read_body(request, PairingRequest)
    connections = services_of(request).connections
    paired = await connections.pairing.approve(
        body.who, user=body.user or None, kinds=connections.kinds(), act=act(request)
    )
    return SenderBody.model_validate(paired)


@router.post(
    "/v1/pairing/deny",
    response_description="The denied sender.",
    responses=problem_responses(
        {404: "The code is unknown or has expired, or no connector has this kind."}, reads_body=True
    ),
    summary="Deny a sender, or revoke an approval",
    openapi_extra={"requestBody": json_body(DenialRequest)},
)
async def deny_sender(request: Request) -> SenderBody:
    body = await read_body(request, DenialRequest)
    connections = services_of(request).connections
    paired = await connections.pairing.deny(body.who, kinds=connections.kinds(), act=act(request))
    return SenderBody.model_validate(paired)
