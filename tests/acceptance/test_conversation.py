"""One conversation whose answers are known, over every set-up in which people run the gateway."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from torana.testing import Answer, Call, ChatRequest, OpenAIStandIn
from torana.testing.openai_server import fixed_phrases

if TYPE_CHECKING:
    from tests.acceptance.conftest import Gateway, Person

TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"

CORE_SKILLS = (
    "calculator",
    "conversation",
    "csv-query",
    "dates-and-times",
    "json-query",
    "memory",
    "skill-guide",
    "skill-writer",
    "text-tools",
    "unit-converter",
)


def _time_in_tokyo() -> str:
    return f"{datetime.now(ZoneInfo('Asia/Tokyo')):%H:%M}"


def _days_until_christmas_eve() -> str:
    today = datetime.now(UTC).date()
    eve = today.replace(month=12, day=24)
    days = ((eve if eve >= today else eve.replace(year=today.year + 1)) - today).days
    return f"{days} day"


@dataclass(frozen=True, slots=True)
class Line:
    """A message, and what a true answer to it holds."""

    message: str
    truth: str | Callable[[], str]

    def expected(self) -> str:
        """What is true at this moment."""
        return self.truth if isinstance(self.truth, str) else self.truth()


BEFORE_THE_RESTART = (
    Line("what is 17 % of 2,340", "397.8"),
    Line("12 km in miles", "7.456"),  # 12 / 1.609344
    Line("what time is it in Tokyo", _time_in_tokyo),
    Line("days until 24 December", _days_until_christmas_eve),
    Line("remember that my sister is called Ondine", "Ondine"),
    Line("list skills", "\n".join(CORE_SKILLS)),
    Line("explain the calculator skill", "`calculate`"),
)
AFTER_THE_RESTART = (
    Line("what do you remember about my sister", "Ondine"),
    Line("count the words in this text: the quick brown fox", "4 words"),
    Line("sort these lines:\npear\nfig\napple", "apple\nfig\npear"),
    Line("remove the duplicates from these lines:\nred\nblue\nred", "red\nblue"),
    Line('get $.items[1].price from this JSON: {"items": [{"price": 3}, {"price": 719}]}', "719"),
    Line("what is the sum of amount in this csv?\nname,amount\nbread,1.5\nwine,12.25", "13.75"),
    Line("what did I say first?", BEFORE_THE_RESTART[0].message),
    Line("what did I say last?", "what did I say first?"),
)


def _hold(person: Person, lines: tuple[Line, ...]) -> None:
    """Say every line; each answer must hold, in their order, the lines of the truth."""
    for line in lines:
        truths = [line.expected()]
        reply = person.say(line.message)
        truths.append(line.expected())  # the minute or the day may have ended meanwhile
        assert any(_holds(reply, truth) for truth in truths), f"{line.message!r} was answered {reply!r}"


def _holds(reply: str, truth: str) -> bool:
    return re.search(".*".join(map(re.escape, truth.splitlines())), reply, re.DOTALL) is not None


def _rule(request: ChatRequest) -> Answer:
    """The stand-in's phrases, and one that it does not know."""
    explained = re.fullmatch(r"explain the (\S+) skill", request.text)
    if explained and not request.results:
        return [Call("load_skill", {"slug": explained[1]})]
    return fixed_phrases(request)


@pytest.fixture
def stand_in() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(reply=_rule) as server:
        yield server


def _with(server: OpenAIStandIn) -> dict[str, str]:
    return {"TORANA_MODEL": "openai-chat:stand-in", "TORANA_MODEL_BASE_URL": server.url}


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_the_builtin_model_tells_the_truth(
    new_gateway: Callable[..., Gateway], person: type[Person], streams: bool
) -> None:
    gateway = new_gateway()
    gateway.start()
    _hold(person(url=gateway.url, streams=streams), BEFORE_THE_RESTART + AFTER_THE_RESTART)


def test_the_conversation_goes_on_after_a_restart(
    new_gateway: Callable[..., Gateway], person: type[Person]
) -> None:
    gateway = new_gateway()
    gateway.start()
    ana = person(url=gateway.url)
    _hold(ana, BEFORE_THE_RESTART)
    assert gateway.stop() == 0
    gateway.start()
    _hold(ana, AFTER_THE_RESTART)
    elsewhere, someone_else = person(url=gateway.url, channel="garden"), person(url=gateway.url, user="bo")
    assert "Ondine" in elsewhere.say("what do you remember about my sister")
    assert "Ondine" not in someone_else.say("what do you remember about my sister")


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
def test_a_language_model_gets_its_tools_called(
    new_gateway: Callable[..., Gateway], person: type[Person], stand_in: OpenAIStandIn, streams: bool
) -> None:
    gateway = new_gateway(**_with(stand_in))
    gateway.start()
    _hold(person(url=gateway.url, streams=streams), BEFORE_THE_RESTART + AFTER_THE_RESTART)
    asked = len(BEFORE_THE_RESTART + AFTER_THE_RESTART)
    # For each message the model was asked twice, the second time with what the tool had returned.
    assert len(stand_in.requests) == 2 * asked
    assert sum(bool(request.results) for request in stand_in.requests) == asked


@pytest.mark.parametrize("streams", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("strips_prefix", "token"), [(True, TOKEN), (False, None)], ids=["prefix-stripped", "prefix-kept"]
)
def test_behind_a_proxy_under_api_nothing_is_different(
    new_gateway: Callable[..., Gateway],
    publish: Callable[..., str],
    person: type[Person],
    strips_prefix: bool,
    token: str | None,
    streams: bool,
) -> None:
    gateway = new_gateway(**({"TORANA_GATEWAY_TOKEN": token} if token else {}))
    gateway.start()
    url = publish(gateway, strips_prefix=strips_prefix)
    ana = person(url=url, token=token, streams=streams)
    _hold(ana, BEFORE_THE_RESTART + AFTER_THE_RESTART)
    assert [skill["slug"] for skill in ana.get("skills")] == list(CORE_SKILLS)
    with person(url=url).client() as stranger:
        assert stranger.get("skills").status_code == (401 if token else 200)
        assert stranger.get("health").status_code == 200


def test_events_pass_the_proxy_while_the_turn_runs(
    new_gateway: Callable[..., Gateway], publish: Callable[..., str], person: type[Person]
) -> None:
    accepted = threading.Event()
    came_in_time: list[bool] = []

    def answer(_request: ChatRequest) -> Answer:
        came_in_time.append(accepted.wait(10))
        return "Thank you for waiting."

    with OpenAIStandIn(reply=answer) as server:
        gateway = new_gateway(**_with(server))
        gateway.start()
        ana = person(url=publish(gateway, strips_prefix=True))
        for event, _ in ana.events("wait for me"):
            if event == "turn.accepted":
                accepted.set()
    assert came_in_time == [True]
