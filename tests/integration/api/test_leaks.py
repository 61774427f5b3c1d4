"""No user ever sees data of another user, whatever the requests are."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.function import AgentInfo, FunctionModel

from torana.api.user_ids import write_user_id

Start = Callable[..., Awaitable[Any]]

TOKEN = "the-operators-own-token"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
SCOPES = ["message", "read", "skills", "memory"]

#: Some differ by case or by normalisation alone, and some look like a path or like SQL.
USERS = ("ana", "ANA", "zo\u00eb", "zoe\u0308", "../ana", "' OR '1'='1")
#: Shared by all users, so that they collide.
CHANNELS = ("home", "work")
KEYS = ("first", "second")

_MARK = re.compile("mark-[0-9]+-of")


async def _leak(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Reply with every mark that the model has received."""
    shown = f"{ModelMessagesTypeAdapter.dump_json(messages).decode()} {info.instructions}"
    yield " ".join(["shown:", *sorted(set(_MARK.findall(shown)))])


@dataclass
class Person:
    """A user with a token, and a mark that is in all of the user's texts."""

    user: str
    mark: str
    headers: dict[str, str]


@dataclass
class World:
    """The gateway, its users, and the ids of all created objects by their users."""

    client: httpx2.AsyncClient
    people: list[Person]
    turns: list[tuple[Person, str]] = field(default_factory=list[tuple[Person, str]])
    sessions: list[tuple[Person, str]] = field(default_factory=list[tuple[Person, str]])
    memories: list[tuple[Person, str]] = field(default_factory=list[tuple[Person, str]])
    schedules: list[tuple[Person, str]] = field(default_factory=list[tuple[Person, str]])

    async def ask(
        self, person: Person, method: str, path: str, *, whose: Person | None = None, **request: Any
    ) -> httpx2.Response:
        """Send a request as the person, and check every byte of the response; objects of others must be 404."""
        headers = person.headers | request.pop("headers", {})
        answer = await self.client.request(method, path, headers=headers, **request)
        told = f"{answer.text} {answer.headers}"
        assert answer.status_code < 500, told
        for other in self.people:
            assert other is person or other.mark not in told, f"{person.user} saw {other.user}'s: {told}"
        if whose is not None and whose is not person:
            assert answer.status_code == 404, told
        return answer


