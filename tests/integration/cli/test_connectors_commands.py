"""``torana pair``, ``torana deliveries`` and ``torana connectors``, with and without a running gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from torana.store.backup.archive import DATABASE_NAME
from torana.store.engine.migrate import migrate

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place

OPERATOR = {"TORANA_GATEWAY_TOKEN": "a-token-of-more-than-sixteen-characters"}


#: Senders can be named even where no account connects.
SETTINGS = OPERATOR | {
    "TORANA_CONNECTORS": json.dumps({name: {"enabled": False} for name in ("email", "irc", "telegram")})
}
UNASKED = "; no sender with that id has asked for a code, so check the spelling"


def test_sender_is_approved_and_denied_beside_a_gateway(place: Place) -> None:
    place.serve(**SETTINGS)

    approved = place.run("pair", "approve", "telegram:12345", "--user", "ana", **OPERATOR)
    assert approved == (0, f"telegram:12345 is approved as user ana{UNASKED}\n", "")
    denied = place.run("pair", "deny", "telegram:12345", **OPERATOR)
    assert denied == (0, f"telegram:12345 may not talk{UNASKED}\n", "")
    code, out, err = place.run("pair", "deny", "telegrm:12345", **OPERATOR)  # the gateway's settings count
    assert (code, out) == (1, "")
    assert err == (
        "there is no connector 'telegrm'; the settings have email, irc, telegram; did you mean \"telegram\"?\n"
    )
    code, out, err = place.run("pair", "list", "--json", **OPERATOR)
    assert (code, err) == (0, "")
    (item,) = json.loads(out)["items"]
    assert (item["sender"], item["state"], item["user"]) == ("telegram:12345", "denied", None)
    code, out, err = place.run("pair", "approve", "WRONGCDE", **OPERATOR)
    assert (code, out) == (1, "")
    assert err.startswith("the code is unknown or has expired")


def test_pair_changes_the_database_without_a_gateway(place: Place) -> None:
    place.data_dir.mkdir()
    migrate(place.data_dir / DATABASE_NAME)

    approved = place.run("pair", "approve", "irc:~ana!a@b", **SETTINGS)
    assert approved == (0, f"irc:~ana!a@b is approved as user irc:~ana!a@b{UNASKED}\n", "")
    code, _, err = place.run("pair", "approve", "telegrm:1")
    assert (code, err) == (1, "there is no connector 'telegrm'; the settings have none\n")

    code, out, _ = place.run("pair", "list")
    assert code == 0
    assert "irc:~ana!a@b" in out


def test_empty_lists_and_unknown_ids_are_reported(place: Place) -> None:
    place.serve(**OPERATOR)

    code, out, _ = place.run("pair", "list", **OPERATOR)
    assert (code, out.startswith("No sender has asked yet.")) == (0, True)
    assert place.run("deliveries", "list", **OPERATOR)[:2] == (0, "There are no deliveries.\n")
    code, _, err = place.run("deliveries", "retry", "dlv_none", **OPERATOR)
    assert (code, err) == (1, "there is no delivery 'dlv_none'\n")


def test_settings_of_a_connector_are_checked(place: Place) -> None:
    accounts = json.dumps({"line": {"access_token": "$LINE_TOKEN"}})

    code, _, err = place.run("config", "check", TORANA_CONNECTORS=accounts)
    assert code == 2
    assert err.startswith(
        "TORANA_CONNECTORS: connectors.line.access_token: the environment variable LINE_TOKEN is not set; "
    )
    code, _, err = place.run("config", "check", TORANA_CONNECTORS=accounts, LINE_TOKEN="hidden")
    assert code == 2
    assert "connectors.line.channel_secret: missing" in err
    assert "hidden" not in err
