"""``torana usage``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torana.limits.policies import day_of
from torana.messages import utc_now
from torana.store.backup.archive import DATABASE_NAME
from torana.store.engine.migrate import migrate
from torana.store.engine.sqlite import sqlite_engine
from torana.store.rows import usage as rows
from torana.store.rows.usage import Amount

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def record_usage(place: Path) -> None:
    """Usage of ana with a token, today."""
    path = place / "data" / DATABASE_NAME
    path.parent.mkdir()
    migrate(path)
    engine = sqlite_engine(path)
    amount = Amount(
        messages=3,
        input_tokens=1_200,
        output_tokens=34,
        microusd=2_500_000,
        instruction_tokens=300,
        tool_tokens=400,
        history_tokens=500,
        summary_tokens=60,
        reserved_tokens=50,
        reserved_microusd=250_000,
    )
    with engine.begin() as connection:
        rows.add(connection, ["gateway", "user:ana", "token:tok_1"], [day_of(utc_now())], amount)
    engine.dispose()


@pytest.mark.usefixtures("record_usage")
def test_days_are_plotted_and_limits_listed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORANA_LIMITS_PER_USER", "5 usd/month, 3 turns")
    monkeypatch.setenv("COLUMNS", "120")

    code, out, err = command("usage", "--user", "ana", "--days", "3")

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "user:ana"
    assert "cost" in lines[1]
    (today,) = (line for line in lines if line.startswith(day_of(utc_now())))
    assert today.split()[1:5] == ["3", "1,200", "34", "2.5000"]
    assert today.count("█") == 40
    assert len([line for line in lines if line.startswith("20")]) == 1  # days without usage are left out
    (parts,) = (line for line in lines if line.startswith("this month") and line.endswith("60"))
    assert parts.split()[2:] == ["300", "400", "500", "60"]
    (money,) = (line for line in lines if line.startswith("user-usd-month"))
    assert money.split()[1:4] == ["5", "2.5", "0.25"]
    assert money.count("█") == 11
    assert "when turns are answered" in out


@pytest.mark.usefixtures("record_usage")
def test_output_fits_80_columns(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORANA_LIMITS_PER_USER", "2000000 tokens/month, 500 messages/day")
    monkeypatch.setenv("COLUMNS", "80")

    _, out, _ = command("usage", "--user", "ana", "--days", "2")

    lines = out.splitlines()
    assert [line.split()[0] for line in lines if day_of(utc_now()) in line] == [day_of(utc_now())]
    policies = {line.split()[0] for line in lines if line.startswith("user-")}
    assert policies == {"user-messages-day", "user-tokens-month"}
    assert not any("…" in line or len(line) > 80 for line in lines)


@pytest.mark.usefixtures("record_usage")
@pytest.mark.parametrize(
    ("flags", "account", "messages"),
    [
        ((), "gateway", 3),
        (("--token", "tok_1"), "token:tok_1", 3),
        (("--user", "bob"), "user:bob", 0),
    ],
)
def test_usage_is_printed_as_json(
    command: Command, flags: tuple[str, ...], account: str, messages: int
) -> None:
    code, out, _ = command("usage", "--json", "--days", "2", *flags)

    told = json.loads(out)
    assert (code, told["account"], told["today"]["messages"]) == (0, account, messages)
    assert len(told["days"]) == 2


def test_usage_of_a_rotated_token_includes_its_successors(command: Command, place: Path) -> None:
    first = json.loads(command("token", "create", "--json")[1])["id"]
    second = json.loads(command("token", "rotate", first, "--json")[1])["id"]
    engine = sqlite_engine(place / "data" / DATABASE_NAME)
    with engine.begin() as connection:
        rows.add(connection, [f"token:{first}"], [day_of(utc_now())], Amount(messages=3))
    engine.dispose()

    told = [json.loads(command("usage", "--json", "--token", token)[1]) for token in (first, second)]

    assert [one["today"]["messages"] for one in told] == [3, 3]


@pytest.mark.usefixtures("record_usage")
def test_user_without_usage_gets_an_empty_plot(command: Command) -> None:
    code, out, _ = command("usage", "--user", "bob\x1b[31m", "--days", "1")

    assert code == 0
    assert "\x1b" not in out
    assert "█" not in out


@pytest.mark.usefixtures("record_usage")
def test_user_and_token_options_exclude_each_other(command: Command) -> None:
    told = "--user and --token exclude each other; give one of them\n"
    assert command("usage", "--user", "a", "--token", "b") == (1, "", told)


def test_missing_database_is_reported(command: Command) -> None:
    code, _, err = command("usage")

    assert code == 1
    assert err.endswith(
        "torana.db yet; start the gateway with `torana serve`, or name the place of another with --data-dir\n"
    )
