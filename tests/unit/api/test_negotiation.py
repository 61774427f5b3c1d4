import pytest

from torana.api.negotiation import wants_events
from torana.errors import NotAcceptable


@pytest.mark.parametrize(
    ("accept", "events"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/*", False),
        ("text/html, */*;q=0.1", False),
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        # Some protocols list both side by side: a client that lists events can read them.
        ("application/json, text/event-stream", True),
        ("application/json, text/event-stream;q=0.5", False),
        ("application/json;q=0.5, text/event-stream;q=0.9", True),
        ("text/event-stream;q=0, */*", False),
        ("text/event-stream; q=0.0, application/json", False),
        ("application/json;q=0, text/*", True),
        ("text/event-stream;q=much", True),
        ("text/event-stream;level=1;q=0.1, */*;q=0.2", False),
    ],
)
def test_accept_header_selects_events_or_json(accept: str, events: bool):
    assert wants_events(accept) is events


@pytest.mark.parametrize(
    "accept", ["text/html", "json", ";;,,", "application/json;q=0", "application/xml, image/*", "*/*;q=0"]
)
def test_unsupported_accept_header_is_refused(accept: str):
    with pytest.raises(NotAcceptable):
        wants_events(accept)


def test_only_the_beginning_of_a_long_accept_header_is_read():
    assert wants_events("text/event-stream" + ", a/b" * 10_000)
    with pytest.raises(NotAcceptable):
        wants_events("a/b, " * 10_000 + "text/event-stream")
