"""Changed settings that a running gateway applies, and those that it does not."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.integration.cli.conftest import heed_signals
from tests.standins.servers import free_port
from tests.waiting import eventually

from torana.store.engine.lock import read_address

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Place


class Files:
    """The settings file of a place, and the resulting state of its gateway."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def write(self, *lines: str, **accounts: str) -> None:
        """Write these accounts, each with additional lines."""
        for name, more in accounts.items():
            secret = b64encode(name.encode() * 32).decode()
            # With events it is useful on a gateway that cannot be called.
            told = 'events = ["turn.failed"]'
            lines += (f"[connectors.{name}]", 'kind = "webhook"', f'secrets = "{secret}"', more, told)
        (self._place.path / "torana.toml").write_text("\n".join(lines))

    def active(self, *names: str) -> Mapping[str, Mapping[str, Any]]:
        """Wait until exactly these accounts are active, and return their state."""

        def look() -> list[Mapping[str, Mapping[str, Any]]]:
            address = read_address(self._place.data_dir)
            try:
                status = httpx2.get(f"{address}/v1/status", timeout=30, trust_env=False).json()
            except httpx2.TransportError:  # it does not listen yet
                return []
            found = {one["account"]: one for one in status["connectors"] if one["state"] == "active"}
            return [found] if found.keys() == set(names) else []

        return eventually(look)[0]

    def logged(self, event: str, count: int = 1) -> Mapping[str, Any]:
        """Return the last of this number of log lines with that event."""

        def look() -> Mapping[str, Any] | None:
            log = self._place.data_dir / "logs" / "torana.log"
            lines = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
            found = [line for line in lines if line["event"] == event]
            return found[count - 1] if len(found) >= count else None

        return eventually(look)


@pytest.fixture
def files(place: Place) -> Files:
    return Files(place)


def test_sighup_reconnects_only_changed_accounts(place: Place, files: Files) -> None:
    files.write(one="", two="", gone="")
    gateway = place.serve()
    before = files.active("one", "two", "gone")

    files.write(one="", two="per_minute = 7", new="")
    gateway.send_signal(signal.SIGHUP)

    assert files.logged("connectors_reloaded")["accounts"] == ["gone", "new", "two"]
    after = files.active("one", "two", "new")
    assert after["one"] == before["one"]
    assert after["two"]["since"] > before["two"]["since"]
    acts = json.loads(place.run("audit", "--json")[1])["items"]
    assert [(act["action"], act["source"], act["detail"]) for act in acts] == [
        ("connectors.reload", "signal", {"changed": ["gone", "new", "two"]})
    ]
    assert place.run("pair", "approve", "new:ana")[0] == 0
    assert place.run("pair", "approve", "gone:ana")[0] == 1


def test_invalid_file_changes_nothing_and_its_errors_are_logged(place: Place, files: Files) -> None:
    files.write(one="", two="")
    gateway = place.serve()
    before = files.active("one", "two")

    files.write("drain = -1", one="")
    gateway.send_signal(signal.SIGHUP)
    (fault,) = files.logged("settings_invalid")["faults"]
    assert fault.startswith("torana.toml:1: drain: -1 is not ")

    files.write(one='allow = 7\nsender = "no path"', two='chat = "$UNSET"')
    gateway.send_signal(signal.SIGHUP)
    faults = files.logged("settings_invalid", 2)["faults"]
    assert [fault.partition(": ")[0] for fault in faults[:-1]] == [
        "torana.toml:4",
        "torana.toml:5",
    ]
    assert [fault.split(": ")[1] for fault in faults[:-1]] == ["connectors.one.allow", "connectors.one.sender"]
    unset = "the environment variable UNSET is not set; set it, or write it into .env"
    assert faults[-1:] == [f"torana.toml:10: connectors.two.chat: {unset}"]

    files.write(one="allow = 7", two="nonsense = 1")
    gateway.send_signal(signal.SIGHUP)
    faults = files.logged("settings_invalid", 3)["faults"]
    assert [fault.split(": ")[:2] for fault in faults] == [
        ["torana.toml:4", "connectors.one.allow"],
        ["torana.toml:9", "connectors.two.nonsense"],
    ]

    assert files.active("one", "two") == before


def test_settings_that_need_a_restart_are_logged(place: Place, files: Files) -> None:
    files.write(one="")
    gateway = place.serve()
    files.active("one")

    files.write('persona = "A pirate."', "drain = 1", one="enabled = false")
    gateway.send_signal(signal.SIGHUP)

    assert files.logged("settings_need_restart")["settings"] == ["persona", "drain"]
    assert files.active() == {}


