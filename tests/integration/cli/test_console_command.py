"""``torana console``: the address of the running gateway with a code that signs in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from torana.store.engine.lock import read_address

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Place

TOKEN = "kR7v2mXq9LwB4tZs8JcN1yHdE5gFuA3p"
OPERATOR = {"TORANA_GATEWAY_TOKEN": TOKEN}


def gateway_of(place: Place) -> str:
    address = read_address(place.data_dir)
    assert address is not None
    return address


def code_in(page: str, address: str) -> str:
    """Return the code of the console's address."""
    found = re.fullmatch(rf"{re.escape(page)}/#/sign-in\?code=(torana_code_[\w-]{{43}})\n?", address)
    assert found is not None, address
    return found[1]


def sign_in(page: str, code: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {code}"}
    return httpx2.post(f"{page}/v1/sign-in", headers=headers, timeout=30, trust_env=False)


def browser(place: Place) -> tuple[str, Path]:
    """Return a command for ``BROWSER``, and the file into which it writes its argument and environment."""
    seen, program = place.path / "seen", place.path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {seen}\nenv >> {seen}\n')
    program.chmod(0o755)
    return f"{program} %s", seen


def test_printed_address_signs_in_once_with_the_wanted_scopes(place: Place) -> None:
    place.serve(**OPERATOR)
    page = gateway_of(place)
    code, out, err = place.run("console", "--print", "--scopes", "message,read", **OPERATOR)
    assert (code, err) == (0, "")
    secret = code_in(page, out)
    signed_in: dict[str, Any] = sign_in(page, secret).json()
    assert (signed_in["scopes"], signed_in["user"]) == (["message", "read"], None)
    assert sign_in(page, secret).status_code == 401


def test_browser_gets_the_address_and_no_settings(place: Place) -> None:
    place.serve(**OPERATOR)
    page = gateway_of(place)
    command, seen = browser(place)
    code, out, err = place.run("console", BROWSER=command, **OPERATOR)
    assert (code, out) == (0, "")
    assert err == f"Opened {page}/ in the browser. If no page appears, run torana console --print.\n"
    address, *environment = seen.read_text().splitlines()
    assert sign_in(page, code_in(page, address)).status_code == 201
    assert not [line for line in environment if line.startswith("TORANA_")]
    assert TOKEN not in seen.read_text()


@pytest.mark.parametrize("variables", [{}, {"BROWSER": "/does/not/exist"}])
def test_address_is_printed_where_there_is_no_browser(place: Place, variables: dict[str, str]) -> None:
    place.serve(**OPERATOR)
    code, out, err = place.run("console", **OPERATOR, **variables)
    assert (code, err.partition(".")[0]) == (0, "No browser was found")
    assert sign_in(gateway_of(place), code_in(gateway_of(place), out)).status_code == 201


def test_gateway_without_token_has_its_plain_address(place: Place) -> None:
    place.serve()
    assert place.run("console", "--print") == (0, f"{gateway_of(place)}/\n", "")


def test_remote_gateway_gets_the_token_of_the_environment(place: Place) -> None:
    place.serve(**OPERATOR)
    page = gateway_of(place)
    elsewhere = {"TORANA_DATA_DIR": str(place.path / "elsewhere")}
    remote = ("console", "--print", "--url", f"{page}/api/")
    code, out, err = place.run(*remote, TORANA_CHAT_TOKEN=TOKEN, **elsewhere)
    assert (code, err) == (0, "")
    assert sign_in(page, code_in(f"{page}/api", out)).status_code == 201
    refused = place.run(*remote, **elsewhere)
    assert (refused[0], refused[1]) == (1, "")
    assert "needs a token; set TORANA_CHAT_TOKEN to it" in refused[2]


def test_command_without_a_gateway_or_with_an_unknown_scope_is_refused(place: Place) -> None:
    code, out, err = place.run("console", "--print")
    assert (code, out) == (1, "")
    assert "start it with `torana serve`" in err
    code, out, err = place.run("console", "--scopes", "message,root")
    assert (code, out) == (2, "")
    assert "'root' is not a scope" in err
    assert place.run("console", "--url", "http://127.0.0.1:9", "--data-dir", "x")[0] == 2
