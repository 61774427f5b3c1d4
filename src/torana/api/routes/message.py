"""Handle messages: wait for the answer, stream it, or return 202 with the turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from torana.api.files import BODY_LIMIT, name_files, parse_files
from torana.api.long_responses import hold_slot_if_long
from torana.api.negotiation import wants_events
from torana.api.preferences import Preferences, read_key, read_preferences
from torana.api.problems import error_from
from torana.api.request_body import is_too_large, parse_message, read_object
from torana.api.responses import NoStoreResponse
from torana.api.schemas.contract import AnswerBody
from torana.api.services import Services
from torana.api.sse import EventStream, StreamClient
from torana.errors import Draining, GatewayError, NotFailed, RateLimited, StoreUnavailable, WaitExpired, by_code
from torana.limits.rate_limit_status import headers
from torana.messages import Inbound, Principal, Turn
from torana.turns.open_approvals import WaitingTurn

_REPLAYED = {"Idempotency-Replayed": "true"}


async def answer_message(request: Request, services: Services, *, with_files: bool = False) -> Response:
    """Accept a message and return its answer as requested. A known key returns the turn of the key."""
    as_events = wants_events(", ".join(request.headers.getlist("accept")))
    preferences = read_preferences(request.headers.getlist("prefer"))
    _check_rates(request, services)
    inbound = await (_inbound_with_files if with_files else _inbound)(request, services)
    inbound = replace(inbound, may_approve=not preferences.decide_by_id)
    turn = await _find_by_key(services, inbound)
    response_headers: Mapping[str, str] = _REPLAYED
    if turn is None:
        services.turns.check_accepting()
        turn, response_headers = await _submit(services, inbound)
    if as_events:
        return EventStream(
            services.turns,
            turn,
            client=StreamClient.of(request),
            keep_alive=services.keep_alive,
            headers=response_headers,
            cancel_on_disconnect=preferences.cancel_on_disconnect,
        )
    return await _plain(request, services, turn, preferences, response_headers)


def _check_rates(request: Request, services: Services) -> None:
    """Raise ``RateLimited`` before the body is read, unless the request may repeat a message."""
    if "idempotency-key" not in request.headers:
        principal: Principal = request.state.principal
        services.rates.check(principal.user, principal.token)


async def _inbound(request: Request, services: Services) -> Inbound:
    principal: Principal = request.state.principal
    document = await read_object(request, within=services.body_timeout)
    key = read_key(request.headers.getlist("idempotency-key"))
    return replace(parse_message(document, principal), key=key)


async def _inbound_with_files(request: Request, services: Services) -> Inbound:
    principal: Principal = request.state.principal
    key = read_key(request.headers.getlist("idempotency-key"))
    async with services.uploads.slot(principal.sharer):
        try:
            document = await read_object(request, within=services.body_timeout, limit=BODY_LIMIT)
            found = parse_files(document, services.takes)
            inbound = parse_message(document, principal)
        except GatewayError:
            await _count_refused_body(request, services)
            raise
    return replace(inbound, content=name_files(inbound.content, found), files=found, key=key)


async def _count_refused_body(request: Request, services: Services) -> None:
    """Count a refused body as a message if it may contain files: a large body takes long to read."""
    if "content-length" in request.headers and not is_too_large(request.headers):
        return
    principal: Principal = request.state.principal
    with suppress(RateLimited):
        await services.rates.take(principal.user, principal.token)


async def _find_by_key(services: Services, inbound: Inbound) -> Turn | None:
    """Return the turn of an earlier message with the same key, if there is one.

    A turn with a retryable failure is retried, which counts as a message.
    """
    found = await services.turns.reader.find_by_key(inbound)
    if found is None or found.failure is None or not by_code(found.failure.code).retryable:
        return found
    with suppress(NotFailed):
        async with services.rates.count(inbound.user, inbound.token):
            return await services.turns.retry(found.owner, found.id)
    return await services.turns.reader.get(found.owner, found.id)  # another request has retried it


async def _submit(services: Services, inbound: Inbound) -> tuple[Turn, Mapping[str, str]]:
    """Submit a message, and return its turn with the headers of the rate limits.

    A message that is refused, or whose key is known, is not counted.
    """
    async with services.rates.count(inbound.user, inbound.token) as message:
        submitted = await services.turns.submit(inbound, rates=message.statuses)
    if not submitted.new:
        await message.give_back()
        return submitted.turn, _REPLAYED
    return submitted.turn, headers(submitted.limit_statuses)


async def _plain(
    request: Request,
    services: Services,
    turn: Turn,
    preferences: Preferences,
    response_headers: Mapping[str, str],
) -> Response:
    """Wait for the end of a turn, and return its reply. Raises ``WaitExpired`` after the waiting time.

    If the request has no ``wait``, the question of a turn that waits for an approval is returned too.
    """
    if preferences.respond_async and preferences.wait is None:
        return await _accepted_response(request, turn, {**response_headers, **preferences.applied_header})
    seconds = services.wait if preferences.wait is None else min(preferences.wait, services.wait)
    if preferences.wait is None and turn.has_ended:
        # The response to a yes or a no is the reply of the turn that asked.
        turn = await services.turns.open_approvals.asking_turn(turn)
    try:
        ended = turn if turn.has_ended else await _wait_for_end(request, services, turn, seconds, preferences)
    except TimeoutError:
        if preferences.respond_async:
            return await _accepted_response(request, turn, {**response_headers, **preferences.applied_header})
        asking = services.turns.live.awaiting_approval(turn.session_id)
        why = f", because a call of {asking} waits for approval (GET v1/turns/{asking})" if asking else ""
        raise WaitExpired(
            f"The turn did not end within {seconds:g} s{why}. It continues: GET {_place(turn)}",
            headers=response_headers,
            extra={"instance": _place(turn)},
        ) from None
    except (Draining, StoreUnavailable) as error:  # the message is accepted and will be answered
        headers = {"Retry-After": "5", **response_headers}
        raise type(error)(error.detail, headers=headers, extra={"instance": _place(turn)}) from None
    if isinstance(ended, WaitingTurn):
        return NoStoreResponse(AnswerBody.from_waiting(ended).model_dump(mode="json"), headers=response_headers)
    if ended.failure is not None:
        raise error_from(ended.failure, headers=response_headers)
    ended = await hold_slot_if_long(request, ended)
    return NoStoreResponse(AnswerBody.from_turn(ended).model_dump(mode="json"), headers=response_headers)


async def _wait_for_end(
    request: Request, services: Services, turn: Turn, seconds: float, preferences: Preferences
) -> Turn | WaitingTurn:
    """Return the ended turn, or its approval question if the request has no ``wait``.

    If the client disconnects, the preference ``cancel-on-disconnect`` cancels the turn. Without this
    preference, the function still waits for the end of the turn, but not for a question.

    Raises ``TimeoutError`` after the seconds, and ``StoreUnavailable`` while the database cannot be written.
    """
    ending = asyncio.ensure_future(services.turns.reader.wait_for_end(turn))
    delay = asyncio.ensure_future(services.turns.reader.wait_for_delay(turn))
    leaving = asyncio.ensure_future(_wait_for_disconnect(request))
    waiting: set[asyncio.Future[Any]] = {ending, delay, leaving}
    asking: asyncio.Future[WaitingTurn] | None = None
    if preferences.wait is None:
        asking = asyncio.ensure_future(services.turns.open_approvals.wait_for_question(turn))
        waiting.add(asking)
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if done == {leaving} and not preferences.cancel_on_disconnect:
            # A question that no client receives does not count as shown.
            if asking is not None:
                asking.cancel()
            done, _ = await asyncio.wait({ending, delay}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        if ending in done:
            return ending.result()
        if asking is not None and asking in done:
            return asking.result()
        if delay in done:
            raise StoreUnavailable(
                "The database cannot be written; free disk space or repair the data directory. The message is "
                f"accepted, and its answer is stored as soon as possible: GET {_place(turn)}"
            )
        return await services.turns.cancel(turn.owner, turn.id)
    finally:
        for task in waiting:
            task.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _accepted_response(request: Request, turn: Turn, response_headers: Mapping[str, str]) -> Response:
    # Imported here to save memory: most messages wait for their answer.
    from torana.api.schemas.turns import TurnBody

    location = _place(turn).removeprefix("v1/" if request.scope["path"].startswith("/v1/") else "")
    headers = {**response_headers, "Location": location, "Retry-After": "1"}
    turn = await hold_slot_if_long(request, turn)
    return NoStoreResponse(TurnBody.from_turn(turn).model_dump(mode="json"), status_code=202, headers=headers)


def _place(turn: Turn) -> str:
    """Return the turn's path, relative to the address of the gateway."""
    return f"v1/turns/{turn.id}"