def test_reload_command_reads_variables_from_dotenv(place: Place, files: Files) -> None:
    environ = place.path / ".env"
    environ.write_text("ROOM=$.a")
    files.write(one='chat = "$ROOM"', two="")
    place.serve()
    files.active("one", "two")

    assert place.run("connectors", "reload") == (0, "No connector changed.\n", "")
    environ.write_text("ROOM=$.b")
    assert place.run("connectors", "reload") == (0, "Changed: one\n", "")
    code, out, _ = place.run("connectors", "list", "--json")
    assert (code, sorted(one["account"] for one in json.loads(out)["items"])) == (0, ["one", "two"])
    acts = json.loads(place.run("audit", "--json")[1])["items"]
    assert [(act["source"], act["detail"]) for act in acts] == [
        ("127.0.0.1", {"changed": ["one"]}),
        ("127.0.0.1", {"changed": []}),
    ]

    address = read_address(place.data_dir)
    files.write(one='chat = "$UNSET"', two="")
    refused = httpx2.post(f"{address}/v1/connectors/reload", timeout=30, trust_env=False)
    assert (refused.status_code, refused.json()["code"]) == (409, "settings_faulty")
    assert refused.json()["detail"] == (
        "torana.toml:4: connectors.one.chat: the environment variable UNSET is not set; set it, or write it "
        "into .env"
    )


def test_account_with_an_unset_variable_is_refused_until_it_is_set(place: Place, files: Files) -> None:
    files.write(one='chat = "$ROOM"', two="")
    place.serve()
    files.active("two")
    reason = "connectors.one.chat: the environment variable ROOM is not set; set it, or write it into .env"

    code, out, _ = place.run("connectors", "list", "--json")
    one, two = json.loads(out)["items"]
    assert (code, one["state"], one["reason"], two["state"]) == (0, "refused", reason, "active")
    assert reason in place.run("connectors", "list")[1]
    code, out, _ = place.run("doctor", "--json")
    found = {finding["check"]: finding for finding in json.loads(out)}["connectors"]
    assert (code, found["ok"], found["detail"].split(": ", 1)) == (1, False, ["torana.toml:4", reason])

    (place.path / ".env").write_text("ROOM=$.a")
    assert place.run("connectors", "reload")[:2] == (0, "Changed: one\n")
    assert files.active("one", "two")["two"]["since"] == two["since"]


def test_webhook_account_is_refused_without_a_hooks_port(place: Place, files: Files) -> None:
    called = ("[connectors.{}]", 'kind = "webhook"', f'secrets = "{b64encode(b"k" * 32).decode()}"')
    early, late = ([line.format(name) for line in called] for name in ("early", "late"))
    reason = "connectors.{}: its platform calls the gateway; set TORANA_HOOKS_PORT and restart the gateway"
    files.write(*early, one="")
    place.serve()
    files.active("one")

    assert place.run("connectors", "reload")[:2] == (0, "Changed: early\n")
    items = json.loads(place.run("connectors", "list", "--json")[1])["items"]
    found = {item["account"]: (item["state"], item["reason"]) for item in items}
    assert found == {"early": ("refused", reason.format("early")), "one": ("active", None)}
    assert files.logged("connector_refused")["reason"] == reason.format("early")

    # The port in the file is not that of the gateway, which has none.
    files.write(f"hooks_port = {free_port()}", *late, one="")
    code, _, told = place.run("connectors", "reload")
    assert code != 0
    assert reason.format("late") in told
    files.active("one")
    assert place.run("config", "check")[0] == 0

    files.write(*late, one="")
    code, _, told = place.run("config", "check")
    assert (code, told) == (2, f"torana.toml:1: {reason.format('late')}\n")


class Terminal:
    """A terminal, and the gateway that was started in it."""

    def __init__(self, place: Place, before: str) -> None:
        """Start the gateway; the shell executes ``before`` first."""
        self._here, there = pty.openpty()
        # A session leader without a terminal takes the first one that it opens.
        line = f'exec < {os.ttyname(there)}; {before} exec "$@"'
        serve = [sys.executable, "-m", "torana", "serve", "--port", str(free_port())]
        self.gateway = subprocess.Popen(
            ["/bin/sh", "-c", line, "sh", *serve],
            cwd=place.path,
            env=place.environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        eventually(lambda: read_address(place.data_dir) or self.gateway.poll())
        os.close(there)

    def close(self) -> None:
        """Close the window."""
        os.close(self._here)


@pytest.fixture
def open_terminal(place: Place) -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def open_one(before: str = "") -> Terminal:
        opened.append(Terminal(place, before))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.gateway.kill()
        terminal.gateway.wait()


def test_closing_the_terminal_ends_the_gateway(files: Files, open_terminal: Callable[..., Terminal]) -> None:
    files.write(one="")
    terminal = open_terminal()
    files.active("one")

    files.write(one="", two="")
    terminal.gateway.send_signal(signal.SIGHUP)  # the terminal exists, so this is a request to reload
    assert files.logged("connectors_reloaded")["accounts"] == ["two"]

    terminal.close()
    assert terminal.gateway.wait(30) == 0


def test_closing_the_terminal_under_nohup_reloads_settings(
    files: Files, open_terminal: Callable[..., Terminal]
) -> None:
    files.write(one="")
    terminal = open_terminal("trap '' HUP;")
    files.active("one")

    files.write(one="", two="")
    terminal.close()

    assert files.logged("connectors_reloaded")["accounts"] == ["two"]
    files.active("one", "two")