async def _say(world: World, person: Person, pick: int) -> None:
    body = {"content": f"{person.mark} {pick}", "channelId": CHANNELS[pick % 2]}
    keyed = {"Idempotency-Key": KEYS[pick // 2 % 2]} if pick % 3 == 0 else {}
    answer = await world.ask(person, "POST", "/message", json=body, headers=keyed)
    if answer.status_code == 200:
        world.turns.append((person, answer.json()["id"]))
        world.sessions.append((person, answer.json()["sessionId"]))


async def _watch(world: World, person: Person, pick: int) -> None:
    body = {"content": f"{person.mark} watched"}
    await world.ask(person, "POST", "/message", json=body, headers={"Accept": "text/event-stream"})


async def _name_another(world: World, person: Person, pick: int) -> None:
    other = world.people[pick % len(world.people)]
    answer = await world.ask(person, "POST", "/message", json={"content": person.mark, "userId": other.user})
    assert answer.status_code == (200 if other is person else 403)


async def _operator_says(world: World, person: Person, pick: int) -> None:
    """Send a message of the operator for the person, in a session of the gateway."""
    body = {"content": person.mark, "userId": person.user, "channelId": CHANNELS[pick % 2]}
    answer = await world.client.post("/message", json=body, headers=OPERATOR)
    assert answer.status_code == 200, answer.text


def _of_a_turn(method: str, rest: str) -> Callable[[World, Person, int], Awaitable[None]]:
    async def act(world: World, person: Person, pick: int) -> None:
        if world.turns:
            whose, turn = world.turns[pick % len(world.turns)]
            await world.ask(person, method, f"/v1/turns/{turn}{rest}", whose=whose)

    return act


def _of_a_session(method: str, rest: str, **request: Any) -> Callable[[World, Person, int], Awaitable[None]]:
    async def act(world: World, person: Person, pick: int) -> None:
        if world.sessions:
            whose, session = world.sessions[pick % len(world.sessions)]
            await world.ask(person, method, f"/v1/sessions/{session}{rest}", whose=whose, **request)

    return act


async def _list_sessions(world: World, person: Person, pick: int) -> None:
    query = {"limit": str(pick % 7 + 1), "userId": world.people[pick % len(world.people)].user}
    await world.ask(person, "GET", "/v1/sessions", params=query if pick % 2 else {})


async def _remember(world: World, person: Person, pick: int) -> None:
    body = {"text": f"{person.mark} likes tea {pick}", "subject": "tea" if pick % 2 else ""}
    answer = await world.ask(person, "POST", f"{_place(person)}/memories", json=body)
    assert answer.status_code in (200, 201), answer.text
    world.memories.append((person, answer.json()["id"]))


async def _search(world: World, person: Person, pick: int) -> None:
    whose = world.people[pick % len(world.people)]
    query = ("tea", 'tea" OR owner:*', "mark", "NEAR(tea)", "")[pick % 5]
    await world.ask(person, "GET", f"{_place(whose)}/memories", whose=whose, params={"query": query})


def _of_a_memory(method: str, **request: Any) -> Callable[[World, Person, int], Awaitable[None]]:
    async def act(world: World, person: Person, pick: int) -> None:
        if world.memories:
            whose, memory = world.memories[pick % len(world.memories)]
            own_place = pick % 2 == 0  # a memory of another user does not exist under one's own name either
            place = _place(person if own_place else whose)
            await world.ask(person, method, f"{place}/memories/{memory}", whose=whose, **request)

    return act


async def _schedule(world: World, person: Person, pick: int) -> None:
    body = {"text": f"{person.mark} drinks tea", "rule": "every day at 9", "channelId": CHANNELS[pick % 2]}
    answer = await world.ask(person, "POST", "/v1/schedules", json=body)
    if answer.status_code != 409:  # the limit permits this number
        world.schedules.append((person, answer.json()["id"]))


async def _list_schedules(world: World, person: Person, pick: int) -> None:
    query = {"userId": world.people[pick % len(world.people)].user} if pick % 2 else {}
    await world.ask(person, "GET", "/v1/schedules", params=query)


def _of_a_schedule(method: str, rest: str) -> Callable[[World, Person, int], Awaitable[None]]:
    async def act(world: World, person: Person, pick: int) -> None:
        if world.schedules:
            whose, schedule = world.schedules[pick % len(world.schedules)]
            await world.ask(person, method, f"/v1/schedules/{schedule}{rest}", whose=whose)

    return act


async def _use(world: World, person: Person, pick: int) -> None:
    whose = world.people[pick % len(world.people)]
    await world.ask(person, "GET", f"{_place(whose)}/usage", whose=whose)


async def _administer(world: World, person: Person, pick: int) -> None:
    whose = world.people[pick % len(world.people)]
    paths = ("/v1/tokens", "/v1/audit", "/v1/usage", f"{_place(whose)}/export")
    answer = await world.ask(person, "GET", paths[pick % len(paths)])
    assert answer.status_code == 403, answer.text


def _place(person: Person) -> str:
    return f"/v1/users/{write_user_id(person.user)}"


ACTS = (
    _say,
    _say,
    _watch,
    _name_another,
    _operator_says,
    _of_a_turn("GET", ""),
    _of_a_turn("GET", "/events"),
    _of_a_turn("POST", "/cancel"),
    _list_sessions,
    _of_a_session("GET", ""),
    _of_a_session("GET", "/messages"),
    _of_a_session("GET", "/export"),
    _of_a_session("POST", "/fork", json={}),
    _of_a_session("POST", "/reset"),
    _of_a_session("DELETE", ""),
    _remember,
    _remember,
    _search,
    _of_a_memory("GET"),
    _of_a_memory("PATCH", json={"text": "changed"}),
    _of_a_memory("DELETE"),
    _schedule,
    _list_schedules,
    _of_a_schedule("GET", ""),
    _of_a_schedule("POST", "/pause"),
    _of_a_schedule("POST", "/resume"),
    _of_a_schedule("DELETE", ""),
    _use,
    _administer,
)


@pytest.fixture
async def world(start: Start) -> World:
    """A gateway with a token for each of the users, whose model repeats all that it received."""
    _, client = await start(FunctionModel(stream_function=_leak), gateway_token=TOKEN)
    people: list[Person] = []
    for number, user in enumerate(USERS):
        body = {"user": user, "scopes": SCOPES}
        answer = await client.post("/v1/tokens", json=body, headers=OPERATOR)
        headers = {"Authorization": f"Bearer {answer.json()['token']}"}
        people.append(Person(user=user, mark=f"mark-{number}-of", headers=headers))
    return World(client=client, people=people)


@given(
    acts=st.lists(
        st.tuples(st.sampled_from(ACTS), st.integers(0, len(USERS) - 1), st.integers(0, 10_000)), max_size=25
    )
)
@settings(
    max_examples=settings().max_examples // 2,
    # The next example must not see data of this one.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_users_never_see_data_of_other_users(world: World, acts: list[Any]) -> None:
    for act, number, pick in acts:
        await act(world, world.people[number], pick)


async def test_leak_detector_finds_leak(world: World) -> None:
    ana, ben = world.people[:2]
    await _say(world, ana, 0)
    _, turn = world.turns[0]
    seen = await world.ask(ana, "GET", f"/v1/turns/{turn}")
    assert ana.mark in seen.text
    with pytest.raises(AssertionError, match="saw"):
        await world.ask(Person(user="eve", mark="mark-9-of", headers=OPERATOR), "GET", f"/v1/turns/{turn}")
    with pytest.raises(AssertionError):
        await world.ask(ben, "GET", "/skills", whose=ana)


# --- every route


async def _operations(world: World) -> list[tuple[str, str]]:
    document = (await world.client.get("/openapi.json", headers=OPERATOR)).json()
    found = [(method.upper(), path) for path, item in document["paths"].items() for method in item]
    assert len(found) > 25
    return found


async def _filled(world: World, person: Person) -> Callable[[str], str]:
    """Return a function that fills a path of the document with ids of the person."""
    await _say(world, person, 0)
    await _remember(world, person, 0)
    await _schedule(world, person, 0)
    tokens = (await world.client.get("/v1/tokens", headers=OPERATOR)).json()["items"]
    ids = {
        "turn_id": world.turns[-1][1],
        "call_id": "call_1",
        "approval_id": "apr_0198",
        "session_id": world.sessions[-1][1],
        "memory_id": world.memories[-1][1],
        "schedule_id": world.schedules[-1][1],
        "user_id": write_user_id(person.user),
        "delivery_id": "dlv_0198",  # all of them are the operator's
        "server": "time",  # they too
        "slug": "none-of-theirs",  # all users share the skills
        "token_id": next(token["id"] for token in tokens if token["user"] == person.user),
    }
    return lambda path: path.format(**ids)


async def test_no_route_returns_data_to_wrong_user(world: World) -> None:
    ana, ben = world.people[0], world.people[2]
    fill = await _filled(world, ana)
    for method, path in await _operations(world):
        answer = await world.ask(
            ben,
            method,
            fill(path),
            json={"content": "hi", "text": "hi", "decision": "deny", "archived": True},
            params={"seconds": "0", "q": ana.mark},  # the stream of all events ends at once
        )
        if "{" in path:
            assert answer.status_code in (403, 404), (method, path, answer.text)
    assert ana.mark in (await world.ask(ana, "GET", fill("/v1/turns/{turn_id}"))).text
    assert ana.mark in (await world.ask(ana, "GET", fill("/v1/users/{user_id}/memories"))).text
