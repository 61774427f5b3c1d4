"""The trace of a message from a chat platform."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.standins.otlp import attributes_of, collecting
from tests.unit.connectors.conftest import Gateway

from torana.connectors.base import RetryLater
from torana.measurements import Measurements
from torana.otel import OtelTracer
from torana.testing import ScriptedModel
from torana.testing.chat import Chat


async def test_attempts_to_deliver_join_the_trace_of_the_turn(
    open_gateway: Callable[..., Awaitable[Gateway]],
) -> None:
    with collecting() as collector:
        tracer = OtelTracer(endpoint=collector.url, content=False, environ={})
        chat = Chat(allow=["*"])
        chat.faults = [RetryLater("busy with private things")]
        gateway = await open_gateway(chat, ScriptedModel("hi"), measurements=Measurements(tracer=tracer))
        await chat.say("hello")
        await chat.shown(1)
        await gateway.hub.flush(within=20)
        await tracer.close()

    deliveries = [span for span in collector.spans if span.name == "delivery"]
    assert [collector.above(span) for span in deliveries] == ["turn", "turn"]
    failed, sent = map(attributes_of, deliveries)
    assert (failed["error.type"], failed["torana.account"]) == ("RetryLater", "home")
    assert "error.type" not in sent
    assert collector.above(collector.named("turn")) == ""
    assert b"private things" not in b"".join(collector.bodies)
