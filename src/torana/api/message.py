"""``POST /message``, in the three forms an answer can take: waited for, watched, or fetched later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from torana.api import wire
from torana.api.negotiation import wants_events
from torana.api.prefer import Preferences, read_key, read_preferences
from torana.api.problems import error_from
from torana.api.services import NO_STORE, Services
from torana.api.sse import EventStream
from torana.errors import Draining, NotFailed, StoreUnavailable, WaitExpired, by_code
from torana.limits.standings import headers
from torana.messages import Inbound, Principal, Turn

_REPLAYED = {"Idempotency-Replayed": "true"}


async def answer_message(request: Request, services: Services) -> Response:
    """Take a message in and answer it as the request asks. A repeated key is the turn it already stands for."""
    as_events = wants_events(", ".join(request.headers.getlist("accept")))
    preferences = read_preferences(request.headers.getlist("prefer"))
    inbound = await _inbound(request, services)
    turn = await _known(services, inbound)
    told: Mapping[str, str] = _REPLAYED
    if turn is None:
        services.turns.check_accepting()
        turn, told = await _taken_in(services, inbound)
    if as_events:
        return EventStream(
            services.turns,
            turn,
            request_id=request.state.request_id,
            keep_alive=services.keep_alive,
            headers=told,
            cancel_when_left=preferences.cancel_on_disconnect,
        )
    return await _plain(request, services, turn, preferences, told)


async def _inbound(request: Request, services: Services) -> Inbound:
    principal: Principal = request.state.principal
    document = await wire.read_object(request, within=services.body_timeout)
    key = read_key(request.headers.getlist("idempotency-key"))
    return replace(wire.parse_message(document, principal), key=key)


async def _known(services: Services, inbound: Inbound) -> Turn | None:
    """The turn that a message with the same key became, if there is one.

    One that failed and may succeed by now runs again, which counts as a message.
    """
    found = await services.turns.known(inbound)
    if found is None or found.failure is None or not by_code(found.failure.code).retryable:
        return found
    with suppress(NotFailed), services.rates.counted(inbound.user, inbound.token):
        return await services.turns.retry(found.owner, found.id)
    return await services.turns.get(found.owner, found.id)  # another request was quicker


async def _taken_in(services: Services, inbound: Inbound) -> tuple[Turn, Mapping[str, str]]:
    """The turn of a message that passed all limits, and the headers that tell how they stand.

    One that is refused after all, or known after all, consumed nothing.
    """
    with services.rates.counted(inbound.user, inbound.token) as rates:
        submitted = await services.turns.submit(inbound, rates=rates)
    if not submitted.new:
        services.rates.give_back(inbound.user, inbound.token)
        return submitted.turn, _REPLAYED
    return submitted.turn, headers(submitted.standings)


async def _plain(
    request: Request, services: Services, turn: Turn, preferences: Preferences, told: Mapping[str, str]
) -> Response:
    """The answer as soon as it is there; later than it may take, where it is found."""
    if preferences.respond_async and preferences.wait is None:
        return _accepted(turn, {**told, **preferences.applied})
    seconds = services.wait if preferences.wait is None else min(preferences.wait, services.wait)
    try:
        ended = turn if turn.ended else await _ended(request, services, turn, seconds, preferences)
    except TimeoutError:
        if preferences.respond_async:
            return _accepted(turn, {**told, **preferences.applied})
        asking = services.turns.asking(turn.session_id)
        why = f", for a call of {asking} waits for a yes or no (GET v1/turns/{asking})" if asking else ""
        raise WaitExpired(
            f"The answer was not there within {seconds:g} s{why}. The turn goes on: GET {_place(turn)}",
            headers=told,
            extra={"instance": _place(turn)},
        ) from None
    except (Draining, StoreUnavailable) as error:  # it is accepted, and answered later
        headers = {"Retry-After": "5", **told}
        raise type(error)(error.detail, headers=headers, extra={"instance": _place(turn)}) from None
    if ended.failure is not None:
        raise error_from(ended.failure, headers=told)
    return JSONResponse(wire.answer(ended), headers={**told, **NO_STORE})


async def _ended(
    request: Request, services: Services, turn: Turn, seconds: float, preferences: Preferences
) -> Turn:
    """The turn's end. Raises ``TimeoutError`` after so many seconds; a caller who left may cancel it.

    Raises ``StoreUnavailable`` where the turn is held up by a disk that cannot be written.
    """
    ending = asyncio.ensure_future(services.turns.ended(turn))
    delay = asyncio.ensure_future(services.turns.delay(turn))
    waiting: set[asyncio.Future[Any]] = {ending, delay}
    if preferences.cancel_on_disconnect:
        waiting.add(asyncio.ensure_future(_left(request)))
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise TimeoutError
        if ending in done:
            return ending.result()
        if delay in done:
            raise StoreUnavailable(
                "The database cannot be written; free disk space or repair the data directory. The message is "
                f"accepted, and its answer is kept as soon as that is possible: GET {_place(turn)}"
            )
        return await services.turns.cancel(turn.owner, turn.id)
    finally:
        for task in waiting:
            task.cancel()


async def _left(request: Request) -> None:
    """Wait until the caller's connection ends."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _accepted(turn: Turn, told: Mapping[str, str]) -> Response:
    place = {"Location": _place(turn), "Retry-After": "1"}
    return JSONResponse(wire.turn_body(turn), status_code=202, headers={**told, **place, **NO_STORE})


def _place(turn: Turn) -> str:
    """Where the turn is found, relative to the path of the message."""
    return f"v1/turns/{turn.id}"
