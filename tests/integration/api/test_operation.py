"""The settings and the end of the log, as the operator reads them over HTTP."""

import io
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from torana.app import App
from torana.log_tail import read_tail
from torana.telemetry import configure_logging

Start = Callable[..., Awaitable[tuple[App, httpx2.AsyncClient]]]

TOKEN = "a-token-of-more-than-sixteen-characters"


async def test_settings_have_origins_and_defaults_and_hide_secrets(start: Start):
    _, client = await start(gateway_token=TOKEN, turn_timeout=77)
    answer = await client.get("/v1/settings", headers={"Authorization": f"Bearer {TOKEN}"})
    found = {item["name"]: item for item in answer.json()["items"]}
    assert (found["turn_timeout"]["value"], found["turn_timeout"]["origin"]) == (
        77,
        "environment TORANA_TURN_TIMEOUT",
    )
    assert found["turn_timeout"]["default"] != 77
    assert found["persona"]["origin"] == "default"
    assert found["persona"]["value"] == found["persona"]["default"]
    assert (found["gateway_token"]["value"], found["gateway_token"]["default"]) == ("********", None)
    assert TOKEN not in answer.text


@pytest.fixture
def log_file(tmp_path: Path, logging_as_before: None) -> Path:
    """A log file to which the process writes."""
    file = tmp_path / "torana.log"
    configure_logging(level="debug", format="json", file=file, stream=io.StringIO())
    return file


async def test_logs_are_filtered_newest_first(client: httpx2.AsyncClient, log_file: Path):
    logger = logging.getLogger("torana.test")
    for number in range(3):
        logger.info("counted", extra={"number": number})
    logger.warning("odd", extra={"token": "secret"})

    async def read(**params: Any) -> list[dict[str, Any]]:
        answer = await client.get("/v1/logs", params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()["items"]

    counted = await read(event="counted", limit=2)
    assert [line["fields"]["number"] for line in counted] == [2, 1]
    assert (counted[0]["level"], counted[0]["logger"]) == ("info", "torana.test")
    (odd,) = await read(level="warning")
    assert (odd["event"], odd["fields"]) == ("odd", {"token": "[masked]"}) or "secret" not in json.dumps(odd)
    assert (await client.get("/v1/logs", params={"level": "loud"})).status_code == 400


def test_tail_reads_over_blocks_and_rotated_files(log_file: Path):
    line = '{"timestamp": "t", "level": "info", "logger": "l", "event": "e", "n": %d, "text": "%s"}\n'
    old = log_file.with_name("torana.log.1")
    old.write_text("".join(line % (number, "x" * 1_000) for number in range(200)))
    log_file.write_text("no json\n" + "".join(line % (number, "y" * 1_000) for number in range(200, 400)))
    tail = read_tail(level="debug", event="e", limit=300)
    assert [entry.fields["n"] for entry in tail.lines] == list(reversed(range(100, 400)))
    assert not tail.complete
    assert read_tail(level="debug", event="e", limit=400).complete


async def test_without_log_file_there_are_no_lines(client: httpx2.AsyncClient):
    assert (await client.get("/v1/logs")).json() == {"items": [], "complete": True}
