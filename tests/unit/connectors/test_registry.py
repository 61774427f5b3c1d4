"""Accounts in the settings and the reports of their faults."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pytest

from torana.connectors.registry import (
    BUILTIN,
    Account,
    check_accounts,
    load,
    open_connector,
    read_accounts,
)
from torana.errors import ConfigInvalid
from torana.installation import this_installation

SECRET = b64encode(b"k" * 32).decode()


def faults_of(*accounts: Account) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        check_accounts(accounts)
    return caught.value.detail.splitlines()


def hook(name: str, **values: Any) -> Account:
    return Account(name=name, kind="webhook", values={"secrets": SECRET} | values)


def test_variables_replace_whole_values_at_any_depth() -> None:
    tables: Mapping[str, Mapping[str, Any]] = {
        "in": {
            "kind": "webhook",
            "secrets": ["$ONE", "plain"],
            "chat": "$TWO",
            "thread": "$.two $TWO",
            "users": {"$ONE": "$ONE", "deeper": {"list": [{"x": "$TWO"}]}},
        },
        "off": {"enabled": False, "token": "$UNSET"},
    }
    values = {
        "secrets": ["1", "plain"],
        "chat": "",
        "thread": "$.two $TWO",
        "users": {"$ONE": "1", "deeper": {"list": [{"x": ""}]}},
    }
    environ = {"ONE": "1", "TWO": ""}
    assert read_accounts(tables, environ, reachable=True) == [Account(name="in", kind="webhook", values=values)]


def test_every_unset_variable_is_reported_with_its_account() -> None:
    tables = {
        "a": {"token": "$ONE", "list": ["$TWO", "$SET"], "users": {"x": "$THREE"}},
        "b": {"token": "$ONE"},
        "c": {"kind": "webhook", "secrets": SECRET},
    }
    a, b, c = read_accounts(tables, {"SET": "x"}, reachable=True)
    where = "the environment variable {} is not set; set it, or write it into .env"
    missing = [
        f"connectors.a.token: {where.format('ONE')}",
        f"connectors.a.list: {where.format('TWO')}",
        f"connectors.a.users.x: {where.format('THREE')}",
        f"connectors.b.token: {where.format('ONE')}",
    ]
    assert [*a.missing, *b.missing] == missing
    assert faults_of(a, b, c) == missing
    with pytest.raises(ConfigInvalid, match=r"connectors\.b\.token"):
        open_connector(b)


def test_faults_of_all_accounts_are_reported_without_values() -> None:
    check_accounts([hook("right")])
    faults = faults_of(
        hook("right"),
        hook("short", secrets="too-short-a-secret"),
        hook("wrong", per_minute=0, reply_ulr=1),
        Account(name="odd", kind="pigeons", values={}),
    )
    assert [fault.partition(": ")[0] for fault in faults] == [
        "connectors.short",
        "connectors.wrong.per_minute",
        "connectors.wrong.reply_ulr",
        "connectors.odd",
    ]
    assert faults[2].endswith('unknown setting; did you mean "reply_url"?')
    assert 'there is no connector "pigeons"; there are dingtalk, ' in faults[-1]
    (misspelt,) = faults_of(Account(name="telegrm", kind="telegrm", values={}))
    assert misspelt == 'connectors.telegrm: there is no connector "telegrm"; did you mean "telegram"?'
    assert "too-short" not in "".join(faults)


def test_missing_library_is_reported_with_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in {"slack_sdk", *(name for name in sys.modules if name.startswith("slack_sdk."))}:
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("torana.connectors.platforms.slack")]:
        monkeypatch.delitem(sys.modules, name)
    (fault,) = faults_of(Account(name="work", kind="slack", values={}))
    assert fault.startswith(
        "connectors.work: the connector slack needs a library that is not installed (slack_sdk"
    )
    assert fault.endswith(f"run: {this_installation().extra_command('slack')}")


def test_connectors_with_server_local_ids_are_listed() -> None:
    # A changed prefix would give all users new ids, and separate them from their memories.
    own = {kind for kind in BUILTIN if not load(kind).global_ids}
    assert own == {"dingtalk", "irc", "slack", "webhook"}


def test_account_cannot_have_name_of_another_connector_kind() -> None:
    (fault,) = faults_of(hook("telegram"), hook("webhook"), hook("home"))
    assert fault.startswith("connectors.telegram: an account of webhook cannot have the name of another")


def test_unreachable_webhook_account_is_valid_when_it_receives_events() -> None:
    tables = {
        "webhook": {"secrets": SECRET, "events": ["turn.failed"]},
        "line": {"channel_secret": "s", "access_token": "t"},
        "irc": {"host": "irc.example.org", "nick": "torana"},
    }
    (fault,) = faults_of(*read_accounts(tables, {}, reachable=False))
    assert fault.startswith("connectors.line: its platform calls the gateway; set TORANA_HOOKS_PORT")
    check_accounts(read_accounts(tables, {}, reachable=True))
