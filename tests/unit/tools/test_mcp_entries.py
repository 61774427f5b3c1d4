"""Entries of MCP servers in the settings and in files of other clients."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana.errors import ConfigInvalid
from torana.tools.mcp.entries import Server, read_servers
from torana.tools.mcp.servers import check_servers
from torana.tools.mcp.stdio import child_environment

ENVIRON = {"TOKEN": "a-secret", "HOME": "/home/ana", "TORANA_GATEWAY_TOKEN": "ours", "PATH": "/usr/bin:/bin"}


def read(**tables: dict[str, Any]) -> list[Server]:
    return read_servers(tables, file=None, environ=ENVIRON)


def faults(**tables: dict[str, Any]) -> str:
    with pytest.raises(ConfigInvalid) as refused:
        read(**tables)
    assert "a-secret" not in refused.value.detail
    return refused.value.detail


def test_program_and_url_entries_are_parsed() -> None:
    time, wiki = read(
        time={"command": "mcp-server-time", "args": ["--local-timezone", "UTC"], "allow": ["get_current_time"]},
        wiki={"url": "https://wiki.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}, "timeout": 5},
    )

    assert (time.name, time.transport, time.timeout) == ("time", "stdio", 60)
    assert (wiki.transport, wiki.timeout) == ("http", 5)
    assert wiki.headers["Authorization"].get_secret_value() == "Bearer a-secret"
    assert "a-secret" not in repr(wiki)
    assert wiki.mask("it said a-secret", limit=100) == "it said ***"


@given(
    text=st.lists(st.sampled_from(["a-secret", "a-s", "Bearer ", "x" * 20]), max_size=40).map("".join),
    limit=st.integers(0, 300),
)
def test_a_limited_text_shows_no_part_of_a_value(text: str, limit: int) -> None:
    (wiki,) = read(wiki={"url": "https://wiki.example/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}})
    masked = wiki.mask(text, limit=limit)

    whole = wiki.mask(text, limit=len(text))
    assert "a-secret" not in whole
    assert whole.startswith(masked)
    assert len(masked) <= limit


def test_mcp_servers_files_of_other_clients_are_parsed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    entries = {
        "Brave Search": {
            "type": "stdio",
            "command": "npx",
            "args": ["-y", "@brave/server"],
            "env": {"KEY": "${TOKEN}", "REGION": "${REGION:-eu}", "PLACE": "${env:HOME}/x"},
            "autoApprove": ["search"],
        },
        "off": {"command": "npx", "disabled": True},
    }
    file.write_text(json.dumps({"mcpServers": entries}))

    (server,) = read_servers({}, file=file, environ=ENVIRON)

    assert server.name == "brave-search"
    assert {name: value.get_secret_value() for name, value in server.env.items()} == {
        "KEY": "a-secret",
        "REGION": "eu",
        "PLACE": "/home/ana/x",
    }
    assert server.allow == frozenset()  # permissions given in another client do not apply here
    assert read(mcpServers=entries) == [server]


@pytest.mark.parametrize(
    ("tables", "fault"),
    [
        ({"a": {}}, "mcp.a: set either command, for a program, or url, for a server at a URL"),
        ({"a": {"command": "x", "url": "http://x"}}, "mcp.a: set either command"),
        (
            {"a": {"kommand": "x"}},
            'mcp.a.kommand: unknown setting; did you mean "command"?\nmcp.a: set either ',
        ),
        ({"a": {"url": "http://x", "http_header": {}}}, 'did you mean "http_headers"?'),
        ({"a": {"command": ""}}, "mcp.a.command: must have at least 1 character"),
        ({"a": {"command": "x", "args": ["y"] * 101}}, "mcp.a.args: must have at most 100 items"),
        ({"a": {"command": "x", "timeout": "soon"}}, "mcp.a.timeout: must be a number"),
        ({"a": {"command": "x", "allow": "y"}}, 'mcp.a.allow: must be a list, such as ["a", "b"]'),
        ({"a": {"command": "x", "env": {"K": "$NONE"}}}, "mcp.a: the environment variable NONE is not set"),
        (
            {"a": {"command": "x", "env": {"K": "${TORANA_GATEWAY_TOKEN}"}}},
            "mcp.a: TORANA_GATEWAY_TOKEN belongs to the gateway and is not passed to servers",
        ),
        ({"a": {"url": "ftp://x"}}, "mcp.a.url: must be an http or https URL"),
        ({"a": {"url": "http://[::1/"}}, "mcp.a.url: must be an http or https URL"),
        ({"a": {"url": "http://x:99999/"}}, "mcp.a.url: must be an http or https URL"),
        ({"a": {"url": "http://u:a-secret/"}}, "mcp.a.url: must be an http or https URL"),
        ({"a": {"url": "http://u:a-secret@x/"}}, "mcp.a.url: must be an http or https URL without user"),
        ({"a": {"url": "http://x", "headers": {"K": "${TOKEN}\n"}, "timeout": 0}}, "mcp.a.timeout"),
        (
            {"a": {"url": "http://x", "headers": {"K": "${TOKEN}\n"}}},
            "mcp.a.headers.K: must be printable ASCII",
        ),
        ({"a": {"url": "http://x", "headers": {"K": "\x01é"}}}, "mcp.a.headers.K: must be printable ASCII"),
        ({"a": {"url": "http://x/sse", "type": "sse"}}, "mcp.a: only stdio and streamable HTTP are supported"),
        ({"a": {"command": "x", "cwd": "here"}}, "mcp.a.cwd: must be an absolute path"),
        ({"a/b": {"command": "x"}}, "mcp.a/b: a server's name must begin with a letter or digit"),
        ({"a_b": {"command": "x"}, "a-b": {"command": "x"}}, 'mcp.a-b: another server is also called "a-b"'),
        ({"mcpServers": {"a": "x"}}, "mcp.mcpServers.a: must be an object with command or url"),
    ],
)
def test_invalid_entries_are_named(tables: dict[str, Any], fault: str) -> None:
    assert fault in faults(**tables)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "must be an object such as"),
        (b'{"servers": {}}', "must be an object such as"),
        (b" " * 1_048_577, "at most 1 MiB"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    file = tmp_path / "mcp.json"
    file.write_bytes(content)

    with pytest.raises(ConfigInvalid, match=fault):
        read_servers({}, file=file, environ={})
    with pytest.raises(ConfigInvalid, match="cannot be read"):
        read_servers({}, file=tmp_path / "none.json", environ={})
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ConfigInvalid, match="not a regular file"):
        read_servers({}, file=tmp_path / "pipe.json", environ={})


def test_missing_program_is_reported_with_the_other_errors() -> None:
    tables: dict[str, Any] = {
        "a": {"command": "no-such-program"},
        "b": {"command": "sh"},
        "c": {"url": "$NONE"},
    }
    with pytest.raises(ConfigInvalid) as raised:
        check_servers(tables, file=None, environ=ENVIRON)
    assert raised.value.detail.splitlines() == [
        "mcp.c: the environment variable NONE is not set; set it, or write it into .env",
        "mcp.a: there is no program no-such-program; install it, or set its absolute path",
    ]


def test_program_gets_only_the_environment_of_its_entry() -> None:
    (server,) = read(a={"command": "sh", "env": {"KEY": "$TOKEN"}})

    environ = child_environment(server, path="/bin", home=Path("/data/mcp/a"))

    assert environ == {"PATH": "/bin", "HOME": "/data/mcp/a", "LANG": "C.UTF-8", "KEY": "a-secret"}
