"""The format of log lines, and the masking of secrets in them."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torana import telemetry
from torana.telemetry import bind, configure_logging, mask_secrets, mask_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.fixture(autouse=True)
def _logging_is_restored(logging_as_before: None) -> None: ...


def configure(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "console", "json"] = "auto",
    file: Path | None = None,
    stream: io.StringIO | None = None,
) -> io.StringIO:
    stream = stream or io.StringIO()
    configure_logging(level=level, format=style, file=file, stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def masked(**fields: Any) -> dict[str, Any]:
    return mask_secrets(fields)


def test_own_events_and_library_records_share_one_format() -> None:
    stream = configure()
    logging.getLogger("torana.turns").info("turn.completed", extra={"ms": 12})
    logging.getLogger("a.library").info("done in %d ms", 12, extra={"retries": 2})
    ours, theirs = lines(stream)
    assert (ours["logger"], ours["level"], ours["event"], ours["ms"]) == (
        "torana.turns", "info", "turn.completed", 12,
    )  # fmt: skip
    assert (theirs["logger"], theirs["level"], theirs["event"], theirs["retries"]) == (
        "a.library", "info", "done in 12 ms", 2,
    )  # fmt: skip


def test_timestamps_are_rfc_3339_in_utc() -> None:
    stream = configure()
    logging.getLogger("torana").info("x")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", lines(stream)[0]["timestamp"])


@pytest.mark.parametrize(
    ("style", "stream", "is_json"),
    [
        ("auto", io.StringIO, True),
        ("auto", Terminal, False),
        ("json", Terminal, True),
        ("console", io.StringIO, False),
    ],
)
def test_terminals_get_text_and_other_streams_json(
    style: Literal["auto", "console", "json"], stream: type[io.StringIO], is_json: bool
) -> None:
    written = configure(style=style, stream=stream())
    logging.getLogger("torana").info("hello")
    assert written.getvalue().startswith("{") is is_json


@pytest.mark.parametrize(("stream", "coloured"), [(Terminal, True), (io.StringIO, False)])
def test_colours_appear_on_a_terminal_only(stream: type[io.StringIO], coloured: bool) -> None:
    written = configure(style="console", stream=stream())
    logging.getLogger("torana").info("hello", extra={"field": 1})
    assert ("\x1b[" in written.getvalue()) is coloured


def test_log_file_is_json_for_every_terminal_format(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "torana.log"
    stream = configure(file=file, stream=Terminal())
    logging.getLogger("torana").info("hello", extra={"name_of": "Zoë"})
    (line,) = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
    assert (line["event"], line["name_of"]) == ("hello", "Zoë")
    assert line["timestamp"] in stream.getvalue()


def test_terminal_and_file_get_identical_whole_lines(tmp_path: Path) -> None:
    stream, file = io.StringIO(), tmp_path / "log"
    configure_logging(level="info", format="json", file=file, stream=stream)
    for number in range(3):
        logging.getLogger("torana.x").info("event", extra={"number": number})

    written = stream.getvalue()
    assert [json.loads(line)["number"] for line in written.splitlines()] == [0, 1, 2]
    assert file.read_text() == written


def test_full_log_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FILE_BYTES", 300)
    configure(file=tmp_path / "torana.log")
    for number in range(20):
        logging.getLogger("torana").info("event", extra={"number": number})
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["torana.log", *(f"torana.log.{number}" for number in range(1, 6))]


def test_unopenable_log_file_raises(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        configure(file=tmp_path)


@pytest.mark.parametrize(
    ("level", "seen"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_lines_below_the_level_are_dropped(
    level: Literal["debug", "info", "warning", "error"], seen: list[str]
) -> None:
    stream = configure(level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("torana"), name)("event")
    assert [line["level"] for line in lines(stream)] == seen


def test_bound_fields_appear_only_inside_their_block() -> None:
    stream = configure()
    log = logging.getLogger("torana")
    with bind(request_id="req_1"), bind(turn_id="turn_1"):
        log.info("ours")
        logging.getLogger("a.library").info("theirs")
    log.info("outside")
    bound = [(line.get("request_id"), line.get("turn_id")) for line in lines(stream)]
    assert bound == [("req_1", "turn_1"), ("req_1", "turn_1"), (None, None)]


@pytest.mark.parametrize("style", ["json", "console"])
def test_exception_is_rendered_with_its_secrets_masked(style: Literal["json", "console"]) -> None:
    stream = configure(style=style)
    for log in (logging.getLogger("torana"), logging.getLogger("a.library")):
        try:
            raise ValueError("refused Bearer geheim")
        except ValueError:
            log.exception("failed")
    written = stream.getvalue()
    assert written.count("ValueError: refused Bearer ********") == 2
    assert "geheim" not in written.replace('"refused Bearer geheim"', "").replace(
        r"\"refused Bearer geheim\"", ""
    )


def test_configuring_again_replaces_the_handlers() -> None:
    first, second = configure(), configure()
    logging.getLogger("torana").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_uvicorn_logs_without_its_access_log() -> None:
    for name in ("uvicorn", "uvicorn.access"):
        logging.getLogger(name).addHandler(logging.StreamHandler(io.StringIO()))
    logging.getLogger("uvicorn").propagate = False
    stream = configure()
    logging.getLogger("uvicorn.error").info("started", extra={"color_message": "\x1b[1mstarted"})
    logging.getLogger("uvicorn.access").info("GET /health")
    logging.getLogger("uvicorn.error").error("ASGI callable returned without completing response.")
    (line,) = lines(stream)
    assert (line["event"], "color_message" in line) == ("started", False)


def test_libraries_that_log_message_text_log_only_warnings() -> None:
    stream = configure(level="debug")
    logging.getLogger("slixmpp.xmlstream").debug("SEND: <body>a secret</body>")
    logging.getLogger("telegram.Bot").info("https://api.telegram.org/bot1:token/getMe")
    logging.getLogger("slixmpp").warning("trouble")

    assert [line["event"] for line in lines(stream)] == ["trouble"]


@pytest.mark.parametrize(
    ("level", "events"), [("info", ["slow"]), ("debug", ["request", "slow"]), ("error", [])]
)
def test_http_libraries_log_requests_only_at_debug(
    level: Literal["info", "debug", "error"], events: list[str]
) -> None:
    stream = configure(level=level)
    logging.getLogger("httpx").info("request")
    logging.getLogger("httpx").warning("slow")
    assert [line["event"] for line in lines(stream)] == events


def test_lost_log_line_is_reported_without_its_content(capsys: pytest.CaptureFixture[str]) -> None:
    configure(stream=Full())
    logging.getLogger("torana").info("event", extra={"token": "geheim", "text": "also private"})
    assert capsys.readouterr().err == "torana: a log line was lost (OSError)\n"


@pytest.mark.parametrize(
    "name",
    ["token", "gateway_token", "accessToken", "api_key", "apiKey", "x-api-key", "password", "client_secret",
     "Authorization", "proxy-authorization", "Cookie", "set-cookie"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["geheim", 1234, ["geheim"], {"a": "geheim"}, b"geheim"])
def test_values_of_secret_names_are_masked(name: str, value: object) -> None:
    assert masked(event="x", **{name: value}) == {"event": "x", name: "********"}
    assert masked(headers={name: value}) == {"headers": {name: "********"}}


@pytest.mark.parametrize("name", ["inputTokens", "output_tokens", "tokenizer", "key", "author", "secretary"])
def test_values_of_other_names_are_not_masked(name: str) -> None:
    assert masked(**{name: 7}) == {name: 7}


def test_missing_secret_stays_null() -> None:
    assert masked(token=None) == {"token": None}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Bearer abc.DEF-123~+/=", "Authorization: Bearer ********"),
        ("bearer\tabc and more", "bearer\t******** and more"),
        ("key sk-proj-abcdefghijklmn01 refused", "key ******** refused"),
        ("key sk-ant-api03-Ab_cd-Ef", "key ********"),
        ("Incorrect API key: sk-ab***************wxyz.", "Incorrect API key: ********"),
        ("AIzaSyA1234567890abcdef", "********"),
        ("gsk_abcdefghijkl1234", "********"),
        ("xai-abcdefghijkl1234", "********"),
        ("hf_abcdefghijkl1234", "********"),
        ("csk-abcdefghijkl1234", "********"),
        ("github_pat_11ABCDEFG0abcdefgh", "********"),
        ("ABSKabcdefghijkl1234", "********"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "********"),
        ("/v1/tokens/torana_8xuFRPpxcR8n2dHaA_nNeIhHL-hu5whxrJAh6i_3Sis", "/v1/tokens/********"),
        ("torana_gateway_token and torana_limits_per_user", "torana_gateway_token and torana_limits_per_user"),
        (
            "https://api/bot123456789:AAE-abcdefghijklmnopqrstuvwxyz_12345/getMe",
            "https://api/bot********/getMe",
        ),
        ("https://token@host/v1", "https://********@host/v1"),
        ("GET https://host/v1?alt=sse&key=abcdefgh failed", "GET https://host/v1?alt=sse&key=******** failed"),
        (
            "The skeleton-model in pkgconfiguration broke. Why?",
            "The skeleton-model in pkgconfiguration broke. Why?",
        ),
        ("risk-averse sk-learners and hf_hub_download", "risk-averse sk-learners and hf_hub_download"),
        ("postgresql://me:geheim@db/torana", "postgresql://********@db/torana"),
        ("http://127.0.0.1:18789/x?a=b@c", "http://127.0.0.1:18789/x?a=b@c"),
        ("the bearer of news", "the bearer ******** news"),
        ("ask-me-anything-you-like-today", "ask-me-anything-you-like-today"),
    ],
)
def test_credential_inside_a_text_is_masked(text: str, kept: str) -> None:
    assert masked(event=text, parts=[text, {"x": (text,)}]) == {
        "event": kept,
        "parts": [kept, {"x": [kept]}],
    }


@pytest.mark.timeout(10)
@pytest.mark.parametrize("piece", ["-eyJ", "eyJaaaaaaaa.", "sk-", "://a", "Bearer ", "key=", "1:aaaa"])
def test_long_text_is_masked_within_the_time_limit(piece: str) -> None:
    text = piece * (2_000 // len(piece)) + "aaaaaaaa." + "b" * 8_000_000

    assert mask_text(text)


def test_control_characters_are_escaped() -> None:
    assert masked(event="a\x1b[2J\x9b\x00\udcff\tb\n") == {"event": r"a\x1b[2J\x9b\x00\udcff" + "\tb\n"}


def test_newline_in_a_text_is_escaped_on_the_terminal() -> None:
    written = configure(style="console")
    logging.getLogger("torana").info("heard\n2026-01-01 [info] forged\u2028x", extra={"user": "a\nb\u202ec"})
    (line,) = written.getvalue().splitlines()
    assert r"heard\n2026-01-01 [info] forged\u2028x" in line
    assert r"a\nb\u202ec" in line.replace(r"\\u", r"\u")


def test_long_and_deep_values_are_cut() -> None:
    nested: Any = "deep"
    for _ in range(20):
        nested = [nested]
    cut = masked(event="x" * 20_000, items=list(range(1000)), nested=nested)
    assert cut["event"] == "x" * 10_000 + "…"
    assert cut["items"] == list(range(100))
    assert json.dumps(cut["nested"], ensure_ascii=False) == "[" * 6 + '"…"' + "]" * 6


def test_exception_as_a_field_keeps_its_type() -> None:
    assert masked(error=ValueError("Bearer geheim")) == {"error": "ValueError('Bearer ********')"}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=[]))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner),
    max_leaves=20,
)


@given(fields=st.dictionaries(st.text(), VALUES))
def test_any_fields_become_one_utf8_line(fields: dict[str, Any]) -> None:
    line = json.dumps(masked(**{**fields, "event": "x"}), ensure_ascii=False)
    assert len(line.encode().splitlines()) == 1


@given(secret=st.from_regex(r"[A-Za-z0-9._~-]{12,40}", fullmatch=True), before=st.text(), after=st.text())
def test_bearer_tokens_are_masked_in_any_text(secret: str, before: str, after: str) -> None:
    text = masked(event=f"{before} Bearer {secret} {after}")["event"]
    assert f"Bearer {secret}" not in text


def test_lines_of_dropped_turns_are_removed_from_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "FILE_BYTES", 2_000)
    file = tmp_path / "torana.log"
    configure(file=file)
    log = logging.getLogger("torana.test")
    for number in range(20):
        with bind(turn_id=f"turn_{number % 2}"):
            log.info("said %s", f'"turn_id": "turn_{1 - number % 2}" in a text')
    assert (tmp_path / "torana.log.1").exists()
    (tmp_path / "torana.log.part").write_text("left by a call that was cut off")
    assert telemetry.logged_turns() == {"turn_0", "turn_1"}

    telemetry.drop_turns({"turn_0", "turn_unknown"})
    log.info("after it", extra={"turn_id": "turn_2"})

    assert telemetry.logged_turns() == {"turn_1", "turn_2"}
    kept = [json.loads(line) for written in tmp_path.iterdir() for line in written.read_text().splitlines()]
    assert [line["turn_id"] for line in kept].count("turn_1") == 10
    assert {line["turn_id"] for line in kept} == {"turn_1", "turn_2"}
    assert json.loads(file.read_text().splitlines()[-1])["event"] == "after it"


class LoggedMeanwhile(set[str]):
    """Turns; at each of the first lookups, another thread logs events, which rotate the files."""

    lookups = 0

    def __contains__(self, turn_id: object) -> bool:
        self.lookups += 1
        if self.lookups % 2 and self.lookups < 6:
            thread = threading.Thread(target=self._log, daemon=True)
            thread.start()
            thread.join(timeout=10)
            assert not thread.is_alive(), "the event waits for the erasure"
        return super().__contains__(turn_id)

    def _log(self) -> None:
        for number in range(2):
            logging.getLogger("torana.test").info("meanwhile", extra={"turn_id": f"turn_{8 + number}"})


@pytest.mark.parametrize("size", [500, 100_000])
def test_events_do_not_wait_for_the_dropping_of_turns(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "FILE_BYTES", size)
    configure(file=tmp_path / "torana.log")
    for number in range(12):
        logging.getLogger("torana.test").info("said", extra={"turn_id": f"turn_{number % 2}"})

    telemetry.drop_turns(LoggedMeanwhile({"turn_0"}))

    assert "turn_0" not in telemetry.logged_turns()
    assert not list(tmp_path.glob("*.part"))
    written = "".join(file.read_text() for file in tmp_path.iterdir())
    assert written.count('"turn_9"') == 3
    assert size == 500 or written.count('"turn_1"') == 6


def test_dropping_turns_without_a_log_file_does_nothing() -> None:
    configure()
    telemetry.drop_turns(telemetry.logged_turns())


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("info", ["request status=500", "turn_ended", "turn_failed turn_id=turn_1"]),
        ("debug", ["turn_accepted", "request status=200", "request status=500", "turn_ended", "turn_failed"]),
    ],
)
def test_readable_lines_leave_routine_events_and_ids_to_the_file(
    level: Literal["info", "debug"], events: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "torana.log"
    written = configure(style="console", level=level, file=file)
    log = logging.getLogger("torana")
    with bind(turn_id="turn_1"):
        log.info("turn_accepted")
        for status in (200, 500):
            log.info("request", extra={"status": HTTPStatus(status)})
        log.info("turn_ended")
        log.warning("turn_failed")

    shown = written.getvalue().splitlines()
    assert len(shown) == len(events)
    for line, event in zip(shown, events, strict=True):
        assert all(part in line for part in event.split())
    assert [line for line in shown if ("turn_1" in line or "[torana]" in line) != ("warning" in line)] == []
    assert file.read_text().count('"turn_id": "turn_1"') == 5
