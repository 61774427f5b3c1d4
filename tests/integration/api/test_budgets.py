"""Budgets over HTTP: refusals, reported states, and the guarantee that no limit is overspent."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaToolCalls, FunctionModel

from torana.app import App
from torana.testing import ScriptedModel

Gateway = tuple[App, httpx2.AsyncClient]
Start = Callable[..., Awaitable[Gateway]]


async def send(client: httpx2.AsyncClient, content: str = "hello", **fields: Any) -> httpx2.Response:
    headers = fields.pop("headers", {})
    return await client.post("/message", json={"content": content, **fields}, headers=headers)


async def get_usage(app_client: Gateway, subject: str = "/v1/usage") -> dict[str, Any]:
    return (await app_client[1].get(subject)).raise_for_status().json()


def limit(report: dict[str, Any], policy: str) -> dict[str, Any]:
    return next(entry for entry in report["limits"] if entry["policy"] == policy)


async def test_200_concurrent_turns_never_exceed_budget_for_50(start: Start, tmp_path: Path) -> None:
    """Each turn reserves the same amount, and 50 fit; the model waits until all 200 have been checked."""
    tested = asyncio.Event()

    async def answer(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        await tested.wait()
        yield "yes"

    other, _ = await start(data_dir=tmp_path / "other")
    one = 4096 + other.core.fixed_tokens().most + len("hello")
    model: Any = FunctionModel(stream_function=answer)
    gateway = await start(model, limits_global=f"{50 * one} tokens/month", concurrency=1000)
    _, client = gateway

    waiting = [asyncio.create_task(send(client, channelId=str(n))) for n in range(200)]
    refused = 0
    while refused < 150:
        await asyncio.wait([task for task in waiting if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        refused = sum(task.done() for task in waiting)
    state = limit(await get_usage(gateway), "global-tokens-month")
    most = state["used"] + state["reserved"]
    tested.set()
    answers = await asyncio.gather(*waiting)

    assert Counter(answer.status_code for answer in answers) == {200: 50, 429: 150}
    assert most == 50 * one
    used = sum(
        sum(a.json()["usage"][k] for k in ("inputTokens", "outputTokens")) for a in answers if a.is_success
    )
    after = limit(await get_usage(gateway), "global-tokens-month")
    assert (after["used"], after["reserved"]) == (used, 0)
    # Unused reservations are released for others.
    assert (await send(client)).status_code == 200


async def test_refusal_names_policies_reset_time_and_setting(start: Start) -> None:
    _, client = await start(
        limits_per_user="1 messages/day, 5 messages/month", limits_global="1 messages/month", rate_per_user=20
    )
    await send(client, userId="ana")

    refused = await send(client, userId="ana")

    body = refused.json()
    assert refused.status_code == 429
    assert (body["code"], body["error"]) == ("budget_spent", "Rate limited")
    assert body["violatedPolicies"] == ["user-messages-day", "global-messages-month"]
    assert body["retryAfterMs"] == 1000 * int(refused.headers["Retry-After"])
    assert "1 messages/day (TORANA_LIMITS_PER_USER)" in body["detail"]
    names = [policy.split(";")[0] for policy in refused.headers["RateLimit-Policy"].split(", ")]
    assert names == ['"user"', '"user-messages-day"', '"user-messages-month"', '"global-messages-month"']
    assert refused.headers["RateLimit"].startswith('"user-messages-day";r=0;t=')
    assert refused.headers["Torana-Budget-Warning"] == (
        '"user-messages-day";used=100, "global-messages-month";used=100'
    )


async def test_all_limits_are_checked_before_any_is_charged(start: Start, stored: Callable[[App], Any]) -> None:
    gateway = await start(limits_per_user="1 messages/day", limits_global="3 messages/day")
    app, client = gateway
    await send(client, userId="ana")
    kept = await stored(app)

    assert (await send(client, userId="ana", channelId="new")).status_code == 429

    assert await stored(app) == kept
    assert limit(await get_usage(gateway), "global-messages-day")["used"] == 1
    assert (await send(client, userId="bob")).status_code == 200
    # The operator's own message counts for the global limits, and for no user.
    assert (await send(client)).status_code == 200
    assert (await send(client)).json()["violatedPolicies"] == ["global-messages-day"]


async def test_refused_message_restores_rate_limit_and_stores_no_key(start: Start) -> None:
    _, client = await start(limits_global="1 messages/day", rate_per_user=3)
    key = {"Idempotency-Key": "k"}
    await send(client, userId="ana")

    refused = [await send(client, userId="ana", headers=key) for _ in range(5)]

    assert {answer.json()["code"] for answer in refused} == {"budget_spent"}


async def test_messages_over_concurrent_turn_limit_are_refused(start: Start) -> None:
    gate = asyncio.Event()
    model = ScriptedModel(*[["", gate, "yes"]] * 4)
    _, client = await start(model, limits_per_user="2 turns")
    later = {"Prefer": "respond-async"}

    first = await send(client, userId="ana", channelId="1", headers=later)
    await send(client, userId="ana", channelId="2", headers=later)
    refused = await send(client, userId="ana", channelId="3")

    assert refused.json()["violatedPolicies"] == ["user-turns"]
    assert refused.headers["Retry-After"] == "5"
    assert '"user-turns";q=2;qu="concurrent-requests"' in refused.headers["RateLimit-Policy"]
    cancelled = await client.post(f"/{first.headers['Location']}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    gate.set()
    assert (await send(client, userId="ana", channelId="3")).status_code == 200


async def test_cost_uses_configured_prices(start: Start, tmp_path: Path) -> None:
    (tmp_path / "torana.toml").write_text(
        'model = "openai-chat:mine"\nmodel_base_url = "http://localhost:1/v1"\n'
        'prices = "openai-chat:mine 1 2"\nlimits_per_user = "5 usd/month"\n'
    )
    gateway = await start(ScriptedModel("one two three"))

    answer = (await send(gateway[1], userId="ana")).json()

    usage = answer["usage"]
    assert usage["costUsd"] == pytest.approx((usage["inputTokens"] + 2 * usage["outputTokens"]) / 1e6)
    report = await get_usage(gateway, "/v1/users/ana/usage")
    assert report["user"] == "ana"
    assert report["today"] == report["month"] == {"messages": 1, "summaryTokens": 0, **usage}
    assert [day["date"] for day in report["days"]] == sorted(day["date"] for day in report["days"])
    assert (len(report["days"]), report["days"][-1]["messages"]) == (30, 1)
    state = limit(report, "user-usd-month")
    assert (state["quota"], state["used"], state["reserved"]) == (5, pytest.approx(usage["costUsd"]), 0)
    assert datetime.fromisoformat(state["resetsAt"]).day == 1


async def test_model_gets_max_tokens_where_output_is_limited(start: Start) -> None:
    bounded, unbounded = ScriptedModel("yes"), ScriptedModel("yes")

    _, client = await start(bounded, limits_global="1000000 tokens/day", max_output_tokens=77)
    await send(client)
    _, client = await start(unbounded, limits_global="10 messages/day", data_dir="other", max_output_tokens=77)
    await send(client)

    settings = [model.requests[0].info.model_settings or {} for model in (bounded, unbounded)]
    assert [one.get("max_tokens") for one in settings] == [77, None]


async def test_usage_is_counted_without_limits(start: Start) -> None:
    gateway = await start(ScriptedModel("one", "two"))
    answers = [(await send(gateway[1], userId="ana")).json() for _ in range(2)]

    report = await get_usage(gateway, "/v1/users/ana/usage?days=2")

    assert report["limits"] == []
    assert [day["messages"] for day in report["days"]] == [0, 2]
    assert report["today"]["inputTokens"] == sum(answer["usage"]["inputTokens"] for answer in answers)
    assert (await get_usage(gateway))["today"] == report["today"]


@pytest.mark.parametrize(("days", "told"), [("0", 1), ("1", 1), ("7", 7), ("99999", 366)])
async def test_usage_report_covers_requested_days(client: httpx2.AsyncClient, days: str, told: int) -> None:
    assert len((await client.get(f"/v1/usage?days={days}")).json()["days"]) == told


@pytest.mark.parametrize("days", ["-1", "x", "1.5", "٣", "1e3"])
async def test_invalid_number_of_days_is_refused(client: httpx2.AsyncClient, days: str) -> None:
    answer = await client.get("/v1/usage", params={"days": days})

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_field")


async def test_concurrent_requests_with_same_key_count_as_one_message(start: Start) -> None:
    """Both requests arrive together: the transaction finds the key, and the second is not counted."""
    gateway = await start(ScriptedModel("yes", "again"), rate_per_user=2, limits_global="9 messages/day")
    _, client = gateway
    key = {"Idempotency-Key": "k"}
    both = [send(client, userId="ana", headers=key) for _ in range(2)]

    first, second = await asyncio.gather(*both)

    assert first.json() == second.json()
    replayed = sorted(answer.headers.get("Idempotency-Replayed", "") for answer in (first, second))
    assert replayed == ["", "true"]
    assert limit(await get_usage(gateway), "global-messages-day")["used"] == 1
    assert (await send(client, userId="ana")).headers["RateLimit"].startswith('"user";r=0')


async def test_budget_warning_is_logged_once_per_threshold(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    _, client = await start(limits_global="10 messages/month")
    with caplog.at_level(logging.WARNING, "torana.limits.budgets"):
        for _ in range(11):
            await send(client)

    told = [(record.getMessage(), vars(record)["percent"], vars(record)["policy"]) for record in caplog.records]
    assert told == [
        ("budget_warning", 50, "global-messages-month"),
        ("budget_warning", 80, "global-messages-month"),
    ]


async def test_usage_path_belongs_to_its_user(start: Start) -> None:
    _, client = await start(ScriptedModel("yes"))
    await send(client, userId="ana maría")

    assert (await client.get("/v1/users/ana maría/usage")).status_code == 404
    found = await client.get("/v1/users/~YW5hIG1hcsOtYQ/usage")
    assert (found.json()["user"], found.json()["today"]["messages"]) == ("ana maría", 1)
    nobody = await client.get("/v1/users/bob/usage")
    assert nobody.json()["today"] == {
        "messages": 0,
        "inputTokens": 0,
        "outputTokens": 0,
        "costUsd": 0,
        "estimatedInput": {"instructions": 0, "tools": 0, "history": 0},
        "summaryTokens": 0,
    }


@pytest.mark.parametrize("period", ["minute", "day"])
async def test_token_limits_apply_across_users(start: Start, period: str) -> None:
    operator = {"Authorization": "Bearer the-operators-own-token"}
    _, client = await start(gateway_token="the-operators-own-token", limits_per_token=f"2 messages/{period}")
    scopes = ["message", "impersonate"]
    made = [await client.post("/v1/tokens", json={"scopes": scopes}, headers=operator) for _ in range(2)]
    shop, other = [{"Authorization": f"Bearer {token.json()['token']}"} for token in made]

    answers = [await send(client, userId=user, headers=shop) for user in ("ana", "ben", "eve")]

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].json()["violatedPolicies"] == [f"token-messages-{period}"]
    assert "TORANA_LIMITS_PER_TOKEN" in answers[-1].json()["detail"]
    assert (await send(client, userId="eve", headers=other)).status_code == 200
    assert (await send(client, userId="eve", headers=operator)).status_code == 200


async def test_cancelled_turn_pays_for_sent_and_received_tokens(start: Start) -> None:
    model = ScriptedModel(*[["a" * 3000, asyncio.Event()]] * 9)
    gateway = await start(model, limits_per_user="30000 tokens/day", persona=".")
    app, client = gateway
    one = 0
    for number in range(1, 3):
        sent = await send(client, userId="ana", headers={"Prefer": "respond-async"})
        async for event in app.turns.reader.events(await app.turns.reader.get("gateway", sent.json()["id"])):
            if event.type == "message.delta":
                break
        stopped = (await client.post(f"/{sent.headers['Location']}/cancel")).json()
        assert stopped["usage"]["outputTokens"] == 1000
        one = one or stopped["usage"]["inputTokens"] + 1000
        assert stopped["usage"]["inputTokens"] + 1000 == one > 4000
        state = limit(await get_usage(gateway, "/v1/users/ana/usage"), "user-tokens-day")
        assert (state["used"], state["reserved"]) == (number * one, 0)
