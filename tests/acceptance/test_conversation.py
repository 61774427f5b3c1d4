"""One conversation with known answers, in every supported setup of the gateway."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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
    "chance",
    "conversation",
    "csv-query",
    "dates-and-times",
    "files",
    "json-query",
    "lists",
    "memory",
    "reminders",
    "skill-guide",
    "skill-writer",
    "text-tools",
    "unit-converter",
    "web",
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
    """A message, and the content of a correct answer."""

    message: str
    truth: str | Callable[[], str]

    def expected(self) -> str:
        """Return the correct content at this moment."""
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
ABOUT_MY_SISTER = "what do you remember about my sister"
AFTER_THE_RESTART = (
    Line(ABOUT_MY_SISTER, "Ondine"),
    Line("count the words in this text: the quick brown fox", "4 words"),
    Line("sort these lines:\npear\nfig\napple", "apple\nfig\npear"),
    Line("remove the duplicates from these lines:\nred\nblue\nred", "red\nblue"),
    Line('get $.items[1].price from this JSON: {"items": [{"price": 3}, {"price": 719}]}', "719"),
    Line("what is the sum of amount in this csv?\nname,amount\nbread,1.5\nwine,12.25", "13.75"),
    Line("what did I say first?", BEFORE_THE_RESTART[0].message),
    Line("what did I say last?", "what did I say first?"),
)


def _hold(person: Person, lines: tuple[Line, ...]) -> None:
    """Send every line; each answer must contain the expected lines in order."""
    for line in lines:
        truths = [line.expected()]
        reply = person.say(line.message)
        truths.append(line.expected())  # the minute or the day may have changed meanwhile
        assert any(_holds(reply, truth) for truth in truths), f"{line.message!r} was answered {reply!r}"


def _holds(reply: str, truth: str) -> bool:
    return re.search(".*".join(map(re.escape, truth.splitlines())), reply, re.DOTALL) is not None


def _rule(request: ChatRequest) -> Answer:
    """Answer the phrases of the fake server, and one more."""
    explained = re.fullmatch(r"explain the (\S+) skill", request.text)
    if explained and not request.results:
        return [Call("load_skill", {"slug": explained[1]})]
    return fixed_phrases(request)


@pytest.fixture
def stand_in() -> Iterator[OpenAIStandIn]:
    with OpenAIStandIn(reply=_rule) as server:
        yield server


def _with(server: OpenAIStandIn) -> dict[str, str]:
    # Without summaries, which are separate requests, every request belongs to a message.
    settings = {"TORANA_MODEL": "openai-chat:stand-in", "TORANA_MODEL_BASE_URL": server.url}
    return settings | {"TORANA_COMPACT": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """One setup of the gateway."""

    #: Whether a language model answers instead of the builtin model.
    language_model: bool = False
    #: Whether the answers are read as event streams.
    streams: bool = False
    #: Whether a proxy strips ``/api``; None without a proxy.
    proxy_strips: bool | None = None
    token: str | None = None


SET_UPS = {
    "builtin": SetUp(),
    "builtin-streamed": SetUp(streams=True),
    "language-model": SetUp(language_model=True),
    "language-model-streamed": SetUp(language_model=True, streams=True),
    "proxy-strips-prefix-token": SetUp(proxy_strips=True, token=TOKEN),
    "proxy-keeps-prefix-streamed": SetUp(proxy_strips=False, streams=True),
}


@pytest.mark.parametrize("set_up", SET_UPS.values(), ids=SET_UPS)
def test_conversation_continues_after_a_restart(
    new_gateway: Callable[..., Gateway],
    publish: Callable[..., str],
    person: type[Person],
    stand_in: OpenAIStandIn,
    set_up: SetUp,
) -> None:
    settings = {"TORANA_GATEWAY_TOKEN": set_up.token} if set_up.token else {}
    gateway = new_gateway(**settings, **(_with(stand_in) if set_up.language_model else {}))
    gateway.start()
    strips = set_up.proxy_strips
    url = gateway.url if strips is None else publish(gateway, strips_prefix=strips)
    ana = person(url=url, token=set_up.token, streams=set_up.streams)

    _look_around(ana, replace(ana, token=None))
    _hold(ana, BEFORE_THE_RESTART)
    assert gateway.stop() == 0
    gateway.start()
    _hold(ana, AFTER_THE_RESTART)
    assert "Ondine" in replace(ana, channel="garden").say(ABOUT_MY_SISTER)
    assert "Ondine" not in replace(ana, user="bo", channel="cellar").say(ABOUT_MY_SISTER)

    asked = len(BEFORE_THE_RESTART + AFTER_THE_RESTART) + 2
    # The model is asked twice for a message, the second time with the tool's result, and once for a search.
    searches = sum(request.called == ["find_tools"] for request in stand_in.requests)
    assert len(stand_in.requests) == (2 * asked + searches if set_up.language_model else 0)
    assert (
        sum(bool(request.results) for request in stand_in.requests) - searches == asked * set_up.language_model
    )
    assert searches < asked  # a session keeps the tools that it has found


def _look_around(ana: Person, stranger: Person) -> None:
    """Health is public; skills need the token."""
    assert stranger.get("health")["status"] == "ok"
    assert [skill["slug"] for skill in ana.get("skills")] == list(CORE_SKILLS)
    with stranger.client() as client:
        assert client.get("skills").status_code == (401 if ana.token else 200)


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
