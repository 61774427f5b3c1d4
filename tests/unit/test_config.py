"""Sources of settings, their precedence, and the messages about invalid ones."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tzlocal
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripts.gen_docs import descriptions

from torana.config import FLAGS, SECRETS, Loaded, Settings, flag, is_loopback, load, variable
from torana.errors import ConfigInvalid

STRONG = "5vR2cXq0kJ8wN1yTz3uLbA7eGhM4pS6d"
MAKE_ONE = 'make one with python3 -c "import secrets; print(secrets.token_urlsafe(32))"'


@dataclass(frozen=True)
class Place:
    """A working directory and an empty user directory."""

    cwd: Path
    user_dir: Path

    def write(self, *, toml: str | None = None, dotenv: str | None = None) -> None:
        for name, text in (("torana.toml", toml), (".env", dotenv)):
            if text is not None:
                (self.cwd / name).write_text(text, encoding="utf-8")

    def load(self, environ: Mapping[str, str] | None = None, **flags: Any) -> Loaded:
        return load(flags=flags, environ=environ or {}, cwd=self.cwd, user_dir=self.user_dir)

    def faults(self, environ: Mapping[str, str] | None = None, **flags: Any) -> list[str]:
        with pytest.raises(ConfigInvalid) as caught:
            self.load(environ, **flags)
        return caught.value.detail.split("\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    cwd, user_dir = tmp_path / "here", tmp_path / "user"
    cwd.mkdir()
    user_dir.mkdir()
    return Place(cwd=cwd, user_dir=user_dir)


# Without any source


A_LIMIT = "a limit such as 500 messages/day, 100000 tokens/minute, 5 usd/month or 3 turns"
A_MINUTE = "(rate_per_user and rate_global limit messages per minute)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("host", "127.0.0.1"),
        ("port", 18789),
        ("gateway_token", None),
        ("allow_open", False),
        ("allowed_hosts", ()),
        ("trusted_proxies", ()),
        ("cors_origins", ()),
        ("model", ("builtin",)),
        ("model_base_url", None),
        ("history_messages", 40),
        ("rate_per_user", 20),
        ("rate_global", 100),
        ("wait", 300),
        ("turn_timeout", 600),
        ("tools", ()),
        ("log_level", "info"),
        ("log_format", "auto"),
    ],
)
def test_documented_default_applies_without_sources(place: Place, name: str, value: object) -> None:
    loaded = place.load()
    assert getattr(loaded.settings, name) == value
    assert loaded.origins[name] == "default"


def test_default_settings_give_no_warning(place: Place) -> None:
    assert place.load().warnings == ()


def test_skills_dir_defaults_to_the_data_directory(place: Place) -> None:
    settings = place.load(data_dir="/srv/torana").settings
    assert settings.skills_dir == Path("/srv/torana/skills")


def test_every_setting_is_described_in_one_sentence() -> None:
    described = descriptions()
    assert described.keys() == Settings.model_fields.keys()
    assert [name for name, text in described.items() if not text.endswith(".")] == []


def test_secrets_have_no_flags() -> None:
    assert SECRETS.isdisjoint(FLAGS)


def test_settings_cannot_be_changed(place: Place) -> None:
    settings = place.load().settings
    with pytest.raises(ValidationError):
        settings.port = 1


@pytest.mark.parametrize(
    ("found", "zone"), [("Europe/Vienna", "Europe/Vienna"), ("Mars/Olympus", "UTC"), (None, "UTC")]
)
def test_default_timezone_is_the_system_timezone_or_utc(
    monkeypatch: pytest.MonkeyPatch, found: str | None, zone: str
) -> None:
    monkeypatch.setattr(tzlocal, "get_localzone_name", lambda: found)
    assert Settings().timezone == zone


# Sources


def test_sources_override_each_other_in_the_documented_order(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "given.toml"
    for flags, environ, dotenv, toml in product([True, False], repeat=4):
        place.write(dotenv="TORANA_PORT=3\n" if dotenv else "")
        file.write_text("port = 4\n" if toml else "")
        loaded = place.load(
            {"TORANA_PORT": "2"} if environ else {}, port=1 if flags else None, config=str(file)
        )
        ranked = [
            (flags, 1, "flag --port"),
            (environ, 2, "environment TORANA_PORT"),
            (dotenv, 3, ".env"),
            (toml, 4, f"file {file}"),
            (True, 18789, "default"),
        ]
        expected = next((value, origin) for present, value, origin in ranked if present)
        assert (loaded.settings.port, loaded.origins["port"]) == expected


def test_settings_file_is_found_by_flag_variable_and_directory(place: Place, tmp_path: Path) -> None:
    (place.user_dir / "torana.toml").write_text("port = 4")
    assert place.load().settings.port == 4
    place.write(toml="port = 3")
    assert place.load().settings.port == 3
    (tmp_path / "variable.toml").write_text("port = 2")
    environ = {"TORANA_CONFIG": str(tmp_path / "variable.toml")}
    assert place.load(environ).settings.port == 2
    (tmp_path / "flag.toml").write_text("port = 1")
    assert place.load(environ, config=tmp_path / "flag.toml").settings.port == 1


def test_dotenv_may_name_the_settings_file(place: Place) -> None:
    (place.cwd / "other.toml").write_text("port = 7")
    place.write(dotenv="TORANA_CONFIG=other.toml\n")
    assert place.load().settings.port == 7


@pytest.mark.parametrize("absent", [None, (), []])
def test_absent_flag_overrides_nothing(place: Place, absent: object) -> None:
    assert place.load({"TORANA_MODEL": "openai-chat:x"}, model=absent).settings.model == ("openai-chat:x",)


def test_empty_variable_counts_as_not_set(place: Place) -> None:
    place.write(dotenv="TORANA_WAIT=\n")
    loaded = place.load({name: "" for name in map(variable, Settings.model_fields) if "TOKEN" not in name})
    assert set(loaded.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("written", "items"),
    [
        ("a.org", ("a.org",)),
        ("a.org,b.org", ("a.org", "b.org")),
        (" a.org , b.org , ", ("a.org", "b.org")),
        ('["a.org", "b.org"]', ("a.org", "b.org")),
        (' ["a.org"]', ("a.org",)),
        ("[]", ()),
        (",", ()),
    ],
)
def test_list_in_a_variable_is_json_or_separated_by_commas(
    place: Place, written: str, items: tuple[str, ...]
) -> None:
    assert place.load({"TORANA_ALLOWED_HOSTS": written}).settings.allowed_hosts == items


@pytest.mark.parametrize("written", ['"builtin, openai-chat:x"', '["builtin", "openai-chat:x"]'])
def test_list_in_the_file_is_an_array_or_a_string(place: Place, written: str) -> None:
    place.write(toml=f"model = {written}")
    assert place.load().settings.model == ("builtin", "openai-chat:x")


def test_relative_path_starts_at_its_source(place: Place, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "torana.toml").write_text('data_dir = "data"')
    settings = place.load({"TORANA_SKILLS_DIR": "skills"}, config=elsewhere / "torana.toml").settings
    assert settings.data_dir == elsewhere / "data"
    assert settings.skills_dir == place.cwd / "skills"


def test_tilde_means_the_home_directory(place: Place) -> None:
    assert place.load({"TORANA_DATA_DIR": "~/torana"}).settings.data_dir == Path.home() / "torana"


@pytest.mark.parametrize(
    ("name", "written", "read"),
    [
        ("host", "LOCALHOST", "localhost"),
        ("host", "0:0:0:0:0:0:0:1", "::1"),
        ("log_level", "DEBUG", "debug"),
        ("cors_origins", "https://Chat.Example.org:443/", ("https://chat.example.org",)),
        ("trusted_proxies", "10.1.2.3/8,::1", ("10.0.0.0/8", "::1/128")),
        ("tools", "mine.tools:weather", ("mine.tools:weather",)),
        ("allow_open", "yes", True),
    ],
)
def test_values_are_normalized(place: Place, name: str, written: str, read: object) -> None:
    assert getattr(place.load({variable(name): written}).settings, name) == read


def test_provider_keys_are_found_in_the_environment_and_in_dotenv(place: Place) -> None:
    place.write(dotenv="export OPENAI_API_KEY='from file'\nANTHROPIC_API_KEY=${HOME}\n")
    environ = place.load({"OPENAI_API_KEY": "from process"}).provider_environ
    assert environ == {"OPENAI_API_KEY": "from process", "ANTHROPIC_API_KEY": "${HOME}"}


def test_base_url_turns_openai_models_into_openai_chat_with_a_warning(place: Place) -> None:
    loaded = place.load(
        {"TORANA_MODEL_BASE_URL": "http://127.0.0.1:8000/v1"}, model=["openai:a", "openai-chat:b", "builtin"]
    )
    assert loaded.settings.model == ("openai-chat:a", "openai-chat:b", "builtin")
    assert loaded.warnings == (
        '--model: "openai:a" is read as "openai-chat:a", because TORANA_MODEL_BASE_URL is set',
    )


def test_model_names_are_unchanged_without_a_base_url(place: Place) -> None:
    loaded = place.load(model=["openai:a"])
    assert (loaded.settings.model, loaded.warnings) == (("openai:a",), ())


# Wrong values


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("port", 1, 65535),
        ("history_messages", 1, 1000),
        ("rate_per_user", 0, 100_000),
        ("rate_global", 0, 100_000),
        ("wait", 1, 86_400),
        ("turn_timeout", 1, 86_400),
    ],
)
def test_numbers_are_accepted_only_within_bounds(place: Place, name: str, least: int, most: int) -> None:
    for inside in (least, most):
        assert getattr(place.load({variable(name): str(inside)}).settings, name) == inside
    for outside in (str(least - 1), str(most + 1), "1.5", "nan", "one"):
        allowed = f"is not a whole number from {least} to {most}"
        assert place.faults({variable(name): outside}) == [f'{variable(name)}: "{outside}" {allowed}']


def test_money_limit_needs_a_price_for_every_model(place: Place) -> None:
    environ = {
        "TORANA_LIMITS_GLOBAL": "5 usd/month",
        "TORANA_MODEL": "openai:mine, openai:gpt-4o-mini, builtin",
        "TORANA_MODEL_BASE_URL": "http://localhost:8000/v1",
    }

    (line,) = place.faults(environ)
    assert line == (
        "TORANA_PRICES: money is limited, and the price of openai-chat:mine is not known; set it in dollars "
        'per million input and output tokens, such as TORANA_PRICES="openai-chat:mine 0.15 0.60"'
    )
    assert place.load(environ | {"TORANA_PRICES": "openai-chat:mine 0 0"}).settings.prices
    assert place.load(environ | {"TORANA_LIMITS_GLOBAL": "5 tokens/month"}).settings.limits_global


@pytest.mark.parametrize(
    ("name", "written", "line"),
    [
        ("host", "a b", '"a b" is not an IP address or a host name'),
        ("host", "http://x", '"http://x" is not an IP address or a host name'),
        ("host", "[::1]", '"[::1]" is not an IP address or a host name'),
        ("allow_open", "perhaps", '"perhaps" is not true or false'),
        ("allowed_hosts", "a.org,b:80", '"b:80" is not a host name or an IP address, without a port'),
        ("trusted_proxies", "*", '"*" is not an IP address or a network such as 10.0.0.0/8'),
        ("cors_origins", "*", '"*" is not an origin such as https://chat.example.org'),
        ("cors_origins", "http://a/b", '"http://a/b" is not an origin such as https://chat.example.org'),
        ("data_dir", "~no_such_user/x", '"~no_such_user/x" is not a path'),
        (
            "model",
            ",",
            '"," is not a list of 1 to 10, each a model name such as builtin or openai-chat:gpt-5',
        ),
        ("model", "a b", '"a b" is not a model name such as builtin or openai-chat:gpt-5'),
        (
            "model_base_url",
            "http://me:pw@x/v1",
            (
                '"http://me:pw@x/v1" is not an http or https URL without credentials, query and fragment, '
                "such as http://127.0.0.1:8000/v1"
            ),
        ),
        ("timezone", "Mars/Olympus", '"Mars/Olympus" is not an IANA time zone such as Europe/Vienna'),
        ("timezone", "../etc/passwd", '"../etc/passwd" is not an IANA time zone such as Europe/Vienna'),
        ("timezone", "Europe", '"Europe" is not an IANA time zone such as Europe/Vienna'),
        ("tools", "weather", '"weather" is not a function such as mytools.weather:forecast'),
        ("tools", "[1]", "1 is not a function such as mytools.weather:forecast"),
        (
            "tools",
            "[" * 100_000,
            f'"{"[" * 60}…" is not a list of at most 100, each a function such as mytools.weather:forecast',
        ),
        ("limits_per_user", "500 messages/day, lots", f'"lots" is not {A_LIMIT} {A_MINUTE}'),
        ("limits_per_user", "20 messages/minute", f'"20 messages/minute" is not {A_LIMIT} {A_MINUTE}'),
        ("limits_global", "0 usd/month", f'"0 usd/month" is not {A_LIMIT} {A_MINUTE}'),
        ("limits_per_token", "3 turns/day", f'"3 turns/day" is not {A_LIMIT}'),
        (
            "prices",
            "openai-chat:x 1",
            (
                '"openai-chat:x 1" is not a model with its price in dollars per million input and output '
                "tokens, such as openai-chat:my-model 0.15 0.60"
            ),
        ),
        (
            "permissions",
            "[{bad",
            "no valid JSON: Expecting property name enclosed in double quotes: line 1 column 3 (char 2)",
        ),
        ("mcp", '{"a": secret}', "no valid JSON: Expecting value: line 1 column 7 (char 6)"),
        ("log_level", "loud", '"loud" is not one of debug, info, warning, error'),
        ("log_format", "xml", '"xml" is not one of auto, console, json'),
        ("persona", "x" * 20_001, f'"{"x" * 60}…" is not a text of 1 to 20,000 characters'),
        ("persona", "a\n\udcff", r'"a\n\udcff" is not a text of 1 to 20,000 characters'),
        (
            "port",
            "tcp://10.0.0.1:18789",
            (
                '"tcp://10.0.0.1:18789" was set by Kubernetes for a service; '
                "set enableServiceLinks: false in the pod"
            ),
        ),
    ],
)
def test_invalid_value_gives_one_line_with_the_allowed_values(
    place: Place, name: str, written: str, line: str
) -> None:
    assert place.faults({variable(name): written}) == [f"{variable(name)}: {line}"]


#: The cure for a text without quotes.
QUOTES = '; a text needs quotes, such as model = "openai:gpt-5"'


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        ("port = true", "1: port: true is not a whole number from 1 to 65535"),
        ("\n\nport = 1.5", "3: port: 1.5 is not a whole number from 1 to 65535"),
        (f"port = 0x{'f' * 8000}", "1: port: the value is not a whole number from 1 to 65535"),
        ('host = ""', "1: host: empty; remove it, or make it an IP address or a host name"),
        ("[persona]\nx = 1", "1: persona: a table is not a text of 1 to 20,000 characters"),
        ('data_dir = "/a\\u0000b"', r'1: data_dir: "/a\u0000b" is not a path'),
        ("prot = 1", '1: unknown setting "prot"; did you mean "port"?'),
        ("TORANA_PORT = 1", '1: unknown setting "TORANA_PORT"; did you mean "port"?'),
        ("data-dir = 'x'", '1: unknown setting "data-dir"; did you mean "data_dir"?'),
        ("[server]\nport = 1", '1: unknown setting "server"'),
        ("persona = '''\nprot = 1\n'''\nprot = 2", '4: unknown setting "prot"; did you mean "port"?'),
        ('"a\\nb" = 1', ' unknown setting "a\\nb"'),
        ("config = 'x'", '1: unknown setting "config"; did you mean "mcp_config"?'),
        ("_env_file = 'x'", '1: unknown setting "_env_file"; did you mean "model_files"?'),
        ("port = \n", f"1: not valid TOML: Invalid value{QUOTES}"),
        ("model = openai:x\n", f"1: not valid TOML: Invalid value{QUOTES}"),
        ("a = 1\na = 2\n", "2: not valid TOML: Cannot overwrite a value"),
        ("a = '''", " not valid TOML: Expected \"'''\" (at end of document)"),
        (f"a = {'[' * 50_000}", " not valid TOML: nested too deeply"),
    ],
)
def test_fault_in_the_file_names_its_line(place: Place, toml: str, line: str) -> None:
    place.write(toml=toml)
    assert place.faults() == [f"torana.toml:{line}"]


@pytest.mark.parametrize(
    ("dotenv", "line"),
    [
        (
            "\n# note\n\nexport TORANA_WAIT=0 # too short\n",
            '.env:4: TORANA_WAIT: "0" is not a whole number from 1 to 86400',
        ),
        ('A=1\nTORANA_PERSONA="open\nB=2\n', ".env:2: not understood; write NAME=value"),
    ],
)
def test_fault_in_dotenv_names_its_line(place: Place, dotenv: str, line: str) -> None:
    place.write(dotenv=dotenv)
    assert place.faults() == [line]


def test_error_about_a_flag_names_the_flag(place: Place) -> None:
    assert place.faults(data_dir="~no_such_user") == ['--data-dir: "~no_such_user" is not a path']
    assert flag("data_dir") == "--data-dir"


def test_all_errors_are_reported_together(place: Place) -> None:
    place.write(toml="wait = 0\nprot = 1", dotenv="TORANA_LOG_LEVEL=x")
    assert place.faults({"TORANA_HOST": "a b"}, port=0) == [
        'TORANA_HOST: "a b" is not an IP address or a host name',
        "--port: 0 is not a whole number from 1 to 65535",
        "torana.toml:1: wait: 0 is not a whole number from 1 to 86400",
        '.env:1: TORANA_LOG_LEVEL: "x" is not one of debug, info, warning, error',
        'torana.toml:2: unknown setting "prot"; did you mean "port"?',
    ]


def test_long_error_list_is_cut_with_a_count(place: Place) -> None:
    place.write(toml="\n".join(f"x{number:04} = 1" for number in range(1000)))
    faults = place.faults()
    assert (len(faults), faults[-1]) == (21, "and 980 more")


# Unusable files


def test_missing_settings_file_is_reported_with_its_source(place: Place) -> None:
    assert place.faults(config="/no/torana.toml") == ["--config /no/torana.toml: no such file"]
    for path in ("/no/torana.toml", "~no_such_user/x"):
        assert place.faults({"TORANA_CONFIG": path}) == [f"TORANA_CONFIG={path}: no such file"]
    assert place.faults({"TORANA_CONFIG": "a\0b"}) == ['TORANA_CONFIG="a\\u0000b": no such file']


def test_directory_as_settings_file_is_refused(place: Place) -> None:
    assert place.faults(config=str(place.user_dir)) == [
        f"--config {place.user_dir}: cannot be read (Is a directory)"
    ]


def test_file_that_is_not_utf8_is_refused(place: Place) -> None:
    (place.cwd / "torana.toml").write_bytes(b"persona = '\xff'")
    assert place.faults() == ["torana.toml: not UTF-8"]


def test_too_large_file_is_refused(place: Place) -> None:
    place.write(dotenv="#" * 1_048_577)
    assert place.faults() == [".env: larger than 1048576 bytes"]


def test_unreadable_user_directory_is_ignored(place: Place) -> None:
    loaded = load(flags={}, environ={}, cwd=place.cwd, user_dir=place.user_dir / ("x" * 300))
    assert loaded.origins["port"] == "default"


@pytest.mark.parametrize("name", [".env", "torana.toml"])
def test_pipe_in_place_of_a_file_is_refused(place: Place, name: str) -> None:
    os.mkfifo(place.cwd / name)
    assert place.faults() == [f"{name}: not a regular file; opening a pipe would wait for its writer"]


def test_directory_named_dotenv_is_ignored(place: Place) -> None:
    (place.cwd / ".env").mkdir()
    assert place.load().settings.port == 18789


# Unknown variables


def test_unknown_variable_gives_a_warning_with_the_nearest_name(place: Place) -> None:
    place.write(dotenv="TORANA_HOTS=x\n")
    assert place.load({"TORANA_PROT": "1", "torana_wait": "1", "TORANA_ZZZ": "1"}).warnings == (
        'unknown variable "TORANA_HOTS"; did you mean "TORANA_HOST"?',
        'unknown variable "TORANA_PROT"; did you mean "TORANA_PORT"?',
        'unknown variable "TORANA_ZZZ"',
        'unknown variable "torana_wait"; did you mean "TORANA_WAIT"?',
    )


@pytest.mark.parametrize(
    "name",
    ["TORANA_SERVICE_HOST", "TORANA_SERVICE_PORT_HTTP", "TORANA_PORT_18789_TCP", "TORANA_PORT_1_UDP_ADDR"],
)
def test_kubernetes_service_variables_give_no_warning(place: Place, name: str) -> None:
    assert place.load({name: "x", "TORANA_CONFIG": ""}).warnings == ()


# Tokens


@pytest.mark.parametrize("token", [STRONG, "0123456789abcdef"])
def test_strong_token_is_accepted_on_any_address(place: Place, token: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0", "gateway.example.org"):
        loaded = place.load({"TORANA_GATEWAY_TOKEN": token, "TORANA_HOST": host})
        assert loaded.warnings == ()


WEAK = [
    ("changeme", "the token is a placeholder"),
    ("Change-Me-Please", "the token is a placeholder"),
    ("undefined", "the token is a placeholder"),
    ("null", "the token is a placeholder"),
    ("None", "the token is a placeholder"),
    ("<your-token-goes-here>", "the token is a placeholder"),
    ("${GATEWAY_TOKEN_VALUE}", "the token is a placeholder"),
    ("your-gateway-token-here", "the token is a placeholder"),
    ("x", "the token has fewer than 16 characters"),
    ("0123456789abcde", "the token has fewer than 16 characters"),
    ("abababababababababab", "the token repeats a few characters"),
]


@pytest.mark.parametrize(("token", "weakness"), WEAK)
def test_weak_token_gives_a_warning_on_loopback(place: Place, token: str, weakness: str) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        loaded = place.load({"TORANA_GATEWAY_TOKEN": token, "TORANA_HOST": host})
        assert loaded.warnings == (f"TORANA_GATEWAY_TOKEN: {weakness}; {MAKE_ONE}",)


@pytest.mark.parametrize(("token", "weakness"), WEAK)
def test_weak_token_is_refused_on_other_addresses(place: Place, token: str, weakness: str) -> None:
    place.write(toml='host = "0.0.0.0"\nallow_open = true')
    assert place.faults({"TORANA_GATEWAY_TOKEN": token}) == [
        f'TORANA_GATEWAY_TOKEN: {weakness}, and "0.0.0.0" can be reached from other machines; {MAKE_ONE}'
    ]


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example.org", "localhost.example.org"]
)
def test_missing_token_is_refused_on_other_addresses(place: Place, host: str) -> None:
    place.write(toml=f'host = "{host}"')
    cure = f"set TORANA_GATEWAY_TOKEN ({MAKE_ONE}), or TORANA_ALLOW_OPEN=true to allow everyone"
    assert place.faults() == [
        f'torana.toml:1: host: no token is set, and "{host}" can be reached from other machines; {cure}'
    ]


def test_allow_open_permits_a_missing_token_with_a_warning(place: Place) -> None:
    assert place.load({"TORANA_ALLOW_OPEN": "true"}, host="::").warnings == (
        (
            'no token is set, and "::" can be reached from other machines; '
            "everyone who reaches it can use the agent"
        ),
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"])
def test_loopback_hosts_are_recognized(host: str) -> None:
    assert is_loopback(host)


def test_empty_token_is_refused(place: Place) -> None:
    words = "visible ASCII, 1 to 512 characters without spaces"
    line = f"TORANA_GATEWAY_TOKEN: empty; remove it, or make it {words}"
    assert place.faults({"TORANA_GATEWAY_TOKEN": ""}) == [line]
    place.write(dotenv="TORANA_GATEWAY_TOKEN=\n")
    assert place.faults() == [f".env:1: {line}"]


@pytest.mark.parametrize("name", sorted(SECRETS - {"database_url", "redis_url"}))
@pytest.mark.parametrize("value", ["geheim ", "geheimü", "geheim\n", "geheim\udcff", "geheim" * 100])
def test_invalid_secret_is_refused_without_its_value(place: Place, name: str, value: str) -> None:
    words = "the value is not visible ASCII, 1 to 512 characters without spaces"
    assert place.faults({variable(name): value}) == [f"{variable(name)}: {words}"]


@pytest.mark.parametrize("value", ["postgresql://ana:geheim word@db/x", "mysql://ana:geheim@db/x", "geheim"])
def test_invalid_database_url_is_refused_without_its_value(place: Place, value: str) -> None:
    words = "the value is not a URL such as postgresql://user:password@host:5432/database"
    assert place.faults({"TORANA_DATABASE_URL": value}) == [f"TORANA_DATABASE_URL: {words}"]


@pytest.mark.parametrize("value", ["redis://ana:geheim word@db", "http://ana:geheim@db", "geheim"])
def test_invalid_redis_url_is_refused_without_its_value(place: Place, value: str) -> None:
    words = "the value is not a URL such as redis://user:password@host:6379/0"
    assert place.faults({"TORANA_REDIS_URL": value}) == [f"TORANA_REDIS_URL: {words}"]


@pytest.mark.parametrize("toml", ["5", "['geheim']", "{ geheim = 1 }", "true"])
def test_secret_of_the_wrong_type_is_not_shown(place: Place, toml: str) -> None:
    place.write(toml=f"gateway_token = {toml}")
    words = "the value is not visible ASCII, 1 to 512 characters without spaces"
    assert place.faults() == [f"torana.toml:1: gateway_token: {words}"]


def test_representations_contain_no_secret(place: Place) -> None:
    place.write(toml=f'model_api_key = "{STRONG}"', dotenv=f"OPENAI_API_KEY={STRONG}\n")
    loaded = place.load({"TORANA_GATEWAY_TOKEN": STRONG})
    assert STRONG not in f"{loaded!r} {loaded} {loaded.settings!r} {loaded.settings.model_dump_json()}"


# Random input


@pytest.fixture(scope="module")
def anywhere(tmp_path_factory: pytest.TempPathFactory) -> Place:
    base = tmp_path_factory.mktemp("anywhere")
    return Place(cwd=base, user_dir=base / "none")


def _only_clear_lines(place: Place, environ: Mapping[str, str]) -> None:
    try:
        place.load(environ)
    except ConfigInvalid as error:
        lines = error.detail.split("\n")
        assert all(line and line.isprintable() for line in lines), lines


VARIABLES = st.sampled_from([*map(variable, Settings.model_fields), "TORANA_CONFIG", "TORANA_X"])
TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)


@given(environ=st.dictionaries(VARIABLES, TEXT))
def test_any_environment_gives_settings_or_clear_errors(anywhere: Place, environ: dict[str, str]) -> None:
    anywhere.write(toml="", dotenv="")
    _only_clear_lines(anywhere, environ)


@given(
    toml=st.text(max_size=60)
    | st.sampled_from(sorted(Settings.model_fields)).map(lambda name: f"{name} = [{{}}]")
)
def test_any_settings_file_gives_settings_or_clear_errors(anywhere: Place, toml: str) -> None:
    anywhere.write(toml=toml, dotenv="")
    _only_clear_lines(anywhere, {})


@given(dotenv=st.text(max_size=60) | TEXT.map(lambda text: f"TORANA_PORT={text!r}"))
def test_any_dotenv_gives_settings_or_clear_errors(anywhere: Place, dotenv: str) -> None:
    anywhere.write(toml="", dotenv=dotenv)
    _only_clear_lines(anywhere, {})
