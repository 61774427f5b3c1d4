"""``torana config show`` and ``torana config check``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torana.cli import main
from torana.config import SECRETS, Settings, variable

Command = Callable[..., tuple[int, str, str]]

TOKEN = "5vR2cXq0kJ8wN1yTz3uLbA7eGhM4pS6d"


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working directory, no user directory, and no TORANA variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    for name in [name for name in os.environ if name.startswith("TORANA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def torana(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``torana config …`` and returns the exit code, standard output and standard error."""

    def run(*arguments: str, **environ: str) -> tuple[int, str, str]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["torana", "config", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


def test_show_has_a_line_for_each_setting_with_value_and_origin(torana: Command) -> None:
    code, out, _ = torana("show", TORANA_PORT="1234")
    rows = {line.split()[0]: line.split() for line in out.splitlines()}
    assert code == 0
    assert rows.keys() == {"setting", *Settings.model_fields}
    assert rows["port"] == ["port", "1234", "environment", "TORANA_PORT"]
    assert rows["allowed_hosts"] == ["allowed_hosts", "not", "set", "default"]
    assert rows["allow_open"] == ["allow_open", "false", "default"]


def test_show_as_json_has_every_value_in_its_own_type(torana: Command) -> None:
    Path("torana.toml").write_text('model = ["builtin", "openai-chat:x"]\nallow_open = true')
    code, out, _ = torana("show", "--json")
    entries = json.loads(out)
    assert code == 0
    assert entries["model"] == {
        "value": ["builtin", "openai-chat:x"],
        "origin": f"file {Path.cwd() / 'torana.toml'}",
    }
    assert entries["allow_open"]["value"] is True
    assert entries["gateway_token"] == {"value": None, "origin": "default"}


@pytest.mark.parametrize("arguments", [("show",), ("show", "--json"), ("check",)])
def test_secrets_are_never_printed(torana: Command, arguments: tuple[str, ...]) -> None:
    Path(".env").write_text(f"OPENAI_API_KEY={TOKEN}\n")
    secrets = {variable(name): TOKEN for name in SECRETS}
    secrets["TORANA_DATABASE_URL"] = f"postgresql://ana:{TOKEN}@db/torana"
    secrets["TORANA_REDIS_URL"] = f"redis://ana:{TOKEN}@redis/0"
    code, out, err = torana(*arguments, TORANA_SEARCH="brave", **secrets)
    assert code == 0
    assert TOKEN not in out + err


def test_set_secret_is_shown_as_asterisks(torana: Command) -> None:
    _, table, _ = torana("show", TORANA_GATEWAY_TOKEN=TOKEN)
    _, text, _ = torana("show", "--json", TORANA_GATEWAY_TOKEN=TOKEN)
    assert ["gateway_token", "********", "environment", "TORANA_GATEWAY_TOKEN"] in [
        line.split() for line in table.splitlines()
    ]
    assert json.loads(text)["gateway_token"]["value"] == "********"


def test_value_with_brackets_or_line_ends_is_shown_on_one_line(torana: Command) -> None:
    _, out, _ = torana("show", TORANA_PERSONA="[bold]:smile:\nsecond")
    assert r'"[bold]:smile:\nsecond"' in out


def test_check_of_valid_settings_prints_one_line(torana: Command) -> None:
    assert torana("check") == (0, "The settings are valid.\n", "")


def test_check_reports_errors_with_their_source(torana: Command) -> None:
    Path("torana.toml").write_text(
        """
model = "opnai:gpt-5"
tools = ["no_such_module:y"]
search = "searxng"
data_dir = "/dev/null/x"
[connectors.telegrm]

[mcp.a]
args = ["kommand ="]
kommand = "y"
[mcp."b"]
command = "no-such-program"
env.KEY = "x"
"""
    )
    code, out, err = torana("check")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        (
            "torana.toml:5: data_dir: /dev/null is not a writable directory; correct its permissions, or "
            "choose another with --data-dir"
        ),
        'torana.toml:6: connectors.telegrm: there is no connector "telegrm"; did you mean "telegram"?',
        'torana.toml:10: mcp.a.kommand: unknown setting; did you mean "command"?',
        "torana.toml:8: mcp.a: set either command, for a program, or url, for a server at a URL",
        "torana.toml:11: mcp.b: there is no program no-such-program; install it, or set its absolute path",
        (
            "torana.toml:3: tools: no_such_module:y: No module named 'no_such_module'; install it, or put it "
            "on PYTHONPATH"
        ),
        (
            "torana.toml:4: search: web_search is not available: searxng needs the address of your instance: "
            "set TORANA_SEARCH_URL"
        ),
        'torana.toml:2: model: unknown provider "opnai"; did you mean "openai:gpt-5"?',
    ]


def test_check_reports_all_errors_in_one_run(torana: Command) -> None:
    Path(".env").write_text('TORANA_PERSONA="open\n')
    Path("torana.toml").write_text(
        """
port = 0
[mcp.wiki]
url = "https://wiki.example.org/mcp"
headers = { Authorization = "Bearer ${WIKI_TOKEN}" }
[mcp.b]
command = "no-such-program"
[[permissions]]
tool = "x"
permission = "perhaps"
"""
    )
    code, out, err = torana("check")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        ".env:1: not understood; write NAME=value",
        "torana.toml:2: port: 0 is not a whole number from 1 to 65535",
        'torana.toml:8: permissions: rule 1: permission = "perhaps" is not allow, ask or deny',
        (
            "torana.toml:3: mcp.wiki: the environment variable WIKI_TOKEN is not set; set it, or write it "
            "into .env"
        ),
        "torana.toml:6: mcp.b: there is no program no-such-program; install it, or set its absolute path",
    ]


def test_consequences_of_an_invalid_setting_are_not_reported(torana: Command) -> None:
    Path("torana.toml").write_text('search = "searxng"\nsearch_url = "nowhere"\n')
    code, _, err = torana("check")
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith("torana.toml:2: search_url: ")


def test_check_reports_a_missing_key_and_invalid_variables(
    torana: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    mcp = '{"x": {"url": "ftp://x"}}'
    code, _, err = torana("check", TORANA_MODEL="openai:gpt-5", TORANA_TOOLS="json:loads2", TORANA_MCP=mcp)
    assert code == 2
    assert err.splitlines() == [
        "TORANA_MCP: mcp.x.url: must be an http or https URL without user and password",
        "TORANA_TOOLS: json:loads2: json has no 'loads2'",
        "openai:gpt-5 needs a key: set OPENAI_API_KEY",
    ]


def test_check_reports_a_tool_name_conflict(
    torana: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    source = "def read_file(name: str) -> str:\n    return name\n"
    (tmp_path / "their_files.py").write_text(source + source.replace("read_file", "web_search"))
    data = tmp_path / "data"
    own = {"TORANA_TOOLS": "their_files:read_file", "TORANA_DATA_DIR": str(data)}
    code, _, err = torana("check", **own)
    assert (code, err) == (
        2,
        "TORANA_TOOLS: read_file cannot be a tool: Tool name conflicts with existing tool: 'read_file'\n",
    )
    own["TORANA_TOOLS"] = "their_files:web_search"
    assert torana("check", **own)[0] == 0  # without a search service the gateway has no such tool
    code, _, err = torana("check", TORANA_SEARCH="brave", TORANA_SEARCH_API_KEY=TOKEN)
    assert (code, "web_search cannot be a tool" in err) == (2, True)
    assert not data.exists()


def test_check_refuses_the_gateways_own_port_for_hooks(torana: Command) -> None:
    Path("torana.toml").write_text("port = 1234\nhooks_port = 1234\n")
    code, _, err = torana("check")
    assert (code, err) == (2, "torana.toml:2: hooks_port: 1234 is the gateway's own port; choose another\n")


@pytest.mark.parametrize("command", ["check", "show"])
def test_unreadable_settings_file_is_an_error(torana: Command, command: str) -> None:
    Path("torana.toml").mkdir()
    assert torana(command) == (2, "", "torana.toml: cannot be read (Is a directory)\n")
    Path("torana.toml").rmdir()
    Path("torana.toml").symlink_to("nowhere.toml")
    assert torana(command) == (2, "", "torana.toml: no such file\n")


@pytest.mark.parametrize("command", ["check", "show"])
def test_each_error_is_a_line_on_stderr_with_exit_code_2(torana: Command, command: str) -> None:
    Path("torana.toml").write_text("prot = 1\n")
    code, out, err = torana(command, TORANA_PORT="abc")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        'TORANA_PORT: "abc" is not a whole number from 1 to 65535',
        'torana.toml:1: unknown setting "prot"; did you mean "port"?',
    ]


@pytest.mark.parametrize("command", ["check", "show"])
def test_warnings_go_to_standard_error_and_do_not_fail(torana: Command, command: str) -> None:
    code, _, err = torana(command, TORANA_PROT="1")
    assert (code, err) == (0, 'warning: unknown variable "TORANA_PROT"; did you mean "TORANA_PORT"?\n')


@pytest.mark.parametrize("command", ["check", "show"])
def test_config_names_the_file(torana: Command, command: str, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("wait = 0")
    assert torana(command, "--config", "other.toml") == (
        2,
        "",
        "other.toml:1: wait: 0 is not a whole number from 1 to 86400\n",
    )
